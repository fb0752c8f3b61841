//! The best place of a new inode: the groups to try in order, and the start of the search in a
//! group.
//!
//! # How it works
//! **Files** go to their directory's group, then to others of its flex group (whose inode tables
//! are contiguous), then to groups found by steps of 1, 2, 4 ... from a place that depends on
//! the directory, so that the files of one directory stay together where their group is full; at
//! last, to any.
//!
//! **Directories** (after Orlov): one in the root spreads away from the others, to the flex group
//! with the fewest directories among those with more free inodes and blocks than the average; any
//! other stays in its parent's flex group, unless that is much fuller than the average.
//!
//! **Spread**: the directories of a flex group are distributed over its groups in turn, and the
//! search for a file's inode begins at a word of the bitmap that depends on the directory. Threads
//! that create in different directories then take different bits, and mostly different groups; the
//! inodes of one directory are still contiguous in the table.
//!
//! Inodes after the last one ever used have table blocks without meaning, unless the table was
//! zeroed. A search there begins at the first of them at most, so that the used part of a table has
//! no gaps.

use crate::group::{Group, Groups, WORD};

/// The properties of a new inode that decide on its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Inode of its directory.
    pub(crate) parent: u32,
    /// Group of its directory.
    pub(crate) parent_group: u32,
    /// It is a directory.
    pub(crate) directory: bool,
    /// The free inode with the smallest number is wanted.
    pub(crate) dense: bool,
    /// Its directory is the root, or marked as the top of a tree: the entries are unrelated.
    pub(crate) top: bool,
}

/// Groups to try, the best first. Some may appear twice. Groups that seem to have no free inode are
/// left out.
pub(crate) fn groups(groups: &Groups, wish: Wish) -> impl Iterator<Item = u32> {
    let count = groups.count().max(1);
    let home = if wish.dense {
        0
    } else if wish.directory {
        directory_group(groups, wish)
    } else {
        wish.parent_group % count
    };
    let flex = flex_range(groups, home);
    let mates = (home..flex.1).chain(flex.0..home);
    let hashed = u64::from(wish.parent_group) + u64::from(wish.parent);
    let steps = (0..u32::BITS)
        .map(|bit| 1u64 << bit)
        .take_while(move |step| !wish.dense && *step < u64::from(count))
        // The steps 1, 2, ... 2^k add up to 2^(k+1) - 1.
        .map(move |step| ((hashed + 2 * step - 1) % u64::from(count)) as u32);
    let linear = (home..count).chain(0..home);
    mates.chain(steps).chain(linear).filter(|number| {
        groups
            .group(*number)
            .is_ok_and(|group| group.free_inodes() > 0)
    })
}

/// Start in a group, unless the smallest number is wanted.
pub(crate) fn start(group: &Group, wish: Wish, inodes: u32) -> u32 {
    let words = inodes / WORD;
    // Multiples of the golden ratio: consecutive ones are far apart, and directories of one group
    // are made one after another.
    let fraction = u64::from(wish.parent).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (u128::from(fraction) * u128::from(words)) >> u64::BITS;
    (word as u32 * WORD).min(group.search_limit())
}

/// First group of the flex group that a group is in, and the one after its last.
fn flex_range(groups: &Groups, group: u32) -> (u32, u32) {
    let size = groups.geometry().flex_size().max(1);
    let first = group / size * size;
    (first, first.saturating_add(size).min(groups.count()))
}

/// Sums over some groups.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    inodes: u64,
    blocks: u64,
    dirs: u64,
}

fn sums(groups: &Groups, range: (u32, u32)) -> Sums {
    let all = (range.0..range.1).filter_map(|number| groups.group(number).ok());
    all.fold(Sums::default(), |sums, group| Sums {
        inodes: sums.inodes + u64::from(group.free_inodes()),
        blocks: sums.blocks + u64::from(group.free_blocks()),
        dirs: sums.dirs + u64::from(group.used_dirs()),
    })
}

