//! What an engine implements.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::acl::AclError;
use crate::rules::XattrClass;
use crate::{
    AllocMode, Attr, CopyMode, Credentials, DirEntry, Error, FileKind, FsStat, Fsxattr, Ino,
    InodeFlags, NewInode, RenameMode, Result, SetAttr, SetXattrMode, Subvolumes, SyncKind,
    Timestamp,
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

    /// Records in memory that the content changed.
    fn content_changed(&self, now: Timestamp);

    /// Whether it has a name.
    fn is_linked(&self) -> bool;

    /// Whether it may get another name: it has one, or was created without (`O_TMPFILE`).
    fn is_linkable(&self) -> bool;

    /// Whether it is being deleted. Stays true.
    fn is_dying(&self) -> bool;

    /// Whether it cannot be found by its number any more, though it exists: its subvolume was deleted.
    fn is_detached(&self) -> bool {
        false
    }

    /// Whether names can be added to the directory: it was not removed.
    fn takes_names(&self) -> bool {
        self.is_linked() && !self.is_detached()
    }

    /// Whether it can have extended attributes.
    fn takes_attributes(&self) -> bool {
        true
    }

    /// Refuses a change of this inode, or of names in it, whatever its flags are.
    ///
    /// # Errors
    /// `ReadOnly`, `NotPermitted`.
    fn check_changeable(&self) -> Result<()> {
        Ok(())
    }

    /// One more reference held by a caller.
    fn refer(&self);

    /// Forgets all references, as the mount ends.
    fn clear_references(&self);

    /// Order in which the I/O locks of several inodes are taken. Unique.
    fn lock_key(&self) -> (u64, u64);

    /// Takes the I/O lock together with other readers.
    fn lock_shared(&self) -> impl Sized;

    /// Takes the I/O lock alone.
    fn lock_exclusive(&self) -> impl Sized;
}

/// Takes the I/O locks of the inodes in the order of [`Inode::lock_key`], each once. The guards may
/// be dropped in any order.
pub fn lock_all<'a, I: Inode>(inodes: &[&'a Arc<I>]) -> Vec<impl Sized + use<'a, I>> {
    let mut sorted: Vec<&'a I> = inodes.iter().map(|inode| &***inode).collect();
    sorted.sort_by_key(|inode| inode.lock_key());
    sorted.dedup_by_key(|inode| inode.lock_key());
    // Pushed one by one: an iterator that knows no length would grow it under the locks.
    let mut guards = Vec::with_capacity(sorted.len());
    for inode in sorted {
        guards.push(inode.lock_exclusive());
    }
    guards
}

/// A name in a directory.
#[derive(Debug)]
pub struct Place<'a, I> {
    /// The directory.
    pub dir: &'a Arc<I>,
    /// The name.
    pub name: &'a [u8],
}

impl<I> Clone for Place<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Place<'_, I> {}

/// A name together with what it led to when it was looked up.
#[derive(Debug)]
pub struct Found<'a, E: Engine> {
    /// The name.
    pub place: Place<'a, E::Inode>,
    /// What the directory has for it.
    pub target: E::Target,
    /// The inode.
    pub inode: Arc<E::Inode>,
}

/// What a look-up found: what the directory has for the name, and the inode.
pub type Hit<E> = (<E as Engine>::Target, Arc<<E as Engine>::Inode>);

/// A change of one extended attribute.
#[derive(Debug, Clone, Copy)]
pub struct AttributeChange<'a> {
    /// Full name.
    pub name: &'a [u8],
    /// Namespace of the name.
    pub class: XattrClass,
    /// The new value; `None` removes the attribute.
    pub value: Option<&'a [u8]>,
    /// Whether it may or must exist.
    pub mode: SetXattrMode,
    /// Permission bits that go with an access ACL.
    pub perm: Option<u32>,
}

/// An engine: finds, changes and stores. See the [module](super).
///
/// Methods without an `Errors` section of their own fail for damage, the device or the journal, and,
/// if they change something, with `NoSpace`.
pub trait Engine: Send + Sync + Sized {
    /// An inode in memory.
    type Inode: Inode;
    /// What a directory has for a name.
    type Target: Debug;
    /// What a search found out about a name that is not there.
    type Vacancy;

    /// Kind of file system for messages.
    fn kind(&self) -> &'static str;
    /// The root directory of what is mounted.
    fn root(&self) -> Ino;
    /// Refuses everything after an unmount.
    fn check_open(&self) -> Result<()>;
    /// Whether no change is possible, by option or after an error.
    fn is_read_only(&self) -> bool;
    /// Whether what is mounted refuses changes, though others may be possible.
    fn shows_read_only(&self) -> bool {
        self.is_read_only()
    }
    /// Sizes and counts.
    fn statistics(&self) -> Result<FsStat>;
    /// Counters as JSON.
    fn counters_json(&self) -> String;
    /// The first error that lost something or ended all changes.
    fn first_failure(&self) -> Option<String>;
    /// Operations on subvolumes, if the engine has them.
    fn subvolume_operations(&self) -> Option<&dyn Subvolumes> {
        None
    }
    /// Makes everything durable and ends the mount.
    fn shut_down(&self) -> Result<()>;

