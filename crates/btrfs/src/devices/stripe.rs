//! Stripe arithmetic: the devices and offsets of a byte of a chunk. No I/O.
//!
//! A *copy* is one full set of a chunk's bytes. A *stripe* is the part of a chunk on one device;
//! its length there is the length of a *device extent*. A profile with elements cuts a chunk into
//! elements of `stripe_len` bytes:
//!
//! | profile | copies | element `n` of a copy lies on stripe |
//! |---|---|---|
//! | single | 1 | 0; there are no elements |
//! | DUP, RAID1, RAID1C3, RAID1C4 | as many as stripes | the copy's own; there are no elements |
//! | RAID0 | 1 | `n % stripes` |
//! | RAID10 | `sub_stripes` | `n % groups * sub_stripes + copy`, `groups = stripes / sub_stripes` |
//! | RAID5, RAID6 | 1 | `(row + n % groups) % stripes`, `row = n / groups`, `groups = stripes - parity` |
//!
//! RAID5 has one parity element in each row, RAID6 two. They follow the row's last element, on the
//! next stripes ([`row`]).
//!
//! Facts: the "Chunk items" section of the btrfs documentation.

use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, StripeItem};

/// Bytes of an element, the only size in use.
pub(crate) const ELEMENT: u64 = 64 << 10;

/// A range of one copy that is contiguous on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Device id.
    pub(crate) devid: u64,
    /// Byte offset on the device.
    pub(crate) physical: u64,
    /// Bytes.
    pub(crate) len: u64,
}

/// A device extent: the range of a device that a chunk occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Device id.
    pub(crate) devid: u64,
    /// uuid of the device.
    pub(crate) dev_uuid: [u8; 16],
    /// Byte offset on the device.
    pub(crate) physical: u64,
    /// Bytes.
    pub(crate) len: u64,
}

/// The distribution of a chunk's bytes over its stripes by its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Copies of each byte.
    copies: u64,
    /// Groups of stripes that take elements in turn, 1 if the chunk is not cut into elements.
    groups: u64,
    /// Parity elements in each row.
    parity: u64,
}

impl Shape {
    fn of(chunk: &ChunkItem) -> Self {
        use BlockGroupFlags as F;
        let stripes = chunk.stripes.len() as u64;
        let profile = chunk.flags.profile();
        let (copies, groups, parity) = match profile {
            F::RAID0 => (1, stripes, 0),
            F::RAID5 => (1, stripes.saturating_sub(1), 1),
            F::RAID6 => (1, stripes.saturating_sub(2), 2),
            F::RAID10 => {
                let copies = u64::from(chunk.sub_stripes.max(1));
                (copies, stripes / copies, 0)
            }
            _ => (stripes, 1, 0),
        };
        Self {
            copies,
            groups: groups.max(1),
            parity,
        }
    }

    /// Whether the chunk is one element.
    fn is_whole(self) -> bool {
        self.groups == 1 && self.parity == 0
    }
}

/// Number of copies that a chunk has of each byte.
pub(crate) fn copies(chunk: &ChunkItem) -> usize {
    Shape::of(chunk).copies as usize
}

/// Whether chunks of this profile may be written and allocated. The others are only read.
pub(crate) fn is_writable(chunk: &ChunkItem) -> bool {
    let parity = BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6;
    !chunk.flags.intersects(parity)
}

/// Number of ways to read a byte of a chunk: its copies, and with parity the rebuilds of [`row`].
pub(crate) fn ways(chunk: &ChunkItem) -> usize {
    let shape = Shape::of(chunk);
    let rebuilds = match shape.parity {
        0 => 0,
        1 => 1,
        _ => 1 + shape.groups as usize,
    };
    shape.copies as usize + rebuilds
}

/// Whether all bytes of a chunk are on the devices for which `here` is true.
pub(crate) fn survives(chunk: &ChunkItem, here: &dyn Fn(u64) -> bool) -> bool {
    let parity = Shape::of(chunk).parity as usize;
    if parity > 0 {
        let lost = chunk.stripes.iter().filter(|stripe| !here(stripe.devid));
        return lost.count() <= parity;
    }
    let copies = copies(chunk).max(1);
    let mut groups = chunk.stripes.chunks(copies);
    groups.all(|group| group.iter().any(|stripe| here(stripe.devid)))
}

