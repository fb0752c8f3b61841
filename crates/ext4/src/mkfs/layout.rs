//! Locations of bitmaps and inode tables, and the blocks in use.
//!
//! With flex groups the bitmaps of all groups of one flex group are contiguous at its front,
//! followed by the tables. A table that would overlap a copy of the superblock begins after it.
//! Without flex groups, each group has its own bitmaps and table at its front.

use sapwood_base::RangeSet;
use sapwood_ext4_format::Geometry;

use super::error::MkfsError;

/// Locations of a group's metadata, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupPlace {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
}

/// Contiguous blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) len: u64,
}

/// Locations of metadata, and the blocks in use.
pub(super) struct Layout {
    pub(super) geometry: Geometry,
    pub(super) places: Vec<GroupPlace>,
    used: RangeSet,
    /// Blocks that belong to no file: superblocks, descriptors, bitmaps, tables.
    pub(super) overhead: u64,
}

impl Layout {
    /// Allocates the blocks of all metadata.
    ///
    /// # Errors
    /// [`MkfsError::TooSmall`].
    pub(super) fn new(geometry: &Geometry) -> Result<Self, MkfsError> {
        let count = geometry.group_count();
        let mut layout = Self {
            geometry: geometry.clone(),
            places: vec![GroupPlace::default(); count as usize],
            used: RangeSet::new(),
            overhead: 0,
        };
        for group in 0..count {
            let first = geometry.group_first_block(group)?;
            let fixed = u64::from(geometry.fixed_blocks(group));
            layout.used.insert(first, first + fixed);
        }
        let size = geometry.flex_size();
        let mut first = 0;
        while first < count {
            let end = first.saturating_add(size).min(count);
            layout.place_flex(first, end, size)?;
            first = end;
        }
        layout.overhead = layout.used.bytes() + u64::from(geometry.first_data_block());
        Ok(layout)
    }

    /// Places the metadata of the groups from `first` to before `end`.
    fn place_flex(&mut self, first: u32, end: u32, size: u32) -> Result<(), MkfsError> {
        let groups = end - first;
        // A group alone in its flex group leaves room for the others.
        let room = u64::from(if groups == 1 { size } else { groups });
        let table_blocks = u64::from(self.geometry.inode_table_blocks());
        let from = self.geometry.group_first_block(first)?;
        let last = end - 1;
        let limit =
            self.geometry.group_first_block(last)? + u64::from(self.geometry.group_blocks(last));
        let front = self.find(from, limit, 1)?;
        let mut table_at = front + 2 * room;
        for (n, group) in (first..end).enumerate() {
            let n = n as u64;
            let block_bitmap = self.claim(front + n, from, limit, 1)?;
            let inode_bitmap = self.claim(front + room + n, from, limit, 1)?;
            let inode_table = self.claim(table_at, from, limit, table_blocks)?;
            table_at = inode_table + table_blocks;
            self.places[group as usize] = GroupPlace {
                block_bitmap,
                inode_bitmap,
                inode_table,
            };
        }
        Ok(())
    }

    /// Allocates a run at `at` or the next location with room, otherwise from `from` on, otherwise
    /// anywhere.
    fn claim(&mut self, at: u64, from: u64, limit: u64, len: u64) -> Result<u64, MkfsError> {
        let start = self
            .find(at, limit, len)
            .or_else(|_| self.find(from, limit, len))
            .or_else(|_| self.find(from, self.geometry.blocks_count(), len))
            .or_else(|_| self.find(0, self.geometry.blocks_count(), len))?;
        self.used.insert(start, start + len);
        Ok(start)
    }

    /// First free run of `len` blocks from `from` on that ends before `limit`.
    fn find(&self, from: u64, limit: u64, len: u64) -> Result<u64, MkfsError> {
        let from = from.max(u64::from(self.geometry.first_data_block()));
        let step = u64::from(self.geometry.blocks_per_group());
        let mut at = from;
        // Piece by piece, so that the search ends where there is room. Pieces overlap by the
        // length.
        while at < limit {
            let end = at.saturating_add(step.max(2 * len)).min(limit);
            let gaps = self.used.gaps(at, end);
            if let Some((start, _)) = gaps.iter().find(|(start, end)| end - start >= len) {
                return Ok(*start);
            }
            if end == limit {
                break;
            }
            at = end.saturating_sub(len - 1).max(at + 1);
        }
        Err(self.full())
    }

