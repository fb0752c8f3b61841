//! A trait for access to items, so that tests run the same code on a map as on a tree.

use std::sync::Arc;

use sapwood_btrfs_format::Key;

use crate::error::{Error, Result};
use crate::tree::{BlockCache, Root, TreeWrite};

/// Items in the order of their keys, for reading.
pub(crate) trait ItemRead {
    /// The item with this key.
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>>;
    /// The first item whose key is not smaller.
    fn next(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>>;
}

/// Items in the order of their keys.
pub(crate) trait ItemStore: ItemRead {
    /// The last item whose key is not larger.
    fn prev(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>>;
    /// Inserts a new item.
    fn insert(&mut self, key: Key, item: &[u8]) -> Result<()>;
    /// Replaces an item.
    fn replace(&mut self, key: Key, item: &[u8]) -> Result<()>;
    /// Removes an existing item.
    fn delete(&mut self, key: Key) -> Result<()>;
}

/// A tree, for reading.
pub(crate) struct TreeReader<'a> {
    /// The tree.
    pub(crate) root: &'a Arc<Root>,
    /// Cache of its blocks.
    pub(crate) blocks: &'a BlockCache,
}

impl ItemRead for TreeReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        let found = self.root.get(self.blocks, key)?;
        Ok(found.map(|item| item.to_vec()))
    }

    fn next(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let cursor = self.root.seek(self.blocks, key)?;
        Ok(cursor.item().map(|(key, item)| (key, item.to_vec())))
    }
}

/// A tree as of the last commit. No lock of a changing tree is taken.
pub(crate) struct CommittedReader<'a> {
    /// The tree.
    pub(crate) root: &'a Arc<Root>,
    /// Cache of its blocks.
    pub(crate) blocks: &'a BlockCache,
}

impl ItemRead for CommittedReader<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        let found = self.next(key)?;
        Ok(found.and_then(|(at, item)| (at == *key).then_some(item)))
    }

    fn next(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut found = None;
        self.root
            .walk_committed(self.blocks, key, &mut |key, item| {
                found = Some((key, item.to_vec()));
                Ok(false)
            })?;
        Ok(found)
    }
}

/// A tree that a transaction changes.
pub(crate) struct TreeStore<'a> {
    /// The tree.
    pub(crate) root: &'a Arc<Root>,
    /// Cache of its blocks.
    pub(crate) blocks: &'a BlockCache,
    /// The transaction.
    pub(crate) h: &'a mut dyn TreeWrite,
}

impl TreeStore<'_> {
    fn reader(&self) -> TreeReader<'_> {
        TreeReader {
            root: self.root,
            blocks: self.blocks,
        }
    }
}

impl ItemRead for TreeStore<'_> {
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.reader().get(key)
    }

    fn next(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        self.reader().next(key)
    }
}

impl ItemStore for TreeStore<'_> {
    fn prev(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
        let cursor = self.root.seek_back(self.blocks, key)?;
        Ok(cursor.item().map(|(key, item)| (key, item.to_vec())))
    }

    fn insert(&mut self, key: Key, item: &[u8]) -> Result<()> {
        self.root.insert(self.h, &key, item)
    }

    fn replace(&mut self, key: Key, item: &[u8]) -> Result<()> {
        self.root.put(self.h, &key, item)
    }

    fn delete(&mut self, key: Key) -> Result<()> {
        if self.root.delete(self.h, &key)? {
            return Ok(());
        }
        let root = self.root.id();
        Err(Error::ItemNotFound { root, key })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Items in a map.
    #[derive(Default)]
    pub(crate) struct MapStore(pub(crate) BTreeMap<Key, Vec<u8>>);

    impl ItemRead for MapStore {
        fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>> {
            Ok(self.0.get(key).cloned())
        }
        fn next(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
            Ok(self.0.range(key..).next().map(|(k, v)| (*k, v.clone())))
        }
    }

    impl ItemStore for MapStore {
        fn prev(&mut self, key: &Key) -> Result<Option<(Key, Vec<u8>)>> {
            let mut before = self.0.range(..=key);
            Ok(before.next_back().map(|(k, v)| (*k, v.clone())))
        }
        fn insert(&mut self, key: Key, item: &[u8]) -> Result<()> {
            assert!(self.0.insert(key, item.to_vec()).is_none(), "{key} exists");
            Ok(())
        }
        fn replace(&mut self, key: Key, item: &[u8]) -> Result<()> {
            assert!(self.0.insert(key, item.to_vec()).is_some(), "{key} missing");
            Ok(())
        }
        fn delete(&mut self, key: Key) -> Result<()> {
            assert!(self.0.remove(&key).is_some(), "{key} missing");
            Ok(())
        }
    }
}
