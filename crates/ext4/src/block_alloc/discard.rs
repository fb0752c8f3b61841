//! Discards free blocks on the device, while other threads allocate and free.

use std::ops::Range;

use sapwood_vfs::TrimRange;

use super::{Extent, cancel};
use crate::group::{Group, Groups};
use crate::{Error, Result};

/// Most blocks that are taken out of the free ones at a time.
const STEP: u32 = 2048;
/// Divisor of all free blocks: the part that is taken at a time, so that reservations find blocks.
const PART: u64 = 4;

/// Whether the kernel accepts such a range: it begins in the file system, has a block, and its
/// least free range fits into a group.
pub(crate) fn is_trim_range(groups: &Groups, range: &TrimRange) -> bool {
    let geometry = groups.geometry();
    let bits = geometry.block_bits();
    range.start >> bits < geometry.blocks_count()
        && range.len >> bits > 0
        && range.least >> bits <= u64::from(geometry.blocks_per_group())
}

/// Discards the free blocks in a range. Blocks that a transaction freed count only once it is
/// durable. Returns the number of bytes. A group that is out of use is left out.
///
/// # Errors
/// Errors of the device; bitmaps that cannot be read.
pub(crate) fn trim(groups: &Groups, range: &TrimRange) -> Result<u64> {
    let geometry = groups.geometry();
    let bits = geometry.block_bits();
    let wanted = Range {
        start: range.start.div_ceil(1 << bits),
        end: range.start.saturating_add(range.len) >> bits,
    };
    let least = u32::try_from(range.least.div_ceil(1 << bits)).unwrap_or(u32::MAX);
    let mut blocks = 0;
    for number in 0..groups.count() {
        let group = groups.group(number)?;
        let mut at = wanted.start.saturating_sub(group.first_block);
        while let Ok(from) = u32::try_from(at) {
            let Some(found) = take(groups, group, from, least.max(1))? else {
                break;
            };
            let done = discard(groups, found, &wanted);
            cancel(groups, found);
            blocks += done?;
            at = found.start - group.first_block + u64::from(found.len);
        }
    }
    Ok(blocks << bits)
}

/// Discards the part of an extent in the range. Returns the number of blocks.
fn discard(groups: &Groups, found: Extent, wanted: &Range<u64>) -> Result<u64> {
    let end = found.start + u64::from(found.len);
    let (from, to) = (found.start.max(wanted.start), end.min(wanted.end));
    let bits = groups.geometry().block_bits();
    if from >= to {
        return Ok(0);
    }
    groups.device().discard(from << bits, (to - from) << bits)?;
    Ok(to - from)
}

/// Takes the next free blocks of a group, from `from` on.
fn take(groups: &Groups, group: &Group, from: u32, least: u32) -> Result<Option<Extent>> {
    let most = u32::try_from(groups.free_blocks() / PART).unwrap_or(u32::MAX);
    let most = most.min(STEP);
    let mut state = match groups.lock_blocks(group) {
        Err(Error::BadGroup { .. }) => return Ok(None),
        other => other?,
    };
    let Some(buddy) = state.buddy.as_mut() else {
        return Ok(None);
    };
    let Some((start, _)) = buddy.first_fit(from, least) else {
        return Ok(None);
    };
    let len = buddy.run_at(start, most);
    if len == 0 || !buddy.take(start, len) {
        return Ok(None);
    }
    group.publish(&state);
    drop(state);
    groups.count_blocks(len, false);
    Ok(Some(Extent {
        start: group.first_block + u64::from(start),
        len,
    }))
}
