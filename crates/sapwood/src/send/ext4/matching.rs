//! The inodes of the old state that become inodes of the new one.
//!
//! 1. In images with the same UUID, an inode is the same if number, generation, creation time and
//!    type agree. The creation time must have nanoseconds: it is then from a running clock, and no
//!    two inodes with the same number have the same one.
//! 2. Every other inode is matched by its path: a name in matching directories that leads to inodes
//!    of the same type. This finds files that a program replaced, and files of images that were
//!    built independently.
//!
//! Matched inodes get the number of the new state, others a number that the new state lacks.

use std::collections::{HashMap, HashSet};

use super::super::error::{Result, SendError};
use super::super::source::Tree as _;
use super::state::State;
use crate::progress::Stop;
use crate::vfs::FileKind;

struct Matching<'m, 'a> {
    old: &'m State<'a>,
    new: &'m State<'a>,
    stop: &'m Stop,
    /// Inodes of the new state by those of the old one.
    given: HashMap<u64, u64>,
    /// Inodes of the new state that are matched.
    taken: HashSet<u64>,
}

/// Finds for each inode of the old state its counterpart in the new one, if there is one.
pub(super) fn matched(old: &State<'_>, new: &State<'_>, stop: &Stop) -> Result<HashMap<u64, u64>> {
    let mut matching = Matching {
        old,
        new,
        stop,
        given: HashMap::new(),
        taken: HashSet::new(),
    };
    matching.add(old.top(), new.top());
    if old.is_related(new) {
        matching.by_identity()?;
    }
    matching.by_path()?;
    Ok(matching.given)
}

impl Matching<'_, '_> {
    fn add(&mut self, old: u64, new: u64) {
        self.given.insert(old, new);
        self.taken.insert(new);
    }

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
                self.add(number, number);
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
        let counterparts: HashMap<u64, u64> =
            self.given.iter().map(|(old, new)| (*new, *old)).collect();
        while let Some((dir, old_dir)) = waiting.pop() {
            self.check_stop()?;
            for entry in self.new.entries(dir)? {
                let mut counterpart = counterparts.get(&entry.number).copied();
                if let Some(old_dir) = old_dir
                    && !self.taken.contains(&entry.number)
                {
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
        let Some(found) = found.filter(|found| !self.given.contains_key(found)) else {
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
        self.add(found, number);
        Ok(Some(found))
    }
}
