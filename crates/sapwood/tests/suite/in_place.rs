//! Differences that an ext4 image receives in place, or as a new directory: chains, power cuts,
//! other states, hostile streams, and a full image.

mod refused;

use std::path::Path;
use std::sync::Arc;

use sapwood::internal::ReceiveError;
use sapwood::internal::btrfs_format::stream::{Writer, attribute, command, header};
use sapwood::internal::mkfs;
use sapwood::{
    Error, ErrorKind, FileSystem, MkfsOptions, OpenOptions, Options, ReceiveOptions, ReceiveReport,
    SendOptions,
};
use sapwood_block::MemoryDevice;
use sapwood_testing::machine::step;
use sapwood_testing::oracle::ext4::clean;
use sapwood_testing::tree::{Detail, Facts, Tree};
use sapwood_testing::{CrashPlan, RecordDevice, Replayer};

const MIB: u64 = 1 << 20;
const NAME: &str = "image";

/// Features of mkfs.
const FORMS: [&[(&str, &str)]; 4] = [
    &[],
    &[("features", "^64bit,^metadata_csum,^extent"), ("b", "1024")],
    &[("features", "inline_data")],
    &[("features", "^has_journal"), ("I", "128")],
];

fn formatted(form: &[(&str, &str)], size: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    let mut options = MkfsOptions::new("ext4".parse().unwrap());
    for (name, value) in form {
        options.set(name, Some(value)).unwrap();
    }
    mkfs(&*device, Path::new(NAME), &options, true).unwrap();
    device
}

fn open(device: &Arc<MemoryDevice>) -> FileSystem {
    let options = Options::new().option("noatime", None).unwrap();
    FileSystem::open_on(device.clone(), NAME, &options).unwrap()
}

fn open_to_read(device: &Arc<MemoryDevice>) -> FileSystem {
    FileSystem::open_on(device.clone(), NAME, &Options::new().read_only(true)).unwrap()
}

fn noise(random: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.u8(..)).collect()
}

/// Changes a tree at random. A change that the tree does not allow is left out.
fn change(fs: &FileSystem, random: &mut fastrand::Rng, count: usize) {
    for _ in 0..count {
        let name = |random: &mut fastrand::Rng| {
            let dir = ["", "d/", "d/e/", "f/"][random.usize(..4)];
            format!(
                "{dir}{}",
                ["a", "b", "c", "d", "e", "f", "two words"][random.usize(..7)]
            )
        };
        let (one, two) = (name(random), name(random));
        let len = [0, 60, 1000, 5000, 70_000, 300_000][random.usize(..6)];
        let _refused: Result<(), Error> = match random.u8(..12) {
            0..3 => fs.write(&one, noise(random, len)),
            3 | 4 => fs
                .open_with(&one, OpenOptions::new().write(true))
                .and_then(|file| {
                    let at = random.u64(..100_000);
                    file.write_at(&noise(random, len), at)?;
                    if random.u8(..3) == 0 {
                        file.set_len(random.u64(..50_000))?;
                    }
                    Ok(())
                }),
            5 => fs.create_dir(&one),
            6 | 7 => fs.rename(&one, &two),
            8 => fs.hard_link(&one, &two),
            9 if fs.symlink_metadata(&one).is_ok_and(|meta| meta.is_dir()) => {
                fs.remove_dir_all(&one)
            }
            9 => fs.remove_file(&one),
            10 => fs.set_xattr(&one, "user.note", &noise(random, len.min(200))),
            _ => fs.symlink(&two, &one),
        };
    }
}

/// The next state of an image.
fn next(device: &Arc<MemoryDevice>, seed: u64, count: usize) -> Arc<MemoryDevice> {
    let next = Arc::new(device.snapshot());
    let fs = open(&next);
    let mut random = fastrand::Rng::with_seed(seed);
    change(&fs, &mut random, count);
    fs.write("step", seed.to_string()).unwrap();
    fs.close().unwrap();
    next
}

fn stream(new: &Arc<MemoryDevice>, old: Option<&Arc<MemoryDevice>>, name: &str) -> Vec<u8> {
    let mut options = SendOptions::default();
    options.version = 2;
    options.name = Some(name.into());
    options.parent_image = old.map(open_to_read);
    let mut bytes = Vec::new();
    let sent = open_to_read(new).send("", &mut bytes, &options, &mut |_| {});
    sent.unwrap();
    bytes
}