    /// The inode of this number.
    ///
    /// # Errors
    /// `Stale` if there is none.
    fn inode_by_number(&self, ino: Ino) -> Result<Arc<Self::Inode>>;
    /// Takes `count` references back; the inode, if these were the last.
    fn release(&self, ino: Ino, count: u64) -> Option<Arc<Self::Inode>>;
    /// All inodes in memory.
    fn inodes(&self) -> Vec<Arc<Self::Inode>>;
    /// See [`FileSystem::referenced`](crate::FileSystem::referenced).
    fn referenced_inodes(&self) -> Vec<Ino>;
    /// See [`FileSystem::is_crowded`](crate::FileSystem::is_crowded).
    fn has_crowd(&self, ino: Ino) -> bool;
    /// See [`FileSystem::crowd`](crate::FileSystem::crowd).
    fn crowded_inodes(&self) -> Vec<Ino>;
    /// Deletes an inode without a name, unless it is in use. No I/O lock is held.
    fn reap(&self, inode: &Arc<Self::Inode>) -> Result<()>;

    /// Attributes as callers see them.
    fn attributes(&self, inode: &Arc<Self::Inode>) -> Attr;
    /// Sets the length of a regular file. The I/O lock is held exclusively.
    fn truncate(&self, inode: &Arc<Self::Inode>, size: u64) -> Result<()>;
    /// Stores changes other than the length. `access` is the new access ACL, if there is one
    /// (`Some(None)`: none is needed any more); `strip` removes the file capability. The I/O lock is
    /// held exclusively.
    fn set_attributes(
        &self,
        inode: &Arc<Self::Inode>,
        changes: &SetAttr,
        access: Option<Option<Vec<u8>>>,
        strip: bool,
    ) -> Result<()>;
    /// Stores permission bits, and removes the file capability. The I/O lock is held exclusively.
    fn set_privileges(&self, inode: &Arc<Self::Inode>, perm: u32, strip: bool) -> Result<()>;
    /// Stores that the content changed now. The I/O lock is held exclusively.
    fn store_content_change(&self, inode: &Arc<Self::Inode>) -> Result<()>;
    /// Whether the access time never changes, by option or because nothing can.
    fn keeps_access_time(&self, inode: &Self::Inode) -> bool;
    /// Sets the access time.
    fn set_access_time(&self, inode: &Arc<Self::Inode>, now: Timestamp) -> Result<()>;
    /// Refuses flags that the format does not have.
    ///
    /// # Errors
    /// `NotSupported`.
    fn check_flags(&self, _asked: InodeFlags) -> Result<()> {
        Ok(())
    }
    /// Stores flags that were checked. The I/O lock is held exclusively.
    fn store_flags(&self, inode: &Arc<Self::Inode>, flags: InodeFlags) -> Result<()>;
    /// See [`FileSystem::fsxattr`](crate::FileSystem::fsxattr).
    fn extended_flags(&self, inode: &Self::Inode) -> Fsxattr;
    /// What is left of a request once the fields that are not flags, and that the format has, are out.
    fn own_extended_flags(&self, value: &Fsxattr) -> Fsxattr {
        *value
    }
    /// Refuses fields that the image cannot keep.
    ///
    /// # Errors
    /// `NotSupported`.
    fn check_extended_flags(&self, _inode: &Self::Inode, _value: &Fsxattr) -> Result<()> {
        Ok(())
    }
    /// Stores the fields that are not flags. No I/O lock is held.
    fn set_extended_flags(&self, _inode: &Arc<Self::Inode>, _value: &Fsxattr) -> Result<()> {
        Ok(())
    }

