//! The bytes of an encoded write.

use std::borrow::Cow;

use sapwood_btrfs_format::compression as algorithm;
use sapwood_btrfs_format::stream::{Command, attribute as attr, encoding};

use super::error::{ReceiveError, Result};

/// The largest piece that one encoded write expands to.
const EXPANDED_MAX: u64 = 128 << 10;

/// The offset and the expanded bytes of an encoded write.
pub(super) fn expanded<'a>(command: &Command<'a>) -> Result<(u64, Cow<'a, [u8]>)> {
    let start = command.u64(attr::FILE_OFFSET)?;
    let len = command.u64(attr::UNENCODED_FILE_LEN)?;
    let expanded = command.u64(attr::UNENCODED_LEN)?;
    let from = command.u64(attr::UNENCODED_OFFSET)?;
    let data = command.get(attr::DATA)?;
    let number = match command.find(attr::COMPRESSION) {
        Some(_) => command.u32(attr::COMPRESSION)?,
        None => encoding::NONE,
    };
    let (algorithm, sector) = match number {
        encoding::NONE => (algorithm::NONE, 0),
        encoding::ZLIB => (algorithm::ZLIB, 0),
        encoding::ZSTD => (algorithm::ZSTD, 0),
        lzo => (
            algorithm::LZO,
            4096_usize << (lzo - encoding::LZO_4K).min(4),
        ),
    };
    let whole = match usize::try_from(expanded) {
        _ if algorithm == algorithm::NONE => Some(Cow::Borrowed(data)),
        Ok(len) if expanded <= EXPANDED_MAX => {
            sapwood_btrfs::expand(algorithm, data, len, sector).map(Cow::Owned)
        }
        _ => None,
    };
    let part = whole.and_then(|whole| {
        let from = usize::try_from(from).ok()?;
        let end = from.checked_add(usize::try_from(len).ok()?)?;
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
        offset: start,
    };
    Ok((start, part.ok_or_else(damaged)?))
}
