//! Superblock defects by variant, and random and mutated bytes: the result is an error or a parsed
//! value, never a panic.

use std::sync::OnceLock;

use crate::common::{Source, blocks, pages};
use proptest::prelude::*;
use sapwood_btrfs_format::{
    BlockMut, ChecksumKind, DumpBlock, DumpSuper, Expect, Key, SUPER_SIZE, SuperBlock, SuperError,
    objectid, validate_block, validate_content, validate_super,
};

#[test]
fn superblock_defects_have_their_variant() {
    let pages = pages("default");
    let good = pages.read(64 << 10, SUPER_SIZE);
    let sb = validate_super(&good, 64 << 10).unwrap();
    assert!(
        DumpSuper(&sb)
            .to_string()
            .contains("incompat MIXED_BACKREF")
    );
    let bad = |edit: fn(&mut SuperBlock)| {
        let mut sb = sb;
        edit(&mut sb);
        let mut bytes = sb.bytes().to_vec();
        ChecksumKind::Crc32c.seal_block(&mut bytes);
        validate_super(&bytes, 64 << 10).unwrap_err()
    };
    use SuperError as E;
    assert!(matches!(bad(|s| s.magic[0] = 0), E::Magic { .. }));
    assert!(matches!(
        bad(|s| s.csum_type = 9.into()),
        E::ChecksumKind { found: 9 }
    ));
    assert!(matches!(bad(|s| s.bytenr = 0.into()), E::Bytenr { .. }));
    assert!(matches!(
        bad(|s| s.sectorsize = 0.into()),
        E::SectorSize { .. }
    ));
    assert!(matches!(
        bad(|s| s.nodesize = 12288.into()),
        E::NodeSize { .. }
    ));
    assert!(matches!(
        bad(|s| s.leafsize = 4096.into()),
        E::NodeSize { .. }
    ));
    assert!(matches!(bad(|s| s.root_level = 8), E::Level { .. }));
    assert!(matches!(bad(|s| s.root = 0.into()), E::RootAddress { .. }));
    assert!(matches!(
        bad(|s| s.log_root = 1.into()),
        E::RootAddress { .. }
    ));
    assert!(matches!(
        bad(|s| s.chunk_root_generation = 999.into()),
        E::Generation { .. }
    ));
    assert!(matches!(bad(|s| s.num_devices = 0.into()), E::Count { .. }));
    assert!(matches!(
        bad(|s| s.bytes_used = u64::MAX.into()),
        E::Count { .. }
    ));
    assert!(matches!(bad(|s| s.label.fill(1)), E::Label));
    assert!(matches!(bad(|s| s.fsid[0] ^= 1), E::DeviceFsid { .. }));
    assert!(matches!(
        bad(|s| s.sys_chunk_array_size = 4000.into()),
        E::Count { .. }
    ));
    assert!(matches!(
        bad(|s| s.sys_chunk_array_size = 100.into()),
        E::SysChunkArray(_)
    ));
    assert!(matches!(
        bad(|s| s.sys_chunk_array[17..25].fill(0)),
        E::SysChunk { .. }
    ));
    assert!(matches!(
        bad(|s| s.sys_chunk_array[17 + 24] = 0x21),
        E::SysChunkType { .. }
    ));
    assert!(matches!(
        bad(|s| s.incompat_flags = 4.into()),
        E::MixedNodeSize { .. }
    ));
    let mut torn = good.clone();
    torn[300] ^= 1;
    assert!(matches!(
        validate_super(&torn, 64 << 10),
        Err(E::Checksum { .. })
    ));
    assert!(matches!(
        validate_super(&good[1..], 64 << 10),
        Err(E::Length { found: 4095 })
    ));
    let mut again = sb;
    let chunks: Vec<_> = sb.sys_chunks().map(|c| c.unwrap()).collect();
    again
        .set_sys_chunks(chunks.iter().map(|(at, chunk)| (*at, chunk)))
        .unwrap();
    let used = sb.sys_chunk_array_size.get() as usize;
    assert_eq!(again.sys_chunk_array_size, sb.sys_chunk_array_size);
    // Bytes after the used part have no meaning; the kernel leaves old chunks there.
    assert!(again.sys_chunk_array[..used] == sb.sys_chunk_array[..used]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A mutated block gives an error, or a block whose items all parse.
    #[test]
    fn mutated_blocks_never_panic(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        near in any::<bool>(),
    ) {
        let found = &blocks()[pick.index(blocks().len())];
        let mut bytes = found.bytes.clone();
        for (at, value) in &changes {
            // Half of the mutations hit the header and item headers, where one byte matters most.
            let range = if near { 600 } else { bytes.len() };
            bytes[at.index(range)] = *value;
        }
        found.expect.checksum.seal_block(&mut bytes);
        let text = DumpBlock(&bytes).to_string();
        if validate_block(&bytes, &found.expect).is_ok() {
            prop_assert!(!text.contains("BAD"), "{}", text);
        }
    }

    /// One item of any kind with any bytes, in a well-formed leaf.
    #[test]
    fn random_items_never_panic(
        pick in any::<prop::sample::Index>(),
        kind in any::<u8>(),
        objectid in prop_oneof![any::<u64>(), Just(objectid::EXTENT_CSUM), Just(256), Just(1u64)],
        offset in any::<u64>(),
        data in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let found = &blocks()[pick.index(blocks().len())];
        let mut bytes = vec![0; found.bytes.len()];
        bytes[..101].copy_from_slice(&found.bytes[..101]);
        bytes[96..101].fill(0);
        let mut block = BlockMut::new(&mut bytes).unwrap();
        block.insert(0, &Key::new(objectid, kind, offset), &data).unwrap();
        let expect = Expect { level: None, first_key: None, ..found.expect };
        let text = DumpBlock(&bytes).to_string();
        if validate_content(&bytes, &expect).is_ok() {
            prop_assert!(!text.contains("BAD"), "{}", text);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let found = &blocks()[0];
        prop_assert!(validate_block(&bytes, &found.expect).is_err());
        let _ = DumpBlock(&bytes).to_string();
        let _ = validate_super(&bytes, 64 << 10);
    }

    #[test]
    fn mutated_superblocks_never_panic(
        changes in prop::collection::vec((0usize..3600, any::<u8>()), 1..6),
    ) {
        static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
        let good = GOOD.get_or_init(|| pages("default").read(64 << 10, SUPER_SIZE));
        let mut bytes = good.clone();
        for (at, value) in changes {
            bytes[at] = value;
        }
        let kind = SuperBlock::read(&bytes).unwrap().checksum_kind();
        kind.unwrap_or(ChecksumKind::Crc32c).seal_block(&mut bytes);
        if let Ok(sb) = validate_super(&bytes, 64 << 10) {
            let _ = DumpSuper(&sb).to_string();
        }
    }
}
