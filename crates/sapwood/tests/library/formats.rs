//! The formats of new images, and file systems in qcow2 files: what the tools of each format say.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sapwood::block::{Device, MemoryDevice, Qcow2Device, create_qcow2};
use sapwood::btrfs::Btrfs;
use sapwood::disk::{DiskBuilder, NewPartition, PartitionContent, PartitionSize};
use sapwood::ext4::Ext4;
use sapwood::vfs::{self, Credentials, NewInode, SyncKind, WriteMode};
use sapwood::{FreeRoom, ImageBuilder, Kind, OutputFormat};
use sapwood_testing::RecordDevice;
use sapwood_testing::machine::{Need, left_out, part_left_out};

const MIB: u64 = 1 << 20;

/// Runs a program, which succeeds.
fn run(words: &[&str]) {
    let (program, args) = words.split_first().unwrap();
    let mut command = Command::new(program);
    let out = command.args(args).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{words:?}: {out:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn tree(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    for number in 0..40_usize {
        let mut bytes = vec![0; number * number * 300];
        random.fill(&mut bytes);
        // A file of one word, and zeros in the others.
        match number {
            7 => bytes = b"word".repeat(60_000),
            _ => bytes
                .iter_mut()
                .skip(9000)
                .take(70_000)
                .for_each(|byte| *byte = 0),
        }
        fs::write(dir.join(format!("f{number}")), bytes).unwrap();
    }
}

fn time() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn builder(kind: Kind, dir: &Path) -> ImageBuilder {
    let builder = ImageBuilder::new(kind).uuid([3; 16]).time(time());
    builder.from_dir(dir).unwrap()
}

/// The disk in an image is that of the raw image, but for zeros at its end.
fn same_disk(format: OutputFormat, image: &Path, raw: &Path) {
    let back = image.with_extension("back");
    let (image, raw_text, back_text) = (text(image), text(raw), text(&back));
    match format {
        OutputFormat::Raw => run(&["cmp", image, raw_text]),
        OutputFormat::Qcow2 => {
            run(&["qemu-img", "check", "-q", "-f", "qcow2", image]);
            let compare = ["qemu-img", "compare", "-q", "-f", "qcow2", "-F", "raw"];
            run(&[&compare[..], &[image, raw_text]].concat());
        }
        OutputFormat::Vhd => {
            let size = fs::metadata(image).unwrap().len();
            assert_eq!(size % MIB, 512);
            let convert = [
                "qemu-img", "convert", "-f", "vpc", "-O", "raw", image, back_text,
            ];
            run(&convert);
            assert_eq!(fs::metadata(&back).unwrap().len(), size - 512);
            let compare = ["qemu-img", "compare", "-q", "-f", "raw", "-F", "raw"];
            run(&[&compare[..], &[back_text, raw_text]].concat());
        }
        OutputFormat::AndroidSparse => {
            run(&["simg2img", image, back_text]);
            run(&["cmp", back_text, raw_text]);
        }
        OutputFormat::Zstd => {
            run(&["zstd", "-d", "-q", "-f", "-o", back_text, image]);
            run(&["cmp", back_text, raw_text]);
        }
        other => panic!("{other} is not compared"),
    }
}

fn needs(format: OutputFormat) -> &'static [Need] {
    match format {
        OutputFormat::Qcow2 | OutputFormat::Vhd => &[Need::Program("qemu-img")],
        OutputFormat::AndroidSparse => &[Need::Program("simg2img")],
        OutputFormat::Zstd => &[Need::Program("zstd")],
        _ => &[],
    }
}

#[test]
fn the_tools_of_each_format_find_the_bytes_of_the_raw_image() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("tree");
    tree(&source);
    for kind in Kind::ALL {
        let raw = dir.path().join("raw");
        builder(kind, &source).write_to(&raw).unwrap();
        for format in OutputFormat::ALL {
            let (one, two) = (dir.path().join("one"), dir.path().join("two"));
            let builder = builder(kind, &source).format(format);
            builder.write_to(&one).unwrap();
            builder.write_to(&two).unwrap();
            assert!(
                fs::read(&one).unwrap() == fs::read(&two).unwrap(),
                "{format}"
            );
            if !part_left_out(format.name(), needs(format)) {
                same_disk(format, &one, &raw);
            }
        }
    }
}

