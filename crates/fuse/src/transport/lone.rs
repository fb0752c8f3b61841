//! A lone client: requests that arrive one at a time.
//!
//! # How it works
//!
//! A client that sends one request after another, such as `tar`, sleeps until each is answered. So
//! a request costs two wake-ups, and the time to wake a thread is longer than the time to serve
//! most requests. [`Lone`] counts the requests in progress. After [`STREAK`] requests without an
//! overlap or a wait for the device, the client is *lone*, until it pauses, waits for the device, or
//! a second client appears. One thread, the *leader*, reads `/dev/fuse` then, and [polls](Poll) it
//! after each answer. The others wait in [`Reader::turn`], because the kernel would wake one of them
//! for every request.
//!
//! The threads that are blocked in a read when this begins serve one request each, and then wait.
//! With io_uring each ring has its own thread, and none leads. Instead the thread that served the
//! last request polls its ring, from another CPU (`uring/affinity`).
//!
//! Trouble cases:
//! - The leader's request takes long: before an fsync the leader lets the others go, and the
//!   watcher ends the state when no request begins for a [`TICK`]
//!   (`a_slow_request_lets_the_others_read`).
//! - A second client: its requests are there when the leader looks, without any wait. If more than
//!   one in [`OVERLAPS`] is, the watcher ends the state (`a_second_client_ends_it`).
//! - The client pauses: the watcher ends the state after a [`TICK`], so that an idle mount causes
//!   no wake-ups (`a_pause_ends_it`).
//! - The client works between its requests: each poll in vain doubles the number of requests that
//!   are not polled for, up to [`STREAK`], so that little processor time is lost
//!   (`polls_in_vain_are_skipped`).
//! - The connection ends: the leader lets the others go, which see it too
//!   (`the_end_lets_all_threads_go`).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sapwood_vfs::Choice;

/// Requests in a row that overlap no other and do not wait for the device, until their client
/// counts as lone.
const STREAK: u32 = 64;
/// Time for which a thread polls after an answer.
const POLL: Duration = Duration::from_micros(30);
/// Interval between checks of the watcher.
const TICK: Duration = Duration::from_millis(4);
/// One overlap in this many requests is allowed: the kernel sends some that no client waits for.
const OVERLAPS: u32 = 8;

/// Whether the requests of a mount come from a lone client.
#[derive(Debug)]
pub(super) struct Lone {
    enabled: bool,
    /// Requests in progress.
    serving: AtomicU32,
    /// Requests since the last one that overlapped another or waited for the device.
    streak: AtomicU32,
    /// Requests and overlaps since the watcher's last tick.
    begun: AtomicU32,
    overlaps: AtomicU32,
    /// Threads of the loop on `/dev/fuse` that do not wait for a turn.
    readers: AtomicUsize,
    /// The client is lone. Changes under the lock of `ended`.
    lone: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
}

/// A request in progress.
pub(super) struct Serving<'a>(Option<&'a Lone>);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        if let Some(lone) = self.0 {
            lone.serving.fetch_sub(1, Relaxed);
        }
    }
}

/// A thread of the loop on `/dev/fuse`. It reads until the connection ends.
pub(super) struct Reader<'a>(&'a Lone);

impl Reader<'_> {
    /// Waits until the thread may read. Returns whether it leads.
    pub(super) fn turn(&self) -> bool {
        let Self(lone) = self;
        while lone.is_lone() {
            let others = |readers: usize| (readers > 1).then(|| readers - 1);
            if lone.readers.fetch_update(Relaxed, Relaxed, others).is_err() {
                return true;
            }
            let mut ended = lone.ended.lock();
            lone.changed.wait_while(&mut ended, |_| lone.is_lone());
            lone.readers.fetch_add(1, Relaxed);
        }
        false
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Relaxed);
        self.0.end();
    }
}

