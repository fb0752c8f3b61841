//! Names to inodes.

use std::mem;
use std::ops::ControlFlow;

use sapwood_btrfs_format::{Key, dir_items, kind, name_hash};
use sapwood_vfs::{DirEntry, Error, Ino, Result};

use super::files::{END, Files};
use super::items::item;
use super::orphans::FIRST;
use crate::name_index::Known;
use crate::tree::Tree;

impl Files {
    /// The inode of a name: by its hash, else by listing the directory.
    pub(super) fn find_name(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let (sub, number) = self.of(dir);
        let key = Key::new(number, kind::DIR_ITEM, name_hash(name).into());
        if number >= FIRST
            && let Some(data) = item(&self.nodes, &sub.leaves, key)
        {
            let mut entries = dir_items(&data).flatten();
            let found = entries.find(|entry| entry.name == name);
            if let Some(entry) = found
                && let Some(ino) = self.target(&sub, number, name, entry.location)
            {
                return Ok(ino);
            }
        }
        let known = self.names.find(dir.0, name, |add| {
            // The directory's damage is the error of a search below.
            let _ = self.each_entry(dir, 0, &mut |at, entry| {
                add(&entry.name, at);
                ControlFlow::Continue(())
            });
        });
        let found = match known {
            Known::Absent => self.search(dir, END, name)?,
            Known::At(0) | Known::After(0) => self.search(dir, 0, name)?,
            Known::At(at) | Known::After(at) => match self.search(dir, at, name) {
                Ok(Some(found)) => Some(found),
                _ => self.search(dir, 0, name)?,
            },
        };
        let (at, ino) = found.ok_or(Error::NotFound)?;
        self.names.found(dir.0, at);
        Ok(ino)
    }

    /// Position and inode of the first entry with a name, from a position on.
    ///
    /// # Errors
    /// `NotDirectory`; the directory's damage, if the name is not found.
    fn search(&self, dir: Ino, from: u64, name: &[u8]) -> Result<Option<(u64, Ino)>> {
        let mut found = None;
        let listed = self.each_entry(dir, from, &mut |at, entry| {
            if entry.name == name {
                found = Some((at, entry.ino));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        match found {
            Some(found) => Ok(Some(found)),
            None => listed.map(|()| None),
        }
    }

    /// Calls `each` for the entries of a directory from a position on, with their positions, until
    /// it breaks.
    ///
    /// # Errors
    /// `NotDirectory`; the directory's damage, after the last entry.
    fn each_entry(
        &self,
        dir: Ino,
        mut from: u64,
        each: &mut dyn FnMut(u64, DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        loop {
            let (before, mut broken) = (from, false);
            let listed = self.entries(dir, from, &mut |entry| {
                let at = mem::replace(&mut from, entry.next);
                let flow = each(at, entry);
                broken = flow.is_break();
                flow
            });
            if broken || from == before {
                return listed;
            }
        }
    }
}
