//! The [`FileSystem`] trait and its parameter types.

use std::ops::ControlFlow;

use sapwood_base::SharedBytes;

use crate::{
    Attr, Content, Credentials, DirEntry, Entry, Error, FsStat, Fsxattr, Ino, InodeFlags, NewInode,
    Result, SetAttr, Subvolumes,
};

/// Treatment of an existing target of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails with `Exists` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swaps the two names (`RENAME_EXCHANGE`).
    Exchange,
    /// Leaves a whiteout at the old name, in the same transaction (`RENAME_WHITEOUT`): a character
    /// device 0/0 without permission bits. Overlay file systems hide a name of a lower layer by it.
    Whiteout {
        /// Owner of the whiteout.
        who: Credentials,
        /// Replaces an existing target, or else fails with `Exists`.
        replace: bool,
    },
}

impl RenameMode {
    /// Whether an existing target is an error.
    #[must_use]
    pub fn is_no_replace(self) -> bool {
        matches!(
            self,
            Self::NoReplace | Self::Whiteout { replace: false, .. }
        )
    }

    /// The owner of the whiteout, if the rename leaves one.
    #[must_use]
    pub fn whiteout(self) -> Option<Credentials> {
        match self {
            Self::Whiteout { who, .. } => Some(who),
            _ => None,
        }
    }
}

/// Operation of `fallocate` on its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocMode {
    /// Allocates; `keep_size` leaves the length as it is.
    Allocate {
        /// Do not extend the file.
        keep_size: bool,
    },
    /// Makes a hole; the length stays.
    PunchHole,
    /// Makes it read as zeros, allocated.
    ZeroRange {
        /// Do not extend the file.
        keep_size: bool,
    },
    /// Removes the range; the data after it moves down.
    CollapseRange,
    /// Inserts a hole; the data from there on moves up.
    InsertRange,
}

/// The kind of range to find from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekFrom {
    /// `SEEK_DATA`
    Data(u64),
    /// `SEEK_HOLE`
    Hole(u64),
}

/// Whether an extended attribute may, must or must not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattrMode {
    /// It may exist.
    Any,
    /// It must not exist (`XATTR_CREATE`, else `Exists`).
    Create,
    /// It must exist (`XATTR_REPLACE`, else `NoAttribute`).
    Replace,
}

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteMode {
    /// Clear set-id bits: the writer may not keep them.
    pub kill_setid: bool,
    /// Write at the end of the file; ignore the offset.
    pub append: bool,
    /// A write-back of the front end's cache: the front end sets the times.
    pub writeback: bool,
}

/// How a range is copied within a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMode {
    /// Share extents where the engine can, copy the rest (`copy_file_range`).
    Any,
    /// Share extents or fail with `Invalid` or `NotSupported` (`FICLONERANGE`).
    ShareOnly,
}

/// The free space to discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimRange {
    /// First byte of the file system.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Smaller free ranges stay as they are.
    pub least: u64,
}

impl Default for TrimRange {
    /// All free space.
    fn default() -> Self {
        Self {
            start: 0,
            len: u64::MAX,
            least: 0,
        }
    }
}

/// Extent of an fsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncKind {
    /// Data, and all metadata (`fsync`).
    All,
    /// Data, and the metadata needed to read it back (`fdatasync`).
    Data,
}

/// A mounted file system.
///
/// Names are byte strings of 1 to 255 bytes without `/` and NUL, and never `.` or `..`. Any thread
/// may call the methods at any time.
///
/// Every returned [`Entry`] carries one reference. An inode exists, even without a name, until
/// [`forget`](FileSystem::forget) has released all its references. The caller of an operation on an
/// inode holds a reference to it; otherwise the call may fail with `Stale`.
///
/// Every call can fail with `Io` or `Corrupt`, and, if it changes something, with `ReadOnly` or
/// `NoSpace`. Each method lists its other errors.
pub trait FileSystem: Send + Sync {
    /// Kind of file system for messages: `btrfs`, `ext4`.
    fn kind(&self) -> &'static str;

    /// The mounted root directory. Needs no reference and no `forget`.
    fn root(&self) -> Ino;

    /// True if changes are refused, by option or after an error.
    fn read_only(&self) -> bool;

    /// Sizes and counts.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn statfs(&self) -> Result<FsStat>;

    /// Finds `name` in `dir`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry>;

