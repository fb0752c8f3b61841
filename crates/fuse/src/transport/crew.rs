//! Request threads: as many as the requests under way need.
//!
//! A thread answers a request before it takes the next, so that an fsync occupies one for as
//! long as the device takes. [`Load`] counts threads, and requests that take long; beside
//! these a few threads stay for the others, so that one more is added, up to a bound, when a
//! long request takes one of them. So a queue is served while fsyncs wait, and fsyncs of many
//! callers meet in one log commit, yet an idle mount has few threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};

/// All request threads of a session.
#[derive(Debug, Default)]
pub(super) struct Crew {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    alive: usize,
    started: usize,
    failed: Option<io::Error>,
}

impl Crew {
    /// Starts a thread. An error that ends it is the session's.
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
        let member = Member(Arc::clone(self));
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

/// Counts its thread as alive; dropped when it ends, or was never started.
struct Member(Arc<Crew>);

impl Drop for Member {
    fn drop(&mut self) {
        self.0.state.lock().alive -= 1;
        self.0.ended.notify_all();
    }
}

/// How busy the threads of one queue are.
#[derive(Debug)]
pub(super) struct Load {
    threads: AtomicUsize,
    busy: AtomicUsize,
    spare: usize,
    most: usize,
}

/// Whether a thread must be added: too few are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Enough,
    /// It is counted already; [`Load::lost`] if it cannot be started.
    OneMore,
}

impl Load {
    /// For `threads` that exist or are about to, of which `spare` should be left beside long
    /// requests, and at most `most`.
    pub(super) fn new(threads: usize, spare: usize, most: usize) -> Self {
        Self {
            threads: AtomicUsize::new(threads),
            busy: AtomicUsize::new(0),
            spare,
            most,
        }
    }

    /// A thread takes a request that takes long.
    pub(super) fn begin(&self) -> Need {
        let busy = self.busy.fetch_add(1, Ordering::Relaxed) + 1;
        self.need(busy, self.most)
    }

    /// It has answered it.
    pub(super) fn end(&self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// A client waits for what another thread must serve: bound or not, there must be idle ones.
    pub(super) fn must_serve(&self) -> Need {
        self.need(self.busy.load(Ordering::Relaxed), usize::MAX)
    }

    /// A thread that was counted does not exist, or no more.
    pub(super) fn lost(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    fn need(&self, busy: usize, most: usize) -> Need {
        let threads = self.threads.load(Ordering::Relaxed);
        if busy + self.spare <= threads || threads >= most {
            return Need::Enough;
        }
        // Of several that see the same count one adds a thread; that is enough for now, the
        // next request looks again.
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
    fn one_thread_stays_up_to_the_bound() {
        let load = Load::new(2, 1, 4);
        assert_eq!(load.begin(), Need::Enough);
        assert_eq!(load.begin(), Need::OneMore);
        assert_eq!(load.begin(), Need::OneMore);
        assert_eq!(load.begin(), Need::Enough);
        // All four are busy: who waits for another must have one.
        assert_eq!(load.must_serve(), Need::OneMore);
        load.lost();
        assert_eq!(load.must_serve(), Need::OneMore);
        load.end();
        assert_eq!(load.must_serve(), Need::Enough);
        assert_eq!(load.begin(), Need::Enough);
    }

    #[test]
    fn as_many_stay_as_are_wanted() {
        let load = Load::new(3, 2, 9);
        assert_eq!(load.begin(), Need::Enough);
        assert_eq!(load.begin(), Need::OneMore);
        assert_eq!(load.begin(), Need::OneMore);
    }

    #[test]
    fn a_fixed_number_stays() {
        let load = Load::new(1, 1, 1);
        assert_eq!(load.begin(), Need::Enough);
    }

    #[test]
    fn the_first_error_is_the_sessions() {
        let crew = Arc::new(Crew::default());
        crew.start(|| Ok(()))
            .unwrap_or_else(|error| panic!("{error}"));
        crew.start(|| Err(io::ErrorKind::NotFound.into()))
            .unwrap_or_else(|error| panic!("{error}"));
        let kind = crew.wait().map_err(|error| error.kind());
        assert_eq!(kind, Err(io::ErrorKind::NotFound));
        crew.start(|| panic!("planted"))
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(crew.wait().is_ok());
    }
}