fn receive_in_place(fs: &mut FileSystem, stream: &[u8]) -> sapwood::Result<ReceiveReport> {
    fs.receive_in_place("", stream, &ReceiveOptions::default(), &mut |_| {})
}

fn in_place(device: &Arc<MemoryDevice>, stream: &[u8]) -> sapwood::Result<ReceiveReport> {
    let mut fs = open(device);
    let received = receive_in_place(&mut fs, stream);
    fs.close().unwrap();
    received
}

fn tree(device: &Arc<MemoryDevice>) -> Tree {
    Tree::of(&**open_to_read(device).engine(), Detail::Sums).unwrap()
}

/// Everything but attributes, which the image has more of, and link counts of the root.
fn same(expected: &Tree, found: &Tree) -> Result<(), String> {
    let facts = Facts::PLAIN | Facts::MTIME | Facts::ATIME | Facts::CTIME;
    let compared = expected.compare(found, |path, one, _| {
        let given = one.plain() | facts;
        if path == "." {
            given - Facts::XATTRS
        } else {
            given
        }
    });
    compared.map_err(|error| format!("{error:?}"))
}

#[test]
fn a_chain_of_differences_is_received_in_place() {
    for (number, form) in FORMS.iter().enumerate() {
        let mut state = next(&formatted(form, 64 * MIB), number as u64, 60);
        let machine = Arc::new(state.snapshot());
        for step in 1..=10 {
            let new = next(&state, 100 * number as u64 + step, 40);
            let delta = stream(&new, Some(&state), "next");
            in_place(&machine, &delta).unwrap_or_else(|error| panic!("{form:?}, {step}: {error}"));
            same(&tree(&new), &tree(&machine))
                .unwrap_or_else(|error| panic!("{form:?}, {step}: {error}"));
            clean(&machine, "after a receive in place");
            state = new;
        }
    }
}

