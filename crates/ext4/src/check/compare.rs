//! Compares bitmaps and counts with the findings of the other passes.

use std::sync::Arc;

use sapwood_ext4_format::{BitmapKind, GroupFlags, bitmap, dir_type};

use super::finding::Finding;
use super::report::{CheckError, Phase};
use super::state::{Check, View};

/// Sums over the groups.
#[derive(Debug, Default)]
struct Sums {
    free_clusters: u64,
    free_inodes: u64,
}

/// A run of bits in which a bitmap is wrong.
struct Difference {
    first: u32,
    count: u32,
    /// True: in use, but free in the bitmap. False: the reverse.
    unmarked: bool,
}

impl Check<'_> {
    /// Compares bitmaps and counts of all groups, then the superblock's sums.
    pub(super) fn compare(&mut self) -> Result<(), CheckError> {
        let view = Arc::clone(&self.view);
        let mut sums = Sums::default();
        for group in 0..view.geometry.group_count() {
            self.tell(Phase::Compare, group)?;
            self.blocks_of(&view, group, &mut sums);
            self.inodes_of(&view, group, &mut sums);
        }
        let ratio = view.geometry.cluster_ratio_bits();
        let counts = &mut self.report.stats;
        counts.free_blocks = sums.free_clusters << ratio;
        counts.free_inodes = sums.free_inodes;
        let (blocks, inodes) = (counts.free_blocks, counts.free_inodes);
        // These two are not updated while the file system is mounted.
        if self.recovered || self.incomplete {
            return Ok(());
        }
        let found = view.sb.free_blocks_count();
        if found != blocks {
            self.found(Finding::SuperFreeBlocks {
                found,
                expected: blocks,
            });
        }
        let found = u64::from(view.sb.free_inodes_count.get());
        if found != inodes {
            self.found(Finding::SuperFreeInodes {
                found,
                expected: inodes,
            });
        }
        Ok(())
    }

    /// The correct block bitmap of a group.
    fn wanted_blocks(&self, group: u32, only_system: bool) -> Vec<u8> {
        let mut bits = vec![0; self.view.geometry.block_size() as usize];
        let used = self.used.group(group).filter(|_| !only_system);
        for words in [self.system.group(group), used].into_iter().flatten() {
            for (place, word) in bits.chunks_exact_mut(8).zip(words) {
                for (byte, more) in place.iter_mut().zip(word.to_le_bytes()) {
                    *byte |= more;
                }
            }
        }
        bits
    }

    fn blocks_of(&mut self, view: &View, group: u32, sums: &mut Sums) {
        let geometry = &view.geometry;
        let clusters = geometry.group_clusters(group);
        let wanted = self.wanted_blocks(group, false);
        let free = bitmap::count_zero(&wanted, 0, clusters);
        sums.free_clusters += u64::from(free);
        let Some(known) = self.groups.get(group as usize) else {
            return;
        };
        let (desc, located, sealed) = (known.desc.clone(), known.located, known.sealed);
        if !located {
            return;
        }
        let uninit = desc.flags().contains(GroupFlags::BLOCK_UNINIT) && sealed;
        let bits = if uninit && geometry.features().group_csum() {
            Some(self.wanted_blocks(group, true))
        } else {
            self.bitmap(view, group, BitmapKind::Block)
        };
        let Some(bits) = bits else {
            return;
        };
        let ratio = geometry.cluster_ratio_bits();
        let start = geometry.group_first_block(group).unwrap_or_default();
        let mut seen = false;
        for difference in differences(&wanted, &bits, clusters) {
            let block = start + (u64::from(difference.first) << ratio);
            let count = u64::from(difference.count) << ratio;
            seen = true;
            if difference.unmarked {
                self.found(Finding::BlocksNotMarked {
                    group,
                    block,
                    count,
                });
            } else if !self.incomplete {
                self.found(Finding::BlocksNotUsed {
                    group,
                    block,
                    count,
                });
            }
        }
        let found = desc.free_clusters();
        if found != free && !(self.incomplete && seen) {
            self.found(Finding::GroupFreeBlocks {
                group,
                found,
                expected: free,
            });
        }
    }

    /// A bitmap from the device; checks checksum and padding.
    fn bitmap(&mut self, view: &View, group: u32, kind: BitmapKind) -> Option<Vec<u8>> {
        let desc = self.groups.get(group as usize)?.desc.clone();
        let (block, bits) = match kind {
            BitmapKind::Block => (desc.block_bitmap(), view.geometry.group_clusters(group)),
            BitmapKind::Inode => (desc.inode_bitmap(), view.geometry.inodes_per_group()),
        };
        let bytes = match view.block(block) {
            Ok(bytes) => bytes,
            Err(finding) => {
                self.found(finding);
                return None;
            }
        };
        if let Err(error) = bitmap::verify_bitmap(kind, &bytes, group, &desc, &view.geometry) {
            self.found(Finding::BitmapChecksum { group, kind, error });
        }
        let all = view.geometry.block_size().saturating_mul(8);
        if bitmap::find_next_zero(&bytes, bits, all).is_some_and(|bit| bit < all) {
            self.found(Finding::BitmapPadding { group, kind });
        }
        Some(bytes)
    }

    fn inodes_of(&mut self, view: &View, group: u32, sums: &mut Sums) {
        let geometry = &view.geometry;
        let count = geometry.inodes_per_group();
        let mut wanted = vec![0; geometry.block_size() as usize];
        let mut directories = 0;
        for (index, note) in (0_u32..).zip(self.inodes.group(group)) {
            if note.in_use {
                bitmap::set_bit(&mut wanted, index);
                directories += u32::from(note.kind == dir_type::DIRECTORY);
            }
        }
        let free = bitmap::count_zero(&wanted, 0, count);
        sums.free_inodes += u64::from(free);
        let Some(known) = self.groups.get(group as usize) else {
            return;
        };
        let (desc, located, sealed) = (known.desc.clone(), known.located, known.sealed);
        if !located {
            return;
        }
        let uninit = desc.flags().contains(GroupFlags::INODE_UNINIT) && sealed;
        let bits = if uninit && geometry.features().group_csum() {
            Some(vec![0; wanted.len()])
        } else {
            self.bitmap(view, group, BitmapKind::Inode)
        };
        if let Some(bits) = bits {
            self.inode_differences(view, group, &wanted, &bits);
        }
        let found = desc.free_inodes();
        if found != free {
            self.found(Finding::GroupFreeInodes {
                group,
                found,
                expected: free,
            });
        }
        let found = desc.used_dirs();
        if found != directories {
            self.found(Finding::GroupDirectories {
                group,
                found,
                expected: directories,
            });
        }
    }

    fn inode_differences(&mut self, view: &View, group: u32, wanted: &[u8], bits: &[u8]) {
        if self.tables_incomplete {
            return;
        }
        for difference in differences(wanted, bits, view.geometry.inodes_per_group()) {
            let Some(ino) = view.geometry.ino(group, difference.first) else {
                continue;
            };
            let count = difference.count;
            self.found(if difference.unmarked {
                Finding::InodesNotMarked { group, ino, count }
            } else {
                Finding::InodesNotUsed { group, ino, count }
            });
        }
    }
}

/// Runs of bits in which two bitmaps differ.
fn differences(wanted: &[u8], found: &[u8], bits: u32) -> Vec<Difference> {
    let mut runs: Vec<Difference> = Vec::new();
    for (at, (want, have)) in (0_u32..).zip(wanted.iter().zip(found)) {
        if want == have {
            continue;
        }
        for bit in at.saturating_mul(8)..at.saturating_mul(8).saturating_add(8).min(bits) {
            let unmarked = bitmap::test_bit(wanted, bit);
            if unmarked == bitmap::test_bit(found, bit) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.unmarked == unmarked && run.first + run.count == bit => {
                    run.count += 1;
                }
                _ => runs.push(Difference {
                    first: bit,
                    count: 1,
                    unmarked,
                }),
            }
        }
    }
    runs
}
