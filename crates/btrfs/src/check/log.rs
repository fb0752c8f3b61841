//! The log trees of a file system that was not unmounted; only their blocks are checked.

use sapwood_btrfs_format::{Block, RootItem, kind, objectid};

use super::finding::Finding;
use super::state::{Check, Pointer};
use super::walk::{Walk, entries};

impl Check<'_> {
    /// Walks the log root tree and every log. They are in space that counts as free, because log
    /// blocks have no extent items.
    pub(super) fn log_trees(&mut self) {
        if self.sb.log_root.get() == 0 {
            return;
        }
        let root = Pointer {
            logical: self.sb.log_root.get(),
            level: self.sb.log_root_level,
            generation: self.sb.generation.get().saturating_add(1),
            first_key: None,
        };
        let walk = Walk::own(objectid::TREE_LOG);
        let mut logs = Vec::new();
        self.walk(&walk, &root, &mut |check, block| {
            check.log_block(block);
            let items = entries(block).filter(|(key, _)| key.kind == kind::ROOT_ITEM);
            for (_, data) in items {
                logs.extend(RootItem::parse(data));
            }
        });
        for item in logs {
            let root = Pointer {
                logical: item.bytenr.get(),
                level: item.level,
                generation: item.generation.get(),
                first_key: None,
            };
            self.walk(&walk, &root, &mut |check, block| check.log_block(block));
        }
    }

    fn log_block(&mut self, block: &Block<'_>) {
        let logical = block.bytenr();
        if self.extents.overlap(logical, self.nodesize()) {
            self.found(Finding::LogBlockInUse { logical });
        }
    }
}
