//! Runs many cases on a few threads, and names the one that panics or does not end.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that one case may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A case that runs, and since when.
type Running = Arc<Mutex<Option<(String, Instant)>>>;

/// Runs all cases and returns the sum of their results.
///
/// # Panics
/// The cases that panicked, or made a thread of the mount panic.
pub(crate) fn each<C: Debug + Sync>(cases: Vec<C>, run: impl Fn(&C) -> usize + Sync) -> usize {
    let (next, sum, done) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    );
    let failed = Mutex::new(Vec::new());
    let workers = thread::available_parallelism()
        .map_or(2, usize::from)
        .min(8);
    let running: Vec<Running> = (0..workers).map(|_| Running::default()).collect();
    let work = |slot: &Running| {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            *slot.lock().unwrap() = Some((format!("{case:?}"), Instant::now()));
            match catch_unwind(AssertUnwindSafe(|| run(case))) {
                Ok(count) => drop(sum.fetch_add(count, Ordering::Relaxed)),
                Err(_) => failed.lock().unwrap().push(format!("{case:?}")),
            }
            *slot.lock().unwrap() = None;
        }
    };
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                running.iter().for_each(end_if_stuck);
                thread::park_timeout(Duration::from_secs(1));
            }
        });
        let threads: Vec<_> = running
            .iter()
            .map(|slot| scope.spawn(|| work(slot)))
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        done.store(true, Ordering::Relaxed);
        watch.thread().unpark();
    });
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "{} of {} cases: {failed:?}",
        failed.len(),
        cases.len()
    );
    sum.into_inner()
}

fn end_if_stuck(slot: &Running) {
    let running = slot.lock().unwrap();
    if let Some((case, since)) = &*running
        && since.elapsed() > LIMIT
    {
        eprintln!("case {case} does not end");
        std::process::abort();
    }
}
