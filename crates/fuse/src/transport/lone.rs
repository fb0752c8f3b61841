//! A lone client: requests that arrive one at a time.
//!
//! # How it works
//!
//! A client that sends one request after another, such as `tar`, sleeps until each is answered. So
//! a request costs two wake-ups, and the time to wake a thread on an idle CPU is longer than the
//! time to serve it. [`Lone`] counts the requests in progress. After [`STREAK`] requests of which
//! none overlapped another, the client is *lone*, until it pauses or a second one appears:
//! - The CPUs of a virtual machine are kept from halting while they are idle ([`IdleLatency`]): to
//!   wake a halted one takes the hypervisor.
//! - If none of the [`STREAK`] requests waited for the device, one thread, the *leader*, reads
//!   `/dev/fuse`, and polls it for up to [`POLL`] after each answer ([`Poll`]). The others wait in
//!   [`Reader::turn`], because the kernel would wake one of them for every request.
//!
//! The threads that are blocked in a read when this begins serve one request each, and then wait.
//! With io_uring each ring has its own thread, and none leads. Instead the thread that served the
//! last request polls its ring, from another CPU (`uring/affinity`).
//!
//! Trouble cases:
//! - The leader's request takes long: before an fsync the leader lets the others go, and the
//!   watcher ends the state when a request takes more than two [`TICK`]s
//!   (`a_slow_request_lets_the_others_read`).
//! - A second client: its requests are there when the leader looks, without any wait. If more than
//!   one in [`OVERLAPS`] is, the watcher ends the state (`a_second_client_ends_it`).
//! - The client pauses: the watcher ends the state after [`PAUSE`] ticks, so that an idle mount
//!   causes no wake-ups (`a_pause_ends_it`).
//! - The client works between its requests: after [`MISSES`] polls in vain the leader sleeps for
//!   the next [`SKIPPED`] requests (`polls_in_vain_are_skipped`).
//! - The connection ends: the leader lets the others go, which see it too
//!   (`the_end_lets_all_threads_go`).

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sapwood_vfs::Choice;

/// Requests in a row that overlap no other, until their client counts as lone; and that do not wait
/// for the device, until a thread leads.
const STREAK: u32 = 64;
/// How long the leader polls after an answer.
const POLL: Duration = Duration::from_micros(30);
/// How often the watcher looks.
const TICK: Duration = Duration::from_millis(2);
/// Ticks without a request that end the state.
const PAUSE: u32 = 10;
/// One overlap in so many requests is allowed: the kernel sends some that no client waits for.
const OVERLAPS: u32 = 8;
/// After so many polls in vain, the next `SKIPPED` requests are not polled for.
const MISSES: u32 = 4;
const SKIPPED: u32 = 64;

