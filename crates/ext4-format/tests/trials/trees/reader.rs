//! Finds inodes of an image, maps their blocks and judges each block on the way with the crate's
//! parsers.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use sapwood_ext4_format::{
    DirFormat, DirHasher, Extent, ExtentBounds, ExtentNode, HashVersion, INLINE_IN_BLOCKS,
    INLINE_XATTR, IndirectGeometry, XattrSet, XattrValue, crc32c, extent_block_verify,
    indirect_check, inline_dir_parent, inline_dir_region, inode_seed, xattr_block_verify,
    xattr_full_name, xattr_index,
};

pub(crate) const EXTENTS: u32 = 0x8_0000;
pub(crate) const INDEX: u32 = 0x1000;
pub(crate) const INLINE: u32 = 0x1000_0000;

/// An open image.
pub(crate) struct Reader {
    pub(crate) file: File,
    sb: Vec<u8>,
    pub(crate) block_size: usize,
}

/// The fields of an inode that the tests need.
pub(crate) struct Inode {
    pub(crate) number: u32,
    pub(crate) size: u64,
    pub(crate) flags: u32,
    pub(crate) blocks: Vec<u8>,
    pub(crate) seed: u32,
    pub(crate) acl: u64,
    /// From the end of the extra fields to the end of the inode.
    pub(crate) xattr_region: Vec<u8>,
    /// Offset of that region in the image, in bytes.
    pub(crate) xattr_at: u64,
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Reader {
    pub(crate) fn open(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut sb = vec![0; 1024];
        file.read_exact_at(&mut sb, 1024).unwrap();
        let block_size = 1024 << u32_at(&sb, 0x18);
        Reader {
            file,
            sb,
            block_size,
        }
    }

    pub(crate) fn sb32(&self, at: usize) -> u32 {
        u32_at(&self.sb, at)
    }

    fn incompat(&self, bit: u32) -> bool {
        self.sb32(0x60) & bit != 0
    }

    pub(crate) fn checksums(&self) -> bool {
        self.sb32(0x64) & 0x400 != 0
    }

    pub(crate) fn inodes(&self) -> u32 {
        self.sb32(0)
    }

    pub(crate) fn first_block(&self) -> u64 {
        u64::from(self.sb32(0x14))
    }

    pub(crate) fn block_count(&self) -> u64 {
        let high = if self.incompat(0x80) {
            self.sb32(0x150)
        } else {
            0
        };
        u64::from(high) << 32 | u64::from(self.sb32(4))
    }

    pub(crate) fn seed(&self) -> u32 {
        if self.incompat(0x2000) {
            self.sb32(0x270)
        } else {
            crc32c(!0, &self.sb[0x68..0x78])
        }
    }

    pub(crate) fn dir_format(&self) -> DirFormat {
        DirFormat {
            block_size: self.block_size,
            checksums: self.checksums(),
            file_type: self.incompat(2),
            hash_in_entry: false,
            large_dir: self.incompat(0x4000),
            inodes: self.inodes(),
        }
    }

    pub(crate) fn hasher(&self, number: u8) -> DirHasher {
        let unsigned = self.sb32(0x160) & 2 != 0;
        let seed = [0, 4, 8, 12].map(|at| self.sb32(0xec + at));
        DirHasher::new(HashVersion::from_disk(number, unsigned).unwrap(), seed)
    }

    pub(crate) fn block(&self, number: u64) -> Vec<u8> {
        assert!(number < self.block_count(), "block {number}");
        let mut block = vec![0; self.block_size];
        self.file
            .read_exact_at(&mut block, number * self.block_size as u64)
            .unwrap();
        block
    }

    pub(crate) fn write(&self, number: u64, block: &[u8]) {
        assert!(number < self.block_count() && block.len() == self.block_size);
        self.file
            .write_all_at(block, number * self.block_size as u64)
            .unwrap();
    }

    pub(crate) fn inode(&self, number: u32) -> Inode {
        let per_group = self.sb32(0x28);
        let (group, index) = ((number - 1) / per_group, (number - 1) % per_group);
        let desc_size = if self.incompat(0x80) {
            usize::from(u16_at(&self.sb, 0xfe))
        } else {
            32
        };
        let at =
            (self.first_block() + 1) * self.block_size as u64 + u64::from(group) * desc_size as u64;
        let mut desc = vec![0; desc_size];
        self.file.read_exact_at(&mut desc, at).unwrap();
        let high = if desc_size > 32 {
            u32_at(&desc, 0x28)
        } else {
            0
        };
        let table = u64::from(high) << 32 | u64::from(u32_at(&desc, 8));
        let inode_size = usize::from(u16_at(&self.sb, 0x58));
        let mut raw = vec![0; inode_size];
        let at = table * self.block_size as u64 + u64::from(index) * inode_size as u64;
        self.file.read_exact_at(&mut raw, at).unwrap();
        let extra = if inode_size > 128 {
            usize::from(u16_at(&raw, 0x80))
        } else {
            0
        };
        Inode {
            number,
            size: u64::from(u32_at(&raw, 0x6c)) << 32 | u64::from(u32_at(&raw, 4)),
            flags: u32_at(&raw, 0x20),
            blocks: raw[0x28..0x64].to_vec(),
            seed: inode_seed(self.seed(), number, u32_at(&raw, 0x64)),
            acl: u64::from(u16_at(&raw, 0x76)) << 32 | u64::from(u32_at(&raw, 0x68)),
            xattr_region: raw[128 + extra..].to_vec(),
            xattr_at: at + 128 + extra as u64,
        }
    }

    /// Logical to physical blocks; unwritten ranges are left out.
    pub(crate) fn map(&self, inode: &Inode) -> BTreeMap<u32, u64> {
        let mut map = BTreeMap::new();
        if inode.flags & EXTENTS == 0 {
            self.map_indirect(inode, &mut map);
            return map;
        }
        let bounds = ExtentBounds::root(self.first_block(), self.block_count());
        self.map_extents(inode, &inode.blocks, &bounds, &mut |extent| {
            for block in (0..extent.len).filter(|_| !extent.unwritten) {
                map.insert(extent.logical + block, extent.physical + u64::from(block));
            }
        });
        map
    }

    /// Calls `each` with all extents; gives the depth of the tree.
    pub(crate) fn map_extents(
        &self,
        inode: &Inode,
        bytes: &[u8],
        bounds: &ExtentBounds,
        each: &mut dyn FnMut(Extent),
    ) -> u16 {
        let node = ExtentNode::parse(bytes, bounds).unwrap();
        node.extents().for_each(&mut *each);
        for (number, index) in node.indexes().enumerate() {
            let block = self.block(index.child);
            if self.checksums() {
                extent_block_verify(&block, inode.seed).unwrap();
            }
            let below = node.child_bounds(number, bounds).unwrap();
            let child = ExtentNode::parse_header(&block).unwrap();
            assert_eq!(
                child.logical(0),
                Some(index.logical),
                "the kernel keeps them equal"
            );
            assert_eq!(node.search(index.logical), Some(number));
            self.map_extents(inode, &block, &below, each);
        }
        node.depth()
    }

    fn map_indirect(&self, inode: &Inode, map: &mut BTreeMap<u32, u64>) {
        let geometry = IndirectGeometry::new(self.block_size as u32);
        let blocks = inode.size.div_ceil(self.block_size as u64);
        let limits = (self.first_block(), self.block_count());
        let mut cache = BTreeMap::new();
        'blocks: for logical in 0..blocks as u32 {
            let path = geometry.path(logical).unwrap();
            let mut bytes = inode.blocks.clone();
            let mut found = 0;
            for (level, &offset) in path.offsets().iter().enumerate() {
                let pointers = indirect_check(&bytes, limits.0, limits.1).unwrap();
                found = u64::from(pointers[offset as usize].get());
                if found == 0 {
                    continue 'blocks;
                }
                if level < usize::from(path.depth()) {
                    bytes = cache
                        .entry(found)
                        .or_insert_with(|| self.block(found))
                        .clone();
                }
            }
            map.insert(logical, found);
        }
    }

