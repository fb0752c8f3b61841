//! The pool of request threads: as many as the requests in progress need.
//!
//! A thread answers a request before it takes the next, so an fsync occupies a thread for as long
//! as the device takes. [`Load`] counts threads and long requests. When a long request would leave
//! too few threads for other requests, one thread is added, up to a limit. So the queue is served
//! while fsyncs wait, and the fsyncs of many callers share one log commit, yet an idle mount has
//! few threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// All request threads of a session.
#[derive(Debug, Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alive: usize,
    started: usize,
    failed: Option<io::Error>,
}

impl Pool {
    /// Starts a thread. An error that ends it becomes the session's error.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(super) fn start(
        self: &Arc<Self>,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let number = {
            let mut state = self.state.lock();
            state.alive += 1;
            state.started += 1;
            state.started
        };
        let member = Alive(Arc::clone(self));
        std::thread::Builder::new()
            .name(format!("fuse-{number}"))
            .spawn(move || {
                if let Err(error) = work() {
                    member.0.state.lock().failed.get_or_insert(error);
                }
            })?;
        Ok(())
    }

    /// Waits until all threads have ended.
    ///
    /// # Errors
    /// The first error that ended one.
    pub(super) fn wait(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        self.ended.wait_while(&mut state, |state| state.alive > 0);
        state.failed.take().map_or(Ok(()), Err)
    }
}

/// Counts its thread as alive. Dropped when the thread ends or could not be started.
struct Alive(Arc<Pool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.state.lock().alive -= 1;
        self.0.ended.notify_all();
    }
}

/// Load of the threads of one queue.
#[derive(Debug)]
pub(super) struct Load {
    threads: AtomicUsize,
    busy: AtomicUsize,
    spare: usize,
    most: usize,
}

/// Whether a thread must be added because too few are idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Enough,
    /// Yes, and it is counted already. Call [`Load::lost`] if it cannot be started.
    OneMore,
}

impl Load {
    /// A load of `threads` threads that exist or are about to. `spare` of them should be free of
    /// long requests; there may be at most `most`.
    pub(super) fn new(threads: usize, spare: usize, most: usize) -> Self {
        Self {
            threads: AtomicUsize::new(threads),
            busy: AtomicUsize::new(0),
            spare,
            most,
        }
    }

    /// A thread takes a long request.
    pub(super) fn begin(&self) -> Need {
        let busy = self.busy.fetch_add(1, Ordering::Relaxed) + 1;
        self.need(busy, self.most)
    }

    /// The thread has answered it.
    pub(super) fn end(&self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// A client waits for a request that another thread must serve: there must be an idle thread,
    /// whatever the limit.
    pub(super) fn must_serve(&self) -> Need {
        self.need(self.busy.load(Ordering::Relaxed), usize::MAX)
    }

    /// A thread that was counted has ended or was not started.
    pub(super) fn lost(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    fn need(&self, busy: usize, most: usize) -> Need {
        let threads = self.threads.load(Ordering::Relaxed);
        if busy + self.spare <= threads || threads >= most {
            return Need::Enough;
        }
        // If several callers read the same count, one adds a thread. That is enough: the next
        // request checks again.
        let counted = self.threads.compare_exchange(
            threads,
            threads + 1,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        counted.map_or(Need::Enough, |_| Need::OneMore)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_while_all_are_busy_up_to_the_limit() {
        let load = Load::new(2, 1, 4);
        assert_eq!(load.begin(), Need::Enough);
        assert_eq!(load.begin(), Need::OneMore);
        assert_eq!(load.begin(), Need::OneMore);
        assert_eq!(load.begin(), Need::Enough);
        // All four are busy: a request that waits for another one needs one more thread.
        assert_eq!(load.must_serve(), Need::OneMore);
        load.lost();
        assert_eq!(load.must_serve(), Need::OneMore);
        load.end();
        assert_eq!(load.must_serve(), Need::Enough);
        assert_eq!(load.begin(), Need::Enough);
    }

    #[test]
    fn spare_threads_are_kept() {
        let load = Load::new(3, 2, 9);
        assert_eq!(load.begin(), Need::Enough);
        assert_eq!(load.begin(), Need::OneMore);
        assert_eq!(load.begin(), Need::OneMore);
    }

    #[test]
    fn a_fixed_number_of_threads_is_kept() {
        let load = Load::new(1, 1, 1);
        assert_eq!(load.begin(), Need::Enough);
    }

    #[test]
    fn the_first_error_of_a_thread_ends_the_session() {
        let pool = Arc::new(Pool::default());
        pool.start(|| Ok(()))
            .unwrap_or_else(|error| panic!("{error}"));
        pool.start(|| Err(io::ErrorKind::NotFound.into()))
            .unwrap_or_else(|error| panic!("{error}"));
        let kind = pool.wait().map_err(|error| error.kind());
        assert_eq!(kind, Err(io::ErrorKind::NotFound));
        pool.start(|| panic!("planted"))
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(pool.wait().is_ok());
    }
}
