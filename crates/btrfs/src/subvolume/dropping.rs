//! Dropping the blocks of a deleted subvolume, in steps.
//!
//! # How it works
//! The tree is walked in the order of its keys, down to the leaves and up again. A block that only
//! this tree refers to is entered; when everything below it is dropped, its own ref is dropped,
//! which frees the block. A block that other trees share only loses this tree's ref. No block is
//! changed: a key marks the dropped part. `drop_progress` and `drop_level` in the root item give
//! the start of the next step (the pointer with that key in the node of that level on the way to
//! it), and change in the same transaction as the refs. So a crash leaves a tree that the next
//! mount, Sapwood's or the kernel's, continues to drop.
//!
//! A shared block that this tree owns counts its children for the tree. Before the tree leaves it,
//! the block is *converted*: the children's refs move from the tree to the block, and the block
//! gets the flag FULL_BACKREF. This is done for every block below it that the tree owns, children
//! before their parents: a block with the flag has nothing left to convert below it, and after a
//! crash the conversion only reads it again. Blocks not newer than the snapshot that made this tree
//! belong to its source, and so do the blocks below them.
//!
//! Trouble cases:
//! - Another tree leaves the shared block at the same time: a thread reads the number of refs and
//!   acts on it under the block's leave lock, which copy-on-write takes too. A block that became
//!   unshared during its conversion is then entered.
//! - The step is large (a whole shared tree is converted): the budget ends it between blocks; the
//!   stack stays in memory, and the state on disk is right at each of these points.
//!
//! Facts: btrfs documentation, "Tree block and extent sharing", root item fields.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, ExtentFlags, Key, KeyPtr};

use crate::quota::Trees;
use crate::transaction::{Handle, Store};
use crate::tree::{BlockRef, Root, TreeBlock, TreeWrite, change_children, expect_child};
use crate::{Error, Result};

/// A block on the path to the position of the walk.
#[derive(Debug)]
struct Frame {
    block: Arc<TreeBlock>,
    bytes: Arc<[u8]>,
    /// Children are counted for the block, not for the tree.
    full: bool,
    /// Next child.
    slot: usize,
}

impl Frame {
    fn view(&self) -> Result<Block<'_>> {
        view(&self.bytes)
    }

    fn ptr(&self) -> Result<Option<KeyPtr>> {
        Ok(self.view()?.ptrs().get(self.slot).copied())
    }

    /// The block by which its children are counted; `None` if they are counted by tree.
    fn parent(&self) -> Option<u64> {
        self.full.then(|| self.block.bytenr())
    }
}

fn view(bytes: &[u8]) -> Result<Block<'_>> {
    Block::new(bytes).map_err(|source| Error::Block { root: 0, source })
}

/// The walk through one dead tree. No other thread changes that tree.
#[derive(Debug)]
pub(super) struct Dropping {
    root: Arc<Root>,
    /// Unshared blocks from the top down.
    path: Vec<Frame>,
    /// Shared blocks being converted, below the last of `path`.
    converting: Vec<Frame>,
    started: bool,
    /// The tree's ref on its top block is dropped.
    left_top: bool,
    done: bool,
    /// A block below could not be read.
    stuck: Option<Error>,
}

/// The treatment of a child.
enum Fate {
    /// The ref was dropped.
    Dropped,
    /// Only this tree refers to it.
    Enter { full: bool },
    /// It is shared, and counts its children for the tree.
    Convert,
}

impl Dropping {
    /// A walk from the start, or from the position in its root item.
    pub(super) fn new(root: Arc<Root>) -> Self {
        Self {
            root,
            path: Vec::new(),
            converting: Vec::new(),
            started: false,
            left_top: false,
            done: false,
            stuck: None,
        }
    }

