//! The bytes of an encoded write.

use std::borrow::Cow;

use sapwood_btrfs::EncodedExtent;
use sapwood_btrfs_format::compression as algorithm;
use sapwood_btrfs_format::stream::{Command, attribute as attr, encoding};

use super::error::{ReceiveError, Result};

/// LZO in sectors of 64 KiB, the largest ones.
const LZO_64K: u32 = encoding::LZO_4K + 4;

/// An algorithm that no file extent item has.
const UNKNOWN: u8 = u8::MAX;

/// The largest piece that one encoded write expands to.
const EXPANDED_MAX: u64 = 128 << 10;

/// The compressed extent of an encoded write, as an image with sectors of `sector` bytes stores it;
/// `None` if it is not compressed, or compressed for sectors of another size.
pub(super) fn encoded<'a>(command: &Command<'a>, sector: u32) -> Result<Option<EncodedExtent<'a>>> {
    let (extent, lzo_sector) = parsed(command)?;
    let fits = match extent.compression {
        algorithm::NONE => false,
        algorithm::LZO => lzo_sector == sector as usize,
        _ => true,
    };
    Ok(fits.then_some(extent))
}

/// The extent of an encoded write, and the sector of LZO in bytes.
fn parsed<'a>(command: &Command<'a>) -> Result<(EncodedExtent<'a>, usize)> {
    let (compression, sector) = algorithm_of(command)?;
    let extent = EncodedExtent {
        offset: command.u64(attr::FILE_OFFSET)?,
        len: command.u64(attr::UNENCODED_FILE_LEN)?,
        extent_len: command.u64(attr::UNENCODED_LEN)?,
        extent_offset: command.u64(attr::UNENCODED_OFFSET)?,
        compression,
        stored: command.get(attr::DATA)?,
    };
    Ok((extent, sector))
}

/// The algorithm of an encoded write as in file extent items, and the sector of LZO in bytes.
fn algorithm_of(command: &Command<'_>) -> Result<(u8, usize)> {
    let number = match command.find(attr::COMPRESSION) {
        Some(_) => command.u32(attr::COMPRESSION)?,
        None => encoding::NONE,
    };
    Ok(match number {
        encoding::NONE => (algorithm::NONE, 0),
        encoding::ZLIB => (algorithm::ZLIB, 0),
        encoding::ZSTD => (algorithm::ZSTD, 0),
        lzo @ encoding::LZO_4K..=LZO_64K => {
            (algorithm::LZO, 4096_usize << (lzo - encoding::LZO_4K))
        }
        _ => (UNKNOWN, 0),
    })
}

/// The offset and the expanded bytes of an encoded write.
pub(super) fn expanded<'a>(command: &Command<'a>) -> Result<(u64, Cow<'a, [u8]>)> {
    let (extent, sector) = parsed(command)?;
    let whole = match usize::try_from(extent.extent_len) {
        _ if extent.compression == algorithm::NONE => Some(Cow::Borrowed(extent.stored)),
        Ok(len) if extent.extent_len <= EXPANDED_MAX => {
            sapwood_btrfs::expand(extent.compression, extent.stored, len, sector).map(Cow::Owned)
        }
        _ => None,
    };
    let part = whole.and_then(|whole| {
        let from = usize::try_from(extent.extent_offset).ok()?;
        let end = from.checked_add(usize::try_from(extent.len).ok()?)?;
        match whole {
            Cow::Borrowed(whole) => whole.get(from..end).map(Cow::Borrowed),
            Cow::Owned(mut whole) => {
                whole.truncate(end);
                (whole.len() == end && from <= end).then(|| Cow::Owned(whole.split_off(from)))
            }
        }
    });
    let damaged = || ReceiveError::Content {
        path: crate::archive::path(command.path(attr::PATH).unwrap_or_default()),
        offset: extent.offset,
    };
    Ok((extent.offset, part.ok_or_else(damaged)?))
}
