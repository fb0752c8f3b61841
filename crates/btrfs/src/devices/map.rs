//! The chunk map: finds the chunk of a logical address.

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_btrfs_format::ChunkItem;

use super::stripe;
use crate::{Error, Result};

/// Checks a chunk's stripes.
///
/// # Errors
/// [`Error::BadChunk`] if they do not fit its profile.
pub(crate) fn check(logical: u64, chunk: &ChunkItem) -> Result<()> {
    stripe::check(logical, chunk).map_err(|reason| {
        let reason = reason.to_owned();
        Error::BadChunk { logical, reason }
    })
}

/// All chunks by logical address.
#[derive(Debug, Default)]
pub(crate) struct ChunkMap {
    chunks: BTreeMap<u64, Arc<ChunkItem>>,
}

impl ChunkMap {
    /// Adds a chunk. Adding the same chunk again changes nothing.
    ///
    /// # Errors
    /// [`Error::BadChunk`] if it overlaps another or its stripes do not fit its profile.
    pub(crate) fn add(&mut self, logical: u64, chunk: ChunkItem) -> Result<()> {
        let bad = |reason: String| Error::BadChunk { logical, reason };
        check(logical, &chunk)?;
        let end = logical + chunk.length;
        if let Some((&at, other)) = self.chunks.range(..end).next_back() {
            if at == logical && **other == chunk {
                return Ok(());
            }
            if at + other.length > logical {
                return Err(bad(format!("overlaps the chunk at {at}")));
            }
        }
        self.chunks.insert(logical, Arc::new(chunk));
        Ok(())
    }

    /// Removes a chunk; `None` if there is none at that address.
    pub(crate) fn remove(&mut self, logical: u64) -> Option<Arc<ChunkItem>> {
        self.chunks.remove(&logical)
    }

    /// Replaces the chunk at `logical` by `chunks`, whose stripes and sizes were checked before.
    pub(crate) fn replace(&mut self, logical: u64, chunks: Vec<(u64, ChunkItem)>) {
        self.chunks.remove(&logical);
        let chunks = chunks.into_iter();
        self.chunks
            .extend(chunks.map(|(at, chunk)| (at, Arc::new(chunk))));
    }

    /// The chunk that holds a byte, with the chunk's logical address.
    pub(crate) fn find(&self, logical: u64) -> Option<(u64, Arc<ChunkItem>)> {
        let (&at, chunk) = self.chunks.range(..=logical).next_back()?;
        (logical - at < chunk.length).then(|| (at, chunk.clone()))
    }

    /// All chunks in order of their logical addresses.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<ChunkItem>)> {
        let chunks = self.chunks.iter();
        chunks.map(|(&at, chunk)| (at, chunk.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use sapwood_btrfs_format::BlockGroupFlags;

    use super::super::stripe::tests::chunk;
    use super::*;

    #[test]
    fn overlap_and_odd_stripes_are_refused() {
        let mut map = ChunkMap::default();
        let single = || chunk(BlockGroupFlags::empty(), &[0], 1, 1 << 20);
        map.add(1 << 20, single()).unwrap();
        map.add(1 << 20, single()).unwrap();
        map.add(2 << 20, single()).unwrap();
        for at in [(1 << 20) + 4096, (1 << 20) - 4096, 4096] {
            assert!(matches!(map.add(at, single()), Err(Error::BadChunk { .. })));
        }
        let lone = chunk(BlockGroupFlags::DUP, &[0], 1, 1 << 20);
        assert!(matches!(
            map.add(8 << 20, lone),
            Err(Error::BadChunk { .. })
        ));
        assert_eq!(map.find((3 << 20) - 1).unwrap().0, 2 << 20);
        assert!(map.find(3 << 20).is_none());
        assert!(map.find((1 << 20) - 1).is_none());
    }
}
