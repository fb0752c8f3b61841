//! Group descriptors, and the blocks of the device that belong to the groups themselves.

use std::sync::Arc;

use sapwood_ext4_format::{FormatError, validate_group};

use super::finding::Finding;
use super::report::{CheckError, Phase};
use super::state::View;
use super::state::{Check, Group};

impl Check<'_> {
    /// Reads all descriptors and claims the blocks that they name.
    pub(super) fn load_groups(&mut self) -> Result<(), CheckError> {
        let view = Arc::clone(&self.view);
        let geometry = &view.geometry;
        for index in 0..geometry.desc_blocks() {
            let first = index.saturating_mul(geometry.descs_per_block());
            self.tell(Phase::Groups, first)?;
            self.load_table_block(&view, index);
            self.copies_of_descriptors(index);
        }
        for group in 0..geometry.group_count() {
            self.claim_front(&view, group);
        }
        for group in 0..geometry.group_count() {
            self.claim_parts(&view, group);
        }
        Ok(())
    }

    fn load_table_block(&mut self, view: &View, index: u32) {
        let geometry = &view.geometry;
        let block = geometry.desc_table_block(index);
        let bytes = match view.block(block) {
            Ok(bytes) => bytes,
            Err(finding) => {
                self.found(finding);
                vec![0; geometry.block_size() as usize]
            }
        };
        let per_block = geometry.descs_per_block();
        let first = index.saturating_mul(per_block);
        let last = first.saturating_add(per_block).min(geometry.group_count());
        let size = usize::from(geometry.desc_size());
        for (group, raw) in (first..last).zip(bytes.chunks_exact(size)) {
            let desc = match sapwood_ext4_format::GroupDesc::read(raw, geometry) {
                Ok(desc) => desc,
                Err(error) => {
                    self.found(Finding::GroupBad { group, error });
                    sapwood_ext4_format::GroupDesc::new(geometry)
                }
            };
            let sealed = desc.verify_checksum(group, geometry);
            let mut judged = desc.clone();
            judged.set_checksum(group, geometry);
            let valid = validate_group(group, &judged, geometry);
            let located = !matches!(
                valid,
                Err(FormatError::GroupLocation { .. } | FormatError::NoBlock { .. })
            );
            self.incomplete |= !located;
            self.names_incomplete |= !located;
            self.tables_incomplete |= !located;
            let group_of = Group {
                desc,
                located,
                sealed: sealed.is_ok(),
            };
            self.groups.push(group_of);
            for error in [sealed.err(), valid.err()].into_iter().flatten() {
                self.found(Finding::GroupBad { group, error });
            }
        }
    }

    /// Claims superblock, descriptors and the blocks reserved for them.
    fn claim_front(&mut self, view: &View, group: u32) {
        let geometry = &view.geometry;
        let Ok(first) = geometry.group_first_block(group) else {
            return;
        };
        for block in first..first.saturating_add(geometry.fixed_blocks(group).into()) {
            if geometry.check_blocks(block, 1).is_ok() {
                self.system.insert(block);
            }
        }
    }

    fn claim_parts(&mut self, view: &View, group: u32) {
        let geometry = &view.geometry;
        let Some(known) = self.groups.get(group as usize) else {
            return;
        };
        if !known.located {
            return;
        }
        let parts = [
            ("block bitmap", known.desc.block_bitmap(), 1),
            ("inode bitmap", known.desc.inode_bitmap(), 1),
            (
                "inode table",
                known.desc.inode_table(),
                geometry.inode_table_blocks(),
            ),
        ];
        for (what, first, count) in parts {
            let mut over = None;
            for block in first..first.saturating_add(count.into()) {
                if self.system.insert(block) {
                    over = over.or(Some(block));
                }
            }
            // Clusters of several blocks may contain several parts.
            if let Some(block) = over.filter(|_| geometry.cluster_ratio_bits() == 0) {
                self.found(Finding::GroupOverlap { group, what, block });
            }
        }
    }
}
