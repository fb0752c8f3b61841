//! The difference of two trees of files.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, InodeItem, Key, KeyPtr, kind, objectid};
use sapwood_vfs::{ChangedInode, Parts};

use super::file_tree::FileTree;
use crate::tree::{BlockCache, TreeBlock, expect_child};
use crate::{Error, Result};

/// The blocks from the top of a tree to a position.
struct Descent {
    blocks: BlockCache,
    root: u64,
    /// Each block with the slot that the walk is at.
    open: Vec<(Arc<[u8]>, usize)>,
}

/// The position of a walk: a pointer to a block, or an item.
struct Position {
    key: Key,
    /// Level of the block under the pointer, plus one; 0 for an item.
    height: u8,
    /// Address and generation of the block under the pointer.
    block: Option<(u64, u64)>,
}

impl Descent {
    fn new(tree: &FileTree, top: &TreeBlock) -> Self {
        Self {
            blocks: tree.blocks().clone(),
            root: tree.id(),
            open: vec![(top.snapshot(), 0)],
        }
    }

    fn bad(&self, source: sapwood_btrfs_format::block::Error) -> Error {
        Error::Block {
            root: self.root,
            source,
        }
    }

    /// Leaves blocks whose end is reached.
    fn settle(&mut self) -> Result<()> {
        while let Some((bytes, slot)) = self.open.last() {
            let block = Block::new(bytes).map_err(|error| self.bad(error))?;
            if *slot < block.nritems() {
                break;
            }
            self.open.pop();
            self.pass();
        }
        Ok(())
    }

    fn position(&mut self) -> Result<Option<Position>> {
        self.settle()?;
        let Some((bytes, slot)) = self.open.last() else {
            return Ok(None);
        };
        let block = Block::new(bytes).map_err(|error| self.bad(error))?;
        if block.is_leaf() {
            let key = block.item_key(*slot).map_err(|error| self.bad(error))?;
            return Ok(Some(Position {
                key,
                height: 0,
                block: None,
            }));
        }
        let ptr: &KeyPtr = block.child(*slot).map_err(|error| self.bad(error))?;
        Ok(Some(Position {
            key: ptr.key.get(),
            height: block.level(),
            block: Some((ptr.blockptr.get(), ptr.generation.get())),
        }))
    }

    /// Moves past the pointer or item.
    fn pass(&mut self) {
        if let Some((_, slot)) = self.open.last_mut() {
            *slot += 1;
        }
    }

    /// Enters the block under the pointer.
    fn enter(&mut self, at: &Position) -> Result<()> {
        if let Some((bytenr, generation)) = at.block {
            let level = at.height.saturating_sub(1);
            let expect = expect_child(self.root, level, generation, at.key);
            let bytes = self.blocks.get(bytenr, &expect)?.snapshot();
            self.open.push((bytes, 0));
        }
        Ok(())
    }

    /// The data of the item at the position.
    fn data(&self) -> Result<&[u8]> {
        let Some((bytes, slot)) = self.open.last() else {
            return Ok(&[]);
        };
        let block = Block::new(bytes).map_err(|error| self.bad(error))?;
        let (_, data) = block.entry(*slot).map_err(|error| self.bad(error))?;
        Ok(data)
    }
}

/// The inodes that differ between two trees, in ascending order.
pub struct Difference {
    old: Descent,
    new: Descent,
    /// Both trees are in one file system, so equal addresses are equal blocks.
    shared: bool,
    pending: Option<ChangedInode>,
    ended: bool,
}

/// The side of an item that differs.
#[derive(Clone, Copy)]
enum Sides {
    Old,
    New,
    Both,
}

impl Difference {
    /// Compares `old` with `new`.
    #[must_use]
    pub fn new(old: &FileTree, new: &FileTree) -> Self {
        Self {
            old: Descent::new(old, &old.top_block()),
            new: Descent::new(new, &new.top_block()),
            shared: old.is_in_file_system_of(new),
            pending: None,
            ended: false,
        }
    }

