//! Plans the blocks of taken ranges, and writes them to the device.
//!
//! # How it works
//! **Plan.** A plan is made before anything is written. Written blocks are overwritten in place.
//! Unwritten blocks are written, and converted on completion. For holes, blocks are allocated, in
//! memory only. No other thread changes the map in an in-flight range, so the plan stays true until
//! completion. The small files of a batch get blocks side by side ([`Stretch`]), so that one
//! request writes them.
//!
//! **Submit.** The plans are cut into requests. Requests that are contiguous on the device become
//! one, also across files. If it fails, each range with bytes in it fails. [`complete`] continues
//! with ranges whose last request ended.

use std::ops::Range;
use std::sync::Arc;

use super::complete;
use super::work::{Dispatch, Part, Request, Taken, Work};
use crate::block_alloc::{self, Extent};
use crate::engine::Engine;
use crate::file_data::{Change, InFlight, Segment, WritePlan};
use crate::inode::Inode;
use crate::map::{self, Mapped};
use crate::store::Store;
use crate::{Error, Result};

/// Bytes of one write request.
const MAX_WRITE: u64 = 4 << 20;
/// Blocks up to which a file takes part in a [`Stretch`]. The allocator places small files alike.
const SMALL: u32 = 16;

/// Plans ranges of one or more files and writes them.
pub(super) fn prepare(engine: &Arc<Engine>, taken: &[Taken], dispatch: Dispatch) {
    let mut parts = Vec::new();
    let mut finished = Vec::new();
    let mut stretch = Stretch::new(engine, taken);
    for (inode, io) in taken {
        let made = engine
            .check()
            .and_then(|()| plan(engine, inode, io, &mut stretch));
        inode.data.state.lock().unpromise(io.delayed);
        let plan = match made {
            Ok(plan) => plan,
            Err(error) => {
                lost(engine, inode, io, &error);
                finished.push((Arc::clone(inode), Arc::clone(io)));
                continue;
            }
        };
        if inode.is_journaled(engine) {
            // Completion puts it into the journal.
            io.set_plan(plan, 0);
            finished.push((Arc::clone(inode), Arc::clone(io)));
            continue;
        }
        let requests = requests(engine.block_size(), &plan);
        io.set_plan(plan, requests.len());
        parts.extend(requests.into_iter().map(|request| Part {
            inode: Arc::clone(inode),
            io: Arc::clone(io),
            request,
        }));
    }
    drop(stretch);
    let bytes: u64 = parts.iter().map(Part::len).sum();
    if dispatch == Dispatch::Here || bytes <= MAX_WRITE {
        write(engine, parts, dispatch);
    } else {
        for part in parts {
            engine.writeback.push(engine, Work::Write(part));
        }
    }
    complete::io_finished(engine, finished, dispatch);
}

/// Plans a range. After an error nothing is allocated.
///
/// # Errors
/// The map is damaged; [`Error::NoSpace`], which the reservation should prevent.
fn plan(
    store: &Store,
    inode: &Arc<Inode>,
    io: &InFlight,
    stretch: &mut Stretch<'_>,
) -> Result<WritePlan> {
    let mut plan = WritePlan::default();
    stretch.next();
    let blocks = store.blocks_of(&io.range);
    match fill(store, inode, blocks, &mut plan, stretch) {
        Ok(()) => Ok(plan),
        Err(error) => {
            for segment in &plan.segments {
                segment.cancel(&store.groups);
            }
            Err(error)
        }
    }
}

