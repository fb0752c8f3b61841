//! Arbitrary bytes: whatever they are, parsers and editors end, without a panic, in a
//! result or an error. Each block is either all random or a good one with some bytes changed, as
//! random ones rarely pass the first check.

use proptest::prelude::*;
use sapwood_ext4_format::{
    DirFormat, DirHasher, Extent, ExtentBounds, ExtentIndex, ExtentNode, ExtentNodeMut,
    HashVersion, NewEntry, QuotaKind, Xattr, XattrSet, XattrValue, acl_from_disk, acl_to_disk,
    dir_type, extent_block_seal, extent_block_verify, indirect_check, inline_dir_parent,
    inline_dir_region, orphan_check, orphan_init, orphan_seal, orphan_verify, xattr_block_seal,
    xattr_block_verify, xattr_full_name, xattr_split_name,
};

const SIZE: usize = 1024;

fn format(checksums: bool, hash_in_entry: bool, block_size: usize) -> DirFormat {
    DirFormat {
        block_size,
        checksums,
        file_type: true,
        hash_in_entry,
        large_dir: true,
        inodes: 5000,
    }
}

/// Random bytes, or `good` with up to 8 bytes changed.
fn spoiled(good: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let len = good.len();
    let changes = proptest::collection::vec((0..len, any::<u8>()), 1..8);
    // Heads decide most, so half of the changes go there.
    let early = proptest::collection::vec((0..len.min(64), any::<u8>()), 0..8);
    let changed = (changes, early).prop_map(move |(changes, early)| {
        let mut bytes = good.clone();
        for (at, byte) in changes.into_iter().chain(early) {
            bytes[at] = byte;
        }
        bytes
    });
    prop_oneof![1 => proptest::collection::vec(any::<u8>(), len), 4 => changed]
}

fn good_extents(depth: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut node = ExtentNodeMut::init(&mut bytes, depth).unwrap();
    for number in 0..4_u32 {
        let at = number as usize;
        if depth == 0 {
            let extent = Extent {
                logical: number * 10,
                len: 5,
                physical: 100 + u64::from(number),
                unwritten: number == 2,
            };
            node.insert_extent(at, &extent).unwrap();
        } else {
            node.insert_index(
                at,
                &ExtentIndex {
                    logical: number * 10,
                    child: 200,
                },
            )
            .unwrap();
        }
    }
    bytes
}

fn good_dir(format: &DirFormat) -> Vec<u8> {
    let mut block = vec![0; format.block_size];
    format.init_dots(&mut block, 12, 2).unwrap();
    for number in 0..12_u32 {
        let name = "n".repeat(number as usize * 4 + 1);
        let entry = NewEntry {
            name: name.as_bytes(),
            inode: 20 + number,
            file_type: dir_type::REGULAR,
            hash: (1, 2),
        };
        format.insert(&mut block, &entry).unwrap();
    }
    block
}

fn good_node(format: &DirFormat, root: bool) -> Vec<u8> {
    let mut block = vec![0; format.block_size];
    if root {
        format.dx_init_root(&mut block, 12, 2, 1, 1).unwrap();
    } else {
        format.dx_init_node(&mut block, 1).unwrap();
    }
    for number in 1..20_u32 {
        format
            .dx_insert(&mut block, number as usize, number << 20, number + 1)
            .unwrap();
    }
    block
}

fn good_set() -> XattrSet {
    let value = |len: usize| XattrValue::Bytes(vec![len as u8; len]);
    let entries = vec![
        Xattr {
            index: 1,
            name: b"one".to_vec(),
            value: value(5),
        },
        Xattr {
            index: 1,
            name: b"empty".to_vec(),
            value: value(0),
        },
        Xattr {
            index: 6,
            name: b"selinux".to_vec(),
            value: value(33),
        },
        Xattr {
            index: 1,
            name: b"far".to_vec(),
            value: XattrValue::Inode {
                inode: 30,
                size: 9000,
                hash: 77,
            },
        },
    ];
    XattrSet { entries }
}

