//! Verifies checksums of metadata on the device while the file system is mounted: the superblock,
//! the group descriptors, and all inodes.
//!
//! # How it works
//! These lie at fixed places, and every write of such a block to its place has valid checksums: a
//! checkpoint writes whole committed blocks. So each block is valid at any moment, although it may
//! be older than the journal. A block that seems bad may be caught in the middle of a write. It is
//! read again after a checkpoint, and counts as bad only if it stays so.
//!
//! Blocks of directories and extents, and the bitmaps, are not verified: between two checkpoints
//! the device may have older references to them, so their places are not known.

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use sapwood_ext4_format::{
    Geometry, GroupDesc, GroupFlags, Inode, SUPER_OFFSET, SUPER_SIZE, SuperBlock, special_ino,
};

use crate::Result;
use crate::mount::Ext4;
use crate::store::Store;

/// Reads of a block that seems bad, after the first one.
const AGAIN: usize = 3;
/// Time before each of these reads.
const PAUSE: Duration = Duration::from_millis(20);
/// Most findings that are kept.
const MOST: usize = 1000;

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Blocks that cannot be read, and structures whose checksum is wrong, one line each.
    pub findings: Vec<String>,
    /// The callback stopped it.
    pub interrupted: bool,
}

/// Callback: block groups that are done, and all of them.
pub type OnStep<'s> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 's;

/// Verifies the metadata of a mounted file system, which stays in use.
///
/// # Errors
/// The error that made the mount read-only.
pub fn scrub_mounted(fs: &Ext4, step: &mut OnStep<'_>) -> Result<ScrubReport> {
    let mut scrub = Scrub {
        store: &fs.engine,
        report: ScrubReport::default(),
    };
    scrub.run(step)?;
    Ok(scrub.report)
}

struct Scrub<'s> {
    store: &'s Store,
    report: ScrubReport,
}

impl Scrub<'_> {
    fn geometry(&self) -> &Geometry {
        &self.store.geometry
    }

    fn run(&mut self, step: &mut OnStep<'_>) -> Result<()> {
        self.verify(SUPER_OFFSET, SUPER_SIZE, &|bytes| {
            let found = SuperBlock::read(bytes).and_then(|sb| sb.verify_checksum());
            found
                .err()
                .map(|error| vec![format!("superblock: {error}")])
                .unwrap_or_default()
        })?;
        let groups = self.geometry().group_count();
        for group in 0..groups {
            let Some(desc) = self.descriptor(group)? else {
                continue;
            };
            self.inodes(group, &desc)?;
            if step(u64::from(group) + 1, groups.into()).is_break() {
                self.report.interrupted = true;
                return Ok(());
            }
            if self.report.findings.len() >= MOST {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Verifies a group descriptor. `None` if it is bad.
    fn descriptor(&mut self, group: u32) -> Result<Option<GroupDesc>> {
        let geometry = self.geometry().clone();
        let per_block = geometry.descs_per_block().max(1);
        let block = geometry.desc_table_block(group / per_block);
        let size = usize::from(geometry.desc_size());
        let within = (group % per_block) as usize * size;
        let place = |bytes: &[u8]| {
            let raw = bytes.get(within..within + size).unwrap_or_default();
            GroupDesc::read(raw, &geometry).and_then(|desc| {
                let sealed = desc.verify_checksum(group, &geometry);
                sealed.map(|()| desc)
            })
        };
        let len = geometry.block_size() as usize;
        let bytes = self.verify(block.saturating_mul(len as u64), len, &|bytes| {
            let found = place(bytes);
            let bad = found
                .err()
                .map(|error| format!("descriptor of group {group}: {error}"));
            bad.into_iter().collect()
        })?;
        Ok(bytes.and_then(|bytes| place(&bytes).ok()))
    }

    /// Verifies the inodes of a group that were ever used.
    fn inodes(&mut self, group: u32, desc: &GroupDesc) -> Result<()> {
        let geometry = self.geometry().clone();
        if desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return Ok(());
        }
        let all = geometry.inodes_per_group();
        let count = all.saturating_sub(desc.itable_unused());
        let per_block = geometry.inodes_per_block().max(1);
        let len = geometry.block_size() as usize;
        for nth in 0..count.div_ceil(per_block) {
            let block = desc.inode_table().saturating_add(nth.into());
            let indices = nth * per_block..count.min((nth + 1) * per_block);
            self.verify(block.saturating_mul(len as u64), len, &|bytes| {
                let each = indices
                    .clone()
                    .zip(bytes.chunks_exact(geometry.inode_size().into()));
                let bad = each.filter_map(|(index, raw)| {
                    let ino = geometry.ino(group, index)?;
                    bad_inode(ino, raw, &geometry)
                });
                bad.collect()
            })?;
        }
        Ok(())
    }

    /// Reads bytes, and looks for bad structures in them with `find`. Reads them again while they
    /// have some. Reports the bad structures of the last read. Returns good bytes.
    fn verify(
        &mut self,
        offset: u64,
        len: usize,
        find: &dyn Fn(&[u8]) -> Vec<String>,
    ) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; len];
        let mut found = Vec::new();
        for turn in 0..=AGAIN {
            if turn > 0 {
                self.store.journal.checkpoint()?;
                thread::sleep(PAUSE);
            }
            found = match self.store.device.read_at(offset, &mut bytes) {
                Ok(()) => find(&bytes),
                Err(error) => vec![error.to_string()],
            };
            if found.is_empty() {
                return Ok(Some(bytes));
            }
        }
        self.report.findings.append(&mut found);
        Ok(None)
    }
}

/// The finding about an inode as it is stored, if it is bad.
fn bad_inode(ino: u32, raw: &[u8], geometry: &Geometry) -> Option<String> {
    let reserved = ino < geometry.first_ino() && ino != special_ino::ROOT;
    if reserved || raw.iter().all(|byte| *byte == 0) {
        return None;
    }
    let read = Inode::read(raw, geometry);
    let sealed = read.and_then(|inode| inode.verify_checksum(ino, geometry));
    sealed.err().map(|error| format!("inode {ino}: {error}"))
}
