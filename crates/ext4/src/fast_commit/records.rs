//! What changed in the running transaction since its last fast commit.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_jbd2::Tid;

use super::area::{Name, Naming, Range};
use crate::FastCommits;
use crate::lock::{Rank, RankedMutex};

/// Changes of one transaction that are kept at most.
const MOST: usize = 1 << 14;

/// A change, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// Blocks came to a file, or became written.
    Add(Range),
    /// Blocks left a file, or there are none.
    Remove { ino: u32, logical: u64, len: u64 },
    /// A name came or went.
    Name { name: Name, how: Naming },
}

impl Record {
    pub(super) fn ino(&self) -> u32 {
        match self {
            Self::Add(range) => range.ino,
            Self::Remove { ino, .. } => *ino,
            Self::Name { name, .. } => name.ino,
        }
    }

    /// Takes up what comes right behind, if one record can say both.
    fn absorb(&mut self, next: &Self) -> bool {
        match (self, next) {
            (Self::Add(have), Self::Add(more)) => {
                let behind = have.logical + u64::from(have.len) == more.logical
                    && have.physical + u64::from(have.len) == more.physical;
                let same = have.ino == more.ino && have.written == more.written;
                if behind && same && have.len + more.len <= Range::MOST {
                    have.len += more.len;
                    return true;
                }
                have == more
            }
            (
                Self::Remove { ino, logical, len },
                Self::Remove {
                    ino: other,
                    logical: at,
                    len: more,
                },
            ) => ino == other && *logical <= *at && at + more <= *logical + *len,
            _ => false,
        }
    }
}

/// An inode that was made in the transaction.
#[derive(Debug, Clone, Copy, Default)]
struct New {
    /// It got its first name.
    named: bool,
    /// A fast commit has it.
    told: bool,
}

/// All of one transaction.
#[derive(Debug, Default)]
pub(super) struct Records {
    tid: Tid,
    changes: Vec<Record>,
    /// Inodes that were stored, directories too.
    touched: BTreeSet<u32>,
    new: BTreeMap<u32, New>,
    freed: BTreeSet<u32>,
    orphans: BTreeSet<u32>,
    /// Data reached the device that an inode leads to now, and the device was not flushed for it.
    landed: bool,
    /// First block of the area that is free.
    pub(super) next_block: u64,
}

/// What a fast commit has to say.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) changes: Vec<Record>,
    pub(super) touched: BTreeSet<u32>,
    pub(super) landed: bool,
    pub(super) next_block: u64,
}

impl Records {
    /// Those of this transaction, which is the one of before or a newer one.
    pub(super) fn of(&mut self, tid: Tid) -> &mut Self {
        debug_assert!(tid >= self.tid, "records of an old transaction");
        if tid != self.tid {
            *self = Self {
                tid,
                ..Self::default()
            };
        }
        self
    }

    /// False: there are too many.
    pub(super) fn add(&mut self, record: Record) -> bool {
        self.touched.insert(record.ino());
        if let Some(last) = self.changes.last_mut()
            && last.absorb(&record)
        {
            return true;
        }
        if self.changes.len() >= MOST {
            return false;
        }
        self.changes.push(record);
        true
    }

    /// A name for an inode: its first one if it is new.
    pub(super) fn add_name(&mut self, name: Name) -> bool {
        let new = self.new.get_mut(&name.ino);
        let first = new.is_some_and(|new| !std::mem::replace(&mut new.named, true));
        let how = match first {
            true => Naming::Create,
            false => Naming::Link,
        };
        self.add(Record::Name { name, how })
    }

    pub(super) fn stored(&mut self, ino: u32) {
        self.touched.insert(ino);
    }

    pub(super) fn landed(&mut self) {
        self.landed = true;
    }

    /// False: the number was freed in this transaction.
    pub(super) fn created(&mut self, ino: u32) -> bool {
        self.new.insert(ino, New::default());
        !self.freed.contains(&ino)
    }

    pub(super) fn freed(&mut self, ino: u32) {
        self.freed.insert(ino);
    }

    pub(super) fn orphan_added(&mut self, ino: u32) {
        self.orphans.insert(ino);
    }

    /// False: it was one before this transaction.
    pub(super) fn orphan_removed(&mut self, ino: u32) -> bool {
        self.orphans.remove(&ino)
    }

    /// Whether something of the inode, or of names in it, is in no fast commit.
    pub(super) fn has(&self, ino: u32) -> bool {
        self.touched.contains(&ino)
    }

    /// Inodes of which something is in no fast commit.
    pub(super) fn touched(&self) -> BTreeSet<u32> {
        self.touched.clone()
    }

    /// Whether an inode that a recovery knows lost its last name. `alive`: as in [`take`](Self::take).
    pub(super) fn deletes(&self, alive: impl Fn(u32) -> bool) -> bool {
        let untold = |ino: u32| self.new.get(&ino).is_some_and(|new| !new.told);
        self.changes.iter().any(|change| {
            let ino = change.ino();
            matches!(change, Record::Name { .. }) && !alive(ino) && !untold(ino)
        })
    }

    /// Takes everything out. What is left of inodes that came and went without a fast commit is nothing. `alive`: whether an inode
    /// has a name now.
    pub(super) fn take(&mut self, alive: impl Fn(u32) -> bool) -> Taken {
        let mut changes = std::mem::take(&mut self.changes);
        let new = &mut self.new;
        let dead: BTreeSet<u32> = self
            .touched
            .iter()
            .copied()
            .filter(|ino| !alive(*ino))
            .collect();
        changes.retain(|change| {
            let ino = change.ino();
            let untold = new.get(&ino).is_some_and(|new| !new.told);
            let name = matches!(change, Record::Name { .. });
            !dead.contains(&ino) || name && !untold
        });
        for change in &changes {
            if let Some(new) = new.get_mut(&change.ino()) {
                new.told = true;
            }
        }
        let mut touched = std::mem::take(&mut self.touched);
        touched.retain(|ino| !dead.contains(ino));
        Taken {
            changes,
            touched,
            landed: std::mem::take(&mut self.landed),
            next_block: self.next_block,
        }
    }
}

/// The records of a mount.
pub(crate) struct Tracker {
    mode: FastCommits,
    records: RankedMutex<Records>,
}

impl Tracker {
    /// None yet; none ever if they are off.
    pub(crate) fn new(mode: FastCommits) -> Self {
        Self {
            mode,
            records: RankedMutex::new(Rank::Leaf, Records::default()),
        }
    }

    /// Whether fast commits are written.
    pub(crate) fn enabled(&self) -> bool {
        self.mode != FastCommits::Off
    }

    /// Whether only what all replay right is written.
    pub(crate) fn careful(&self) -> bool {
        self.mode == FastCommits::Careful
    }

    /// Those of this transaction.
    pub(super) fn with<R>(&self, tid: Tid, what: impl FnOnce(&mut Records) -> R) -> R {
        what(self.records.lock().of(tid))
    }
}
