//! Changing items: the public operations of a tree.

use std::sync::Arc;

use sapwood_btrfs_format::Key;

use super::{Root, TreeWrite};
use crate::Result;

/// What [`Root::modify`] does with an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Leave it as it is.
    Keep,
    /// Insert it or replace its data.
    Put(Vec<u8>),
    /// Delete it, if it is there.
    Delete,
}

#[allow(clippy::todo, unused_variables)]
impl Root {
    /// Inserts an item.
    ///
    /// # Errors
    /// [`Error::ItemExists`](crate::Error::ItemExists), [`Error::ItemTooLarge`](crate::Error::ItemTooLarge); unreadable blocks; no space.
    pub(crate) fn insert(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        data: &[u8],
    ) -> Result<()> {
        todo!()
    }

    /// Inserts an item of `size` zero bytes and lets `fill` write them.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub(crate) fn insert_with(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        size: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        todo!()
    }

    /// Inserts items, which must ascend by key. Not atomic as a whole.
    ///
    /// # Errors
    /// As [`insert`](Self::insert); what came before the failing item stays.
    pub(crate) fn insert_batch(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        items: &[(Key, Vec<u8>)],
    ) -> Result<()> {
        todo!()
    }

    /// Inserts an item or replaces its data, whatever the size was.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), but not for an item that exists.
    pub(crate) fn put(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        data: &[u8],
    ) -> Result<()> {
        todo!()
    }

    /// Lets `change` write to an item's data in place.
    ///
    /// # Errors
    /// [`Error::ItemNotFound`](crate::Error::ItemNotFound); unreadable blocks; no space.
    pub(crate) fn update(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        todo!()
    }

    /// Lets `change` look at an item (or its absence) and decide. It runs with the leaf locked,
    /// and may run again if others changed the leaf before the decision could be carried out:
    /// only the last run counts.
    ///
    /// # Errors
    /// Those of `change`, and as [`put`](Self::put).
    pub(crate) fn modify(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        key: &Key,
        change: impl FnMut(Option<&[u8]>) -> Result<Change>,
    ) -> Result<()> {
        todo!()
    }

    /// Deletes an item; `false` if it was not there.
    ///
    /// # Errors
    /// Unreadable blocks; no space.
    pub(crate) fn delete(self: &Arc<Self>, h: &mut dyn TreeWrite, key: &Key) -> Result<bool> {
        todo!()
    }

    /// Deletes all items with keys in `from..=to` and returns how many. Not atomic as a whole.
    ///
    /// # Errors
    /// As [`delete`](Self::delete); what was deleted before stays so.
    pub(crate) fn delete_range(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        from: &Key,
        to: &Key,
    ) -> Result<usize> {
        todo!()
    }

    /// Changes an item's key to one that has the same place among its neighbours.
    ///
    /// # Errors
    /// [`Error::ItemNotFound`](crate::Error::ItemNotFound), [`Error::KeyOrder`](crate::Error::KeyOrder); unreadable blocks; no space.
    pub(crate) fn rename_key(
        self: &Arc<Self>,
        h: &mut dyn TreeWrite,
        old: &Key,
        new: &Key,
    ) -> Result<()> {
        todo!()
    }
}