/// Whether a chunk is complete without any one of its devices.
pub(crate) fn tolerates_a_loss(chunk: &ChunkItem) -> bool {
    let mut stripes = chunk.stripes.iter();
    stripes.all(|lost| survives(chunk, &|devid| devid != lost.devid))
}

/// Number of devices that a chunk can always lack.
pub(crate) fn tolerated(chunk: &ChunkItem) -> usize {
    if tolerates_a_loss(chunk) {
        let shape = Shape::of(chunk);
        (shape.copies - 1 + shape.parity) as usize
    } else {
        0
    }
}

/// Elements of data in each row of a chunk.
pub(crate) fn elements_in_row(chunk: &ChunkItem) -> usize {
    Shape::of(chunk).groups as usize
}

/// The part of a device in a row of a chunk with parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Element of this number in the row.
    Data(usize),
    /// The sum of the elements.
    P,
    /// The sum of the elements, each times its power of the generator.
    Q,
}

/// The row that contains the byte at `within`: the number of its element in the row, and role and
/// place of each stripe, at the byte's offset in the element. `None` without parity.
pub(crate) fn row(chunk: &ChunkItem, within: u64, len: u64) -> Option<(usize, Vec<(Role, Piece)>)> {
    let shape = Shape::of(chunk);
    if shape.parity == 0 || within >= chunk.length {
        return None;
    }
    let (element, inner) = (within / chunk.stripe_len, within % chunk.stripe_len);
    let (row, nth) = (element / shape.groups, element % shape.groups);
    let stripes = chunk.stripes.len() as u64;
    let place = |(index, stripe): (usize, &StripeItem)| {
        let turned = (index as u64 + stripes - row % stripes) % stripes;
        let role = match turned.checked_sub(shape.groups) {
            None => Role::Data(turned as usize),
            Some(0) => Role::P,
            Some(_) => Role::Q,
        };
        let piece = Piece {
            devid: stripe.devid,
            physical: stripe.offset + row * chunk.stripe_len + inner,
            len: len.min(chunk.stripe_len - inner),
        };
        (role, piece)
    };
    let places = chunk.stripes.iter().enumerate().map(place).collect();
    Some((nth as usize, places))
}

/// Checks that a chunk at `logical` has the stripes that its profile needs, and that no sum of its
/// addresses overflows.
///
/// # Errors
/// A description of the first defect.
pub(crate) fn check(logical: u64, chunk: &ChunkItem) -> Result<(), &'static str> {
    use BlockGroupFlags as F;
    let profile = chunk.flags.profile();
    if logical.checked_add(chunk.length).is_none() || chunk.length == 0 {
        return Err("impossible length");
    }
    let stripes = chunk.stripes.len();
    let sub = usize::from(chunk.sub_stripes);
    let elements = chunk.stripe_len == ELEMENT;
    let fits = match profile {
        F::DUP | F::RAID1 => stripes == 2,
        F::RAID1C3 => stripes == 3,
        F::RAID1C4 => stripes == 4,
        F::RAID0 => stripes >= 1 && elements,
        F::RAID5 => stripes >= 2 && elements,
        F::RAID6 => stripes >= 3 && elements,
        F::RAID10 => sub >= 2 && stripes >= sub && stripes.is_multiple_of(sub) && elements,
        p if p.is_empty() => stripes == 1,
        _ => false,
    };
    if !fits {
        let reason = "number of stripes does not fit the profile";
        return Err(reason);
    }
    let shape = Shape::of(chunk);
    if !shape.is_whole() && !chunk.length.is_multiple_of(shape.groups * ELEMENT) {
        let reason = "its length is no multiple of its stripes' elements";
        return Err(reason);
    }
    let overflows = |offset: u64| offset.checked_add(chunk.length).is_none();
    if chunk.stripes.iter().any(|s| overflows(s.offset)) {
        return Err("impossible stripe");
    }
    Ok(())
}

/// Bytes of a chunk after which its offsets on all stripes are equal: it can be cut at multiples of
/// this.
pub(crate) fn row_len(chunk: &ChunkItem) -> u64 {
    Shape::of(chunk).groups.saturating_mul(ELEMENT)
}

/// Whether each stripe is one copy of the whole chunk.
pub(crate) fn is_whole(chunk: &ChunkItem) -> bool {
    Shape::of(chunk).is_whole()
}

/// The part of a chunk that begins `within` bytes after its start, a multiple of [`row_len`].
pub(crate) fn part(chunk: &ChunkItem, within: u64, length: u64) -> ChunkItem {
    let skipped = within / Shape::of(chunk).groups;
    let mut part = chunk.clone();
    part.length = length;
    for stripe in &mut part.stripes {
        stripe.offset = stripe.offset.saturating_add(skipped);
    }
    part
}

