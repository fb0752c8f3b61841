//! The effects of mount options and of a file's own settings, seen through the mount.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use sapwood::internal::image::{Mounted as FileSystem, OpenError};
use sapwood::internal::options::OptionError;
use sapwood::internal::options::table::{self, Effect, Form};
use sapwood::{Kind, Options};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, Mounted, SapwoodMount, sapwood, workspace};
use sapwood_tests::scratch::SmallHost;
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let mounts = [machine::KERNEL, Need::Fuse];
    let logs = [Need::Fuse, Need::Program("zstd")];
    vec![
        trial("options::read_only_after_an_error", &mounts, || {
            after_an_error(false)
        }),
        trial("options::no_room_for_the_log_either", &mounts, || {
            after_an_error(true)
        }),
        trial("options::each_on_each_kind_of_image", &[], each_option),
        trial("options::flags_reach_the_mount_table", &[Need::Fuse], flags),
        trial("options::minixdf_counts_metadata", &[Need::Fuse], minixdf),
        trial("options::compression_of_each_file", &mounts, compression),
        trial("options::log_is_replayed_or_not", &logs, log_replay),
    ]
}

fn code<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// Options that need `ro`.
const READ_ONLY: &[&str] = &[
    "norecovery",
    "nologreplay",
    "noload",
    "rescue",
    "usebackuproot",
    "recovery",
    "sb",
];

/// Options that name a part of the image.
const PARTS: &[&str] = &["offset", "length", "partition"];

/// Options of dm-verity.
const VERITY: &[&str] = &["verity.roothash", "verity.hashdevice"];

/// Options that need quotas in the image.
const QUOTAS: &[&str] = &["quota", "usrquota", "grpquota", "prjquota"];

/// A root hash of dm-verity.
const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A value that fits the declared form of an option.
pub(super) fn sample(form: Form) -> Option<&'static str> {
    let (Form::Value(placeholder) | Form::Optional(placeholder)) = form else {
        return None;
    };
    Some(match placeholder {
        "BYTES" => "1M",
        "PATH" => "/",
        "ID" => "5",
        "HEX" => HASH,
        placeholder if placeholder.starts_with(|first: char| first.is_ascii_uppercase()) => "1",
        choices => choices.split(['|', '[', ':']).next().unwrap_or(choices),
    })
}

/// Opens an image. A process that another test starts holds its lock from fork to exec.
fn open(image: &TempImage, options: &Options) -> Result<FileSystem, OpenError> {
    let end = Instant::now() + process::ORDINARY;
    loop {
        match sapwood::internal::image::open(image.path(), options) {
            Err(OpenError::Device(sapwood_block::Error::Busy { .. })) if Instant::now() < end => {
                std::thread::yield_now();
            }
            opened => return opened,
        }
    }
}

