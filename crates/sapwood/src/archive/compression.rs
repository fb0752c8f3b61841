//! Decompression of whatever an archive is compressed with.

use std::io::{Cursor, Read};

use super::error::{ArchiveError, Result};

/// Most memory of an xz decoder, in KiB. `xz -9` needs half of it.
const XZ_MEMORY: u32 = 128 << 10;

/// What a reader has, decompressed: plain, gzip, zstd, xz, bzip2.
///
/// # Errors
/// It cannot be read, or is compressed with something else.
pub(crate) fn plain<'r>(mut reader: impl Read + 'r) -> Result<Box<dyn Read + 'r>> {
    let mut start = Vec::new();
    reader.by_ref().take(6).read_to_end(&mut start)?;
    let all = Cursor::new(start.clone()).chain(reader);
    Ok(match *start {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(all)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::Decoder::new(all)?),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            Box::new(lzma_rust2::XzReader::new_mem_limit(all, true, XZ_MEMORY))
        }
        [b'B', b'Z', b'h', ..] => Box::new(bzip2::read::MultiBzDecoder::new(all)),
        [0x04, 0x22, 0x4d, 0x18, ..] => return Err(ArchiveError::Compression("lz4")),
        [0x1f, 0x9d, ..] => return Err(ArchiveError::Compression("compress")),
        [b'L', b'Z', b'I', b'P', ..] => return Err(ArchiveError::Compression("lzip")),
        [0x89, b'L', b'Z', b'O', ..] => return Err(ArchiveError::Compression("lzop")),
        _ => Box::new(all),
    })
}

/// True if a file that starts so is read as it is.
pub(crate) fn is_plain(start: &[u8]) -> bool {
    !matches!(
        start,
        [0x1f, 0x8b | 0x9d, ..]
            | [0x28, 0xb5, 0x2f, 0xfd, ..]
            | [0xfd, b'7', b'z', b'X', b'Z', 0, ..]
            | [b'B', b'Z', b'h', ..]
            | [0x04, 0x22, 0x4d, 0x18, ..]
            | [b'L', b'Z', b'I', b'P', ..]
            | [0x89, b'L', b'Z', b'O', ..]
    )
}
