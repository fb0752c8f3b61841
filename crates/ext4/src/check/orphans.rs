//! Inodes that were being deleted or truncated: the list through the inodes, and the orphan file.

use std::sync::Arc;

use sapwood_ext4_format::{
    Compat, InodeFlags, RoCompat, SuperState, orphan_check, orphan_verify, validate_inode,
};

use super::finding::Finding;
use super::state::{Check, View};
use super::walk::{self, Piece};

impl Check<'_> {
    /// Collects the orphans. They count as in use, even without links.
    pub(super) fn orphans(&mut self) {
        let view = Arc::clone(&self.view);
        self.orphan_list(&view);
        if view.geometry.features().has_compat(Compat::ORPHAN_FILE) {
            self.orphan_file(&view);
        }
        let journal = view.geometry.features().has_compat(Compat::HAS_JOURNAL);
        let clean = journal && !self.recovered || {
            view.sb.state().contains(SuperState::VALID) && !journal && !self.recovered
        };
        if clean {
            let mut orphans: Vec<u32> = self.orphans.iter().copied().collect();
            orphans.sort_unstable();
            let findings = orphans.into_iter();
            self.found_all(findings.map(|ino| Finding::OrphanOnClean { ino }));
        }
    }

    fn orphan_list(&mut self, view: &View) {
        let mut ino = view.sb.last_orphan.get();
        while ino != 0 {
            let bad = |why| Finding::OrphanListBad { ino, why };
            let known = ino >= view.geometry.first_ino() && ino <= view.geometry.inodes_count();
            if !known {
                return self.found(bad("no inode that can be an orphan"));
            }
            if !self.orphans.insert(ino) {
                return self.found(bad("the list has a cycle"));
            }
            let Some(inode) = self.again(ino) else {
                return self.found(bad("cannot be read"));
            };
            if validate_inode(ino, &inode, &view.geometry).is_err() {
                self.orphans.remove(&ino);
                return self.found(bad("is not in use"));
            }
            // The field for the deletion time has the next inode's number.
            ino = inode.dtime();
        }
    }

    fn orphan_file(&mut self, view: &View) {
        let ino = view.sb.orphan_file_inum.get();
        let Some(inode) = self.again(ino) else {
            return;
        };
        let valid = validate_inode(ino, &inode, &view.geometry).is_ok();
        if !valid || !inode.is_regular() || inode.flags().contains(InodeFlags::INLINE_DATA) {
            return;
        }
        let mut nodes = std::collections::HashSet::new();
        let mut blocks = Vec::new();
        let most = inode.size(&view.geometry) >> view.geometry.block_bits();
        walk::walk(view, ino, &inode, &mut |piece| match piece {
            Piece::Node { block } => nodes.insert(block),
            Piece::Data { physical, len, .. } => {
                let room = most.saturating_sub(blocks.len() as u64);
                blocks.extend(physical..physical + len.min(room));
                true
            }
        });
        let seed = view.geometry.inode_seed(ino, inode.generation());
        let used = view
            .geometry
            .features()
            .has_ro_compat(RoCompat::ORPHAN_PRESENT);
        for block in blocks {
            let bytes = match view.block(block) {
                Ok(bytes) => bytes,
                Err(finding) => {
                    self.found(finding);
                    continue;
                }
            };
            if view.geometry.metadata_csum()
                && let Err(error) = orphan_verify(&bytes, seed, block)
            {
                self.found(Finding::OrphanFileBad { block, error });
                continue;
            }
            match orphan_check(&bytes, view.geometry.inodes_count()) {
                Ok(slots) => {
                    let orphans = slots.iter().map(|slot| slot.get()).filter(|ino| *ino != 0);
                    let first = view.geometry.first_ino();
                    let (good, bad): (Vec<u32>, Vec<u32>) = orphans.partition(|ino| *ino >= first);
                    self.orphans.extend(&good);
                    let why = "no inode that can be an orphan";
                    self.found_all(
                        bad.into_iter()
                            .map(|ino| Finding::OrphanListBad { ino, why }),
                    );
                    if !used && !good.is_empty() {
                        let ino = good[0];
                        let why = "in the orphan file, which the superblock says is empty";
                        self.found(Finding::OrphanListBad { ino, why });
                    }
                }
                Err(error) => self.found(Finding::OrphanFileBad { block, error }),
            }
        }
    }
}
