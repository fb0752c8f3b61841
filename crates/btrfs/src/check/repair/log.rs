//! The space that the log uses: it has no extent items.

use std::collections::HashSet;

use sapwood_btrfs_format::{Block, Key, RootItem, kind, objectid};

use super::super::free_space::Runs;
use super::super::state::{Check, Pointer, children};
use super::super::walk::{disk_extents, entries};
use super::uses::Obstacle;

/// Places of the blocks of all log trees, and of the data that they lead to; not sorted.
pub(super) fn places(check: &Check<'_>) -> Result<Runs, Obstacle> {
    let mut found = Runs::new();
    if check.sb.log_root.get() == 0 {
        return Ok(found);
    }
    let nodesize = check.nodesize();
    let mut stack = vec![Pointer {
        logical: check.sb.log_root.get(),
        level: check.sb.log_root_level,
        generation: check.sb.generation.get().saturating_add(1),
        first_key: None,
    }];
    let mut seen = HashSet::new();
    while let Some(at) = stack.pop() {
        // No log shares blocks.
        if !seen.insert(at.logical) {
            return Err(Obstacle::Log);
        }
        let bytes = check.quiet_block(objectid::TREE_LOG, &at);
        let bytes = bytes.ok_or(Obstacle::Log)?;
        let block = Block::new(&bytes).map_err(|_| Obstacle::Log)?;
        found.push((at.logical, at.logical.saturating_add(nodesize)));
        // Levels fall from a root on; a root is in the log of logs only.
        stack.extend(children(&block));
        let is_log = |key: &Key| key.kind == kind::ROOT_ITEM && key.objectid == objectid::TREE_LOG;
        for (_, data) in entries(&block).filter(|(key, _)| is_log(key)) {
            let item = RootItem::parse(data).map_err(|_| Obstacle::Log)?;
            stack.push(Pointer {
                logical: item.bytenr.get(),
                level: item.level,
                generation: item.generation.get(),
                first_key: None,
            });
        }
        found.extend(disk_extents(&block).map(|(_, extent)| {
            let start = extent.disk_bytenr;
            (start, start.saturating_add(extent.disk_num_bytes))
        }));
    }
    Ok(found)
}