/// The device extents of a chunk, in the order of its stripes.
pub(crate) fn extents(chunk: &ChunkItem) -> impl Iterator<Item = Extent> + '_ {
    let len = chunk.length / Shape::of(chunk).groups;
    chunk.stripes.iter().map(move |stripe| Extent {
        devid: stripe.devid,
        dev_uuid: stripe.dev_uuid,
        physical: stripe.offset,
        len,
    })
}

/// The first piece of copy `copy` (from 0) at `within` bytes into a chunk that passed [`check`],
/// `len` bytes of it at most. `None` if there is no such copy, or the offset is outside the chunk.
pub(crate) fn piece(chunk: &ChunkItem, within: u64, len: u64, copy: usize) -> Option<Piece> {
    let shape = Shape::of(chunk);
    let copy = copy as u64;
    if within >= chunk.length || copy >= shape.copies {
        return None;
    }
    let rest = len.min(chunk.length - within);
    let (stripe, at, len) = if shape.is_whole() {
        (copy, within, rest)
    } else {
        let (element, inner) = (within / chunk.stripe_len, within % chunk.stripe_len);
        let mut stripe = element % shape.groups * shape.copies + copy;
        if shape.parity > 0 {
            stripe = (stripe + element / shape.groups) % chunk.stripes.len() as u64;
        }
        let at = element / shape.groups * chunk.stripe_len + inner;
        (stripe, at, rest.min(chunk.stripe_len - inner))
    };
    let stripe = chunk.stripes.get(usize::try_from(stripe).ok()?)?;
    Some(Piece {
        devid: stripe.devid,
        physical: stripe.offset + at,
        len,
    })
}

