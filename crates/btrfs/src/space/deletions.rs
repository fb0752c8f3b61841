//! Deletions under way: a request that found no space waits for what they give back.

use std::collections::BTreeSet;

use parking_lot::Condvar;

use crate::lock::{Rank, RankedMutex};

/// The deletions of file contents that threads are at.
#[derive(Debug)]
pub(crate) struct Deletions {
    state: RankedMutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    under_way: BTreeSet<u64>,
    /// Threads that wait.
    waiting: usize,
}

/// A deletion; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Deletion<'a>(&'a Deletions, u64);

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
        self.0.state.lock().under_way.remove(&self.1);
        self.0.ended.notify_all();
    }
}

impl Deletions {
    /// Begins one.
    pub(crate) fn begin(&self) -> Deletion<'_> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.under_way.insert(number);
        Deletion(self, number)
    }

    /// The number of the oldest that is under way, or else of the next one: those below have ended.
    pub(crate) fn ended_below(&self) -> u64 {
        let state = self.state.lock();
        state.under_way.first().copied().unwrap_or(state.begun)
    }

    /// Waits until those have ended that are under way now. True if any has ended that had not
    /// when [`ended_below`](Self::ended_below) returned `before`. The caller is at none itself.
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

    /// Threads that wait for deletions.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }
}
