//! The state of a check that its parts share.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{FormatError, Geometry, GroupDesc, Inode, SuperBlock};

use super::finding::Finding;
use super::notes::{BlockUse, ClusterSet, Notes, Parents, ValueUse};
use super::quotas::Usage;
use super::report::CheckError;
use super::report::{CheckOptions, CheckReport, Phase, Progress};
use crate::journal_device::JournalDevice;

/// Reads the image.
#[derive(Debug)]
pub(super) struct View {
    pub(super) device: Arc<dyn Device>,
    pub(super) sb: SuperBlock,
    pub(super) geometry: Geometry,
    /// The journal, if it is on another device and was named.
    pub(super) journal: Option<JournalDevice>,
}

impl View {
    /// Reads `count` blocks.
    pub(super) fn blocks(&self, block: u64, count: u32) -> Result<Vec<u8>, Finding> {
        let failed = |error: &dyn std::fmt::Display| Finding::Unreadable {
            block,
            error: error.to_string(),
        };
        let end = block.saturating_add(count.into()).saturating_sub(1);
        self.geometry.block_offset(end).map_err(|e| failed(&e))?;
        let offset = self.geometry.block_offset(block).map_err(|e| failed(&e))?;
        let bytes = u64::from(count) * u64::from(self.geometry.block_size());
        let mut buf = vec![0; usize::try_from(bytes).map_err(|e| failed(&e))?];
        let read = self.device.read_at(offset, &mut buf);
        read.map_err(|e| failed(&e))?;
        Ok(buf)
    }

    pub(super) fn block(&self, block: u64) -> Result<Vec<u8>, Finding> {
        self.blocks(block, 1)
    }

    /// A group's descriptor, not validated.
    pub(super) fn descriptor(&self, group: u32) -> Result<GroupDesc, Finding> {
        let geometry = &self.geometry;
        let place = geometry.descriptor_block(group);
        let (block, offset) = place.map_err(|error| Finding::GroupBad { group, error })?;
        let bytes = self.block(block)?;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        GroupDesc::read(rest, geometry).map_err(|error| Finding::GroupBad { group, error })
    }

    /// An inode from the table at `table`, not validated.
    pub(super) fn inode(&self, table: u64, ino: u32) -> Result<Inode, Finding> {
        let geometry = &self.geometry;
        let bad = |error: FormatError| Finding::InodeBad { ino, error };
        let (_, index) = geometry.inode_location(ino).map_err(bad)?;
        let (block, offset) = geometry.inode_in_table(table, index);
        let bytes = self.block(block)?;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let size = usize::from(geometry.inode_size()).min(rest.len());
        Inode::read(&rest[..size], geometry).map_err(bad)
    }
}

/// The readable parts of a group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) desc: GroupDesc,
    /// Bitmaps and table are at valid locations.
    pub(super) located: bool,
    /// The descriptor's checksum is correct, so flags and counts are meaningful.
    pub(super) sealed: bool,
}

/// A check in progress.
pub(super) struct Check<'a> {
    pub(super) view: Arc<View>,
    pub(super) options: &'a CheckOptions,
    pub(super) report: CheckReport,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    /// The journal had to be replayed.
    pub(super) recovered: bool,
    pub(super) groups: Vec<Group>,
    /// Clusters of superblocks, descriptors, bitmaps, tables.
    pub(super) system: ClusterSet,
    /// Clusters that inodes use.
    pub(super) used: ClusterSet,
    /// Clusters that are used more than once.
    pub(super) shared: ClusterSet,
    /// Some used clusters were not seen.
    pub(super) incomplete: bool,
    /// Part of the inode tables was not seen.
    pub(super) tables_incomplete: bool,
    pub(super) inodes: Notes,
    pub(super) orphans: HashSet<u32>,
    pub(super) xattr_blocks: HashMap<u64, BlockUse>,
    pub(super) values: HashMap<u32, ValueUse>,
    pub(super) parents: HashMap<u32, Parents>,
    /// Blocks of directories that were read.
    pub(super) dir_blocks: ClusterSet,
    /// Part of some directory was not seen: names may be missing.
    pub(super) names_incomplete: bool,
    /// Usage by owner.
    pub(super) usage: Usage,
}

impl<'a> Check<'a> {
    /// A check that has read the superblock. `recovered`: the journal had to be replayed.
    pub(super) fn new(
        view: View,
        recovered: bool,
        options: &'a CheckOptions,
        progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Self {
        let geometry = &view.geometry;
        Self {
            options,
            report: CheckReport::default(),
            progress,
            recovered,
            groups: Vec::new(),
            system: ClusterSet::new(geometry),
            used: ClusterSet::new(geometry),
            shared: ClusterSet::new(geometry),
            incomplete: false,
            tables_incomplete: false,
            inodes: Notes::new(geometry),
            orphans: HashSet::new(),
            xattr_blocks: HashMap::new(),
            values: HashMap::new(),
            parents: HashMap::new(),
            dir_blocks: ClusterSet::new(geometry),
            names_incomplete: false,
            usage: Usage::default(),
            view: Arc::new(view),
        }
    }

    /// Records a finding.
    pub(super) fn found(&mut self, finding: Finding) {
        self.report.add(finding, self.options.max_findings);
    }

    pub(super) fn found_all(&mut self, findings: impl IntoIterator<Item = Finding>) {
        findings.into_iter().for_each(|f| self.found(f));
    }

    /// Reports the progress of the check.
    pub(super) fn tell(&mut self, phase: Phase, done: u32) -> Result<(), CheckError> {
        let now = Progress {
            phase,
            done: done.into(),
            total: self.view.geometry.group_count().into(),
        };
        match (self.progress)(now) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CheckError::Cancelled),
        }
    }

    /// Reads an inode again in a later pass; `None` if it cannot be read, which the first pass
    /// reported.
    pub(super) fn again(&self, ino: u32) -> Option<Inode> {
        let (group, _) = self.view.geometry.inode_location(ino).ok()?;
        let group = self.groups.get(group as usize)?;
        if !group.located {
            return None;
        }
        self.view.inode(group.desc.inode_table(), ino).ok()
    }
}
