//! The interface that an engine implements.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_base::WriteData;

use crate::acl::AclError;
use crate::rules::XattrClass;
use crate::{
    AllocMode, Attr, Content, CopyMode, Credentials, DirEntry, Error, FileKind, FsStat, Fsxattr,
    Ino, InodeFlags, NewInode, RenameMode, Result, SetAttr, SetXattrMode, Subvolumes, SyncKind,
    Timestamp, TrimRange,
};

/// An inode in memory.
pub trait Inode: Debug + Send + Sync {
    /// Type; never changes.
    fn kind(&self) -> FileKind;

    /// Flags as callers see them.
    fn flags(&self) -> InodeFlags;

    /// Permission, set-id and sticky bits.
    fn perm(&self) -> u32;

    /// Length in bytes.
    fn size(&self) -> u64;

    /// Times of the last access, change of content, and change of the inode.
    fn times(&self) -> (Timestamp, Timestamp, Timestamp);

    /// Records, in memory, that the content changed.
    fn content_changed(&self, now: Timestamp);

    /// Whether it has a name.
    fn is_linked(&self) -> bool;

    /// Whether it may get another name: it has one, or was created without one (`O_TMPFILE`).
    fn is_linkable(&self) -> bool;

    /// Whether it is being deleted. Never becomes false again.
    fn is_dying(&self) -> bool;

    /// Whether it can no longer be found by its number although it exists, because its subvolume
    /// was deleted.
    fn is_detached(&self) -> bool {
        false
    }

    /// Whether names can be added to the directory: false after it was removed.
    fn takes_names(&self) -> bool {
        self.is_linked() && !self.is_detached()
    }

    /// Whether it can have extended attributes.
    fn takes_attributes(&self) -> bool {
        true
    }

    /// Fails if this inode, or names in it, must not be changed, whatever its flags are.
    ///
    /// # Errors
    /// `ReadOnly`, `NotPermitted`.
    fn check_changeable(&self) -> Result<()> {
        Ok(())
    }

    /// Fails if the content of a file must not be changed although its attributes may, as of a
    /// file with a hash tree. The caller holds the I/O lock.
    ///
    /// # Errors
    /// `NotPermitted`, `NotSupported`.
    fn check_content_changeable(&self) -> Result<()> {
        Ok(())
    }

    /// Adds a reference held by a caller.
    fn refer(&self);

    /// Drops all references, at the end of the mount.
    fn clear_references(&self);

    /// Orders the I/O locks of several inodes. Unique.
    fn lock_key(&self) -> (u64, u64);

    /// Takes the I/O lock shared with other readers.
    fn lock_shared(&self) -> impl Sized;

    /// Takes the I/O lock exclusively.
    fn lock_exclusive(&self) -> impl Sized;
}

/// Takes the I/O locks of the inodes in the order of [`Inode::lock_key`], each once. The guards may
/// be dropped in any order.
pub fn lock_all<'a, I: Inode>(inodes: &[&'a Arc<I>]) -> Vec<impl Sized + use<'a, I>> {
    let mut sorted: Vec<&'a I> = inodes.iter().map(|inode| &***inode).collect();
    sorted.sort_by_key(|inode| inode.lock_key());
    sorted.dedup_by_key(|inode| inode.lock_key());
    // One push at a time: an iterator without a known length could reallocate while the locks are
    // held.
    let mut guards = Vec::with_capacity(sorted.len());
    for inode in sorted {
        guards.push(inode.lock_exclusive());
    }
    guards
}

/// A name in a directory.
#[derive(Debug)]
pub struct NameInDir<'a, I> {
    /// The directory.
    pub dir: &'a Arc<I>,
    /// The name.
    pub name: &'a [u8],
}

impl<I> Clone for NameInDir<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for NameInDir<'_, I> {}

/// A name together with the result of its lookup.
#[derive(Debug)]
pub struct Found<'a, E: Engine> {
    /// The name.
    pub place: NameInDir<'a, E::Inode>,
    /// The directory's entry for it.
    pub target: E::Target,
    /// The inode.
    pub inode: Arc<E::Inode>,
}

