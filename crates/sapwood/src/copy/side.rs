//! The interface of a source and of a sink: open nodes, found by one name at a time.
//!
//! A path is resolved once, for the operand that the user named. Below it every step takes a single
//! name in a directory that is held open, and never follows a symbolic link. No name of the source
//! and no link at the destination can lead a copy out of the directory that it was told to fill.

use std::os::fd::BorrowedFd;

use crate::damage::Salvage;
use crate::shown;
use crate::vfs::{Credentials, FileKind, Ino, Timestamp};

use super::error::{CopyCause, CopyError, Result};

/// Metadata of a node on either side.
#[derive(Debug, Clone)]
pub(super) struct Meta {
    pub(super) kind: FileKind,
    pub(super) perm: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
    pub(super) size: u64,
    pub(super) nlink: u64,
    /// Identity of the inode among all sides of this command.
    pub(super) id: (u64, u64),
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
}

/// Set-user-id and set-group-id.
pub(super) const SET_ID: u32 = 0o6000;

/// The metadata that a copy keeps, and the owner of new files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Keep owner, mode, times and extended attributes.
    pub(super) archive: bool,
    /// A new inode on this machine keeps the ACLs that its directory gave it, if its source has
    /// none.
    pub(super) inherits: bool,
    /// Owner of every inode that the copy makes in an image, in place of the source's.
    pub(super) owner: Option<(u32, u32)>,
    /// Mode of every file that is written, in place of the source's and without the umask.
    pub(super) mode: Option<u32>,
    /// The user that runs the command.
    pub(super) caller: Credentials,
}

impl Rules {
    /// Owner and umask of a new inode in an image.
    pub(super) fn credentials(&self, meta: &Meta) -> Credentials {
        let (uid, gid) = match (self.owner, self.archive) {
            (Some(owner), _) => owner,
            (None, true) => (meta.uid, meta.gid),
            (None, false) => (self.caller.uid, self.caller.gid),
        };
        Credentials {
            uid,
            gid,
            umask: if self.archive { 0 } else { self.caller.umask },
            keep_setgid: true,
        }
    }

    /// Mode of a copy that belongs to `owner`. Set-id bits stay only with an archive copy that
    /// keeps the owner, because with another owner they grant other rights.
    pub(super) fn perm(&self, meta: &Meta, owner: (u32, u32)) -> u32 {
        match self.archive {
            true if owner == (meta.uid, meta.gid) => meta.perm,
            true => meta.perm & !SET_ID,
            false => meta.perm & 0o777,
        }
    }
}

/// Takes a piece of a file: its offset and bytes.
pub(super) type Take<'t> = dyn FnMut(u64, &[u8]) -> Result<()> + 't;
/// Hands over all pieces of a file; returns the length of the file.
pub(super) type Fill<'f> = dyn FnMut(&mut Take<'_>) -> Result<u64> + 'f;
/// Names and values of extended attributes.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Bytes read or written at once.
pub(super) const CHUNK: usize = 1 << 20;

/// Largest list of names, and largest value, of a file's attributes on Linux.
const XATTR_MAX: usize = 65536;

/// Buffers that a thread keeps from file to file.
#[derive(Debug)]
pub(super) struct Scratch {
    /// A piece of a file: [`CHUNK`] bytes.
    pub(super) piece: Vec<u8>,
    /// The names of a file's attributes.
    pub(super) names: Vec<u8>,
    /// The value of an attribute.
    pub(super) value: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            piece: vec![0; CHUNK],
            names: vec![0; XATTR_MAX],
            value: vec![0; XATTR_MAX],
        }
    }
}

/// The identity of an open directory on its own side.
pub(super) enum Handle<'h> {
    /// A descriptor on this machine.
    Fd(BorrowedFd<'h>),
    /// An inode of an image.
    Ino(Ino),
}

