//! An operation.

use sapwood_vfs::{
    AllocMode, CopyMode, Credentials, InodeFlags, NewInode, RenameMode, SeekFrom, SetAttr,
    SetXattrMode, SyncKind,
};

/// A path of names below the session's directory; empty for that directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(pub Vec<&'static str>);

/// The inode of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The inode at the end of a path.
    At(Place),
    /// An inode that the session holds a reference to, by its slot; it may have lost its name.
    Held(usize),
}

/// The user of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The superuser without a umask.
    Root,
    /// User and group 1000 with umask 022.
    User,
}

impl Who {
    /// The same as an argument of the trait.
    #[must_use]
    pub fn credentials(self) -> Credentials {
        match self {
            Self::Root => Credentials::ROOT,
            Self::User => Credentials {
                uid: 1000,
                gid: 1000,
                umask: 0o022,
                keep_setgid: false,
            },
        }
    }
}

/// The kind of inode to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link with this target.
    Symlink(&'static str),
    /// Character device with this number.
    CharDevice(u64),
    /// Block device with this number.
    BlockDevice(u64),
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
}

impl Kind {
    /// The same as an argument of the trait.
    #[must_use]
    pub fn new_inode(self) -> NewInode<'static> {
        match self {
            Self::Regular => NewInode::Regular,
            Self::Directory => NewInode::Directory,
            Self::Symlink(target) => NewInode::Symlink(target.as_bytes()),
            Self::CharDevice(rdev) => NewInode::CharDevice(rdev),
            Self::BlockDevice(rdev) => NewInode::BlockDevice(rdev),
            Self::Fifo => NewInode::Fifo,
            Self::Socket => NewInode::Socket,
        }
    }
}

/// Bytes to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// This byte repeated: compresses well.
    Byte(u8),
    /// Bytes generated from this seed: do not compress.
    Seed(u64),
}

impl Fill {
    /// `len` bytes of it.
    #[must_use]
    pub fn bytes(self, len: usize) -> Vec<u8> {
        match self {
            Self::Byte(byte) => vec![byte; len],
            Self::Seed(seed) => {
                let mut bytes = vec![0; len];
                fastrand::Rng::with_seed(seed).fill(&mut bytes);
                bytes
            }
        }
    }
}

/// One operation. A report prints it with `Debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are named as the trait's arguments")]
pub enum Op {
    /// `create`
    Create {
        at: Place,
        kind: Kind,
        perm: u32,
        who: Who,
    },
    /// `tmpfile`, held in a slot
    Tmpfile {
        dir: Place,
        perm: u32,
        who: Who,
        slot: usize,
    },
    /// `link`
    Link { subject: Subject, to: Place },
    /// `unlink`
    Unlink(Place),
    /// `rmdir`
    Rmdir(Place),
    /// `rename`
    Rename {
        from: Place,
        to: Place,
        mode: RenameMode,
    },
    /// `lookup` to the end of a path, and the reference kept in a slot
    Hold { at: Place, slot: usize },
    /// `forget` of what a slot holds
    Release(usize),
    /// `getattr`
    Stat(Subject),
    /// `parent`
    Parent(Place),
    /// `readlink`
    Readlink(Subject),
    /// `readdir` in pages of this many entries
    List { dir: Place, page: usize },
    /// `read`
    Read {
        subject: Subject,
        offset: u64,
        len: usize,
    },
    /// `write`
    Write {
        subject: Subject,
        offset: u64,
        len: usize,
        fill: Fill,
        append: bool,
        kill_setid: bool,
    },
    /// `setattr`
    SetAttr { subject: Subject, changes: SetAttr },
    /// `fallocate`
    Allocate {
        subject: Subject,
        offset: u64,
        len: u64,
        mode: AllocMode,
    },
    /// `seek`, checked against the content
    Seek { subject: Subject, from: SeekFrom },
    /// `copy_range`
    Copy {
        from: Subject,
        from_offset: u64,
        to: Subject,
        to_offset: u64,
        len: u64,
        mode: CopyMode,
    },
    /// `fsync`
    Fsync { subject: Subject, kind: SyncKind },
    /// `sync`
    Sync,
    /// `setxattr`
    SetXattr {
        subject: Subject,
        name: &'static str,
        value: Vec<u8>,
        mode: SetXattrMode,
    },
    /// `getxattr`
    GetXattr {
        subject: Subject,
        name: &'static str,
    },
    /// `removexattr`
    RemoveXattr {
        subject: Subject,
        name: &'static str,
    },
    /// `listxattr`
    ListXattr(Subject),
    /// `set_flags`
    SetFlags { subject: Subject, flags: InodeFlags },
    /// `create_subvolume`
    CreateSubvolume(Place),
    /// `snapshot`
    Snapshot {
        source: Place,
        to: Place,
        read_only: bool,
    },
    /// `delete_subvolume`
    DeleteSubvolume(Place),
    /// `set_read_only` of a subvolume
    SetReadOnly { at: Place, read_only: bool },
}
