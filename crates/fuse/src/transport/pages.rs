//! The pages of files that the kernel may hold.
//!
//! **Direct writes and the page cache.** The kernel drops the pages of the range before it sends a
//! direct write, and again after the answer only if the caller waits. In between, a reader can fill
//! the pages with the old content. So the server has the pages dropped by a notification before it
//! answers, if the file was ever read or written through the page cache ([`Readers`]). Of very many
//! concurrent direct writes, some are answered while their pages are being dropped ([`Slot`]); a
//! reader may then see old content for that moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::init::MAX_BACKGROUND;
use crate::node::NodeId;

/// Nodes whose pages the kernel may hold: one bit per hash of a node, never cleared. A collision
/// only costs a needless notification.
pub(super) struct Readers {
    cached: Box<[AtomicU64; Self::WORDS]>,
    direct: Box<[AtomicU64; Self::WORDS]>,
    waiting: Arc<AtomicUsize>,
}

/// Permission for a direct write to wait until the kernel has dropped pages.
///
/// The kernel locks a page while a read into it is in flight, and sends a limited number of reads
/// and direct writes at a time. If all of them were direct writes that wait for the page, it would
/// never send the read. So at most half of them wait.
#[derive(Debug)]
pub(super) struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Readers {
    fn default() -> Self {
        let none = || Box::new([const { AtomicU64::new(0) }; Self::WORDS]);
        Self {
            cached: none(),
            direct: none(),
            waiting: Arc::default(),
        }
    }
}

impl Readers {
    const WORDS: usize = 1024;
    const MOST_WAITING: usize = MAX_BACKGROUND as usize / 2;

    /// Records a read into the page cache. Call it before the engine reads.
    pub(super) fn reads(&self, node: NodeId) {
        set(&self.cached, node);
    }

    /// Records a write through the page cache. It matters only for files that also have direct
    /// writes: a file that is written through the cache and later directly costs no notification.
    pub(super) fn writes(&self, node: NodeId) {
        if is_set(&self.direct, node) {
            set(&self.cached, node);
        }
    }

    /// Records a direct write that the engine has completed. Returns whether pages may be stale.
    pub(super) fn wrote_directly(&self, node: NodeId) -> bool {
        set(&self.direct, node) || is_set(&self.cached, node)
    }

    /// Permission to wait, unless too many direct writes wait already.
    pub(super) fn slot(&self) -> Option<Slot> {
        let slot = Slot(Arc::clone(&self.waiting));
        (self.waiting.fetch_add(1, Ordering::Relaxed) < Self::MOST_WAITING).then_some(slot)
    }
}

type Bits = [AtomicU64; Readers::WORDS];

fn place(bits: &Bits, node: NodeId) -> Option<(&AtomicU64, u64)> {
    // Fibonacci hashing: the upper bits depend on all bits of the number.
    let hash = node.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let word = bits.get(usize::try_from(hash >> 6).ok()?)?;
    Some((word, 1 << (hash & 63)))
}

fn is_set(bits: &Bits, node: NodeId) -> bool {
    place(bits, node).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
}

/// Sets a node's bit. True if it was not set before.
fn set(bits: &Bits, node: NodeId) -> bool {
    place(bits, node).is_some_and(|(word, bit)| {
        word.load(Ordering::SeqCst) & bit == 0 && word.fetch_or(bit, Ordering::SeqCst) & bit == 0
    })
}
