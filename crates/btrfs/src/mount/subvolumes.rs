//! The [`Subvolumes`] trait.

use sapwood_btrfs_format::objectid;
use sapwood_vfs::front::Front;
use sapwood_vfs::{self as vfs, Entry, Ino, Result, SubvolumeId, SubvolumeInfo, Subvolumes};

use super::open::Btrfs;
use crate::Error;
use crate::subvolume::{choose, create, default, delete, listing, snapshot};

impl Subvolumes for Btrfs {
    fn list(&self) -> Result<Vec<SubvolumeInfo>> {
        Ok(listing::list(&self.engine)?)
    }

    fn create_subvolume(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_writable()?;
        let dir = self.live(dir)?;
        self.entry(&create::create(&self.engine, &dir, name)?)
    }

    fn snapshot(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Entry> {
        self.check_writable()?;
        let source = snapshot::top_of(&*self.live(source)?)?;
        let dir = self.live(dir)?;
        let made = snapshot::snapshot(&self.engine, &source, &dir, name, read_only)?;
        self.entry(&made)
    }

    fn delete_subvolume(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        Ok(delete::delete(&self.engine, &self.live(dir)?, name)?)
    }

    fn set_read_only(&self, root: Ino, read_only: bool) -> Result<()> {
        self.check_writable()?;
        let root = snapshot::top_of(&*self.live(root)?)?;
        Ok(default::set_read_only(&self.engine, &root, read_only)?)
    }

    fn default_subvolume(&self) -> Result<SubvolumeId> {
        let id = choose::default_id(&self.engine.blocks, &self.engine.roots)?;
        Ok(SubvolumeId(id.unwrap_or(objectid::FS_TREE)))
    }

    fn set_default_subvolume(&self, id: SubvolumeId) -> Result<()> {
        self.check_writable()?;
        match default::set_default(&self.engine, id.0) {
            Err(Error::NoSuchSubvolume(_)) => Err(vfs::Error::NotFound),
            other => Ok(other?),
        }
    }

    fn subvolume_of(&self, ino: Ino) -> Result<SubvolumeId> {
        Ok(SubvolumeId(self.live(ino)?.root.id()))
    }
}