    /// Finds an inode by its identity (after `readdir`, or for an external handle) and takes a
    /// reference.
    ///
    /// # Errors
    /// `Stale` if there is none.
    fn reference(&self, ino: Ino) -> Result<Entry>;

    /// The directory that contains `dir`. The root contains itself.
    ///
    /// # Errors
    /// `NotDirectory`.
    fn parent(&self, dir: Ino) -> Result<Entry>;

    /// Releases `count` references. Releasing the last reference of an inode without a name deletes
    /// the inode.
    fn forget(&self, ino: Ino, count: u64);

    /// The inodes that callers hold references to. Inodes whose references change during the call
    /// may be missing.
    fn referenced(&self) -> Vec<Ino>;

    /// Whether callers refer to too many unused inodes and should release some of the inodes in
    /// [`crowd`](Self::crowd). A caller asks with an inode after it got a reference to it. The
    /// answer holds for the inodes that share a shard with it.
    fn is_crowded(&self, _ino: Ino) -> bool {
        false
    }

    /// Inodes that callers should release if they do not use them.
    fn crowd(&self) -> Vec<Ino> {
        Vec::new()
    }

    /// Reads attributes.
    ///
    /// # Errors
    /// `Stale`.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes and returns all of them.
    ///
    /// # Errors
    /// `Invalid`, `FileTooLarge`, `IsDirectory` for a size, `NotPermitted` for an immutable or
    /// append-only inode.
    fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr>;

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` if it is not a symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Creates an inode and its name. `perm` has the requested bits (`0o7777`). The engine applies
    /// the directory's default ACL, or else the umask, and the directory's set-group-id rule.
    ///
    /// # Errors
    /// `Exists`, `NotFound` if `dir` was removed, `NotDirectory`, `NameTooLong`.
    fn create(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Entry>;

    /// Bytes of content up to which [`create_filled`](FileSystem::create_filled) is worth a try.
    fn most_filled(&self) -> u64;

    /// Creates a regular file with its content and its times, if that is less work than creating,
    /// writing and setting the times. `None`: nothing was done.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NotDirectory`, `NameTooLong`, as for [`create`](FileSystem::create).
    fn create_filled(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        perm: u32,
        content: &Content<'_>,
    ) -> Result<Option<Entry>>;

    /// Creates an unnamed regular file (`O_TMPFILE`); [`link`](FileSystem::link) can name it.
    ///
    /// # Errors
    /// `NotFound` if `dir` was removed, `NotDirectory`.
    fn tmpfile(&self, who: &Credentials, dir: Ino, perm: u32) -> Result<Entry>;

    /// Adds a name to an inode.
    ///
    /// # Errors
    /// `Exists`, `TooManyLinks`, `NotPermitted` for a directory, `CrossDevice` between
    /// subvolumes, `NotFound` if the inode lost its last name.
    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry>;

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `NotPermitted`.
    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, `NotPermitted`.
    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()>;

    /// Renames.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `NotEmpty`, `IsDirectory`, `NotDirectory`, `Invalid` (a
    /// directory into itself), `CrossDevice`, `NotPermitted`.
    fn rename(
        &self,
        from_dir: Ino,
        from_name: &[u8],
        to_dir: Ino,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()>;

    /// Lists `dir` from position `from` (0 is the start, else [`DirEntry::next`]) in a stable
    /// order, without `.` and `..`, until the sink breaks or the end is reached. An entry that
    /// exists during the whole listing is listed once. A listing ends even if entries are renamed
    /// all the time. The sink must not call the file system.
    ///
    /// # Errors
    /// `NotDirectory`.
    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Reads up to `buf.len()` bytes at `offset`. Returns the number of bytes, which is smaller
    /// only at the end of the file.
    ///
    /// # Errors
    /// `IsDirectory`, `Invalid` if it is not a regular file.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data`. Returns the offset after it.
    ///
    /// # Errors
    /// `FileTooLarge`, `NotPermitted`.
    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64>;

    /// Like [`write`](Self::write), for bytes that the file system may keep instead of a copy.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    fn write_shared(
        &self,
        ino: Ino,
        offset: u64,
        data: SharedBytes,
        mode: WriteMode,
    ) -> Result<u64> {
        self.write(ino, offset, &data, mode)
    }

