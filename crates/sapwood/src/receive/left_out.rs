//! Attributes of a stream's files that a file system of this machine could not hold.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

/// An attribute of a file that may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LeftOutKind {
    /// Its owner and group. The file belongs to the caller.
    Owner,
    /// Its set-user-id and set-group-id bits, which are kept only together with the owner.
    SetId,
    /// Its mode.
    Mode,
    /// Its times.
    Times,
    /// An extended attribute or ACL.
    Attribute,
    /// Its inode flags, as of chattr(1).
    Flags,
    /// The kind device, fifo or socket. An empty file has its name.
    Special,
    /// The kind symbolic link. An empty file has its name.
    Symlink,
    /// Its hole or preallocated range, which consists of zeros or of nothing.
    Allocation,
}

impl LeftOutKind {
    /// A word for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::SetId => "set_id",
            Self::Mode => "mode",
            Self::Times => "times",
            Self::Attribute => "attribute",
            Self::Flags => "flags",
            Self::Special => "special",
            Self::Symlink => "symlink",
            Self::Allocation => "allocation",
        }
    }
}

impl fmt::Display for LeftOutKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Owner => "owner not kept",
            Self::SetId => "set-id bits not set, without the owner",
            Self::Mode => "mode not kept",
            Self::Times => "times not kept",
            Self::Attribute => "extended attributes not kept",
            Self::Flags => "inode flags not kept",
            Self::Special => "an empty file instead of a device, fifo or socket",
            Self::Symlink => "an empty file instead of a symbolic link",
            Self::Allocation => "no hole or preallocation",
        })
    }
}

/// A kind of attribute that was left out, with its first file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The kind of attribute.
    pub kind: LeftOutKind,
    /// The number of times.
    pub count: u64,
    /// The first file, as a path in the directory that was received into.
    pub first: PathBuf,
    /// The error of the first file; empty if a rule leaves the attribute out.
    pub reason: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.display();
        write!(f, "{first}: {}", self.kind)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        match self.count {
            0 | 1 => Ok(()),
            2 => write!(f, ", and once more"),
            count => write!(f, ", and {} times more", count - 1),
        }
    }
}

/// The attributes that were left out, counted by kind.
#[derive(Debug, Default)]
pub(super) struct Omissions(BTreeMap<LeftOutKind, LeftOut>);

impl Omissions {
    pub(super) fn add(
        &mut self,
        kind: LeftOutKind,
        path: impl FnOnce() -> PathBuf,
        why: Option<Errno>,
    ) {
        let one = self.0.entry(kind).or_insert_with(|| LeftOut {
            kind,
            count: 0,
            first: path(),
            reason: why.map_or_else(String::new, |why| {
                // The text without the number that the standard library adds.
                let text = std::io::Error::from(why).to_string();
                text.split(" (os error")
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            }),
        });
        one.count += 1;
    }

    pub(super) fn into_report(self) -> Vec<LeftOut> {
        self.0.into_values().collect()
    }
}