/// Every declared option on an image of each kind: it opens, or the option is the error.
fn each_option() -> Outcome {
    for kind in [Kind::Btrfs, Kind::Ext4] {
        let mkfs = Mkfs {
            kind,
            ..Mkfs::ours("").sized(128 << 20)
        };
        let image = TempImage::new(&mkfs)?;
        // A device that can be opened: the format is found out after that.
        let device = image.beside("device");
        std::fs::write(&device, [0; 4096])?;
        for option in table::all() {
            for name in option.names {
                let mut options = Options::default();
                if READ_ONLY.contains(name) {
                    options.set_read_only();
                }
                let name = name.replace('*', "word");
                let value = match (&*name, kind) {
                    ("device", Kind::Ext4) | ("journal_path", Kind::Btrfs) => device.to_str(),
                    _ => sample(option.form).filter(|_| name != "barrier"),
                };
                let taken = options.set(&name, value);
                if matches!(option.effect, Effect::Refused) {
                    let refused = taken.as_ref().map_err(sapwood::Error::downcast_ref);
                    if !matches!(refused, Err(Some(OptionError::Unsupported { .. }))) {
                        return Err(format!("{name} on {kind}: {taken:?}").into());
                    }
                    continue;
                }
                if taken.is_err() && name == "nosymfollow" {
                    continue;
                }
                taken.map_err(|error| format!("{kind}: {error}"))?;
                let opened = open(&image, &options);
                let needs = [PARTS, VERITY, QUOTAS].concat();
                match (opened, option.of.is_none_or(|of| of == kind)) {
                    (Ok(_), true) if needs.contains(&&*name) => {
                        return Err(format!("{name} on {kind}: ignored").into());
                    }
                    (Ok(fs), true) => fs.unmount().map_err(|error| format!("{name}: {error}"))?,
                    (
                        Err(OpenError::Option {
                            source: OptionError::Foreign { .. },
                            ..
                        }),
                        false,
                    ) => {}
                    // The path of no device: the error of opening it.
                    (Err(OpenError::Device(_)), true)
                        if matches!(&*name, "device" | "journal_path") => {}
                    // Parts of an image that is whole: none of them has a file system.
                    (Err(OpenError::Kind { .. }), true) if name == "offset" => {}
                    (Err(OpenError::Btrfs { .. } | OpenError::Ext4 { .. }), true)
                        if name == "length" || QUOTAS.contains(&&*name) => {}
                    (Err(OpenError::Operand(sapwood_block::OperandError::Partition(_))), true)
                        if name == "partition" => {}
                    // Each needs the other.
                    (Err(OpenError::HalfVerity(_)), true) if VERITY.contains(&&*name) => {}
                    // Its sample is a directory.
                    (Err(OpenError::KeyFile { .. }), true) if name == "luks.keyfile" => {}
                    (Ok(_), false) => return Err(format!("{name} on {kind}: opened").into()),
                    (Err(error), _) => return Err(format!("{name} on {kind}: {error}").into()),
                }
            }
        }
        image.check_by_us()?;
    }
    Ok(())
}

/// Options that the kernel keeps, as the mount table shows them.
fn flags() -> Outcome {
    let image = TempImage::new(&Mkfs::ours("").sized(128 << 20))?;
    for (options, shown) in [
        ("lazytime", "lazytime"),
        ("nodiratime", "nodiratime"),
        ("noatime", "noatime"),
        ("nosymfollow", "nosymfollow"),
        ("strictatime,noexec", "noexec"),
        ("rw,nosuid", "nosuid"),
    ] {
        for kind in ["fuseblk=auto", "fuseblk=off"] {
            let mount = SapwoodMount::new(image.path(), &format!("{options},{kind}"))?;
            let table = fs::read_to_string("/proc/self/mountinfo")?;
            let place = format!(" {} ", mount.path().display());
            let line = table.lines().find(|line| line.contains(&place));
            let line = line.unwrap_or_default().to_owned();
            let words = |word| line.split([' ', ',']).any(|found| found == word);
            let relative = words("relatime") == options.contains("strictatime");
            Box::new(mount).unmount()?;
            if !words(shown) || (options.contains("strictatime") && relative) {
                return Err(format!("{options},{kind}: {line}").into());
            }
        }
    }
    Ok(())
}

fn minixdf() -> Outcome {
    let mkfs = Mkfs {
        kind: Kind::Ext4,
        ..Mkfs::ours("").sized(128 << 20)
    };
    let image = TempImage::new(&mkfs)?;
    let mut found = Vec::new();
    for options in ["minixdf", "bsddf", "rw"] {
        let mount = SapwoodMount::new(image.path(), options)?;
        let stat = rustix::fs::statvfs(mount.path())?;
        found.push(stat.f_blocks * stat.f_frsize);
        Box::new(mount).unmount()?;
    }
    match found[..] {
        [whole, part, default] if whole == 128 << 20 && part < whole && default == part => Ok(()),
        _ => Err(format!("{found:?}").into()),
    }
}

