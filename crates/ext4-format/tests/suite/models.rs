//! Editors against plain collections, and the arithmetic of the formats at its edges.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sapwood_ext4_format::{
    DirFormat, DirHasher, EXTENT_ROOT_MAX, EXTENT_ROOT_SIZE, Extent, ExtentBounds, ExtentError,
    ExtentNode, ExtentNodeMut, HashVersion, HtreeError, IndirectGeometry, NewEntry, XattrError,
    XattrSet, XattrValue, acl_from_disk, acl_to_disk, extent_block_max, rec_len_decode,
    rec_len_encode, xattr_index,
};

fn format(block_size: usize, checksums: bool, hash_in_entry: bool) -> DirFormat {
    DirFormat {
        block_size,
        checksums,
        file_type: true,
        hash_in_entry,
        large_dir: false,
        inodes: 5000,
    }
}

/// Values that `debugfs`'s `dx_hash` gave for this seed: legacy, half MD4, TEA, then the unsigned
/// ones.
#[test]
fn known_hashes() {
    let seed = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];
    let long = "a-name-that-is-longer-than-thirty-two-bytes.txt";
    let known = [
        (
            "foo",
            [
                0x9f57_ef58,
                0x526f_d904,
                0xaa79_9f88,
                0x9f57_ef58,
                0x526f_d904,
                0xaa79_9f88,
            ],
        ),
        (
            "grüße",
            [
                0xcc69_faba,
                0x502c_a218,
                0xe017_506c,
                0xfa34_84be,
                0x8815_16dc,
                0x7152_db06,
            ],
        ),
        (
            long,
            [
                0x5db9_37cc,
                0x6355_0876,
                0xf3ab_b1b4,
                0x5db9_37cc,
                0x6355_0876,
                0xf3ab_b1b4,
            ],
        ),
    ];
    for (name, hashes) in known {
        for (number, hash) in hashes.into_iter().enumerate() {
            let version = HashVersion::from_disk(number as u8 % 3, number >= 3).unwrap();
            let ours = DirHasher::new(version, seed).hash(name.as_bytes()).unwrap();
            assert_eq!(ours.major, hash, "{name} {version:?}");
        }
    }
}

#[test]
fn every_logical_block_has_its_own_way() {
    for block_size in [1024, 2048, 4096, 65536] {
        let geometry = IndirectGeometry::new(block_size);
        let per_block = u64::from(block_size / 4);
        let bounds = [12, 12 + per_block, 12 + per_block + per_block * per_block];
        let edges = bounds.iter().flat_map(|&edge| [edge - 1, edge, edge + 1]);
        for logical in edges
            .chain([0, geometry.max_blocks() - 1])
            .filter(|&logical| logical < 1 << 32)
        {
            let path = geometry.path(logical as u32).unwrap();
            let (&root, below) = path.offsets().split_first().unwrap();
            assert_eq!(below.len(), usize::from(path.depth()));
            let before: u64 = (1..path.depth()).map(|depth| geometry.span(depth)).sum();
            let inside = below
                .iter()
                .fold(0, |sum, &offset| sum * per_block + u64::from(offset));
            assert!(below.iter().all(|&offset| u64::from(offset) < per_block));
            let back = match path.depth() {
                0 => u64::from(root),
                depth => {
                    assert_eq!(root, 11 + u32::from(depth));
                    12 + before + inside
                }
            };
            assert_eq!(back, logical);
        }
    }
    let small = IndirectGeometry::new(1024);
    assert_eq!(small.max_blocks(), 12 + 256 + 256 * 256 + 256 * 256 * 256);
    assert_eq!(small.path(small.max_blocks() as u32), None);
    assert!(IndirectGeometry::new(65536).path(u32::MAX).is_some());
}

#[test]
fn lengths_of_entries_in_the_largest_blocks() {
    for len in (8..=65536).step_by(4) {
        let field = rec_len_encode(len, 65536).unwrap();
        assert_eq!(rec_len_decode(field, 65536), len);
    }
    assert_eq!(rec_len_decode(0, 65536), 65536);
    assert_eq!(rec_len_encode(65536, 65536), Some(65535));
    assert_eq!(rec_len_encode(4096, 4096), Some(4096));
    assert_eq!(rec_len_encode(4100, 4096), None);
    assert_eq!(rec_len_encode(10, 4096), None);
}

