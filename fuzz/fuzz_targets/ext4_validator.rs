//! Random bytes as every structure of ext4: a structure that the validators accept can be used,
//! changed and written again, and nothing panics.
//!
//! Input: a byte that chooses the structure, then its bytes.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sapwood_block::Device;
use sapwood_ext4_format::{
    DirFormat, DumpGroup, DumpInode, DumpSuper, ExtentBounds, ExtentNode, Geometry, GroupDesc,
    Inode, NewEntry, SUPER_OFFSET, SUPER_SIZE, SuperBlock, XattrSet, acl_from_disk, acl_to_disk,
    indirect_check, inline_dir_region, orphan_check, validate_group, validate_inode,
    validate_super,
};
use sapwood_fuzz::ext4::{BLOCK, empty};

const INODES: u32 = 1000;
const BLOCKS: u64 = 12 << 10;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else {
        return;
    };
    match choice % 9 {
        0 => superblock(data),
        1 => group(data),
        2 => inode(data),
        3 => directory(data, choice / 9),
        4 => index(data, choice / 9),
        5 => extents(data),
        6 => xattrs(data),
        7 => acl(data),
        _ => {
            let block = block(data);
            let _ = orphan_check(&block, INODES);
            let _ = indirect_check(&block, 1, BLOCKS);
            let _ = inline_dir_region(data).map(|region| format(0).check_region(region));
        }
    }
});

fn geometry() -> &'static Geometry {
    static GEOMETRY: OnceLock<Geometry> = OnceLock::new();
    GEOMETRY.get_or_init(|| {
        let mut bytes = vec![0; SUPER_SIZE];
        empty(0)
            .read_at(SUPER_OFFSET, &mut bytes)
            .expect("in memory");
        Geometry::new(&SuperBlock::parse(&bytes).expect("good")).expect("good")
    })
}

fn block(data: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let len = data.len().min(BLOCK);
    block[..len].copy_from_slice(&data[..len]);
    block
}

fn superblock(data: &[u8]) {
    let Ok(mut sb) = SuperBlock::read(&block(data)) else {
        return;
    };
    let _ = DumpSuper(&sb).to_string();
    sb.set_checksum();
    if let Ok(geometry) = validate_super(&sb, 1 << 40) {
        for group in [0, 1, geometry.group_count() / 2, geometry.group_count() - 1] {
            let _ = geometry.group_first_block(group);
            let _ = geometry.fixed_blocks(group);
            let _ = geometry.descriptor_block(group);
            let _ = geometry
                .ino(group, 0)
                .map(|ino| geometry.inode_location(ino));
        }
    }
}

fn group(data: &[u8]) {
    let geometry = geometry();
    let Ok(mut desc) = GroupDesc::read(&block(data), geometry) else {
        return;
    };
    desc.set_checksum(1, geometry);
    let text = DumpGroup {
        group: 1,
        desc: &desc,
        geometry,
    }
    .to_string();
    assert!(!text.is_empty());
    if validate_group(1, &desc, geometry).is_ok() {
        assert!(
            desc.inode_table() + u64::from(geometry.inode_table_blocks())
                <= geometry.blocks_count()
        );
    }
}

fn inode(data: &[u8]) {
    let geometry = geometry();
    let Ok(mut inode) = Inode::read(&block(data), geometry) else {
        return;
    };
    inode.set_checksum(12, geometry);
    let _ = DumpInode {
        ino: 12,
        inode: &inode,
        geometry,
    }
    .to_string();
    let _ = (
        inode.atime(),
        inode.crtime(),
        inode.device(),
        inode.projid(),
    );
    let _ = XattrSet::parse_ibody(inode.attr_area(), INODES);
    if validate_inode(12, &inode, geometry).is_ok() {
        let mut copy = vec![0; usize::from(geometry.inode_size())];
        inode
            .write(&mut copy)
            .expect("what was read can be written");
        let again = Inode::read(&copy, geometry).expect("and read");
        again.verify_checksum(12, geometry).expect("unchanged");
    }
}