    /// Allocates, frees or zeroes a range.
    ///
    /// # Errors
    /// `NotSupported`, `Invalid`, `FileTooLarge`.
    fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: AllocMode) -> Result<()>;

    /// Finds data or a hole. The end of the file counts as a hole.
    ///
    /// # Errors
    /// `NoSuchOffset`.
    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64>;

    /// Copies `len` bytes (0: to the end of the source) between two files or within one. Returns
    /// the number of bytes copied.
    ///
    /// # Errors
    /// `Invalid` for overlapping or unaligned ranges, `IsDirectory`, `CrossDevice`.
    fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
        mode: CopyMode,
    ) -> Result<u64>;

    /// Makes a file or directory durable: after a success, its state at the time of the call
    /// survives a power cut.
    ///
    /// # Errors
    /// `Io`: nothing more will become durable.
    fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// `Io`: nothing more will become durable.
    fn sync(&self) -> Result<()>;

    /// Discards free space on the device. Returns the number of bytes, all copies counted.
    ///
    /// # Errors
    /// `NotSupported` by default; `ReadOnly`.
    fn trim(&self, range: &TrimRange) -> Result<u64> {
        let _ = range;
        Err(crate::Error::NotSupported)
    }

    /// Value of an extended attribute, by its full name (`user.x`).
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported` for an unknown namespace.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. ACLs (`system.posix_acl_*`) are validated and kept consistent
    /// with the mode.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `NotSupported`, `Invalid`, `AttributeTooLarge`, `NoSpace`.
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()>;

    /// Full names of all extended attributes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported`.
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    /// Changes the inode flags to exactly `flags`.
    ///
    /// # Errors
    /// `NotSupported`, `Invalid`.
    fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<()>;

    /// Turns off checksums for the data of an empty regular file.
    ///
    /// # Errors
    /// `NotSupported` if the format has no data checksums, `Invalid` for an inode that is not an
    /// empty regular file.
    fn forgo_checksums(&self, ino: Ino) -> Result<()>;

    /// Gives a regular file a hash tree of fs-verity: the file is immutable from then on, and each
    /// read verifies what it returns. `tree` and `descriptor` are stored as they are. The file is
    /// durable when this returns.
    ///
    /// # Errors
    /// `NotSupported` by default, and for a file that cannot have one; `Exists` if it has one.
    fn store_verity(&self, _ino: Ino, _tree: &[u8], _descriptor: &[u8]) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// The descriptor of the hash tree of a file, with its signature, as it is stored.
    ///
    /// # Errors
    /// `NotSupported` by default; `NoAttribute` if the file has no hash tree; `Corrupt`.
    fn verity_descriptor(&self, _ino: Ino) -> Result<Vec<u8>> {
        Err(Error::NotSupported)
    }

    /// Reads the hash tree of a file from a byte offset of the tree on, without verifying it.
    ///
    /// # Errors
    /// `NotSupported` by default; `NoAttribute` if the file has no hash tree.
    fn read_verity_tree(&self, _ino: Ino, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// `FS_IOC_FSGETXATTR`.
    ///
    /// # Errors
    /// `Stale`.
    fn fsxattr(&self, ino: Ino) -> Result<Fsxattr>;

    /// `FS_IOC_FSSETXATTR`.
    ///
    /// # Errors
    /// `NotSupported`, `Invalid`.
    fn set_fsxattr(&self, ino: Ino, value: &Fsxattr) -> Result<()>;

    /// Operations on subvolumes, if the engine has them.
    fn subvolumes(&self) -> Option<&dyn Subvolumes>;

    /// Counters as a JSON object.
    fn stats_json(&self) -> String;

    /// The first error since the mount that lost written data or ended all changes, as one line for
    /// display. Also available after [`unmount`](FileSystem::unmount).
    fn first_error(&self) -> Option<String>;

    /// Makes everything durable and ends all work. Later calls fail.
    ///
    /// # Errors
    /// `Io`: some changes are lost.
    fn unmount(&self) -> Result<()>;
}

/// Reads from a file until the buffer is full or the file ends. Returns the number of bytes.
///
/// # Errors
/// The errors of [`FileSystem::read`].
pub fn read_full(fs: &dyn FileSystem, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match fs.read(ino, offset.saturating_add(filled as u64), rest)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Fills a buffer from a file. Bytes after the end of the file are zeros.
///
/// # Errors
/// The errors of [`FileSystem::read`].
pub fn read_padded(fs: &dyn FileSystem, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
    let filled = read_full(fs, ino, offset, buf)?;
    buf.get_mut(filled..).unwrap_or_default().fill(0);
    Ok(())
}
