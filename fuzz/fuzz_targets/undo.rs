//! Random undo files: nothing panics, and a file that opens brings its image to both sides, again
//! and again.
//!
//! Input: a byte, then the file. If the byte is odd, all of its checksums become right.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sapwood_block::{Device, MemoryDevice, UndoFile, UndoSide, UndoState};

/// Bytes of the head, whose checksum is at its end.
const HEAD: usize = 4096;
/// Bytes of the image.
const SIZE: std::ops::Range<usize> = 16..24;
/// Bytes of a record, and the place of its checksum.
const RECORD: usize = 8208;
const RECORD_SUM: std::ops::Range<usize> = 12..16;
/// Largest image.
const MOST: u64 = 1 << 30;

/// Makes a file of a head and whole records, with right checksums and number of records.
fn seal(bytes: &[u8]) -> Vec<u8> {
    let records = bytes.len().saturating_sub(HEAD).div_ceil(RECORD).min(4);
    let mut file = bytes.to_vec();
    file.resize(HEAD + records * RECORD, 0);
    file[..12].copy_from_slice(b"SAPWUNDO\x01\0\0\0");
    file[24..32].copy_from_slice(&(records as u64).to_le_bytes());
    let sum = crc32fast::hash(&file[..HEAD - 4]);
    file[HEAD - 4..HEAD].copy_from_slice(&sum.to_le_bytes());
    for record in file[HEAD..].chunks_exact_mut(RECORD) {
        let mut sum = crc32fast::Hasher::new();
        sum.update(&record[..RECORD_SUM.start]);
        sum.update(&record[RECORD_SUM.end..]);
        record[RECORD_SUM].copy_from_slice(&sum.finalize().to_le_bytes());
    }
    file
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let file = if kind % 2 == 1 {
        seal(bytes)
    } else {
        bytes.to_vec()
    };
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from_bytes(&file));
    let Ok(undo) = UndoFile::open(device) else {
        return;
    };
    let size = file.get(SIZE).and_then(|size| size.first_chunk());
    let size = u64::from_le_bytes(*size.expect("a whole head"));
    if size > MOST || !size.is_multiple_of(512) {
        return;
    }
    let other = MemoryDevice::new(size + 512);
    assert!(undo.apply(&other, UndoSide::Before, true).is_err());
    let image = MemoryDevice::new(size);
    for side in [UndoSide::After, UndoSide::Before, UndoSide::After] {
        undo.apply(&image, side, true).expect("in memory");
        let state = undo.state(&image).expect("in memory");
        // Pages without a change are on both sides.
        let after = side == UndoSide::After && state == UndoState::After;
        assert!(after || state == UndoState::Before, "{side:?}: {state:?}");
    }
});