/// All that can be done with an extent node.
fn use_extents(bytes: &[u8], bounds: &ExtentBounds) {
    if let Ok(node) = ExtentNode::parse(bytes, bounds) {
        assert_eq!(node.extents().count() + node.indexes().count(), node.len());
        for at in 0..=node.len() {
            let _ = node.child_bounds(at, bounds);
        }
        assert!(node.search(u32::MAX).is_none_or(|at| at + 1 == node.len()));
    }
    let mut copy = bytes.to_vec();
    let _ = extent_block_verify(&copy, 1);
    let sealed = extent_block_seal(&mut copy, 1).is_ok();
    assert_eq!(extent_block_verify(&copy, 1).is_ok(), sealed);
    if let Ok(mut node) = ExtentNodeMut::open(&mut copy) {
        let _ = node.insert_extent(
            1,
            &Extent {
                logical: 3,
                len: 1,
                physical: 9,
                unwritten: true,
            },
        );
        let _ = node.insert_index(
            1,
            &ExtentIndex {
                logical: 3,
                child: 9,
            },
        );
        let _ = node.remove(1, usize::MAX);
        let _ = node.remove(0, 1);
        let _ = node.set_depth(3);
    }
}

/// All that can be done with a directory block or region.
fn use_dir(format: &DirFormat, bytes: &[u8], offset: usize) {
    let judged = format.check(bytes);
    let _ = (
        format.find(bytes, b"n"),
        format.is_empty(bytes),
        format.verify(bytes, 1),
        format.check_region(bytes),
    );
    let _ = (
        format.entry_at(bytes, offset),
        format.entries_from(bytes, offset).count(),
        format.region_find(bytes, b"n"),
    );
    assert!(format.entries(bytes).count() <= bytes.len() / 8 + 1);
    let entry = NewEntry {
        name: b"new name",
        inode: 9,
        file_type: 1,
        hash: (3, 4),
    };
    let run = |change: &dyn Fn(&mut [u8]) -> bool| {
        let mut copy = bytes.to_vec();
        if change(&mut copy) && judged.is_ok() {
            assert_eq!(
                format.check(&copy),
                Ok(()),
                "a change made a good block bad"
            );
        }
    };
    run(&|block| format.insert(block, &entry).is_ok());
    run(&|block| format.remove(block, offset).is_ok());
    run(&|block| format.compact(block).is_ok());
    run(&|block| format.set_inode(block, offset, 3, 1).is_ok());
    let (mut low, mut high) = (bytes.to_vec(), vec![0; format.block_size]);
    let split = format.split_leaf(&mut low, &mut high, |name| name.len() as u32 * 2);
    if split.is_ok() && judged.is_ok() {
        assert_eq!((format.check(&low), format.check(&high)), (Ok(()), Ok(())));
    }
}

/// All that can be done with a node of a hash tree.
fn use_node(format: &DirFormat, bytes: &[u8], hash: u32) {
    if let Ok(root) = format.dx_root(bytes, 100) {
        let at = root.node.search(hash);
        let _ = (root.node.entry(at).unwrap(), root.node.continues(at, hash));
        let _ = HashVersion::from_disk(root.info.hash_version, false);
    }
    if let Ok(node) = format.dx_node(bytes, 100) {
        assert_eq!(node.entries().count(), node.count());
        node.entry(node.search(hash)).unwrap();
    }
    let (mut copy, mut other) = (bytes.to_vec(), vec![0; format.block_size]);
    let _ = format.dx_verify(bytes, 5);
    if format.dx_seal(&mut copy, 5).is_ok() {
        assert_eq!(format.dx_verify(&copy, 5), Ok(()));
    }
    let _ = format.dx_insert(&mut copy, 1, hash, 5);
    let _ = format.dx_split(&mut copy, &mut other);
    let _ = format.dx_grow(&mut copy, &mut other, 7);
    let _ = format.dx_set_parent(&mut copy, 7);
}

