//! Writeback of all files: threads, the bound on dirty bytes, which files have any.
//!
//! # How it works
//! Jobs go through two queues. *I/O* jobs prepare runs, compress, compute checksums and write;
//! *completion* jobs join transactions and change trees. Each has threads of its own, so that
//! an I/O job may wait for a completion (what overwrites in place does). Threads start with the
//! first write or job.
//!
//! A file with data in memory is *active*: [`ActiveFiles`] holds it, so that it is not evicted.
//! It leaves when a completion or a truncation left nothing.
//!
//! A [`ByteBound`] counts the bytes in memory. At half of the bound writeback begins on its own with
//! the file that has been active longest. A thread of its own writes back what has been dirty for
//! the commit interval.
//!
//! A snapshot must not see data that is overwritten in place later. So a thread that takes one
//! first [freezes](Writeback::freeze_overwrites) the tree: overwrites under way are waited for, and
//! what comes then is copied, until the snapshot exists and the generation rule protects it.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Condvar;
use sapwood_base::{ActiveFiles, Added, Alarm, Batching, ByteBound, WorkerGroup, Workers, age};

use crate::file_data::{InFlightId, OrderedExtent, Slice};
use crate::inode::{Inode, InodeTable};
use crate::lock::{Rank, RankedMutex};
use crate::transaction::Store;
use crate::tree::{BlockCache, TreeRead};
use crate::{Error, Options, Result};

/// Threads that complete ordered extents.
const COMPLETERS: usize = 2;
/// An fsync does not wait for the completion of what it wrote, and shall not pay for waking a thread that
/// completes it either.
const BATCHING: Batching = Batching {
    time: Duration::from_millis(1),
    jobs: 16,
};
/// Expanded extents that are kept for the next read.
const RECENT: usize = 16;

/// Work for a thread.
pub(super) enum Work {
    /// Decide where a taken run goes.
    Decide(Arc<Inode>, InFlightId),
    /// Compress a piece of a run and allocate for it.
    Compress(Arc<Inode>, InFlightId),
    /// Write bytes of an ordered extent.
    Write(DataWrite),
    /// Put an ordered extent into the tree.
    Complete(Arc<Inode>, Arc<OrderedExtent>),
    /// Begin writeback until the dirty bytes fall below the lower mark.
    Relieve,
}

/// Bytes of an ordered extent that one request can write.
pub(super) struct DataWrite {
    pub(super) inode: Arc<Inode>,
    pub(super) ordered: Arc<OrderedExtent>,
    /// Where in the bytes of the ordered extent they begin.
    pub(super) at: u64,
    pub(super) slices: Vec<Slice>,
}

/// The writes that a flush has collected. They may be of several inodes.
pub(super) type Batch = RefCell<Vec<DataWrite>>;

/// Where the work of a flush is done.
#[derive(Clone, Copy)]
pub(super) enum Dispatch<'a> {
    /// In this thread; what is to be written is collected.
    Here(&'a Batch),
    /// By the threads of writeback.
    Queue,
}

/// What the threads of writeback do, which the files above know.
#[derive(Clone, Copy)]
pub(super) struct Duties {
    /// Does a piece of work.
    pub(super) run: fn(&Arc<Files>, Work),
    /// Begins writeback of what has been dirty for an interval. Returns how long the oldest of the
    /// rest has until then; `None` if no file is active.
    pub(super) write_back_old: fn(&Arc<Files>, Duration) -> Option<Duration>,
}

struct Job {
    files: Arc<Files>,
    work: Work,
}

impl Job {
    fn run(self) {
        (self.files.writeback.duties.run)(&self.files, self.work);
    }
}

/// Lane of what completes ordered extents.
const COMPLETION: usize = 1;
/// Lane of everything else.
const IO: usize = 0;

/// Files, on top of a store: inodes and their data; always behind an `Arc`.
pub(crate) struct Files {
    pub(super) store: Arc<Store>,
    pub(crate) inodes: InodeTable,
    pub(crate) writeback: Writeback,
}

impl Files {
    /// The store below.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }
}

impl Deref for Files {
    type Target = Arc<Store>;

    fn deref(&self) -> &Arc<Store> {
        &self.store
    }
}

impl TreeRead for Files {
    fn blocks(&self) -> &BlockCache {
        &self.store.blocks
    }
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
    duties: Duties,
    workers: Workers<Rank, Job>,
    /// Threads that do I/O jobs.
    width: usize,
    background: bool,
    interval: Duration,
    pub(super) bound: ByteBound<Rank>,
    /// A [`Work::Relieve`] is queued.
    pub(super) relieving: AtomicBool,
    pub(super) active: ActiveFiles<Rank, Inode>,
    /// Wakes the thread that writes back what is old: the first active file, or the end.
    age: Arc<Alarm<Rank>>,
    overwrites: RankedMutex<HashMap<u64, Overwrites>>,
    overwritten: Condvar,
    recent: RankedMutex<VecDeque<Expanded>>,
}

