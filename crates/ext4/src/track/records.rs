//! Changes of the running transaction since its last fast commit.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_jbd2::Tid;

/// Longest extent with written blocks; a larger length, minus this, belongs to an unwritten one.
pub(crate) const WRITTEN_MAX: u16 = 0x8000;

/// Changes of one transaction that are kept at most.
const MOST: usize = 1 << 14;

/// Blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) ino: u32,
    pub(crate) logical: u64,
    pub(crate) len: u32,
    pub(crate) physical: u64,
    pub(crate) written: bool,
}

impl Range {
    /// Blocks of one range at most, written or not.
    pub(crate) const MOST: u32 = WRITTEN_MAX as u32 - 1;
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) parent: u32,
    pub(crate) ino: u32,
    pub(crate) name: Vec<u8>,
}

/// A change of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Naming {
    /// First name of a new inode.
    Create,
    /// A further name.
    Link,
    /// The removal of a name.
    Unlink,
}

/// A change, in the order in which they were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// Blocks were added to a file, or became written.
    Add(Range),
    /// Blocks were removed from a file, or were not there.
    Remove { ino: u32, logical: u64, len: u64 },
    /// A name was added or removed.
    Name { name: Name, how: Naming },
}

impl Record {
    pub(crate) fn ino(&self) -> u32 {
        match self {
            Self::Add(range) => range.ino,
            Self::Remove { ino, .. } => *ino,
            Self::Name { name, .. } => name.ino,
        }
    }

    /// Merges the next change, if one record can express both.
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
pub(crate) struct Records {
    tid: Tid,
    changes: Vec<Record>,
    /// Inodes that were stored, directories too.
    touched: BTreeSet<u32>,
    new: BTreeMap<u32, New>,
    freed: BTreeSet<u32>,
    orphans: BTreeSet<u32>,
    /// Data reached the device that an inode leads to now, and the device was not flushed for it.
    data_written: bool,
    /// First block of the area that is free.
    pub(crate) next_block: u64,
}

/// The contents of a fast commit.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) changes: Vec<Record>,
    pub(crate) touched: BTreeSet<u32>,
    pub(crate) data_written: bool,
    pub(crate) next_block: u64,
}

impl Records {
    /// The records of this transaction, which is the current or a newer one.
    pub(crate) fn of(&mut self, tid: Tid) -> &mut Self {
        debug_assert!(tid >= self.tid, "records of an old transaction");
        if tid != self.tid {
            *self = Self {
                tid,
                ..Self::default()
            };
        }
        self
    }

    /// Adds a record. False if there are too many.
    pub(crate) fn add(&mut self, record: Record) -> bool {
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
    pub(crate) fn add_name(&mut self, name: Name) -> bool {
        let new = self.new.get_mut(&name.ino);
        let first = new.is_some_and(|new| !std::mem::replace(&mut new.named, true));
        let how = if first { Naming::Create } else { Naming::Link };
        self.add(Record::Name { name, how })
    }

    pub(crate) fn stored(&mut self, ino: u32) {
        self.touched.insert(ino);
    }

    pub(crate) fn data_written(&mut self) {
        self.data_written = true;
    }

    /// Records a new inode. False if its number was freed in this transaction.
    pub(crate) fn created(&mut self, ino: u32) -> bool {
        self.new.insert(ino, New::default());
        !self.freed.contains(&ino)
    }

    pub(crate) fn freed(&mut self, ino: u32) {
        self.freed.insert(ino);
    }

    pub(crate) fn orphan_added(&mut self, ino: u32) {
        self.orphans.insert(ino);
    }

    /// Records that an inode is no orphan any more. False if it was one before this transaction.
    pub(crate) fn orphan_removed(&mut self, ino: u32) -> bool {
        self.orphans.remove(&ino)
    }

    /// Whether something of the inode, or of names in it, is in no fast commit.
    pub(crate) fn has(&self, ino: u32) -> bool {
        self.touched.contains(&ino)
    }

    /// Inodes with changes that are in no fast commit.
    pub(crate) fn touched(&self) -> BTreeSet<u32> {
        self.touched.clone()
    }

    /// Whether an inode that a recovery knows lost its last name. `alive`: as in
    /// [`take`](Self::take).
    pub(crate) fn deletes(&self, alive: impl Fn(u32) -> bool) -> bool {
        let untold = |ino: u32| self.new.get(&ino).is_some_and(|new| !new.told);
        self.changes.iter().any(|change| {
            let ino = change.ino();
            matches!(change, Record::Name { .. }) && !alive(ino) && !untold(ino)
        })
    }

    /// Takes the records, without inodes that were created and deleted since the last fast commit.
    /// `alive`: whether an inode has a name now.
    pub(crate) fn take(&mut self, alive: impl Fn(u32) -> bool) -> Taken {
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
            data_written: std::mem::take(&mut self.data_written),
            next_block: self.next_block,
        }
    }
}
