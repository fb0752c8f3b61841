//! Changes an image item by item and keeps its checksums right, to plant a finding. It deliberately
//! keeps nothing else consistent.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs_format::{
    Block, BlockMut, ChunkItem, Key, RootItem, SUPER_OFFSETS, SUPER_SIZE, SuperBlock, kind,
    objectid,
};

/// The subvolume of the fixture that shares nothing with others.
pub const LONE: u64 = 257;

pub struct Editor {
    pub device: MemoryDevice,
    pub sb: SuperBlock,
    chunks: BTreeMap<u64, ChunkItem>,
}

/// Where a key is, or would be: block and slot of each level, root first.
type Path = Vec<(u64, usize)>;

impl Editor {
    /// The image that the kernel made, see `check_fixture.rs`.
    pub fn fixture() -> Self {
        static FIXTURE: OnceLock<MemoryDevice> = OnceLock::new();
        let device = FIXTURE.get_or_init(|| {
            let packed = include_bytes!("../../data/check.img.zst");
            MemoryDevice::from_bytes(&zstd::decode_all(&packed[..]).unwrap())
        });
        Self::new(device.snapshot())
    }

    pub fn new(device: MemoryDevice) -> Self {
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(SUPER_OFFSETS[0], &mut bytes).unwrap();
        let sb = SuperBlock::read(&bytes).unwrap();
        let chunks = sb.sys_chunks().map(|c| c.unwrap()).collect();
        let mut this = Self { device, sb, chunks };
        for (key, data) in this.items(objectid::CHUNK_TREE) {
            if key.kind == kind::CHUNK_ITEM {
                this.chunks
                    .insert(key.offset, ChunkItem::parse(&data).unwrap());
            }
        }
        this
    }

    fn kind(&self) -> sapwood_btrfs_format::ChecksumKind {
        self.sb.checksum_kind().unwrap()
    }

    /// Changes all superblocks.
    pub fn superblock(&mut self, change: impl Fn(&mut SuperBlock)) {
        let count = SUPER_OFFSETS
            .iter()
            .filter(|at| **at < self.device.size())
            .count();
        (0..count).for_each(|n| self.one_superblock(n, &change));
        change(&mut self.sb);
    }

    /// Changes one superblock.
    pub fn one_superblock(&self, copy: usize, change: impl Fn(&mut SuperBlock)) {
        let mut bytes = vec![0; SUPER_SIZE];
        self.device
            .read_at(SUPER_OFFSETS[copy], &mut bytes)
            .unwrap();
        let mut sb = SuperBlock::read(&bytes).unwrap();
        change(&mut sb);
        bytes.copy_from_slice(sb.bytes());
        self.kind().seal_block(&mut bytes);
        self.device.write_at(SUPER_OFFSETS[copy], &bytes).unwrap();
    }

    /// Physical places of an address.
    pub fn places(&self, logical: u64) -> Vec<u64> {
        let (start, chunk) = self.chunks.range(..=logical).next_back().unwrap();
        assert!(logical - start < chunk.length);
        chunk
            .stripes
            .iter()
            .map(|s| s.offset + logical - start)
            .collect()
    }

    /// Inverts one byte of a copy, checksum and all.
    pub fn flip(&self, physical: u64) {
        let mut byte = [0];
        self.device.read_at(physical, &mut byte).unwrap();
        self.device.write_at(physical, &[!byte[0]]).unwrap();
    }

