//! Attributes as a preloaded library shows them.
//!
//! `fakeroot` and `pseudo` pretend owners and device nodes to the programs that they start: their
//! functions replace functions of the C library. A copy asks the kernel directly, which is faster.
//! If a library is preloaded, the copy asks the C library for attributes instead.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use super::side::Meta;
use crate::vfs::{FileKind, Timestamp};

static PRELOADED: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("LD_PRELOAD").is_some_and(|libraries| !libraries.is_empty()));

/// The attributes of the path that `path` returns; `None` without a preloaded library, or if they
/// cannot be read.
pub(super) fn meta(path: impl FnOnce() -> Option<PathBuf>, follow: bool) -> Option<Meta> {
    if !*PRELOADED {
        return None;
    }
    let path = path()?;
    let found = if follow {
        path.metadata()
    } else {
        path.symlink_metadata()
    };
    meta_of(&found.ok()?)
}

fn meta_of(found: &Metadata) -> Option<Meta> {
    let time = |sec: i64, nsec: i64| Timestamp {
        sec,
        nsec: u32::try_from(nsec).unwrap_or(0),
    };
    Some(Meta {
        kind: FileKind::from_mode(found.mode())?,
        perm: found.mode() & 0o7777,
        uid: found.uid(),
        gid: found.gid(),
        rdev: found.rdev(),
        size: found.len(),
        nlink: found.nlink(),
        id: (found.dev(), found.ino()),
        atime: time(found.atime(), found.atime_nsec()),
        mtime: time(found.mtime(), found.mtime_nsec()),
    })
}
