//! Reads tree blocks of an image: superblock, chunk map, every tree down to its leaves.
#![allow(dead_code, unreachable_pub)] // Each test binary uses its part.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

use sapwood_btrfs_format::{
    Block, ChunkItem, Expect, ExtentItemRef, FileExtent, InlineRef, RootItem, SUPER_SIZE,
    SuperBlock, dir_items, inode_extrefs, inode_refs, kind, objectid, root_ref,
    uuid_from_key_parts, uuid_key_parts, validate_block, validate_super,
};

/// Source of a device's bytes.
pub trait Source {
    fn read(&self, offset: u64, len: usize) -> Vec<u8>;
}

impl Source for File {
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        self.read_exact_at(&mut buf, offset).unwrap();
        buf
    }
}

/// A sparse device: 4 KiB pages by offset; missing pages read as zeros.
#[derive(Default)]
pub struct Pages(pub BTreeMap<u64, Vec<u8>>);

const PAGE: usize = 4096;

impl Pages {
    /// Pages are stored as offset (8 bytes, little-endian) and content, compressed together.
    pub fn load(path: &Path) -> Self {
        let raw = zstd::decode_all(File::open(path).unwrap()).unwrap();
        let page = |r: &[u8]| {
            (
                u64::from_le_bytes(r[..8].try_into().unwrap()),
                r[8..].to_vec(),
            )
        };
        Self(raw.chunks_exact(8 + PAGE).map(page).collect())
    }

    pub fn save(&self, path: &Path) {
        let mut raw = Vec::new();
        for (offset, page) in &self.0 {
            raw.extend(offset.to_le_bytes());
            raw.extend(page);
        }
        std::fs::write(path, zstd::encode_all(&raw[..], 19).unwrap()).unwrap();
    }

    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        for (n, page) in bytes.chunks(PAGE).enumerate() {
            self.0.insert(offset + (n * PAGE) as u64, page.to_vec());
        }
    }
}

impl Source for Pages {
    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let page = |n: usize| {
            self.0
                .get(&(offset + n as u64))
                .cloned()
                .unwrap_or_else(|| vec![0; PAGE])
        };
        (0..len).step_by(PAGE).flat_map(page).collect()
    }
}

/// A tree block that is reachable from the superblock.
pub struct Found {
    pub expect: Expect,
    pub physical: u64,
    pub bytes: Vec<u8>,
}

pub struct Walker<'s> {
    source: &'s dyn Source,
    pub sb: SuperBlock,
    chunks: BTreeMap<u64, ChunkItem>,
    pub blocks: Vec<Found>,
    /// Messages of blocks that the validator refused.
    pub refused: Vec<String>,
}

impl<'s> Walker<'s> {
    /// Reads everything reachable, including log trees. Refused blocks are recorded, but not
    /// descended.
    pub fn run(source: &'s dyn Source) -> Self {
        let raw = source.read(64 << 10, SUPER_SIZE);
        let sb = validate_super(&raw, 64 << 10).unwrap();
        let chunks = sb.sys_chunks().map(|c| c.unwrap()).collect();
        let mut this = Self {
            source,
            sb,
            chunks,
            blocks: Vec::new(),
            refused: Vec::new(),
        };
        let generation = sb.generation.get();
        let chunk_gen = sb.chunk_root_generation.get();
        this.tree(
            objectid::CHUNK_TREE,
            sb.chunk_root.get(),
            sb.chunk_root_level,
            chunk_gen,
        );
        for found in &this.blocks {
            for (key, data) in leaf_entries(&found.bytes) {
                if key.kind == kind::CHUNK_ITEM {
                    this.chunks
                        .insert(key.offset, ChunkItem::parse(data).unwrap());
                }
            }
        }
        this.forest(
            objectid::ROOT_TREE,
            sb.root.get(),
            sb.root_level,
            generation,
        );
        if sb.log_root.get() != 0 {
            let (root, level) = (sb.log_root.get(), sb.log_root_level);
            this.forest(objectid::TREE_LOG, root, level, generation + 1);
        }
        this
    }

    /// A tree whose leaves have root items, and all trees that they name.
    fn forest(&mut self, owner: u64, root: u64, level: u8, generation: u64) {
        let from = self.blocks.len();
        self.tree(owner, root, level, generation);
        let mut roots = Vec::new();
        for found in &self.blocks[from..] {
            for (key, data) in leaf_entries(&found.bytes) {
                if key.kind == kind::ROOT_ITEM {
                    roots.push((key.objectid, RootItem::parse(data).unwrap()));
                }
            }
        }
        for (id, root) in roots {
            self.tree(id, root.bytenr.get(), root.level, root.generation.get());
        }
    }

