//! The state of a check that its parts share.

use std::collections::HashSet;

use sapwood_block::Device;
use sapwood_btrfs_format::{Block, CompatRo, Expect, Key, SuperBlock, objectid};

use super::chunks::Groups;
use super::csums::Ranges;
use super::error::CheckError;
use super::extents::Extents;
use super::finding::{BlockFault, Finding};
use super::free_space::FreeItems;
use super::inodes::Cache;
use super::report::{CheckOptions, CheckReport, Phase, Progress};
use super::roots::RootTree;
use super::source::Source;
use super::superblock;

/// Location of a tree block, and the known facts about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) logical: u64,
    pub(super) level: u8,
    pub(super) generation: u64,
    pub(super) first_key: Option<Key>,
}

/// A check in progress.
pub(super) struct Check<'a> {
    pub(super) sb: SuperBlock,
    /// Requirements of every block; completed for each.
    expect: Expect,
    pub(super) source: Source<'a>,
    pub(super) options: &'a CheckOptions,
    pub(super) report: CheckReport,
    progress: &'a mut dyn FnMut(Progress),
    now: Progress,
    pub(super) roots: RootTree,
    pub(super) extents: Extents,
    pub(super) groups: Groups,
    /// Ranges with checksums.
    pub(super) checksums: Ranges,
    pub(super) free: FreeItems,
    pub(super) inodes: Cache,
    /// Some tree block could not be entered, so the used space is not fully known.
    pub(super) uses_incomplete: bool,
    /// Blocks of log trees that were entered.
    pub(super) log_blocks: HashSet<u64>,
    /// Trees about space with a block that could not be entered.
    holes: HashSet<u64>,
}

impl<'a> Check<'a> {
    pub(super) fn open(
        devices: &[&'a dyn Device],
        options: &'a CheckOptions,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Result<Self, CheckError> {
        let mut findings = Vec::new();
        let opened = superblock::open(devices, &mut findings)?;
        let now = Progress {
            phase: Phase::Space,
            done: 0,
            total: opened.sb.bytes_used.get(),
        };
        let mut check = Self {
            sb: opened.sb,
            expect: opened.expect,
            source: Source {
                disks: opened.disks,
                chunks: opened.sys_chunks,
            },
            options,
            report: CheckReport::default(),
            progress,
            now,
            roots: RootTree::default(),
            extents: Extents::default(),
            groups: Groups::default(),
            checksums: Ranges::default(),
            free: FreeItems::default(),
            inodes: Cache::default(),
            uses_incomplete: false,
            log_blocks: HashSet::new(),
            holes: HashSet::new(),
        };
        findings.into_iter().for_each(|f| check.found(f));
        check.chunk_tree()?;
        Ok(check)
    }

    /// Records a finding.
    pub(super) fn found(&mut self, finding: Finding) {
        self.report.add(finding, self.options.max_findings);
    }

    pub(super) fn phase(&mut self, phase: Phase, total: u64) {
        self.now = Progress {
            phase,
            done: 0,
            total,
        };
        (self.progress)(self.now);
    }

    pub(super) fn done(&mut self, bytes: u64) {
        self.now.done = self.now.done.saturating_add(bytes);
        self.now.total = self.now.total.max(self.now.done);
        (self.progress)(self.now);
    }

    pub(super) fn nodesize(&self) -> u64 {
        self.sb.nodesize.get().into()
    }

    pub(super) fn sectorsize(&self) -> u64 {
        // The validator refused a superblock with zero here.
        u64::from(self.sb.sectorsize.get()).max(1)
    }

    pub(super) fn expect(&self, tree: u64, at: &Pointer) -> Expect {
        let expect = Expect {
            logical: at.logical,
            first_key: at.first_key,
            ..self.expect
        };
        let expect = expect.with_level(at.level).with_generation(at.generation);
        // The log of every subvolume has the log's owner.
        expect.with_owner(tree)
    }

    /// Reads a block in all copies and reports their problems. `None` if all are bad.
    pub(super) fn block(&mut self, tree: u64, at: &Pointer) -> Option<Vec<u8>> {
        let logical = at.logical;
        let copies = self.source.block(&self.expect(tree, at), true);
        self.done(self.nodesize());
        for copy in copies.differing {
            self.found(Finding::BlockCopiesDiffer {
                tree,
                logical,
                copy,
            });
        }
        if copies.good.is_none() {
            let first = copies.bad.into_iter().next();
            let fault = first.map_or(BlockFault::Unmapped { logical }, |(_, fault)| fault);
            self.found(Finding::BlockBad {
                tree,
                logical,
                fault,
            });
            self.hole(tree);
            return None;
        }
        for (at, fault) in copies.bad {
            let (copy, physical) = (at.copy, at.physical);
            let device = self.source.device_name(&at);
            self.found(Finding::BlockCopy {
                tree,
                logical,
                copy,
                device,
                physical,
                fault,
            });
        }
        copies.good
    }

    /// Writes all copies of a block, for repairs. Returns false if no device has one.
    pub(super) fn write_block(
        &self,
        logical: u64,
        bytes: &[u8],
    ) -> Result<bool, sapwood_block::Error> {
        let mut written = false;
        for copy in self.source.copies(logical, bytes.len() as u64) {
            if let Some(disk) = copy.disk.and_then(|number| self.source.disks.get(number)) {
                disk.device.write_at(copy.physical, bytes)?;
                written = true;
            }
        }
        Ok(written)
    }

    /// The UUID that all tree blocks have in their headers; zeros if no block can be read.
    pub(super) fn chunk_tree_uuid(&self) -> [u8; 16] {
        let (tree, root, _) = match self.all_roots().into_iter().next() {
            Some(first) => first,
            None => return [0; 16],
        };
        let bytes = self.quiet_block(tree, &root).unwrap_or_default();
        Block::new(&bytes).map_or([0; 16], |block| block.header().chunk_tree_uuid)
    }

    /// Records that part of a tree was not seen.
    pub(super) fn hole(&mut self, tree: u64) {
        self.uses_incomplete = true;
        // Other trees are never queried.
        if matches!(tree, 0..=objectid::BLOCK_GROUP_TREE) {
            self.holes.insert(tree);
        }
    }

    /// Whether part of a tree was not seen. Items that are missing may be in that part.
    pub(super) fn has_hole(&self, tree: u64) -> bool {
        self.holes.contains(&tree)
    }

    /// The tree that contains the block groups.
    pub(super) fn group_tree(&self) -> u64 {
        if self.sb.compat_ro().contains(CompatRo::BLOCK_GROUP_TREE) {
            objectid::BLOCK_GROUP_TREE
        } else {
            objectid::EXTENT_TREE
        }
    }

    /// Reads a block from its first good copy, without reporting anything: for second examinations.
    pub(super) fn quiet_block(&self, tree: u64, at: &Pointer) -> Option<Vec<u8>> {
        self.source.block(&self.expect(tree, at), false).good
    }
}

/// The children of a node.
pub(super) fn children(block: &Block<'_>) -> Vec<Pointer> {
    let level = block.level().saturating_sub(1);
    let child = |ptr: &sapwood_btrfs_format::KeyPtr| Pointer {
        logical: ptr.blockptr.get(),
        level,
        generation: ptr.generation.get(),
        first_key: Some(ptr.key.get()),
    };
    block.ptrs().iter().map(child).collect()
}
