//! Writes the extent tree and the free-space tree anew, into space that nothing uses.
//!
//! # How it works
//! The items of both trees depend on the places of their own blocks. So places are chosen for a
//! number of blocks, the items are packed, and this is repeated until the items fill exactly these
//! blocks. The blocks of the old trees count as free.
//!
//! Block groups come from the chunks. A v1 space cache is dropped.

use sapwood_block::Device;
use sapwood_btrfs_format::{
    BlockGroupFlags, BlockGroupItem, BlockInit, CompatRo, FreeSpaceInfo, InlineRef, InodeItem, Key,
    RootItem, kind, leaf_data_size, objectid, validate_block,
};

use super::super::error::CheckError;
use super::super::free_space::{Runs, difference, join};
use super::super::state::{Check, Pointer};
use super::edit::Editor;
use super::extent_items::{Form, place};
use super::uses::{Obstacle, OfBlock, Used};
use super::write_supers;
use crate::tree::bulk::{self, Items};

/// Most rounds until the items fill the chosen blocks.
const ROUNDS: usize = 64;
/// After this many rounds leaves get less, so that another number of blocks is tried.
const PER_ROOM: usize = 8;

/// A block of a new tree.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Placed {
    tree: u64,
    bytenr: u64,
    level: u8,
    first_key: Key,
}

/// A new tree: its id, its items, and the bytes that a leaf may take.
type Filled = (u64, Items, usize);

/// The trees that are written anew.
pub(super) fn trees(check: &Check<'_>) -> Vec<u64> {
    let mut trees = vec![objectid::EXTENT_TREE];
    if check.sb.compat_ro().contains(CompatRo::FREE_SPACE_TREE) {
        trees.push(objectid::FREE_SPACE_TREE);
    }
    trees
}

struct Plan<'p, 'c> {
    check: &'p Check<'c>,
    form: &'p Form,
    used: &'p [Used],
    kept: &'p Items,
    trees: Vec<u64>,
    /// Space in use, without the blocks of the new trees.
    taken: Runs,
}

/// Writes the trees outside of `avoided`. The extents in use and the kept items of further extents
/// are without their blocks. Returns the number of blocks. An obstacle is found before the first
/// write.
pub(super) fn write(
    check: &Check<'_>,
    form: &Form,
    (used, kept): (&[Used], &Items),
    avoided: &Runs,
) -> Result<Result<usize, Obstacle>, CheckError> {
    let kept_places = kept.chunk_by(|(a, _), (b, _)| a.objectid == b.objectid);
    let kept_places = kept_places.filter_map(|items| place(items, form.nodesize));
    let mut taken: Runs = used.iter().map(|used| (used.bytenr, used.end())).collect();
    taken.extend(kept_places.map(|(start, end, _)| (start, end)));
    taken.sort_unstable();
    let plan = Plan {
        check,
        form,
        used,
        kept,
        trees: trees(check),
        taken: join(taken),
    };
    let mut reserved = plan.reserved();
    reserved.extend(avoided);
    reserved.extend(plan.without_head());
    match super::log::places(check) {
        Ok(log) => reserved.extend(log),
        Err(obstacle) => return Ok(Err(obstacle)),
    }
    reserved.sort_unstable();
    let free = plan.free(&join(reserved));
    match plan.settle(&free) {
        Ok((placed, trees)) => {
            if let Some(obstacle) = plan.no_root(&placed)? {
                return Ok(Err(obstacle));
            }
            plan.write(&placed, &trees)?;
            Ok(Ok(placed.len()))
        }
        Err(obstacle) => Ok(Err(obstacle)),
    }
}

impl Plan<'_, '_> {
    /// Places of superblocks.
    fn reserved(&self) -> Runs {
        let places = self.check.super_places().into_iter();
        places
            .map(|(at, len, _)| (at, at.saturating_add(len)))
            .collect()
    }

    /// Space from kept refs without an extent item up to the next extent in use: the length of
    /// their extent is unknown.
    fn without_head(&self) -> Runs {
        let kept = self
            .kept
            .chunk_by(|(a, _), (b, _)| a.objectid == b.objectid);
        let refs = kept.filter(|items| place(items, self.form.nodesize).is_none());
        refs.filter_map(|items| {
            let start = items.first()?.0.objectid;
            let next = self.used.partition_point(|used| used.bytenr < start);
            let end = self.used.get(next).map_or(u64::MAX, |used| used.bytenr);
            Some((start, end))
        })
        .collect()
    }

    /// Free space for metadata.
    fn free(&self, reserved: &Runs) -> Runs {
        let chunks = self.check.source.chunks.iter();
        let metadata = chunks.filter(|(_, c)| c.flags.contains(BlockGroupFlags::METADATA));
        let groups: Runs = metadata
            .map(|(at, chunk)| (*at, at.saturating_add(chunk.length)))
            .collect();
        difference(&difference(&groups, &self.taken), reserved)
    }

