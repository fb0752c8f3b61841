//! Operations on items for the rest of the engine.

use std::sync::Arc;

use sapwood_btrfs_format::{Block, BlockMut, Item, Key, leaf_data_size};

use super::edit::{Edit, LeafOp};
use super::{Root, TreeWrite};
use crate::{Error, Result};

/// Change of an item by [`Root::modify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Leave it unchanged.
    Keep,
    /// Insert it or replace its data.
    Put(Vec<u8>),
    /// Delete it, if it exists.
    Delete,
}

/// Inserts one item.
struct Insert<F> {
    root: u64,
    key: Key,
    size: usize,
    fill: Option<F>,
}

impl<F: FnOnce(&mut [u8])> LeafOp for Insert<F> {
    fn key(&self) -> Key {
        self.key
    }

    fn decide(&mut self, leaf: &Block<'_>, _upper: Option<&Key>) -> Result<Edit> {
        match leaf.search(&self.key) {
            Ok(_) => Err(Error::ItemExists {
                root: self.root,
                key: self.key,
            }),
            Err(slot) => Ok(Edit::Insert {
                slot,
                size: self.size,
            }),
        }
    }

    fn fill(&mut self, data: &mut [u8]) {
        if let Some(fill) = self.fill.take() {
            fill(data);
        }
    }
}

/// Changes an item in place.
struct Update<F> {
    root: u64,
    key: Key,
    change: Option<F>,
}

impl<F: FnOnce(&mut [u8])> LeafOp for Update<F> {
    fn key(&self) -> Key {
        self.key
    }

    fn decide(&mut self, leaf: &Block<'_>, _upper: Option<&Key>) -> Result<Edit> {
        match leaf.search(&self.key) {
            Ok(slot) => Ok(Edit::Update(slot)),
            Err(_) => Err(Error::ItemNotFound {
                root: self.root,
                key: self.key,
            }),
        }
    }

    fn fill(&mut self, data: &mut [u8]) {
        if let Some(change) = self.change.take() {
            change(data);
        }
    }
}

/// Reads an item, decides, and writes.
struct Modify<'a, F> {
    root: &'a Root,
    key: Key,
    change: F,
    limit: usize,
    data: Vec<u8>,
}

impl<F: FnMut(Option<&[u8]>) -> Result<Change>> LeafOp for Modify<'_, F> {
    fn key(&self) -> Key {
        self.key
    }

    fn decide(&mut self, leaf: &Block<'_>, _upper: Option<&Key>) -> Result<Edit> {
        let found = leaf.search(&self.key);
        let old = match found {
            Ok(slot) => Some(leaf.item_data(slot).map_err(|e| self.root.block_error(e))?),
            Err(_) => None,
        };
        match ((self.change)(old)?, found) {
            (Change::Keep, _) | (Change::Delete, Err(_)) => Ok(Edit::Keep),
            (Change::Delete, Ok(slot)) => Ok(Edit::Delete(slot..slot + 1)),
            (Change::Put(data), found) => {
                let size = data.len();
                if size + Item::SIZE > self.limit {
                    return Err(Error::ItemTooLarge {
                        root: self.root.id(),
                        key: self.key,
                        size,
                    });
                }
                let same = old.is_some_and(|old| old.len() == size);
                self.data = data;
                Ok(match found {
                    Ok(slot) if same => Edit::Update(slot),
                    Ok(slot) => Edit::Resize { slot, size },
                    Err(slot) => Edit::Insert { slot, size },
                })
            }
        }
    }

    fn fill(&mut self, data: &mut [u8]) {
        data.copy_from_slice(&self.data);
    }
}

/// Makes an item longer.
struct Append<'a> {
    root: &'a Root,
    key: Key,
    tail: &'a [u8],
    limit: usize,
    /// All of the item, if it has to move to another leaf.
    whole: Vec<u8>,
}