#[test]
fn names_of_one_hash_are_found_on_both_sides_of_a_split() {
    let format = format(1024, true, false);
    let (mut low, mut high) = (vec![0; 1024], vec![0; 1024]);
    format.init_block(&mut low).unwrap();
    for number in 0..20_u32 {
        let name = format!("name-{number}");
        let entry = NewEntry {
            name: name.as_bytes(),
            inode: 20,
            file_type: 1,
            hash: (0, 0),
        };
        format.insert(&mut low, &entry).unwrap().unwrap();
    }
    let split = format.split_leaf(&mut low, &mut high, |_| 0x50).unwrap();
    assert_eq!((split.hash, split.kept + split.moved), (0x51, 20));
    let mut root = vec![0; 1024];
    format.dx_init_root(&mut root, 12, 2, 1, 1).unwrap();
    format.dx_insert(&mut root, 1, split.hash, 2).unwrap();
    let node = format.dx_root(&root, 3).unwrap().node;
    assert_eq!(
        (
            node.search(0x50),
            node.continues(0, 0x50),
            node.continues(0, 0x52)
        ),
        (0, true, false)
    );
    let one = NewEntry {
        name: b"one",
        inode: 20,
        file_type: 1,
        hash: (0, 0),
    };
    format.init_block(&mut low).unwrap();
    format.insert(&mut low, &one).unwrap().unwrap();
    let refused = format.split_leaf(&mut low, &mut high, |_| 0);
    assert_eq!(refused, Err(HtreeError::NoSplit { names: 1 }));
}

#[test]
fn each_wrong_thing_in_an_extent_node_has_its_error() {
    let mut bytes = [0; EXTENT_ROOT_SIZE];
    let bounds = ExtentBounds::root(1, 1000);
    let extent = |logical, len, physical| Extent {
        logical,
        len,
        physical,
        unwritten: false,
    };
    let put = |bytes: &mut [u8], extents: &[Extent]| {
        let mut node = ExtentNodeMut::init(bytes, 0).unwrap();
        node.push_extents(extents).unwrap();
    };
    let verdict = |bytes: &[u8], bounds: &ExtentBounds| {
        ExtentNode::parse(bytes, bounds).map(drop).unwrap_err()
    };
    put(&mut bytes, &[extent(0, 10, 5), extent(9, 1, 50)]);
    assert_eq!(
        verdict(&bytes, &bounds),
        ExtentError::Order {
            index: 1,
            logical: 9,
            after: 10
        }
    );
    put(&mut bytes, &[extent(0, 10, 995)]);
    assert!(matches!(
        verdict(&bytes, &bounds),
        ExtentError::Physical { index: 0, .. }
    ));
    put(&mut bytes, &[extent(0, 1, 0)]);
    assert!(matches!(
        verdict(&bytes, &bounds),
        ExtentError::Physical { index: 0, .. }
    ));
    put(&mut bytes, &[extent(5, 10, 5)]);
    let narrow = ExtentBounds {
        depth: Some(0),
        first: 6,
        ..bounds
    };
    assert!(matches!(
        verdict(&bytes, &narrow),
        ExtentError::Range { index: 0, .. }
    ));
    let narrow = ExtentBounds {
        limit: 14,
        ..bounds
    };
    assert!(matches!(
        verdict(&bytes, &narrow),
        ExtentError::Range { index: 0, .. }
    ));
    let deep = ExtentBounds {
        depth: Some(1),
        ..bounds
    };
    assert_eq!(
        verdict(&bytes, &deep),
        ExtentError::Depth {
            found: 0,
            expected: 1
        }
    );
    bytes[16..18].fill(0);
    assert_eq!(
        verdict(&bytes, &bounds),
        ExtentError::Empty {
            index: 0,
            logical: 5
        }
    );
    ExtentNodeMut::init(&mut bytes, 1).unwrap();
    assert!(matches!(
        verdict(&bytes, &bounds),
        ExtentError::Entries { entries: 0, .. }
    ));
    ExtentNodeMut::init(&mut bytes, 6).unwrap();
    assert_eq!(
        verdict(&bytes, &bounds),
        ExtentError::Depth {
            found: 6,
            expected: 5
        }
    );
    bytes[4] = 5;
    assert_eq!(
        verdict(&bytes, &bounds),
        ExtentError::Max { max: 5, room: 4 }
    );
    bytes[0] = 0;
    assert_eq!(
        verdict(&bytes, &bounds),
        ExtentError::Magic { found: 0xf300 }
    );
    assert_eq!(
        (
            EXTENT_ROOT_MAX,
            extent_block_max(1024),
            extent_block_max(4096)
        ),
        (4, 84, 340)
    );
}

