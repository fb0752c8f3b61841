//! Metadata as the numbers of stat(2).

use std::time::{Duration, SystemTime};

use sapwood::Metadata;
use sapwood::vfs::Timestamp;

/// Mode, inode number, links, owner, group, size, device number and allocated bytes; then the
/// nanoseconds since 1970 of the last access, the last change of the content, the last change of
/// the inode, and the creation.
pub(crate) type Numbers = (u32, u64, u32, u32, u32, u64, u64, u64, [i128; 4]);

pub(crate) fn numbers(metadata: &Metadata) -> Numbers {
    let attr = metadata.attr();
    (
        attr.kind.mode_bits() | metadata.mode(),
        metadata.ino(),
        metadata.nlink(),
        metadata.uid(),
        metadata.gid(),
        metadata.len(),
        metadata.rdev(),
        metadata.allocated(),
        [attr.atime, attr.mtime, attr.ctime, attr.btime].map(nanoseconds),
    )
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

/// The time that is this number of nanoseconds after 1970, if there is one.
pub(crate) fn time(nanoseconds: i64) -> Option<SystemTime> {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(distance)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(distance)
    }
}
