//! Why an archive was not put into an image.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::{shown, vfs};

/// Why an archive was not put into an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// It cannot be read, or its compression is damaged.
    #[error("the archive cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A header is damaged, or it is no archive at all.
    #[error("no {format} header at byte {offset}{}", follows(.after.as_deref()))]
    Header {
        /// `tar` or `cpio`.
        format: &'static str,
        /// Its place in the archive, decompressed.
        offset: u64,
        /// Name of the entry before it.
        after: Option<PathBuf>,
    },
    /// It ends before its end mark.
    #[error("the archive ends without its end mark{}: it is cut short", follows(.0.as_deref()))]
    NoEnd(Option<PathBuf>),
    /// It ends within an entry.
    #[error("{}: the archive ends within this entry", name(.0))]
    Truncated(PathBuf),
    /// The content of an entry cannot be read.
    #[error("{}: {source}", name(path))]
    Content {
        /// Name of the entry.
        path: PathBuf,
        /// Error of the reader.
        source: io::Error,
    },
    /// A field of an entry makes no sense.
    #[error("{}: {field} makes no sense", name(path))]
    Field {
        /// Name of the entry.
        path: PathBuf,
        /// The field.
        field: &'static str,
    },
    /// A field of an entry is longer than any file needs.
    #[error("{}: {field} of {size} bytes; at most {limit} are read", name(path))]
    TooLong {
        /// Name of the entry.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// An entry has more of something than any file needs.
    #[error("{}: has {count} {what}; at most {limit} are read", name(path))]
    TooMany {
        /// Name of the entry.
        path: PathBuf,
        /// The items that are too many.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// The name of an entry, or what it is a hard link to, leads out of the archive.
    #[error("{}: the name leads out of the archive", name(.0))]
    Outside(PathBuf),
    /// The name of an entry leads through a symbolic link, which could lead out of the directory
    /// that the archive is put into.
    #[error("{}: the name leads through a symbolic link", name(.0))]
    ThroughLink(PathBuf),
    /// A name contains a NUL byte.
    #[error("{}: the name contains a NUL byte", name(.0))]
    NulInName(PathBuf),
    /// The root of the archive is no directory.
    #[error("{}: the root of the image can only be a directory", name(.0))]
    Root(PathBuf),
    /// A hard link to something that is not there.
    #[error(
        "{}: is a hard link to {}, which is not there",
        name(path),
        name(target)
    )]
    NoTarget {
        /// Name of the entry.
        path: PathBuf,
        /// Target of the link.
        target: PathBuf,
    },
    /// A whiteout of a layer that names nothing that a directory can have.
    #[error("{}: the whiteout names no file", name(.0))]
    Whiteout(PathBuf),
    /// A whiteout of a container layer, in an archive that is not applied as one.
    #[error(
        "{}: in a container layer this name removes a file; `--layer` applies an archive as one",
        name(.0)
    )]
    OfLayer(PathBuf),
    /// An inode of a layer in the form of overlayfs that cannot be applied to the layers below.
    #[error("{}: {what}", name(path))]
    Overlay {
        /// Name of the entry.
        path: PathBuf,
        /// The defect.
        what: &'static str,
    },
    /// It is compressed in a way that is not read.
    #[error("the archive is compressed with {0}, which is not read: decompress it first")]
    Compression(&'static str),
    /// An entry of a type that no image can have.
    #[error("{}: unknown type {kind:#x}", name(path))]
    Kind {
        /// Name of the entry.
        path: PathBuf,
        /// Its type byte.
        kind: u8,
    },
    /// The map of a sparse file is damaged.
    #[error("{}: the map of the sparse file {what}", name(path))]
    Sparse {
        /// Name of the entry.
        path: PathBuf,
        /// The defect.
        what: &'static str,
    },
    /// The checksum of an entry's content does not match (cpio with checksums).
    #[error("{}: the checksum does not match the content", name(.0))]
    Checksum(PathBuf),
    /// An entry could not be made, or its attributes not be set.
    #[error("{}: {source}", name(path))]
    Inode {
        /// Name of the entry.
        path: PathBuf,
        /// Error of the file system.
        source: vfs::Error,
    },
    /// The directory that the archive is put into.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
    /// A request ended the reading.
    #[error("interrupted")]
    Stopped,
    /// One of several archives.
    #[error("{}: {source}", archive.display())]
    Of {
        /// The archive.
        archive: PathBuf,
        /// The defect.
        source: Box<ArchiveError>,
    },
}

pub(crate) type Result<T> = std::result::Result<T, ArchiveError>;

impl ArchiveError {
    /// The same error of this archive.
    pub(crate) fn of(self, archive: &Path) -> Self {
        Self::Of {
            archive: archive.to_owned(),
            source: Box::new(self),
        }
    }
}

/// A name of the archive as a path.
pub(crate) fn path(name: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(name.to_vec()))
}

fn name(path: &Path) -> String {
    const SHOWN: usize = 300;
    let bytes = path.as_os_str().as_bytes();
    match bytes.get(..SHOWN) {
        Some(start) => format!("{}...", shown::name(start)),
        None => shown::name(bytes),
    }
}

fn follows(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!(", after {}", name(path)))
}