    /// The error for too few blocks.
    pub(super) fn full(&self) -> MkfsError {
        MkfsError::TooSmall {
            blocks: self.geometry.blocks_count(),
            block_size: self.geometry.block_size(),
        }
    }

    /// Allocates `count` blocks: the first free ones from `goal` on, then from the front.
    ///
    /// # Errors
    /// [`MkfsError::TooSmall`].
    pub(super) fn take(&mut self, goal: u64, count: u64) -> Result<Vec<Run>, MkfsError> {
        let first = u64::from(self.geometry.first_data_block());
        let (limit, goal) = (self.geometry.blocks_count(), goal.max(first));
        let step = u64::from(self.geometry.blocks_per_group());
        let mut runs: Vec<Run> = Vec::new();
        let mut left = count;
        for (from, to) in [(goal, limit), (first, goal)] {
            let mut at = from;
            while at < to && left > 0 {
                let end = at.saturating_add(step).min(to);
                for (start, end) in self.used.gaps(at, end) {
                    let len = left.min(end - start);
                    if len == 0 {
                        break;
                    }
                    match runs.last_mut() {
                        Some(run) if run.start + run.len == start => run.len += len,
                        _ => runs.push(Run { start, len }),
                    }
                    left -= len;
                }
                at = end;
            }
        }
        if left > 0 {
            return Err(self.full());
        }
        for run in &runs {
            self.used.insert(run.start, run.start + run.len);
        }
        Ok(runs)
    }

    /// Blocks in use within a group, as ranges of blocks of the file system.
    ///
    /// # Errors
    /// There is no such group.
    pub(super) fn used_in(&self, group: u32) -> Result<Vec<(u64, u64)>, MkfsError> {
        let first = self.geometry.group_first_block(group)?;
        let end = first + u64::from(self.geometry.group_blocks(group));
        Ok(self.used.within(first, end))
    }

    /// Free blocks of a group.
    ///
    /// # Errors
    /// There is no such group.
    pub(super) fn free_in(&self, group: u32) -> Result<u32, MkfsError> {
        let used: u64 = self
            .used_in(group)?
            .iter()
            .map(|(from, to)| to - from)
            .sum();
        // At most the blocks of a group.
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        Ok(self.geometry.group_blocks(group).saturating_sub(used))
    }

    /// First block of the group where the search for blocks of an inode of group 0 begins.
    pub(super) fn inode_goal(&self) -> u64 {
        u64::from(self.geometry.first_data_block())
    }

    /// Location of the journal: the emptiest of the groups in the middle. With more groups than a
    /// flex group has, these are the first group with room in the middle flex group, and the next
    /// one.
    ///
    /// # Errors
    /// None for a valid geometry.
    pub(super) fn journal_goal(&self) -> Result<u64, MkfsError> {
        let geometry = &self.geometry;
        let span = geometry.blocks_count() - u64::from(geometry.first_data_block());
        let (middle, _) = geometry.group_of_block(span / 2)?;
        let size = geometry.flex_size();
        let (from, to) = if size > 1 && middle > size {
            let mut first = middle - middle % size;
            while first < geometry.group_count() && self.free_in(first)? == 0 {
                first += 1;
            }
            let first = if first < geometry.group_count() {
                first
            } else {
                0
            };
            (first, first + 1)
        } else {
            (middle.saturating_sub(1), middle + 1)
        };
        let mut best = (from, self.free_in(from)?);
        for group in from + 1..=to.min(geometry.group_count() - 1) {
            let free = self.free_in(group)?;
            if free > best.1 {
                best = (group, free);
            }
        }
        Ok(geometry.group_first_block(best.0)?)
    }
}