    /// The next inode that differs.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn next_inode(&mut self) -> Result<Option<ChangedInode>> {
        while !self.ended {
            let Some((key, sides)) = self.next_item()? else {
                self.ended = true;
                break;
            };
            let parts = self.parts(key, sides)?;
            match sides {
                Sides::Old => self.old.pass(),
                Sides::New => self.new.pass(),
                Sides::Both => {
                    self.old.pass();
                    self.new.pass();
                }
            }
            // Orphans, deleted when the last process closed them, are no files of the subvolume.
            if !(objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&key.objectid) {
                continue;
            }
            let Some(pending) = &mut self.pending else {
                self.pending = Some(changed(key.objectid, parts));
                continue;
            };
            if pending.number != key.objectid {
                let next = changed(key.objectid, parts);
                return Ok(self.pending.replace(next));
            }
            add(&mut pending.parts, parts);
        }
        Ok(self.pending.take())
    }

    /// Moves both walks to the next item that differs.
    fn next_item(&mut self) -> Result<Option<(Key, Sides)>> {
        loop {
            let (old, new) = (self.old.position()?, self.new.position()?);
            let (old, new) = match (old, new) {
                (None, None) => return Ok(None),
                (Some(old), None) => {
                    if old.height == 0 {
                        return Ok(Some((old.key, Sides::Old)));
                    }
                    self.old.enter(&old)?;
                    continue;
                }
                (None, Some(new)) => {
                    if new.height == 0 {
                        return Ok(Some((new.key, Sides::New)));
                    }
                    self.new.enter(&new)?;
                    continue;
                }
                (Some(old), Some(new)) => (old, new),
            };
            if self.shared && old.block.is_some() && old.block == new.block {
                self.old.pass();
                self.new.pass();
                continue;
            }
            let order = old.key.cmp(&new.key).then(new.height.cmp(&old.height));
            match (order, old.height, new.height) {
                (std::cmp::Ordering::Equal, 0, _) => {
                    if self.old.data()? != self.new.data()? {
                        return Ok(Some((old.key, Sides::Both)));
                    }
                    self.old.pass();
                    self.new.pass();
                }
                (std::cmp::Ordering::Less, 0, _) => return Ok(Some((old.key, Sides::Old))),
                (std::cmp::Ordering::Greater, _, 0) => return Ok(Some((new.key, Sides::New))),
                (std::cmp::Ordering::Greater, _, _) => self.new.enter(&new)?,
                _ => self.old.enter(&old)?,
            }
        }
    }

    fn parts(&self, key: Key, sides: Sides) -> Result<Parts> {
        let mut parts = Parts::default();
        match key.kind {
            kind::INODE_ITEM => {
                parts.inode = match sides {
                    Sides::Both => inode_differs(self.old.data()?, self.new.data()?),
                    _ => true,
                };
            }
            kind::INODE_REF | kind::INODE_EXTREF => parts.names = true,
            kind::XATTR_ITEM => parts.xattrs = true,
            kind::EXTENT_DATA => parts.data = true,
            _ => {}
        }
        Ok(parts)
    }
}

fn changed(number: u64, parts: Parts) -> ChangedInode {
    ChangedInode { number, parts }
}

fn add(parts: &mut Parts, other: Parts) {
    parts.inode |= other.inode;
    parts.names |= other.names;
    parts.xattrs |= other.xattrs;
    parts.data |= other.data;
}

/// Whether two inode items differ in more than the transaction and the count of changes.
fn inode_differs(old: &[u8], new: &[u8]) -> bool {
    let (Ok(mut old), Ok(new)) = (InodeItem::read(old), InodeItem::read(new)) else {
        return true;
    };
    old.transid = new.transid;
    old.sequence = new.sequence;
    old.bytes() != new.bytes()
}