/// The image's own device becomes full: callers get errors. When metadata cannot be written either,
/// the mount becomes read-only, and the next one has the durable state. The daemon's log goes into
/// the same full file system if `log_too`.
fn after_an_error(log_too: bool) -> Outcome {
    let small = SmallHost::new(48)?;
    let image = small.path().join("image");
    File::create(&image)?.set_len(1 << 30)?;
    process::run("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()])?;
    let outside = scratch::directory();
    let link = outside.path().join("link");
    std::os::unix::fs::symlink(&image, &link)?;
    // The log is next to the image.
    let options = "rw,space_wait=1";
    let mount = SapwoodMount::new(if log_too { &image } else { &link }, options)?;
    let root = mount.path().to_owned();
    write_durably(&root.join("before"), b"durable")?;
    let failed = (0..100).find_map(|nth| {
        let content = vec![nth; 4 << 20];
        write_durably(&root.join(format!("file-{nth}")), &content).err()
    });
    let failed = failed.and_then(|error| error.raw_os_error());
    let ended = [Some(libc::EIO), Some(libc::EROFS)];
    if failed != Some(libc::ENOSPC) && !ended.contains(&failed) {
        return Err(format!("writing to a full device: {failed:?}").into());
    }
    // Data waits in memory for space on the host. Metadata waits a while, and then ends all
    // changes.
    let ends = (0..100).any(|nth| {
        let file = File::create(root.join(format!("more-{nth}")));
        ended.contains(&code(file.and_then(|file| file.sync_all())))
    });
    if !ends {
        return Err("metadata that cannot be written ends no changes".into());
    }
    let late = root.join("late");
    for (what, found) in [
        ("create", code(File::create(&late))),
        ("mkdir", code(fs::create_dir(&late))),
        ("unlink", code(fs::remove_file(root.join("before")))),
        ("rename", code(fs::rename(root.join("before"), &late))),
    ] {
        if found != Some(libc::EROFS) {
            return Err(format!("{what} after the error: {found:?}").into());
        }
    }
    if fs::read(root.join("before"))? != b"durable" {
        return Err("what is durable cannot be read after the error".into());
    }
    let said = mount.kill();
    if !log_too && !said.contains("read-only") {
        return Err(format!("the log does not say it: {said}").into());
    }
    small.grow()?;
    let mount = SapwoodMount::new(&image, "rw")?;
    let before = fs::read(mount.path().join("before"))?;
    write_durably(&mount.path().join("after"), b"writable again")?;
    Box::new(mount).unmount()?;
    let mut check = std::process::Command::new(sapwood());
    check
        .args(["check", "--quiet", "--check-data-csum"])
        .arg(&image);
    process::succeed(&mut check, Duration::from_secs(120))?;
    if before == b"durable" {
        Ok(())
    } else {
        Err("what was durable is not there at the next mount".into())
    }
}

fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

const PROPERTY: &str = "btrfs.compression";

/// `btrfs.compression` of a file, and of a directory for those made in it, read back through the
/// mount and seen in the extents by `btrfs inspect-internal`.
fn compression() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(512 << 20))?;
    let mount = Driver::Sapwood.mount(image.path(), "rw")?;
    let root = mount.path().to_owned();
    let content = b"sapwood ".repeat(64 << 10);
    let mut expected = BTreeMap::from([("plain".to_owned(), "none")]);
    fs::write(root.join("plain"), &content)?;
    for kind in ["zlib", "lzo", "zstd"] {
        let file = root.join(kind);
        File::create(&file)?;
        setxattr(&file, PROPERTY, kind.as_bytes(), XattrFlags::empty())?;
        fs::write(&file, &content)?;
        let dir = root.join(format!("dir-{kind}"));
        fs::create_dir(&dir)?;
        setxattr(&dir, PROPERTY, kind.as_bytes(), XattrFlags::empty())?;
        fs::write(dir.join(format!("in-{kind}")), &content)?;
        for path in [&file, &dir, &dir.join(format!("in-{kind}"))] {
            let mut value = [0; 16];
            let len = getxattr(path, PROPERTY, &mut value)?;
            if &value[..len] != kind.as_bytes() {
                return Err(format!("{}: {:?}", path.display(), &value[..len]).into());
            }
        }
        expected.insert(kind.to_owned(), kind);
        expected.insert(format!("in-{kind}"), kind);
    }
    let refused = setxattr(root.join("plain"), PROPERTY, b"best", XattrFlags::empty());
    if refused != Err(rustix::io::Errno::INVAL) {
        return Err(format!("a compression that does not exist: {refused:?}").into());
    }
    mount.unmount()?;
    image.check_by_kernel()?;
    let found = extents(&image)?;
    for (name, kind) in &expected {
        let kinds = found.get(name).cloned().unwrap_or_default();
        if kinds.is_empty() || kinds.iter().any(|found| found != kind) {
            return Err(format!("{name}: {kinds:?}, not {kind}").into());
        }
    }
    let again = Driver::Kernel.mount(image.path(), "ro")?;
    for name in ["plain", "zlib", "lzo", "zstd", "dir-lzo/in-lzo"] {
        if fs::read(again.path().join(name))? != content {
            return Err(format!("the kernel reads something else from {name}").into());
        }
    }
    again.unmount()?;
    Ok(())
}

