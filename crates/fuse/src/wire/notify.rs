//! Notifications: messages to the kernel that answer no request.

use zerocopy::IntoBytes;

use super::abi::{InvalEntryOut, InvalInodeOut, OutHeader, PruneOut};

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const INC_EPOCH: i32 = 8;
const PRUNE: i32 = 9;
/// `FUSE_EXPIRE_ONLY`
const EXPIRE_ONLY: u32 = 1;

/// Drops the cache of a range, after writing it back. A negative offset drops attributes only; a
/// length of 0 means to the end.
pub(crate) fn inval_inode(node: u64, off: i64, len: i64) -> Vec<u8> {
    let body = InvalInodeOut {
        ino: node,
        off,
        len,
    };
    message(INVAL_INODE, &[body.as_bytes()])
}

/// Drops a cached name.
pub(crate) fn inval_entry(parent: u64, name: &[u8]) -> Vec<u8> {
    entry(parent, name, 0)
}

/// Makes the kernel look a cached name up again before it uses it, without detaching mounts or open
/// files below it. A kernel before protocol 7.38 drops the name.
pub(crate) fn expire_entry(parent: u64, name: &[u8]) -> Vec<u8> {
    entry(parent, name, EXPIRE_ONLY)
}

fn entry(parent: u64, name: &[u8], flags: u32) -> Vec<u8> {
    let body = InvalEntryOut {
        parent,
        namelen: u32::try_from(name.len()).unwrap_or(u32::MAX),
        flags,
    };
    message(INVAL_ENTRY, &[body.as_bytes(), name, &[0]])
}

/// Drops and forgets unused nodes. Since protocol 7.45.
pub(crate) fn prune(nodes: &[u64]) -> Vec<u8> {
    let body = PruneOut {
        count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
        ..PruneOut::default()
    };
    message(PRUNE, &[body.as_bytes(), nodes.as_bytes()])
}

/// Makes the kernel look up every cached name again before it uses it. Since protocol 7.44.
pub(crate) fn expire_all() -> Vec<u8> {
    message(INC_EPOCH, &[])
}

fn message(code: i32, parts: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let header = OutHeader {
        len: u32::try_from(len).unwrap_or(u32::MAX),
        error: code,
        unique: 0,
    };
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(header.as_bytes());
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}
