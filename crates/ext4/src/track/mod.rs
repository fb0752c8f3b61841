//! Changes of the running transaction, recorded for the next fast commit.
//!
//! Every change passes one of a few places: an inode is stored, a map or a directory changes, an
//! inode is allocated or freed, an orphan is added or removed. Each of them calls the [`Tracker`],
//! which records the change, or makes the transaction one that only a whole commit can make durable
//! ([`CommitReason`]). The writer of fast commits takes the [records](Tracker::with).

mod records;

use std::ops::Range as Blocks;

use sapwood_ext4_format::{InodeFlags, special_ino};
use sapwood_jbd2::{Handle, Tid};
use sapwood_vfs::FileKind;

use crate::FastCommits;
use crate::commit_reason::CommitReason;
use crate::lock::{Rank, RankedMutex};
use records::Records;
pub(crate) use records::{Name, Naming, Range, Record, Taken, WRITTEN_MAX};

/// Flags of files that fast commits leave alone.
const SPECIAL: InodeFlags = InodeFlags::JOURNAL_DATA
    .union(InodeFlags::EA_INODE)
    .union(InodeFlags::ENCRYPT)
    .union(InodeFlags::VERITY)
    .union(InodeFlags::CASEFOLD);

/// The records of a mount. A method that takes a handle belongs to a change in that handle.
pub(crate) struct Tracker {
    mode: FastCommits,
    /// First inode that is not reserved.
    first_ino: u32,
    records: RankedMutex<Records>,
}

impl Tracker {
    /// No records; none ever if fast commits are off.
    pub(crate) fn new(mode: FastCommits, first_ino: u32) -> Self {
        Self {
            mode,
            first_ino,
            records: RankedMutex::new(Rank::Leaf, Records::default()),
        }
    }

    /// Whether fast commits are written.
    pub(crate) fn enabled(&self) -> bool {
        self.mode != FastCommits::Off
    }

    /// Whether only records are written that every implementation replays correctly.
    pub(crate) fn careful(&self) -> bool {
        self.mode == FastCommits::Careful
    }

    /// The records of this transaction.
    pub(crate) fn with<R>(&self, tid: Tid, what: impl FnOnce(&mut Records) -> R) -> R {
        what(self.records.lock().of(tid))
    }

    /// Records that only a whole commit makes this handle's transaction durable.
    pub(crate) fn whole(&self, h: &Handle, reason: CommitReason) {
        if self.enabled() {
            h.require_whole(reason.number());
        }
    }

    /// Whether a fast commit may need records of this handle's transaction.
    pub(crate) fn wanted(&self, h: &Handle) -> bool {
        self.enabled() && !h.requires_whole()
    }

    /// Makes a record, unless it is obsolete. `what` returns false if a fast commit cannot express
    /// it.
    fn record(&self, h: &Handle, reason: CommitReason, what: impl FnOnce(&mut Records) -> bool) {
        if self.wanted(h) && !self.with(h.tid(), what) {
            h.require_whole(reason.number());
        }
    }

    /// Records that an inode was stored. `attribute_blocks`: its block count has blocks of
    /// attributes. The kernel's replay (6.18) counts the blocks of the map alone, and leaves an
    /// inode that `e2fsck` finds wrong.
    pub(crate) fn stored(
        &self,
        h: &Handle,
        (ino, kind): (u32, FileKind),
        flags: InodeFlags,
        attribute_blocks: bool,
    ) {
        let reserved = ino < self.first_ino && ino != special_ino::ROOT;
        let regular = kind == FileKind::Regular;
        // The kernel and e2fsck take the 60 bytes of every inode of a fast commit for a tree of
        // extents.
        let other = !regular && kind != FileKind::Directory;
        if reserved || other || flags.intersects(SPECIAL) {
            self.whole(h, CommitReason::SpecialFile);
        } else if flags.contains(InodeFlags::INLINE_DATA) {
            self.whole(h, CommitReason::Inline);
        } else if regular && !flags.contains(InodeFlags::EXTENTS) {
            self.whole(h, CommitReason::BlockMap);
        } else if regular && attribute_blocks {
            self.whole(h, CommitReason::Xattrs);
        }
        self.record(h, CommitReason::TooMany, |records| {
            records.stored(ino);
            true
        });
    }

