//! Where the bytes of an in-flight range go on the device.
//!
//! A plan is made before anything is written. Written blocks are overwritten in place. Unwritten
//! blocks are written, and converted on completion. For holes, blocks are allocated, in memory
//! only. No other thread changes the map in an in-flight range, so the plan stays true until
//! completion.

use std::ops::Range;
use std::sync::Arc;

use super::range::{blocks_of, hint};
use super::stretch::Stretch;
use crate::block_alloc::{self, Extent, Request};
use crate::file_data::{Change, InFlight, Plan, Segment};
use crate::inode::Inode;
use crate::map::{self, Mapped};
use crate::store::Store;
use crate::{Error, Result};

/// Plans a range. After an error nothing is allocated.
///
/// # Errors
/// The map is damaged; [`Error::NoSpace`], which a reservation should have kept away.
pub(super) fn make(
    store: &Store,
    inode: &Arc<Inode>,
    io: &InFlight,
    stretch: &mut Stretch<'_>,
) -> Result<Plan> {
    let mut plan = Plan::default();
    stretch.next();
    match fill(
        store,
        inode,
        blocks_of(store, &io.range),
        &mut plan,
        stretch,
    ) {
        Ok(()) => Ok(plan),
        Err(error) => {
            cancel(store, &plan.segments);
            Err(error)
        }
    }
}

/// Gives the new blocks of segments back that are not claimed.
pub(super) fn cancel(store: &Store, segments: &[Segment]) {
    for segment in segments {
        if segment.change == Change::Insert {
            block_alloc::cancel(&store.groups, segment.extent());
        }
    }
}

fn fill(
    store: &Store,
    inode: &Arc<Inode>,
    blocks: Range<u64>,
    plan: &mut Plan,
    stretch: &mut Stretch<'_>,
) -> Result<()> {
    let mut at = blocks.start;
    while at < blocks.end {
        let run = map::lookup(store, inode, at, blocks.end - at)?;
        let end = map::run_end(inode.ino, &run, at, blocks.end)?;
        let (physical, change) = match run.what {
            Mapped::Written(physical) => (physical, Change::None),
            Mapped::Unwritten(physical) => (physical, Change::Convert),
            Mapped::Hole => {
                allocate(store, inode, at..end, plan, stretch)?;
                at = end;
                continue;
            }
        };
        plan.segments.push(Segment {
            blocks: at..end,
            physical,
            change,
        });
        at = end;
    }
    Ok(())
}

/// Takes blocks for a hole.
fn allocate(
    store: &Store,
    inode: &Arc<Inode>,
    hole: Range<u64>,
    plan: &mut Plan,
    stretch: &mut Stretch<'_>,
) -> Result<()> {
    let is_first = plan.segments.is_empty() && hole.start == 0;
    let mut goal = match plan.segments.last() {
        Some(last) => last
            .physical
            .saturating_add(last.blocks.end - last.blocks.start),
        None => match hint(inode, hole.start) {
            Some(goal) => goal,
            None => map::goal(store, inode, hole.start)?,
        },
    };
    let mut at = hole.start;
    while at < hole.end {
        let want = u32::try_from(hole.end - at).unwrap_or(u32::MAX);
        let together = match is_first && at == hole.start {
            true => stretch.take(goal, want),
            false => None,
        };
        let extent = match together {
            Some(extent) => extent,
            None => take(store, inode, goal, want)?,
        };
        let end = at + u64::from(extent.len);
        plan.segments.push(Segment {
            blocks: at..end,
            physical: extent.start,
            change: Change::Insert,
        });
        goal = extent.start.saturating_add(extent.len.into());
        at = end;
    }
    inode.data.set_hint(at, goal);
    Ok(())
}

/// Takes at most `want` blocks. If there seem to be none, blocks that were freed and wait for a
/// commit may help.
///
/// # Errors
/// [`Error::NoSpace`].
pub(super) fn take(store: &Store, inode: &Inode, goal: u64, want: u32) -> Result<Extent> {
    let request = Request {
        goal,
        len: want,
        ino: inode.ino,
    };
    let extent = match block_alloc::allocate(&store.groups, &request) {
        Err(Error::NoSpace) => {
            store.journal.commit_and_settle()?;
            block_alloc::allocate(&store.groups, &request)?
        }
        other => other?,
    };
    if extent.len == 0 || extent.len > want {
        block_alloc::cancel(&store.groups, extent);
        return Err(Error::NoSpace);
    }
    Ok(extent)
}