/// Whether the requests of a mount come from a lone client.
#[derive(Debug)]
pub(super) struct Lone {
    enabled: bool,
    /// Requests in progress.
    serving: AtomicU32,
    /// Requests since the last overlap, and since the last one that waited for the device.
    streak: AtomicU32,
    short: AtomicU32,
    /// Requests and overlaps since the watcher's last tick.
    begun: AtomicU32,
    overlaps: AtomicU32,
    /// Threads of the loop on `/dev/fuse` that do not wait for a turn.
    readers: AtomicUsize,
    /// The client is lone; a thread leads. They change under the lock of `ended`.
    lone: AtomicBool,
    led: AtomicBool,
    ended: Mutex<bool>,
    changed: Condvar,
    idle: IdleLatency,
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
        while lone.is_led() {
            let others = |readers: usize| (readers > 1).then(|| readers - 1);
            if lone.readers.fetch_update(Relaxed, Relaxed, others).is_err() {
                return true;
            }
            let mut ended = lone.ended.lock();
            lone.changed.wait_while(&mut ended, |_| lone.is_led());
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
        let enabled = match polling {
            Choice::On => true,
            Choice::Off => false,
            // A thread that polls on the only CPU keeps the client from running.
            Choice::Auto => std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1),
        };
        Self::with(enabled, IdleLatency::open(enabled))
    }

    fn with(enabled: bool, idle: IdleLatency) -> Self {
        Self {
            enabled,
            serving: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            short: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            overlaps: AtomicU32::new(0),
            readers: AtomicUsize::new(0),
            lone: AtomicBool::new(false),
            led: AtomicBool::new(false),
            ended: Mutex::new(false),
            changed: Condvar::new(),
            idle,
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
                self.follow();
            } else if !self.is_led() && self.short.fetch_add(1, Relaxed) + 1 >= STREAK {
                self.lead();
            }
        } else if !alone {
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

    fn is_lone(&self) -> bool {
        self.lone.load(Relaxed)
    }

    /// Whether requests are polled for.
    pub(super) fn is_led(&self) -> bool {
        self.led.load(Relaxed)
    }

    /// Keeps the line of the counter clean where many threads call this.
    fn start_over(&self) {
        if self.streak.load(Relaxed) != 0 {
            self.streak.store(0, Relaxed);
        }
    }

    fn enter(&self) {
        let ended = self.ended.lock();
        if !*ended && !self.is_lone() {
            self.lone.store(true, Relaxed);
            self.idle.hold();
            self.changed.notify_all();
        }
    }

    /// From now on one thread reads.
    fn lead(&self) {
        let _ended = self.ended.lock();
        self.led.store(self.is_lone(), Relaxed);
    }

    /// From now on all threads read.
    fn follow(&self) {
        self.short.store(0, Relaxed);
        if self.is_led() {
            let _ended = self.ended.lock();
            self.led.store(false, Relaxed);
            self.changed.notify_all();
        }
    }

    /// The connection has ended, or is not watched.
    pub(super) fn end(&self) {
        let mut ended = self.ended.lock();
        *ended = true;
        self.let_go();
    }

    /// Under the lock of `ended`.
    fn let_go(&self) {
        if self.lone.swap(false, Relaxed) {
            self.streak.store(0, Relaxed);
            self.short.store(0, Relaxed);
            self.led.store(false, Relaxed);
            self.idle.release();
        }
        self.changed.notify_all();
    }

    /// The watcher's loop.
    fn run(&self) {
        let mut quiet = 0;
        let mut ended = self.ended.lock();
        while !*ended {
            if self.is_lone() {
                self.changed.wait_for(&mut ended, TICK);
                if !self.tick(&mut quiet) {
                    self.let_go();
                }
            } else {
                quiet = 0;
                self.changed.wait(&mut ended);
            }
        }
    }

    /// Looks at what happened since the last tick. `quiet` counts ticks without a request. Returns
    /// whether the client is still lone.
    fn tick(&self, quiet: &mut u32) -> bool {
        let (begun, overlaps) = (self.begun.swap(0, Relaxed), self.overlaps.swap(0, Relaxed));
        if begun > 0 {
            *quiet = 0;
            return overlaps <= begun / OVERLAPS;
        }
        *quiet += 1;
        let stuck = self.serving.load(Relaxed) > 0;
        !stuck && *quiet < PAUSE
    }
}

/// The leader's polling.
#[derive(Debug, Default)]
pub(super) struct Poll {
    misses: u32,
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
                self.misses = 0;
                return false;
            }
        }
        self.misses += 1;
        if self.misses >= MISSES {
            *self = Self {
                misses: 0,
                skip: SKIPPED,
            };
        }
        false
    }
}

/// The limit that the system puts on the wake-up of an idle CPU (`/dev/cpu_dma_latency`, described
/// in the kernel's `pm_qos_interface`). The limit holds as long as the file is open.
///
/// It is used only where idle CPUs are managed by the `haltpoll` driver, which is made for virtual
/// machines. Elsewhere, shallow idle states wake fast, and a limit costs power on every CPU. Only
/// root may open the file.
#[derive(Debug)]
struct IdleLatency(Option<File>);

impl IdleLatency {
    const DRIVER: &'static str = "/sys/devices/system/cpu/cpuidle/current_driver";
    const LIMIT: &'static str = "/dev/cpu_dma_latency";