    /// Records that data which the device may still have in its cache belongs to a file from now
    /// on.
    pub(crate) fn data_written(&self, h: &Handle) {
        self.record(h, CommitReason::TooMany, |records| {
            records.data_written();
            true
        });
    }

    /// Records that blocks were added to the map of an inode, or became written.
    pub(crate) fn added(
        &self,
        h: &Handle,
        (ino, kind): (u32, FileKind),
        (logical, physical, len): (u64, u64, u64),
        written: bool,
    ) {
        match kind {
            FileKind::Regular => {}
            FileKind::Directory => return self.whole(h, CommitReason::Directory),
            _ => return self.whole(h, CommitReason::LongLink),
        }
        let mut at = 0;
        self.record(h, CommitReason::TooMany, |records| {
            while at < len {
                let step = (len - at).min(Range::MOST.into());
                let range = Range {
                    ino,
                    logical: logical + at,
                    len: step as u32,
                    physical: physical + at,
                    written,
                };
                if !records.add(Record::Add(range)) {
                    return false;
                }
                at += step;
            }
            if written {
                records.data_written();
            }
            true
        });
    }

    /// Records that these blocks were removed from the map of an inode that has a name.
    pub(crate) fn removed(&self, h: &Handle, ino: u32, kind: FileKind, blocks: Blocks<u64>) {
        if kind != FileKind::Regular {
            return self.whole(h, CommitReason::Directory);
        }
        self.record(h, CommitReason::TooMany, |records| {
            records.add(Record::Remove {
                ino,
                logical: blocks.start,
                len: blocks.end - blocks.start,
            })
        });
    }

    /// Records that the map of an inode that has a name lost all its blocks.
    pub(crate) fn emptied(&self, h: &Handle) {
        if self.careful() {
            self.whole(h, CommitReason::Emptied);
        }
    }

    /// Records that a name in the directory `dir` leads to an inode.
    pub(crate) fn named(&self, h: &Handle, dir: u32, name: &[u8], ino: u32) {
        self.record(h, CommitReason::TooMany, |records| {
            records.stored(dir);
            records.add_name(Name {
                parent: dir,
                ino,
                name: name.to_vec(),
            })
        });
    }

    /// Records that a name of an inode was removed from the directory `dir`.
    pub(crate) fn unnamed(&self, h: &Handle, dir: u32, name: &[u8], ino: u32) {
        self.record(h, CommitReason::TooMany, |records| {
            records.stored(dir);
            records.add(Record::Name {
                name: Name {
                    parent: dir,
                    ino,
                    name: name.to_vec(),
                },
                how: Naming::Unlink,
            })
        });
    }

    /// Records that a free inode was allocated. `old_xattrs`: its place in the table still has
    /// attributes of the inode before. The kernel's recovery gets only the fields, and would keep
    /// those attributes.
    pub(crate) fn created(&self, h: &Handle, ino: u32, old_xattrs: bool) {
        if old_xattrs {
            self.whole(h, CommitReason::Xattrs);
        }
        self.record(h, CommitReason::InodeReused, |records| records.created(ino));
    }

    /// Records that an inode was freed.
    pub(crate) fn freed(&self, h: &Handle, ino: u32) {
        self.record(h, CommitReason::TooMany, |records| {
            records.freed(ino);
            true
        });
    }

    /// Records that an inode became an orphan.
    pub(crate) fn orphan_added(&self, h: &Handle, ino: u32) {
        self.record(h, CommitReason::TooMany, |records| {
            records.orphan_added(ino);
            true
        });
    }

    /// Records that an inode is no orphan any more. A recovery begins with the list as it was
    /// before the transaction, and could not follow it if an inode on it were changed. An inode
    /// without a name needs no record: the removal of its last name is one.
    pub(crate) fn orphan_removed(&self, h: &Handle, ino: u32, linked: bool) {
        self.record(h, CommitReason::Orphan, |records| {
            records.orphan_removed(ino) || !linked
        });
    }
}
