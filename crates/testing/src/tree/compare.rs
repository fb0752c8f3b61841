//! The differences of two trees.

use std::collections::HashMap;
use std::fmt::Debug;

use bitflags::bitflags;
use sapwood_vfs::{Ino, Timestamp};

use super::read::in_pages;
use super::{PLACEHOLDER, Tree, TreeInode};

bitflags! {
    /// Facts about an inode. The names in a directory are always compared.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Facts: u32 {
        /// Type.
        const KIND = 1;
        /// Permission bits.
        const PERM = 1 << 1;
        /// User and group.
        const OWNER = 1 << 2;
        /// Device number of a device node.
        const DEVICE = 1 << 3;
        /// Link count.
        const LINKS = 1 << 4;
        /// Size.
        const SIZE = 1 << 5;
        /// Bytes of a file, target of a symbolic link.
        const CONTENT = 1 << 6;
        /// Where a file has data.
        const DATA = 1 << 7;
        /// Allocated blocks.
        const BLOCKS = 1 << 8;
        /// Flags.
        const FLAGS = 1 << 9;
        /// Number on disk.
        const NUMBER = 1 << 10;
        /// Access time.
        const ATIME = 1 << 11;
        /// Time of the last change of the content.
        const MTIME = 1 << 12;
        /// Time of the last change of the inode.
        const CTIME = 1 << 13;
        /// Time of the creation, where both know it.
        const BTIME = 1 << 14;
        /// Extended attributes.
        const XATTRS = 1 << 15;
        /// The sets of names that belong to the same inode.
        const IDENTITY = 1 << 16;
        /// All times.
        const TIMES = Self::ATIME.bits() | Self::MTIME.bits() | Self::CTIME.bits() | Self::BTIME.bits();
        /// Kind, mode, owner and device number.
        const MODE = Self::KIND.bits() | Self::PERM.bits() | Self::OWNER.bits() | Self::DEVICE.bits();
        /// Facts that a program sees without knowing the format, except times.
        const PLAIN = Self::MODE.bits() | Self::LINKS.bits() | Self::SIZE.bits() | Self::CONTENT.bits()
            | Self::XATTRS.bits() | Self::IDENTITY.bits();
        /// Facts that two recoveries of one image have in common, except times of access and
        /// creation.
        const OF_IMAGE = Self::PLAIN.bits() | Self::DATA.bits() | Self::NUMBER.bits() | Self::MTIME.bits()
            | Self::CTIME.bits();
    }
}

/// A text, shortened for people.
#[must_use]
pub fn shown(text: &str) -> String {
    const MOST: usize = 80;
    match text.get(..MOST) {
        Some(begin) if text.len() > MOST => format!("{begin}... ({} bytes)", text.len()),
        _ => text.to_owned(),
    }
}

fn shown_bytes(bytes: &[u8]) -> String {
    shown(&bytes.escape_ascii().to_string())
}

/// The first path of each inode.
fn first_names<'a>(paths: impl Iterator<Item = (&'a String, &'a Ino)>) -> HashMap<Ino, &'a str> {
    let mut first = HashMap::new();
    for (path, ino) in paths {
        first.entry(*ino).or_insert(path.as_str());
    }
    first
}

impl Tree {
    /// All differences to another tree, sorted by path, each as `PATH: WHAT HERE -> THERE`.
    /// `choose` returns the facts to compare of the two inodes at a path (`.` for the root).
    #[must_use]
    pub fn differences(
        &self,
        other: &Self,
        choose: impl Fn(&str, &TreeInode, &TreeInode) -> Facts,
    ) -> Vec<String> {
        let (mine, others) = (self.paths(), other.paths());
        let first = (first_names(mine.iter()), first_names(others.iter()));
        let mut all = Vec::new();
        for (path, ino) in &mine {
            let pair = others.get(path).map(|there| (*ino, *there));
            let Some((here, there)) = pair else {
                all.push(format!("{}: missing in the second", shown(path)));
                continue;
            };
            let (Some(one), Some(two)) = (self.nodes.get(&here), other.nodes.get(&there)) else {
                all.push(format!("{}: leads nowhere", shown(path)));
                continue;
            };
            let facts = choose(path, one, two);
            let mut found = one.differences(two, facts);
            let same_as = (first.0.get(&here), first.1.get(&there));
            if facts.contains(Facts::IDENTITY) && same_as.0 != same_as.1 {
                let (here, there) = (same_as.0.map(|p| shown(p)), same_as.1.map(|p| shown(p)));
                found.push(format!("same inode as {here:?} -> {there:?}"));
            }
            all.extend(found.iter().map(|what| format!("{}: {what}", shown(path))));
        }
        let new = others.keys().filter(|path| !mine.contains_key(*path));
        all.extend(new.map(|path| format!("{}: missing in the first", shown(path))));
        all
    }

    /// The [`differences`](Self::differences) as an error.
    ///
    /// # Errors
    /// The differences, one on each line, up to 40.
    pub fn compare(
        &self,
        other: &Self,
        choose: impl Fn(&str, &TreeInode, &TreeInode) -> Facts,
    ) -> Result<(), String> {
        let mut lines = self.differences(other, choose);
        if lines.is_empty() {
            return Ok(());
        }
        let all = lines.len();
        lines.truncate(40);
        Err(format!(
            "{all} differences (first -> second):\n{}",
            lines.join("\n")
        ))
    }

