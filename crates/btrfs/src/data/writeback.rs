//! Writeback of all files: threads, the bound on dirty bytes, which files have any.
//!
//! # How it works
//! Jobs go through two queues. *I/O* jobs prepare runs, compress, compute checksums and write;
//! *completion* jobs join transactions and change trees. Each has threads of its own, so that
//! an I/O job may wait for a completion (what overwrites in place does). Threads start with the
//! first write or job.
//!
//! A file with data in memory is *active*: the table here holds it, so that it is not evicted.
//! It leaves the table when a completion or a truncation left nothing.
//!
//! The bound: a writer *enters* bytes before it copies them, and waits if all files together
//! would exceed the bound; they *leave* when their entry ends. At half of the bound writeback
//! begins on its own with the file that has been active longest. A thread of its own writes back
//! what has been dirty for the commit interval.
//!
//! A snapshot must not see data that is overwritten in place later. So whoever takes one first
//! [freezes](Writeback::freeze_overwrites) the tree: overwrites under way are waited for, and
//! what comes then is copied, until the snapshot exists and the generation rule protects it.

mod age;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Condvar;
use sapwood_btrfs_format::Incompat;

use super::flight::FlightId;
use super::ordered::OrderedExtent;
use super::{FileData, Wait, complete, flush};
use crate::engine::Engine;
use crate::lock::{Rank, RankedMutex};
use crate::ops::Inode;
use crate::{Options, Result};

/// Threads that complete ordered extents.
const COMPLETERS: usize = 2;
/// Expanded extents that are kept for the next read.
const RECENT: usize = 16;

/// Work for a thread.
pub(super) enum Work {
    /// Decide where a taken run goes.
    Prepare(Arc<Inode>, FlightId),
    /// Compress a piece of a run and allocate for it.
    Compress(Arc<Inode>, FlightId),
    /// Write a part of an ordered extent: byte range within what goes to disk.
    Write(Arc<Inode>, Arc<OrderedExtent>, flush::Part),
    /// Put an ordered extent into the tree.
    Complete(Arc<Inode>, Arc<OrderedExtent>),
    /// Begin writeback until the dirty bytes fall below the lower mark.
    Relieve,
}

struct Job {
    engine: Arc<Engine>,
    work: Work,
}

#[derive(Default)]
struct Lanes {
    io: VecDeque<Job>,
    completion: VecDeque<Job>,
    relieving: bool,
    holding: bool,
    /// A file became active after none was.
    awake: bool,
    started: bool,
    stopping: bool,
}

/// The queues, shared with the threads.
struct Queue {
    lanes: RankedMutex<Lanes>,
    io: Condvar,
    completion: Condvar,
    /// Wakes the thread that writes back what is old: the first active file, or the end.
    age: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    Io,
    Completion,
}

impl Queue {
    fn next(&self, lane: Lane) -> Option<Job> {
        let mut lanes = self.lanes.lock();
        loop {
            let held = lanes.holding && !lanes.stopping && lane == Lane::Completion;
            let (queue, signal) = match lane {
                Lane::Io => (&mut lanes.io, &self.io),
                Lane::Completion => (&mut lanes.completion, &self.completion),
            };
            if !held && let Some(job) = queue.pop_front() {
                return Some(job);
            }
            if lanes.stopping {
                return None;
            }
            lanes.wait(signal);
        }
    }

    fn serve(&self, lane: Lane) {
        while let Some(Job { engine, work }) = self.next(lane) {
            run(&engine, work);
        }
    }
}

/// Does a piece of work in this thread.
pub(super) fn run(engine: &Arc<Engine>, work: Work) {
    match work {
        Work::Prepare(inode, id) => flush::prepare(engine, &inode, id, flush::Dispatch::Queue),
        Work::Compress(inode, id) => flush::compress(engine, &inode, id, flush::Dispatch::Queue),
        Work::Write(inode, ordered, part) => flush::write_part(engine, &inode, &ordered, &part),
        Work::Complete(inode, ordered) => complete::complete(engine, &inode, &ordered),
        Work::Relieve => {
            engine.writeback.queue.lanes.lock().relieving = false;
            engine.writeback.relieve(engine);
        }
    }
}

/// A file with data in memory.
struct Active {
    inode: Arc<Inode>,
    since: Instant,
}

