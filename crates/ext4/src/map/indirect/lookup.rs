//! Looks up blocks of a file.

use sapwood_ext4_format::{INDIRECT_DIRECT, IndirectGeometry, IndirectPath};
use zerocopy::little_endian::U32;

use super::{PointerPlace, pointer_block, pointers};
use crate::Result;
use crate::map::extent::Root;
use crate::map::nodes::Blocks;
use crate::map::run::{Growing, Mapped, Run};

/// Most places of pointers that one lookup reads to make its run longer.
const PLACES: usize = 64;

/// End of the path to a block.
struct Found<N> {
    place: PointerPlace<N>,
    index: u32,
    /// Levels of pointers that are missing below: 0 if this is the place of the block itself.
    missing: u8,
}

/// Follows the path as far as there are pointers.
fn follow<S: Blocks>(store: &S, root: &Root, path: &IndirectPath) -> Result<Found<S::Node>> {
    let mut found = Found {
        place: PointerPlace::Root,
        index: 0,
        missing: path.depth(),
    };
    for (level, offset) in (0_u8..).zip(path.offsets()) {
        found.index = *offset;
        found.missing = path.depth() - level;
        let next = pointers(store, root, &found.place, |all| {
            all.get(*offset as usize)
                .map_or(0, |pointer| u64::from(pointer.get()))
        })?;
        if next == 0 || found.missing == 0 {
            break;
        }
        found.place = PointerPlace::Block(pointer_block(store, next)?);
    }
    Ok(found)
}

/// [`lookup`](crate::map::lookup) in a block map.
pub(crate) fn lookup<S: Blocks>(store: &S, root: &Root, logical: u64, max: u64) -> Result<Run> {
    let geometry = IndirectGeometry::new(store.world().block_size);
    let mut growing = Growing::new(logical, max);
    for _ in 0..PLACES {
        let at = growing.at();
        let Some(path) = u32::try_from(at).ok().and_then(|at| geometry.path(at)) else {
            return Ok(growing.rest_is_hole());
        };
        let found = follow(store, root, &path)?;
        let more = if found.missing > 0 {
            let span = geometry.span(found.missing);
            growing.push(
                Mapped::Hole,
                at - offset_below(&geometry, &path, found.missing) + span,
            )
        } else {
            let last = if path.depth() == 0 {
                INDIRECT_DIRECT as usize
            } else {
                usize::MAX
            };
            pointers(store, root, &found.place, |all| {
                scan(all, found.index as usize, last, &mut growing)
            })?
        };
        if !more {
            break;
        }
    }
    Ok(growing.done())
}

/// Distance of the block of `path` from the first block of the pointer with `missing` levels below
/// it.
fn offset_below(geometry: &IndirectGeometry, path: &IndirectPath, missing: u8) -> u64 {
    let offsets = path.offsets();
    let below = offsets.len().saturating_sub(usize::from(missing));
    (0..missing)
        .rev()
        .zip(&offsets[below.min(offsets.len())..])
        .fold(0, |sum, (level, offset)| {
            sum + u64::from(*offset) * geometry.span(level)
        })
}

/// Lets the run grow through the pointers of one place. True if it may continue after them.
fn scan(all: &[U32], first: usize, last: usize, growing: &mut Growing) -> bool {
    let here = all.iter().take(last).skip(first);
    for pointer in here {
        let what = match pointer.get() {
            0 => Mapped::Hole,
            block => Mapped::Written(u64::from(block)),
        };
        if !growing.push(what, growing.at() + 1) {
            return false;
        }
    }
    true
}

/// Best place of a new block at `logical`: after the block before it, else near the pointer to it.
/// `None` if there is no neighbour.
pub(crate) fn goal<S: Blocks>(store: &S, root: &Root, logical: u32) -> Result<Option<u64>> {
    let geometry = IndirectGeometry::new(store.world().block_size);
    let Some(path) = geometry.path(logical) else {
        return Ok(None);
    };
    let found = follow(store, root, &path)?;
    let index = found.index as usize;
    let before = pointers(store, root, &found.place, |all| {
        let used = all
            .iter()
            .enumerate()
            .take(index)
            .rev()
            .find(|(_, pointer)| pointer.get() != 0);
        used.map(|(at, pointer)| u64::from(pointer.get()) + (index - at) as u64)
    })?;
    Ok(before.or(match &found.place {
        PointerPlace::Root => None,
        PointerPlace::Block(node) => Some(store.place(node) + 1),
    }))
}
