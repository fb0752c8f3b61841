//! The parts of a chunk that stay when it is cut or split. No I/O.

use sapwood_btrfs_format::BlockGroupFlags;

/// Unused space within a data chunk that is worth another chunk.
pub(crate) const LEAST_GAP: u64 = 1 << 20;
/// Bytes of the last data chunk of a file system without data.
const LEAST_DATA: u64 = 1 << 20;
/// Nodes of metadata that stay free: the reserve of the kernel (368 nodes as of Linux 6.18) and
/// room for some dozens of changed inodes at a time: with less the kernel commits after each few
/// changes.
const FREE_NODES: u64 = 1024;
/// The same for the chunk tree.
const FREE_SYSTEM_NODES: u64 = 32;

/// A block group as of the last commit.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) flags: BlockGroupFlags,
    /// It can be cut at multiples of this from its start.
    pub(crate) row: u64,
    /// Start and bytes of each extent, in order.
    pub(crate) extents: Vec<(u64, u64)>,
}

impl Group {
    fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Whether only data is in it.
    pub(crate) fn is_data(&self) -> bool {
        let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        self.flags.contains(BlockGroupFlags::DATA) && !self.flags.contains(mixed)
    }

    /// Bytes in extents.
    pub(crate) fn used(&self) -> u64 {
        self.extents.iter().map(|(_, len)| len).sum()
    }

    /// The boundary at or before an address where it can be cut.
    fn boundary(&self, at: u64) -> u64 {
        at - (at - self.start) % self.row
    }

    /// First boundary at or after an address, or the end.
    fn boundary_after(&self, at: u64) -> u64 {
        self.boundary(at + self.row - 1).min(self.end())
    }
}

/// The parts of a data group that hold its extents, without gaps of `gap` bytes. There are none if
/// the group is empty and not the only one.
pub(crate) fn of_data(group: &Group, all: &[Group], gap: u64) -> Vec<(u64, u64)> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for (start, len) in &group.extents {
        let from = group.boundary(*start);
        let to = group.boundary_after(start + len);
        match parts.last_mut() {
            Some((_, end)) if from < *end + gap => *end = to.max(*end),
            _ => parts.push((from, to)),
        }
    }
    let siblings = all.iter().filter(|other| other.flags == group.flags);
    if parts.is_empty() && siblings.count() == 1 {
        parts.push((
            group.start,
            group.start + LEAST_DATA.next_multiple_of(group.row).min(group.len),
        ));
    }
    let lengths = parts.into_iter().map(|(from, to)| (from, to - from));
    lengths.collect()
}

/// The front of a metadata group up to its last extent, and further as far as the metadata of all
/// groups needs free space.
pub(crate) fn of_metadata(group: &Group, all: &[Group], nodesize: u64) -> Vec<(u64, u64)> {
    let system = group.flags.contains(BlockGroupFlags::SYSTEM);
    let kind = |other: &&Group| other.flags == group.flags;
    let free: u64 = all.iter().filter(kind).map(|g| g.len - g.used()).sum();
    let keep = nodesize
        * if system {
            FREE_SYSTEM_NODES
        } else {
            FREE_NODES
        };
    let spare = free.saturating_sub(keep);
    let last = group
        .extents
        .last()
        .map_or(group.start, |(at, len)| at + len);
    let cut = spare.min(group.end().saturating_sub(last));
    let end = group.boundary_after(group.end() - cut);
    let siblings = all.iter().filter(kind).count();
    match end > group.start {
        true => vec![(group.start, end - group.start)],
        // The last group of a kind is never removed.
        false if siblings > 1 => Vec::new(),
        false => vec![(group.start, group.row.min(group.len))],
    }
}

/// Two parts of a group, the second of at most `most` bytes; `None` if an extent is in the way.
pub(crate) fn split(group: &Group, most: u64) -> Option<Vec<(u64, u64)>> {
    let mut at = group.boundary_after(group.end().saturating_sub(most).max(group.start + 1));
    for (start, len) in &group.extents {
        if *start < at && start + len > at {
            at = group.boundary_after(start + len);
        }
    }
    let inside = at > group.start && at < group.end();
    inside.then(|| vec![(group.start, at - group.start), (at, group.end() - at)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const STRIPE_LEN: u64 = 64 << 10;

    fn data(extents: &[(u64, u64)]) -> Group {
        Group {
            start: 16 * MIB,
            len: 64 * MIB,
            flags: BlockGroupFlags::DATA,
            row: STRIPE_LEN,
            extents: extents.to_vec(),
        }
    }

    #[test]
    fn only_large_gaps_of_a_data_group_are_cut_out() {
        let at = |mib: u64| 16 * MIB + mib * MIB;
        let group = data(&[(at(1) + 4096, 4096), (at(1) + MIB / 2, 4096), (at(9), MIB)]);
        let parts = of_data(&group, std::slice::from_ref(&group), LEAST_GAP);
        assert_eq!(
            parts,
            [(at(1), MIB / 2 + STRIPE_LEN), (at(9), MIB)],
            "{parts:?}"
        );
    }

    #[test]
    fn the_last_data_group_stays() {
        let group = data(&[]);
        assert_eq!(
            of_data(&group, std::slice::from_ref(&group), LEAST_GAP),
            [(16 * MIB, MIB)]
        );
        assert!(of_data(&group, &[group.clone(), group.clone()], LEAST_GAP).is_empty());
    }

    #[test]
    fn a_split_cuts_no_extent() {
        let at = |mib: u64| 16 * MIB + mib * MIB;
        let group = data(&[(at(0), 32 * MIB), (at(32), 8 * MIB), (at(40), 24 * MIB)]);
        let parts = |most| split(&group, most);
        assert_eq!(parts(24 * MIB).unwrap()[1], (at(40), 24 * MIB));
        assert_eq!(parts(31 * MIB).unwrap()[1], (at(40), 24 * MIB));
        assert_eq!(parts(32 * MIB).unwrap()[1], (at(32), 32 * MIB));
        assert_eq!(parts(23 * MIB), None);
    }

    #[test]
    fn metadata_keeps_free_space() {
        let node = 16 << 10;
        let group = |len, extents: &[(u64, u64)]| Group {
            start: MIB,
            len,
            flags: BlockGroupFlags::METADATA | BlockGroupFlags::DUP,
            row: STRIPE_LEN,
            extents: extents.to_vec(),
        };
        let one = group(256 * MIB, &[(MIB, node), (2 * MIB, node)]);
        let parts = of_metadata(&one, std::slice::from_ref(&one), node);
        let [(start, len)] = *parts else {
            panic!("{parts:?}");
        };
        assert_eq!(start, MIB);
        assert!(
            len >= FREE_NODES * node + 2 * node && len < 18 * MIB,
            "{len}"
        );
        let full = group(4 * MIB, &[(5 * MIB - node, node)]);
        assert_eq!(
            of_metadata(&full, std::slice::from_ref(&full), node),
            [(MIB, 4 * MIB)]
        );
    }
}
