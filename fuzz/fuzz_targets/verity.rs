//! Random bytes as a hash device of dm-verity: nothing panics, and no byte is read that the tree
//! does not verify.
//!
//! Input: the hash device. A superblock that is accepted gets a tree of its own, which then has one
//! byte of the input in it.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sapwood_block::{Device, MemoryDevice};
use sapwood_verity::{HEADER_SIZE, Header, RootHash, VerityDevice, build};

/// Bytes of data.
const DATA: u64 = 256 << 10;

fuzz_target!(|bytes: &[u8]| {
    let Some(first) = bytes.first_chunk::<HEADER_SIZE>() else {
        return;
    };
    let hashes = Arc::new(MemoryDevice::new(bytes.len() as u64));
    hashes.write_at(0, bytes).expect("in memory");
    let data = Arc::new(MemoryDevice::new(DATA));
    let root = RootHash(vec![7; 32]);
    assert!(VerityDevice::open(data.clone(), hashes, root).is_err());
    let Ok(header) = Header::parse(first) else {
        return;
    };
    assert_eq!(Header::parse(&header.bytes()).expect("accepted"), header);
    let hashes = Arc::new(MemoryDevice::new(1 << 20));
    let built = build(
        &*data,
        &*hashes,
        &header.params,
        Some(header.uuid),
        &mut |_| (),
    );
    let Ok((_, root)) = built else {
        return;
    };
    let at = u64::from(bytes[bytes.len() - 1]) * 97 % hashes.size();
    let mut byte = [0];
    hashes.read_at(at, &mut byte).expect("in it");
    hashes.write_at(at, &[byte[0] ^ 1]).expect("in it");
    let opened = VerityDevice::open(data, hashes, root);
    if let Ok(device) = opened
        && at >= HEADER_SIZE as u64
    {
        let _ = device.verify_all(&mut |_| ());
    }
});
