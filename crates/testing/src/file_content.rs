//! The bytes of a file, to compare with its bytes at another time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Bytes of a block.
const BLOCK: usize = 64 << 10;

/// The bytes of a file. Two are equal if length and bytes are, whatever of them are holes. Holes
/// cost neither time nor memory, so a sparse image may be large.
#[derive(PartialEq, Eq)]
pub struct FileContent {
    len: u64,
    /// The blocks with a byte other than 0, by offset in bytes.
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl std::fmt::Debug for FileContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes, {} blocks", self.len, self.blocks.len())
    }
}

impl FileContent {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn of(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut blocks = BTreeMap::new();
        let mut buffer = vec![0; BLOCK];
        let mut at = 0;
        while at < len {
            at = match seek(&file, SeekFrom::Data(at)) {
                Ok(data) => data / BLOCK as u64 * BLOCK as u64,
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let count = usize::try_from(len - at).map_or(BLOCK, |left| left.min(BLOCK));
            let block = &mut buffer[..count];
            file.read_exact_at(block, at)?;
            if block.iter().any(|&byte| byte != 0) {
                blocks.insert(at, (*block).into());
            }
            at += count as u64;
        }
        Ok(Self { len, blocks })
    }

    /// Bytes of the file.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Offset of the first byte that differs and that `counts` accepts.
    pub fn first_difference(&self, other: &Self, counts: impl Fn(u64) -> bool) -> Option<u64> {
        let starts: BTreeSet<_> = self.blocks.keys().chain(other.blocks.keys()).collect();
        let byte = |block: Option<&Box<[u8]>>, at: usize| {
            block.and_then(|block| block.get(at)).copied().unwrap_or(0)
        };
        starts.into_iter().find_map(|start| {
            let (a, b) = (self.blocks.get(start), other.blocks.get(start));
            (0..BLOCK).find_map(|at| {
                let place = start + at as u64;
                (byte(a, at) != byte(b, at) && counts(place)).then_some(place)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_zeros_and_every_byte_counts() {
        let dir = crate::scratch::directory();
        let path = dir.path().join("file");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        let empty = FileContent::of(&path).unwrap();
        file.write_all_at(&[0; 8192], 300_000).unwrap();
        assert_eq!(FileContent::of(&path).unwrap(), empty);
        for at in [0, 65_535, 65_536, 300_001, (1 << 20) - 1] {
            file.write_all_at(&[1], at).unwrap();
            let changed = FileContent::of(&path).unwrap();
            assert_ne!(changed, empty, "{at}");
            assert_eq!(changed.first_difference(&empty, |_| true), Some(at));
            assert_eq!(empty.first_difference(&changed, |place| place != at), None);
            file.write_all_at(&[0], at).unwrap();
            assert_eq!(FileContent::of(&path).unwrap(), empty, "{at}");
        }
        file.set_len((1 << 20) + 1).unwrap();
        assert_ne!(FileContent::of(&path).unwrap(), empty);
    }
}