#[test]
fn whole_disks_are_written_in_each_format() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("tree");
    tree(&source);
    let mut root = NewPartition::default();
    root.name = "root".to_owned();
    root.size = PartitionSize::Bytes(64 * MIB + 4096);
    root.content = PartitionContent::Image(Box::new(
        builder(Kind::Ext4, &source).format(OutputFormat::Zstd),
    ));
    let disk = DiskBuilder::new().uuid([4; 16]).time(time());
    let disk = disk.alignment(4096).partition(root);
    let raw = dir.path().join("raw");
    disk.write_to(&raw).unwrap();
    for format in OutputFormat::ALL {
        let disk = disk.clone().format(format);
        let image = dir.path().join("image");
        disk.write_to(&image).unwrap();
        let again = dir.path().join("again");
        disk.write_to(&again).unwrap();
        assert!(
            fs::read(&image).unwrap() == fs::read(&again).unwrap(),
            "{format}"
        );
        // The table at the end of a disk of whole MiB is at another place.
        if format != OutputFormat::Vhd && !part_left_out(format.name(), needs(format)) {
            same_disk(format, &image, &raw);
        }
        if format == OutputFormat::Qcow2 {
            let fs = sapwood::open(format!("{}#root", image.display())).unwrap();
            assert_eq!(fs.read("f7").unwrap(), b"word".repeat(60_000));
        }
    }
}

/// A disk that does not end with a block, a cluster or a frame, with data at its end.
#[test]
fn disks_of_any_size_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let part = dir.path().join("part");
    let mut bytes = vec![0; 9 * MIB as usize + 512];
    bytes[5 * MIB as usize..].fill(b'x');
    fs::write(&part, &bytes).unwrap();
    let mut only = NewPartition::default();
    only.name = "only".to_owned();
    only.content = PartitionContent::File(part);
    let disk = DiskBuilder::new()
        .uuid([4; 16])
        .alignment(512)
        .partition(only);
    let raw = dir.path().join("raw");
    disk.write_to(&raw).unwrap();
    assert_ne!(fs::metadata(&raw).unwrap().len() % 4096, 0);
    for format in [OutputFormat::Qcow2, OutputFormat::Zstd] {
        let image = dir.path().join("image");
        disk.clone().format(format).write_to(&image).unwrap();
        if !part_left_out(format.name(), needs(format)) {
            same_disk(format, &image, &raw);
        }
    }
}

fn mounted(kind: Kind, disk: Arc<dyn Device>) -> Box<dyn vfs::FileSystem> {
    match kind {
        Kind::Btrfs => Box::new(Btrfs::open(vec![disk], Default::default()).unwrap()),
        _ => Box::new(Ext4::open(disk, Default::default()).unwrap()),
    }
}

/// A file with this content was durable at this place of the record.
struct Durable {
    at: usize,
    name: String,
    content: Vec<u8>,
}

/// Files are written and made durable, one after another, and all of that is recorded.
fn written(kind: Kind, record: &Arc<RecordDevice<MemoryDevice>>) -> Vec<Durable> {
    let disk = Arc::new(Qcow2Device::open(record.clone(), None).unwrap());
    let fs = mounted(kind, disk);
    let mut durable = Vec::new();
    for number in 0..14_usize {
        let name = format!("f{number}");
        let who = Credentials::ROOT;
        let made = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Regular, 0o644);
        let file = made.unwrap().ino();
        let content = vec![b'a' + number as u8; 3000 + number * number * 4000];
        fs.write(file, 0, &content, WriteMode::default()).unwrap();
        match number % 4 {
            3 => fs.sync().unwrap(),
            _ => fs.fsync(file, SyncKind::All).unwrap(),
        }
        durable.push(Durable {
            at: record.position(),
            name,
            content,
        });
    }
    durable
}

