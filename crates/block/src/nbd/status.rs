//! Block status: which ranges of an export take no space.
//!
//! # How it works
//!
//! With structured replies the handshake asks for the metadata context [`ALLOCATION`]. A reply to
//! `NBD_CMD_BLOCK_STATUS` then has extents that follow one another from the begin of the range: a
//! length and flags each. A server may leave out the end of the range, and describe more than the
//! range in the last extent.
//!
//! A large discard asks for the status first, and trims only allocated ranges: trimming an image
//! again, or making a file system on a new thin volume, costs few requests. If the server has no
//! status, or fails to report it, the whole range is trimmed.

use super::device::{MOST_WITHOUT_DATA, NbdDevice, without_data};
use super::session::Session;
use super::wire::{CMD_BLOCK_STATUS, STATE_HOLE};
use crate::error::Violation;
use crate::{Device, Error};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Name of the context whose flags report allocation.
pub(super) const ALLOCATION: &[u8] = b"base:allocation";
/// Discards from this many bytes on ask first.
pub(super) const WORTH_ASKING: u64 = 16 << 20;
/// Bytes of an extent in a reply.
const EXTENT: usize = 8;
/// The longest list of extents in a reply, in bytes, as from `nbdkit`.
const MAX_EXTENTS: usize = EXTENT << 20;

/// Number of bytes of the extents in a message of `len` bytes, if one can have that length.
pub(super) fn bytes_of_extents(len: u32) -> Option<usize> {
    let bytes = (len as usize).checked_sub(size_of::<u32>())?;
    let whole = bytes > 0 && bytes.is_multiple_of(EXTENT) && bytes <= MAX_EXTENTS;
    whole.then_some(bytes)
}

/// Lengths in bytes, and flags, of the extents of a reply.
fn extents(reply: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    let (extents, _) = reply.as_chunks::<EXTENT>();
    extents.iter().map(|&[a, b, c, d, rest @ ..]| {
        let len = u32::from_be_bytes([a, b, c, d]);
        (len.into(), u32::from_be_bytes(rest))
    })
}

/// Verifies the extents of a reply to a request of `len` bytes: each has a length and begins in the
/// range.
pub(super) fn verify(reply: &[u8], len: u32) -> Result<(), Violation> {
    let mut at = 0;
    for (bytes, _) in extents(reply) {
        if bytes == 0 || at >= u64::from(len) {
            return Err(Violation::Extent { at, len: bytes });
        }
        at += bytes;
    }
    Ok(())
}

impl NbdDevice {
    /// Trims the allocated parts of a range of whole blocks.
    pub(super) fn discard_allocated(&self, start: u64, len: u64) -> Result<()> {
        let (mut at, end) = (start, start + len);
        while at < end {
            let asked = (end - at).min(MOST_WITHOUT_DATA);
            let reply = match self.status(at, asked) {
                Ok(Some(reply)) => reply,
                Ok(None) => return self.trim(at, end - at),
                Err(Error::Io { source, .. }) => {
                    log::debug!("{}: no block status: {source}", self.name());
                    return self.trim(at, end - at);
                }
                Err(error) => return Err(error),
            };
            for (bytes, flags) in extents(&reply) {
                let bytes = bytes.min(end - at);
                if flags & STATE_HOLE == 0 {
                    self.trim(at, bytes)?;
                }
                at += bytes;
            }
        }
        Ok(())
    }

    /// The extents of a range; `None` if a connection knows no status.
    fn status(&self, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        self.request("block status", offset, len, |session: &Session| {
            if !session.tells_status() {
                return Ok(Some(None));
            }
            let mut reply = Vec::new();
            let request = without_data(CMD_BLOCK_STATUS, 0, offset, len);
            session.all(request, |_, data| reply = data)?;
            Ok(Some(Some(reply)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_have_a_length_and_begin_in_the_range() {
        let reply = |list: &[(u32, u32)]| -> Vec<u8> {
            let numbers = list.iter().flat_map(|&(len, flags)| [len, flags]);
            numbers.flat_map(u32::to_be_bytes).collect()
        };
        let longer = reply(&[(4096, 0), (u32::MAX, STATE_HOLE)]);
        assert_eq!(verify(&longer, 8192), Ok(()));
        assert_eq!(
            extents(&longer).collect::<Vec<_>>(),
            [(4096, 0), (u32::MAX.into(), 1)]
        );
        let outside = Violation::Extent { at: 4096, len: 1 };
        assert_eq!(verify(&reply(&[(4096, 0), (1, 0)]), 4096), Err(outside));
        let empty = Violation::Extent { at: 0, len: 0 };
        assert_eq!(verify(&reply(&[(0, 0)]), 4096), Err(empty));
    }

    #[test]
    fn messages_of_status_have_whole_extents() {
        assert_eq!(bytes_of_extents(12), Some(8));
        assert_eq!(bytes_of_extents(4 + (8 << 20)), Some(8 << 20));
        for wrong in [0, 3, 4, 8, 13, 12 + (8 << 20), u32::MAX] {
            assert_eq!(bytes_of_extents(wrong), None, "{wrong}");
        }
    }
}
