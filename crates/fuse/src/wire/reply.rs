//! Encodes answers into the transport's buffer.
//!
//! Every function returns the number of bytes that it wrote. If the buffer is too small, it fails
//! with `EIO`; the transport provides room for the largest answer that was agreed on.

use std::time::Duration;

use sapwood_vfs::{FileKind, FsStat, InodeFlags, Timestamp};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Opcode;
use super::abi::{
    Attr, AttrOut, Dirent, EntryOut, IoctlOut, LseekOut, OpenOut, StatFsOut, Statx, StatxOut,
    SxTime,
};
use super::flags::FOPEN_KEEP_CACHE;
use crate::node::{NodeId, encode_device};
use crate::privileges;
use crate::readdir::{DirAttributes, DirItem};
use crate::request::{NodeEntry, Reply};

/// Writes a struct to the start.
pub(crate) fn put<T: IntoBytes + Immutable>(out: &mut [u8], value: &T) -> Reply<usize> {
    bytes(out, value.as_bytes())
}

/// Writes bytes to the start.
pub(crate) fn bytes(out: &mut [u8], value: &[u8]) -> Reply<usize> {
    out.get_mut(..value.len())
        .ok_or(libc::EIO)?
        .copy_from_slice(value);
    Ok(value.len())
}

/// How long the kernel may cache attributes.
fn attr_ttl(ttl: Duration, of: &sapwood_vfs::Attr) -> Duration {
    if privileges::cacheable(of) {
        ttl
    } else {
        Duration::ZERO
    }
}

/// A node with its attributes, to be cached for `ttl`.
pub(crate) fn entry(ttl: Duration, entry: &NodeEntry) -> EntryOut {
    let attr_ttl = attr_ttl(ttl, &entry.attr);
    EntryOut {
        nodeid: entry.node.0,
        generation: entry.attr.generation,
        entry_valid: ttl.as_secs(),
        attr_valid: attr_ttl.as_secs(),
        entry_valid_nsec: ttl.subsec_nanos(),
        attr_valid_nsec: attr_ttl.subsec_nanos(),
        attr: attr(&entry.attr),
    }
}

/// A name that does not exist, to be cached for `ttl`.
pub(crate) fn absent(ttl: Duration) -> EntryOut {
    EntryOut {
        nodeid: NodeId::NONE.0,
        entry_valid: ttl.as_secs(),
        entry_valid_nsec: ttl.subsec_nanos(),
        ..EntryOut::default()
    }
}

/// A file that was created and opened: the node, and a handle without meaning.
pub(crate) fn opened(out: &mut [u8], entry: &EntryOut) -> Reply<usize> {
    let open = OpenOut {
        open_flags: FOPEN_KEEP_CACHE,
        ..OpenOut::default()
    };
    let len = put(out, entry)?;
    let rest = out.get_mut(len..).ok_or(libc::EIO)?;
    Ok(len + put(rest, &open)?)
}

/// Attributes, to be cached for `ttl`.
pub(crate) fn attributes(ttl: Duration, of: &sapwood_vfs::Attr) -> AttrOut {
    let ttl = attr_ttl(ttl, of);
    AttrOut {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        dummy: 0,
        attr: attr(of),
    }
}

fn attr(of: &sapwood_vfs::Attr) -> Attr {
    Attr {
        ino: of.ino.0,
        size: of.size,
        blocks: of.allocated.div_ceil(512),
        atime: of.atime.sec,
        mtime: of.mtime.sec,
        ctime: of.ctime.sec,
        atimensec: of.atime.nsec,
        mtimensec: of.mtime.nsec,
        ctimensec: of.ctime.nsec,
        mode: of.kind.mode_bits() | (of.perm & 0o7777),
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: encode_device(of.rdev),
        blksize: of.blksize,
        flags: 0,
    }
}

/// `STATX_BASIC_STATS` and `STATX_BTIME`.
const STATX_MASK: u32 = 0x7ff | 0x800;

/// Inode flags that `statx` shows, as `STATX_ATTR_*` bits.
const STATX_ATTRIBUTES: [(InodeFlags, u64); 4] = [
    (InodeFlags::COMPRESS, 0x4),
    (InodeFlags::IMMUTABLE, 0x10),
    (InodeFlags::APPEND, 0x20),
    (InodeFlags::NODUMP, 0x40),
];