/// The group for a directory.
fn directory_group(groups: &Groups, wish: Wish) -> u32 {
    let geometry = groups.geometry();
    let size = geometry.flex_size().max(1);
    let flexes = groups.count().div_ceil(size).max(1);
    let all: Vec<Sums> = (0..flexes)
        .map(|flex| sums(groups, flex_range(groups, flex * size)))
        .collect();
    let turn = groups.next_turn();
    let home = wish.parent_group / size;
    let flex = if wish.top {
        spread_out(&all, turn % flexes)
    } else {
        let per_flex = u64::from(size) * u64::from(geometry.inodes_per_group());
        let blocks = u64::from(size) * u64::from(geometry.blocks_per_group());
        stay_near(&all, home, per_flex, blocks)
    };
    let flex = flex
        .or_else(|| from(flexes, home).find(|flex| all[*flex as usize].inodes > 0))
        .unwrap_or(home);
    let (first, end) = flex_range(groups, flex * size);
    fewest_directories(groups, first, end, turn)
}

/// All of `count` numbers, from one on.
fn from(count: u32, first: u32) -> impl Iterator<Item = u32> {
    (first..count).chain(0..first.min(count))
}

fn average(all: &[Sums]) -> Sums {
    let count = (all.len() as u64).max(1);
    Sums {
        inodes: all.iter().map(|sums| sums.inodes).sum::<u64>() / count,
        blocks: all.iter().map(|sums| sums.blocks).sum::<u64>() / count,
        dirs: all.iter().map(|sums| sums.dirs).sum::<u64>() / count,
    }
}

/// The flex group with the fewest directories among those that are emptier than the average.
fn spread_out(all: &[Sums], turn: u32) -> Option<u32> {
    let average = average(all);
    let fit = |sums: &Sums| {
        sums.inodes > 0 && sums.inodes >= average.inodes && sums.blocks >= average.blocks
    };
    from(all.len() as u32, turn)
        .filter(|flex| fit(&all[*flex as usize]))
        .min_by_key(|flex| all[*flex as usize].dirs)
}

/// The first flex group from the parent's on that is not much fuller than the average; `inodes` and
/// `blocks` are the contents of one.
fn stay_near(all: &[Sums], home: u32, inodes: u64, blocks: u64) -> Option<u32> {
    let average = average(all);
    let least_inodes = average.inodes.saturating_sub(inodes / 4);
    let least_blocks = average.blocks.saturating_sub(blocks / 4);
    let most_dirs = average.dirs + inodes / 16;
    from(all.len() as u32, home).find(|flex| {
        let sums = all[*flex as usize];
        sums.inodes > 0
            && sums.inodes >= least_inodes
            && sums.blocks >= least_blocks
            && sums.dirs < most_dirs.max(1)
    })
}

/// The group of a flex group whose turn it is, among those with the fewest directories.
fn fewest_directories(groups: &Groups, first: u32, end: u32, turn: u32) -> u32 {
    let count = end.saturating_sub(first).max(1);
    from(count, turn % count)
        .map(|index| first + index)
        .filter(|number| {
            groups
                .group(*number)
                .is_ok_and(|group| group.free_inodes() > 0)
        })
        .min_by_key(|number| groups.group(*number).map_or(u32::MAX, Group::used_dirs))
        .unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flex(inodes: u64, blocks: u64, dirs: u64) -> Sums {
        Sums {
            inodes,
            blocks,
            dirs,
        }
    }

    #[test]
    fn a_directory_of_the_root_goes_where_few_are_and_much_is_free() {
        let all = [
            flex(90, 900, 5),
            flex(100, 1000, 2),
            flex(100, 1000, 1),
            flex(10, 1000, 0),
        ];
        assert_eq!(spread_out(&all, 0), Some(2));
        let equal = [flex(100, 1000, 1); 4];
        assert_eq!(spread_out(&equal, 3), Some(3));
        assert_eq!(spread_out(&[flex(0, 0, 0); 2], 0), None);
    }

    #[test]
    fn any_other_stays_with_its_parent_until_that_is_full() {
        let mut all = [flex(80, 800, 5), flex(50, 500, 5), flex(80, 800, 5)];
        assert_eq!(stay_near(&all, 1, 100, 1000), Some(1));
        all[1].inodes = 20;
        assert_eq!(stay_near(&all, 1, 100, 1000), Some(2));
        all[1] = flex(50, 100, 5);
        assert_eq!(stay_near(&all, 1, 100, 1000), Some(2));
        all[1] = flex(50, 500, 50);
        assert_eq!(stay_near(&all, 1, 100, 1000), Some(2));
    }
}
