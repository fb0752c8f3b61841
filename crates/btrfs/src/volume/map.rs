//! The chunk map: where logical addresses lie on the devices.
//!
//! Facts: a chunk of a mirrored profile has one stripe per copy; RAID0 cuts the chunk into
//! elements of `stripe_len` bytes and deals them to its stripes in turn; RAID10 deals them to
//! groups of `sub_stripes` copies (btrfs documentation, "Chunk items").

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, StripeItem};

use crate::{Error, Result};

/// A stretch of one copy that lies in one piece on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Device id.
    pub(crate) devid: u64,
    /// Byte offset on the device.
    pub(crate) physical: u64,
    /// Bytes.
    pub(crate) len: u64,
}

/// All chunks by logical address.
#[derive(Debug, Default)]
pub(crate) struct ChunkMap {
    chunks: BTreeMap<u64, Arc<ChunkItem>>,
}

/// Number of copies that a chunk keeps of each byte.
pub(crate) fn copies(chunk: &ChunkItem) -> usize {
    let profile = chunk.flags.profile();
    let striped = BlockGroupFlags::RAID0 | BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6;
    if profile == BlockGroupFlags::RAID10 {
        usize::from(chunk.sub_stripes.max(1))
    } else if profile.intersects(striped) {
        1
    } else {
        chunk.stripes.len()
    }
}

impl ChunkMap {
    /// Adds a chunk.
    ///
    /// # Errors
    /// [`Error::BadChunk`] if it overlaps another or its stripes do not fit its profile,
    /// [`Error::UnsupportedFeature`] for parity profiles.
    pub(crate) fn add(&mut self, logical: u64, chunk: ChunkItem) -> Result<()> {
        check(logical, &chunk)?;
        let end = logical + chunk.length;
        if let Some((&at, other)) = self.chunks.range(..end).next_back() {
            if at == logical && **other == chunk {
                return Ok(());
            }
            if at + other.length > logical {
                return Err(Error::BadChunk {
                    logical,
                    reason: format!("overlaps the chunk at {at}"),
                });
            }
        }
        self.chunks.insert(logical, Arc::new(chunk));
        Ok(())
    }

    /// Forgets a chunk; `None` if there is none at that address.
    pub(crate) fn remove(&mut self, logical: u64) -> Option<Arc<ChunkItem>> {
        self.chunks.remove(&logical)
    }

    /// The chunk that a byte lies in, with its logical address.
    pub(crate) fn find(&self, logical: u64) -> Option<(u64, Arc<ChunkItem>)> {
        let (&at, chunk) = self.chunks.range(..=logical).next_back()?;
        (logical - at < chunk.length).then(|| (at, chunk.clone()))
    }

    /// All chunks in order.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<ChunkItem>)> {
        let chunks = self.chunks.iter();
        chunks.map(|(&at, chunk)| (at, chunk.clone())).collect()
    }
}

fn check(logical: u64, chunk: &ChunkItem) -> Result<()> {
    let bad = |reason: &str| {
        Err(Error::BadChunk {
            logical,
            reason: reason.to_owned(),
        })
    };
    let profile = chunk.flags.profile();
    let parity = BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6;
    if profile.intersects(parity) {
        let name = profile.profile_name().to_owned();
        return Err(Error::UnsupportedFeature(name));
    }
    if logical.checked_add(chunk.length).is_none() || chunk.length == 0 {
        return bad("impossible length");
    }
    let stripes = chunk.stripes.len();
    let sub = usize::from(chunk.sub_stripes);
    let fits = match profile {
        BlockGroupFlags::DUP | BlockGroupFlags::RAID1 => stripes == 2,
        BlockGroupFlags::RAID1C3 => stripes == 3,
        BlockGroupFlags::RAID1C4 => stripes == 4,
        BlockGroupFlags::RAID0 => stripes >= 1 && chunk.stripe_len > 0,
        BlockGroupFlags::RAID10 => {
            sub >= 2 && stripes >= sub && stripes.is_multiple_of(sub) && chunk.stripe_len > 0
        }
        p if p.is_empty() => stripes == 1,
        _ => false,
    };
    if !fits {
        return bad("number of stripes does not fit the profile");
    }
    if chunk
        .stripes
        .iter()
        .any(|s| s.offset.checked_add(chunk.length).is_none())
    {
        return bad("impossible stripe");
    }
    Ok(())
}