/// Result of a lookup: the directory's entry for the name, and the inode.
pub(crate) type Hit<E> = (<E as Engine>::Target, Arc<<E as Engine>::Inode>);

/// A change of one extended attribute.
#[derive(Debug, Clone, Copy)]
pub struct AttributeChange<'a> {
    /// Full name.
    pub name: &'a [u8],
    /// Namespace of the name.
    pub class: XattrClass,
    /// The new value; `None` removes the attribute.
    pub value: Option<&'a [u8]>,
    /// Whether the attribute may, must or must not exist.
    pub mode: SetXattrMode,
    /// Permission bits to store together with an access ACL.
    pub perm: Option<u32>,
}

/// The inodes of a mount in memory, by the numbers that callers know.
pub trait InodeTable {
    /// An inode in memory.
    type Inode: Inode;

    /// Releases `count` references. Returns the inode if they were the last and it is in memory. An
    /// inode that is not in memory has a name, so nothing has to be done for it.
    fn forget(&self, ino: Ino, count: u64) -> Option<Arc<Self::Inode>>;
    /// Every inode in memory.
    fn all(&self) -> Vec<Arc<Self::Inode>>;
    /// See [`FileSystem::referenced`](crate::FileSystem::referenced).
    fn referenced(&self) -> Vec<Ino>;
    /// See [`FileSystem::is_crowded`](crate::FileSystem::is_crowded).
    fn is_crowded(&self, ino: Ino) -> bool;
    /// See [`FileSystem::crowd`](crate::FileSystem::crowd).
    fn crowd(&self) -> Vec<Ino>;
}

/// An engine: finds, changes and stores. See the [module](super).
///
/// Methods without an `Errors` section fail because of damage, the device or the journal, and, if
/// they change something, with `NoSpace`.
pub trait Engine: Send + Sync + Sized {
    /// An inode in memory.
    type Inode: Inode;
    /// The directory's entry for a name.
    type Target: Debug;
    /// Result of a search for a missing name, for a later insertion.
    type Vacancy;
    /// The devices of the file system.
    type Devices;
    /// Options of a mount.
    type Options;
    /// Why a mount fails.
    type OpenError;

    /// Mounts the file system.
    ///
    /// # Errors
    /// Errors of the devices or the image.
    fn open(
        devices: Self::Devices,
        options: Self::Options,
    ) -> std::result::Result<Self, Self::OpenError>;