#[test]
fn sets_of_xattrs_fit_to_the_byte() {
    let mut set = XattrSet::default();
    assert_eq!(set.ibody_size_needed(), 0);
    for (name, len) in [("a", 1), ("bcd", 4), ("efghi", 0), ("longer-name", 29)] {
        assert_eq!(
            set.set(
                xattr_index::USER,
                name.as_bytes(),
                XattrValue::Bytes(vec![7; len])
            ),
            None
        );
    }
    let old = set
        .set(xattr_index::USER, b"a", XattrValue::Bytes(vec![8; 9]))
        .unwrap();
    assert_eq!(old, XattrValue::Bytes(vec![7]));
    let need = set.ibody_size_needed();
    let mut region = vec![0xff; need];
    set.write_ibody(&mut region).unwrap();
    assert_eq!(XattrSet::parse_ibody(&region, 100).unwrap(), set);
    let full = set.write_ibody(&mut region[..need - 4]).unwrap_err();
    assert_eq!(
        full,
        XattrError::Full {
            need,
            room: need - 4
        }
    );
    let need = set.block_size_needed();
    let mut block = vec![0xff; need];
    set.write_block(&mut block, 1).unwrap();
    let (header, back) = XattrSet::parse_block(&block, 100).unwrap();
    assert_ne!(header.hash.get(), 0);
    let names: Vec<&[u8]> = back.entries.iter().map(|xattr| &xattr.name[..]).collect();
    assert_eq!(names, [&b"a"[..], b"bcd", b"efghi", b"longer-name"]);
    assert!(set.write_block(&mut block[..need - 4], 1).is_err());
}

#[test]
fn values_that_overlap_are_refused() {
    let mut set = XattrSet::default();
    set.set(xattr_index::USER, b"aaaa", XattrValue::Bytes(vec![1; 8]));
    set.set(xattr_index::USER, b"bbbb", XattrValue::Bytes(vec![2; 8]));
    let mut region = vec![0; 100];
    set.write_ibody(&mut region).unwrap();
    // Offsets are in the third and fourth byte of the entries at 4 and 24.
    let spoil = |at: usize, value: u8| {
        let mut bytes = region.clone();
        bytes[at] = value;
        XattrSet::parse_ibody(&bytes, 100).unwrap_err()
    };
    assert!(matches!(spoil(26, region[6]), XattrError::Overlap { .. }));
    assert!(matches!(
        spoil(26, 0),
        XattrError::Overlap { offset: 24, .. }
    ));
    assert!(matches!(
        spoil(26, 96),
        XattrError::Bounds { offset: 24, .. }
    ));
}

#[test]
fn acls_go_both_ways() {
    let disk = [
        1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 7, 0, 0xe8, 3, 0, 0, 0x20, 0, 0, 0,
    ];
    let wire = acl_from_disk(&disk).unwrap();
    assert_eq!(wire.len(), 4 + 3 * 8);
    assert_eq!(wire[8..12], [0xff; 4]);
    assert_eq!(acl_to_disk(&wire).unwrap(), disk);
    for cut in 0..disk.len() {
        // A cut between two entries leaves a shorter list.
        assert_eq!(
            acl_from_disk(&disk[..cut]).is_ok(),
            [4, 8, 16].contains(&cut),
            "{cut}"
        );
    }
    assert!(acl_from_disk(&wire).is_err() && acl_to_disk(&disk).is_err());
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u8, u32),
    Remove(u8),
    Compact,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (any::<u8>(), 1..5000_u32).prop_map(|(name, inode)| Op::Insert(name, inode)),
        4 => any::<u8>().prop_map(Op::Remove),
        1 => Just(Op::Compact),
    ];
    proptest::collection::vec(op, 1..300)
}