impl Lone {
    pub(super) fn new(polling: Choice) -> Self {
        Self::with(match polling {
            Choice::On => true,
            Choice::Off => false,
            // A thread that polls on the only CPU keeps the client from running.
            Choice::Auto => std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1),
        })
    }

    fn with(enabled: bool) -> Self {
        Self {
            enabled,
            serving: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            overlaps: AtomicU32::new(0),
            readers: AtomicUsize::new(0),
            lone: AtomicBool::new(false),
            ended: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// Starts the watcher. It ends with the connection.
    pub(super) fn watch(self: &Arc<Self>) {
        if !self.enabled {
            return;
        }
        let lone = Arc::clone(self);
        let watcher = std::thread::Builder::new().name("fuse-lone".to_owned());
        if let Err(error) = watcher.spawn(move || lone.run()) {
            log::debug!("a lone client is not noticed: {error}");
            self.end();
        }
    }

    /// A request begins. One that may wait for the device is `long`: the leader must not be the
    /// only reader meanwhile.
    pub(super) fn begin(&self, long: bool) -> Serving<'_> {
        if !self.enabled {
            return Serving(None);
        }
        let alone = self.serving.fetch_add(1, Relaxed) == 0;
        if self.is_lone() {
            self.begun.fetch_add(1, Relaxed);
            if !alone {
                self.overlap();
            }
            if long {
                let _ended = self.ended.lock();
                self.let_go();
            }
        } else if !alone || long {
            self.start_over();
        } else if self.streak.fetch_add(1, Relaxed) + 1 >= STREAK {
            self.enter();
        }
        Serving(Some(self))
    }

    /// The leader found a request without any wait.
    pub(super) fn overlap(&self) {
        self.overlaps.fetch_add(1, Relaxed);
    }

    /// The calling thread begins to read `/dev/fuse`.
    pub(super) fn reader(&self) -> Reader<'_> {
        self.readers.fetch_add(1, Relaxed);
        Reader(self)
    }

    /// Whether requests are polled for.
    pub(super) fn is_lone(&self) -> bool {
        self.lone.load(Relaxed)
    }

    /// Keeps the line of the counter clean where many threads call this.
    fn start_over(&self) {
        if self.streak.load(Relaxed) != 0 {
            self.streak.store(0, Relaxed);
        }
    }

    /// From now on one thread reads.
    fn enter(&self) {
        let ended = self.ended.lock();
        if !*ended && !self.is_lone() {
            self.begun.store(0, Relaxed);
            self.overlaps.store(0, Relaxed);
            self.lone.store(true, Relaxed);
            self.changed.notify_all();
        }
    }

    /// The connection has ended, or is not watched.
    pub(super) fn end(&self) {
        let mut ended = self.ended.lock();
        *ended = true;
        self.let_go();
    }

    /// From now on all threads read. Called under the lock of `ended`.
    fn let_go(&self) {
        if self.lone.swap(false, Relaxed) {
            self.streak.store(0, Relaxed);
        }
        self.changed.notify_all();
    }

    /// The watcher's loop.
    fn run(&self) {
        let mut ended = self.ended.lock();
        while !*ended {
            if self.is_lone() {
                let in_time = !self.changed.wait_for(&mut ended, TICK).timed_out();
                if !in_time && !self.tick() {
                    self.let_go();
                }
            } else {
                self.changed.wait(&mut ended);
            }
        }
    }

    /// Looks at the requests since the last tick. Returns whether the client is still lone.
    fn tick(&self) -> bool {
        let (begun, overlaps) = (self.begun.swap(0, Relaxed), self.overlaps.swap(0, Relaxed));
        begun > 0 && overlaps <= begun / OVERLAPS
    }
}

/// The polling of one thread.
#[derive(Debug, Default)]
pub(super) struct Poll {
    /// Requests that are not polled for, after the last poll in vain and still.
    skipped: u32,
    skip: u32,
}

impl Poll {
    /// Polls until `ready` or the time is over. Returns whether it was ready at once.
    pub(super) fn wait(&mut self, ready: impl FnMut() -> bool) -> bool {
        self.wait_for(POLL, ready)
    }

