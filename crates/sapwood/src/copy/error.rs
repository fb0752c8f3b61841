//! Why a copy failed, or left something out.

use std::fmt::Display;
use std::io;

use rustix::io::Errno;

use crate::damage::Damage;
use crate::host;
use crate::shown;
use crate::vfs::{self, Cause, FileKind};

/// Why something was not copied: its path, as text for people, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct CopyError {
    place: String,
    #[source]
    cause: CopyCause,
    /// Every further copy would fail for the same cause.
    ends: bool,
}

/// The cause of a [`CopyError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyCause {
    /// The file system of an image refused or failed.
    #[error(transparent)]
    Image(#[from] vfs::Error),
    /// This machine refused or failed.
    #[error(transparent)]
    Host(#[from] io::Error),
    /// The reader of standard output is gone.
    #[error("{0}")]
    Closed(io::Error),
    /// The source does not exist.
    #[error("no such file or directory")]
    Missing,
    /// The directory of the destination does not exist.
    #[error("no such directory")]
    NoDirectory,
    /// A path ends in a slash, and is no directory.
    #[error("not a directory")]
    NotDirectory,
    /// Several sources, or a directory, need a directory as destination.
    #[error("is no directory")]
    DestinationNotDirectory,
    /// A directory cannot replace a file.
    #[error("is no directory, and is not replaced by one")]
    NotReplacedByDirectory,
    /// A file cannot replace a directory.
    #[error("is a directory")]
    Directory,
    /// The source is a directory, and the copy is not recursive.
    #[error("is a directory; only a recursive copy takes it")]
    NeedsRecursive,
    /// Standard input has no name that it could get in a directory.
    #[error("is a directory, and standard input has no name")]
    Nameless,
    /// A link or special file cannot become the content of a file.
    #[error("is no file, and replaces none")]
    ReplacesNone,
    /// A special file of an image has no content.
    #[error("is a {}, which has no content in an image; only a recursive copy takes it", shown::kind(*.0))]
    NoContent(FileKind),
    /// A special file of an image cannot be written to.
    #[error("is a {}, and is not written to", shown::kind(*.0))]
    NotWritten(FileKind),
    /// The destination is a symbolic link whose target does not exist.
    #[error("is a link to nothing, and is not written through")]
    Dangling,
    /// Source and destination are the same file.
    #[error("is the same file as {0}")]
    SameFile(String),
    /// Another source of this copy has the same name.
    #[error("would replace {0}, which this command has made")]
    Replaces(String),
    /// A directory contains the destination of its copy.
    #[error("is where the copy goes, and is not copied into itself")]
    IntoItself,
    /// A directory of an image contains itself.
    #[error("directory loop: it is one of the directories above it")]
    Loop,
    /// A directory of an image has two names.
    #[error("this directory has another name, under which it was copied")]
    SecondName,
    /// Directories are nested more deeply than a path can be long.
    #[error("directories are nested too deeply")]
    TooDeep,
    /// A name of an image is not one component of a path.
    #[error("an entry is named \"{0}\", which is no file name")]
    BadName(String),
    /// A name vanished after it was listed.
    #[error("an entry is gone: {0}")]
    EntryGone(String),
    /// A directory of the destination was changed by another program.
    #[error("was changed during the copy")]
    Changed,
    /// A new file was replaced by another program before it could be opened.
    #[error("was replaced while it was made")]
    Replaced,
    /// A hard link to a file of another side.
    #[error("a link cannot leave an image")]
    LinkLeaves,
    /// A file of this machine of a type that no image has.
    #[error("unknown kind of file")]
    UnknownKind,
    /// The caller asked for an early end.
    #[error("interrupted")]
    Interrupted,
    /// The daemon of a mount failed to do its work.
    #[error("{0}")]
    Daemon(String),
    /// The daemon of the mount ended before the copy did.
    #[error("the daemon of the mount ended")]
    DaemonEnded,
    /// A part of a file cannot be read. The copy ends there, or continues after it if the caller
    /// asked for that.
    #[error(transparent)]
    Damaged(Damage),
    /// Another thread ended the copy, and returns why.
    #[error("the copy has ended")]
    Ended,
}

impl CopyError {
    /// A hard link would lead from one subvolume into another.
    pub(super) fn crosses_subvolumes(&self) -> bool {
        matches!(self.cause, CopyCause::Image(vfs::Error::CrossDevice))
    }

    pub(super) fn on(place: impl Display, cause: impl Into<CopyCause>) -> Self {
        Self {
            place: place.to_string(),
            cause: cause.into(),
            ends: false,
        }
    }

    /// Whether a part of a file cannot be read.
    pub(super) fn is_damage(&self) -> bool {
        match &self.cause {
            CopyCause::Image(error) => matches!(error, vfs::Error::Io(_) | vfs::Error::Corrupt(_)),
            CopyCause::Host(error) => Errno::from_io_error(error).is_some_and(is_unreadable),
            _ => false,
        }
    }

    /// Returns the cause if a part of a file cannot be read, and any other error unchanged.
    pub(super) fn into_damage(self) -> Result<Cause> {
        if self.is_damage() {
            Ok(Cause::new(self.cause))
        } else {
            Err(self)
        }
    }

    /// The same error, which ends the copy.
    pub(super) fn that_ends(self) -> Self {
        Self { ends: true, ..self }
    }

    /// Whether every further copy would fail for the same cause: the image is full, or the process
    /// may not open more files.
    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    /// The path that could not be copied, as text for people.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The cause, without the path.
    #[must_use]
    pub fn cause(&self) -> &CopyCause {
        &self.cause
    }
}

/// Whether a device or a file system of this machine cannot read what it has stored.
fn is_unreadable(error: Errno) -> bool {
    // For a defective medium the kernel returns `ENODATA`.
    let all = [
        Errno::IO,
        host::CORRUPT,
        Errno::BADMSG,
        Errno::NODATA,
        Errno::ILSEQ,
    ];
    all.contains(&error)
}

/// The kind is the one of the cause; the error itself, with the place, is inside.
impl From<CopyError> for io::Error {
    fn from(error: CopyError) -> Self {
        let kind = match &error.cause {
            CopyCause::Image(error) => Self::from_raw_os_error(error.errno()).kind(),
            CopyCause::Host(error) | CopyCause::Closed(error) => error.kind(),
            CopyCause::Missing | CopyCause::NoDirectory | CopyCause::EntryGone(_) => {
                io::ErrorKind::NotFound
            }
            CopyCause::NotDirectory
            | CopyCause::DestinationNotDirectory
            | CopyCause::NotReplacedByDirectory => io::ErrorKind::NotADirectory,
            CopyCause::Directory | CopyCause::NeedsRecursive | CopyCause::Nameless => {
                io::ErrorKind::IsADirectory
            }
            CopyCause::Interrupted => io::ErrorKind::Interrupted,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

pub(super) type Result<T, E = CopyError> = std::result::Result<T, E>;
