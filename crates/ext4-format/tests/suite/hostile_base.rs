//! No bytes, however broken, make a parser, a validator or a dump panic; validated bytes hold the
//! promises of the validator; known-bad values are refused by name.

use proptest::prelude::*;
use sapwood_ext4_format::{
    BitmapKind, Compat, DumpGroup, DumpInode, DumpSuper, Features, FormatError, Geometry,
    GroupDesc, GroupFlags, Incompat, Inode, InodeFlags, MmpBlock, RoCompat, SUPER_MAGIC,
    SuperBlock, Timestamp, bitmap, file_mode, validate_block_bitmap, validate_group,
    validate_inode, validate_super,
};

/// A superblock that passes: 4 KiB blocks, 10 groups, with checksums.
fn good_super() -> SuperBlock {
    let mut sb = SuperBlock {
        magic: SUPER_MAGIC.into(),
        rev_level: 1.into(),
        ..SuperBlock::default()
    };
    sb.set_features(Features {
        compat: Compat::HAS_JOURNAL,
        incompat: Incompat::FILETYPE | Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG,
        ro_compat: RoCompat::SPARSE_SUPER | RoCompat::METADATA_CSUM | RoCompat::HUGE_FILE,
    });
    sb.checksum_type = 1;
    sb.log_block_size = 2.into();
    sb.log_cluster_size = 2.into();
    sb.blocks_per_group = 32768.into();
    sb.clusters_per_group = 32768.into();
    sb.inodes_per_group = 1024.into();
    sb.inodes_count = 10240.into();
    sb.set_blocks_count(9 * 32768 + 5000).unwrap();
    sb.first_ino = 11.into();
    sb.inode_size = 256.into();
    sb.desc_size = 64.into();
    sb.log_groups_per_flex = 4;
    sb.reserved_gdt_blocks = 100.into();
    sb.journal_inum = 8.into();
    sb.uuid = [7; 16];
    sb
}

const DEVICE: u64 = 10 * 32768 * 4096;

fn geometry() -> Geometry {
    validate_super(&good_super(), DEVICE).unwrap()
}

fn good_desc(geometry: &Geometry, group: u32) -> GroupDesc {
    let mut desc = GroupDesc::new(geometry);
    desc.set_block_bitmap(200 + u64::from(group)).unwrap();
    desc.set_inode_bitmap(220 + u64::from(group)).unwrap();
    desc.set_inode_table(300 + u64::from(group) * 64).unwrap();
    desc.set_free_clusters(1000).unwrap();
    desc.set_checksum(group, geometry);
    desc
}

type Change = fn(&mut SuperBlock);

#[test]
fn a_superblock_with_one_bad_value_is_refused_by_its_name() {
    let bad: &[(&str, Change)] = &[
        ("log_block_size", |sb| sb.log_block_size = 7.into()),
        ("log_block_size", |sb| sb.log_block_size = u32::MAX.into()),
        ("log_cluster_size", |sb| sb.log_cluster_size = 3.into()),
        ("clusters_per_group", |sb| sb.blocks_per_group = 0.into()),
        ("clusters_per_group", |sb| {
            sb.blocks_per_group = 32769.into()
        }),
        ("clusters_per_group", |sb| {
            sb.blocks_per_group = 32776.into()
        }),
        ("inodes_per_group", |sb| sb.inodes_per_group = 0.into()),
        ("inodes_per_group", |sb| sb.inodes_per_group = 1023.into()),
        ("inodes_per_group", |sb| sb.inodes_per_group = 32776.into()),
        ("inode_size", |sb| sb.inode_size = 0.into()),
        ("inode_size", |sb| sb.inode_size = 64.into()),
        ("inode_size", |sb| sb.inode_size = 200.into()),
        ("inode_size", |sb| sb.inode_size = 8192.into()),
        ("first_ino", |sb| sb.first_ino = 10.into()),
        ("first_ino", |sb| sb.first_ino = 10240.into()),
        ("rev_level", |sb| sb.rev_level = 2.into()),
        ("desc_size", |sb| sb.desc_size = 32.into()),
        ("desc_size", |sb| sb.desc_size = 65.into()),
        ("desc_size", |sb| sb.desc_size = 8192.into()),
        ("blocks_count", |sb| sb.blocks_count_hi = 0x1_0000.into()),
        ("blocks_count", |sb| sb.set_blocks_count(0).unwrap()),
        ("blocks_count", |sb| sb.set_blocks_count(1).unwrap()),
        ("first_data_block", |sb| sb.first_data_block = 1.into()),
        ("inodes_count", |sb| sb.inodes_count = 10241.into()),
        ("inodes_count", |sb| sb.set_blocks_count(1 << 40).unwrap()),
        ("reserved_gdt_blocks", |sb| {
            sb.reserved_gdt_blocks = 1025.into()
        }),
        ("first_meta_bg", |sb| {
            sb.feature_incompat = (Incompat::META_BG | Incompat::BIT64).bits().into();
            sb.first_meta_bg = 2.into();
        }),
        ("checksum_type", |sb| sb.checksum_type = 2),
        ("journal_inum", |sb| sb.journal_inum = 10241.into()),
        ("last_orphan", |sb| sb.last_orphan = 10241.into()),
        ("reserved_blocks_count", |sb| {
            sb.r_blocks_count_hi = 1.into()
        }),
    ];
    for (index, (field, change)) in bad.iter().enumerate() {
        let mut sb = good_super();
        change(&mut sb);
        match validate_super(&sb, DEVICE) {
            Err(FormatError::Super { field: found, .. }) => assert_eq!(found, *field, "{index}"),
            other => panic!("{index} {field}: {other:?}"),
        }
    }
}