    /// The first difference to another tree of the same file system. Times are compared if both
    /// trees have them and neither recovery set them. The directory that a snapshot shows for a
    /// subvolume has no times of its own.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        let all = self.differences(other, |path, one, two| {
            let mut facts = one.plain();
            if path != "." && [one, two].iter().all(|node| node.number == PLACEHOLDER) {
                return facts;
            }
            if let (Some(mine), Some(others)) = (one.times, two.times) {
                let set = |tree: &Self, time: Option<Timestamp>| {
                    tree.recovered.is_some_and(|began| time >= Some(began))
                };
                let bits = [Facts::ATIME, Facts::MTIME, Facts::CTIME, Facts::BTIME];
                for (bit, (a, b)) in bits
                    .into_iter()
                    .zip(mine.named().into_iter().zip(others.named()))
                {
                    // The oracle decides whether our recovery may set a time. The kernel's recovery
                    // sets ctime also for inodes in the log.
                    facts.set(bit, !set(self, a.1) && !set(other, b.1));
                }
            }
            facts
        });
        all.into_iter().next()
    }

    /// The same tree with the data of files grown to whole pages.
    #[must_use]
    pub fn in_pages(mut self) -> Self {
        for node in self.nodes.values_mut() {
            let size = node.size;
            node.data = node.data.take().map(|data| in_pages(size, &data).into());
        }
        self
    }

    /// The same tree without these flags.
    #[must_use]
    pub fn without_flags(mut self, left_out: u32) -> Self {
        for node in self.nodes.values_mut() {
            node.flags = node.flags.map(|flags| flags & !left_out);
        }
        self
    }
}

impl TreeInode {
    /// The differences in these facts. Identity is no fact of one inode.
    #[must_use]
    pub fn differences(&self, other: &Self, facts: Facts) -> Vec<String> {
        let mut out = Vec::new();
        let mut check = |fact: Facts, what: &str, left: &dyn Debug, right: &dyn Debug| {
            if facts.contains(fact) {
                let (left, right) = (format!("{left:?}"), format!("{right:?}"));
                if left != right {
                    out.push(format!("{what} {left} -> {right}"));
                }
            }
        };
        let (one, two) = (&self.owner, &other.owner);
        check(Facts::KIND, "kind", &self.kind, &other.kind);
        check(
            Facts::PERM,
            "permissions",
            &format_args!("{:o}", one.perm),
            &format_args!("{:o}", two.perm),
        );
        check(
            Facts::OWNER,
            "owner",
            &(one.uid, one.gid),
            &(two.uid, two.gid),
        );
        check(Facts::DEVICE, "device", &one.rdev, &two.rdev);
        check(Facts::LINKS, "link count", &self.nlink, &other.nlink);
        check(Facts::SIZE, "size", &self.size, &other.size);
        check(Facts::BLOCKS, "blocks", &self.blocks, &other.blocks);
        check(
            Facts::FLAGS,
            "flags",
            &self.flags.map(|flags| format!("{flags:#x}")),
            &other.flags.map(|flags| format!("{flags:#x}")),
        );
        check(Facts::NUMBER, "inode number", &self.number, &other.number);
        if let (Some(mine), Some(others)) = (&self.times, &other.times) {
            check(Facts::ATIME, "atime", &mine.atime, &others.atime);
            check(Facts::MTIME, "mtime", &mine.mtime, &others.mtime);
            check(Facts::CTIME, "ctime", &mine.ctime, &others.ctime);
            if mine.btime.is_some() && others.btime.is_some() {
                check(Facts::BTIME, "btime", &mine.btime, &others.btime);
            }
        }
        check(Facts::DATA, "data at", &self.data, &other.data);
        if facts.contains(Facts::CONTENT) && self.content != other.content {
            out.push(self.other_content(other));
        }
        if facts.contains(Facts::XATTRS) && self.xattrs != other.xattrs {
            out.extend(self.other_xattrs(other));
        }
        out
    }

    fn other_content(&self, other: &Self) -> String {
        let kept = |node: &Self| node.content.len() as u64 == node.size;
        if !kept(self) || !kept(other) {
            return format!("other bytes; data at {:?} -> {:?}", self.data, other.data);
        }
        let mut bytes = self.content.iter().zip(other.content.iter());
        let shorter = self.content.len().min(other.content.len());
        let at = bytes.position(|(a, b)| a != b).unwrap_or(shorter);
        let part = |node: &Self| {
            let end = node.content.len().min(at + 40);
            shown_bytes(&node.content[at.min(end)..end])
        };
        format!(
            "content from byte {at} on {} -> {}",
            part(self),
            part(other)
        )
    }

    fn other_xattrs(&self, other: &Self) -> Vec<String> {
        let mut out = Vec::new();
        for (name, value) in self.xattrs.iter() {
            let (name, there) = (shown_bytes(name), other.xattrs.get(name));
            match there {
                None => out.push(format!("attribute {name} is missing in the second")),
                Some(there) if there != value => {
                    let (here, there) = (shown_bytes(value), shown_bytes(there));
                    out.push(format!("attribute {name} {here} -> {there}"));
                }
                Some(_) => {}
            }
        }
        let new = other.xattrs.keys();
        let new = new.filter(|name| !self.xattrs.contains_key(*name));
        out.extend(
            new.map(|name| format!("attribute {} is missing in the first", shown_bytes(name))),
        );
        out
    }
}
