//! The waits of a thread that found no space: its place in the queue, and deletions in progress.

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
    begun: u64,
    under_way: BTreeSet<u64>,
    /// Number of waiting threads.
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
    /// Begins a deletion.
    pub(crate) fn begin(&self) -> Deletion<'_> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.under_way.insert(number);
        Deletion(self, number)
    }

    /// Number of the oldest deletion in progress, else of the next one: all below have ended.
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

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    serving: u64,
}

/// The queue. It has no rank in the lock order: the first thread commits, and a waiting thread
/// holds no lock that a commit needs.
#[derive(Debug)]
pub(crate) struct Queue {
    tickets: RankedMutex<Tickets>,
    moved: Condvar,
}

/// The first place in the queue. The next thread follows when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    queue: &'a Queue,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            tickets: RankedMutex::new(Rank::Leaf, Tickets::default()),
            moved: Condvar::new(),
        }
    }
}

impl Queue {
    /// Whether a thread waits in it.
    pub(crate) fn is_busy(&self) -> bool {
        let tickets = self.tickets.lock();
        tickets.next != tickets.serving
    }

    /// Waits until the caller is first.
    pub(crate) fn wait(&self) -> Turn<'_> {
        let mut tickets = self.tickets.lock();
        let mine = tickets.next;
        tickets.next += 1;
        while tickets.serving != mine {
            tickets.wait(&self.moved);
        }
        Turn { queue: self }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.queue.tickets.lock().serving += 1;
        self.queue.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_queue_admits_one_thread_at_a_time() {
        let queue = Arc::new(Queue::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let (queue, inside) = (queue.clone(), inside.clone());
                std::thread::spawn(move || {
                    for _ in 0..50 {
                        let _turn = queue.wait();
                        assert!(queue.is_busy());
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
        assert!(!queue.is_busy());
    }
}
