//! Blocks of directories, and names to inodes.

use std::ops::ControlFlow;

use sapwood_ext4_format::Inode;
use sapwood_vfs::Ino;

use super::dir;
use super::files::Files;
use crate::name_index::Known;

/// Fewest blocks of a directory whose names are indexed.
const INDEXED: u32 = 8;

impl Files {
    /// Calls `each` for the blocks of a directory from a block on, until it breaks.
    pub(super) fn each_block(
        &self,
        ino: u32,
        inode: &Inode,
        from: u32,
        each: &mut dyn FnMut(u32, dir::Listed) -> ControlFlow<()>,
    ) {
        let mut number = from;
        while number < dir::blocks(&self.volume, inode) {
            let (listed, further) = dir::list(&self.volume, ino, inode, number);
            if !listed.whole {
                self.damaged.lock().insert(ino);
            }
            if each(number, listed).is_break() {
                return;
            }
            number = number.saturating_add(1).saturating_add(further);
        }
    }

    /// The inode of a name that the directory itself has.
    pub(super) fn own_find(&self, dir: Ino, name: &[u8]) -> Option<u32> {
        let (ino, inode) = self.directory(dir).ok()??;
        let search = |from| self.search(ino, &inode, from, name);
        if dir::blocks(&self.volume, &inode) < INDEXED {
            return search(0).map(|(_, found)| found);
        }
        let known = self.names.find(ino.into(), name, |add| {
            self.each_block(ino, &inode, 0, &mut |number, listed| {
                for entry in &listed.entries {
                    add(&entry.name, number.into());
                }
                ControlFlow::Continue(())
            });
        });
        let from = match known {
            Known::Absent => return None,
            Known::At(block) | Known::After(block) => u32::try_from(block).unwrap_or(0),
        };
        let before = || (from > 0).then(|| search(0)).flatten();
        let (block, found) = search(from).or_else(before)?;
        self.names.found(ino.into(), block.into());
        Some(found)
    }

    /// Block and inode of the first entry with a name, from a block on.
    fn search(&self, ino: u32, inode: &Inode, from: u32, name: &[u8]) -> Option<(u32, u32)> {
        let mut found = None;
        self.each_block(ino, inode, from, &mut |number, listed| {
            let entry = listed.entries.into_iter().find(|entry| entry.name == name);
            found = entry.map(|entry| (number, entry.ino));
            found.map_or(ControlFlow::Continue(()), |_| ControlFlow::Break(()))
        });
        found
    }
}
