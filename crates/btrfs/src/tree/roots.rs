//! All trees of a file system, by id.
//!
//! A tree in memory keeps its top block in memory. There can be very many subvolumes, so those that
//! are not referenced (by an inode, a transaction or the cleaner) are dropped from time to time. A
//! thread may read a root item, sleep, and insert the tree after another thread loaded, changed and
//! dropped it. It detects this by the count of drops, and reads again.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{
    ChunkItem, CompatRo, DevItem, Key, RootItem, SuperBlock, kind, objectid,
};

use super::cache::Expect;
use super::{BlockCache, Root};
use crate::devices::{Access, SuperSet, Volume};
use crate::lock::{Rank, RankedRwLock};
use crate::{Error, Result};

/// The trees that every part of the engine needs, and a table of the others that were used.
#[derive(Debug)]
pub(crate) struct Roots {
    blocks: BlockCache,
    table: RankedRwLock<Table>,
    /// Tree of trees.
    pub(crate) root_tree: Arc<Root>,
    /// Chunks.
    pub(crate) chunk_tree: Arc<Root>,
    /// Devices.
    pub(crate) dev_tree: Arc<Root>,
    /// Extents.
    pub(crate) extent_tree: Arc<Root>,
    /// Data checksums.
    pub(crate) csum_tree: Arc<Root>,
    /// Free space, if the file system has such a tree.
    pub(crate) free_space_tree: Option<Arc<Root>>,
    /// Block groups, if they have their own tree.
    pub(crate) block_group_tree: Option<Arc<Root>>,
}

/// Least number of trees in memory at which unreferenced ones are dropped.
const MANY: usize = 2048;

#[derive(Debug, Default)]
struct Table {
    roots: HashMap<u64, Arc<Root>>,
    /// Number of trees at which the next sweep runs.
    sweep_at: usize,
    /// Number of sweeps that dropped trees.
    sweeps: u64,
}

impl Table {
    fn insert(&mut self, root: Arc<Root>) {
        self.roots.insert(root.id(), root);
        if self.roots.len() < self.sweep_at.max(MANY) {
            return;
        }
        self.sweeps += 1;
        // No thread can take a new reference under the write lock.
        self.roots.retain(|id, root| {
            !objectid::is_fs_tree(*id)
                || *id == objectid::FS_TREE
                || root.is_dead()
                || Arc::strong_count(root) > 1
        });
        self.sweep_at = 2 * self.roots.len();
    }
}

impl Roots {
    /// Reads the chunk tree (and completes the volume's chunk map from it), the root tree, and the
    /// top blocks of the trees that are always needed.
    ///
    /// # Errors
    /// Unreadable blocks or items; [`Error::NoSuchRoot`] if one is missing.
    pub(crate) fn open(blocks: &BlockCache, sb: &SuperBlock) -> Result<Self> {
        let chunk_tree = Self::from_superblock(
            blocks,
            objectid::CHUNK_TREE,
            sb.chunk_root.get(),
            sb.chunk_root_level,
            sb.chunk_root_generation.get(),
        )?;
        read_chunks(blocks, &chunk_tree, sb.num_devices.get())?;
        let root_tree = Self::from_superblock(
            blocks,
            objectid::ROOT_TREE,
            sb.root.get(),
            sb.root_level,
            sb.generation.get(),
        )?;
        let load = |id| read_root(blocks, &root_tree, id).map(Arc::new);
        let ro = sb.compat_ro();
        let optional = |flag, id| ro.contains(flag).then(|| load(id)).transpose();
        let this = Self {
            dev_tree: load(objectid::DEV_TREE)?,
            extent_tree: load(objectid::EXTENT_TREE)?,
            csum_tree: load(objectid::CSUM_TREE)?,
            free_space_tree: optional(CompatRo::FREE_SPACE_TREE, objectid::FREE_SPACE_TREE)?,
            block_group_tree: optional(CompatRo::BLOCK_GROUP_TREE, objectid::BLOCK_GROUP_TREE)?,
            blocks: blocks.clone(),
            table: RankedRwLock::new(Rank::RootTable, Table::default()),
            root_tree,
            chunk_tree,
        };
        for root in this.fixed() {
            this.insert(root.clone());
        }
        Ok(this)
    }

    fn fixed(&self) -> impl Iterator<Item = &Arc<Root>> {
        let always = [
            &self.root_tree,
            &self.chunk_tree,
            &self.dev_tree,
            &self.extent_tree,
            &self.csum_tree,
        ];
        let maybe = [&self.free_space_tree, &self.block_group_tree];
        always.into_iter().chain(maybe.into_iter().flatten())
    }

    /// A tree whose top block the superblock names.
    fn from_superblock(
        blocks: &BlockCache,
        id: u64,
        bytenr: u64,
        level: u8,
        generation: u64,
    ) -> Result<Arc<Root>> {
        let expect = Expect {
            level: Some(level),
            generation: Some(generation),
            owner: Some(id),
            first_key: None,
        };
        let top = blocks.get(bytenr, &expect)?;
        let item = RootItem {
            generation: generation.into(),
            bytenr: bytenr.into(),
            level,
            refs: 1.into(),
            ..RootItem::default()
        };
        Ok(Arc::new(Root::new(id, 0, top, item)))
    }