    /// Content of a file.
    pub(crate) fn content(&self, inode: &Inode) -> Vec<u8> {
        if inode.flags & INLINE != 0 {
            let mut all = inode.blocks.clone();
            all.extend(self.inline_rest(inode));
            all.truncate(inode.size as usize);
            return all;
        }
        let mut all = vec![0; inode.size as usize];
        for (logical, physical) in self.map(inode) {
            let at = logical as usize * self.block_size;
            if at < all.len() {
                let end = all.len().min(at + self.block_size);
                all[at..end].copy_from_slice(&self.block(physical)[..end - at]);
            }
        }
        all
    }

    pub(crate) fn inline_rest(&self, inode: &Inode) -> Vec<u8> {
        let set = XattrSet::parse_ibody(&inode.xattr_region, self.inodes()).unwrap();
        match set
            .get(xattr_index::SYSTEM, INLINE_XATTR)
            .map(|xattr| &xattr.value)
        {
            Some(XattrValue::Bytes(bytes)) => bytes.clone(),
            other => panic!("inline data of inode {}: {other:?}", inode.number),
        }
    }

    /// Names and inodes of a directory, `.` and `..` left out.
    pub(crate) fn names(&self, inode: &Inode) -> BTreeMap<Vec<u8>, u32> {
        let format = self.dir_format();
        let mut names = BTreeMap::new();
        if inode.flags & INLINE != 0 {
            assert!(inline_dir_parent(&inode.blocks).unwrap() > 0);
            assert_eq!(inode.blocks.len(), INLINE_IN_BLOCKS);
            let rest = self.inline_rest(inode);
            for region in [inline_dir_region(&inode.blocks).unwrap(), &rest] {
                format.check_region(region).unwrap();
                let used = format
                    .region_entries(region)
                    .map(Result::unwrap)
                    .filter(|entry| entry.inode != 0);
                names.extend(used.map(|entry| (entry.name.to_vec(), entry.inode)));
            }
            return names;
        }
        let map = self.map(inode);
        if inode.flags & INDEX != 0 {
            self.check_htree(inode, &map);
        }
        for (&logical, &physical) in &map {
            let block = self.block(physical);
            let is_node = inode.flags & INDEX != 0
                && (logical == 0 || format.dx_node(&block, u32::MAX).is_ok());
            if !is_node {
                format.verify(&block, inode.seed).unwrap();
                format.check(&block).unwrap();
                for entry in format.entries(&block).map(Result::unwrap) {
                    assert_eq!(format.entry_at(&block, entry.offset).unwrap(), entry);
                    if entry.inode != 0 && !entry.is_dots() {
                        names.insert(entry.name.to_vec(), entry.inode);
                    }
                }
            }
        }
        names
    }

