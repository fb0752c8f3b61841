//! Positions in a directory listing.
//!
//! A listing ends where the directory ended when the listing began: an entry that is renamed
//! gets a new, higher index, so a listing without a bound could follow its own renames for ever.
//! The kernel keeps the bound in the open directory. FUSE opens no directory here, so each
//! position carries the bound of its listing.
//!
//! A position has 63 bits: a width `w` in the top 6, an index in the low `w`, and the bound in
//! the 57 - `w` between, in units that are as small as fit. Up to `w` = 28 the unit is 1; above
//! that the bound is rounded up, and the listing may show some entries that are newer than it.
//! Width 0 is a plain index; its listing begins with that position. So is a position in a
//! directory with an index that has no room, 2^56 or more, which no kernel reaches.

/// The first index that a name can have; 0 and 1 stand for `.` and `..`.
pub(super) const FIRST_INDEX: u64 = 2;
/// Bits of the index and the bound together.
const PAYLOAD: u32 = 57;
/// Front ends add some positions of their own, for `.` and `..`, to those of a listing.
const MARGIN: u64 = 16;

/// A listing: the indexes that it shows are below `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listing {
    end: u64,
}

impl Listing {
    /// A listing that begins now. `next`: the index that the next new entry gets.
    pub(super) fn beginning(next: u64) -> Self {
        Self {
            end: next.max(FIRST_INDEX),
        }
    }

    /// The index of a position, and its listing if it is a position of one.
    pub(super) fn at(position: u64) -> (u64, Option<Self>) {
        let width = width_of(position);
        if width == 0 || width > PAYLOAD {
            return (position, None);
        }
        let payload = position & ((1 << PAYLOAD) - 1);
        let index = payload & ((1 << width) - 1);
        let listing = Self {
            end: (payload >> width) << unit_bits(width),
        };
        (index, Some(listing))
    }

    /// Whether the listing shows the entry at this index.
    pub(super) fn has(self, index: u64) -> bool {
        index < self.end || self.end == u64::MAX
    }

    /// The position of the entry at `index`, which the listing has.
    pub(super) fn position(self, index: u64) -> u64 {
        let least = u64::BITS - self.end.saturating_add(MARGIN).leading_zeros();
        let encoded = (least..=PAYLOAD).find_map(|width| {
            let units = self.end.div_ceil(1 << unit_bits(width));
            let fits = units >> (PAYLOAD - width) == 0;
            fits.then_some(u64::from(width) << PAYLOAD | units << width | index)
        });
        encoded.unwrap_or(index)
    }
}

fn width_of(position: u64) -> u32 {
    u32::try_from(position >> PAYLOAD).unwrap_or(u32::MAX)
}

/// Bits of the bound that have no room beside an index of this width.
fn unit_bits(width: u32) -> u32 {
    (2 * width).saturating_sub(PAYLOAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_carries_index_and_bound() {
        for end in [2, 3, 100, 1 << 20, (1 << 28) - 17] {
            let listing = Listing::beginning(end);
            for index in [0, 2, end / 2, end - 1] {
                let position = listing.position(index);
                assert!(i64::try_from(position + MARGIN).is_ok());
                assert_eq!(Listing::at(position), (index, Some(listing)));
            }
        }
    }

    #[test]
    fn a_rounded_bound_is_stable_and_not_below_the_end() {
        for end in [1 << 28, (1 << 30) + 1, (1 << 34) - 17, (1 << 34) + 12_345] {
            let first = Listing::beginning(end).position(end - 1);
            let (index, listing) = Listing::at(first);
            let listing = listing.unwrap();
            assert_eq!(index, end - 1);
            assert!(
                listing.end >= end && listing.end <= end + (end >> 10),
                "{end}"
            );
            assert_eq!(Listing::at(listing.position(2)), (2, Some(listing)));
        }
    }

    #[test]
    fn what_has_no_room_is_a_plain_index() {
        for index in [0, 1, 7, 1 << 56, u64::MAX] {
            assert_eq!(Listing::at(index), (index, None));
        }
        for end in [1 << 57, u64::MAX] {
            assert_eq!(Listing::beginning(end).position(end - 1), end - 1);
        }
    }
}