/// A name for a number: lengths from 1 to 60, all different.
fn name(number: u8) -> Vec<u8> {
    let mut name = vec![number | 0x80; usize::from(number % 60) + 1];
    name[0] = if number < 128 { b'a' } else { b'b' };
    name.push((number & 0x7f).max(1) | 0x80);
    name.push(number % 3 + b'0');
    name
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_directory_block_is_a_map(ops in ops(), size in 0..3_usize, checksums: bool, hashes: bool) {
        let format = format([1024, 4096, 65536][size], checksums, hashes);
        let mut block = vec![0xff; format.block_size];
        format.init_dots(&mut block, 12, 2).unwrap();
        let mut model = BTreeMap::new();
        for op in ops {
            match op {
                Op::Insert(number, inode) if !model.contains_key(&name(number)) => {
                    let name = name(number);
                    let entry = NewEntry { name: &name, inode, file_type: 1, hash: (inode, 9) };
                    let scan = format.scan(&block, &name, format.entry_size(&name)).unwrap();
                    prop_assert_eq!((scan.hit, scan.before), (None, None));
                    let mut other = block.clone();
                    let put = match scan.room {
                        Some(at) => format.insert_at(&mut other, at, &entry).unwrap(),
                        None => false,
                    };
                    let inserted = format.insert(&mut block, &entry).unwrap().is_some();
                    prop_assert_eq!((inserted, &block), (put, &other));
                    if inserted {
                        model.insert(name, inode);
                    } else {
                        prop_assert!(!format.has_room(&block, &name).unwrap());
                    }
                }
                Op::Insert(number, inode) => {
                    let name = name(number);
                    let at = format.find(&block, &name).unwrap().unwrap().offset;
                    format.set_inode(&mut block, at, inode, 1).unwrap();
                    model.insert(name, inode);
                }
                Op::Remove(number) => {
                    let found = format.find(&block, &name(number)).unwrap().map(|entry| entry.offset);
                    prop_assert_eq!(found.is_some(), model.remove(&name(number)).is_some());
                    let scan = format.scan(&block, &name(number), 8).unwrap();
                    prop_assert_eq!(scan.hit.map(|entry| entry.offset), found);
                    if let Some(at) = found {
                        let mut other = block.clone();
                        format.remove_behind(&mut other, scan.before, at).unwrap();
                        prop_assert!(format.remove_behind(&mut other, scan.before, at).is_err());
                        format.remove(&mut block, at).unwrap();
                        prop_assert_eq!(&block, &other);
                    }
                }
                Op::Compact => format.compact(&mut block).unwrap(),
            }
            format.check(&block).unwrap();
        }
        let used = format.entries(&block).map(Result::unwrap).filter(|entry| entry.inode != 0 && !entry.is_dots());
        let listed: BTreeMap<Vec<u8>, u32> = used.map(|entry| (entry.name.to_vec(), entry.inode)).collect();
        prop_assert_eq!(format.is_empty(&block).unwrap(), model.is_empty());
        prop_assert_eq!(listed, model);
        format.seal(&mut block, 77).unwrap();
        format.verify(&block, 77).unwrap();
    }

    #[test]
    fn an_extent_node_is_a_list(ops in proptest::collection::vec((0..4_u8, any::<u16>(), any::<u16>()), 1..200)) {
        let mut bytes = vec![0; 1024];
        let mut node = ExtentNodeMut::init(&mut bytes, 0).unwrap();
        let mut model: Vec<Extent> = Vec::new();
        for (op, a, b) in ops {
            let at = usize::from(a) % (model.len() + 1);
            let extent = Extent {
                logical: u32::from(b),
                len: u32::from(b % 32767) + 1,
                physical: u64::from(a) << 32 | u64::from(b),
                unwritten: b.is_multiple_of(2),
            };
            match op {
                0 | 1 if model.len() < usize::from(extent_block_max(1024)) => {
                    node.insert_extent(at, &extent).unwrap();
                    model.insert(at, extent);
                }
                0 | 1 => prop_assert_eq!(node.insert_extent(at, &extent), Err(ExtentError::Full { max: 84 })),
                2 => {
                    let count = usize::from(b) % (model.len() - at + 1);
                    node.remove(at, count).unwrap();
                    model.drain(at..at + count);
                }
                _ => {
                    node.remove(at, model.len() - at).unwrap();
                    node.push_extents(&model[at..]).unwrap();
                }
            }
            let listed: Vec<Extent> = node.view().unwrap().extents().collect();
            prop_assert_eq!(&listed, &model);
        }
    }
}
