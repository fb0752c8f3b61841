//! Blocks side by side for the small files of one piece of work, so that one request writes them.
//!
//! The first file of a group takes what the following files of that group will want, too. Each of
//! them gets the next blocks of this stretch. What is left goes back to the group.

use std::sync::Arc;

use super::work::Taken;
use crate::block_alloc::{self, Extent};
use crate::file_data::InFlight;
use crate::store::Store;

/// Blocks up to which a file takes part. The allocator places small files alike.
const SMALL: u32 = 16;

/// The blocks that a piece of work has taken and not given to a file.
pub(super) struct Stretch<'a> {
    store: &'a Store,
    /// Delayed blocks of the small files that are still to be planned, by group of their inodes.
    wanted: Vec<(u32, u32)>,
    /// The next file.
    at: usize,
    left: Extent,
    /// The group that `left` was taken for.
    group: u32,
}

impl<'a> Stretch<'a> {
    /// For the files of a piece of work, in this order.
    pub(super) fn new(store: &'a Store, taken: &[Taken]) -> Self {
        let small = |io: &Arc<InFlight>| {
            let delayed = u32::try_from(io.delayed).unwrap_or(u32::MAX);
            if delayed <= SMALL { delayed } else { 0 }
        };
        let group = |ino| {
            store
                .geometry
                .inode_location(ino)
                .map_or(0, |found| found.0)
        };
        let wanted = match taken.len() {
            0 | 1 => Vec::new(),
            _ => taken
                .iter()
                .map(|(inode, io)| (group(inode.ino), small(io)))
                .collect(),
        };
        Self {
            store,
            wanted,
            at: 0,
            left: Extent { start: 0, len: 0 },
            group: 0,
        }
    }

    /// The next range of the piece of work is being planned.
    pub(super) fn next(&mut self) {
        self.at += 1;
    }

    /// Blocks for the range that is being planned, if it is small; `goal` is where they had best
    /// be.
    pub(super) fn take(&mut self, goal: u64, want: u32) -> Option<Extent> {
        let rest = self.wanted.get(self.at.checked_sub(1)?..)?;
        let (group, delayed) = *rest.first()?;
        if want > delayed {
            return None;
        }
        if self.left.len < want || self.group != group {
            let same = rest.iter().take_while(|(other, _)| *other == group);
            let all = same.map(|(_, delayed)| *delayed).sum();
            self.give_back();
            self.left = block_alloc::allocate_stretch(&self.store.groups, goal, all).ok()?;
            self.group = group;
        }
        let extent = Extent {
            start: self.left.start,
            len: want,
        };
        if self.left.len < want {
            return None;
        }
        self.left.start += u64::from(want);
        self.left.len -= want;
        Some(extent)
    }

    fn give_back(&mut self) {
        if self.left.len > 0 {
            block_alloc::cancel(&self.store.groups, self.left);
        }
        self.left.len = 0;
    }
}

impl Drop for Stretch<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}
