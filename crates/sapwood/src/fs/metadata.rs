//! Metadata of a file.

use std::time::{Duration, SystemTime};

use crate::vfs::{Attr, FileKind, SetAttr, SetTime, Timestamp};

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileType(FileKind);

impl FileType {
    pub(super) fn new(kind: FileKind) -> Self {
        Self(kind)
    }

    /// True for a directory.
    #[must_use]
    pub fn is_dir(self) -> bool {
        self.0 == FileKind::Directory
    }

    /// True for a regular file.
    #[must_use]
    pub fn is_file(self) -> bool {
        self.0 == FileKind::Regular
    }

    /// True for a symbolic link.
    #[must_use]
    pub fn is_symlink(self) -> bool {
        self.0 == FileKind::Symlink
    }

    /// The exact kind.
    #[must_use]
    pub fn kind(self) -> FileKind {
        self.0
    }
}

/// Metadata of a file. Sizes are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(Attr);

impl Metadata {
    pub(super) fn new(attr: Attr) -> Self {
        Self(attr)
    }

    /// Type of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        FileType(self.0.kind)
    }

    /// True for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// True for a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// True for a symbolic link.
    #[must_use]
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Allocated space in bytes.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.0.allocated
    }

    /// Permission, set-id and sticky bits (`0o7777`).
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.0.perm
    }

    /// Owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Number of names.
    #[must_use]
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.ino.0
    }

    /// Device number of a device node, as `makedev` composes it; otherwise 0.
    #[must_use]
    pub fn rdev(&self) -> u64 {
        self.0.rdev
    }

    /// Last change of the content.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }

    /// Last access.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }

    /// Last change of the inode.
    #[must_use]
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.ctime)
    }

    /// Creation.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        system_time(self.0.btime)
    }

    /// All attributes.
    #[must_use]
    pub fn attr(&self) -> &Attr {
        &self.0
    }
}

/// A time of the image. A time that this machine's clock cannot express becomes the epoch.
fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.sec.unsigned_abs());
    let whole = if time.sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(time.nsec.into())))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Times to set. A time that is not named stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl Times {
    /// No times.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time of the last access.
    #[must_use]
    pub fn accessed(mut self, time: SystemTime) -> Self {
        self.accessed = Some(time);
        self
    }

    /// Sets the time of the last change of the content.
    #[must_use]
    pub fn modified(mut self, time: SystemTime) -> Self {
        self.modified = Some(time);
        self
    }

    pub(super) fn changes(self) -> SetAttr {
        let to = |time: SystemTime| SetTime::To(time.into());
        SetAttr {
            atime: self.accessed.map(to),
            mtime: self.modified.map(to),
            ..SetAttr::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_keep_their_nanoseconds() {
        for time in [
            Timestamp {
                sec: -2,
                nsec: 250_000_000,
            },
            Timestamp { sec: 0, nsec: 0 },
            Timestamp {
                sec: 1 << 33,
                nsec: 999_999_999,
            },
        ] {
            assert_eq!(Timestamp::from(system_time(time)), time);
        }
    }
}