fn fill(
    store: &Store,
    inode: &Arc<Inode>,
    blocks: Range<u64>,
    plan: &mut WritePlan,
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
    plan: &mut WritePlan,
    stretch: &mut Stretch<'_>,
) -> Result<()> {
    let is_first = plan.segments.is_empty() && hole.start == 0;
    let mut goal = match plan.segments.last() {
        Some(last) => last
            .physical
            .saturating_add(last.blocks.end - last.blocks.start),
        None => match inode.data.hint(hole.start) {
            Some(goal) => goal,
            None => map::goal(store, inode, hole.start)?,
        },
    };
    let mut at = hole.start;
    while at < hole.end {
        let want = u32::try_from(hole.end - at).unwrap_or(u32::MAX);
        let together = if is_first && at == hole.start {
            stretch.take(goal, want)
        } else {
            None
        };
        let extent = match together {
            Some(extent) => extent,
            None => store.take_blocks(inode.ino, goal, want)?,
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

/// Blocks side by side for the small files of one piece of work: those that it has taken and not
/// given to a file.
///
/// The first file of a group also takes blocks for the following files of that group. Each of them
/// gets the next blocks of this run. The rest returns to the group.
struct Stretch<'a> {
    store: &'a Store,
    /// Delayed blocks of the small files that are still to be planned, by group of their inodes.
    wanted: Vec<(u32, u32)>,
    /// The next file.
    at: usize,
    left: Extent,
    /// The group whose blocks `left` has.
    group: u32,
}

impl<'a> Stretch<'a> {
    /// A stretch for the files of a piece of work, in this order.
    fn new(store: &'a Store, taken: &[Taken]) -> Self {
        let small = |io: &Arc<InFlight>| {
            let delayed = u32::try_from(io.delayed).unwrap_or(u32::MAX);
            if delayed <= SMALL { delayed } else { 0 }
        };
        let group = |ino| {
            store
                .geometry
                .inode_location(ino)
                .map_or(0, |found| found.0)
        };
        let wanted = match taken.len() {
            0 | 1 => Vec::new(),
            _ => taken
                .iter()
                .map(|(inode, io)| (group(inode.ino), small(io)))
                .collect(),
        };
        Self {
            store,
            wanted,
            at: 0,
            left: Extent { start: 0, len: 0 },
            group: 0,
        }
    }

    /// Moves on to the next range of the piece of work.
    fn next(&mut self) {
        self.at += 1;
    }

    /// Blocks for the range that is being planned, if it is small, near `goal` if possible.
    fn take(&mut self, goal: u64, want: u32) -> Option<Extent> {
        let rest = self.wanted.get(self.at.checked_sub(1)?..)?;
        let (group, delayed) = *rest.first()?;
        if want > delayed {
            return None;
        }
        if self.left.len < want || self.group != group {
            let same = rest.iter().take_while(|(other, _)| *other == group);
            let all = same.map(|(_, delayed)| *delayed).sum();
            self.give_back();
            self.left = block_alloc::allocate_stretch(&self.store.groups, goal, all).ok()?;
            self.group = group;
        }
        let extent = Extent {
            start: self.left.start,
            len: want,
        };
        if self.left.len < want {
            return None;
        }
        self.left.start += u64::from(want);
        self.left.len -= want;
        Some(extent)
    }

    fn give_back(&mut self) {
        if self.left.len > 0 {
            block_alloc::cancel(&self.store.groups, self.left);
        }
        self.left.len = 0;
    }
}

impl Drop for Stretch<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Cuts a plan into requests: contiguous blocks are one request.
fn requests(block_size: u64, plan: &WritePlan) -> Vec<Request> {
    let mut whole: Vec<Request> = Vec::new();
    for segment in &plan.segments {
        let at = segment.physical.saturating_mul(block_size);
        let range = segment.blocks.start.saturating_mul(block_size)
            ..segment.blocks.end.saturating_mul(block_size);
        match whole.last_mut() {
            Some(last)
                if last.range.end == range.start
                    && last.at.checked_add(last.range.end - last.range.start) == Some(at) =>
            {
                last.range.end = range.end;
            }
            _ => whole.push(Request { at, range }),
        }
    }
    let cut = |request: Request| {
        let Request { at, range } = request;
        let step = usize::try_from(MAX_WRITE).unwrap_or(usize::MAX);
        (range.start..range.end)
            .step_by(step)
            .map(move |start| Request {
                at: at + (start - range.start),
                range: start..range.end.min(start + MAX_WRITE),
            })
    };
    whole.into_iter().flat_map(cut).collect()
}

/// Writes parts of ranges, neighbours with one request; a range continues to completion after its
/// last part.
pub(super) fn write(engine: &Arc<Engine>, mut parts: Vec<Part>, dispatch: Dispatch) {
    parts.sort_by_key(|part| part.request.at);
    let mut rest = &parts[..];
    while let Some(first) = rest.first() {
        let mut end = first.request.at + first.len();
        let neighbours = rest.iter().skip(1).take_while(|part| {
            let fits = part.request.at == end && end + part.len() - first.request.at <= MAX_WRITE;
            end += part.len();
            fits
        });
        let (run, others) = rest.split_at(1 + neighbours.count());
        write_run(engine, first.request.at, run, dispatch);
        rest = others;
    }
}

/// Writes parts that follow each other on the device from `at` on.
fn write_run(engine: &Arc<Engine>, at: u64, run: &[Part], dispatch: Dispatch) {
    let slices: Vec<&[u8]> = run
        .iter()
        .flat_map(|part| part.io.slices(part.request.range.clone()))
        .collect();
    let result = engine
        .check()
        .and_then(|()| Ok(engine.device.write_vectored_at(at, &slices)?));
    let several = run
        .windows(2)
        .any(|pair| matches!(pair, [one, other] if !Arc::ptr_eq(&one.inode, &other.inode)));
    if several && result.as_ref().is_err_and(Error::is_host_full) {
        // A file whose bytes have space does not wait for the others.
        run.chunk_by(|one, other| Arc::ptr_eq(&one.inode, &other.inode))
            .filter_map(|of_inode| Some((of_inode.first()?.request.at, of_inode)))
            .for_each(|(at, of_inode)| write_run(engine, at, of_inode, dispatch));
        return;
    }
    let mut finished = Vec::new();
    for Part { inode, io, .. } in run {
        if let Err(error) = &result {
            lost(engine, inode, io, error);
        }
        if io.request_done(result.is_ok()) {
            finished.push((Arc::clone(inode), Arc::clone(io)));
        }
    }
    complete::io_finished(engine, finished, dispatch);
    if dispatch == Dispatch::Queue && result.is_ok() {
        let len = run.iter().map(Part::len).sum();
        engine.device.write_behind(at, len);
    }
}

/// The bytes of a range are lost: logs that, and makes the mount read-only unless this damages only
/// the file. If only the host has no space, the bytes are kept.
fn lost(engine: &Engine, inode: &Inode, io: &InFlight, error: &Error) {
    let Range { start, end } = io.range;
    if error.is_host_full() {
        log::warn!(
            "inode {}: {start}..{end} stays in memory: {error}",
            inode.ino
        );
        io.refuse();
        return io.fail();
    }
    let lost = format!(
        "inode {}: bytes {start}..{end} are lost: {error}",
        inode.ino
    );
    log::error!("{lost}");
    engine.health.record(&lost);
    // Lack of space damages only this file: the image stays consistent.
    if !matches!(error, Error::NoSpace) {
        engine.health.fail(error);
    }
    io.fail();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(blocks: Range<u64>, physical: u64) -> Segment {
        Segment {
            blocks,
            physical,
            change: Change::Insert,
        }
    }

    #[test]
    fn neighbours_are_one_request() {
        let plan = WritePlan {
            segments: vec![segment(4..6, 100), segment(6..7, 102), segment(7..9, 50)],
        };
        let wanted = [
            Request {
                at: 100 << 12,
                range: 4 << 12..7 << 12,
            },
            Request {
                at: 50 << 12,
                range: 7 << 12..9 << 12,
            },
        ];
        assert_eq!(requests(4096, &plan), wanted);
    }

    #[test]
    fn long_ones_are_cut() {
        let plan = WritePlan {
            segments: vec![segment(1..2500, 7)],
        };
        let requests = requests(4096, &plan);
        assert_eq!(requests.len(), 3);
        let mut at = 4096;
        for request in &requests {
            assert_eq!(request.range.start, at);
            assert_eq!(request.at, at + 6 * 4096);
            assert!(request.range.end - at <= MAX_WRITE);
            at = request.range.end;
        }
        assert_eq!(at, 2500 * 4096);
    }
}
