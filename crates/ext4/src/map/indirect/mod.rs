//! The block maps of ext2 and ext3: pointers to blocks, to blocks of pointers, and so on, three
//! deep.
//!
//! # How it works
//! The inode has 12 pointers to blocks of content, then one each to a tree of one, two and three
//! levels of blocks of pointers. A pointer of 0 is a hole, at any level. There are no unwritten
//! blocks, and nothing that says how often a block of pointers is named: a broken image may name
//! one from many places, or from itself. The depth of each tree is fixed, so every way through it
//! ends (`a_pointer_block_that_names_itself_is_bounded`); freeing a block twice is an error of the
//! bitmap, and a lookup reads a bounded number of blocks to make its run longer.
//!
//! A block of pointers without a pointer is freed with the last one
//! (`punching_frees_empty_pointer_blocks`).

mod insert;
mod lookup;
mod remove;

#[cfg(test)]
mod tests;

use sapwood_ext4_format::{IndirectGeometry, indirect_check, indirect_pointers};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

pub(crate) use lookup::{goal, lookup};
pub(crate) use remove::WAY_CREDITS;

use super::extent::Root;
use super::nodes::{Blocks, Changes, NodeKind, World};
use crate::Result;

/// Where pointers are.
#[derive(Debug, Clone)]
enum PointerPlace<N> {
    /// In the inode.
    Root,
    /// In a block.
    Block(N),
}

/// The block map of an inode whose map lock is held exclusively.
pub(crate) struct Pointers<'a, S> {
    store: &'a S,
    root: &'a mut Root,
    geometry: IndirectGeometry,
}

/// Blocks of a file that a map can name here.
pub(crate) fn blocks_max(block_size: u32) -> u64 {
    IndirectGeometry::new(block_size)
        .max_blocks()
        .min(super::nodes::BLOCKS_MAX)
}

/// What is wrong with pointers.
fn judge<S: Blocks>(store: &S, bytes: &[u8]) -> Result<(), String> {
    let World {
        first_block,
        blocks,
        ..
    } = *store.world();
    let all = indirect_check(bytes, first_block, blocks).map_err(|err| err.to_string())?;
    let mut named = all.iter().map(|pointer| u64::from(pointer.get()));
    let wrong = named.find(|block| *block != 0 && store.is_system(*block, 1));
    wrong.map_or(Ok(()), |block| {
        Err(format!("names block {block}, which belongs to a group"))
    })
}

/// A block of pointers, judged.
fn pointer_block<S: Blocks>(store: &S, block: u64) -> Result<S::Node> {
    store.node(block, NodeKind::Pointers, &|bytes| judge(store, bytes))
}

/// Looks at all pointers of a place. Those of the inode are judged each time, as nothing notes that
/// they were.
fn pointers<S: Blocks, R>(
    store: &S,
    root: &Root,
    place: &PointerPlace<S::Node>,
    look: impl FnOnce(&[U32]) -> R,
) -> Result<R> {
    let world = store.world();
    match place {
        PointerPlace::Root => {
            judge(store, root).map_err(|reason| world.bad_map(reason))?;
            indirect_pointers(root)
                .map(look)
                .map_err(|err| world.bad_map(err))
        }
        PointerPlace::Block(node) => {
            let bytes = store.bytes(node);
            let all = indirect_pointers(&bytes);
            all.map(look)
                .map_err(|err| world.bad_block(store.place(node), err))
        }
    }
}

impl<'a, S: Changes> Pointers<'a, S> {
    /// The map in `root`.
    pub(crate) fn new(store: &'a S, root: &'a mut Root) -> Self {
        let geometry = IndirectGeometry::new(store.world().block_size);
        Self {
            store,
            root,
            geometry,
        }
    }

    fn pointers<R>(
        &self,
        place: &PointerPlace<S::Node>,
        look: impl FnOnce(&[U32]) -> R,
    ) -> Result<R> {
        pointers(self.store, self.root, place, look)
    }

    /// One pointer; 0 if there is none.
    fn pointer(&self, place: &PointerPlace<S::Node>, index: u32) -> Result<u64> {
        let look = |all: &[U32]| {
            all.get(index as usize)
                .map_or(0, |pointer| u64::from(pointer.get()))
        };
        self.pointers(place, look)
    }

    /// Changes pointers.
    fn edit(&mut self, place: &PointerPlace<S::Node>, with: impl FnOnce(&mut [U32])) -> Result<()> {
        let change = |bytes: &mut [u8]| {
            if let Ok(all) = <[U32]>::mut_from_bytes(bytes) {
                with(all);
            }
        };
        match place {
            PointerPlace::Root => {
                change(self.root);
                Ok(())
            }
            PointerPlace::Block(node) => self.store.change(node, change),
        }
    }

    fn set(&mut self, place: &PointerPlace<S::Node>, index: u32, block: u32) -> Result<()> {
        self.edit(place, |all| {
            if let Some(pointer) = all.get_mut(index as usize) {
                *pointer = block.into();
            }
        })
    }
}

/// Credits that [`Pointers::insert`] of `blocks` blocks needs at most: the places of the pointers,
/// each perhaps new and with a bitmap and a descriptor, and the two levels above them.
pub(crate) fn insert_credits(block_size: u32, blocks: u64) -> u64 {
    let per_block = u64::from(IndirectGeometry::new(block_size).per_block()).max(1);
    let (low, high) = (blocks / per_block + 2, blocks / per_block / per_block + 2);
    low.saturating_add(high).saturating_add(1).saturating_mul(3)
}
