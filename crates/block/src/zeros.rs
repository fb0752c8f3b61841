//! Zeroing ranges of a device.

use crate::{Device, Result};

/// Bytes that are examined at a time.
const PIECE: usize = 1 << 20;

/// Makes a range zeros, and discards it: a discard alone may leave the bytes.
///
/// # Errors
/// The range is beyond the end; errors of the device.
pub fn zero_range(device: &(impl Device + ?Sized), offset: u64, len: u64) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut done = 0;
    while done < len {
        let left = usize::try_from(len - done).unwrap_or(PIECE).min(PIECE);
        let bytes = piece.get_mut(..left).unwrap_or_default();
        let at = offset.saturating_add(done);
        device.read_at(at, bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            bytes.fill(0);
            device.write_at(at, bytes)?;
        }
        done += left as u64;
    }
    device.discard(offset, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn only_the_range_becomes_zeros() {
        let size = 3 << 20;
        let device = MemoryDevice::new(size);
        device.write_at(0, &vec![7; 3 << 20]).unwrap();
        let len = (2 << 20) + 100;
        zero_range(&device, 4096, len).unwrap();
        let mut found = vec![1; 3 << 20];
        device.read_at(0, &mut found).unwrap();
        let zeros = 4096..4096 + len as usize;
        for (at, byte) in found.iter().enumerate() {
            assert_eq!(*byte == 0, zeros.contains(&at), "{at}");
        }
        assert!(zero_range(&device, size - 1, 2).is_err());
    }
}
