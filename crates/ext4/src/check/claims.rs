//! Enters the blocks of all inodes into the set of used clusters, and finds blocks that several
//! inodes use.

use std::sync::Arc;

use sapwood_ext4_format::{Inode, RoCompat, special_ino};

use super::finding::Finding;
use super::notes::ClusterSet;
use super::state::{Check, View};
use super::walk::{self, Piece};

/// Contiguous blocks, collected one by one.
#[derive(Debug, Default)]
struct Runs {
    runs: Vec<(u64, u64)>,
}

/// Most runs of one inode that are reported.
const MOST_RUNS: usize = 100;

impl Runs {
    fn add(&mut self, block: u64) {
        if let Some((first, count)) = self.runs.last_mut() {
            let end = first.saturating_add(*count);
            if block == end {
                *count += 1;
                return;
            }
            if (*first..end).contains(&block) {
                return;
            }
        }
        if self.runs.len() < MOST_RUNS {
            self.runs.push((block, 1));
        }
    }
}

/// Space of a map.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Clusters, including the clusters of the map itself.
    pub(super) clusters: u64,
    pub(super) nodes: u64,
    /// One past the last logical block that is allocated.
    pub(super) end: u64,
    /// One past the last logical block that was written.
    pub(super) written_end: u64,
    /// Data blocks.
    pub(super) blocks: u64,
    /// Pieces do not begin at 0, or are not contiguous.
    pub(super) holes: bool,
    pub(super) incomplete: bool,
}

impl Check<'_> {
    /// Walks the map of an inode and claims its blocks. A block of the bad-blocks inode may also
    /// belong to another owner, but not to the metadata of a group.
    pub(super) fn claim_map(&mut self, ino: u32, inode: &Inode) -> Taken {
        let view = Arc::clone(&self.view);
        let mut claim = Claim {
            view: &view,
            system: &self.system,
            used: &mut self.used,
            shared: &mut self.shared,
            anybodys: ino == special_ino::BAD_BLOCKS,
            last: None,
            taken: Taken::default(),
            of_groups: Runs::default(),
            misaligned: None,
        };
        let walked = walk::walk(&view, ino, inode, &mut |piece| claim.piece(piece));
        let (mut taken, of_groups) = (claim.taken, claim.of_groups);
        if let Some((logical, block)) = claim.misaligned {
            self.found(Finding::ExtentCluster {
                ino,
                logical: logical as u32,
                block,
            });
        }
        taken.incomplete = walked.incomplete;
        self.incomplete |= walked.incomplete;
        self.report.stats.map_blocks += taken.nodes;
        self.found_all(walked.findings);
        for (block, count) in of_groups.runs {
            self.found(Finding::BlocksOfGroups { ino, block, count });
        }
        taken
    }

    /// Reports every inode that uses a block that is used more than once.
    pub(super) fn shared_blocks(&mut self) {
        let view = Arc::clone(&self.view);
        let features = view.geometry.features();
        if self.shared.is_empty() || features.has_ro_compat(RoCompat::SHARED_BLOCKS) {
            return;
        }
        let mut entered = ClusterSet::new(&view.geometry);
        for group in 0..view.geometry.group_count() {
            for index in 0..self.inodes.group(group).len() {
                let Some(ino) = view.geometry.ino(group, index as u32) else {
                    continue;
                };
                let note = self.inodes.get(ino);
                let skip = ino == special_ino::RESIZE || ino == special_ino::BAD_BLOCKS;
                if note.in_use && !note.bad && !skip {
                    self.shared_of(&view, ino, &mut entered);
                }
            }
        }
    }

    fn shared_of(&mut self, view: &View, ino: u32, entered: &mut ClusterSet) {
        let Some(inode) = self.again(ino) else {
            return;
        };
        let mut runs = Runs::default();
        let acl = inode.file_acl();
        if acl != 0 && self.shared.contains(acl) {
            runs.add(acl);
        }
        if walk::has_map(view, &inode) {
            let shared = &self.shared;
            walk::walk(view, ino, &inode, &mut |piece| match piece {
                Piece::Node { block } => {
                    if shared.contains(block) {
                        runs.add(block);
                    }
                    !entered.insert(block)
                }
                Piece::Data { physical, len, .. } => {
                    let blocks = physical..physical.saturating_add(len);
                    blocks
                        .filter(|block| shared.contains(*block))
                        .for_each(|block| runs.add(block));
                    true
                }
            });
        }
        for (block, count) in runs.runs {
            self.found(Finding::BlocksShared { ino, block, count });
        }
    }
}

struct Claim<'a> {
    view: &'a View,
    system: &'a ClusterSet,
    used: &'a mut ClusterSet,
    shared: &'a mut ClusterSet,
    anybodys: bool,
    /// The cluster claimed last: contiguous blocks share one.
    last: Option<u64>,
    taken: Taken,
    of_groups: Runs,
    misaligned: Option<(u64, u64)>,
}

impl Claim<'_> {
    /// Whether the block belongs to a copy of superblock or descriptors, which may be bad because
    /// nothing needs it.
    fn is_copy(&self, block: u64) -> bool {
        let geometry = &self.view.geometry;
        let place = geometry.group_of_block(block);
        place.is_ok_and(|(group, offset)| group > 0 && offset < geometry.fixed_blocks(group))
    }

    /// Claims a block. Returns whether it was free.
    fn block(&mut self, block: u64) -> bool {
        let cluster = self.used.cluster(block);
        let clustered = self.view.geometry.cluster_ratio_bits() > 0;
        if clustered && self.last == Some(cluster) {
            return true;
        }
        self.last = Some(cluster);
        self.taken.clusters += 1;
        if self.anybodys {
            if self.system.contains(block) && !self.is_copy(block) {
                self.of_groups.add(block);
            }
            self.used.insert(block);
            return true;
        }
        if self.system.contains(block) {
            self.of_groups.add(block);
            return false;
        }
        let was = self.used.insert(block);
        if was {
            self.shared.insert(block);
        }
        !was
    }

    fn piece(&mut self, piece: Piece) -> bool {
        match piece {
            Piece::Node { block } => {
                self.taken.nodes += 1;
                // Every block of a map has its own cluster.
                self.last = None;
                let new = self.block(block);
                self.last = None;
                if !new {
                    self.taken.incomplete = true;
                }
                new
            }
            Piece::Data {
                logical,
                physical,
                len,
                unwritten,
            } => {
                let within = (1_u64 << self.view.geometry.cluster_ratio_bits()) - 1;
                if (logical ^ physical) & within != 0 {
                    self.misaligned = self.misaligned.or(Some((logical, physical)));
                }
                for block in physical..physical.saturating_add(len) {
                    self.block(block);
                }
                let taken = &mut self.taken;
                taken.holes |= logical != taken.end;
                taken.blocks += len;
                taken.end = taken.end.max(logical.saturating_add(len));
                if !unwritten {
                    taken.written_end = taken.written_end.max(logical.saturating_add(len));
                }
                true
            }
        }
    }
}
