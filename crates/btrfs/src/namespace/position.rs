//! Positions in the listing of a directory.
//!
//! A listing ends where the directory ended when the listing began: an entry that is renamed gets a
//! new, higher index, so a listing without a bound could follow its own renames for ever. The
//! kernel keeps the bound in the open directory. FUSE opens no directory here, so each position
//! carries the bound of its [`Listing`].
//!
//! A position has 63 bits, from the highest to the lowest:
//!
//! | bits | content |
//! |---|---|
//! | 6 | the width `w`: bits of the bound |
//! | `w` | index of the entry |
//! | at most `w` | the bound |
//! | at least 8 | tag: a hash of the rest |
//!
//! Up to `w` = 24 the bound is exact. Above that its low bits have no room and the bound is rounded
//! up, so the listing may show some entries that are newer than it.
//!
//! The positions of a listing rise with the index. The tag distinguishes them from other numbers,
//! because a program may seek to any number. A listing that begins at such a number continues with
//! the first entry whose position is higher.
//!
//! In a directory with an index above [`MAX_END`] a position is the index alone, and the bound is
//! kept with the directory in memory: the last listing that began at the start sets it. No kernel
//! counts that far, but an image may contain any index.

use std::cmp::Ordering;

/// The first index that a name can have; 0 and 1 stand for `.` and `..`.
pub(super) const FIRST_INDEX: u64 = 2;
/// The highest bound that a position carries.
const MAX_END: u64 = 1 << 43;
/// Bits of a position below the width.
const PAYLOAD: u32 = 57;
/// Fewest bits of the tag.
const MIN_TAG: u32 = 8;
/// Bits of [`MAX_END`].
const MAX_WIDTH: u32 = u64::BITS - MAX_END.leading_zeros();

/// A listing: the indexes that it shows are below `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listing {
    end: u64,
    form: Form,
}

/// The contents of its positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Index and bound, in a layout.
    Bounded(Layout),
    /// The index.
    Plain,
}

/// Positions of the parts of a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// Bits of the index.
    width: u32,
}

impl Layout {
    /// Bits of the bound.
    fn bound(self) -> u32 {
        self.width.min(PAYLOAD - MIN_TAG - self.width)
    }

    /// Low bits of the bound that a position omits.
    fn dropped(self) -> u32 {
        self.width - self.bound()
    }

    /// Bits of the tag.
    fn tag(self) -> u32 {
        PAYLOAD - self.width - self.bound()
    }

    /// The bound in its units, rounded up; `None` if it does not fit.
    fn units(self, end: u64) -> Option<u64> {
        let units = end.div_ceil(1 << self.dropped());
        (units >> self.bound() == 0).then_some(units)
    }

    fn of(end: u64) -> Option<(Self, u64)> {
        let least = u64::BITS - end.leading_zeros();
        let mut layouts = (least..=MAX_WIDTH).map(|width| Self { width });
        layouts.find_map(|layout| Some((layout, layout.units(end)?)))
    }

    fn position(self, index: u64, units: u64) -> u64 {
        let parts = (u64::from(self.width) << self.width | index) << self.bound() | units;
        let tag = parts.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - self.tag());
        parts << self.tag() | tag
    }

    /// Index and bound of a position. Its tag is not checked.
    fn parts(self, position: u64) -> (u64, u64) {
        let low = |bits: u32| (1_u64 << bits) - 1;
        let parts = position >> self.tag();
        let index = parts >> self.bound() & low(self.width);
        (index, (parts & low(self.bound())) << self.dropped())
    }
}

impl Listing {
    /// Whether positions carry the bound of a listing that begins now. `next`: the index that the
    /// next new entry gets.
    pub(super) fn carries_bound(next: u64) -> bool {
        next <= MAX_END
    }

    /// A listing whose positions do not carry its bound.
    pub(super) fn without_bound(end: u64) -> Self {
        Self {
            end,
            form: Form::Plain,
        }
    }

    /// A listing up to `end`, or a little more.
    fn up_to(end: u64) -> Self {
        Layout::of(end).map_or(Self::without_bound(end), |(layout, units)| Self {
            end: units << layout.dropped(),
            form: Form::Bounded(layout),
        })
    }

    /// The index after which the listing continues at a position, and that listing: the one that
    /// returned the position, or else one that begins now.
    pub(super) fn at(position: u64, next: u64) -> (u64, Self) {
        let layout = Layout {
            width: u32::try_from(position >> PAYLOAD).unwrap_or(u32::MAX),
        };
        if (1..=MAX_WIDTH).contains(&layout.width) {
            let (index, end) = layout.parts(position);
            let listing = Self::up_to(end);
            if index < end && listing.position(index) == position {
                return (index, listing);
            }
        }
        let listing = Self::up_to(next.max(FIRST_INDEX));
        (listing.before(position), listing)
    }