#[test]
fn what_is_no_file_system_for_us_says_why() {
    let mut sb = good_super();
    sb.magic = 1.into();
    let error = validate_super(&sb, DEVICE).unwrap_err();
    assert!(matches!(error, FormatError::Magic { found: 1, .. }));

    let mut sb = good_super();
    sb.feature_incompat = (sb.feature_incompat.get() | 0x8000_0001).into();
    let error = validate_super(&sb, DEVICE).unwrap_err().to_string();
    assert_eq!(error, "unsupported features: compression, FEATURE_I31");

    let mut sb = good_super();
    sb.feature_incompat = Incompat::JOURNAL_DEV.bits().into();
    let error = validate_super(&sb, DEVICE).unwrap_err();
    assert_eq!(error, FormatError::JournalDevice);

    let need = good_super().blocks_count() * 4096;
    assert!(validate_super(&good_super(), need).is_ok());
    let error = validate_super(&good_super(), need - 1).unwrap_err();
    let device = need - 1;
    assert_eq!(error, FormatError::DeviceTooSmall { need, device });

    let mut sb = good_super();
    sb.set_checksum();
    assert!(SuperBlock::parse(sb.bytes()).is_ok());
    sb.wtime_lo = 1.into();
    let error = SuperBlock::parse(sb.bytes()).unwrap_err();
    assert!(matches!(error, FormatError::SuperChecksum { .. }));
}

