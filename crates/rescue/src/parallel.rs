//! Work that several threads share.

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Threads. More than one wait for a device also on a machine with one processor.
const THREADS: RangeInclusive<usize> = 2..=16;

/// Calls `work` once with each number up to before `count`, in several threads, until a call
/// breaks. Numbers are taken in rising order. Each thread has a state of its own, from `state`.
pub(crate) fn each<S>(
    count: u64,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, u64) -> ControlFlow<()> + Sync,
) {
    let (next, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let run = || {
        let mut state = state();
        while !ended.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            if work(&mut state, number).is_break() {
                ended.store(true, Ordering::Relaxed);
            }
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.clamp(*THREADS.start(), *THREADS.end());
    thread::scope(|scope| {
        for _ in 0..count.min(threads as u64) {
            scope.spawn(run);
        }
    });
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn every_number_is_taken_once_until_a_call_breaks() {
        for count in [0, 1, 2, 1000] {
            let taken = Mutex::new(Vec::new());
            each(
                count,
                || (),
                |(), number| {
                    taken.lock().push(number);
                    ControlFlow::Continue(())
                },
            );
            let mut taken = taken.into_inner();
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..count));
        }
        let calls = AtomicU64::new(0);
        each(
            u64::MAX,
            || (),
            |(), _| {
                calls.fetch_add(1, Ordering::Relaxed);
                ControlFlow::Break(())
            },
        );
        assert!(calls.into_inner() <= *THREADS.end() as u64);
    }
}