#[test]
fn a_chain_of_differences_is_received_as_directories() {
    for (number, form) in FORMS.iter().enumerate() {
        let mut state = next(&formatted(form, 64 * MIB), number as u64, 60);
        let store = open(&formatted(form, 128 * MIB));
        let receive = |stream: &[u8], resume| {
            let mut options = ReceiveOptions::default();
            options.resume = resume;
            store.create_dir_all("backup").unwrap();
            store.receive("backup", stream, &options, &mut |_| {})
        };
        receive(&stream(&state, None, "s0"), false).unwrap();
        for step in 1..=10 {
            let new = next(&state, 100 * number as u64 + step, 40);
            let name = format!("s{step}");
            let delta = stream(&new, Some(&state), &name);
            if step % 3 == 0 {
                // The copy of the parent stays.
                receive(&delta[..delta.len() / 2], false).unwrap_err();
                receive(&delta, true).unwrap();
            } else {
                receive(&delta, false).unwrap_or_else(|error| panic!("{form:?}: {error}"));
            }
            assert_eq!(receive(&delta, true).unwrap().content, 0, "complete");
            let found = sub_tree(&store, &format!("backup/{name}"));
            let expected = sub_tree(&open_to_read(&new), "");
            assert_eq!(expected, found, "{form:?}, step {step}");
            state = new;
        }
        let other = next(&state, 7, 10);
        let unknown = stream(&next(&other, 8, 10), Some(&other), "unknown");
        let error = receive(&unknown, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        store.close().unwrap();
    }
}

/// The names, sizes, modes and content below a directory.
fn sub_tree(fs: &FileSystem, top: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut waiting = vec![String::new()];
    while let Some(dir) = waiting.pop() {
        for entry in fs.read_dir(format!("{top}/{dir}")).unwrap() {
            let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
            if dir.is_empty() && name == "lost+found" {
                continue;
            }
            let below = format!("{dir}/{name}");
            let path = format!("{top}/{below}");
            let meta = fs.symlink_metadata(&path).unwrap();
            let content = if meta.is_dir() {
                waiting.push(below.clone());
                Vec::new()
            } else if meta.is_symlink() {
                fs.read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes()
            } else {
                fs.read(&path).unwrap()
            };
            let digest = crc(&content);
            let mtime = meta.modified();
            all.push(format!(
                "{below} {:o} {} {digest} {mtime:?}",
                meta.mode(),
                content.len()
            ));
        }
    }
    all.sort();
    all
}

fn crc(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};

    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// A cut at a write leaves the old or the new state. From either one the same stream leads to the
/// new state.
#[test]
fn a_cut_of_a_receive_in_place_leaves_the_old_or_the_new_state() {
    for form in [FORMS[0], FORMS[1], FORMS[3]] {
        let old = next(&formatted(form, 48 * MIB), 1, 80);
        let new = next(&old, 2, 60);
        let delta = stream(&new, Some(&old), "next");
        let machine = Arc::new(old.snapshot());
        let record = Arc::new(RecordDevice::new(Arc::clone(&machine)));
        let options = Options::new().option("noatime", None).unwrap();
        let mut fs = FileSystem::open_on(record.clone(), NAME, &options).unwrap();
        receive_in_place(&mut fs, &delta).unwrap();
        let returned = record.mark("returned");
        fs.close().unwrap();
        let (before, after) = (tree(&old), tree(&new));
        let log = record.log();
        let mut replayer = Replayer::new(&log, &old);
        let points = log.crash_points();
        // The switch is near the end.
        let (first, last) = points.split_at(points.len().saturating_sub(12));
        let mut seen = [0, 0];
        for &at in first.iter().step_by(step(2)).chain(last) {
            let image = Arc::new(replayer.image(&CrashPlan::at(at)));
            let fs = open(&image);
            fs.close().unwrap();
            let found = tree(&image);
            let is_new = same(&after, &found).is_ok();
            let is_old = before.difference(&found).is_none();
            assert!(is_new || is_old && at <= returned, "{form:?}, cut at {at}");
            seen[usize::from(is_new)] += 1;
            if form == FORMS[3] {
                // A cut may leave a borrowed journal, which a check clears.
                continue;
            }
            let mut again = ReceiveOptions::default();
            again.resume = true;
            let mut fs = open(&image);
            fs.receive_in_place("", &*delta, &again, &mut |_| {})
                .unwrap_or_else(|error| panic!("{form:?}, cut at {at}: {error}"));
            fs.close().unwrap();
            same(&after, &tree(&image)).unwrap_or_else(|error| panic!("cut at {at}: {error}"));
        }
        assert!(seen.iter().all(|count| *count > 2), "{form:?}: {seen:?}");
    }
}

/// A stream from `parent` with the commands of `add`.
fn made(parent: [u8; 16], add: &dyn Fn(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(2);
    let mut bytes = header(2).to_vec();
    writer.begin(command::SNAPSHOT);
    writer.put(attribute::PATH, b"x");
    writer.put(attribute::UUID, &[7; 16]);
    writer.put(attribute::CTRANSID, &1_u64.to_le_bytes());
    writer.put(attribute::CLONE_UUID, &parent);
    writer.put(attribute::CLONE_CTRANSID, &1_u64.to_le_bytes());
    bytes.extend_from_slice(writer.finish());
    writer.begin(command::CHMOD);
    writer.put(attribute::PATH, b"");
    writer.put(attribute::MODE, &0o700_u64.to_le_bytes());
    bytes.extend_from_slice(writer.finish());
    add(&mut writer);
    bytes.extend_from_slice(writer.finish());
    writer.begin(command::END);
    bytes.extend_from_slice(writer.finish());
    bytes
}

#[test]
fn a_refused_stream_changes_nothing() {
    let old = next(&formatted(FORMS[0], 48 * MIB), 1, 80);
    let new = next(&old, 2, 40);
    let delta = stream(&new, Some(&old), "next");
    let machine = Arc::new(old.snapshot());
    let before = tree(&machine);
    let refused = |machine: &Arc<MemoryDevice>, bytes: &[u8]| {
        let before = tree(machine);
        let error = in_place(machine, bytes).unwrap_err();
        assert_eq!(before.difference(&tree(machine)), None, "{error}");
        error.downcast::<ReceiveError>().unwrap()
    };
    let error = refused(&machine, &stream(&new, None, "full"));
    assert!(matches!(error, ReceiveError::NoDifference), "{error}");
    let error = refused(&machine, &delta[..delta.len() - 30]);
    assert!(matches!(error, ReceiveError::Cut { .. }), "{error}");
    let error = refused(&new, &delta);
    assert!(
        matches!(error, ReceiveError::OtherState { changed: false, .. }),
        "{error}"
    );
    let read = stream_parent(&delta);
    for path in [&b"../x"[..], b"a/../../x", b"link/x", b"no/x"] {
        let hostile = made(read, &|writer| {
            writer.begin(command::UNLINK);
            writer.put(attribute::PATH, path);
        });
        refused(&machine, &hostile);
    }
    // The same without a hostile path is received, and its state is known from then on.
    let good = made(read, &|writer| {
        writer.begin(command::CHMOD);
        writer.put(attribute::PATH, b"step");
        writer.put(attribute::MODE, &0o600_u64.to_le_bytes());
    });
    in_place(&machine, &good).unwrap();
    assert!(before.difference(&tree(&machine)).is_some());
    let error = refused(&machine, &good);
    assert!(matches!(error, ReceiveError::AlreadyReceived(_)), "{error}");
    let later = made([7; 16], &|writer| {
        writer.begin(command::CHMOD);
        writer.put(attribute::PATH, b"step");
        writer.put(attribute::MODE, &0o640_u64.to_le_bytes());
    });
    // It would be the state that it begins with.
    let error = refused(&machine, &later);
    assert!(matches!(error, ReceiveError::SameIdentity(_)), "{error}");
}

/// UUID of the parent of a stream.
fn stream_parent(bytes: &[u8]) -> [u8; 16] {
    let mut parent = [0; 16];
    sapwood::internal::read_stream(bytes, |one| {
        if one.number == command::SNAPSHOT {
            parent = one.uuid(attribute::CLONE_UUID)?;
        }
        Ok::<(), ReceiveError>(())
    })
    .unwrap();
    parent
}

type Change<'c> = &'c dyn Fn(&FileSystem) -> sapwood::Result<()>;

#[test]
fn each_change_since_the_last_receive_is_found() {
    let one = next(&formatted(FORMS[0], 48 * MIB), 1, 80);
    let two = next(&one, 2, 40);
    let three = next(&two, 3, 40);
    let machine = Arc::new(one.snapshot());
    in_place(&machine, &stream(&two, Some(&one), "two")).unwrap();
    let delta = stream(&three, Some(&two), "three");
    let changes: [Change<'_>; 6] = [
        &|fs| fs.write("step", "2"),
        &|fs| fs.write("other", ""),
        &|fs| fs.remove_file("step"),
        &|fs| fs.rename("step", "stop"),
        &|fs| fs.set_xattr("", "user.x", b"y"),
        &|fs| fs.set_permissions("", 0o711),
    ];
    for (number, change) in changes.iter().enumerate() {
        let changed = Arc::new(machine.snapshot());
        let fs = open(&changed);
        change(&fs).unwrap();
        fs.close().unwrap();
        let error = in_place(&changed, &delta).unwrap_err();
        let error = error.downcast::<ReceiveError>().unwrap();
        assert!(
            matches!(error, ReceiveError::OtherState { changed: true, .. }),
            "{number}: {error}"
        );
    }
    // Opening it and reading is no change.
    let fs = open(&machine);
    fs.read("step").unwrap();
    fs.close().unwrap();
    in_place(&machine, &delta).unwrap();
    same(&tree(&three), &tree(&machine)).unwrap();
}

#[test]
fn more_than_the_journal_is_overwritten_in_place_if_there_is_room() {
    for (size, fits) in [(128, true), (76, false)] {
        let old = formatted(&[], size * MIB);
        let fs = open(&old);
        let mut random = fastrand::Rng::with_seed(size);
        fs.write("large", noise(&mut random, 40 << 20)).unwrap();
        fs.close().unwrap();
        let new = Arc::new(old.snapshot());
        let fs = open(&new);
        fs.write("large", noise(&mut random, 40 << 20)).unwrap();
        fs.close().unwrap();
        let delta = stream(&new, Some(&old), "next");
        let machine = Arc::new(old.snapshot());
        let received = in_place(&machine, &delta);
        if fits {
            received.unwrap();
            same(&tree(&new), &tree(&machine)).unwrap();
        } else {
            let error = received.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            assert_eq!(tree(&old).difference(&tree(&machine)), None);
        }
        clean(&machine, "after a large receive");
    }
}

#[test]
fn only_an_ext4_is_received_in_place() {
    let device = Arc::new(MemoryDevice::new(128 * MIB));
    mkfs(
        &*device,
        Path::new(NAME),
        &MkfsOptions::new("btrfs".parse().unwrap()),
        true,
    )
    .unwrap();
    let error = in_place(&device, &made([1; 16], &|_| {})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("not an ext4"), "{error}");
}
