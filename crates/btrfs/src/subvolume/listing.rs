//! The [`Subvolumes`] trait.

use sapwood_vfs::{Entry, Error, Ino, Result, SubvolumeId, SubvolumeInfo, Subvolumes};

use crate::Btrfs;

impl Subvolumes for Btrfs {
    fn list(&self) -> Result<Vec<SubvolumeInfo>> {
        Err(Error::NotSupported)
    }
    fn create_subvolume(&self, _dir: Ino, _name: &[u8]) -> Result<Entry> {
        Err(Error::NotSupported)
    }
    fn snapshot(&self, _source: Ino, _dir: Ino, _name: &[u8], _read_only: bool) -> Result<Entry> {
        Err(Error::NotSupported)
    }
    fn delete_subvolume(&self, _dir: Ino, _name: &[u8]) -> Result<()> {
        Err(Error::NotSupported)
    }
    fn set_read_only(&self, _root: Ino, _read_only: bool) -> Result<()> {
        Err(Error::NotSupported)
    }
    fn default_subvolume(&self) -> Result<SubvolumeId> {
        Err(Error::NotSupported)
    }
    fn set_default_subvolume(&self, _id: SubvolumeId) -> Result<()> {
        Err(Error::NotSupported)
    }
    fn subvolume_of(&self, _ino: Ino) -> Result<SubvolumeId> {
        Err(Error::NotSupported)
    }
}
