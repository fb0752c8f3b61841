//! Random headers of LUKS: nothing panics or takes long, and a volume without a key slot does not
//! open.
//!
//! Input: a byte, then the start of a device. If the byte is odd it becomes a LUKS1 header. Else its
//! first 4096 bytes become the binary part of a LUKS2 header whose checksum is right, and the rest
//! is the metadata.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sapwood_block::{Device, MemoryDevice};
use sapwood_luks::describe;
use sha2::{Digest, Sha256};

/// Bytes of a LUKS2 header.
const HEADER: usize = 16 << 10;
/// Bytes of its binary part.
const BINARY: usize = 4096;
/// Place of the checksum in it.
const CHECKSUM: std::ops::Range<usize> = 448..512;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let mut start = vec![0; HEADER];
    let len = bytes.len().min(HEADER);
    start[..len].copy_from_slice(&bytes[..len]);
    start[..6].copy_from_slice(b"LUKS\xba\xbe");
    if kind % 2 == 1 {
        start[6..8].copy_from_slice(&[0, 1]);
    } else {
        start[6..8].copy_from_slice(&[0, 2]);
        start[8..16].copy_from_slice(&(HEADER as u64).to_be_bytes());
        start[72..104].fill(0);
        start[72..78].copy_from_slice(b"sha256");
        start[256..264].fill(0);
        start[BINARY - 3584..BINARY].fill(0);
        start[CHECKSUM].fill(0);
        let digest = Sha256::digest(&start);
        start[CHECKSUM][..32].copy_from_slice(&digest);
    }
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(1 << 20));
    device.write_at(0, &start).expect("in memory");
    let Ok(found) = describe(&*device) else {
        return;
    };
    let mut slots = found.slots.iter();
    if slots.all(|slot| slot.derivation.is_none()) {
        let key = sapwood_luks::Key::new(vec![1]);
        assert!(sapwood_luks::open(device, &key).is_err());
    }
});
