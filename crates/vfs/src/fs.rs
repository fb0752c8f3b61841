//! The trait itself.

use std::ops::ControlFlow;

use crate::{
    Attr, Credentials, DirEntry, Entry, FsStat, Fsxattr, Ino, InodeFlags, NewInode, Result,
    SetAttr, Subvolumes,
};

/// What a rename does with an existing target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails with `Exists` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swaps the two names (`RENAME_EXCHANGE`).
    Exchange,
}

/// What `fallocate` does with its range.
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
    /// Takes the range out; what follows moves down.
    CollapseRange,
    /// Opens a hole; what was there moves up.
    InsertRange,
}

/// What to look for from an offset on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekFrom {
    /// `SEEK_DATA`
    Data(u64),
    /// `SEEK_HOLE`
    Hole(u64),
}

/// Whether an extended attribute may or must exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattrMode {
    /// Either.
    Any,
    /// It must not (`XATTR_CREATE`, else `Exists`).
    Create,
    /// It must (`XATTR_REPLACE`, else `NoAttribute`).
    Replace,
}

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteMode {
    /// Clear set-id bits: the writer has no right to keep them.
    pub kill_setid: bool,
    /// Write at the end of the file, whatever the offset says.
    pub append: bool,
    /// The front end's cache writes back: the times are set by the front end.
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

/// What an fsync must make durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncKind {
    /// Data, and all metadata (`fsync`).
    All,
    /// Data, and the metadata needed to read it back (`fdatasync`).
    Data,
}

/// A mounted file system.
///
/// Names are byte strings of 1 to 255 bytes without `/` and NUL, and never `.` or `..`.
/// All methods may be called from any thread at once. Every [`Entry`] that is returned
/// carries one reference; an inode lives, even without a name, until
/// [`forget`](FileSystem::forget) gave all of them back. Calls on an inode need a reference
/// held by the caller; without one they may fail with `Stale`. Every call can fail with
/// `Io`, `Corrupt` or (if it changes something) `ReadOnly` and `NoSpace`; what else can
/// happen stands with the method.
pub trait FileSystem: Send + Sync {
    /// Kind of file system for messages: `btrfs`, `ext4`.
    fn kind(&self) -> &'static str;

    /// The root directory of what is mounted. Needs no reference and no `forget`.
    fn root(&self) -> Ino;

    /// True if changes are refused, by option or after an error.
    fn read_only(&self) -> bool;

    /// Sizes and counts.
    ///
    /// # Errors
    /// See the trait.
    fn statfs(&self) -> Result<FsStat>;

    /// Finds `name` in `dir`.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry>;

    /// Finds an inode by its identity (after `readdir`, or for a handle from outside) and
    /// takes a reference.
    ///
    /// # Errors
    /// `Stale` if there is none.
    fn reference(&self, ino: Ino) -> Result<Entry>;

    /// The directory that holds `dir`; the root is its own.
    ///
    /// # Errors
    /// `NotDirectory`.
    fn parent(&self, dir: Ino) -> Result<Entry>;

    /// Gives `count` references back. The last one of an inode without a name deletes it.
    fn forget(&self, ino: Ino, count: u64);

    /// The inodes that callers hold references to. Those that come or go meanwhile may be missing.
    fn referenced(&self) -> Vec<Ino>;

    /// Whether callers refer to so many inodes which are not in use that the engine would rather have
    /// them forget some, [`crowd`](Self::crowd). Asked with an inode after each that a caller gets a
    /// reference to, and answered for those that share a place with it.
    fn is_crowded(&self, _ino: Ino) -> bool {
        false
    }

    /// Inodes that callers had best give back, if they do not use them.
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
    /// `Invalid` if it is none.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Creates an inode and its name. `perm` is what the caller asked for (`0o7777`): the
    /// engine applies the directory's default ACL or else the umask, and the directory's
    /// set-group-id rule.
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

    /// Creates a regular file without a name (`O_TMPFILE`); [`link`](FileSystem::link) can
    /// give it one.
    ///
    /// # Errors
    /// As [`create`](FileSystem::create).
    fn tmpfile(&self, who: &Credentials, dir: Ino, perm: u32) -> Result<Entry>;

    /// Gives an inode one more name.
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

    /// Lists `dir` from position `from` (0 is the start, else [`DirEntry::next`]) in a
    /// stable order, without `.` and `..`, until the sink breaks or the end is reached.
    /// Entries that exist all the while are listed once. A listing ends, however often entries
    /// are renamed meanwhile. The sink must not call back.
    ///
    /// # Errors
    /// `NotDirectory`.
    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Reads up to `buf.len()` bytes at `offset`; returns how many (fewer only at the end
    /// of the file).
    ///
    /// # Errors
    /// `IsDirectory`, `Invalid` if it is no regular file.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` and returns the offset behind it.
    ///
    /// # Errors
    /// `FileTooLarge`, `NotPermitted`.
    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64>;

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

    /// Copies `len` bytes (0: to the end of the source) from one file to another, or
    /// within one. Returns how many were copied.
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

    /// Makes a file or directory durable: when it returns without an error, what it was
    /// at the call survives a power cut.
    ///
    /// # Errors
    /// `Io`: nothing more will become durable.
    fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()>;

    /// Makes everything durable.
    ///
    /// # Errors
    /// As [`fsync`](FileSystem::fsync).
    fn sync(&self) -> Result<()>;

    /// Value of an extended attribute, by its full name (`user.x`).
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported` for an unknown namespace.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets one. ACLs (`system.posix_acl_*`) are validated and kept equal to the mode.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `NotSupported`, `Invalid`, `AttributeTooLarge`, `NoSpace`.
    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()>;

    /// Full names of all.
    ///
    /// # Errors
    /// See the trait.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes one.
    ///
    /// # Errors
    /// `NoAttribute`, `NotSupported`.
    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()>;

    /// Changes the inode flags to exactly `flags`.
    ///
    /// # Errors
    /// `NotSupported`, `Invalid`.
    fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<()>;

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

    /// The first error since the mount that lost what was written, or ended all changes, as one
    /// line for people. Can be asked for after [`unmount`](FileSystem::unmount) too.
    fn first_error(&self) -> Option<String>;

    /// Makes everything durable and ends all work. Later calls fail.
    ///
    /// # Errors
    /// As [`sync`](FileSystem::sync).
    fn unmount(&self) -> Result<()>;
}