    /// Kind of file system for messages.
    fn kind(&self) -> &'static str;
    /// The clock of the mount.
    fn now(&self) -> Timestamp;
    /// The mounted root directory.
    fn root(&self) -> Ino;
    /// Fails after an unmount.
    fn check_open(&self) -> Result<()>;
    /// Whether no change is possible, because of an option or an error.
    fn refuses_changes(&self) -> bool;
    /// Whether the mounted subvolume refuses changes, although others may accept them.
    fn read_only(&self) -> bool {
        self.refuses_changes()
    }
    /// Sizes and counts.
    fn statfs(&self) -> Result<FsStat>;
    /// Counters as JSON.
    fn stats_json(&self) -> String;
    /// The first error that lost data or ended all changes.
    fn first_error(&self) -> Option<String>;
    /// Operations on subvolumes, if the engine has them.
    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        None
    }
    /// Makes everything durable and ends the mount.
    fn unmount(&self) -> Result<()>;

    /// The inode of this number.
    ///
    /// # Errors
    /// `Stale` if there is none.
    fn inode_by_number(&self, ino: Ino) -> Result<Arc<Self::Inode>>;
    /// The inodes in memory.
    fn inodes(&self) -> &impl InodeTable<Inode = Self::Inode>;
    /// Deletes an inode without a name, unless it is in use. The caller holds no I/O lock.
    fn reap(&self, inode: &Arc<Self::Inode>) -> Result<()>;

    /// Attributes as callers see them.
    fn getattr(&self, inode: &Arc<Self::Inode>) -> Attr;
    /// Sets the length of a regular file. The caller holds the I/O lock exclusively.
    fn truncate(&self, inode: &Arc<Self::Inode>, size: u64) -> Result<()>;
    /// Stores changes except the length. `access` is the new access ACL, if there is one
    /// (`Some(None)`: none is needed any more); `strip` removes the file capability. The caller
    /// holds the I/O lock exclusively.
    fn setattr(
        &self,
        inode: &Arc<Self::Inode>,
        changes: &SetAttr,
        access: Option<Option<Vec<u8>>>,
        strip: bool,
    ) -> Result<()>;
    /// Stores permission bits, and removes the file capability if `strip`. The caller holds the I/O
    /// lock exclusively.
    fn set_privileges(&self, inode: &Arc<Self::Inode>, perm: u32, strip: bool) -> Result<()>;
    /// Stores that the content changed now. The caller holds the I/O lock exclusively.
    fn store_content_change(&self, inode: &Arc<Self::Inode>) -> Result<()>;
    /// Whether the access time never changes, by option or because the mount is read-only.
    fn keeps_access_time(&self, inode: &Self::Inode) -> bool;
    /// Sets the access time.
    fn set_access_time(&self, inode: &Arc<Self::Inode>, now: Timestamp) -> Result<()>;
    /// Fails for flags that the format does not have.
    ///
    /// # Errors
    /// `NotSupported`.
    fn check_flags(&self, _asked: InodeFlags) -> Result<()> {
        Ok(())
    }
    /// Stores flags that were checked. The caller holds the I/O lock exclusively.
    fn set_flags(&self, inode: &Arc<Self::Inode>, flags: InodeFlags) -> Result<()>;
    /// Turns off checksums for the data of an empty file. The caller holds the I/O lock
    /// exclusively.
    ///
    /// # Errors
    /// `NotSupported` for a format whose data has none.
    fn forgo_checksums(&self, _inode: &Arc<Self::Inode>) -> Result<()> {
        Err(Error::NotSupported)
    }
    /// Stores the hash tree of a file, durably. The caller holds the I/O lock exclusively.
    ///
    /// # Errors
    /// `NotSupported` for a format or a file without hash trees, `Exists`.
    fn store_verity(
        &self,
        _inode: &Arc<Self::Inode>,
        _tree: &[u8],
        _descriptor: &[u8],
    ) -> Result<()> {
        Err(Error::NotSupported)
    }
    /// The descriptor of a file's hash tree. The caller holds the I/O lock.
    ///
    /// # Errors
    /// `NotSupported`, `NoAttribute`.
    fn verity_descriptor(&self, _inode: &Arc<Self::Inode>) -> Result<Vec<u8>> {
        Err(Error::NotSupported)
    }
    /// Reads a file's hash tree. The caller holds the I/O lock.
    ///
    /// # Errors
    /// `NotSupported`, `NoAttribute`.
    fn read_verity_tree(
        &self,
        _inode: &Arc<Self::Inode>,
        _offset: u64,
        _buf: &mut [u8],
    ) -> Result<()> {
        Err(Error::NotSupported)
    }
    /// See [`FileSystem::fsxattr`](crate::FileSystem::fsxattr).
    fn fsxattr(&self, inode: &Self::Inode) -> Fsxattr;
    /// The rest of a request, without the fields that are not flags and that the format supports.
    fn own_fsxattr(&self, value: &Fsxattr) -> Fsxattr {
        *value
    }
    /// Fails for fields that the image cannot store.
    ///
    /// # Errors
    /// `NotSupported`.
    fn check_fsxattr(&self, _inode: &Self::Inode, _value: &Fsxattr) -> Result<()> {
        Ok(())
    }
    /// Stores the fields that are not flags. The caller holds no I/O lock.
    fn set_fsxattr(&self, _inode: &Arc<Self::Inode>, _value: &Fsxattr) -> Result<()> {
        Ok(())
    }

    /// Looks up `name` and loads its inode. The caller holds no I/O lock: the result may be stale.
    fn lookup(&self, dir: &Arc<Self::Inode>, name: &[u8]) -> Result<Option<Hit<Self>>>;
    /// Whether `place` still leads to the found inode, or the name is still absent (`None`). The
    /// caller holds all their I/O locks exclusively.
    fn is_current(
        &self,
        place: NameInDir<'_, Self::Inode>,
        found: Option<&Found<'_, Self>>,
    ) -> Result<bool>;
    /// Finds the position for a new name. The caller holds the directory's I/O lock exclusively.
    ///
    /// # Errors
    /// `Exists`.
    fn vacancy(&self, dir: &Arc<Self::Inode>, name: &[u8]) -> Result<Self::Vacancy>;
    /// The directory that contains `dir`. The caller holds the I/O lock of `dir`.
    fn parent(&self, dir: &Arc<Self::Inode>) -> Result<Arc<Self::Inode>>;
    /// The error for directories that contain each other.
    fn directory_ring(&self, dir: &Self::Inode) -> Error;
    /// Whether a directory has entries. The caller holds its I/O lock.
    fn has_entries(&self, dir: &Arc<Self::Inode>) -> Result<bool>;
    /// See [`FileSystem::readdir`](crate::FileSystem::readdir). The caller holds the I/O lock
    /// shared.
    fn readdir(
        &self,
        dir: &Arc<Self::Inode>,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()>;
    /// Longest target of a symbolic link, in bytes.
    fn longest_target(&self) -> usize;
    /// Creates an inode and its name. The caller holds the directory's I/O lock exclusively.
    fn create(
        &self,
        who: &Credentials,
        place: NameInDir<'_, Self::Inode>,
        vacancy: Self::Vacancy,
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Arc<Self::Inode>>;
    /// See [`FileSystem::most_filled`](crate::FileSystem::most_filled).
    fn most_filled(&self) -> u64 {
        0
    }
    /// Creates a regular file with its content, and its name. `None`: it has to be written after
    /// its creation. The caller holds the directory's I/O lock exclusively.
    fn create_filled(
        &self,
        _who: &Credentials,
        _place: NameInDir<'_, Self::Inode>,
        _vacancy: Self::Vacancy,
        _perm: u32,
        _content: &Content<'_>,
    ) -> Result<Option<Arc<Self::Inode>>> {
        Ok(None)
    }
    /// Creates a file without a name. The caller holds the directory's I/O lock shared.
    fn tmpfile(
        &self,
        who: &Credentials,
        dir: &Arc<Self::Inode>,
        perm: u32,
    ) -> Result<Arc<Self::Inode>>;
    /// Fails for a link between two subvolumes.
    ///
    /// # Errors
    /// `CrossDevice`.
    fn check_same_tree(&self, _inode: &Self::Inode, _dir: &Self::Inode) -> Result<()> {
        Ok(())
    }
    /// Adds a name to an inode. The caller holds both I/O locks exclusively.
    ///
    /// # Errors
    /// `TooManyLinks`.
    fn link(&self, inode: &Arc<Self::Inode>, place: NameInDir<'_, Self::Inode>) -> Result<()>;
    /// Removes a name of anything but a directory. The caller holds no I/O lock.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `NotPermitted`.
    fn unlink(&self, place: NameInDir<'_, Self::Inode>) -> Result<()>;
    /// Removes an empty directory. The caller holds no I/O lock.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, `NotPermitted`.
    fn rmdir(&self, place: NameInDir<'_, Self::Inode>) -> Result<()>;
    /// Excludes other renames between directories.
    fn lock_topology(&self) -> impl Sized;
    /// Whether a rename would move an inode from one subvolume to another.
    fn crosses_trees(
        &self,
        _source: &Found<'_, Self>,
        _target: Option<&Found<'_, Self>>,
        _to: NameInDir<'_, Self::Inode>,
        _mode: RenameMode,
    ) -> bool {
        false
    }
    /// Moves a name, replacing `target`, or exchanges the two. A whiteout takes the old name in the
    /// same transaction if `mode` asks for it. The caller holds all I/O locks exclusively and has
    /// checked the rules.
    ///
    /// # Errors
    /// `NoSpace`, `TooManyLinks`, `CrossDevice`, `NotPermitted`, `NotEmpty`.
    fn rename(
        &self,
        source: &Found<'_, Self>,
        target: Option<&Found<'_, Self>>,
        to: NameInDir<'_, Self::Inode>,
        mode: RenameMode,
    ) -> Result<()>;

    /// Target of a symbolic link.
    fn readlink(&self, inode: &Arc<Self::Inode>) -> Result<Vec<u8>>;
    /// Reads a regular file. The caller holds the I/O lock shared.
    fn read(&self, inode: &Arc<Self::Inode>, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes to a regular file; `data` is not empty. The caller holds the I/O lock exclusively.
    fn write(&self, inode: &Arc<Self::Inode>, offset: u64, data: WriteData<'_>) -> Result<()>;
    /// Whether the byte at `at` is data, and the offset up to which that is known to hold. The
    /// caller holds the I/O lock.
    fn stretch(&self, inode: &Arc<Self::Inode>, at: u64, size: u64) -> Result<(bool, u64)>;
    /// See [`FileSystem::fallocate`](crate::FileSystem::fallocate). The caller holds the I/O lock
    /// exclusively.
    fn fallocate(
        &self,
        inode: &Arc<Self::Inode>,
        offset: u64,
        len: u64,
        mode: AllocMode,
    ) -> Result<()>;
    /// See [`FileSystem::copy_range`](crate::FileSystem::copy_range). The caller holds both I/O
    /// locks exclusively.
    fn copy_range(
        &self,
        from: (&Arc<Self::Inode>, u64),
        to: (&Arc<Self::Inode>, u64),
        len: u64,
        mode: CopyMode,
    ) -> Result<u64>;
    /// Makes one inode durable. The caller holds no I/O lock.
    fn fsync(&self, inode: &Arc<Self::Inode>, kind: SyncKind) -> Result<()>;
    /// Makes everything durable.
    fn sync(&self) -> Result<()>;
    /// Discards free space; see [`FileSystem::trim`](crate::FileSystem::trim). Operations continue
    /// meanwhile.
    fn trim(&self, range: &TrimRange) -> Result<u64>;

    /// Value of an extended attribute. The caller holds the I/O lock.
    fn getxattr(&self, inode: &Arc<Self::Inode>, name: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Full names of all extended attributes. The caller holds the I/O lock.
    fn listxattr(&self, inode: &Arc<Self::Inode>) -> Result<Vec<Vec<u8>>>;
    /// Whether the inode has a file capability. The caller holds the I/O lock exclusively.
    fn has_capability(&self, inode: &Arc<Self::Inode>) -> Result<bool>;
    /// The error for an ACL on the image that cannot be parsed.
    fn damaged_acl(&self, inode: &Self::Inode, reason: AclError) -> Error;
    /// Fails for a value that does not fit, or a namespace that the format does not have.
    ///
    /// # Errors
    /// `NotSupported`, `NoSpace`.
    fn check_xattr(&self, class: XattrClass, name: &[u8], value: &[u8]) -> Result<()>;
    /// Stores one change. The caller holds the I/O lock exclusively.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, according to the mode of the change.
    fn change_xattr(&self, inode: &Arc<Self::Inode>, change: AttributeChange<'_>) -> Result<()>;
    /// Sets a property (`btrfs.*`), or removes it if the value is empty. The caller holds the I/O
    /// lock exclusively.
    ///
    /// # Errors
    /// `NoAttribute`, `Invalid`.
    fn set_property(
        &self,
        _inode: &Arc<Self::Inode>,
        _name: &[u8],
        _value: &[u8],
        _mode: SetXattrMode,
    ) -> Result<()> {
        Err(Error::NoAttribute)
    }
}