impl std::fmt::Debug for Writeback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writeback")
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

impl Writeback {
    /// Without threads yet.
    pub(super) fn new(options: &Options, duties: Duties) -> Self {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        let width = if options.threads == 0 {
            processors
        } else {
            options.threads
        };
        Self {
            duties,
            workers: Workers::new(Rank::Leaf, 2),
            width: width.clamp(2, 16),
            background: options.background,
            interval: options.commit_interval,
            bound: ByteBound::new(Rank::Leaf, options.dirty_bytes as u64),
            relieving: AtomicBool::new(false),
            active: ActiveFiles::new(Rank::ActiveFiles),
            age: Arc::new(Alarm::new(Rank::Leaf)),
            overwrites: RankedMutex::new(Rank::Leaf, HashMap::new()),
            overwritten: Condvar::new(),
            recent: RankedMutex::new(Rank::Leaf, VecDeque::new()),
        }
    }

    /// Starts the threads, once. A mount does so when it begins: a thread may run only where
    /// the one that started it may, and a request's may be bound to a CPU.
    pub(crate) fn start(&self, files: &Arc<Files>) {
        let group = |name, threads, batching| WorkerGroup {
            name,
            threads,
            batching,
        };
        let crews = [
            group("btrfs-data", self.width, None),
            group("btrfs-complete", COMPLETERS, Some(BATCHING)),
        ];
        let started = self.workers.start(&crews, |job: Job| job.run());
        if started && self.background {
            let (weak, alarm) = (Arc::downgrade(files), Arc::clone(&self.age));
            let interval = self.interval;
            let write_back_old = self.duties.write_back_old;
            let flush_old = move || {
                age::write_back_old(&weak, &alarm, interval, write_back_old);
            };
            self.workers.spawn("btrfs-flush", flush_old);
        }
    }

    /// Queues work. Hold no lock of a higher rank than [`Rank::FileDataState`].
    pub(super) fn push(&self, files: &Arc<Files>, work: Work) {
        self.start(files);
        let lane = match work {
            Work::Complete(..) => COMPLETION,
            _ => IO,
        };
        let job = Job {
            files: Arc::clone(files),
            work,
        };
        if let Err(job) = self.workers.push(lane, job) {
            job.run();
        }
    }

    /// A thread waits for what is being completed.
    pub(crate) fn hurry(&self) {
        self.workers.hurry(COMPLETION);
    }

    /// Holds completions, or lets them go: tests of what must not wait for one.
    #[cfg(test)]
    pub(crate) fn hold_completions(&self, hold: bool) {
        self.workers.hold(COMPLETION, hold);
    }

    /// Ends the threads once their queues are empty, and waits for them.
    pub(crate) fn stop(&self) {
        self.age.stop();
        self.workers.stop();
    }

    /// Waits until `bytes` more may be dirty, and counts them.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing can be written because the host has no space.
    pub(super) fn enter(&self, files: &Arc<Files>, bytes: u64) -> Result<()> {
        self.start(files);
        let entered = self.bound.enter(bytes, || self.kick(files));
        entered.then_some(()).ok_or(Error::NoSpace)
    }

    /// The host had no space for bytes, which stay.
    pub(super) fn refuse(&self) {
        self.bound.refuse();
    }

    /// A writer entered `counted` bytes and brought `added`.
    pub(super) fn correct(&self, counted: u64, added: u64) {
        self.bound.correct(counted, added);
    }

    /// These bytes are no longer in memory.
    pub(super) fn leave(&self, bytes: u64) {
        self.bound.leave(bytes);
    }

    /// Bytes in memory of all files.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bound.bytes()
    }

    fn kick(&self, files: &Arc<Files>) {
        self.hurry();
        if !self.relieving.swap(true, Ordering::SeqCst) {
            self.push(files, Work::Relieve);
        }
    }

    /// Notes that a file has data in memory.
    pub(super) fn activate(&self, inode: &Arc<Inode>) {
        let added = self.active.add(inode);
        if added == Added::First {
            self.age.ring();
        }
        if added != Added::No {
            // What was just written may be on disk already, and who wrote it found no entry.
            self.settle(inode);
        }
    }

    /// Forgets a file that has nothing left in memory.
    pub(super) fn settle(&self, inode: &Arc<Inode>) {
        self.active.settle(inode, || inode.data.is_idle());
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
        // The last reference may go in one of the threads: no thread waits here.
        self.age.stop();
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