/// The piece of copy `mirror` (from 0) at `within` bytes into a chunk, at most `len` bytes of it.
/// `None` if there is no such copy or the offset is outside the chunk.
pub(crate) fn piece(chunk: &ChunkItem, within: u64, len: u64, mirror: usize) -> Option<Piece> {
    if within >= chunk.length || mirror >= copies(chunk) {
        return None;
    }
    let rest = len.min(chunk.length - within);
    let profile = chunk.flags.profile();
    let on = |stripe: &StripeItem, at: u64, len: u64| Piece {
        devid: stripe.devid,
        physical: stripe.offset + at,
        len,
    };
    let striped = BlockGroupFlags::RAID0 | BlockGroupFlags::RAID10;
    if !profile.intersects(striped) {
        return Some(on(chunk.stripes.get(mirror)?, within, rest));
    }
    let sub = if profile == BlockGroupFlags::RAID10 {
        u64::from(chunk.sub_stripes.max(1))
    } else {
        1
    };
    let groups = (chunk.stripes.len() as u64 / sub).max(1);
    let (element, inner) = (within / chunk.stripe_len, within % chunk.stripe_len);
    let index = (element % groups) * sub + mirror as u64;
    let stripe = chunk.stripes.get(usize::try_from(index).ok()?)?;
    let at = (element / groups) * chunk.stripe_len + inner;
    Some(on(stripe, at, rest.min(chunk.stripe_len - inner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn chunk(flags: BlockGroupFlags, offsets: &[u64], sub: u16) -> ChunkItem {
        let stripe = |(i, offset): (usize, &u64)| StripeItem {
            devid: i as u64 + 1,
            offset: *offset,
            dev_uuid: [0; 16],
        };
        ChunkItem {
            length: 1 << 20,
            owner: 2,
            stripe_len: 64 << 10,
            flags: BlockGroupFlags::DATA | flags,
            io_align: 0,
            io_width: 0,
            sector_size: 4096,
            sub_stripes: sub,
            stripes: offsets.iter().enumerate().map(stripe).collect(),
        }
    }

    #[test]
    fn mirrors_hold_the_same_range() {
        let dup = chunk(BlockGroupFlags::DUP, &[1 << 20, 4 << 20], 1);
        assert_eq!(copies(&dup), 2);
        let second = piece(&dup, 5000, 1 << 20, 1).unwrap();
        assert_eq!(second.physical, (4 << 20) + 5000);
        assert_eq!(second.len, (1 << 20) - 5000);
        assert_eq!(piece(&dup, 0, 1, 2), None);
        assert_eq!(piece(&dup, 1 << 20, 1, 0), None);
    }

    #[test]
    fn stripes_take_turns() {
        let raid0 = chunk(BlockGroupFlags::RAID0, &[0, 0, 0], 1);
        let p = piece(&raid0, (64 << 10) * 4 + 7, 1 << 20, 0).unwrap();
        assert_eq!((p.devid, p.physical), (2, (64 << 10) + 7));
        assert_eq!(p.len, (64 << 10) - 7);
        let raid10 = chunk(BlockGroupFlags::RAID10, &[0, 0, 0, 0], 2);
        let p = piece(&raid10, (64 << 10) * 3, 10, 1).unwrap();
        assert_eq!((p.devid, p.physical, p.len), (4, 64 << 10, 10));
    }

    #[test]
    fn overlap_and_odd_stripes_are_refused() {
        let mut map = ChunkMap::default();
        let single = || chunk(BlockGroupFlags::empty(), &[0], 1);
        map.add(1 << 20, single()).unwrap();
        map.add(1 << 20, single()).unwrap();
        map.add(2 << 20, single()).unwrap();
        for at in [(1 << 20) + 4096, (1 << 20) - 4096, 4096] {
            assert!(matches!(map.add(at, single()), Err(Error::BadChunk { .. })));
        }
        let lone = chunk(BlockGroupFlags::DUP, &[0], 1);
        assert!(matches!(
            map.add(8 << 20, lone),
            Err(Error::BadChunk { .. })
        ));
        assert_eq!(map.find((3 << 20) - 1).unwrap().0, 2 << 20);
        assert!(map.find(3 << 20).is_none());
        assert!(map.find((1 << 20) - 1).is_none());
    }
}