#[derive(Default)]
struct Overwrites {
    in_flight: u64,
    frozen: u64,
}

/// An expanded extent: address and generation name it.
struct Expanded {
    bytenr: u64,
    generation: u64,
    bytes: Arc<Vec<u8>>,
}

/// Writeback of all files.
pub(crate) struct Writeback {
    queue: Arc<Queue>,
    threads: RankedMutex<Vec<JoinHandle<()>>>,
    workers: usize,
    background: bool,
    interval: Duration,
    limit: u64,
    bytes: RankedMutex<u64>,
    room: Condvar,
    active: RankedMutex<BTreeMap<(u64, u64), Active>>,
    overwrites: RankedMutex<HashMap<u64, Overwrites>>,
    overwritten: Condvar,
    recent: RankedMutex<VecDeque<Expanded>>,
    /// Incompatible features that compressed data brought into use.
    features: AtomicU64,
    /// Serializes changes of the checksum tree.
    pub(super) sums: RankedMutex<()>,
}

impl std::fmt::Debug for Writeback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writeback")
            .field("bytes", &self.bytes)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Writeback {
    /// Without threads yet.
    pub(crate) fn new(options: &Options) -> Self {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        let workers = if options.threads == 0 {
            processors
        } else {
            options.threads
        };
        Self {
            queue: Arc::new(Queue {
                lanes: RankedMutex::new(Rank::Leaf, Lanes::default()),
                io: Condvar::new(),
                completion: Condvar::new(),
                age: Condvar::new(),
            }),
            threads: RankedMutex::new(Rank::Leaf, Vec::new()),
            workers: workers.clamp(2, 16),
            background: options.background,
            interval: options.commit_interval,
            limit: options.dirty_bytes as u64,
            bytes: RankedMutex::new(Rank::Leaf, 0),
            room: Condvar::new(),
            active: RankedMutex::new(Rank::ActiveFiles, BTreeMap::new()),
            overwrites: RankedMutex::new(Rank::Leaf, HashMap::new()),
            overwritten: Condvar::new(),
            recent: RankedMutex::new(Rank::Leaf, VecDeque::new()),
            features: AtomicU64::new(0),
            sums: RankedMutex::new(Rank::Checksums, ()),
        }
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) {
        match thread::Builder::new().name(name.to_owned()).spawn(body) {
            Ok(thread) => self.threads.lock().push(thread),
            // The others do its work; without any, callers do (see `push`).
            Err(error) => log::warn!("cannot start thread {name}: {error}"),
        }
    }

    /// Starts the threads, once. A mount does so when it begins: a thread may run only where
    /// the one that started it may, and a request's may be bound to a CPU.
    pub(crate) fn start(&self, engine: &Arc<Engine>) {
        {
            let mut lanes = self.queue.lanes.lock();
            if std::mem::replace(&mut lanes.started, true) {
                return;
            }
        }
        for i in 0..self.workers {
            let queue = Arc::clone(&self.queue);
            self.spawn(&format!("btrfs-data-{i}"), move || queue.serve(Lane::Io));
        }
        for i in 0..COMPLETERS {
            let queue = Arc::clone(&self.queue);
            self.spawn(&format!("btrfs-complete-{i}"), move || {
                queue.serve(Lane::Completion)
            });
        }
        if self.background {
            let (weak, queue, interval) = (
                Arc::downgrade(engine),
                Arc::clone(&self.queue),
                self.interval,
            );
            self.spawn("btrfs-flush", move || {
                age::flush_old(&weak, &queue, interval)
            });
        }
    }

    /// Queues work. Hold no lock of a higher rank than [`Rank::FileDataState`].
    pub(super) fn push(&self, engine: &Arc<Engine>, work: Work) {
        self.start(engine);
        let mut lanes = self.queue.lanes.lock();
        if lanes.stopping {
            // Nobody serves the queues any more.
            drop(lanes);
            return run(engine, work);
        }
        let job = Job {
            engine: Arc::clone(engine),
            work,
        };
        if matches!(job.work, Work::Complete(..)) {
            lanes.completion.push_back(job);
            self.queue.completion.notify_one();
        } else {
            lanes.io.push_back(job);
            self.queue.io.notify_one();
        }
    }

    /// Holds completions, or lets them go: tests of what must not wait for one.
    #[cfg(test)]
    pub(crate) fn hold_completions(&self, hold: bool) {
        self.queue.lanes.lock().holding = hold;
        self.queue.completion.notify_all();
    }

    /// Ends the threads once their queues are empty, and waits for them.
    pub(crate) fn stop(&self) {
        self.signal_stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = thread::current().id();
        for thread in threads
            .into_iter()
            .filter(|thread| thread.thread().id() != me)
        {
            if thread.join().is_err() {
                log::error!("a writeback thread panicked");
            }
        }
    }

    fn signal_stop(&self) {
        self.queue.lanes.lock().stopping = true;
        self.queue.io.notify_all();
        self.queue.completion.notify_all();
        self.queue.age.notify_all();
    }

    /// Waits until `bytes` more may be dirty, and counts them.
    pub(super) fn enter(&self, engine: &Arc<Engine>, bytes: u64) {
        self.start(engine);
        let mut total = self.bytes.lock();
        // A single write larger than the bound passes alone.
        while *total > 0 && *total + bytes > self.limit {
            drop(total);
            self.kick(engine);
            total = self.bytes.lock();
            if *total > 0 && *total + bytes > self.limit {
                total.wait(&self.room);
            }
        }
        *total += bytes;
        let relieve = *total > self.limit / 2;
        drop(total);
        if relieve {
            self.kick(engine);
        }
    }

    /// A writer entered `counted` bytes and brought `added`.
    pub(super) fn correct(&self, counted: u64, added: u64) {
        if added < counted {
            self.leave(counted - added);
        } else if added > counted {
            *self.bytes.lock() += added - counted;
        }
    }

    /// These bytes are no longer in memory.
    pub(super) fn leave(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut total = self.bytes.lock();
        *total = total.saturating_sub(bytes);
        self.room.notify_all();
    }

    /// Bytes in memory of all files.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        *self.bytes.lock()
    }

    fn kick(&self, engine: &Arc<Engine>) {
        let first = !std::mem::replace(&mut self.queue.lanes.lock().relieving, true);
        if first {
            self.push(engine, Work::Relieve);
        }
    }

    /// Begins writeback of the files that have been active longest, until what is left dirty is
    /// a quarter of the bound.
    fn relieve(&self, engine: &Arc<Engine>) {
        let mut files = self.active_files();
        files.sort_by_key(|(_, since)| *since);
        let mut dirty: u64 = files
            .iter()
            .map(|(inode, _)| inode.data.dirty_bytes())
            .sum();
        for (inode, _) in files {
            if dirty <= self.limit / 4 {
                break;
            }
            let bytes = inode.data.dirty_bytes();
            if bytes > 0 {
                flush::begin(engine, &inode, 0..u64::MAX, flush::Dispatch::Queue);
                dirty = dirty.saturating_sub(bytes);
            }
        }
    }

    fn active_files(&self) -> Vec<(Arc<Inode>, Instant)> {
        let active = self.active.lock();
        active
            .values()
            .map(|active| (Arc::clone(&active.inode), active.since))
            .collect()
    }

    /// Notes that a file has data in memory.
    pub(super) fn activate(&self, inode: &Arc<Inode>) {
        let entry = || Active {
            inode: Arc::clone(inode),
            since: Instant::now(),
        };
        let new = {
            let mut active = self.active.lock();
            let before = active.len();
            active.entry(inode.lock_key()).or_insert_with(entry);
            (active.len() > before).then_some(before)
        };
        if let Some(before) = new {
            if before == 0 {
                self.queue.lanes.lock().awake = true;
                self.queue.age.notify_one();
            }
            // What was just written may be on disk already, and who wrote it found no entry.
            self.settle(inode);
        }
    }

    /// Forgets a file that has nothing left in memory.
    pub(super) fn settle(&self, inode: &Arc<Inode>) {
        let gone = {
            // In this order a write that comes in between stays listed.
            let mut active = self.active.lock();
            match inode.data.is_idle() {
                true => active.remove(&inode.lock_key()),
                false => None,
            }
        };
        drop(gone);
    }

    /// Flushes all files. The first error is returned, after all were tried.
    pub(crate) fn flush_all(&self, engine: &Arc<Engine>, wait: Wait) -> Result<()> {
        self.flush_some(engine, wait, |_| true)
    }

    /// Flushes the files of one tree.
    pub(crate) fn flush_root(&self, engine: &Arc<Engine>, root: u64, wait: Wait) -> Result<()> {
        self.flush_some(engine, wait, |inode| inode.root.id() == root)
    }

    fn flush_some(
        &self,
        engine: &Arc<Engine>,
        wait: Wait,
        which: impl Fn(&Inode) -> bool,
    ) -> Result<()> {
        let files: Vec<_> = self
            .active_files()
            .into_iter()
            .filter(|(inode, _)| which(inode))
            .collect();
        for (inode, _) in &files {
            flush::begin(engine, inode, 0..u64::MAX, flush::Dispatch::Queue);
        }
        let mut result = Ok(());
        if wait != Wait::None {
            for (inode, _) in &files {
                result = result.and(flush::wait_for(inode, wait));
            }
        }
        result
    }

    /// True if a file of this tree may be overwritten in place now; then
    /// [`overwrite_done`](Self::overwrite_done) follows.
    pub(super) fn begin_overwrite(&self, root: u64) -> bool {
        let mut all = self.overwrites.lock();
        let overwrites = all.entry(root).or_default();
        if overwrites.frozen > 0 {
            return false;
        }
        overwrites.in_flight += 1;
        true
    }

    /// The I/O of an overwrite is done, or will not be.
    pub(super) fn overwrite_done(&self, root: u64) {
        let mut all = self.overwrites.lock();
        if let Some(overwrites) = all.get_mut(&root) {
            overwrites.in_flight -= 1;
            if overwrites.in_flight == 0 && overwrites.frozen == 0 {
                all.remove(&root);
            }
        }
        self.overwritten.notify_all();
    }

    /// Waits for the overwrites in place that are under way in a tree, and allows no new ones
    /// until the guard is dropped. To be held from before a snapshot is asked for until it exists.
    pub(crate) fn freeze_overwrites<'a>(&'a self, root: u64) -> FrozenOverwrites<'a> {
        let mut all = self.overwrites.lock();
        all.entry(root).or_default().frozen += 1;
        while all
            .get(&root)
            .is_some_and(|overwrites| overwrites.in_flight > 0)
        {
            all.wait(&self.overwritten);
        }
        FrozenOverwrites {
            writeback: self,
            root,
        }
    }

    /// Brings a feature into use: the next superblock names it.
    pub(super) fn use_feature(&self, feature: Incompat) {
        self.features.fetch_or(feature.bits(), Ordering::Relaxed);
    }

    /// Features that were brought into use since the mount.
    pub(crate) fn features(&self) -> Incompat {
        Incompat::from_bits_retain(self.features.load(Ordering::Relaxed))
    }

    /// An expanded extent that was read lately.
    pub(super) fn expanded(&self, bytenr: u64, generation: u64) -> Option<Arc<Vec<u8>>> {
        let recent = self.recent.lock();
        let found = recent
            .iter()
            .find(|kept| kept.bytenr == bytenr && kept.generation == generation);
        found.map(|kept| Arc::clone(&kept.bytes))
    }

    /// Keeps an expanded extent for the next read.
    pub(super) fn keep_expanded(&self, bytenr: u64, generation: u64, bytes: &Arc<Vec<u8>>) {
        let mut recent = self.recent.lock();
        recent.push_front(Expanded {
            bytenr,
            generation,
            bytes: Arc::clone(bytes),
        });
        recent.truncate(RECENT);
    }
}

impl Drop for Writeback {
    fn drop(&mut self) {
        // The last reference may go in one of the threads: nobody waits here.
        self.signal_stop();
    }
}

/// Keeps files of a tree from being overwritten in place.
pub(crate) struct FrozenOverwrites<'a> {
    writeback: &'a Writeback,
    root: u64,
}

impl Drop for FrozenOverwrites<'_> {
    fn drop(&mut self) {
        let mut all = self.writeback.overwrites.lock();
        if let Some(overwrites) = all.get_mut(&self.root) {
            overwrites.frozen -= 1;
            if overwrites.in_flight == 0 && overwrites.frozen == 0 {
                all.remove(&self.root);
            }
        }
    }
}

impl FileData {
    fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty.bytes()
    }

    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.dirty.is_empty() && state.flights.is_empty()
    }
}