/// The compressions of the extents of each file, by its name.
fn extents(image: &TempImage) -> Result<BTreeMap<String, Vec<String>>, String> {
    let path = image.path().to_str().unwrap();
    let dump = process::run("btrfs", &["inspect-internal", "dump-tree", "-t", "5", path])?;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut name, mut of_ref) = (String::new(), false);
    for line in dump.lines().map(str::trim) {
        if line.starts_with("item ") {
            of_ref = line.contains(" INODE_REF ");
        } else if let Some((_, after)) = line.split_once("name: ").filter(|_| of_ref) {
            after.clone_into(&mut name);
        } else if let Some(kind) = line.strip_prefix("extent compression ") {
            // `2 (lzo)`
            let kind = kind.trim_end_matches(')').rsplit('(').next().unwrap_or("");
            found.entry(name.clone()).or_default().push(kind.to_owned());
        }
    }
    Ok(found)
}

/// An image with a log that the kernel wrote: its changes are there after the replay. A mount that
/// may not write names the log and leaves it.
fn log_replay() -> Outcome {
    let dir = scratch::directory();
    let image = dir.path().join("image");
    let packed = workspace().join("crates/btrfs/tests/data/logs/newdir_tree.img.zst");
    let args: [PathBuf; 5] = [
        "-dq".into(),
        "--sparse".into(),
        packed,
        "-o".into(),
        image.clone(),
    ];
    process::run("zstd", &args)?;
    let before = crc(&image)?;
    let refused = |options: &str, hint: &str| -> Result<(), String> {
        match SapwoodMount::new(&image, options) {
            Ok(_) => Err(format!("-o {options}: mounted")),
            Err(said) if said.contains(hint) => Ok(()),
            Err(said) => Err(format!("-o {options}: {said}")),
        }
    };
    refused("ro", "nologreplay")?;
    refused("nologreplay", "read-only")?;
    for options in ["ro,nologreplay", "ro,rescue=nologreplay", "ro,norecovery"] {
        let mount = SapwoodMount::new(&image, options)?;
        let there = (
            mount.path().join("base").exists(),
            mount.path().join("base/x").exists(),
        );
        Box::new(mount).unmount()?;
        if there != (true, false) {
            return Err(format!("-o {options}: {there:?} instead of the last commit").into());
        }
    }
    if crc(&image)? != before {
        return Err("a mount that replays nothing changed the image".into());
    }
    for options in ["rw", "ro"] {
        let mount = SapwoodMount::new(&image, options)?;
        let len = fs::metadata(mount.path().join("base/x/y/z/f")).map(|found| found.len());
        Box::new(mount).unmount()?;
        if len.as_ref().ok() != Some(&5) {
            return Err(format!("-o {options}: {len:?}: not replayed").into());
        }
    }
    Ok(())
}

fn crc(image: &Path) -> io::Result<u32> {
    let mut file = File::open(image)?;
    let (mut sum, mut piece) = (0, vec![0; 1 << 20]);
    loop {
        match io::Read::read(&mut file, &mut piece)? {
            0 => return Ok(sum),
            len => sum = crc32c::crc32c_append(sum, &piece[..len]),
        }
    }
}
