//! From a taken range to the device: plan it, cut the plan into requests, write them.

use std::ops::Range;
use std::sync::Arc;

use super::range::check;
use super::work::{Dispatch, Request, Work};
use super::{complete, journaled, plan};
use crate::Error;
use crate::engine::Engine;
use crate::file_data::{InFlight, Plan};
use crate::inode::Inode;

/// Bytes of one write request.
const MAX_WRITE: u64 = 4 << 20;

/// Plans a range and sends it on.
pub(super) fn prepare(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    io: &Arc<InFlight>,
    dispatch: Dispatch,
) {
    let plan = check(engine).and_then(|()| plan::make(engine, inode, io));
    inode.data.state.lock().unpromise(io.delayed);
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            lost(engine, inode, io, &error);
            return complete::io_finished(engine, inode, io, dispatch);
        }
    };
    if journaled::applies(engine, inode) {
        // Completion puts it into the journal.
        io.set_plan(plan, 0);
        return complete::io_finished(engine, inode, io, dispatch);
    }
    let requests = requests(engine.block_size(), &plan);
    io.set_plan(plan, requests.len());
    for request in requests {
        match dispatch {
            Dispatch::Here => write_part(engine, inode, io, &request, dispatch),
            Dispatch::Queue => {
                let work = Work::Write(Arc::clone(inode), Arc::clone(io), request);
                engine.writeback.push(engine, work);
            }
        }
    }
}

/// The bytes of a range are lost: logs that, and makes the mount read-only unless this damages only
/// the file. If only the host has no space, the bytes are kept.
fn lost(engine: &Engine, inode: &Inode, io: &InFlight, error: &Error) {
    let Range { start, end } = io.range;
    if error.is_host_full() && !sapwood_fault::planted(174) {
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
    // Nothing on disk contradicts anything if only space was lacking.
    if !matches!(error, Error::NoSpace) {
        engine.health.fail(error);
    }
    io.fail();
}

/// Cuts a plan into requests: what is side by side goes at once.
fn requests(block_size: u64, plan: &Plan) -> Vec<Request> {
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

/// Writes a part of a range; after the last one the range goes on to completion.
pub(super) fn write_part(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    io: &Arc<InFlight>,
    request: &Request,
    dispatch: Dispatch,
) {
    let slices = io.slices(request.range.clone());
    let result =
        check(engine).and_then(|()| Ok(engine.device.write_vectored_at(request.at, &slices)?));
    if let Err(error) = &result {
        lost(engine, inode, io, error);
    }
    if io.request_done(result.is_ok()) {
        complete::io_finished(engine, inode, io, dispatch);
    }
    if matches!(dispatch, Dispatch::Queue) && result.is_ok() {
        let len = request.range.end - request.range.start;
        engine.device.write_behind(request.at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_data::{Change, Segment};

    fn segment(blocks: Range<u64>, physical: u64) -> Segment {
        Segment {
            blocks,
            physical,
            change: Change::Insert,
        }
    }

    #[test]
    fn neighbours_are_one_request() {
        let plan = Plan {
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
        let plan = Plan {
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
