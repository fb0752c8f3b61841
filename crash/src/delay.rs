//! [`DelayDevice`]: delays requests by different times, so that windows of different threads
//! overlap.
//!
//! # How it works
//! A delay is a number of later requests that overtake the delayed one: it waits until that many
//! have arrived. The seed and the number of the request determine the delay. A request that is not
//! overtaken continues after a time limit, because the engine may be waiting for it. The limit
//! affects only how long a run takes, never its verdict.
//!
//! The device belongs below the recorder. In the recorder's log, a delayed write has begun and has
//! not ended, and a flush that begins in the meantime does not cover it.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sapwood_block::{Device, MemoryDevice, Result};
use sapwood_testing::RecordDevice;

/// The device of a workload: a recorder above delays above memory.
pub type Recorder = RecordDevice<DelayDevice<MemoryDevice>>;

/// A recorder of the changes of `memory`.
#[must_use]
pub fn recorder(memory: MemoryDevice, delays: Delays) -> Recorder {
    RecordDevice::new(DelayDevice::new(memory, delays))
}

/// The requests that are delayed, and the longest delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delays {
    /// Determines the delays.
    pub seed: u64,
    /// A request continues after this time, overtaken or not.
    pub bound: Duration,
}

impl Delays {
    /// No delays.
    pub const NONE: Self = Self {
        seed: 0,
        bound: Duration::ZERO,
    };

    /// Delays for one of many workloads.
    #[must_use]
    pub fn brief(seed: u64) -> Self {
        Self {
            seed,
            bound: Duration::from_micros(800),
        }
    }

    /// How many later requests overtake request `number`, counted from 0. Half of the requests are
    /// not delayed; most others wait for a few requests, and some for many.
    #[must_use]
    pub fn of(&self, number: u64) -> u64 {
        if self.bound.is_zero() {
            return 0;
        }
        let hash = xxhash_rust::xxh64::xxh64(&number.to_le_bytes(), self.seed);
        match hash % 16 {
            0..8 => 0,
            8..11 => 1,
            11..14 => 2 + (hash >> 8) % 3,
            _ => 5 + (hash >> 8) % 8,
        }
    }
}

/// Passes all requests through; changes and flushes after their delay.
#[derive(Debug)]
pub struct DelayDevice<D> {
    inner: D,
    delays: Mutex<Delays>,
    arrived: Mutex<u64>,
    more: Condvar,
}

impl<D: Device> DelayDevice<D> {
    /// Wraps `inner`.
    pub fn new(inner: D, delays: Delays) -> Self {
        Self {
            inner,
            delays: Mutex::new(delays),
            arrived: Mutex::new(0),
            more: Condvar::new(),
        }
    }

    /// Uses other delays from now on, and counts requests from 0 again.
    pub fn set(&self, delays: Delays) {
        *self.delays.lock() = delays;
        *self.arrived.lock() = 0;
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Number of requests so far that can be delayed.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        *self.arrived.lock()
    }

    fn wait(&self) {
        let delays = *self.delays.lock();
        let mut arrived = self.arrived.lock();
        let number = *arrived;
        *arrived += 1;
        self.more.notify_all();
        let behind = number + 1 + delays.of(number);
        if *arrived >= behind {
            return;
        }
        let end = Instant::now() + delays.bound;
        while *arrived < behind {
            if self.more.wait_until(&mut arrived, end).timed_out() {
                return;
            }
        }
    }
}

impl<D: Device> sapwood_block::Layer for DelayDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.wait();
        self.inner.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.wait();
        self.inner.write_vectored_at(offset, bufs)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.wait();
        self.inner.write_fua(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.wait();
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.wait();
        self.inner.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use sapwood_testing::{RecordDevice, Step};

    use super::*;

    /// Longer than any test runs: a request that waits this long hangs the test.
    const LONG: Duration = Duration::from_secs(600);

    /// A seed whose first delays are these.
    fn seed_with(wanted: &[u64]) -> Delays {
        let all = (0..1_000_000).map(|seed| Delays { seed, bound: LONG });
        let fits = |delays: &Delays| {
            let numbers = (0..).zip(wanted);
            numbers
                .into_iter()
                .all(|(number, wanted)| delays.of(number) == *wanted)
        };
        all.into_iter().find(fits).unwrap()
    }

    #[test]
    fn a_seed_always_delays_the_same_requests_and_unequally() {
        let list = |seed| -> Vec<u64> {
            let delays = Delays::brief(seed);
            (0..400).map(|number| delays.of(number)).collect()
        };
        assert_eq!(list(5), list(5));
        assert_ne!(list(5), list(6));
        for delay in [0, 1, 2, 5, 10] {
            assert!(list(5).contains(&delay), "{delay}");
        }
        assert!((0..400).all(|number| Delays::NONE.of(number) == 0));
    }

    #[test]
    fn a_delayed_write_ends_after_the_requests_that_overtake_it() {
        let delays = seed_with(&[2, 0, 0]);
        let device = RecordDevice::new(DelayDevice::new(MemoryDevice::new(1 << 20), delays));
        std::thread::scope(|scope| {
            scope.spawn(|| device.write_at(0, &[1; 512]).unwrap());
            while device.inner().arrived() < 1 {
                std::thread::yield_now();
            }
            device.write_at(512, &[2; 512]).unwrap();
            device.flush().unwrap();
        });
        let log = device.log();
        let end = |of: usize| {
            let mut steps = log.steps().iter();
            steps.position(|step| matches!(step, Step::End { entry, .. } if *entry == of))
        };
        assert!(end(0) > end(1), "the second write overtakes the first");
        assert_eq!(log.durable_since(0), None, "the flush does not cover it");
        assert!(log.durable_since(1).is_some());
    }

    #[test]
    fn a_request_that_nothing_overtakes_goes_on_after_the_bound() {
        let bound = Duration::from_millis(1);
        let delays = Delays {
            bound,
            ..seed_with(&[5])
        };
        let device = DelayDevice::new(MemoryDevice::new(4096), delays);
        let began = Instant::now();
        device.write_at(0, &[3; 512]).unwrap();
        assert!(began.elapsed() >= bound);
        let mut there = [0; 512];
        device.read_at(0, &mut there).unwrap();
        assert_eq!(there, [3; 512]);
    }

    #[test]
    fn other_delays_count_from_the_first_request_again() {
        let device = DelayDevice::new(MemoryDevice::new(4096), Delays::NONE);
        device.write_at(0, &[1; 512]).unwrap();
        assert_eq!(device.arrived(), 1);
        device.set(seed_with(&[0, 0]));
        assert_eq!(device.arrived(), 0);
        device.flush().unwrap();
        assert!(device.write_at(4096, &[1]).is_err(), "errors pass");
        assert_eq!(device.arrived(), 2);
    }
}
