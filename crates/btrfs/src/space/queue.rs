//! The queue of threads that found no space.

use parking_lot::Condvar;

use crate::lock::{Rank, RankedMutex};

#[derive(Debug, Default)]
struct Tickets {
    /// The next ticket to give.
    next: u64,
    /// The ticket of the first thread.
    serving: u64,
}

/// A queue that admits one thread at a time, in the order of arrival. It has no rank in the lock
/// order: the first thread commits, and a waiting thread holds no lock that a commit needs.
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
    /// Whether a thread is in the queue, the first one included.
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