/// One side of a copy, where the user names nodes by path.
pub(super) trait Side: Sync {
    /// Finds a source. `follow`: what a symbolic link at the end of the path leads to.
    fn source(&self, path: &[u8], follow: bool) -> Result<Option<Source<'_>>>;
    /// Finds what exists at the destination.
    fn sink(&self, path: &[u8], follow: bool) -> Result<Option<Sink<'_>>>;
    /// The directory of a destination, and the last name, which need not exist.
    fn sink_parent(&self, path: &[u8]) -> Result<(Sink<'_>, Vec<u8>)>;
    fn shown(&self, path: &[u8]) -> String;
    /// True for an image.
    fn is_image(&self) -> bool;
}

/// A node that is read, of a side that lives as long as `'s`.
pub(super) type Source<'s> = Box<dyn SourceNode<'s> + 's>;
/// A node that is written.
pub(super) type Sink<'s> = Box<dyn SinkNode<'s> + 's>;

/// The name of a node in messages.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

impl<T: Shown + ?Sized> Shown for Box<T> {
    fn shown(&self) -> String {
        (**self).shown()
    }
}

impl<T: Shown + ?Sized> Shown for &T {
    fn shown(&self) -> String {
        (**self).shown()
    }
}

/// A file, directory, link or special file of one side, held open.
pub(super) trait Node: Shown + Send + Sync {
    fn meta(&self) -> &Meta;
    fn handle(&self) -> Result<Handle<'_>>;
}

/// A node of the source.
pub(super) trait SourceNode<'s>: Node {
    /// Opens a regular file for reading, so that a copy of an unreadable file makes nothing.
    fn open(&self) -> Result<()>;
    /// Calls `take` with every piece of data of a file; between them are holes, or damage, which
    /// `salvage` gets.
    fn read(&self, scratch: &mut Scratch, salvage: &mut Salvage, take: &mut Take<'_>)
    -> Result<()>;
    /// All content of a file, if it is known to have no holes and to fit into one piece.
    fn whole<'b>(&self, _scratch: &'b mut Scratch) -> Result<Option<&'b [u8]>> {
        Ok(None)
    }
    fn read_link(&self) -> Result<Vec<u8>>;
    fn xattrs(&self, scratch: &mut Scratch) -> Result<Xattrs>;
    /// Names in this directory after a position (0 is the start), each with the position after it.
    /// None: the end.
    fn names(&self, from: u64) -> Result<Vec<(Vec<u8>, u64)>>;
    /// The node of a name in this directory; of a symbolic link the link itself.
    fn child(&self, name: &[u8]) -> Result<Option<Source<'s>>>;
}

/// A node of the destination.
pub(super) trait SinkNode<'s>: Node {
    /// The node of a name in this directory, if it exists. A symbolic link is not followed.
    fn existing(&self, name: &[u8]) -> Result<Option<Sink<'s>>>;
    /// Makes a new node of that kind in this directory; fails if the name exists.
    fn create(&self, name: &[u8], rules: &Rules, like: &New<'_>) -> Result<Sink<'s>>;
    /// Bytes of content up to which [`create_filled`](Self::create_filled) is worth a try.
    fn most_filled(&self) -> u64 {
        0
    }
    /// Makes a file in this directory with its content, owner, mode and times at once. The source
    /// has no extended attributes. False: the file was not made.
    fn create_filled(
        &self,
        _name: &[u8],
        _rules: &Rules,
        _meta: &Meta,
        _data: &[u8],
    ) -> Result<bool> {
        Ok(false)
    }
    /// Makes a hard link in this directory to the file `old` in the directory `old_dir` of the same
    /// side.
    fn link(&self, name: &[u8], old_dir: &dyn SinkNode<'s>, old: &[u8]) -> Result<()>;
    /// Removes a name of anything but a directory from this directory.
    fn remove(&self, name: &[u8]) -> Result<()>;
    /// Empties an existing file, to be written anew. Without `archive` it loses its set-id bits.
    fn truncate(&self, rules: &Rules) -> Result<()>;
    /// Shares the content of `from` with a new file, without reading it. False if the two are on
    /// different sides, or if the format cannot share content.
    fn share(&self, _from: &dyn SourceNode<'s>) -> Result<bool> {
        Ok(false)
    }
    /// Writes a file's content: `fill` hands over its pieces.
    fn write(&self, fill: &mut Fill<'_>) -> Result<()>;
    /// Gives the node times, owner, attributes and mode, in this order, and removes ACLs that the
    /// attributes lack. A change of the owner drops capabilities and set-id bits. `made`: this
    /// command made the node.
    fn finish(&self, rules: &Rules, meta: &Meta, xattrs: &Xattrs, made: bool) -> Result<()>;
}

/// Attributes of a node to create: metadata of the source, and the target of a symbolic link.
pub(super) struct New<'n> {
    pub(super) meta: &'n Meta,
    pub(super) target: &'n [u8],
}

/// Refuses a name that is not a single name in a directory. Names of an image are any bytes.
pub(super) fn single_name(dir: &dyn Shown, name: &[u8]) -> Result<()> {
    let bad = name.is_empty()
        || name == b"."
        || name == b".."
        || name.contains(&b'/')
        || name.contains(&0);
    if !bad {
        Ok(())
    } else {
        Err(CopyError::on(
            dir.shown(),
            CopyCause::BadName(shown::name(name)),
        ))
    }
}