fn use_xattrs(bytes: &[u8]) {
    let mut again = vec![0; bytes.len()];
    if let Ok((header, set)) = XattrSet::parse_block(bytes, 5000)
        && set.write_block(&mut again, header.refcount.get()).is_ok()
    {
        let mut back = XattrSet::parse_block(&again, 5000).unwrap().1;
        for xattr in &set.entries {
            let written = back.remove(xattr.index, &xattr.name);
            assert_eq!(written.as_ref(), Some(xattr));
        }
        assert!(back.entries.is_empty());
    }
    if let Ok(set) = XattrSet::parse_ibody(bytes, 5000)
        && set.write_ibody(&mut again).is_ok()
    {
        assert_eq!(XattrSet::parse_ibody(&again, 5000), Ok(set));
    }
    let mut copy = bytes.to_vec();
    let _ = xattr_block_verify(bytes, 1, 2);
    if xattr_block_seal(&mut copy, 1, 2).is_ok() {
        assert_eq!(xattr_block_verify(&copy, 1, 2), Ok(()));
    }
}

fn block_of_xattrs() -> Vec<u8> {
    let mut block = vec![0; SIZE];
    good_set().write_block(&mut block, 3).unwrap();
    block
}

fn region_of_xattrs() -> Vec<u8> {
    let mut region = vec![0; 226];
    good_set().write_ibody(&mut region).unwrap();
    region
}

fn good_orphans() -> Vec<u8> {
    let mut block = vec![0; SIZE];
    orphan_init(&mut block).unwrap();
    block
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn extent_nodes(
        bytes in prop_oneof![
            spoiled(good_extents(0, SIZE)),
            spoiled(good_extents(2, SIZE)),
            spoiled(good_extents(0, 60)),
            proptest::collection::vec(any::<u8>(), 0..70),
        ],
        depth in proptest::option::of(0..4_u16),
    ) {
        let bounds = ExtentBounds { depth, ..ExtentBounds::root(1, 1000) };
        use_extents(&bytes, &bounds);
    }

    #[test]
    fn directory_blocks(
        bytes in prop_oneof![
            spoiled(good_dir(&format(true, false, SIZE))),
            spoiled(good_dir(&format(false, true, SIZE))),
            proptest::collection::vec(any::<u8>(), 0..70),
        ],
        offset in 0..SIZE + 8,
        checksums: bool,
        hashes: bool,
    ) {
        use_dir(&format(checksums, hashes, SIZE), &bytes, offset);
    }

    #[test]
    fn hash_tree_nodes(
        bytes in prop_oneof![
            spoiled(good_node(&format(true, false, SIZE), true)),
            spoiled(good_node(&format(true, false, SIZE), false)),
            proptest::collection::vec(any::<u8>(), 0..70),
        ],
        hash: u32,
        checksums: bool,
    ) {
        use_node(&format(checksums, false, SIZE), &bytes, hash);
    }

    #[test]
    fn xattr_lists(
        bytes in prop_oneof![
            spoiled(block_of_xattrs()),
            spoiled(region_of_xattrs()),
            proptest::collection::vec(any::<u8>(), 0..70),
        ],
    ) {
        use_xattrs(&bytes);
    }

    #[test]
    fn small_things(
        bytes in prop_oneof![spoiled(good_orphans()), proptest::collection::vec(any::<u8>(), 0..70)],
        name in proptest::collection::vec(any::<u8>(), 0..300),
        seed: [u32; 4],
        number in 0..8_u8,
    ) {
        let _ = (orphan_check(&bytes, 50), orphan_verify(&bytes, 1, 2), indirect_check(&bytes, 1, 1000));
        let mut copy = bytes.clone();
        if orphan_seal(&mut copy, 1, 2).is_ok() {
            prop_assert_eq!(orphan_verify(&copy, 1, 2), Ok(()));
        }
        let _ = (inline_dir_parent(&bytes), inline_dir_region(&bytes), QuotaKind::recognise(&bytes));
        if let Ok(wire) = acl_from_disk(&bytes) {
            prop_assert_eq!(acl_to_disk(&wire), Ok(bytes.clone()));
        }
        let _ = acl_to_disk(&bytes);
        if let Some((index, rest)) = xattr_split_name(&name) {
            prop_assert_eq!(xattr_full_name(index, rest), Some(name.clone()));
        }
        if let Some(version) = HashVersion::from_disk(number, false) {
            let hash = DirHasher::new(version, seed).hash(&name);
            prop_assert!(hash.is_none_or(|hash| hash.major & 1 == 0 && hash.major != 0xffff_fffe));
        }
    }
}
