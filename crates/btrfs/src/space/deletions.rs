//! Deletions of file contents in progress, for which a thread that found no space waits.

use std::collections::BTreeSet;

use parking_lot::Condvar;

use crate::lock::{Rank, RankedMutex};

/// Deletions of file contents in progress.
#[derive(Debug)]
pub(crate) struct Deletions {
    state: RankedMutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next deletion.
    begun: u64,
    under_way: BTreeSet<u64>,
    /// Number of waiting threads.
    waiting: usize,
}

/// A deletion; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Deletion<'a> {
    all: &'a Deletions,
    number: u64,
}

impl Default for Deletions {
    fn default() -> Self {
        Self {
            state: RankedMutex::new(Rank::Leaf, State::default()),
            ended: Condvar::new(),
        }
    }
}

impl Drop for Deletion<'_> {
    fn drop(&mut self) {
        self.all.state.lock().under_way.remove(&self.number);
        self.all.ended.notify_all();
    }
}

impl Deletions {
    /// Begins a deletion.
    pub(crate) fn begin(&self) -> Deletion<'_> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.under_way.insert(number);
        Deletion { all: self, number }
    }

    /// Number of the oldest deletion in progress, or of the next one if there is none. All
    /// deletions with a lower number have ended.
    pub(crate) fn ended_below(&self) -> u64 {
        let state = self.state.lock();
        state.under_way.first().copied().unwrap_or(state.begun)
    }

    /// Waits for the end of all deletions in progress. True if one has ended since
    /// [`ended_below`](Self::ended_below) returned `before`. The caller has none in progress.
    pub(crate) fn settle(&self, before: u64) -> bool {
        let mut state = self.state.lock();
        let now = state.begun;
        state.waiting += 1;
        while state.under_way.first().is_some_and(|&first| first < now) {
            state.wait(&self.ended);
        }
        state.waiting -= 1;
        now > before
    }

    /// Number of threads that wait for deletions.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}