    pub fn block(&self, logical: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.sb.nodesize.get() as usize];
        self.device
            .read_at(self.places(logical)[0], &mut bytes)
            .unwrap();
        bytes
    }

    /// Seals a block and writes it to all its places.
    pub fn write(&self, logical: u64, bytes: &mut [u8]) {
        self.kind().seal_block(bytes);
        for place in self.places(logical) {
            self.device.write_at(place, bytes).unwrap();
        }
    }

    /// Changes a block in all copies.
    pub fn change_block(&self, logical: u64, change: impl FnOnce(&mut BlockMut<'_>)) {
        let mut bytes = self.block(logical);
        change(&mut BlockMut::new(&mut bytes).unwrap());
        self.write(logical, &mut bytes);
    }

    /// Address of a tree's root.
    pub fn root(&self, tree: u64) -> u64 {
        match tree {
            objectid::ROOT_TREE => self.sb.root.get(),
            objectid::CHUNK_TREE => self.sb.chunk_root.get(),
            _ => self.root_item(tree).1.bytenr.get(),
        }
    }

    /// Key and item of a tree's root item.
    pub fn root_item(&self, tree: u64) -> (Key, RootItem) {
        let is_root = |key: &Key, _: &[u8]| (key.objectid, key.kind) == (tree, kind::ROOT_ITEM);
        let (key, data) = self.find(objectid::ROOT_TREE, is_root);
        (key, RootItem::parse(&data).unwrap())
    }

    /// Blocks of a tree, root first.
    pub fn blocks(&self, tree: u64) -> Vec<u64> {
        let mut all = vec![self.root(tree)];
        let mut next = 0;
        while let Some(at) = all.get(next).copied() {
            let bytes = self.block(at);
            all.extend(
                Block::new(&bytes)
                    .unwrap()
                    .ptrs()
                    .iter()
                    .map(|p| p.blockptr.get()),
            );
            next += 1;
        }
        all
    }

    /// All items of a tree.
    pub fn items(&self, tree: u64) -> Vec<(Key, Vec<u8>)> {
        let mut items = Vec::new();
        for at in self.blocks(tree) {
            let bytes = self.block(at);
            let block = Block::new(&bytes).unwrap();
            for slot in 0..block.items().len() {
                let (key, data) = block.entry(slot).unwrap();
                items.push((key, data.to_vec()));
            }
        }
        items
    }

    /// The first item that fits.
    pub fn find(&self, tree: u64, fits: impl Fn(&Key, &[u8]) -> bool) -> (Key, Vec<u8>) {
        let mut items = self.items(tree).into_iter();
        items
            .find(|(key, data)| fits(key, data))
            .expect("no such item in the fixture")
    }

    /// The first item of that kind.
    pub fn first(&self, tree: u64, kind: u8) -> (Key, Vec<u8>) {
        self.find(tree, |key, _| key.kind == kind)
    }

    pub fn get(&self, tree: u64, key: &Key) -> Vec<u8> {
        self.find(tree, |found, _| found == key).1
    }

    fn path(&self, tree: u64, key: &Key) -> Path {
        let mut path = Path::new();
        let mut at = self.root(tree);
        loop {
            let bytes = self.block(at);
            let block = Block::new(&bytes).unwrap();
            if block.is_leaf() {
                path.push((at, block.search(key).unwrap_or_else(|slot| slot)));
                return path;
            }
            let slot = block.child_slot(key).unwrap();
            path.push((at, slot));
            at = block.child(slot).unwrap().blockptr.get();
        }
    }

    /// Address of the leaf that a key is in, or would be.
    pub fn leaf(&self, tree: u64, key: &Key) -> u64 {
        self.path(tree, key).last().unwrap().0
    }

    /// Bytes free in the leaf that a key is in, or would be.
    pub fn room(&self, tree: u64, key: &Key) -> usize {
        Block::new(&self.block(self.leaf(tree, key)))
            .unwrap()
            .free_space()
    }

    fn has(&self, path: &Path, key: &Key) -> bool {
        let (at, slot) = path[path.len() - 1];
        Block::new(&self.block(at)).unwrap().item_key(slot) == Ok(*key)
    }

    /// Sets the keys in the nodes above to the first keys of the blocks below.
    fn fix_keys(&self, path: &Path) {
        for level in (1..path.len()).rev() {
            let first = Block::new(&self.block(path[level].0))
                .unwrap()
                .first_key()
                .unwrap();
            let (at, slot) = path[level - 1];
            self.change_block(at, |block| block.set_key(slot, &first).unwrap());
        }
    }

    pub fn remove(&self, tree: u64, key: &Key) {
        let path = self.path(tree, key);
        assert!(self.has(&path, key), "no {key} in {tree}");
        let (at, slot) = path[path.len() - 1];
        self.change_block(at, |block| block.remove_items(slot, 1).unwrap());
        self.fix_keys(&path);
    }

    /// Inserts or replaces an item.
    pub fn put(&self, tree: u64, key: &Key, data: &[u8]) {
        if self.has(&self.path(tree, key), key) {
            self.remove(tree, key);
        }
        let path = self.path(tree, key);
        let (at, slot) = path[path.len() - 1];
        self.change_block(at, |block| block.insert(slot, key, data).unwrap());
        self.fix_keys(&path);
    }

    /// Changes an item's data.
    pub fn change(&self, tree: u64, key: &Key, change: impl FnOnce(&mut Vec<u8>)) {
        let mut data = self.get(tree, key);
        change(&mut data);
        self.put(tree, key, &data);
    }

    /// Gives an item another key, in its place.
    pub fn rekey(&self, tree: u64, old: &Key, new: &Key) {
        let path = self.path(tree, old);
        assert!(self.has(&path, old), "no {old} in {tree}");
        let (at, slot) = path[path.len() - 1];
        self.change_block(at, |block| block.set_item_key(slot, new).unwrap());
        self.fix_keys(&path);
    }

    /// Turns a tree of one leaf into one of two and a node, at free addresses. (The new blocks
    /// have no extent items, and the root's has another level.)
    pub fn split(&mut self, tree: u64, free: [u64; 2]) {
        let root = self.root(tree);
        let bytes = self.block(root);
        let old = Block::new(&bytes).unwrap();
        assert!(old.is_leaf());
        let middle = old.nritems() / 2;
        let mut halves = [bytes.clone(), bytes.clone()];
        for (half, at) in free.into_iter().enumerate() {
            let mut block = BlockMut::new(&mut halves[half]).unwrap();
            let (from, count) = if half == 0 {
                (middle, old.nritems() - middle)
            } else {
                (0, middle)
            };
            block.remove_items(from, count).unwrap();
            block.set_bytenr(at);
            self.write(at, &mut halves[half]);
        }
        let init = sapwood_btrfs_format::BlockInit {
            bytenr: root,
            level: 1,
            generation: old.generation(),
            owner: old.owner(),
            fsid: old.header().fsid,
            chunk_tree_uuid: old.header().chunk_tree_uuid,
        };
        let mut node = bytes.clone();
        let mut block = BlockMut::init(&mut node, &init).unwrap();
        for (slot, at) in free.into_iter().enumerate() {
            let first = Block::new(&halves[slot]).unwrap().first_key().unwrap();
            block
                .insert_ptr(slot, &first, at, old.generation())
                .unwrap();
        }
        self.write(root, &mut node);
        if tree == objectid::CHUNK_TREE {
            self.superblock(|sb| sb.chunk_root_level = 1);
        } else {
            let (key, mut item) = self.root_item(tree);
            item.level = 1;
            self.put(objectid::ROOT_TREE, &key, item.bytes());
        }
    }
}
