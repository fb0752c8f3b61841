//! The device of a new file, whose discarded ranges are zeros.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sapwood_block::{Device, Result, zero_range};

use crate::new_file::NewFile;

/// Bytes between two looks at the holes of a file.
const PIECE: u64 = 1 << 20;

/// Unit in which zeros are left out.
const BLOCK: usize = 4096;

/// The device of a new file. Zeroes discarded ranges: the host may ignore a discard.
#[derive(Debug)]
pub(crate) struct Zeroed {
    device: Arc<dyn Device>,
    /// The file, which tells where it has data.
    file: File,
}

impl Zeroed {
    /// Wraps the device of a new file.
    ///
    /// # Errors
    /// The host refuses a further descriptor.
    pub(crate) fn over(new: &NewFile, device: Arc<dyn Device>) -> Result<Arc<dyn Device>> {
        let file = new.file().try_clone();
        let name = new.path().display().to_string();
        let file = file.map_err(|error| sapwood_block::Error::open(&name, error))?;
        Ok(Arc::new(Self { device, file }))
    }
}

impl sapwood_block::Layer for Zeroed {
    type Below = dyn Device;

    fn below(&self) -> &Self::Below {
        &*self.device
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.saturating_add(len);
        let mut at = offset;
        while let Some(data) = next_data(&self.file, at).filter(|data| *data < end) {
            at = end.min(data.saturating_add(PIECE));
            zero_range(self.below(), data, at - data)?;
        }
        self.below().discard(offset, len)
    }
}

/// The next byte of a file from `at` on that may be other than zero; `None` if there is none.
pub(crate) fn next_data(file: &File, at: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Some(data.max(at)),
        Err(Errno::NXIO) => None,
        // A file system that knows no holes.
        Err(_) => Some(at),
    }
}

/// Writes the blocks that have a byte other than zero to a device of zeros.
pub(super) fn write_used(device: &dyn Device, offset: u64, bytes: &[u8]) -> Result<()> {
    let (mut start, mut end) = (0, 0);
    for block in bytes.chunks(BLOCK) {
        let next = end + block.len();
        if is_zero(block) {
            write_part(device, offset, bytes, start..end)?;
            start = next;
        }
        end = next;
    }
    write_part(device, offset, bytes, start..end)
}

fn write_part(
    device: &dyn Device,
    offset: u64,
    bytes: &[u8],
    part: std::ops::Range<usize>,
) -> Result<()> {
    let start = part.start as u64;
    match bytes.get(part) {
        Some(part) if !part.is_empty() => device.write_at(offset + start, part),
        _ => Ok(()),
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    let mut blocks = bytes.chunks(BLOCK);
    blocks.all(|block| ZEROS.get(..block.len()) == Some(block))
}

#[cfg(test)]
mod tests {
    use sapwood_block::MemoryDevice;

    use super::*;

    #[test]
    fn zero_blocks_are_left_out() {
        let mut bytes = vec![0; 5 * BLOCK + 10];
        bytes[BLOCK] = 1;
        bytes[2 * BLOCK + 5] = 2;
        bytes[5 * BLOCK + 9] = 3;
        let device = MemoryDevice::new(1 << 20);
        device.write_at(3, &[9]).unwrap();
        write_used(&device, 0, &bytes).unwrap();
        let mut found = vec![0; bytes.len()];
        device.read_at(0, &mut found).unwrap();
        assert_eq!(found[3], 9, "a block of zeros was written");
        found[3] = 0;
        assert_eq!(found, bytes);
    }
}