    fn physical(&self, logical: u64) -> u64 {
        let (start, chunk) = self.chunks.range(..=logical).next_back().unwrap();
        assert!(logical - start < chunk.length, "no chunk for {logical}");
        chunk.stripes[0].offset + (logical - start)
    }

    fn tree(&mut self, owner: u64, logical: u64, level: u8, generation: u64) {
        let expect = Expect::new(&self.sb, logical)
            .unwrap()
            .with_owner(owner)
            .with_level(level)
            .with_generation(generation);
        self.block(expect);
    }

    fn block(&mut self, expect: Expect) {
        let physical = self.physical(expect.logical);
        let bytes = self.source.read(physical, expect.nodesize as usize);
        if let Err(err) = validate_block(&bytes, &expect) {
            self.refused.push(err.to_string());
            return;
        }
        let mut children = Vec::new();
        for ptr in Block::new(&bytes).unwrap().ptrs() {
            children.push(
                Expect {
                    logical: ptr.blockptr.get(),
                    ..expect
                }
                .with_level(expect.level.unwrap() - 1)
                .with_generation(ptr.generation.get())
                .with_first_key(ptr.key.get()),
            );
        }
        self.blocks.push(Found {
            expect,
            physical,
            bytes,
        });
        children.into_iter().for_each(|child| self.block(child));
    }
}

/// Keys and data of a leaf; nothing for a node.
pub fn leaf_entries(bytes: &[u8]) -> Vec<(sapwood_btrfs_format::Key, &[u8])> {
    let block = Block::new(bytes).unwrap();
    (0..block.items().len())
        .map(|slot| block.entry(slot).unwrap())
        .collect()
}

/// Every item of a leaf that can be decoded encodes to the same bytes.
pub fn assert_round_trip(bytes: &[u8]) {
    for (key, data) in leaf_entries(bytes) {
        let again: Vec<u8> = match key.kind {
            kind::INODE_REF => inode_refs(data).flat_map(|r| r.unwrap().encode()).collect(),
            kind::INODE_EXTREF => inode_extrefs(data)
                .flat_map(|r| r.unwrap().encode())
                .collect(),
            kind::DIR_ITEM | kind::DIR_INDEX | kind::XATTR_ITEM => {
                dir_items(data).flat_map(|r| r.unwrap().encode()).collect()
            }
            kind::EXTENT_DATA => FileExtent::parse(data).unwrap().encode(),
            kind::ROOT_ITEM => RootItem::parse(data).unwrap().bytes().to_vec(),
            kind::ROOT_REF | kind::ROOT_BACKREF => root_ref(data).unwrap().encode(),
            kind::CHUNK_ITEM => ChunkItem::parse(data).unwrap().encode(),
            kind::EXTENT_ITEM | kind::METADATA_ITEM => {
                let item = ExtentItemRef::parse(key.kind, data).unwrap();
                let refs: Vec<_> = item.inline_refs().map(|r| r.unwrap()).collect();
                item.encode(&refs)
            }
            kind::TREE_BLOCK_REF
            | kind::SHARED_BLOCK_REF
            | kind::EXTENT_DATA_REF
            | kind::SHARED_DATA_REF => {
                let r = InlineRef::parse_keyed(&key, data).unwrap();
                assert_eq!(r.key(key.objectid), key);
                r.encode_keyed()
            }
            kind::UUID_KEY_SUBVOL => {
                let uuid = uuid_from_key_parts(key.objectid, key.offset);
                assert_eq!(uuid_key_parts(&uuid), (key.objectid, key.offset));
                data.to_vec()
            }
            _ => continue,
        };
        assert_eq!(again, data, "{key}");
    }
}

/// Metadata of images under `tests/data`, see `kernel.rs`.
const FIXTURES: [&str; 3] = ["default", "nodes4k-sha256-old", "mixed-xxhash-v1"];

/// One fixture.
pub fn pages(name: &str) -> Pages {
    Pages::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.zst")))
}

/// All blocks of all fixtures.
pub fn blocks() -> &'static [Found] {
    static BLOCKS: OnceLock<Vec<Found>> = OnceLock::new();
    BLOCKS.get_or_init(|| {
        let load = |name: &&str| {
            let pages = pages(name);
            let walk = Walker::run(&pages);
            assert!(walk.refused.is_empty(), "{name}: {:#?}", walk.refused);
            walk.blocks
        };
        FIXTURES.iter().flat_map(load).collect()
    })
}