    /// A tree by id, read if it is not in memory.
    ///
    /// # Errors
    /// [`Error::NoSuchRoot`]; unreadable blocks or items.
    pub(crate) fn get(&self, id: u64) -> Result<Arc<Root>> {
        loop {
            let sweeps = {
                let table = self.table.read();
                if let Some(root) = table.roots.get(&id) {
                    return Ok(root.clone());
                }
                table.sweeps
            };
            let root = Arc::new(read_root(&self.blocks, &self.root_tree, id)?);
            let mut table = self.table.write();
            if let Some(root) = table.roots.get(&id) {
                return Ok(root.clone());
            }
            if table.sweeps == sweeps {
                table.insert(root.clone());
                return Ok(root);
            }
        }
    }

    /// A tree by id, if it is in memory.
    pub(crate) fn cached(&self, id: u64) -> Option<Arc<Root>> {
        self.table.read().roots.get(&id).cloned()
    }

    /// The uuid tree, if there is one.
    ///
    /// # Errors
    /// Unreadable blocks or items.
    pub(crate) fn uuid_tree(&self) -> Result<Option<Arc<Root>>> {
        match self.get(objectid::UUID_TREE) {
            Ok(root) => Ok(Some(root)),
            Err(Error::NoSuchRoot(_)) => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Inserts a tree that was just created.
    pub(crate) fn insert(&self, root: Arc<Root>) {
        self.table.write().insert(root);
    }

    /// Removes a tree that was deleted.
    pub(crate) fn forget(&self, id: u64) -> Option<Arc<Root>> {
        let mut table = self.table.write();
        table.sweeps += 1;
        table.roots.remove(&id)
    }

    /// All trees in memory.
    pub(crate) fn all_cached(&self) -> Vec<Arc<Root>> {
        self.table.read().roots.values().cloned().collect()
    }

    /// Ids of all trees that have a root item, ascending.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn ids(&self) -> Result<Vec<u64>> {
        let mut ids = Vec::new();
        let mut cursor = self.root_tree.seek(&self.blocks, &Key::MIN)?;
        while let Some(key) = cursor.key() {
            if key.kind == kind::ROOT_ITEM && ids.last() != Some(&key.objectid) {
                ids.push(key.objectid);
            }
            cursor.next()?;
        }
        Ok(ids)
    }
}

/// Reads a tree by its root item: the last one if there are several, because the key of a
/// snapshot's item has the transid.
fn read_root(blocks: &BlockCache, root_tree: &Root, id: u64) -> Result<Root> {
    let last = Key::new(id, kind::ROOT_ITEM, u64::MAX);
    let cursor = root_tree.seek_back(blocks, &last)?;
    let Some((key, data)) = cursor.item() else {
        return Err(Error::NoSuchRoot(id));
    };
    if key.objectid != id || key.kind != kind::ROOT_ITEM {
        return Err(Error::NoSuchRoot(id));
    }
    let item = RootItem::parse(data).map_err(|source| Error::BadItem {
        root: objectid::ROOT_TREE,
        key,
        source,
    })?;
    Root::load(blocks, id, key.offset, item)
}

/// Completes the chunk map, and compares the volume's devices with their items.
fn read_chunks(blocks: &BlockCache, chunk_tree: &Root, num_devices: u64) -> Result<()> {
    let volume = blocks.volume();
    let (mut devices, mut chunks) = (Vec::new(), Vec::new());
    let mut cursor = chunk_tree.seek(blocks, &Key::MIN)?;
    while let Some((key, data)) = cursor.item() {
        let bad = |source| Error::BadItem {
            root: objectid::CHUNK_TREE,
            key,
            source,
        };
        match key.kind {
            kind::DEV_ITEM => devices.push(DevItem::read(data).map_err(bad)?),
            kind::CHUNK_ITEM => {
                chunks.push((key.offset, ChunkItem::parse(data).map_err(bad)?));
            }
            _ => {}
        }
        cursor.next()?;
    }
    // The devices come first, so that the error for a missing one has its uuid.
    volume.set_device_items(&devices, num_devices)?;
    for (logical, chunk) in chunks {
        volume.add_chunk(logical, chunk)?;
    }
    volume.check_extents()
}

/// The parts needed to read trees.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Devices and chunk map.
    pub(crate) volume: Arc<Volume>,
    /// The newest superblock, for every device.
    pub(crate) super_block: SuperSet,
    /// Block cache.
    pub(crate) blocks: BlockCache,
    /// Trees.
    pub(crate) roots: Roots,
}

/// Reads the superblocks, the chunk tree, and the top blocks of the trees that are always needed.
/// Writes nothing.
///
/// # Errors
/// The errors of [`Volume::open`] and [`Roots::open`].
pub(crate) fn open(
    devices: &[Arc<dyn Device>],
    access: Access,
    cache_bytes: usize,
) -> Result<Opened> {
    let (volume, mut super_block) = Volume::open(devices, access)?;
    let volume = Arc::new(volume);
    let blocks = BlockCache::new(volume.clone(), cache_bytes);
    let roots = Roots::open(&blocks, &super_block)?;
    // After a power cut, the chunk tree may be newer than the superblock of a device.
    for item in volume.device_items() {
        let (total, used) = (item.total_bytes.get(), item.bytes_used.get());
        super_block.set_device(item.devid.get(), total, used);
    }
    Ok(Opened {
        volume,
        super_block,
        blocks,
        roots,
    })
}
