//! All inodes in memory: a [`ResidentTable`] by number. An inode without a name is not
//! [evicted](Resident::may_leave), because only its object records that it must be deleted; nor is
//! one with data, or with times that are not stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sapwood_base::writeback::File;
use sapwood_base::{Residence, Resident, ResidentTable};
use sapwood_ext4_format::InodeFlags;
use sapwood_vfs::{Ino, front};

use super::Inode;
use crate::lock::Rank;
use crate::store::Store;
use crate::{Error, Result};

/// The inodes in memory.
pub(crate) struct InodeTable {
    inodes: ResidentTable<Rank, Inode>,
    bound: usize,
    /// Bytes from which on the background thread is asked to store inodes, so that they can be
    /// evicted.
    relieve_at: AtomicUsize,
}

fn key(ino: u32) -> (u64, u64) {
    (0, ino.into())
}

impl Resident for Inode {
    fn key(&self) -> (u64, u64) {
        key(self.ino)
    }

    fn residence(&self) -> &Residence {
        &self.residence
    }

    fn may_leave(&self) -> bool {
        let unstored = {
            let state = self.state.lock();
            state.nlink() == 0 || state.unstored || state.orphan
        };
        !unstored && self.data.may_leave()
    }

    fn footprint(&self) -> usize {
        let on_disk = self.state.lock().raw.size_on_disk();
        size_of::<Self>() + on_disk + self.dir.places.footprint() + self.data.footprint()
    }
}

impl File for Inode {
    fn dirty_bytes(&self) -> u64 {
        self.data.dirty_bytes()
    }

    fn is_idle(&self) -> bool {
        self.data.is_idle()
    }
}

impl front::InodeTable for InodeTable {
    type Inode = Inode;

    fn forget(&self, ino: Ino, count: u64) -> Option<Arc<Inode>> {
        self.inodes.release((0, ino.0), count)
    }

    fn all(&self) -> Vec<Arc<Inode>> {
        self.inodes.all()
    }

    fn referenced(&self) -> Vec<Ino> {
        numbers(self.inodes.referenced())
    }

    fn is_crowded(&self, ino: Ino) -> bool {
        self.inodes.is_crowded((0, ino.0))
    }

    fn crowd(&self) -> Vec<Ino> {
        numbers(self.inodes.crowd())
    }
}

fn numbers(keys: Vec<(u64, u64)>) -> Vec<Ino> {
    keys.into_iter().map(|(_, number)| Ino(number)).collect()
}

impl InodeTable {
    /// An empty table that keeps inodes of about `bound` bytes, in addition to held ones.
    pub(crate) fn new(bound: usize) -> Self {
        Self {
            inodes: ResidentTable::new(Rank::InodeTable, bound),
            bound,
            relieve_at: AtomicUsize::new(bound / 8 * 9),
        }
    }

    /// Evicts inodes down to the bound. Inodes that stay only because a time was not stored are
    /// stored first. Hold no handle.
    ///
    /// # Errors
    /// Errors of the device and of the journal.
    pub(crate) fn relieve(&self, store: &Store) -> Result<()> {
        self.inodes.trim();
        if self.inodes.bytes() > self.bound {
            for inode in self.inodes.all() {
                inode.store_late_changes(store)?;
            }
            self.inodes.trim();
        }
        // The remaining inodes stay for other reasons: another search is not worth it before there
        // are more.
        let stays = self.inodes.bytes().max(self.bound) / 8 * 9;
        self.relieve_at.store(stays, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.inodes.bytes()
    }

    /// The object of an inode, if it is in memory.
    pub(crate) fn peek(&self, ino: u32) -> Option<Arc<Inode>> {
        self.inodes.peek(key(ino))
    }

    /// The inode with the number that callers know.
    ///
    /// # Errors
    /// `Stale` if it is not in use, or if no caller can know it; [`Error::BadInode`] if it is
    /// damaged; errors of the device.
    pub(crate) fn by_number(&self, store: &Store, ino: Ino) -> Result<Arc<Inode>> {
        let number = u32::try_from(ino.0).map_err(|_| sapwood_vfs::Error::Stale)?;
        if store.is_special(number) {
            Err(sapwood_vfs::Error::Stale.into())
        } else {
            self.named(store, number)
        }
    }

    /// The inode that a directory entry names. Inodes that only the file system itself uses
    /// (reserved inodes, quota files, the orphan file, values of attributes) have no name in a
    /// sound image.
    ///
    /// # Errors
    /// `Stale` if it is not in use, [`Error::BadInode`] if it is damaged; [`Error::BadInode`] for
    /// an inode of the file system's own.
    pub(crate) fn named(&self, store: &Store, ino: u32) -> Result<Arc<Inode>> {
        let own = |what: &str| Error::BadInode {
            ino,
            reason: format!("{what} cannot be reached by name"),
        };
        if store.is_special(ino) {
            return Err(own("an inode of the file system's own"));
        }
        let inode = self.get(store, ino)?;
        if inode.flags().contains(InodeFlags::EA_INODE) {
            Err(own("the value of an attribute"))
        } else {
            Ok(inode)
        }
    }

    /// The inode with this number; loads it if need be.
    ///
    /// # Errors
    /// `Stale` if it is not in use, [`Error::BadInode`] if it is damaged; errors of the device.
    pub(crate) fn get(&self, store: &Store, ino: u32) -> Result<Arc<Inode>> {
        self.inodes.get_or_load(key(ino), || {
            if self.inodes.estimated_bytes(key(ino)) > self.relieve_at.load(Ordering::Relaxed) {
                store.alarm.relieve();
            }
            Inode::load(store, ino)
        })
    }

    /// Puts a new inode, whose number no other thread can know yet, into the table.
    ///
    /// # Errors
    /// [`Error::BadInode`] if it is in memory: the image has an inode in use as free.
    pub(crate) fn insert_new(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.inodes.insert_first(inode) {
            Ok(())
        } else {
            Err(Error::BadInode {
                ino: inode.ino,
                reason: "in use, but free in its bitmap".into(),
            })
        }
    }

    /// Takes a deleted inode out.
    pub(crate) fn remove(&self, inode: &Inode) {
        self.inodes.remove(inode);
    }
}
