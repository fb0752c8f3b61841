//! Subvolumes and snapshots, for engines that support them.

use crate::{Entry, Ino, Result, Timestamp};

/// Id of a subvolume. The top level of btrfs is 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubvolumeId(pub u64);

/// Facts about a subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its id.
    pub id: SubvolumeId,
    /// Path from the top level, without a leading `/`.
    pub path: Vec<u8>,
    /// The subvolume that contains its name; `None` for the top level.
    pub parent: Option<SubvolumeId>,
    /// Transaction that last changed it.
    pub generation: u64,
    /// Transaction that created it.
    pub created_generation: u64,
    /// Time of creation.
    pub created: Timestamp,
    /// It is read-only.
    pub read_only: bool,
    /// Its own UUID; all zero if it has none.
    pub uuid: [u8; 16],
    /// UUID of the subvolume that it is a snapshot of; zeros if none.
    pub parent_uuid: [u8; 16],
    /// UUID of the subvolume that it was received from; zeros if none.
    pub received_uuid: [u8; 16],
}

/// Operations on subvolumes.
pub trait Subvolumes {
    /// All subvolumes below the top level, ordered by id.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), [`Error::Corrupt`](crate::Error::Corrupt).
    fn list(&self) -> Result<Vec<SubvolumeInfo>>;

    /// Creates an empty subvolume named `name` in `dir`.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NotDirectory`, `NameTooLong`, as for
    /// [`create`](crate::FileSystem::create).
    fn create_subvolume(&self, dir: Ino, name: &[u8]) -> Result<Entry>;

    /// Creates a snapshot of the subvolume with root directory `source`. It contains all data
    /// written before the call.
    ///
    /// # Errors
    /// The errors of [`create`](crate::FileSystem::create); `Invalid` if `source` is not the root
    /// of a subvolume.
    fn snapshot(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Entry>;

    /// Deletes the subvolume named `name` in `dir`. Its space is freed over time.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` if it is not a subvolume, `NotEmpty` if it contains another one,
    /// `NotPermitted` if it is the default one, `Busy` if it is mounted.
    fn delete_subvolume(&self, dir: Ino, name: &[u8]) -> Result<()>;

    /// Makes the subvolume read-only, or writable again.
    ///
    /// # Errors
    /// `Invalid` if `root` is not the root of a subvolume.
    fn set_read_only(&self, root: Ino, read_only: bool) -> Result<()>;

    /// Records that the subvolume was received as a copy of the subvolume `uuid` as of its
    /// transaction `transid`, makes it read-only, and makes all of this durable.
    ///
    /// # Errors
    /// `Invalid` if `root` is not the root of a subvolume.
    fn set_received(&self, root: Ino, uuid: [u8; 16], transid: u64) -> Result<()>;

    /// The default subvolume, which a mount shows if no other is chosen.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io), [`Error::Corrupt`](crate::Error::Corrupt).
    fn default_subvolume(&self) -> Result<SubvolumeId>;

    /// Sets the default subvolume.
    ///
    /// # Errors
    /// `NotFound` if there is no such subvolume.
    fn set_default_subvolume(&self, id: SubvolumeId) -> Result<()>;

    /// The subvolume with root directory `root`.
    ///
    /// # Errors
    /// `Invalid` if `root` is not the root of a subvolume; `Stale`.
    fn subvolume_at(&self, root: Ino) -> Result<SubvolumeId>;

    /// The subvolume that `ino` is in.
    ///
    /// # Errors
    /// `Stale`.
    fn subvolume_of(&self, ino: Ino) -> Result<SubvolumeId>;
}