    /// Drops refs until about `budget` of them were changed; true when only the tree's root item is
    /// left.
    ///
    /// Stops for good before a block that cannot be read, see [`stuck`](Self::stuck).
    ///
    /// # Errors
    /// An unreadable extent tree. The transaction must not be committed then.
    pub(super) fn step(&mut self, h: &mut Handle, budget: usize) -> Result<bool> {
        let mut left = budget;
        while left > 0 && !self.done && self.stuck.is_none() {
            let changed = if !self.started {
                self.start(h)?
            } else if self.converting.is_empty() {
                self.walk(h)?
            } else {
                self.convert(h)?
            };
            left = left.saturating_sub(changed.max(1));
        }
        self.save(h)?;
        Ok(self.done)
    }

    /// The error that stopped the walk for good.
    pub(super) fn stuck(&self) -> Option<&Error> {
        self.stuck.as_ref()
    }

    /// Finds the path to the position that an earlier walk recorded.
    fn start(&mut self, h: &mut Handle) -> Result<usize> {
        self.started = true;
        let (progress, level) = {
            let item = self.root.item();
            (item.drop_progress.get(), item.drop_level)
        };
        if progress == Key::default() {
            return Ok(0);
        }
        let mut block = self.root.node();
        loop {
            let (_, flags) = info(h, block.bytenr(), block.level())?;
            let bytes = block.snapshot();
            let slot = view(&bytes)?.child_slot(&progress).unwrap_or(0);
            let frame = Frame {
                full: flags.contains(ExtentFlags::FULL_BACKREF),
                block: block.clone(),
                bytes,
                slot,
            };
            let ptr = frame.ptr()?;
            self.path.push(frame);
            let Some(ptr) = ptr.filter(|_| block.level() > level.max(1)) else {
                return Ok(1);
            };
            match self.child(h.store(), &ptr, block.level()) {
                Some(child) => block = child,
                None => return Ok(0),
            }
        }
    }

    /// The child that a pointer in a block of this level leads to. `None`: stuck.
    fn child(&mut self, store: &Store, ptr: &KeyPtr, level: u8) -> Option<Arc<TreeBlock>> {
        let generation = ptr.generation.get();
        let expect = expect_child(self.root.id(), level - 1, generation, ptr.key.get());
        let found = store.blocks.get(ptr.blockptr.get(), &expect);
        found.map_err(|err| self.stuck = Some(err)).ok()
    }

    /// Whether blocks of this generation were made by this tree.
    fn is_ours(&self, generation: u64) -> bool {
        generation > self.root.item_key().offset
    }

    /// One step at the end of the path. Returns how many refs changed.
    fn walk(&mut self, h: &mut Handle) -> Result<usize> {
        let Some(last) = self.path.last() else {
            if self.left_top {
                self.done = true;
                return Ok(0);
            }
            let top = self.root.node();
            return self.meet(h, top.bytenr(), top.level(), top.generation(), None);
        };
        if last.block.level() > 0
            && let Some(ptr) = last.ptr()?
        {
            let level = last.block.level() - 1;
            let (bytenr, generation) = (ptr.blockptr.get(), ptr.generation.get());
            return self.meet(h, bytenr, level, generation, Some(ptr));
        }
        let mut changed = 1;
        if last.block.level() == 0 {
            let leaf = last.view()?;
            change_children(h, &self.root, &leaf, last.parent(), false)?;
            changed += leaf.nritems();
        }
        self.leave(h)?;
        Ok(changed)
    }

    /// Drops the ref of the last block of the path. Everything below that block is dropped already.
    fn leave(&mut self, h: &mut Handle) -> Result<()> {
        let Some(last) = self.path.pop() else {
            return Ok(());
        };
        let (bytenr, level) = (last.block.bytenr(), last.block.level());
        self.drop_ref(h, bytenr, level)
    }

    /// Drops the ref that the last block of the path has on its next child.
    fn drop_ref(&mut self, h: &mut Handle, bytenr: u64, level: u8) -> Result<()> {
        let (owner, parent) = match self.path.last_mut() {
            Some(parent) => {
                parent.slot += 1;
                (parent.block.owner(), parent.parent())
            }
            None => {
                self.left_top = true;
                (self.root.id(), None)
            }
        };
        h.block_ref(bytenr, level, owner, parent, BlockRef::Drop)
    }

