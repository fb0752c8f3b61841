//! What a directory keeps in memory beside its inode: where its blocks are, and where it has room.
//!
//! The map is asked once for each block of a directory. A directory only grows, so a recorded place
//! stays true. A thread that takes blocks out of a map, or moves them, calls [`Places::forget`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Blocks in a part of the table.
const PART: usize = 64;
/// Parts: blocks after the last one are not recorded.
const PARTS: usize = 32;

type Part = OnceLock<Box<[AtomicU64; PART]>>;

/// What a directory keeps in memory besides; empty for everything else.
#[derive(Debug, Default)]
pub(crate) struct DirState {
    /// No block before this one has room, as far as was seen. Only for directories without an
    /// index.
    pub(crate) room: AtomicU32,
    /// Where its blocks are.
    pub(crate) places: Places,
}

/// Where the blocks are. Empty, and small, until the first place is recorded.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// By the place in the directory; 0: not known, which no block of a directory is.
    parts: OnceLock<Box<[Part; PARTS]>>,
}

impl Places {
    /// Where block `logical` is, if that is known.
    pub(crate) fn get(&self, logical: u32) -> Option<u64> {
        let (part, index) = place(logical);
        let known = self.parts.get()?.get(part)?.get()?.get(index)?;
        Some(known.load(Ordering::Acquire)).filter(|place| *place != 0)
    }

    /// Notes where block `logical` is. The caller holds `io` of the directory.
    pub(crate) fn note(&self, logical: u32, physical: u64) {
        let (part, index) = place(logical);
        let parts = self.parts.get_or_init(Box::default);
        let part = parts
            .get(part)
            .map(|part| part.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PART])));
        if let Some(known) = part.and_then(|part| part.get(index)) {
            known.store(physical, Ordering::Release);
        }
    }

    /// Bytes that the table takes beside its fields.
    pub(crate) fn footprint(&self) -> usize {
        let Some(parts) = self.parts.get() else {
            return 0;
        };
        let there = parts.iter().filter(|part| part.get().is_some()).count();
        size_of_val(&**parts) + there * size_of::<[AtomicU64; PART]>()
    }

    /// Forgets all. The caller holds `io` of the directory exclusively.
    pub(crate) fn forget(&self) {
        let parts = self.parts.get().into_iter().flat_map(|parts| parts.iter());
        for known in parts.filter_map(OnceLock::get).flat_map(|part| part.iter()) {
            known.store(0, Ordering::Release);
        }
    }
}

fn place(logical: u32) -> (usize, usize) {
    let logical = logical as usize;
    (logical / PART, logical % PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_known_until_all_is_forgotten() {
        let places = Places::default();
        assert_eq!(places.get(0), None);
        let last = (PART * PARTS) as u32 - 1;
        for logical in [0, 63, 64, last] {
            places.note(logical, 1000 + u64::from(logical));
        }
        places.note(last + 1, 7);
        assert_eq!(places.get(64), Some(1064));
        assert_eq!(places.get(last), Some(1000 + u64::from(last)));
        assert_eq!((places.get(1), places.get(last + 1)), (None, None));
        places.forget();
        assert_eq!((places.get(0), places.get(64)), (None, None));
    }
}