    /// The index before the first one whose position is higher than `position`.
    fn before(self, position: u64) -> u64 {
        let Form::Bounded(layout) = self.form else {
            return position;
        };
        match (position >> PAYLOAD).cmp(&u64::from(layout.width)) {
            Ordering::Less => 0,
            Ordering::Greater => u64::MAX,
            Ordering::Equal => {
                let (index, _) = layout.parts(position);
                let higher = self.position(index) > position;
                index.saturating_sub(u64::from(higher))
            }
        }
    }

    /// Whether the listing shows the entry at this index.
    pub(super) fn has(self, index: u64) -> bool {
        index < self.end || self.end == u64::MAX
    }

    /// The position of the entry at `index`, which the listing has.
    pub(super) fn position(self, index: u64) -> u64 {
        match self.form {
            Form::Bounded(layout) => layout.position(index, self.end >> layout.dropped()),
            Form::Plain => index,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [u64; 12] = [
        2,
        3,
        100,
        255,
        256,
        1 << 20,
        (1 << 24) - 1,
        1 << 24,
        (1 << 28) - 17,
        (1 << 34) + 12_345,
        MAX_END - 1,
        MAX_END,
    ];

    /// A listing that begins when `next` is the next index.
    fn beginning(next: u64) -> Listing {
        let (index, listing) = Listing::at(0, next);
        assert_eq!(index, 0);
        listing
    }

    #[test]
    fn a_position_carries_index_and_bound() {
        for end in ENDS {
            let listing = beginning(end);
            for index in [0, 2, end / 2, end - 1] {
                let index = index.min(end - 1);
                let position = listing.position(index);
                assert!(i64::try_from(position + 16).is_ok());
                for next in [2, end, MAX_END] {
                    assert_eq!(Listing::at(position, next), (index, listing));
                }
            }
        }
    }

    #[test]
    fn a_bound_is_exact_or_little_above_the_end() {
        for end in ENDS {
            let listing = beginning(end);
            let most = if end < 1 << 24 { end } else { end + (end >> 4) };
            assert!((end..=most).contains(&listing.end), "{end} {listing:?}");
        }
        for end in [1 << 28, (1 << 30) + 1, (1 << 34) - 17, (1 << 34) + 12_345] {
            let listing = beginning(end);
            assert!(listing.end - end <= end >> 10, "{end} {listing:?}");
        }
    }

    #[test]
    fn positions_rise_with_the_index() {
        for end in ENDS {
            let listing = beginning(end);
            let indexes = (0..end.min(1000)).chain(end.saturating_sub(1000).max(1000)..end);
            let positions: Vec<u64> = indexes.map(|index| listing.position(index)).collect();
            assert!(positions.is_sorted_by(|one, other| one < other), "{end}");
        }
    }

    #[test]
    fn any_other_number_continues_with_the_next_higher_position() {
        let mut rng = fastrand::Rng::with_seed(27);
        for end in ENDS {
            let listing = beginning(end);
            let last = listing.position(end - 1);
            for _ in 0..2000 {
                let near = listing.position(rng.u64(0..end));
                let number = match rng.u8(0..3) {
                    0 => rng.u64(0..=last),
                    1 => near.saturating_add(rng.u64(1..1000)),
                    _ => near.saturating_sub(rng.u64(1..1000)),
                };
                let (after, found) = Listing::at(number, end);
                if found.has(after) && found.position(after) == number {
                    continue;
                }
                assert_eq!(found, listing);
                let follows = after.saturating_add(1);
                assert!(follows >= end || listing.position(follows) > number);
                assert!(after == 0 || after >= end || listing.position(after) <= number);
            }
        }
    }

    #[test]
    fn no_number_is_a_position_of_a_listing_that_does_not_have_its_index() {
        let mut rng = fastrand::Rng::with_seed(28);
        for _ in 0..100_000 {
            let number = rng.u64(..) >> rng.u32(0..64);
            let next = 2 + (rng.u64(..MAX_END) >> rng.u32(0..43));
            let (after, listing) = Listing::at(number, next);
            if listing.has(after) && listing.has(after + 1) {
                let follows = listing.position(after + 1);
                assert_eq!(Listing::at(follows, next), (after + 1, listing));
            }
        }
    }

    #[test]
    fn a_position_without_room_for_the_bound_is_the_index() {
        for end in [MAX_END + 1, 1 << 57, u64::MAX] {
            assert!(!Listing::carries_bound(end));
            let listing = Listing::without_bound(end);
            assert_eq!(listing.position(end - 1), end - 1);
            assert!(listing.has(end - 1));
        }
    }
}
