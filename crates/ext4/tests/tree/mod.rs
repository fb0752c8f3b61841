//! A tree as text, one line for each inode: of ours, of a mount, of a noted listing.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::SystemTime;

use sapwood_ext4::Ext4;
use sapwood_vfs::{FileKind, FileSystem, Ino, SeekFrom};

/// What is known of an inode, by the name of the fact.
type Facts = BTreeMap<&'static str, String>;

/// A tree: paths without a slash in front.
#[derive(Clone, Debug, Default)]
pub struct Tree(BTreeMap<String, Facts>);

fn kind_letter(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "f",
        FileKind::Directory => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::CharDevice => "c",
        FileKind::BlockDevice => "b",
    }
}

fn sum(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(bytes);
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs of data, as `begin-end` in bytes.
fn data_map(size: u64, seek: impl Fn(SeekFrom) -> Option<u64>) -> String {
    let (mut at, mut runs) = (0, Vec::new());
    while at < size {
        let Some(begin) = seek(SeekFrom::Data(at)) else {
            break;
        };
        at = seek(SeekFrom::Hole(begin)).unwrap_or(size);
        runs.push(format!("{begin}-{at}"));
    }
    match runs.is_empty() {
        true => "-".into(),
        false => runs.join(","),
    }
}

fn device_numbers(rdev: u64) -> String {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    format!("{major}:{minor}")
}

fn attributes(mut all: Vec<(String, Vec<u8>)>) -> String {
    all.sort();
    let parts = all
        .iter()
        .map(|(name, value)| format!("{name}={}", &sum(value)[..16]));
    parts.collect::<Vec<_>>().join(" ")
}

impl Tree {
    /// What our engine shows.
    pub fn of_ours(fs: &Ext4) -> Result<Self, String> {
        let mut tree = Self::default();
        tree.add_ours(fs, fs.root(), "")
            .map_err(|error| format!("our tree: {error}"))?;
        Ok(tree)
    }

    fn add_ours(&mut self, fs: &Ext4, ino: Ino, path: &str) -> sapwood_vfs::Result<()> {
        let attr = fs.getattr(ino)?;
        let mut facts = Facts::new();
        let time = |time: sapwood_vfs::Timestamp| format!("{}.{:09}", time.sec, time.nsec);
        facts.insert("kind", kind_letter(attr.kind).into());
        facts.insert("mode", format!("{:o}", attr.perm));
        facts.insert("links", attr.nlink.to_string());
        facts.insert("uid", attr.uid.to_string());
        facts.insert("gid", attr.gid.to_string());
        facts.insert("size", attr.size.to_string());
        facts.insert("mtime", time(attr.mtime));
        facts.insert("ctime", time(attr.ctime));
        facts.insert("ino", ino.0.to_string());
        let mut all = Vec::new();
        for name in fs.listxattr(ino)? {
            all.push((text(&name), fs.getxattr(ino, &name)?));
        }
        facts.insert("xattrs", attributes(all));
        match attr.kind {
            FileKind::Regular => {
                let mut bytes = vec![0; usize::try_from(attr.size).unwrap_or(0)];
                let mut at = 0;
                while at < bytes.len() {
                    let end = bytes.len().min(at + (1 << 20));
                    let read = fs.read(ino, at as u64, &mut bytes[at..end])?;
                    if read == 0 {
                        break;
                    }
                    at += read;
                }
                facts.insert("content", sum(&bytes[..at]));
                facts.insert("data", data_map(attr.size, |from| fs.seek(ino, from).ok()));
            }
            FileKind::Symlink => {
                facts.insert("target", text(&fs.readlink(ino)?));
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                facts.insert("device", device_numbers(attr.rdev));
            }
            _ => {}
        }
        self.0.insert(path.to_owned(), facts);
        if attr.kind != FileKind::Directory {
            return Ok(());
        }
        let mut names = Vec::new();
        fs.readdir(ino, 0, &mut |entry| {
            names.push((entry.name, entry.ino));
            ControlFlow::Continue(())
        })?;
        for (name, child) in names
            .iter()
            .filter(|(name, _)| name != b"." && name != b"..")
        {
            let path = join(path, &text(name));
            let entry = fs.lookup(ino, name)?;
            assert_eq!(entry.ino(), *child, "{path}");
            self.add_ours(fs, *child, &path)?;
            fs.forget(*child, 1);
        }
        Ok(())
    }

    /// What stands below a directory.
    pub fn of_mount(root: &Path) -> Result<Self, String> {
        let mut tree = Self::default();
        tree.add_mounted(root, "")
            .map_err(|error| format!("the kernel's tree: {error}"))?;
        Ok(tree)
    }

    fn add_mounted(&mut self, at: &Path, path: &str) -> std::io::Result<()> {
        let meta = std::fs::symlink_metadata(at)?;
        let kind = meta.file_type();
        let letter = match () {
            () if kind.is_file() => "f",
            () if kind.is_dir() => "d",
            () if kind.is_symlink() => "l",
            () if kind.is_fifo() => "p",
            () if kind.is_socket() => "s",
            () if kind.is_char_device() => "c",
            () => "b",
        };
        let mut facts = Facts::new();
        facts.insert("kind", letter.into());
        facts.insert("mode", format!("{:o}", meta.mode() & 0o7777));
        facts.insert("links", meta.nlink().to_string());
        facts.insert("uid", meta.uid().to_string());
        facts.insert("gid", meta.gid().to_string());
        facts.insert("size", meta.size().to_string());
        facts.insert(
            "mtime",
            format!("{}.{:09}", meta.mtime(), meta.mtime_nsec()),
        );
        facts.insert(
            "ctime",
            format!("{}.{:09}", meta.ctime(), meta.ctime_nsec()),
        );
        facts.insert("ino", meta.ino().to_string());
        facts.insert("xattrs", attributes(mounted_attributes(at)?));
        match letter {
            "f" => {
                let file = std::fs::File::open(at)?;
                let seek = |from| {
                    let from = match from {
                        SeekFrom::Data(at) => rustix::fs::SeekFrom::Data(at),
                        SeekFrom::Hole(at) => rustix::fs::SeekFrom::Hole(at),
                    };
                    rustix::fs::seek(&file, from).ok()
                };
                // Before it is read: unwritten blocks that are in memory count as data.
                facts.insert("data", data_map(meta.size(), seek));
                facts.insert("content", sum(&std::fs::read(at)?));
            }
            "l" => {
                let target = std::fs::read_link(at)?;
                facts.insert("target", text(target.as_os_str().as_bytes()));
            }
            "c" | "b" => {
                facts.insert("device", device_numbers(meta.rdev()));
            }
            _ => {}
        }
        self.0.insert(path.to_owned(), facts);
        if letter == "d" {
            for entry in std::fs::read_dir(at)? {
                let name = entry?.file_name();
                self.add_mounted(&at.join(&name), &join(path, &text(name.as_bytes())))?;
            }
        }
        Ok(())
    }

    /// What a listing of `find`, `stat` and `sha256sum` notes; see the files in `journals/`. Where
    /// data is it does not say: it was asked after the files were read, when unwritten blocks in
    /// memory count as data.
    pub fn of_text(listing: &str) -> Result<Self, String> {
        let mut tree = Self::default();
        let mut section = "";
        for line in listing.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                section = title.split([' ', ':']).next().unwrap_or_default();
                continue;
            }
            tree.noted(section, line)
                .ok_or_else(|| format!("a line that says nothing: {line}"))?;
        }
        Ok(tree)
    }

    fn noted(&mut self, section: &str, line: &str) -> Option<()> {
        match section {
            "find" => {
                let names = [
                    "kind", "mode", "links", "uid", "gid", "size", "mtime", "ctime", "ino",
                    "target",
                ];
                let mut fields = line.split('\t');
                let path = fields.next()?;
                let mut facts: Facts = names.into_iter().zip(fields.map(str::to_owned)).collect();
                for name in ["mtime", "ctime"] {
                    // find(1) shows ten digits.
                    let time = facts.get_mut(name)?;
                    time.truncate(time.len().checked_sub(1)?);
                }
                if facts.get("kind").is_some_and(|kind| kind != "l") {
                    facts.remove("target");
                }
                self.0.insert(path.to_owned(), facts);
            }
            "device" => {
                let (path, numbers) = line.rsplit_once(' ')?;
                self.0.get_mut(path)?.insert("device", numbers.into());
            }
            "sha256" => {
                let (sum, path) = line.split_once("  ./")?;
                self.0.get_mut(path)?.insert("content", sum.into());
            }
            "root" => {
                let links = line.split_once("nlink=")?.1.split(' ').next()?;
                let facts = Facts::from([("kind", "d".into()), ("links", links.to_owned())]);
                self.0.insert(String::new(), facts);
            }
            _ => {}
        }
        Some(())
    }

    /// The same with the times of directories that are not before `begun` replaced by a word.
    pub fn without_times_since(mut self, begun: SystemTime) -> Self {
        let begun = begun.duration_since(SystemTime::UNIX_EPOCH);
        let begun = begun.map_or(0, |since| since.as_nanos());
        let nanos = |value: &str| -> Option<u128> {
            let (seconds, nanos) = value.split_once('.')?;
            Some(seconds.parse::<u128>().ok()? * 1_000_000_000 + nanos.parse::<u128>().ok()?)
        };
        for facts in self.0.values_mut() {
            if facts.get("kind").is_none_or(|kind| kind != "d") {
                continue;
            }
            for fact in ["mtime", "ctime"] {
                let late = |value: &&mut String| nanos(value).is_some_and(|time| time >= begun);
                if let Some(value) = facts.get_mut(fact).filter(late) {
                    "of the replay".clone_into(value);
                }
            }
        }
        self
    }

    /// Compares what both know, but for these facts of directories.
    pub fn compare(
        &self,
        other: &Self,
        mine: &str,
        theirs: &str,
        left_out: &[&str],
    ) -> Result<(), String> {
        let mut found = String::new();
        for path in self
            .0
            .keys()
            .chain(other.0.keys().filter(|path| !self.0.contains_key(*path)))
        {
            let (Some(one), Some(two)) = (self.0.get(path), other.0.get(path)) else {
                let only = if self.0.contains_key(path) {
                    mine
                } else {
                    theirs
                };
                let _ = writeln!(found, "{path:?}: only in {only} ({mine}, {theirs})");
                continue;
            };
            let directory = one.get("kind").is_some_and(|kind| kind == "d");
            for (fact, value) in one {
                let left_out = directory && left_out.contains(fact);
                if let Some(other) = two.get(fact).filter(|other| *other != value && !left_out) {
                    let _ = writeln!(
                        found,
                        "{path:?}: {fact} is {value} in {mine}, {other} in {theirs}"
                    );
                }
            }
        }
        match found.is_empty() {
            true => Ok(()),
            false => Err(found),
        }
    }
}

fn mounted_attributes(at: &Path) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(at, &mut names[..])?;
    let mut all = Vec::new();
    for name in names[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 1 << 16];
        let len = rustix::fs::lgetxattr(at, name, &mut value[..])?;
        value.truncate(len);
        all.push((text(name), value));
    }
    Ok(all)
}

fn join(path: &str, name: &str) -> String {
    match path.is_empty() {
        true => name.to_owned(),
        false => format!("{path}/{name}"),
    }
}
