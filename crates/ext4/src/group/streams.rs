//! Files that grow, and the blocks kept for them.
//!
//! # How it works
//! An inode whose request begins where its last one ended is a *stream*. With each of its
//! allocations some blocks after it are taken too, and kept: its next request gets them, and no
//! other inode does. The more a file has grown, the more is kept (half of it, [`MOST_KEPT`] at
//! most). So files that grow at once do not interleave, while a small file that is written once
//! keeps nothing (`files_that_grow_at_once_are_kept_apart`).
//!
//! Kept blocks count as free: they are released when the stream ends or is forgotten (only
//! [`PER_SHARD`] of a shard are remembered). When space gets scarce no more are kept, and before an
//! allocation fails all are released (`what_is_kept_is_given_back_before_anyone_fails`).

use std::collections::{HashMap, VecDeque};

use super::buddy::Extent;
use crate::lock::{Rank, RankedMutex};

const SHARDS: usize = 16;
/// Streams that a shard remembers.
const PER_SHARD: usize = 64;
/// Fewest blocks kept after a stream.
const LEAST_KEPT: u32 = 8;
/// Most blocks kept after a stream.
const MOST_KEPT: u32 = 2048;

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Block after the last one that it got.
    end: u64,
    /// Blocks that it got one after another.
    got: u32,
    /// Blocks kept for it, from `end` on; 0: none.
    kept: u32,
}

impl Stream {
    fn kept(&self) -> Option<Extent> {
        (self.kept > 0).then_some(Extent {
            start: self.end,
            len: self.kept,
        })
    }
}

#[derive(Debug, Default)]
struct Shard {
    streams: HashMap<u32, Stream>,
    /// Streams in the order in which they began; may contain removed ones.
    order: VecDeque<u32>,
}

/// All streams of a mount.
#[derive(Debug)]
pub(crate) struct Streams {
    shards: Vec<RankedMutex<Shard>>,
}

/// The state of the request's inode.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// These blocks were kept for it.
    Kept(Extent),
    /// It grows: this many blocks should be kept after its allocation.
    Grows(u32),
    /// It is not known to grow.
    No,
}

impl Streams {
    /// No streams.
    pub(crate) fn new() -> Self {
        let shard = || RankedMutex::new(Rank::Leaf, Shard::default());
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    fn shard(&self, ino: u32) -> &RankedMutex<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Takes from the blocks kept for the inode, if the request continues its stream.
    pub(crate) fn serve(&self, ino: u32, goal: u64, len: u32) -> Known {
        let mut shard = self.shard(ino).lock();
        let Some(stream) = shard.streams.get_mut(&ino).filter(|s| s.end == goal) else {
            return Known::No;
        };
        if stream.kept == 0 {
            return Known::Grows((stream.got / 2).clamp(LEAST_KEPT, MOST_KEPT));
        }
        let taken = stream.kept.min(len);
        stream.kept -= taken;
        stream.end += u64::from(taken);
        stream.got = stream.got.saturating_add(taken);
        Known::Kept(Extent {
            start: goal,
            len: taken,
        })
    }

    /// Records the allocation of an inode, and `kept` blocks after it. Returns blocks that are no
    /// longer kept for any stream.
    pub(crate) fn note(&self, ino: u32, goal: u64, got: Extent, kept: u32) -> Vec<Extent> {
        let mut shard = self.shard(ino).lock();
        let mut returned = Vec::new();
        let mut total = got.len;
        match shard.streams.get(&ino).copied() {
            Some(before) => {
                returned.extend(before.kept());
                if before.end == goal {
                    total = total.saturating_add(before.got);
                }
            }
            None => shard.order.push_back(ino),
        }
        let stream = Stream {
            end: got.start + u64::from(got.len),
            got: total,
            kept,
        };
        shard.streams.insert(ino, stream);
        while shard.order.len() > PER_SHARD {
            let Some(oldest) = shard.order.pop_front() else {
                break;
            };
            returned.extend(shard.streams.remove(&oldest).and_then(|s| s.kept()));
        }
        returned
    }

    /// Whether the inode is known to grow.
    pub(crate) fn has(&self, ino: u32) -> bool {
        self.shard(ino).lock().streams.contains_key(&ino)
    }

    /// Forgets a stream. Returns its kept blocks.
    pub(crate) fn remove(&self, ino: u32) -> Option<Extent> {
        let mut shard = self.shard(ino).lock();
        let stream = shard.streams.remove(&ino)?;
        shard.order.retain(|other| *other != ino);
        stream.kept()
    }

    /// Forgets all streams. Returns their kept blocks.
    pub(crate) fn remove_all(&self) -> Vec<Extent> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = std::mem::take(&mut *shard.lock());
            all.extend(shard.streams.values().filter_map(Stream::kept));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, len: u32) -> Extent {
        Extent { start, len }
    }

    #[test]
    fn what_is_kept_goes_to_its_inode_only() {
        let streams = Streams::new();
        assert_eq!(streams.serve(12, 100, 4), Known::No);
        assert_eq!(streams.note(12, 100, extent(100, 40), 0), vec![]);
        assert_eq!(streams.serve(12, 100, 4), Known::No);
        assert_eq!(streams.serve(12, 140, 4), Known::Grows(20));
        assert_eq!(streams.note(12, 140, extent(140, 4), 20), vec![]);
        assert_eq!(streams.serve(28, 144, 4), Known::No);
        assert_eq!(streams.serve(12, 144, 16), Known::Kept(extent(144, 16)));
        assert_eq!(streams.serve(12, 160, 16), Known::Kept(extent(160, 4)));
        assert_eq!(streams.serve(12, 164, 16), Known::Grows(32));
    }

    #[test]
    fn what_is_kept_comes_back_when_the_stream_breaks_off() {
        let streams = Streams::new();
        streams.note(12, 0, extent(100, 4), 8);
        assert_eq!(
            streams.note(12, 900, extent(900, 4), 9),
            vec![extent(104, 8)]
        );
        assert_eq!(streams.remove(12), Some(extent(904, 9)));
        assert_eq!(streams.remove(12), None);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let streams = Streams::new();
        let mut returned = 0;
        for file in 0..1000u32 {
            // All of one shard, each seen twice.
            let ino = file * SHARDS as u32;
            returned += streams
                .note(ino, 0, extent(u64::from(file) * 100, 10), 0)
                .len();
            returned += streams
                .note(ino, 0, extent(u64::from(file) * 100, 10), 5)
                .len();
        }
        assert_eq!(returned, 1000 - PER_SHARD);
        assert_eq!(streams.remove_all().len(), PER_SHARD);
        assert_eq!(streams.remove_all().len(), 0);
    }
}
