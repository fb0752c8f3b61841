//! Compressed data with errors: every decoder returns an error or exactly the requested bytes; our
//! own compressed data decompresses to the input.
//!
//! Input: a byte that chooses the algorithm, and whether the rest is a stream or data to be
//! compressed; two bytes of length in units of 2 bytes; the rest.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sapwood_btrfs::{Compression, expand, fuzzing};

const SECTOR: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Some(([choice, low, high], data)) = data.split_first_chunk() else {
        return;
    };
    let len = usize::from(u16::from_le_bytes([*low, *high])) * 2 + 1;
    let algorithm = choice % 5;
    if choice & 0x80 == 0 {
        if let Some(out) = expand(algorithm, data, len, SECTOR) {
            assert_eq!(out.len(), len);
        }
        return;
    }
    let how = match algorithm {
        0 => Compression::Zlib(1 + choice / 5 % 9),
        1 => Compression::Lzo,
        2 => Compression::Zstd(1),
        _ => Compression::Zstd(3),
    };
    // Some repetition, so that there is something to compress.
    let data = data.repeat(1 + len % 7);
    if data.len() > 128 << 10 {
        return;
    }
    if let Some(packed) = fuzzing::compress(how, &data, data.len().max(64) * 2, SECTOR) {
        let back = expand(how.id(), &packed, data.len(), SECTOR);
        assert_eq!(back.as_deref(), Some(&*data));
    }
});
