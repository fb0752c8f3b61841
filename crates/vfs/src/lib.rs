//! The file-system trait that every Sapwood engine implements, with its ids, attributes
//! and errors.
//!
//! The trait is inode-based and keeps no open-file state: an open file is an inode that
//! the front end holds a reference to. That suits FUSE (with or without its open
//! requests), a library user and the command line alike.

pub mod acl;
mod attr;
mod error;
pub mod front;
mod fs;
mod mounting;
pub mod rules;
mod subvolume;

pub use attr::{
    Attr, Credentials, DirEntry, Entry, FileKind, FsStat, Fsxattr, Ino, InodeFlags, NewInode,
    SetAttr, SetTime, Timestamp,
};
pub use error::{Cause, Error, Result};
pub use fs::{
    AllocMode, CopyMode, FileSystem, RenameMode, SeekFrom, SetXattrMode, SyncKind, WriteMode,
};
pub use mounting::{Access, Choice};
pub use subvolume::{SubvolumeId, SubvolumeInfo, Subvolumes};