/// The ranges of a chunk, as offset in the chunk and bytes, that lie in `from..to` of the device
/// extent of stripe `nth`. The inverse of [`piece`].
pub(crate) fn within(chunk: &ChunkItem, nth: usize, from: u64, to: u64) -> Vec<(u64, u64)> {
    let shape = Shape::of(chunk);
    let to = to.min(chunk.length / shape.groups);
    if shape.is_whole() {
        return Vec::from_iter((from < to).then(|| (from, to - from)));
    }
    let stripes = (chunk.stripes.len() as u64).max(1);
    let (mut at, mut ranges) = (from, Vec::new());
    while at < to {
        let (row, inner) = (at / chunk.stripe_len, at % chunk.stripe_len);
        let len = (chunk.stripe_len - inner).min(to - at);
        let group = if shape.parity > 0 {
            (nth as u64 + stripes - row % stripes) % stripes
        } else {
            nth as u64 / shape.copies
        };
        if group < shape.groups {
            let element = row * shape.groups + group;
            ranges.push((element * chunk.stripe_len + inner, len));
        }
        at += len;
    }
    ranges
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A chunk with one stripe on each of devices 1, 2, ...
    pub(in crate::devices) fn chunk(
        flags: BlockGroupFlags,
        offsets: &[u64],
        sub: u16,
        length: u64,
    ) -> ChunkItem {
        let stripe = |(i, offset): (usize, &u64)| StripeItem {
            devid: i as u64 + 1,
            offset: *offset,
            dev_uuid: [i as u8 + 1; 16],
        };
        ChunkItem {
            length,
            owner: 2,
            stripe_len: ELEMENT,
            flags: BlockGroupFlags::DATA | flags,
            io_align: 0,
            io_width: 0,
            sector_size: 4096,
            sub_stripes: sub,
            stripes: offsets.iter().enumerate().map(stripe).collect(),
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn parity_turns_through_the_devices() {
        let roles = |profile, stripes: &[u64], element: u64| -> (usize, Vec<Role>) {
            let chunk = chunk(profile, stripes, 1, 12 * ELEMENT);
            let (nth, places) = row(&chunk, element * ELEMENT + 5, 10).unwrap();
            for (role, place) in &places {
                assert_eq!(place.physical % ELEMENT, 5);
                if *role == Role::Data(nth) {
                    assert_eq!(piece(&chunk, element * ELEMENT + 5, 10, 0), Some(*place));
                }
            }
            (nth, places.into_iter().map(|(role, _)| role).collect())
        };
        use Role::{Data, P, Q};
        let raid5 = |element| roles(BlockGroupFlags::RAID5, &[0, 0, 0], element);
        assert_eq!(raid5(0), (0, vec![Data(0), Data(1), P]));
        assert_eq!(raid5(3), (1, vec![P, Data(0), Data(1)]));
        assert_eq!(raid5(4), (0, vec![Data(1), P, Data(0)]));
        assert_eq!(raid5(6), (0, vec![Data(0), Data(1), P]));
        let raid6 = |element| roles(BlockGroupFlags::RAID6, &[0, 0, 0, 0], element);
        assert_eq!(raid6(1), (1, vec![Data(0), Data(1), P, Q]));
        assert_eq!(raid6(2), (0, vec![Q, Data(0), Data(1), P]));
        assert_eq!(raid6(7), (1, vec![Data(1), P, Q, Data(0)]));
    }

    #[test]
    fn copies_of_dup_hold_the_same_range() {
        let dup = chunk(BlockGroupFlags::DUP, &[MIB, 4 * MIB], 1, MIB);
        assert_eq!(copies(&dup), 2);
        let second = piece(&dup, 5000, MIB, 1).unwrap();
        assert_eq!(second.physical, 4 * MIB + 5000);
        assert_eq!(second.len, MIB - 5000);
        assert_eq!(piece(&dup, 0, 1, 2), None);
        assert_eq!(piece(&dup, MIB, 1, 0), None);
    }

    #[test]
    fn stripes_take_elements_in_turn() {
        let raid0 = chunk(BlockGroupFlags::RAID0, &[0, 0, 0], 1, 3 * MIB);
        let p = piece(&raid0, ELEMENT * 4 + 7, MIB, 0).unwrap();
        assert_eq!((p.devid, p.physical), (2, ELEMENT + 7));
        assert_eq!(p.len, ELEMENT - 7);
        let raid10 = chunk(BlockGroupFlags::RAID10, &[0, 0, 0, 0], 2, 2 * MIB);
        let p = piece(&raid10, ELEMENT * 3, 10, 1).unwrap();
        assert_eq!((p.devid, p.physical, p.len), (4, ELEMENT, 10));
    }

    #[test]
    fn chunks_that_contradict_their_profile_are_refused() {
        use BlockGroupFlags as F;
        let fits = |flags, stripes: &[u64], sub| check(MIB, &chunk(flags, stripes, sub, MIB));
        let odd = Err("number of stripes does not fit the profile");
        assert_eq!(fits(F::empty(), &[0], 1), Ok(()));
        assert_eq!(fits(F::empty(), &[0, 0], 1), odd);
        assert_eq!(fits(F::DUP, &[0], 1), odd);
        assert_eq!(fits(F::RAID1C3, &[0, 0], 1), odd);
        assert_eq!(fits(F::RAID10, &[0, 0, 0], 2), odd);
        assert_eq!(fits(F::RAID10, &[0, 0], 1), odd);
        assert_eq!(fits(F::RAID1 | F::DUP, &[0, 0], 1), odd);
        assert_eq!(fits(F::RAID5, &[0], 1), odd);
        assert_eq!(fits(F::RAID6, &[0, 0], 1), odd);
        let uneven = Err("its length is no multiple of its stripes' elements");
        assert_eq!(fits(F::RAID0, &[0, 0, 0], 1), uneven);
        let far = fits(F::empty(), &[u64::MAX - 5], 1);
        assert_eq!(far, Err("impossible stripe"));
        let long = check(u64::MAX, &chunk(F::empty(), &[0], 1, MIB));
        assert_eq!(long, Err("impossible length"));
    }

    /// A chunk of any profile that passes [`check`]; its stripes do not touch.
    fn any_chunk() -> impl Strategy<Value = ChunkItem> {
        use BlockGroupFlags as F;
        let profile = prop_oneof![
            Just((F::empty(), 1..2usize, 1)),
            Just((F::DUP, 2..3, 1)),
            Just((F::RAID1, 2..3, 1)),
            Just((F::RAID1C3, 3..4, 1)),
            Just((F::RAID1C4, 4..5, 1)),
            Just((F::RAID0, 1..6, 1)),
            Just((F::RAID10, 1..5, 2)),
        ];
        let stripes = profile.prop_flat_map(|(flags, count, sub)| {
            let count = count.prop_map(move |n| n * if flags == F::RAID10 { 2 } else { 1 });
            (Just(flags), count, Just(sub), 1..20u64)
        });
        stripes.prop_map(|(flags, count, sub, rows)| {
            let groups = match flags {
                F::RAID0 => count as u64,
                F::RAID10 => count as u64 / 2,
                _ => 1,
            };
            let offsets: Vec<u64> = (0..count as u64).map(|n| MIB + n * 64 * MIB).collect();
            chunk(flags, &offsets, sub, rows * groups * ELEMENT)
        })
    }

    /// Every piece of a copy, with where in the chunk it begins.
    fn pieces(chunk: &ChunkItem, copy: usize) -> Vec<(u64, Piece)> {
        let (mut all, mut at) = (Vec::new(), 0);
        while let Some(piece) = piece(chunk, at, u64::MAX, copy) {
            all.push((at, piece));
            at += piece.len;
        }
        all
    }

    proptest! {
        #[test]
        fn pieces_cover_a_chunk_once_per_copy(chunk in any_chunk()) {
            prop_assert_eq!(check(MIB, &chunk), Ok(()));
            for copy in 0..copies(&chunk) {
                let sum: u64 = pieces(&chunk, copy).iter().map(|(_, p)| p.len).sum();
                prop_assert_eq!(sum, chunk.length);
            }
            prop_assert_eq!(piece(&chunk, 0, 1, copies(&chunk)), None);
        }

        #[test]
        fn pieces_fill_the_device_extents_without_overlap(chunk in any_chunk()) {
            let mut places: Vec<(u64, u64, u64)> = (0..copies(&chunk))
                .flat_map(|copy| pieces(&chunk, copy))
                .map(|(_, p)| (p.devid, p.physical, p.len))
                .collect();
            places.sort_unstable();
            for extent in extents(&chunk) {
                let mut at = extent.physical;
                for (_, from, len) in places.iter().filter(|(devid, ..)| *devid == extent.devid) {
                    prop_assert_eq!(*from, at);
                    at += len;
                }
                prop_assert_eq!(at, extent.physical + extent.len);
            }
            let devices: BTreeSet<u64> = places.iter().map(|(devid, ..)| *devid).collect();
            prop_assert_eq!(devices.len(), chunk.stripes.len());
        }

        #[test]
        fn a_byte_lies_at_one_place_however_it_is_reached(
            chunk in any_chunk(), at in any::<u64>(), len in 1..1_000_000u64,
        ) {
            let at = at % chunk.length;
            for copy in 0..copies(&chunk) {
                let all = pieces(&chunk, copy);
                let (from, whole) = all.iter().rfind(|(from, _)| *from <= at).unwrap();
                let found = piece(&chunk, at, len, copy).unwrap();
                prop_assert_eq!(found.devid, whole.devid);
                prop_assert_eq!(found.physical, whole.physical + (at - from));
                prop_assert_eq!(found.len, len.min(whole.len - (at - from)));
            }
        }

        #[test]
        fn a_place_on_a_device_leads_back_to_its_byte(
            chunk in any_chunk(), nth in 0..8usize, at in any::<u64>(),
        ) {
            let nth = nth % chunk.stripes.len();
            let extent = extents(&chunk).nth(nth).unwrap();
            let at = at % extent.len;
            let found = within(&chunk, nth, at, extent.len);
            let mut place = extent.physical + at;
            for (byte, len) in found {
                let here = (0..copies(&chunk)).filter_map(|copy| piece(&chunk, byte, len, copy));
                let wanted = Piece { devid: extent.devid, physical: place, len };
                prop_assert!(here.into_iter().any(|piece| piece == wanted));
                place += len;
            }
            prop_assert_eq!(place, extent.physical + extent.len);
        }

        #[test]
        fn no_arithmetic_overflows_on_a_chunk_that_is_checked(
            flags in any::<u64>(), logical in any::<u64>(), length in any::<u64>(),
            stripe_len in any::<u64>(), sub in any::<u16>(),
            offsets in prop::collection::vec(any::<u64>(), 0..6),
            at in any::<u64>(), len in any::<u64>(), copy in 0..8usize,
        ) {
            let flags = BlockGroupFlags::from_bits_retain(flags) & BlockGroupFlags::PROFILE_MASK;
            let mut chunk = chunk(flags, &offsets, sub, length);
            chunk.stripe_len = stripe_len;
            if check(logical, &chunk).is_ok() {
                let _ = piece(&chunk, at, len, copy);
                prop_assert_eq!(extents(&chunk).count(), offsets.len());
            }
        }
    }
}