    /// Walks a hash tree: all nodes are valid, each name is in the leaf of its hash; returns the
    /// inner levels.
    pub(crate) fn check_htree(&self, inode: &Inode, map: &BTreeMap<u32, u64>) -> u8 {
        let format = self.dir_format();
        let blocks = (inode.size / self.block_size as u64) as u32;
        let block = self.block(map[&0]);
        format.dx_verify(&block, inode.seed).unwrap();
        let root = format.dx_root(&block, blocks).unwrap();
        assert_eq!(root.inode, inode.number);
        let hasher = self.hasher(root.info.hash_version);
        let mut level: Vec<(u32, u64, u32)> = Vec::new();
        let ranges = |node: &sapwood_ext4_format::DxNode<'_>, low: u32, high: u64| {
            let entries: Vec<_> = node.entries().collect();
            (0..entries.len())
                .map(|index| {
                    let begin = if index == 0 { low } else { entries[index].hash };
                    let end = entries
                        .get(index + 1)
                        .map_or(high, |next| u64::from(next.hash));
                    (begin, end, entries[index].block)
                })
                .collect::<Vec<_>>()
        };
        level.extend(ranges(&root.node, 0, 1 << 32));
        for _ in 0..root.info.indirect_levels {
            let mut below = Vec::new();
            for (low, high, logical) in level {
                let block = self.block(map[&logical]);
                format.dx_verify(&block, inode.seed).unwrap();
                below.extend(ranges(&format.dx_node(&block, blocks).unwrap(), low, high));
            }
            level = below;
        }
        for (low, high, logical) in level {
            let block = self.block(map[&logical]);
            for entry in format
                .entries(&block)
                .map(Result::unwrap)
                .filter(|entry| entry.inode != 0)
            {
                let hash = hasher.hash(entry.name).unwrap().major;
                let (low, high) = (low & !1, high.next_multiple_of(2));
                assert!(
                    low <= hash && u64::from(hash) <= high,
                    "{low:#x} {hash:#x} {high:#x}"
                );
            }
        }
        root.info.indirect_levels
    }

    /// All xattrs by their full name.
    pub(crate) fn xattrs(&self, inode: &Inode) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut sets = vec![XattrSet::parse_ibody(&inode.xattr_region, self.inodes()).unwrap()];
        if inode.acl != 0 {
            let block = self.block(inode.acl);
            if self.checksums() {
                xattr_block_verify(&block, self.seed(), inode.acl).unwrap();
            }
            sets.push(XattrSet::parse_block(&block, self.inodes()).unwrap().1);
        }
        let mut all = BTreeMap::new();
        for xattr in sets.iter().flat_map(|set| &set.entries) {
            let Some(name) = xattr_full_name(xattr.index, &xattr.name) else {
                continue;
            };
            let value = match &xattr.value {
                XattrValue::Bytes(bytes) => bytes.clone(),
                XattrValue::Inode { inode, size, hash } => {
                    let value = self.content(&self.inode(*inode));
                    assert_eq!(value.len(), *size as usize);
                    let word = crc32c(self.seed(), &value).to_le_bytes();
                    let signs = sapwood_ext4_format::XattrSigns::Unsigned;
                    assert_eq!(
                        *hash,
                        sapwood_ext4_format::xattr_entry_hash(&xattr.name, &word, signs)
                    );
                    value
                }
            };
            if xattr.index != xattr_index::SYSTEM {
                all.insert(name, value);
            }
        }
        all
    }
}
