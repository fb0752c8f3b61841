//! Torn writes: only some sectors reached the medium.

use sapwood_block::SECTOR_SIZE;
use std::ops::Range;

/// The sectors of a write that reached the medium. Sector 0 is the device sector with the write's
/// first byte; sectors after its end are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Torn {
    /// The first sectors, this many.
    Prefix(u64),
    /// The sectors with these numbers.
    Sectors(Vec<u64>),
}

impl Torn {
    /// The parts of a write of `len` bytes at `offset` that reached the medium, as byte ranges
    /// within it.
    #[must_use]
    pub fn parts(&self, offset: u64, len: u64) -> Vec<Range<u64>> {
        let lead = offset % SECTOR_SIZE;
        let part = |first: u64, end: u64| {
            let at = |sector: u64| {
                sector
                    .saturating_mul(SECTOR_SIZE)
                    .saturating_sub(lead)
                    .min(len)
            };
            at(first)..at(end)
        };
        let mut parts = match self {
            Self::Prefix(count) => vec![part(0, *count)],
            Self::Sectors(sectors) => sectors
                .iter()
                .map(|&s| part(s, s.saturating_add(1)))
                .collect(),
        };
        parts.retain(|p| !p.is_empty());
        parts
    }

    /// Number of sectors that a write of `len` bytes at `offset` touches.
    #[must_use]
    pub fn sectors_of(offset: u64, len: u64) -> u64 {
        (offset % SECTOR_SIZE + len).div_ceil(SECTOR_SIZE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_the_sectors_of_the_device() {
        assert_eq!(Torn::sectors_of(500, 13), 2);
        assert_eq!(Torn::sectors_of(512, 512), 1);
        let parts = |torn: Torn, offset, len| -> Vec<(u64, u64)> {
            let parts = torn.parts(offset, len).into_iter();
            parts.map(|p| (p.start, p.end)).collect()
        };
        assert_eq!(parts(Torn::Prefix(0), 0, 4096), []);
        assert_eq!(parts(Torn::Prefix(3), 0, 4096), [(0, 1536)]);
        assert_eq!(parts(Torn::Prefix(99), 0, 1000), [(0, 1000)]);
        assert_eq!(parts(Torn::Prefix(1), 500, 600), [(0, 12)]);
        let some = Torn::Sectors(vec![0, 2, 9, u64::MAX]);
        assert_eq!(parts(some, 500, 600), [(0, 12), (524, 600)]);
    }
}