/// A power cut between any two writes to a qcow2 file leaves a file that is sound for qemu, a file
/// system that is sound in it, and everything that was made durable.
#[test]
fn a_power_cut_of_a_qcow2_file_loses_nothing_durable() {
    let qemu = !left_out(&[Need::Program("qemu-img")]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut");
    for kind in Kind::ALL {
        let file = Arc::new(MemoryDevice::new(24 * MIB));
        create_qcow2(&file, 256 * MIB).unwrap();
        let disk = Qcow2Device::open(file.clone(), None).unwrap();
        let options = sapwood::MkfsOptions::new(kind);
        sapwood::mkfs::mkfs(&disk, Path::new("disk"), &options, true).unwrap();
        disk.flush().unwrap();
        drop(disk);
        let base = file.snapshot();
        let record = Arc::new(RecordDevice::new(base.snapshot()));
        let durable = written(kind, &record);
        let log = record.log();
        let points = log.crash_points();
        assert!(points.len() > 40, "only {} cuts", points.len());
        for (number, at) in points.into_iter().enumerate() {
            let mut plan = log.random_plan(at, number as u64);
            // The superblock of ext4 is written whole or not at all.
            plan.torn.clear();
            let image = log.image(&base, &plan);
            if qemu && number % 16 == 0 {
                image.save(&path).unwrap();
                let check = ["check", "-q", "-f", "qcow2", text(&path)];
                let out = Command::new("qemu-img").args(check).output().unwrap();
                // 3: clusters are leaked.
                let sound = matches!(out.status.code(), Some(0 | 3));
                assert!(sound, "{kind}, cut at {at}: {out:?}");
            }
            let disk = Arc::new(Qcow2Device::open(Arc::new(image), None).unwrap());
            let fs = mounted(kind, disk.clone());
            for Durable { name, content, .. } in durable.iter().filter(|file| file.at <= at) {
                let file = fs.lookup(fs.root(), name.as_bytes());
                let file = file.unwrap_or_else(|error| panic!("{kind}, {at}: {name}: {error}"));
                let mut found = vec![0; content.len() + 1];
                let len = fs.read(file.ino(), 0, &mut found).unwrap();
                assert!(found[..len] == content[..], "{kind}, cut at {at}: {name}");
            }
            fs.unmount().unwrap();
            drop(fs);
            sound(kind, disk, at);
        }
    }
}

fn sound(kind: Kind, disk: Arc<Qcow2Device>, at: usize) {
    let disk: Arc<dyn Device> = disk;
    let errors: Vec<String> = match kind {
        Kind::Btrfs => {
            let report = sapwood::btrfs::check::check(&[&*disk], &Default::default(), &mut |_| ());
            report.unwrap().errors().map(ToString::to_string).collect()
        }
        _ => {
            let go_on = &mut |_| std::ops::ControlFlow::Continue(());
            let report = sapwood::ext4::check::check(&disk, &Default::default(), go_on);
            report.unwrap().errors().map(ToString::to_string).collect()
        }
    };
    assert!(errors.is_empty(), "{kind}, cut at {at}: {errors:?}");
}

/// Bytes that a file takes on its host.
fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn free_space_is_available_to_users_and_holds_no_stale_bytes() {
    let dir = tempfile::tempdir().unwrap();
    tree(&dir.path().join("tree"));
    for kind in [Kind::Btrfs, Kind::Ext4] {
        let image = |name: &str, free: FreeRoom| {
            let path = dir.path().join(format!("{name}.{kind:?}"));
            let builder = builder(kind, &dir.path().join("tree")).free(free);
            builder.write_to(&path).unwrap();
            path
        };
        let least = fs::metadata(image("least", FreeRoom::Bytes(0)))
            .unwrap()
            .len();
        for (name, free, wanted) in [
            ("bytes", FreeRoom::Bytes(10 * MIB), 10 * MIB),
            ("per-cent", FreeRoom::Percent(60.0), least * 6 / 10),
            ("much", FreeRoom::Bytes(300 * MIB), 300 * MIB),
        ] {
            let path = image(name, free);
            let opened = sapwood::open(&path).unwrap();
            let stat = opened.statfs().unwrap();
            opened.close().unwrap();
            let available = stat.blocks_available * u64::from(stat.block_size);
            // A btrfs keeps the rest of a chunk of data.
            let more = match kind {
                Kind::Btrfs => 32 * MIB,
                Kind::Ext4 => 4 * MIB,
            };
            let enough = wanted..wanted + wanted / 10 + more;
            assert!(enough.contains(&available), "{kind:?}, {name}: {available}");
            let before = allocated(&path);
            sapwood::trim(&path).unwrap();
            let stale = before.saturating_sub(allocated(&path));
            assert!(stale < MIB, "{kind:?}, {name}: {stale} stale bytes");
        }
    }
}
