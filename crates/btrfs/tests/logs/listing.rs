//! Listings of what the kernel made of a log, and the same of ours.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;

use sapwood_btrfs_format::ChecksumKind;
use sapwood_vfs::{Attr, Error, FileKind, FileSystem, Ino, SeekFrom, Timestamp};

/// Bits of our inode numbers that are those of btrfs.
const OBJECTID: u64 = (1 << 40) - 1;

/// What is known of one path, line by line; what it says of times stands apart.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Entry {
    pub lines: Vec<String>,
    pub mtime: String,
    pub ctime: String,
    pub is_dir: bool,
}

pub type Listing = BTreeMap<String, Entry>;

/// Reads a listing as `find -printf` and others wrote it.
pub fn parse(text: &str) -> Listing {
    let mut listing = Listing::new();
    let (mut section, mut file) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.to_owned();
            continue;
        }
        if line.is_empty() || (section.is_empty() && line.starts_with('#')) {
            continue;
        }
        let path = |path: &str| path.trim_start_matches("./").to_owned();
        if section.starts_with("find") {
            let f: Vec<&str> = line.split('\t').collect();
            let [
                name,
                kind,
                mode,
                nlink,
                uid,
                gid,
                size,
                mtime,
                ctime,
                ino,
                target,
            ] = f[..]
            else {
                panic!("{line}");
            };
            let entry = listing.entry(name.to_owned()).or_default();
            entry.lines.push(format!(
                "{kind} {mode} {nlink} {uid}:{gid} {size} #{ino} {target}"
            ));
            // Ten digits, of which the last is always 0.
            let time = |text: &str| text[..text.len() - 1].to_owned();
            (entry.mtime, entry.ctime) = (time(mtime), time(ctime));
            entry.is_dir = kind == "d";
        } else if section.starts_with("device nodes") {
            let (name, device) = line.split_once(' ').unwrap();
            let entry = listing.get_mut(name).unwrap();
            entry.lines.push(format!("device {device}"));
        } else if section.starts_with("sha256") {
            let (sum, name) = line.split_once("  ").unwrap();
            let entry = listing.get_mut(&path(name)).unwrap();
            entry.lines.push(format!("sha256 {sum}"));
        } else if section.starts_with("getfattr") {
            if let Some(name) = line.strip_prefix("# file: ") {
                file = name.to_owned();
            } else {
                let entry = listing.get_mut(&file).unwrap();
                entry.lines.push(format!("attribute {line}"));
            }
        } else if section.starts_with("data/hole") {
            let (name, rest) = line.split_once(" size ").unwrap();
            let (_, map) = rest.split_once(" data ").unwrap();
            let entry = listing.get_mut(&path(name)).unwrap();
            entry.lines.push(format!("data {}", map.replace(' ', ",")));
        } else if section.starts_with("root dir") {
            let size = line.rsplit_once("size=").unwrap().1;
            let entry = listing.entry(String::new()).or_default();
            entry.lines.push(format!("size {size}"));
            entry.is_dir = true;
        }
    }
    for entry in listing.values_mut() {
        entry.lines.sort();
    }
    listing
}

/// The same of a mounted file system.
pub fn list(fs: &dyn FileSystem) -> Listing {
    let mut listing = Listing::new();
    let root = fs.getattr(fs.root()).unwrap();
    let entry = listing.entry(String::new()).or_default();
    entry.lines.push(format!("size {}", root.size));
    entry.is_dir = true;
    walk(fs, fs.root(), "", &mut listing);
    listing
}

fn walk(fs: &dyn FileSystem, dir: Ino, prefix: &str, listing: &mut Listing) {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry);
        ControlFlow::Continue(())
    })
    .unwrap();
    for found in names {
        let path = format!("{prefix}{}", String::from_utf8_lossy(&found.name));
        let attr = fs.lookup(dir, &found.name).unwrap().attr;
        assert_eq!((attr.ino, attr.kind), (found.ino, found.kind), "{path}");
        let entry = entry(fs, &attr);
        let twice = listing.insert(path.clone(), entry);
        assert!(twice.is_none(), "{path} is listed twice");
        if attr.kind == FileKind::Directory {
            walk(fs, attr.ino, &format!("{path}/"), listing);
        }
        fs.forget(attr.ino, 1);
    }
}

