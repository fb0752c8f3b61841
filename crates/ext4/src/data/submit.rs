//! From taken ranges to the device: plan them, cut the plans into requests, write them.
//!
//! Requests that follow each other on the device become one, also those of several files. If it
//! fails, each range fails that has bytes in it.

use std::ops::Range;
use std::sync::Arc;

use super::range::check;
use super::stretch::Stretch;
use super::work::{Dispatch, Part, Request, Taken, Work};
use super::{complete, journaled, plan};
use crate::Error;
use crate::engine::Engine;
use crate::file_data::{InFlight, Plan};
use crate::inode::Inode;

/// Bytes of one write request.
const MAX_WRITE: u64 = 4 << 20;

/// Plans ranges of one or more files and sends them on.
pub(super) fn prepare(engine: &Arc<Engine>, taken: &[Taken], dispatch: Dispatch) {
    let mut parts = Vec::new();
    let mut finished = Vec::new();
    let mut stretch = Stretch::new(engine, taken);
    for (inode, io) in taken {
        let plan = check(engine).and_then(|()| plan::make(engine, inode, io, &mut stretch));
        inode.data.state.lock().unpromise(io.delayed);
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                lost(engine, inode, io, &error);
                finished.push((Arc::clone(inode), Arc::clone(io)));
                continue;
            }
        };
        if journaled::applies(engine, inode) {
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
    complete::io_finished(engine, finished, dispatch);
    let bytes: u64 = parts.iter().map(Part::len).sum();
    if dispatch == Dispatch::Here || bytes <= MAX_WRITE {
        return write(engine, parts, dispatch);
    }
    for part in parts {
        engine.writeback.push(engine, Work::Write(part));
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

/// Writes parts of ranges, neighbours with one request; a range goes on to completion after its
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
    let result = check(engine).and_then(|()| Ok(engine.device.write_vectored_at(at, &slices)?));
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
