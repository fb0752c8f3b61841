//! The inodes of the old state that become inodes of the new one.
//!
//! 1. In images with the same UUID, an inode is the same if number, generation, creation time and
//!    type agree. The creation time must have nanoseconds: it is then from a running clock, and no
//!    two inodes with the same number have the same one. An inode that is the same to the byte, and
//!    was last changed at a time of a running clock, needs no further comparison.
//! 2. Every other inode is matched by its path: a name in matching directories that leads to inodes
//!    of the same type. This finds files that a program replaced, and files of images that were
//!    built independently.
//!
//! Matched inodes get the number of the new state, others a number that the new state lacks.

use std::collections::HashMap;

use super::super::error::{Result, SendError};
use super::super::source::Tree as _;
use super::state::State;
use crate::progress::Stop;
use crate::vfs::FileKind;

/// The inodes of the old state, and the inodes of the new state that they become.
#[derive(Debug, Default)]
pub(super) struct Matches {
    /// Inodes that are the same, in ascending order: they have one number.
    same: Vec<u64>,
    /// Inodes of the new state by inodes of the old one.
    new: HashMap<u64, u64>,
    /// Inodes of the old state by inodes of the new one.
    old: HashMap<u64, u64>,
}

impl Matches {
    fn add(&mut self, old: u64, new: u64) {
        self.new.insert(old, new);
        self.old.insert(new, old);
    }

    fn is_same(&self, number: u64) -> bool {
        self.same.binary_search(&number).is_ok()
    }

    /// The inode of the new state that an inode of the old one becomes.
    pub(super) fn new_of(&self, old: u64) -> Option<u64> {
        let found = self.new.get(&old).copied();
        found.or_else(|| self.is_same(old).then_some(old))
    }

    /// The inode of the old state that becomes an inode of the new one.
    fn old_of(&self, new: u64) -> Option<u64> {
        let found = self.old.get(&new).copied();
        found.or_else(|| self.is_same(new).then_some(new))
    }

    /// The inodes of the old state that get another number, by their new numbers, in ascending
    /// order. Numbers of both states have 32 bits.
    pub(super) fn renumbered(self) -> Vec<(u32, u32)> {
        drop((self.same, self.new));
        let moved = self.old.into_iter().filter(|(new, old)| new != old);
        let mut all: Vec<(u32, u32)> = moved
            .filter_map(|(new, old)| Some((u32::try_from(new).ok()?, u32::try_from(old).ok()?)))
            .collect();
        all.sort_unstable();
        all
    }
}

struct Matching<'m, 'a> {
    old: &'m State<'a>,
    new: &'m State<'a>,
    stop: &'m Stop,
    found: Matches,
}

/// Finds for each inode of the old state its counterpart in the new one, if there is one.
pub(super) fn matched(old: &State<'_>, new: &State<'_>, stop: &Stop) -> Result<Matches> {
    let mut matching = Matching {
        old,
        new,
        stop,
        found: Matches::default(),
    };
    matching.found.add(old.top(), new.top());
    if old.is_related(new) {
        matching.by_identity()?;
    }
    matching.by_path()?;
    Ok(matching.found)
}

impl Matching<'_, '_> {
    fn check_stop(&self) -> Result<()> {
        if self.stop.is_stopped() {
            return Err(SendError::Stopped);
        }
        Ok(())
    }

    fn by_identity(&mut self) -> Result<()> {
        for number in self.new.index.numbers() {
            self.check_stop()?;
            let top = number == self.new.top() || number == self.old.top();
            if top || !self.old.index.contains(number) {
                continue;
            }
            if self.old.is_marked_as(self.new, number) {
                self.found.same.push(number);
                continue;
            }
            let (before, after) = (self.old.record(number)?, self.new.record(number)?);
            let (then, now) = (&before.inode, &after.inode);
            let same = then.generation == now.generation
                && then.otime == now.otime
                && now.otime.nsec != 0
                && then.rdev == now.rdev
                && then.kind == now.kind;
            if same
                && (before.bytes == after.bytes || self.same_target(number, number, now.kind)?)
            {
                self.found.same.push(number);
            }
        }
        Ok(())
    }

    /// Whether two symbolic links have the same target. True for everything else.
    fn same_target(&self, old: u64, new: u64, kind: FileKind) -> Result<bool> {
        Ok(kind != FileKind::Symlink || self.old.target(old)? == self.new.target(new)?)
    }

    fn by_path(&mut self) -> Result<()> {
        // Directories of the new state, with their counterparts.
        let mut waiting = vec![(self.new.top(), Some(self.old.top()))];
        while let Some((dir, old_dir)) = waiting.pop() {
            self.check_stop()?;
            for entry in self.new.entries(dir)? {
                let mut counterpart = self.found.old_of(entry.number);
                if let (Some(old_dir), None) = (old_dir, counterpart) {
                    counterpart = self.same_path(old_dir, &entry.name, entry.number)?;
                }
                if entry.kind == Some(FileKind::Directory) {
                    waiting.push((entry.number, counterpart));
                }
            }
        }
        Ok(())
    }

    /// Matches an inode of the new state with the inode that its name leads to in the old one.
    fn same_path(&mut self, old_dir: u64, name: &[u8], number: u64) -> Result<Option<u64>> {
        let found = self.old.find(old_dir, name)?;
        let Some(found) = found.filter(|found| self.found.new_of(*found).is_none()) else {
            return Ok(None);
        };
        let (then, now) = (
            self.old.record(found)?.inode,
            self.new.record(number)?.inode,
        );
        let alike = then.kind == now.kind && then.rdev == now.rdev;
        if !alike || !self.same_target(found, number, now.kind)? {
            return Ok(None);
        }
        self.found.add(found, number);
        Ok(Some(found))
    }
}
