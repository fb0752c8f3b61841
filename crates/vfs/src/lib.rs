//! The file-system trait that every Sapwood engine implements, with its ids, attributes and errors.
//!
//! The trait works on inodes and keeps no state of open files: an open file is an inode that the
//! front end holds a reference to. This serves FUSE (with or without its open requests), library
//! users and the command line.

pub mod acl;
mod ambient;
mod attr;
pub mod device_number;
mod error;
pub mod front;
mod fs;
mod mounting;
pub mod permission;
pub mod rules;
mod stored;
mod subvolume;

pub use ambient::Ambient;
pub use attr::{
    Attr, Content, Credentials, DirEntry, Entry, FileKind, FsStat, Fsxattr, Ino, InodeFlags,
    NewInode, SetAttr, SetTime, Timestamp,
};
pub use error::{Cause, Error, Result};
pub use fs::{
    AllocMode, CopyMode, FileSystem, RenameMode, SeekFrom, SetXattrMode, SyncKind, TrimRange,
    WriteMode, read_full, read_padded,
};
pub use mounting::{Access, Choice};
pub use sapwood_base::SharedBytes;
pub use stored::{ChangedInode, LinkName, NamedInode, Parts, StoredInode};
pub use subvolume::{SubvolumeId, SubvolumeInfo, Subvolumes};