    fn open(wanted: bool) -> Self {
        let driver = std::fs::read_to_string(Self::DRIVER);
        if !wanted || !driver.is_ok_and(|name| name.trim() == "haltpoll") {
            return Self(None);
        }
        let file = File::options().write(true).open(Self::LIMIT);
        Self(
            file.inspect_err(|error| log::debug!("{}: {error}", Self::LIMIT))
                .ok(),
        )
    }

    /// Idle CPUs do not halt.
    fn hold(&self) {
        self.set(0);
    }

    /// There is no limit.
    fn release(&self) {
        self.set(-1);
    }

    fn set(&self, microseconds: i32) {
        if let Some(mut file) = self.0.as_ref()
            && let Err(error) = file.write_all(&microseconds.to_ne_bytes())
        {
            log::debug!("{}: {error}", Self::LIMIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lone() -> Lone {
        Lone::with(true, IdleLatency(None))
    }

    fn requests(lone: &Lone, count: u32) {
        for _ in 0..count {
            drop(lone.begin(false));
        }
    }

    #[test]
    fn requests_that_never_overlap_come_from_a_lone_client() {
        let state = lone();
        requests(&state, STREAK - 1);
        assert!(!state.is_lone());
        requests(&state, 1);
        assert!(state.is_lone());
        let off = Lone::with(false, IdleLatency(None));
        requests(&off, 2 * STREAK);
        assert!(!off.is_lone());
    }

    #[test]
    fn an_overlap_starts_the_count_again() {
        let state = lone();
        requests(&state, STREAK - 2);
        drop((state.begin(false), state.begin(false)));
        requests(&state, STREAK - 1);
        assert!(!state.is_lone());
        requests(&state, 1);
        assert!(state.is_lone());
    }

    #[test]
    fn no_thread_leads_until_the_last_fsync_is_long_ago() {
        let state = lone();
        requests(&state, 2 * STREAK);
        assert!(state.is_led());
        let fsync = state.begin(true);
        assert!(state.is_lone() && !state.is_led());
        drop(fsync);
        requests(&state, STREAK - 1);
        assert!(!state.is_led());
        requests(&state, 1);
        assert!(state.is_led());
    }

    #[test]
    fn a_second_client_ends_it() {
        let state = lone();
        requests(&state, STREAK);
        let mut quiet = 0;
        requests(&state, 2 * OVERLAPS);
        state.overlap();
        state.overlap();
        assert!(state.tick(&mut quiet));
        requests(&state, 2 * OVERLAPS);
        for _ in 0..3 {
            state.overlap();
        }
        assert!(!state.tick(&mut quiet));
    }

    #[test]
    fn a_slow_request_lets_the_others_read() {
        let state = lone();
        requests(&state, STREAK);
        let _slow = state.begin(false);
        let mut quiet = 0;
        assert!(state.tick(&mut quiet));
        assert!(!state.tick(&mut quiet));
    }

    #[test]
    fn a_pause_ends_it() {
        let state = lone();
        requests(&state, STREAK + 1);
        let mut quiet = 0;
        assert!(state.tick(&mut quiet));
        let ticks = (1..).find(|_| !state.tick(&mut quiet));
        assert_eq!(ticks, Some(PAUSE));
    }

    #[test]
    fn one_reader_leads_and_the_others_wait_until_it_ends() {
        let state = lone();
        let (one, other) = (state.reader(), state.reader());
        assert!(!one.turn());
        requests(&state, 2 * STREAK);
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
        let state = Arc::new(lone());
        state.watch();
        let leader = state.reader();
        requests(&state, 2 * STREAK);
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
        while Arc::strong_count(&state) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn polls_in_vain_are_skipped() {
        let mut poll = Poll::default();
        let mut asked = 0;
        let mut never = || {
            asked += 1;
            false
        };
        for _ in 0..MISSES {
            assert!(!poll.wait_for(Duration::ZERO, &mut never));
        }
        assert_eq!(poll.skip, SKIPPED);
        for _ in 0..SKIPPED {
            assert!(!poll.wait_for(Duration::MAX, &mut never));
        }
        assert_eq!(asked, MISSES + SKIPPED);
        assert!(poll.wait(|| true));
        let mut second = [false, true].into_iter();
        assert!(!poll.wait_for(Duration::MAX, || second.next() == Some(true)));
    }
}
