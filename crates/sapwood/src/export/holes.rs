//! Files with holes, in version 1.0 of GNU tar's sparse format.
//!
//! A pax header names the file and its length. The entry itself has another name, so that a program
//! that does not know the format makes no file with the wrong content under the right name. The
//! content begins with a map, which is filled up with zeros to a block: decimal numbers, one a
//! line, first the number of pieces, then the offset and the length of each. The pieces follow.

use crate::damage::{Content, InImage};
use crate::vfs;

/// Unit of an archive, in bytes.
const BLOCK: usize = 512;
/// Most pieces of a map. The rest is one piece.
const PIECES: usize = 1 << 20;

/// Where a file has data: offset and length of each piece, in ascending order.
pub(super) struct Map(pub(super) Vec<(u64, u64)>);

impl Map {
    /// The map of a file of `size` bytes; `None` if it has no holes, or none that can be found.
    ///
    /// # Errors
    /// The file system cannot search the file for data and holes.
    pub(super) fn of(file: &InImage<'_>, size: u64) -> vfs::Result<Option<Self>> {
        match pieces(file, size) {
            Ok(pieces) if pieces == [(0, size)] => Ok(None),
            Ok(pieces) => Ok(Some(Self(pieces))),
            Err(error) => InImage::damage(error).map(|_| None),
        }
    }

    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        let lengths = self.0.iter().map(|(_, length)| *length);
        lengths.fold(0, u64::saturating_add)
    }

    /// The map as it begins the content of a file of `size` bytes.
    pub(super) fn text(&self, size: u64) -> Vec<u8> {
        // A piece without length marks the end of a last hole for GNU tar.
        let ends = self
            .0
            .last()
            .is_some_and(|(at, length)| at + length == size);
        let end = (!ends).then_some((size, 0));
        let count = self.0.len() + usize::from(!ends);
        let mut text = format!("{count}\n").into_bytes();
        for (at, length) in self.0.iter().copied().chain(end) {
            text.extend_from_slice(format!("{at}\n{length}\n").as_bytes());
        }
        text.resize(text.len().next_multiple_of(BLOCK), 0);
        text
    }
}

fn pieces(file: &InImage<'_>, size: u64) -> vfs::Result<Vec<(u64, u64)>> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while let Some(data) = file.data(at)?.filter(|data| *data < size) {
        let end = if pieces.len() + 1 < PIECES {
            file.hole(data)?.min(size)
        } else {
            size
        };
        if end <= data {
            break;
        }
        pieces.push((data, end - data));
        at = end;
    }
    Ok(pieces)
}

/// The name of the entry of a file that has the path `path`.
pub(super) fn entry_name(path: &[u8]) -> Vec<u8> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let (dir, name) = path.split_at(slash.map_or(0, |slash| slash + 1));
    [dir, b"GNUSparseFile.0/", name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_fills_whole_blocks_and_reaches_the_end() {
        let text = Map(vec![(4096, 4096)]).text(1 << 20);
        assert!(text.starts_with(b"2\n4096\n4096\n1048576\n0\n\0"));
        assert_eq!(text.len(), BLOCK);
        let text = Map(vec![(4096, 10)]).text(4106);
        assert!(text.starts_with(b"1\n4096\n10\n\0"));
        let text = Map(Vec::new()).text(7);
        assert!(text.starts_with(b"1\n7\n0\n\0"));
        let many = (0..100).map(|number| (number << 20, 4096)).collect();
        assert_eq!(Map(many).text(1 << 30).len() % BLOCK, 0);
    }

    #[test]
    fn the_entry_has_another_name_in_the_same_directory() {
        assert_eq!(entry_name(b"f"), b"GNUSparseFile.0/f");
        assert_eq!(entry_name(b"a/b/f"), b"a/b/GNUSparseFile.0/f");
    }
}
