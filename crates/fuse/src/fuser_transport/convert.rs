//! Between `fuser`'s types and ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, Request, TimeOrNow};
use sapwood_vfs::{Attr, FileKind, SetTime, Timestamp};

use crate::node::{NodeId, encode_device};
use crate::request::Caller;

pub(super) fn errno(error: i32) -> Errno {
    Errno::from_i32(error)
}

pub(super) fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

pub(super) fn caller(request: &Request, umask: u32) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        umask,
    }
}

pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(time.nsec.into());
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let base = if time.sec < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|base| base.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

/// The kernel's time, from what `fuser` made of it: before 1970 it takes seconds *and*
/// nanoseconds off, where the nanoseconds are to be added.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nsec: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timestamp {
                sec: 0_i64.saturating_sub_unsigned(before.as_secs()),
                nsec: before.subsec_nanos(),
            }
        }
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(timestamp(time)),
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Attributes with the node's id as inode number, as an entry needs them.
pub(super) fn file_attr(node: NodeId, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(node.0),
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: u16::try_from(attr.perm & 0o7777).unwrap_or(0),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Attributes with the number that `stat` shows: the engine's for the root too.
pub(super) fn shown_attr(node: INodeNo, attr: &Attr) -> FileAttr {
    if node == INodeNo::ROOT {
        file_attr(NodeId(attr.ino.0), attr)
    } else {
        file_attr(NodeId(node.0), attr)
    }
}

/// What `fuser` sends for a name that does not exist: no node.
pub(super) const ABSENT: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_read_as_fuser_makes_them() {
        // What `fuser` makes of -2 s and 0.8 s.
        let made = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let time = Timestamp {
            sec: -2,
            nsec: 800_000_000,
        };
        assert_eq!(timestamp(made), time);
        assert_eq!(
            system_time(time),
            UNIX_EPOCH - Duration::new(1, 200_000_000)
        );
    }
}