    /// Decides the treatment of a child: the one at the end of the path, or the top (no `ptr`).
    fn meet(
        &mut self,
        h: &mut Handle,
        bytenr: u64,
        level: u8,
        generation: u64,
        ptr: Option<KeyPtr>,
    ) -> Result<usize> {
        let ours = self.is_ours(generation) || ptr.is_none();
        let fate = {
            let store = h.store().clone();
            let _leaving = store.blocks.leave_lock(bytenr);
            let (refs, flags) = info(h, bytenr, level)?;
            let full = flags.contains(ExtentFlags::FULL_BACKREF);
            if refs <= 1 {
                Fate::Enter { full }
            } else if ours && !full {
                Fate::Convert
            } else {
                self.drop_ref(h, bytenr, level)?;
                Fate::Dropped
            }
        };
        if matches!(fate, Fate::Dropped) {
            let store = h.store().clone();
            let trees = Trees {
                space: &store.space,
                roots: &store.roots,
                blocks: &store.blocks,
            };
            store.quotas.trace_below(h, trees, (bytenr, level));
        }
        let full = match fate {
            Fate::Dropped => return Ok(1),
            Fate::Enter { full } => full,
            Fate::Convert => false,
        };
        let block = match &ptr {
            Some(ptr) => self.child(h.store(), ptr, level + 1),
            None => Some(self.root.node()),
        };
        let Some(block) = block else {
            return Ok(0);
        };
        let frame = Frame {
            bytes: block.snapshot(),
            block,
            full,
            slot: 0,
        };
        match fate {
            Fate::Convert => self.converting.push(frame),
            _ => self.path.push(frame),
        }
        Ok(1)
    }

    /// One step of the conversion of a shared block and the blocks below it that this tree owns.
    fn convert(&mut self, h: &mut Handle) -> Result<usize> {
        let Some(mut last) = self.converting.pop() else {
            return Ok(0);
        };
        if last.block.level() > 0
            && let Some(ptr) = last.ptr()?
        {
            last.slot += 1;
            let level = last.block.level();
            self.converting.push(last);
            if self.is_ours(ptr.generation.get()) {
                let (_, flags) = info(h, ptr.blockptr.get(), level - 1)?;
                if !flags.contains(ExtentFlags::FULL_BACKREF) {
                    let Some(block) = self.child(h.store(), &ptr, level) else {
                        return Ok(0);
                    };
                    self.converting.push(Frame {
                        bytes: block.snapshot(),
                        block,
                        full: false,
                        slot: 0,
                    });
                }
            }
            return Ok(1);
        }
        let (bytenr, level) = (last.block.bytenr(), last.block.level());
        let store = h.store().clone();
        let _leaving = store.blocks.leave_lock(bytenr);
        let block = last.view()?;
        change_children(h, &self.root, &block, Some(bytenr), true)?;
        change_children(h, &self.root, &block, None, false)?;
        store.space.set_full_backref(h, bytenr, level)?;
        // If the path's next child is this block, the walk visits it again, converted.
        Ok(2 * block.nritems())
    }

    /// Whether the end of the path still points at something to drop.
    fn stands_at_child(&self) -> Result<bool> {
        match self.path.last() {
            Some(last) => Ok(last.ptr()?.is_some()),
            None => Ok(false),
        }
    }

    /// Finishes parts without a key to continue from, then records the position in the root item.
    fn save(&mut self, h: &mut Handle) -> Result<()> {
        while self.started && !self.done && self.converting.is_empty() && !self.stands_at_child()? {
            self.walk(h)?;
        }
        if let Some(last) = self.path.last()
            && let Some(ptr) = last.ptr()?
        {
            let mut item = self.root.item();
            item.drop_progress = ptr.key;
            item.drop_level = last.block.level();
        }
        Handle::record_root(h, &self.root);
        Ok(())
    }
}

fn info(h: &mut Handle, bytenr: u64, level: u8) -> Result<(u64, ExtentFlags)> {
    let (refs, flags) = h.extent_info(bytenr, level)?;
    Ok((refs, ExtentFlags::from_bits_retain(flags)))
}