fn time(time: Timestamp) -> String {
    format!("{}.{:09}", time.sec, time.nsec)
}

fn entry(fs: &dyn FileSystem, attr: &Attr) -> Entry {
    let kind = match attr.kind {
        FileKind::Regular => "f",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::CharDevice => "c",
        FileKind::BlockDevice => "b",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
    };
    let target = match attr.kind {
        FileKind::Symlink => fs.readlink(attr.ino).unwrap(),
        _ => Vec::new(),
    };
    let mut lines = vec![format!(
        "{kind} {:o} {} {}:{} {} #{} {}",
        attr.perm,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size,
        attr.ino.0 & OBJECTID,
        String::from_utf8_lossy(&target)
    )];
    if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        let major = attr.rdev >> 8 & 0xfff;
        let minor = attr.rdev >> 12 & 0xff_ff00 | attr.rdev & 0xff;
        lines.push(format!("device {major}:{minor}"));
    }
    for name in fs.listxattr(attr.ino).unwrap() {
        let value = fs.getxattr(attr.ino, &name).unwrap();
        let name = String::from_utf8_lossy(&name).into_owned();
        lines.push(format!("attribute {name}=0x{}", hex(&value)));
    }
    if attr.kind == FileKind::Regular {
        let mut bytes = vec![0; attr.size as usize + 1];
        let len = fs.read(attr.ino, 0, &mut bytes).unwrap();
        assert_eq!(len as u64, attr.size);
        bytes.truncate(len);
        let sum = ChecksumKind::Sha256.compute(&bytes);
        lines.push(format!("sha256 {}", hex(sum.as_bytes())));
        lines.push(format!("data {}", data(fs, attr)));
    }
    lines.sort();
    Entry {
        lines,
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        is_dir: attr.kind == FileKind::Directory,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn data(fs: &dyn FileSystem, attr: &Attr) -> String {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < attr.size {
        let from = match fs.seek(attr.ino, SeekFrom::Data(at)) {
            Ok(from) => from,
            Err(Error::NoSuchOffset) => break,
            Err(error) => panic!("{error}"),
        };
        at = fs.seek(attr.ino, SeekFrom::Hole(from)).unwrap();
        ranges.push(format!("{from}-{at}"));
    }
    match ranges.is_empty() {
        true => "-".to_owned(),
        false => ranges.join(","),
    }
}

/// What differs. Times of directories may be that of the kernel's replay; so may be the change
/// time of a file whose name the log took away, and ours is that of our replay then, not before
/// `start`.
pub fn differences(kernel: &Listing, ours: &Listing, start: Timestamp) -> Vec<String> {
    let mut all = Vec::new();
    let start = time(start);
    let newest = kernel.values().filter(|entry| !entry.is_dir);
    let newest = newest.map(|entry| entry.mtime.clone()).max();
    let at_replay = |theirs: &Entry, ours: &Entry| {
        ours.ctime >= start && newest.as_ref().is_some_and(|newest| theirs.ctime > *newest)
    };
    for (path, expected) in kernel {
        let Some(found) = ours.get(path) else {
            all.push(format!("{path}: missing"));
            continue;
        };
        if expected.lines != found.lines {
            all.push(format!(
                "{path}: {:#?} -> {:#?}",
                expected.lines, found.lines
            ));
        }
        let changed = expected.ctime == found.ctime || at_replay(expected, found);
        if !(expected.is_dir || changed && expected.mtime == found.mtime) {
            all.push(format!("{path}: {expected:?} -> {found:?}"));
        }
    }
    let more = ours.keys().filter(|path| !kernel.contains_key(*path));
    all.extend(more.map(|path| format!("{path}: should not be there")));
    all
}