    fn wait_for(&mut self, time: Duration, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let began = Instant::now();
        while began.elapsed() < time {
            std::hint::spin_loop();
            if ready() {
                self.skipped = 0;
                return false;
            }
        }
        self.skipped = (2 * self.skipped).clamp(1, STREAK);
        self.skip = self.skipped;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(lone: &Lone, count: u32) {
        for _ in 0..count {
            drop(lone.begin(false));
        }
    }

    #[test]
    fn requests_that_never_overlap_come_from_a_lone_client() {
        let state = Lone::with(true);
        requests(&state, STREAK - 1);
        assert!(!state.is_lone());
        requests(&state, 1);
        assert!(state.is_lone());
        let off = Lone::with(false);
        requests(&off, 2 * STREAK);
        assert!(!off.is_lone());
    }

    #[test]
    fn an_overlap_starts_the_count_again() {
        let state = Lone::with(true);
        requests(&state, STREAK - 2);
        drop((state.begin(false), state.begin(false)));
        requests(&state, STREAK - 1);
        assert!(!state.is_lone());
        requests(&state, 1);
        assert!(state.is_lone());
    }

    #[test]
    fn no_thread_leads_until_the_last_fsync_is_long_ago() {
        let state = Lone::with(true);
        requests(&state, STREAK - 1);
        drop(state.begin(true));
        requests(&state, STREAK - 1);
        assert!(!state.is_lone());
        requests(&state, 1);
        assert!(state.is_lone());
        let fsync = state.begin(true);
        assert!(!state.is_lone());
        drop(fsync);
        requests(&state, STREAK - 1);
        assert!(!state.is_lone());
        requests(&state, 1);
        assert!(state.is_lone());
    }

    #[test]
    fn a_second_client_ends_it() {
        let state = Lone::with(true);
        requests(&state, STREAK);
        requests(&state, 2 * OVERLAPS);
        state.overlap();
        state.overlap();
        assert!(state.tick());
        requests(&state, 2 * OVERLAPS);
        for _ in 0..3 {
            state.overlap();
        }
        assert!(!state.tick());
    }

    #[test]
    fn a_slow_request_lets_the_others_read() {
        let state = Lone::with(true);
        requests(&state, STREAK);
        let _slow = state.begin(false);
        assert!(state.tick());
        assert!(!state.tick());
    }

    #[test]
    fn a_pause_ends_it() {
        let state = Arc::new(Lone::with(true));
        state.watch();
        requests(&state, STREAK + 1);
        while state.is_lone() {
            std::thread::yield_now();
        }
        state.end();
    }

    #[test]
    fn one_reader_leads_and_the_others_wait_until_it_ends() {
        let state = Lone::with(true);
        let (one, other) = (state.reader(), state.reader());
        assert!(!one.turn());
        requests(&state, STREAK);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| other.turn());
            while state.readers.load(Relaxed) > 1 {
                std::thread::yield_now();
            }
            assert!(one.turn());
            assert!(!waiting.is_finished());
            drop(state.begin(true));
            assert!(waiting.join().is_ok_and(|leads| !leads));
        });
        assert_eq!(state.readers.load(Relaxed), 2);
        assert!(!one.turn());
    }

    #[test]
    fn the_end_lets_all_threads_go() {
        let state = Arc::new(Lone::with(true));
        let leader = state.reader();
        requests(&state, STREAK);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let reader = state.reader();
                reader.turn()
            });
            while state.readers.load(Relaxed) > 1 {
                std::thread::yield_now();
            }
            drop(leader);
            assert!(waiting.join().is_ok());
        });
        requests(&state, STREAK);
        assert!(!state.is_lone());
        state.watch();
        while Arc::strong_count(&state) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn polls_in_vain_are_skipped() {
        let mut poll = Poll::default();
        for skipped in [1, 2, 4, 8, 16, 32, 64, STREAK] {
            assert!(!poll.wait_for(Duration::ZERO, || false));
            for _ in 0..skipped {
                let mut asked = 0;
                assert!(!poll.wait_for(Duration::MAX, || {
                    asked += 1;
                    false
                }));
                assert_eq!(asked, 1);
            }
        }
        assert!(poll.wait(|| true));
        let mut second = [false, true].into_iter();
        assert!(!poll.wait_for(Duration::MAX, || second.next() == Some(true)));
        assert!(!poll.wait_for(Duration::ZERO, || false));
        assert_eq!(poll.skip, 1);
    }
}