impl LeafOp for Append<'_> {
    fn key(&self) -> Key {
        self.key
    }

    fn decide(&mut self, leaf: &Block<'_>, _upper: Option<&Key>) -> Result<Edit> {
        let (root, key) = (self.root.id(), self.key);
        let Ok(slot) = leaf.search(&key) else {
            return Err(Error::ItemNotFound { root, key });
        };
        let old = leaf.item_data(slot).map_err(|e| self.root.block_error(e))?;
        let size = old.len() + self.tail.len();
        if size + Item::SIZE > self.limit {
            return Err(Error::ItemTooLarge { root, key, size });
        }
        self.whole = if self.tail.len() <= leaf.free_space() {
            Vec::new()
        } else {
            [old, self.tail].concat()
        };
        Ok(Edit::Resize { slot, size })
    }

    fn fill(&mut self, data: &mut [u8]) {
        // Where the leaf has room, the item keeps its bytes.
        let bytes = if self.whole.is_empty() {
            self.tail
        } else {
            &self.whole
        };
        let start = data.len().saturating_sub(bytes.len());
        if let Some(place) = data.get_mut(start..) {
            place.copy_from_slice(bytes);
        }
    }
}

/// Deletes all keys up to `to` in one leaf.
struct DeleteUpTo {
    from: Key,
    to: Key,
    deleted: usize,
}

impl LeafOp for DeleteUpTo {
    fn key(&self) -> Key {
        self.from
    }

    fn decide(&mut self, leaf: &Block<'_>, _upper: Option<&Key>) -> Result<Edit> {
        let start = leaf.search(&self.from).unwrap_or_else(|slot| slot);
        let end = match leaf.search(&self.to) {
            Ok(slot) => slot + 1,
            Err(slot) => slot,
        };
        self.deleted = end.saturating_sub(start);
        if self.deleted == 0 {
            return Ok(Edit::Keep);
        }
        Ok(Edit::Delete(start..end))
    }
}

/// Inserts as many items as fit in one leaf.
struct Batch<'a> {
    root: &'a Root,
    items: &'a [(Key, Vec<u8>)],
    done: usize,
}

impl LeafOp for Batch<'_> {
    fn key(&self) -> Key {
        self.items.get(self.done).map_or(Key::MAX, |(key, _)| *key)
    }

    fn decide(&mut self, leaf: &Block<'_>, _upper: Option<&Key>) -> Result<Edit> {
        let Some((key, data)) = self.items.get(self.done) else {
            return Ok(Edit::Keep);
        };
        match leaf.search(key) {
            Ok(_) => Err(Error::ItemExists {
                root: self.root.id(),
                key: *key,
            }),
            Err(slot) => Ok(Edit::Insert {
                slot,
                size: data.len(),
            }),
        }
    }

    fn fill(&mut self, to: &mut [u8]) {
        if let Some((_, data)) = self.items.get(self.done) {
            to.copy_from_slice(data);
        }
        self.done += 1;
    }

    fn more(&mut self, leaf: &mut BlockMut<'_>, upper: Option<&Key>) -> Result<()> {
        while let Some((key, data)) = self.items.get(self.done) {
            let view = leaf.view();
            let room = view.free_space() >= data.len() + Item::SIZE;
            if !room || upper.is_some_and(|upper| key >= upper) {
                return Ok(());
            }
            // The previous item was inserted in this leaf, so this one is not its first.
            let (Err(slot @ 1..), true) = (view.search(key), room) else {
                return Ok(());
            };
            leaf.insert(slot, key, data)
                .map_err(|e| self.root.block_error(e))?;
            self.done += 1;
        }
        Ok(())
    }
}

impl Root {
    /// Inserts an item.
    ///
    /// # Errors
    /// [`Error::ItemExists`], [`Error::ItemTooLarge`]; unreadable blocks; no space.
    pub(crate) fn insert(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        data: &[u8],
    ) -> Result<()> {
        self.insert_with(h, key, data.len(), |to| to.copy_from_slice(data))
    }