#[test]
fn a_descriptor_with_one_bad_place_or_count_is_refused() {
    let geometry = geometry();
    for group in 0..geometry.group_count() {
        validate_group(group, &good_desc(&geometry, group), &geometry).unwrap();
    }
    let end = geometry.blocks_count();
    type Change<'a> = &'a dyn Fn(&mut GroupDesc);
    let bad: &[(&str, Change<'_>)] = &[
        ("block bitmap", &|d| d.set_block_bitmap(0).unwrap()),
        ("block bitmap", &|d| d.set_block_bitmap(1).unwrap()),
        // Group 1 has a copy of superblock and descriptors.
        ("inode bitmap", &|d| d.set_inode_bitmap(32768 + 1).unwrap()),
        ("inode bitmap", &|d| d.set_inode_bitmap(end).unwrap()),
        ("inode bitmap", &|d| d.set_inode_bitmap(200).unwrap()),
        ("inode table", &|d| d.set_inode_table(end - 63).unwrap()),
        ("inode table", &|d| d.set_inode_table(u64::MAX).unwrap()),
        ("inode table", &|d| d.set_inode_table(157).unwrap()), // over both bitmaps
        ("inode table", &|d| d.set_inode_table(32768 - 63).unwrap()),
    ];
    for (index, (part, change)) in bad.iter().enumerate() {
        let mut desc = good_desc(&geometry, 0);
        change(&mut desc);
        desc.set_checksum(0, &geometry);
        match validate_group(0, &desc, &geometry) {
            Err(FormatError::GroupLocation { what, .. }) => assert_eq!(what, *part, "{index}"),
            other => panic!("{index} {part}: {other:?}"),
        }
    }
    let mut desc = good_desc(&geometry, 9);
    desc.set_free_clusters(5001).unwrap();
    desc.set_checksum(9, &geometry);
    let error = validate_group(9, &desc, &geometry).unwrap_err();
    assert_eq!(
        error.to_string(),
        "group 9: free_clusters is 5001, at most 5000 possible"
    );
    desc.set_free_clusters(5000).unwrap();
    let error = validate_group(9, &desc, &geometry).unwrap_err();
    assert!(matches!(error, FormatError::GroupChecksum { group: 9, .. }));
    let error = validate_group(10, &desc, &geometry).unwrap_err();
    assert_eq!(
        error,
        FormatError::NoGroup {
            group: 10,
            count: 10
        }
    );
}

#[test]
fn uninit_flags_need_a_checksum_feature() {
    let mut sb = good_super();
    sb.feature_ro_compat = 0.into();
    let geometry = Geometry::new(&sb).unwrap();
    // Without sparse_super every group has a copy; these places avoid the copy of group 0.
    let mut desc = good_desc(&geometry, 0);
    validate_group(0, &desc, &geometry).unwrap();
    desc.set_flags(GroupFlags::BLOCK_UNINIT);
    let error = validate_group(0, &desc, &geometry).unwrap_err();
    assert_eq!(error, FormatError::GroupFlags { group: 0, flags: 2 });
}

#[test]
fn a_bitmap_in_which_the_groups_own_metadata_are_free_is_refused() {
    let geometry = geometry();
    let mut desc = good_desc(&geometry, 0);
    let mut bytes = vec![0; 4096];
    bitmap::set_range(&mut bytes, 0, 400);
    let kind = BitmapKind::Block;
    bitmap::set_bitmap_checksum(kind, &bytes, &mut desc, &geometry).unwrap();
    validate_block_bitmap(0, &bytes, &desc, &geometry).unwrap();
    for free in [200, 220, 300, 363] {
        let mut bytes = bytes.clone();
        bitmap::clear_bit(&mut bytes, free);
        bitmap::set_bitmap_checksum(kind, &bytes, &mut desc, &geometry).unwrap();
        let error = validate_block_bitmap(0, &bytes, &desc, &geometry).unwrap_err();
        assert!(matches!(error, FormatError::Bitmap { group: 0, .. }));
    }
}

fn good_inode(geometry: &Geometry) -> Inode {
    let mut inode = Inode::new(geometry);
    inode.set_mode(file_mode::REGULAR | 0o644);
    inode.set_links(1);
    inode.set_size(5000, geometry).unwrap();
    inode.set_flags(InodeFlags::EXTENTS);
    inode
}

#[test]
fn an_inode_with_one_bad_value_is_refused_by_its_name() {
    let geometry = geometry();
    validate_inode(12, &good_inode(&geometry), &geometry).unwrap();
    type Change = fn(&mut Inode);
    let bad: &[(&str, Change)] = &[
        ("mode", |i| i.set_mode(0o644)),
        ("mode", |i| i.set_mode(0x3000)),
        ("mode", |i| i.set_mode(0xf000)),
        ("links", |i| i.set_links(65_001)),
        ("file_acl", |i| i.set_file_acl(1 << 40).unwrap()),
        ("size", |i| i.base_mut().size_hi = 0x1001.into()),
        ("size", |i| i.base_mut().size_hi = u32::MAX.into()),
        ("size", |i| i.set_mode(file_mode::DIR)),
        ("size", |i| i.set_mode(file_mode::SYMLINK)),
        ("flags", |i| i.set_flags(InodeFlags::INLINE_DATA)),
        ("flags", |i| i.set_flags(InodeFlags::CASEFOLD)),
    ];
    for (index, (name, change)) in bad.iter().enumerate() {
        let mut inode = good_inode(&geometry);
        change(&mut inode);
        match validate_inode(12, &inode, &geometry) {
            Err(FormatError::Inode { field, .. }) => assert_eq!(field, *name, "{index}"),
            other => panic!("{index} {name}: {other:?}"),
        }
    }
    // A deleted inode has no size any more.
    for mode in [file_mode::DIR, file_mode::SYMLINK] {
        let mut inode = good_inode(&geometry);
        inode.set_mode(mode);
        inode.set_size(0, &geometry).unwrap();
        assert!(validate_inode(12, &inode, &geometry).is_err());
        inode.set_links(0);
        assert!(validate_inode(12, &inode, &geometry).is_ok());
    }
    for extra in [129u16, 30, 0xffff] {
        let mut bytes = vec![0; 256];
        good_inode(&geometry).write(&mut bytes).unwrap();
        bytes[128..130].copy_from_slice(&extra.to_le_bytes());
        let inode = Inode::read(&bytes, &geometry).unwrap();
        let error = validate_inode(12, &inode, &geometry).unwrap_err();
        assert!(matches!(
            error,
            FormatError::Inode {
                field: "extra_isize",
                ..
            }
        ));
    }
    for ino in [0, 10241] {
        let error = validate_inode(ino, &good_inode(&geometry), &geometry).unwrap_err();
        assert!(matches!(error, FormatError::NoInode { .. }));
    }
}

/// A superblock that is good but for some fields.
fn any_super() -> impl Strategy<Value = SuperBlock> {
    let patch = (0usize..1024, any::<u8>());
    let small = prop::sample::select(vec![0u32, 1, 2, 6, 8, 11, 64, 1024, 8192, u32::MAX]);
    (
        prop::collection::vec(patch, 0..4),
        prop::collection::vec((0usize..24, small), 0..4),
    )
        .prop_map(|(patches, words)| {
            let mut bytes = good_super().bytes().to_vec();
            for (word, value) in words {
                bytes[word * 4..word * 4 + 4].copy_from_slice(&value.to_le_bytes());
            }
            for (at, value) in patches {
                bytes[at] = value;
            }
            bytes[0x38..0x3a].copy_from_slice(&SUPER_MAGIC.to_le_bytes());
            SuperBlock::read(&bytes).unwrap()
        })
}

/// Uses everything that a geometry computes.
fn exercise(geometry: &Geometry, number: u64) {
    let group = number as u32;
    let _ = geometry.group_first_block(group);
    let _ = geometry.descriptor_block(group);
    let _ = geometry.backup_super_block(group);
    let _ = geometry.fixed_blocks(group);
    let _ = geometry.desc_table_block(group);
    let _ = geometry.ino(group, (number >> 32) as u32);
    let _ = geometry.inode_in_table(number, group);
    let _ = geometry.group_of_block(number);
    let _ = geometry.block_offset(number);
    let _ = geometry.check_blocks(number, number);
    let _ = geometry.has_super(group);
    let _ = geometry.flex_of_group(group);
    assert!(geometry.flex_count() >= 1);
    let last = geometry.group_count() - 1;
    for group in [0, last, group.min(last)] {
        let first = geometry.group_first_block(group).unwrap();
        let blocks = geometry.group_blocks(group);
        assert!(blocks > 0 && blocks <= geometry.blocks_per_group());
        assert_eq!(geometry.group_of_block(first), Ok((group, 0)));
        let end = first + u64::from(blocks) - 1;
        assert_eq!(geometry.group_of_block(end), Ok((group, blocks - 1)));
        let ino = geometry
            .ino(group, geometry.inodes_per_group() - 1)
            .unwrap();
        let place = (group, geometry.inodes_per_group() - 1);
        assert_eq!(geometry.inode_location(ino), Ok(place));
        assert!(geometry.descriptor_block(group).is_ok());
    }
    let max = geometry.max_extent_file_size();
    assert!(max >= u64::from(geometry.block_size()) && max <= i64::MAX as u64);
    assert!(geometry.max_indirect_file_size() <= max);
    let index = geometry.desc_blocks() - 1;
    let _ = geometry.desc_table_block(index);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_superblock(sb in any_super(), number: u64, bytes in prop::collection::vec(any::<u8>(), 4096)) {
        let _ = DumpSuper(&sb).to_string();
        let _ = SuperBlock::parse(sb.bytes());
        let _ = validate_super(&sb, u64::MAX);
        if let Ok(geometry) = Geometry::new(&sb) {
            exercise(&geometry, number);
            let group = number as u32 % geometry.group_count();
            for group in [group, number as u32] {
                if let Ok(desc) = GroupDesc::read(&bytes, &geometry) {
                    let _ = DumpGroup { group, desc: &desc, geometry: &geometry }.to_string();
                    let _ = validate_group(group, &desc, &geometry);
                    let _ = validate_block_bitmap(group, &bytes, &desc, &geometry);
                }
            }
            if let Ok(inode) = Inode::read(&bytes, &geometry) {
                let ino = number as u32;
                let _ = DumpInode { ino, inode: &inode, geometry: &geometry }.to_string();
                let _ = validate_inode(ino, &inode, &geometry);
            }
        }
    }

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..1100), seed: Option<u32>) {
        if let Ok(sb) = SuperBlock::read(&bytes) {
            let _ = DumpSuper(&sb).to_string();
            let _ = Geometry::new(&sb);
        }
        let _ = SuperBlock::parse(&bytes);
        let _ = MmpBlock::parse(&bytes, seed);
    }

    #[test]
    fn a_random_descriptor_that_passes_is_inside(
        blocks in prop::array::uniform3(0u64..400_000), group in 0u32..10,
    ) {
        let geometry = geometry();
        let mut desc = GroupDesc::new(&geometry);
        desc.set_block_bitmap(blocks[0]).unwrap();
        desc.set_inode_bitmap(blocks[1]).unwrap();
        desc.set_inode_table(blocks[2]).unwrap();
        desc.set_checksum(group, &geometry);
        let taken = |block: u64| match geometry.group_of_block(block) {
            Ok((group, offset)) => {
                offset < geometry.fixed_blocks(group) - geometry.reserved_blocks(group)
            }
            Err(_) => true,
        };
        let table = blocks[2]..blocks[2] + u64::from(geometry.inode_table_blocks());
        let good = !taken(blocks[0]) && !taken(blocks[1]) && !table.clone().any(taken)
            && blocks[0] != blocks[1] && !table.contains(&blocks[0]) && !table.contains(&blocks[1]);
        prop_assert_eq!(validate_group(group, &desc, &geometry).is_ok(), good);
    }

    #[test]
    fn a_random_inode(bytes in prop::collection::vec(any::<u8>(), 256), ino: u32, extra in 0u16..140,
        time: (i64, u32), sectors: u64, size: u64, device: (u32, u32)) {
        let geometry = geometry();
        let mut inode = Inode::read(&bytes, &geometry).unwrap();
        let _ = DumpInode { ino, inode: &inode, geometry: &geometry }.to_string();
        let _ = (inode.sectors(&geometry), inode.size(&geometry), inode.device());
        let _ = (inode.is_fast_symlink(&geometry), inode.attr_area().len(), inode.checksum());
        let valid = validate_inode(12, &inode, &geometry);
        if valid.is_ok() && inode.size(&geometry) > 0 {
            let last = (inode.size(&geometry) - 1) >> geometry.block_bits();
            prop_assert!(u32::try_from(last).is_ok());
        }
        if inode.set_extra_isize(extra).is_ok() {
            prop_assert_eq!(inode.attr_area_mut().len(), if extra == 0 { 0 } else { 128 - usize::from(extra) });
        }
        let time = Timestamp { seconds: time.0, nanos: time.1 };
        inode.set_atime(time);
        inode.set_crtime(time);
        if inode.set_sectors(sectors, &geometry).is_ok() {
            prop_assert_eq!(inode.sectors(&geometry), sectors);
        }
        if inode.set_size(size, &geometry).is_ok() {
            prop_assert_eq!(inode.size(&geometry), size);
        }
        if inode.set_device(device.0, device.1).is_ok() {
            prop_assert_eq!(inode.device(), device);
        }
        inode.set_checksum(ino, &geometry);
        prop_assert_eq!(inode.verify_checksum(ino, &geometry), Ok(()));
    }
}