    /// Addresses for blocks.
    fn addresses(&self, free: &Runs, count: usize) -> Result<Vec<u64>, Obstacle> {
        let nodesize = self.form.nodesize;
        let mut found = Vec::with_capacity(count);
        for (start, end) in free {
            let has_copies = |at: &u64| !self.check.source.copies(*at, nodesize).is_empty();
            // A run whose first block has no copies may be long without any.
            let first = start.checked_next_multiple_of(nodesize);
            let mut next = first.filter(has_copies);
            while let Some(at) = next.filter(|_| found.len() < count) {
                next = at.checked_add(nodesize).filter(|after| after <= end);
                if next.is_some() && has_copies(&at) {
                    found.push(at);
                }
            }
        }
        if found.len() < count {
            return Err(Obstacle::NoSpace { blocks: count });
        }
        Ok(found)
    }

    /// Chooses places such that the items fill exactly these blocks.
    fn settle(&self, free: &Runs) -> Result<(Vec<Placed>, Vec<Filled>), Obstacle> {
        let nodesize = self.form.nodesize as usize;
        let mut placed: Vec<Placed> = Vec::new();
        for round in 0..ROUNDS {
            let room = leaf_data_size(nodesize) - round / PER_ROOM * 32;
            let trees: Vec<Filled> = self
                .trees
                .iter()
                .map(|tree| match *tree {
                    objectid::EXTENT_TREE => (*tree, self.extent_items(&placed), room),
                    _ => (*tree, self.free_space_items(&placed), room),
                })
                .collect();
            let outlines = trees.iter().flat_map(|(tree, items, room)| {
                let blocks = bulk::outline(items, nodesize, *room).into_iter();
                blocks.map(|(level, key)| (*tree, level, key))
            });
            let outlines: Vec<(u64, u8, Key)> = outlines.collect();
            let addresses = self.addresses(free, outlines.len())?;
            let next: Vec<Placed> = outlines
                .into_iter()
                .zip(addresses)
                .map(|((tree, level, first_key), bytenr)| Placed {
                    tree,
                    bytenr,
                    level,
                    first_key,
                })
                .collect();
            if next == placed {
                return Ok((placed, trees));
            }
            placed = next;
        }
        Err(Obstacle::NoSpace {
            blocks: placed.len(),
        })
    }

    /// Space in use with the blocks of the new trees.
    fn all_taken(&self, placed: &[Placed]) -> Runs {
        let nodesize = self.form.nodesize;
        let mut taken = self.taken.clone();
        let own = placed.iter().map(|block| block.bytenr);
        taken.extend(own.map(|at| (at, at.saturating_add(nodesize))));
        taken.sort_unstable();
        join(taken)
    }

    fn extent_items(&self, placed: &[Placed]) -> Items {
        let mut items = self.kept.clone();
        for used in self.used {
            items.extend(self.form.encode(used));
        }
        for block in placed {
            items.extend(self.form.encode(&self.own(block)));
        }
        let compat = self.check.sb.compat_ro();
        if !compat.contains(CompatRo::BLOCK_GROUP_TREE) {
            items.extend(self.group_items(placed));
        }
        items.sort_unstable_by_key(|(key, _)| *key);
        items
    }

    /// The extent of a block of a new tree.
    fn own(&self, block: &Placed) -> Used {
        Used {
            bytenr: block.bytenr,
            len: self.form.nodesize,
            generation: self.check.sb.generation.get(),
            block: Some(OfBlock {
                level: block.level,
                first_key: block.first_key,
                full: false,
            }),
            refs: vec![InlineRef::TreeBlock { root: block.tree }],
            odd: false,
        }
    }

    fn group_items(&self, placed: &[Placed]) -> Items {
        let taken = self.all_taken(placed);
        let chunks = self.check.source.chunks.iter();
        let groups = chunks.map(|(&logical, chunk)| {
            let all = [(logical, logical.saturating_add(chunk.length))];
            let item = BlockGroupItem {
                used: (chunk.length - bytes(&difference(&all, &taken))).into(),
                chunk_objectid: objectid::FIRST_FREE.into(),
                flags: chunk.flags.bits().into(),
            };
            let key = Key::new(logical, kind::BLOCK_GROUP_ITEM, chunk.length);
            (key, item.bytes().to_vec())
        });
        groups.collect()
    }

    fn free_space_items(&self, placed: &[Placed]) -> Items {
        let taken = self.all_taken(placed);
        let mut items = Items::new();
        for (&logical, chunk) in &self.check.source.chunks {
            let end = logical.saturating_add(chunk.length);
            let free = difference(&[(logical, end)], &taken);
            let info = FreeSpaceInfo {
                extent_count: u32::try_from(free.len()).unwrap_or(u32::MAX).into(),
                flags: 0.into(),
            };
            let key = Key::new(logical, kind::FREE_SPACE_INFO, chunk.length);
            items.push((key, info.bytes().to_vec()));
            let runs = free.into_iter();
            items.extend(runs.map(|(start, end)| {
                let key = Key::new(start, kind::FREE_SPACE_EXTENT, end - start);
                (key, Vec::new())
            }));
        }
        items
    }

