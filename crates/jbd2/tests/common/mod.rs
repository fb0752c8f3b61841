//! What the tests of the journal share.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use sapwood_block::Device;
use sapwood_jbd2::{Buffer, Cache, Closing, Error, Host, HostError, Journal, Wish};

pub(crate) const BLOCK: u32 = 1024;

/// A host that writes down what it is told.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) committed: Mutex<Vec<u64>>,
    pub(crate) failures: Mutex<Vec<String>>,
    pub(crate) wishes: Mutex<Vec<Wish>>,
    pub(crate) closings: AtomicU64,
}

impl Host for Notes {
    fn before_commit(&self, _closing: &Closing<'_>) -> Result<(), HostError> {
        self.closings.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The last byte is the sum of the others.
    fn seal(&self, _buffer: &Buffer, content: &mut [u8]) {
        let (last, rest) = content.split_last_mut().unwrap();
        *last = rest.iter().fold(0, |sum: u8, b| sum.wrapping_add(*b));
    }

    fn after_commit(&self, tid: u64) {
        self.committed.lock().unwrap().push(tid);
    }

    fn failed(&self, error: &Error) {
        self.failures.lock().unwrap().push(error.to_string());
    }

    fn wake(&self, wish: Wish) {
        self.wishes.lock().unwrap().push(wish);
    }
}

/// Attaches a host that takes notes.
pub(crate) fn attach(journal: &Journal) -> Arc<Notes> {
    let notes = Arc::new(Notes::default());
    let host: Arc<dyn Host> = notes.clone();
    let weak: Weak<dyn Host> = Arc::downgrade(&host);
    journal.attach(weak);
    notes
}

pub(crate) fn cache(device: Arc<dyn Device>) -> Arc<Cache> {
    Arc::new(Cache::new(device, BLOCK, 256 * BLOCK as usize))
}

/// Fills the block with `value` in a handle of its own; the tid.
pub(crate) fn put(journal: &Arc<Journal>, block: u64, value: u8) -> u64 {
    let buffer = journal.cache().get(block).unwrap();
    let handle = journal.start(1).unwrap();
    handle.modify(&buffer).unwrap().fill(value);
    handle.tid()
}

/// First byte of the block on the device.
pub(crate) fn at_home(device: &dyn Device, block: u64) -> u8 {
    let mut byte = [0];
    device.read_at(block * u64::from(BLOCK), &mut byte).unwrap();
    byte[0]
}

/// Waits until so many threads wait in the journal.
pub(crate) fn wait_for_waiting(journal: &Journal, n: usize) {
    while journal.waiting() < n {
        std::thread::yield_now();
    }
}