    /// Inserts an item of `size` zero bytes, which `fill` writes.
    ///
    /// # Errors
    /// [`Error::ItemExists`], [`Error::ItemTooLarge`]; unreadable blocks; no space.
    pub(crate) fn insert_with(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        size: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        self.check_size(h, key, size)?;
        let mut op = Insert {
            root: self.id(),
            key: *key,
            size,
            fill: Some(fill),
        };
        self.run(h, &mut op).map(|_| ())
    }

    /// Inserts items, which must ascend by key. Not atomic as a whole.
    ///
    /// # Errors
    /// [`Error::ItemExists`], [`Error::ItemTooLarge`]; unreadable blocks; no space. Items before
    /// the failing one stay.
    pub(crate) fn insert_batch(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        items: &[(Key, Vec<u8>)],
    ) -> Result<()> {
        for (key, data) in items {
            self.check_size(h, key, data.len())?;
        }
        let mut op = Batch {
            root: self,
            items,
            done: 0,
        };
        while op.done < items.len() {
            self.run(h, &mut op)?;
        }
        Ok(())
    }

    /// Inserts an item, or replaces its data, also by data of another size.
    ///
    /// # Errors
    /// [`Error::ItemTooLarge`]; unreadable blocks; no space.
    pub(crate) fn put(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        data: &[u8],
    ) -> Result<()> {
        self.modify(h, key, |_| Ok(Change::Put(data.to_vec())))
    }

    /// Adds bytes at the end of an item. Copies only these, if the item's leaf has room for them.
    ///
    /// # Errors
    /// [`Error::ItemNotFound`], [`Error::ItemTooLarge`]; unreadable blocks; no space.
    pub(crate) fn append(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        tail: &[u8],
    ) -> Result<()> {
        let nodesize = h.blocks().volume().geometry().nodesize as usize;
        let mut op = Append {
            root: self,
            key: *key,
            tail,
            limit: leaf_data_size(nodesize),
            whole: Vec::new(),
        };
        self.run(h, &mut op).map(|_| ())
    }

    /// Calls `change` to write an item's data in place.
    ///
    /// # Errors
    /// [`Error::ItemNotFound`]; unreadable blocks; no space.
    pub(crate) fn update(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let mut op = Update {
            root: self.id(),
            key: *key,
            change: Some(change),
        };
        self.run(h, &mut op).map(|_| ())
    }

    /// Calls `change` with an item, or `None`, to decide on the change. It runs with the leaf
    /// locked, so it must not use trees. It may run again if another thread changed the leaf before
    /// the change could be made; only the last run counts.
    ///
    /// # Errors
    /// The errors of `change` and of [`put`](Self::put).
    pub(crate) fn modify(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        change: impl FnMut(Option<&[u8]>) -> Result<Change>,
    ) -> Result<()> {
        let nodesize = h.blocks().volume().geometry().nodesize as usize;
        let mut op = Modify {
            root: self,
            key: *key,
            change,
            limit: leaf_data_size(nodesize),
            data: Vec::new(),
        };
        self.run(h, &mut op).map(|_| ())
    }

    /// Deletes an item. Returns false if it did not exist.
    ///
    /// # Errors
    /// Unreadable blocks; no space.
    pub(crate) fn delete(self: &Arc<Self>, h: &mut dyn TreeWrite, key: &Key) -> Result<bool> {
        let mut op = DeleteUpTo {
            from: *key,
            to: *key,
            deleted: 0,
        };
        self.run(h, &mut op)?;
        Ok(op.deleted > 0)
    }

    /// Deletes all items with keys in `from..=to`. Returns their number. Not atomic as a whole.
    ///
    /// # Errors
    /// Unreadable blocks; no space. Earlier deletions stay.
    pub(crate) fn delete_range(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        from: &Key,
        to: &Key,
    ) -> Result<usize> {
        let (mut total, mut from) = (0, *from);
        while from <= *to {
            let mut op = DeleteUpTo {
                from,
                to: *to,
                deleted: 0,
            };
            let upper = self.run(h, &mut op)?;
            total += op.deleted;
            match upper {
                Some(upper) => from = upper,
                None => break,
            }
        }
        Ok(total)
    }
}