/// Attributes with the creation time, and with the flags, which Linux 6.18 does not pass on yet.
pub(crate) fn statx(ttl: Duration, of: &sapwood_vfs::Attr) -> StatxOut {
    let ttl = attr_ttl(ttl, of);
    let plain = attr(of);
    let shown = STATX_ATTRIBUTES.iter();
    let set = shown.clone().filter(|(flag, _)| of.flags.contains(*flag));
    let stat = Statx {
        attributes: set.map(|(_, bit)| bit).sum(),
        attributes_mask: shown.map(|(_, bit)| bit).sum(),
        mask: STATX_MASK,
        blksize: plain.blksize,
        nlink: plain.nlink,
        uid: plain.uid,
        gid: plain.gid,
        mode: u16::try_from(plain.mode).unwrap_or(0),
        ino: plain.ino,
        size: plain.size,
        blocks: plain.blocks,
        atime: sx_time(of.atime),
        btime: sx_time(of.btime),
        ctime: sx_time(of.ctime),
        mtime: sx_time(of.mtime),
        rdev_major: rustix::fs::major(of.rdev),
        rdev_minor: rustix::fs::minor(of.rdev),
        ..Statx::default()
    };
    StatxOut {
        attr_valid: ttl.as_secs(),
        attr_valid_nsec: ttl.subsec_nanos(),
        stat,
        ..StatxOut::default()
    }
}

fn sx_time(time: Timestamp) -> SxTime {
    SxTime {
        tv_sec: time.sec,
        tv_nsec: time.nsec,
        reserved: 0,
    }
}

/// Sizes and counts.
pub(crate) fn statfs(of: &FsStat) -> StatFsOut {
    StatFsOut {
        blocks: of.blocks,
        bfree: of.blocks_free,
        bavail: of.blocks_available,
        files: of.inodes,
        ffree: of.inodes_free,
        bsize: of.block_size,
        namelen: of.name_max,
        frsize: of.block_size,
        ..StatFsOut::default()
    }
}

/// The answer to a seek.
pub(crate) fn offset(out: &mut [u8], offset: i64) -> Reply<usize> {
    let offset = u64::try_from(offset).map_err(|_| libc::EIO)?;
    put(out, &LseekOut { offset })
}

/// The output of a control command.
pub(crate) fn ioctl(out: &mut [u8], output: &[u8]) -> Reply<usize> {
    let len = put(out, &IoctlOut::default())?;
    let rest = out.get_mut(len..).ok_or(libc::EIO)?;
    Ok(len + bytes(rest, output)?)
}

/// A page of a directory, filled from its start.
#[derive(Debug)]
pub(crate) struct Page<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl<'a> Page<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, len: 0 }
    }

    /// Number of bytes filled.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a name. False if it does not fit.
    pub(crate) fn add(&mut self, item: &DirItem) -> bool {
        self.push(&[], item)
    }

    /// Adds a name with its attributes. False if it does not fit.
    pub(crate) fn add_plus(&mut self, ttl: Duration, item: &DirItem, of: &DirAttributes) -> bool {
        // No node: for the two dots the kernel uses only number and name.
        let node = NodeEntry {
            node: of.node,
            attr: of.attr,
        };
        self.push(entry(ttl, &node).as_bytes(), item)
    }

    fn push(&mut self, before: &[u8], item: &DirItem) -> bool {
        let dirent = Dirent {
            ino: item.ino.0,
            off: item.cookie,
            namelen: u32::try_from(item.name.len()).unwrap_or(u32::MAX),
            kind: kind_bits(item.kind),
        };
        let size = before.len() + size_of::<Dirent>() + item.name.len();
        let padded = size.next_multiple_of(8);
        let Some(room) = self.out.get_mut(self.len..self.len + padded) else {
            return false;
        };
        let (first, rest) = room.split_at_mut(before.len());
        first.copy_from_slice(before);
        let (second, rest) = rest.split_at_mut(size_of::<Dirent>());
        second.copy_from_slice(dirent.as_bytes());
        let (name, padding) = rest.split_at_mut(item.name.len());
        name.copy_from_slice(&item.name);
        padding.fill(0);
        self.len += padded;
        true
    }
}

fn kind_bits(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// The nodes for which an answer to `opcode` gives the kernel one lookup each.
pub(crate) fn granted(opcode: u32, mut answer: &[u8]) -> Vec<NodeId> {
    let Ok(opcode) = Opcode::try_from(opcode) else {
        return Vec::new();
    };
    let mut nodes = Vec::new();
    let mut take = |bytes: &[u8]| {
        if let Ok((entry, _)) = EntryOut::read_from_prefix(bytes)
            && entry.nodeid != NodeId::NONE.0
        {
            nodes.push(NodeId(entry.nodeid));
        }
    };
    match opcode {
        Opcode::Lookup
        | Opcode::Symlink
        | Opcode::Mknod
        | Opcode::Mkdir
        | Opcode::Link
        | Opcode::TmpFile => take(answer),
        Opcode::ReadDirPlus => {
            while let Some(behind) = answer.get(size_of::<EntryOut>()..)
                && let Ok((dirent, _)) = Dirent::read_from_prefix(behind)
            {
                take(answer);
                let name = usize::try_from(dirent.namelen).unwrap_or(usize::MAX);
                let size = (size_of::<EntryOut>() + size_of::<Dirent>())
                    .saturating_add(name)
                    .checked_next_multiple_of(8);
                answer = size.and_then(|size| answer.get(size..)).unwrap_or(&[]);
            }
        }
        _ => {}
    }
    nodes
}
