//! Random bytes as a tree block, as a superblock and as single items: everything that the
//! validators accept parses, and nothing panics.
//!
//! Input: a byte that chooses the structure, then its bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sapwood_btrfs_format::{
    Block, BlockMut, ChecksumKind, DumpBlock, DumpSuper, Expect, Key, SUPER_SIZE, SuperBlock,
    validate_block, validate_content, validate_super,
};

const NODESIZE: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else {
        return;
    };
    match choice % 4 {
        0 => sealed_block(data),
        1 => leaf_of_items(data),
        2 => superblock(data),
        _ => {
            let _ = DumpBlock(data).to_string();
            let _ = validate_super(data, 64 << 10);
        }
    }
});

/// The values that a reader would expect if the header were right, so that the content decides.
fn expect(bytes: &[u8]) -> Option<Expect> {
    let block = Block::new(bytes).ok()?;
    Some(Expect {
        logical: block.bytenr(),
        nodesize: NODESIZE as u32,
        sectorsize: 4096,
        fsid: block.header().fsid,
        checksum: ChecksumKind::Crc32c,
        level: None,
        owner: None,
        min_generation: None,
        max_generation: None,
        first_key: None,
    })
}

fn judge(bytes: &mut [u8]) {
    ChecksumKind::Crc32c.seal_block(bytes);
    let text = DumpBlock(bytes).to_string();
    let Some(expect) = expect(bytes) else {
        return;
    };
    let _ = validate_block(bytes, &expect.with_owner(5).with_level(0));
    let content = validate_content(bytes, &expect);
    if validate_block(bytes, &expect).is_ok() {
        assert!(content.is_ok());
        assert!(!text.contains("BAD"), "{text}");
    }
}

fn sealed_block(data: &[u8]) {
    let mut bytes = vec![0; NODESIZE];
    let len = data.len().min(NODESIZE);
    bytes[..len].copy_from_slice(&data[..len]);
    judge(&mut bytes);
}

/// A well-formed leaf; each item of the input is a key of 17 bytes, a length of 2 bytes and the
/// data.
fn leaf_of_items(mut data: &[u8]) {
    let mut bytes = vec![0; NODESIZE];
    // The generation and the flag WRITTEN of the header do not depend on the input.
    if let Some((owner, rest)) = data.split_first() {
        bytes[88] = *owner;
        data = rest;
    }
    bytes[56] = 1;
    bytes[63] = 1;
    bytes[80] = 1;
    let mut block = match BlockMut::new(&mut bytes) {
        Ok(block) => block,
        Err(_) => return,
    };
    let mut slot = 0;
    while let Some((head, rest)) = data.split_at_checked(19) {
        let number = |from: usize| u64::from_le_bytes(std::array::from_fn(|i| head[from + i]));
        let key = Key::new(number(0), head[8], number(9));
        let len = usize::from(u16::from_le_bytes([head[17], head[18]])).min(rest.len());
        let (item, rest) = rest.split_at(len);
        data = rest;
        if block.insert(slot, &key, item).is_err() {
            break;
        }
        slot += 1;
    }
    judge(&mut bytes);
}

fn superblock(data: &[u8]) {
    let mut bytes = vec![0; SUPER_SIZE];
    let len = data.len().min(SUPER_SIZE);
    bytes[..len].copy_from_slice(&data[..len]);
    let Ok(sb) = SuperBlock::read(&bytes) else {
        return;
    };
    let _ = DumpSuper(&sb).to_string();
    sb.checksum_kind()
        .unwrap_or(ChecksumKind::Crc32c)
        .seal_block(&mut bytes);
    if let Ok(sb) = validate_super(&bytes, 64 << 10) {
        assert!(sb.sys_chunks().all(|chunk| chunk.is_ok()));
    }
}