    /// Looks `name` up and loads its inode. No I/O lock is held: the answer may be stale.
    fn find(&self, dir: &Arc<Self::Inode>, name: &[u8]) -> Result<Option<Hit<Self>>>;
    /// Whether `place` still is as it was found, or still absent (`None`). All their I/O locks are held
    /// exclusively.
    fn is_current(
        &self,
        place: Place<'_, Self::Inode>,
        found: Option<&Found<'_, Self>>,
    ) -> Result<bool>;
    /// Finds where a name would go. The directory's I/O lock is held exclusively.
    ///
    /// # Errors
    /// `Exists`.
    fn vacancy(&self, dir: &Arc<Self::Inode>, name: &[u8]) -> Result<Self::Vacancy>;
    /// The directory that holds `dir`. Its I/O lock is held.
    fn parent_of(&self, dir: &Arc<Self::Inode>) -> Result<Arc<Self::Inode>>;
    /// The error for directories that contain each other.
    fn directory_ring(&self, dir: &Self::Inode) -> Error;
    /// Whether a directory has entries. Its I/O lock is held.
    fn has_entries(&self, dir: &Arc<Self::Inode>) -> Result<bool>;
    /// See [`FileSystem::readdir`](crate::FileSystem::readdir). The I/O lock is held shared.
    fn list(
        &self,
        dir: &Arc<Self::Inode>,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()>;
    /// Longest target of a symbolic link, in bytes.
    fn longest_target(&self) -> usize;
    /// Makes an inode and its name. The directory's I/O lock is held exclusively.
    fn make(
        &self,
        who: &Credentials,
        place: Place<'_, Self::Inode>,
        vacancy: Self::Vacancy,
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Arc<Self::Inode>>;
    /// Makes a file without a name. The directory's I/O lock is held shared.
    fn make_unnamed(
        &self,
        who: &Credentials,
        dir: &Arc<Self::Inode>,
        perm: u32,
    ) -> Result<Arc<Self::Inode>>;
    /// Refuses a link from one subvolume to another.
    ///
    /// # Errors
    /// `CrossDevice`.
    fn check_same_tree(&self, _inode: &Self::Inode, _dir: &Self::Inode) -> Result<()> {
        Ok(())
    }
    /// Gives an inode one more name. Both I/O locks are held exclusively.
    ///
    /// # Errors
    /// `TooManyLinks`.
    fn add_link(&self, inode: &Arc<Self::Inode>, place: Place<'_, Self::Inode>) -> Result<()>;
    /// Removes a name of a directory (`directory`) or of anything else. No I/O lock is held.
    ///
    /// # Errors
    /// As [`FileSystem::unlink`](crate::FileSystem::unlink) and `rmdir`.
    fn remove(&self, place: Place<'_, Self::Inode>, directory: bool) -> Result<()>;
    /// Keeps other renames between directories out.
    fn lock_topology(&self) -> impl Sized;
    /// Whether a rename would move an inode from one subvolume to another.
    fn crosses_trees(
        &self,
        _source: &Found<'_, Self>,
        _target: Option<&Found<'_, Self>>,
        _to: Place<'_, Self::Inode>,
        _mode: RenameMode,
    ) -> bool {
        false
    }
    /// Moves a name, in place of `target`, or exchanges the two. All I/O locks are held exclusively, and
    /// the rules allow it.
    ///
    /// # Errors
    /// `TooManyLinks`, `CrossDevice`, `NotPermitted`, `NotEmpty`.
    fn move_name(
        &self,
        source: &Found<'_, Self>,
        target: Option<&Found<'_, Self>>,
        to: Place<'_, Self::Inode>,
        mode: RenameMode,
    ) -> Result<()>;

    /// Target of a symbolic link.
    fn target_of(&self, inode: &Arc<Self::Inode>) -> Result<Vec<u8>>;
    /// Reads a regular file. The I/O lock is held shared.
    fn read_data(&self, inode: &Arc<Self::Inode>, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes to a regular file; `data` is not empty. The I/O lock is held exclusively.
    fn write_data(&self, inode: &Arc<Self::Inode>, offset: u64, data: &[u8]) -> Result<()>;
    /// Whether the byte at `at` is data, and up to where that is known to go on. The I/O lock is held.
    fn stretch(&self, inode: &Arc<Self::Inode>, at: u64, size: u64) -> Result<(bool, u64)>;
    /// See [`FileSystem::fallocate`](crate::FileSystem::fallocate). The I/O lock is held exclusively.
    fn allocate_range(
        &self,
        inode: &Arc<Self::Inode>,
        offset: u64,
        len: u64,
        mode: AllocMode,
    ) -> Result<()>;
    /// See [`FileSystem::copy_range`](crate::FileSystem::copy_range). Both I/O locks are held exclusively.
    fn copy_data(
        &self,
        from: (&Arc<Self::Inode>, u64),
        to: (&Arc<Self::Inode>, u64),
        len: u64,
        mode: CopyMode,
    ) -> Result<u64>;
    /// Makes one inode durable. No I/O lock is held.
    fn make_durable(&self, inode: &Arc<Self::Inode>, kind: SyncKind) -> Result<()>;
    /// Makes everything durable.
    fn make_all_durable(&self) -> Result<()>;

    /// Value of an extended attribute. The I/O lock is held.
    fn attribute(&self, inode: &Arc<Self::Inode>, name: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Full names of all. The I/O lock is held.
    fn attribute_names(&self, inode: &Arc<Self::Inode>) -> Result<Vec<Vec<u8>>>;
    /// Whether the inode has a file capability. The I/O lock is held exclusively.
    fn has_capability(&self, inode: &Arc<Self::Inode>) -> Result<bool>;
    /// The error for an ACL of the image that cannot be read.
    fn damaged_acl(&self, inode: &Self::Inode, reason: AclError) -> Error;
    /// Refuses a value that does not fit or a namespace that the format does not have.
    ///
    /// # Errors
    /// `NotSupported`, `NoSpace`.
    fn check_attribute(&self, class: XattrClass, name: &[u8], value: &[u8]) -> Result<()>;
    /// Stores one change. The I/O lock is held exclusively.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, as its mode says.
    fn change_attribute(&self, inode: &Arc<Self::Inode>, change: AttributeChange<'_>)
    -> Result<()>;
    /// Sets a property (`btrfs.*`), or removes it if the value is empty. The I/O lock is held exclusively.
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
