//! The choice of free blocks for a request.
//!
//! # How it works
//! 1. Blocks kept for the inode, if the request continues it (see [`Groups::streams`]).
//! 2. The goal itself, if all the blocks (or a good piece, [`GOOD_RUN`]) are free there; for a
//!    stream any run there will do, since it makes no new extent.
//! 3. For a small request: the next run after the goal in its group that holds it, so that small
//!    files stay contiguous.
//! 4. A free chunk as large as the request; then half of that, and so on down to one block. For
//!    each size: the goal's group, the rest of its flex group, then all others, from where the last
//!    search of that kind ended. Groups without such a chunk are passed by without their lock.
//!
//! If the search fails, all blocks kept for streams are released, and the search repeats.

use std::sync::atomic::Ordering;

use crate::group::{Buddy, Extent, Group, Groups, Known, Piece};
use crate::{Error, Result};

/// Blocks up to which a request is small.
const SMALL: u32 = 16;
/// Blocks at the goal that are taken though more were wanted.
const GOOD_RUN: u32 = 64;
/// Searches after streams released their blocks; other threads may keep some again meanwhile.
const TRIES: usize = 3;
/// Streams keep blocks only while this part of all blocks is free.
const PLENTY: u64 = 32;

/// The parameters of an allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// Preferred block.
    pub(crate) goal: u64,
    /// Blocks wanted; fewer may come, at least one.
    pub(crate) len: u32,
    /// Inode that it is for: files that grow at once are kept apart.
    pub(crate) ino: u32,
}

/// See [`super::allocate`].
pub(super) fn allocate(groups: &Groups, request: &Request) -> Result<Extent> {
    let Request { goal, len, ino } = *request;
    if len == 0 {
        return Err(Error::NoSpace);
    }
    let known = groups.streams().serve(ino, goal, len);
    if let Known::Kept(extent) = known {
        groups.count_blocks(extent.len, false);
        return Ok(extent);
    }
    let ahead = match known {
        Known::Grows(ahead) if plenty(groups) => ahead,
        _ => 0,
    };
    let wanted = Wanted {
        goal,
        len: len.saturating_add(ahead),
        least_at_goal: if known == Known::No {
            len.min(GOOD_RUN)
        } else {
            1
        },
    };
    let found = find_or_give_back(groups, &wanted)?;
    let got = Extent {
        start: found.start,
        len: found.len.min(len),
    };
    let kept = found.len - got.len;
    groups.count_blocks(got.len, false);
    for extent in groups.streams().note(ino, goal, got, kept) {
        give_back(groups, extent);
    }
    Ok(got)
}

/// Blocks that belong to no stream.
pub(super) fn allocate_plain(groups: &Groups, goal: u64, len: u32) -> Result<Extent> {
    let wanted = Wanted {
        goal,
        len,
        least_at_goal: len,
    };
    let found = find_or_give_back(groups, &wanted)?;
    groups.count_blocks(found.len, false);
    Ok(found)
}

struct Wanted {
    goal: u64,
    len: u32,
    /// Fewest free blocks at the goal that are taken there.
    least_at_goal: u32,
}

/// Whether there is enough to keep some for streams.
fn plenty(groups: &Groups) -> bool {
    groups.free_blocks() > groups.geometry().blocks_count() / PLENTY
}

fn find_or_give_back(groups: &Groups, wanted: &Wanted) -> Result<Extent> {
    for _ in 0..TRIES {
        if let Some(found) = find(groups, wanted)? {
            return Ok(found);
        }
        for extent in groups.streams().remove_all() {
            give_back(groups, extent);
        }
    }
    find(groups, wanted)?.ok_or(Error::NoSpace)
}

/// Finds and takes blocks.
fn find(groups: &Groups, wanted: &Wanted) -> Result<Option<Extent>> {
    let geometry = groups.geometry();
    let first_block = u64::from(geometry.first_data_block());
    let (home, offset) = geometry
        .group_of_block(wanted.goal.max(first_block))
        .unwrap_or((0, 0));
    let near = |buddy: &Buddy| {
        let run = buddy.run_at(offset, wanted.len);
        if run > 0 && run >= wanted.least_at_goal.min(wanted.len) {
            return Some((offset, run));
        }
        let small = wanted.len <= SMALL;
        small.then(|| buddy.first_fit(offset, wanted.len)).flatten()
    };
    if let Some(found) = take(groups, groups.group(home)?, near)? {
        return Ok(Some(found));
    }
    let largest = wanted.len.min(geometry.blocks_per_group()).max(1).ilog2();
    for order in (0..=largest).rev() {
        for number in groups_from(groups, home) {
            let group = groups.group(number)?;
            if !group.may_have(order) {
                continue;
            }
            let from = if number == home { offset } else { 0 };
            let fits = |buddy: &Buddy| buddy.chunk(order, from, wanted.len);
            if let Some(found) = take(groups, group, fits)? {
                let flex = |number| geometry.flex_of_group(number);
                if flex(number) != flex(home) {
                    groups.rotor.store(number, Ordering::Relaxed);
                }
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// All groups: this one, the rest of its flex group, the others from the rotor on.
fn groups_from(groups: &Groups, home: u32) -> impl Iterator<Item = u32> {
    let geometry = groups.geometry();
    let count = groups.count();
    let size = geometry.flex_size().max(1);
    let first = home / size * size;
    let flex = first..first.saturating_add(size).min(count);
    let mates = (home..flex.end).chain(flex.start..home);
    let rotor = groups.rotor.load(Ordering::Relaxed) % count.max(1);
    let others = (rotor..count).chain(0..rotor);
    mates.chain(others.filter(move |number| !flex.contains(number)))
}

/// Takes the extent that `pick` finds among the free blocks of a group. A group that is out of use
/// has none.
fn take(
    groups: &Groups,
    group: &Group,
    pick: impl FnOnce(&Buddy) -> Option<Piece>,
) -> Result<Option<Extent>> {
    if group.free_blocks() == 0 {
        return Ok(None);
    }
    let mut state = match groups.lock_blocks(group) {
        Err(Error::BadGroup { .. }) => return Ok(None),
        other => other?,
    };
    let Some(buddy) = &mut state.buddy else {
        return Ok(None);
    };
    let Some((start, len)) = pick(buddy).filter(|(start, len)| buddy.take(*start, *len)) else {
        return Ok(None);
    };
    group.publish(&state);
    Ok(Some(Extent {
        start: group.first_block + u64::from(start),
        len,
    }))
}

/// Returns blocks that are counted as free already to the buddy.
pub(super) fn give_back(groups: &Groups, extent: Extent) {
    let Ok((group, start)) = groups.place(extent) else {
        return;
    };
    let mut state = group.lock();
    if state.is_out_of_use() {
        groups.count_blocks(extent.len, false);
        return;
    }
    let given = match &mut state.buddy {
        Some(buddy) => buddy.give(start, extent.len),
        None => false,
    };
    if !given {
        groups.count_blocks(extent.len, false);
        groups.put_out_of_use(group, &mut state, "blocks were given back twice");
    }
    group.publish(&state);
}
