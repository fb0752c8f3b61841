//! The number of names of all inodes that were touched.

use sapwood_btrfs_format::{Key, inode_extrefs, inode_refs, kind};

use super::Replay;
use super::entries::is_dir;
use crate::namespace::orphan;
use crate::{Error, Result};

impl Replay<'_> {
    /// Sets the link counts right, and makes orphans of inodes without a name. Emptying a
    /// directory that is one touches others; the last inode comes first, so a tree of them goes
    /// from its newest part.
    pub(super) fn count_links(&mut self) -> Result<()> {
        while let Some(inode) = self.touched.pop_last() {
            self.count(inode)?;
        }
        Ok(())
    }

    fn count(&mut self, inode: u64) -> Result<()> {
        let Some(item) = self.inode_item(inode)? else {
            return Ok(());
        };
        let mut names = self.names_of(inode)?;
        if is_dir(&item) && names.len() > 1 {
            names = self.keep_logged(inode, names)?;
        }
        let links = u32::try_from(names.len()).unwrap_or(u32::MAX);
        if links != item.nlink.get() && !sapwood_fault::planted(30) {
            self.change_inode(inode, |item| item.nlink = links.into())?;
        }
        if links > 0 {
            return orphan::remove(self.h, self.root, inode);
        }
        if is_dir(&item) {
            self.empty(inode)?;
        }
        if sapwood_fault::planted(31) {
            return Ok(());
        }
        orphan::add(self.h, self.root, inode)
    }

    /// All names of an inode, as directory and name.
    pub(super) fn names_of(&self, inode: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut names = Vec::new();
        let mut cursor = self
            .root
            .seek(&self.store, &Key::new(inode, kind::INODE_REF, 0))?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != inode || key.kind > kind::INODE_EXTREF {
                break;
            }
            let bad = |source| self.bad_item(key, source);
            if key.kind == kind::INODE_REF {
                for entry in inode_refs(data) {
                    names.push((key.offset, entry.map_err(bad)?.name.to_vec()));
                }
            } else {
                for entry in inode_extrefs(data) {
                    let entry = entry.map_err(bad)?;
                    names.push((entry.parent, entry.name.to_vec()));
                }
            }
            cursor.next()?;
        }
        Ok(names)
    }

    /// A directory has one name. If it was moved, and the directory where it was is not in the
    /// log, the name in the log is the newer one.
    fn keep_logged(&mut self, dir: u64, names: Vec<(u64, Vec<u8>)>) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut kept = Vec::new();
        for (parent, name) in names {
            if self.log.find_ref(dir, parent, &name)?.is_some() {
                kept.push((parent, name));
            } else {
                self.unlink(parent, &name, dir)?;
            }
        }
        self.touched.remove(&dir);
        match kept.len() {
            1 => Ok(kept),
            _ => Err(Error::LogNames {
                subvolume: self.root.id(),
                directory: dir,
            }),
        }
    }

    /// Takes all entries out of a directory that has no name itself.
    fn empty(&mut self, dir: u64) -> Result<()> {
        for (_, entry) in self.entries(dir, 0, u64::MAX)? {
            let Some(inode) = entry.inode() else {
                return Err(Error::LogNames {
                    subvolume: self.root.id(),
                    directory: dir,
                });
            };
            self.unlink(dir, &entry.name, inode)?;
        }
        Ok(())
    }
}