fn format(bits: u8) -> DirFormat {
    DirFormat {
        block_size: BLOCK,
        checksums: bits & 1 != 0,
        file_type: bits & 2 != 0,
        hash_in_entry: bits & 4 != 0,
        large_dir: bits & 8 != 0,
        inodes: INODES,
    }
}

fn directory(data: &[u8], bits: u8) {
    let format = format(bits);
    let mut block = block(data);
    let _ = format.entries(&block).count();
    if format.check(&block).is_err() {
        return;
    }
    let new = NewEntry {
        name: b"a name that was not there before",
        inode: 12,
        file_type: 1,
        hash: (2, 3),
    };
    if format.find(&block, new.name).expect("checked").is_some() {
        return;
    }
    let before: Vec<_> = names(&format, &block);
    let Some(at) = format.insert(&mut block, &new).expect("checked") else {
        return;
    };
    format.check(&block).expect("still good");
    let found = format.find(&block, new.name).expect("good").expect("there");
    assert_eq!((found.offset, found.inode), (at, 12));
    format.remove(&mut block, at).expect("there");
    format.check(&block).expect("still good");
    assert_eq!(names(&format, &block), before);
}

fn names(format: &DirFormat, block: &[u8]) -> Vec<Vec<u8>> {
    let entries = format.entries(block).map(|entry| entry.expect("checked"));
    let used = entries.filter(|entry| entry.inode != 0);
    used.map(|entry| entry.name.to_vec()).collect()
}

fn index(data: &[u8], bits: u8) {
    let format = format(bits);
    let block = block(data);
    if let Ok(root) = format.dx_root(&block, 50) {
        for hash in [0, 1, 0x8000_0000, u32::MAX] {
            let at = root.node.search(hash);
            assert!(root.node.entry(at).is_some());
            let _ = root.node.continues(at, hash);
        }
    }
    if let Ok(node) = format.dx_node(&block, 50) {
        assert!(node.entries().all(|entry| entry.block < 50));
        let (mut low, mut high) = (block.clone(), vec![0; BLOCK]);
        let _ = format.dx_split(&mut low, &mut high);
    }
}

fn extents(data: &[u8]) {
    let bounds = ExtentBounds::root(1, BLOCKS);
    let Ok(node) = ExtentNode::parse(data, &bounds) else {
        return;
    };
    let mut end = 0;
    for extent in node.extents() {
        assert!(u64::from(extent.logical) >= end, "extents overlap");
        end = extent.end();
        assert!(extent.physical >= 1 && extent.physical + u64::from(extent.len) <= BLOCKS);
    }
    for at in 0..node.len() {
        let logical = node.logical(at).expect("counted");
        assert_eq!(node.search(logical), Some(at));
        let _ = node.child_bounds(at, &bounds);
    }
}

fn xattrs(data: &[u8]) {
    let mut block = block(data);
    let Ok((_, set)) = XattrSet::parse_block(&block, INODES) else {
        return;
    };
    if set.block_size_needed() > BLOCK {
        return;
    }
    set.write_block(&mut block, 1).expect("it fits");
    let (_, mut again) = XattrSet::parse_block(&block, INODES).expect("what was written is good");
    let mut before = set.entries.clone();
    let key = |attr: &sapwood_ext4_format::Xattr| (attr.index, attr.name.clone());
    before.sort_by_key(key);
    again.entries.sort_by_key(key);
    assert_eq!(before.len(), again.entries.len());
    for (old, new) in before.iter().zip(&again.entries) {
        assert_eq!(key(old), key(new));
    }
}

fn acl(data: &[u8]) {
    if let Ok(wire) = acl_from_disk(data) {
        let disk = acl_to_disk(&wire).expect("comes from one");
        assert_eq!(acl_from_disk(&disk).expect("and is one"), wire);
    }
    let _ = acl_to_disk(data);
}