    /// Writes the blocks, then the root items and the superblocks.
    fn write(&self, placed: &[Placed], trees: &[Filled]) -> Result<(), CheckError> {
        let mut sb = self.check.sb;
        let generation = sb.generation.get();
        let mut extent_root = None;
        for (tree, items, room) in trees {
            let mut own = placed.iter().filter(|block| block.tree == *tree);
            let addresses: Vec<u64> = own.clone().map(|block| block.bytenr).collect();
            let init = BlockInit {
                bytenr: 0,
                level: 0,
                generation,
                owner: *tree,
                fsid: sb.tree_fsid(),
                chunk_tree_uuid: self.check.chunk_tree_uuid(),
            };
            let sizes = (self.form.nodesize as usize, *room);
            let blocks = bulk::build(items, &addresses, sizes, &init);
            let blocks = blocks.map_err(|error| CheckError::Rebuilt(error.to_string()))?;
            for (mut block, placed) in blocks.into_iter().zip(own.clone()) {
                self.write_block(&mut block.bytes, placed)?;
            }
            let Some(root) = own.next_back() else {
                continue;
            };
            if !self.set_root(&Editor::new(self.check), root)? {
                return Err(CheckError::Rebuilt(format!("root of tree {tree}")));
            }
            if *tree == objectid::EXTENT_TREE {
                extent_root = Some(*root);
            }
        }
        let tree_root = sb.root;
        sb.bytes_used = bytes(&self.all_taken(placed)).into();
        for backup in sb
            .super_roots
            .iter_mut()
            .filter(|own| own.tree_root == tree_root)
        {
            backup.bytes_used = sb.bytes_used;
            if let Some(root) = extent_root {
                backup.extent_root = root.bytenr.into();
                backup.extent_root_gen = generation.into();
                backup.extent_root_level = root.level;
            }
        }
        if sb.compat_ro().contains(CompatRo::FREE_SPACE_TREE) {
            let flags = sb.compat_ro() | CompatRo::FREE_SPACE_TREE_VALID;
            sb.compat_ro_flags = flags.bits().into();
        } else {
            sb.cache_generation = 0.into();
        }
        let disks = self.check.source.disks.iter();
        let devices: Vec<&dyn Device> = disks.map(|disk| disk.device).collect();
        write_supers(&devices, &sb)
    }

    fn write_block(&self, bytes: &mut [u8], placed: &Placed) -> Result<(), CheckError> {
        let Some(kind) = self.check.sb.checksum_kind() else {
            return Ok(());
        };
        kind.seal_block(bytes);
        let at = Pointer {
            logical: placed.bytenr,
            level: placed.level,
            generation: self.check.sb.generation.get(),
            first_key: None,
        };
        validate_block(bytes, &self.check.expect(placed.tree, &at))
            .map_err(|error| CheckError::Rebuilt(error.to_string()))?;
        self.check.write_block(placed.bytenr, bytes)?;
        Ok(())
    }

    /// Tries to set the roots, before anything is written.
    fn no_root(&self, placed: &[Placed]) -> Result<Option<Obstacle>, CheckError> {
        let trial = Editor::trial(self.check);
        let mut new = 0;
        for tree in &self.trees {
            let mut own = placed.iter().filter(|block| block.tree == *tree);
            let Some(root) = own.next_back() else {
                continue;
            };
            new += usize::from(self.check.roots.pointer(*tree).is_none());
            // The trial of a second new item does not see the first one.
            if new > 1 || !self.set_root(&trial, root)? {
                return Ok(Some(Obstacle::NoRoot { tree: *tree }));
            }
        }
        Ok(None)
    }

    /// Makes the root item of a tree lead to its new root, or creates the item. Returns false if
    /// it cannot be written.
    fn set_root(&self, editor: &Editor<'_, '_>, root: &Placed) -> Result<bool, CheckError> {
        let generation = self.check.sb.generation;
        let key = Key::new(root.tree, kind::ROOT_ITEM, 0);
        let (bytenr, level) = (root.bytenr.to_le_bytes(), root.level);
        let generation_bytes = generation.get().to_le_bytes();
        let edited = editor.edit(objectid::ROOT_TREE, &key, |item| {
            item.get_mut(160..168)?.copy_from_slice(&generation_bytes);
            item.get_mut(176..184)?.copy_from_slice(&bytenr);
            *item.get_mut(238)? = level;
            // Root items of old kernels end before it.
            if let Some(copy) = item.get_mut(239..247) {
                copy.copy_from_slice(&generation_bytes);
            }
            Some(())
        })?;
        if edited {
            return Ok(true);
        }
        let nodesize = self.form.nodesize;
        let item = RootItem {
            inode: InodeItem::of_new_tree(self.check.sb.nodesize.get()),
            generation,
            generation_v2: generation,
            bytenr: root.bytenr.into(),
            bytes_used: nodesize.into(),
            refs: 1.into(),
            level,
            ..RootItem::default()
        };
        editor.put(objectid::ROOT_TREE, &key, item.bytes())
    }
}

fn bytes(runs: &Runs) -> u64 {
    runs.iter().map(|(start, end)| end - start).sum()
}
