//! Writeback of the dirty data of all files of a mount: threads, the bound on dirty bytes, ageing.
//!
//! # How it works
//! Jobs go through two queues. *I/O* jobs allocate and write. *Completion* jobs change metadata
//! after the I/O, in transactions that they join. Each queue has threads of its own, so that the
//! device is kept busy while a completion waits for a commit, and so that an I/O job may wait for a
//! completion. Threads start with the mount, or with the first job.
//!
//! A file with data in memory is *active*: [`ActiveFiles`] holds it, so that it is not evicted. A
//! completion or a truncation that leaves no data ends this.
//!
//! A [`ByteBound`] counts the bytes in memory. At half of the bound writeback begins with the file
//! that has been active longest, and continues until a quarter of the bound is dirty. A further
//! thread writes back data that has been dirty for an interval.
//!
//! An engine implements [`WritebackEngine`]: the jobs, their execution, and the start of writeback.
//! It gets all files at once, so that small ones can share a job.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::active::{ActiveFiles, Added};
use crate::age;
use crate::bound::ByteBound;
use crate::lock::Rank;
use crate::resident::Resident;
use crate::workers::{Alarm, Batching, WorkerGroup, Workers};

/// Threads that execute completion jobs.
const COMPLETERS: usize = 2;
/// Most threads that execute I/O jobs.
const WIDEST: usize = 16;

/// A file whose dirty data is written back.
pub trait File: Resident + Send + Sync + 'static {
    /// Bytes that are dirty and that no job writes yet.
    fn dirty_bytes(&self) -> u64;

    /// Whether all bytes in memory are on disk. Called with the lock of the active files held.
    fn is_idle(&self) -> bool;
}

/// The queue of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Allocation and I/O.
    Io,
    /// Changes of metadata after the I/O.
    Completion,
}

impl Queue {
    fn index(self) -> usize {
        match self {
            Self::Io => 0,
            Self::Completion => 1,
        }
    }
}

/// An engine with writeback.
pub trait WritebackEngine: Send + Sync + Sized + 'static {
    /// Ranks of its locks.
    type Rank: Rank + Send + Sync;
    /// The engine's files.
    type File: File;
    /// A piece of work.
    type Work: Send + 'static;

    /// The engine's writeback.
    fn writeback(&self) -> &Writeback<Self>;

    /// The queue of a piece of work.
    fn queue(work: &Self::Work) -> Queue;

    /// Does a piece of work, in this thread.
    fn run(self: &Arc<Self>, work: Self::Work);

    /// Begins the writeback of all that is dirty in these files. Waits for nothing.
    fn begin(self: &Arc<Self>, files: &[Arc<Self::File>]);
}

/// Sizes and names of a [`Writeback`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Prefix of the names of the threads.
    pub name: &'static str,
    /// Threads that execute I/O jobs; 0: one for each processor.
    pub threads: usize,
    /// Whether the caller that begins a piece of work executes it itself, so that no thread starts.
    pub inline: bool,
    /// Whether data that has been dirty for the interval is written back.
    pub background: bool,
    /// Age at which dirty data is written back without other need.
    pub interval: Duration,
    /// Bytes that may be dirty.
    pub dirty_bytes: u64,
    /// Batching of completions.
    pub batching: Option<Batching>,
}

enum Job<E: WritebackEngine> {
    Work(Arc<E>, E::Work),
    /// Begin writeback until the dirty bytes fall below the lower mark.
    Relieve(Arc<E>),
}

impl<E: WritebackEngine> Job<E> {
    fn run(self) {
        match self {
            Self::Work(engine, work) => engine.run(work),
            Self::Relieve(engine) => {
                let writeback = engine.writeback();
                writeback.relieving.store(false, Ordering::SeqCst);
                writeback.relieve(&engine);
            }
        }
    }
}

/// Writeback of all files of a mount.
pub struct Writeback<E: WritebackEngine> {
    settings: Settings,
    workers: Workers<E::Rank, Job<E>>,
    bound: ByteBound<E::Rank>,
    /// A [`Job::Relieve`] is queued.
    relieving: AtomicBool,
    active: ActiveFiles<E::Rank, E::File>,
    /// Wakes the thread that writes back old data: for the first active file, or for the end.
    age: Arc<Alarm<E::Rank>>,
}

impl<E: WritebackEngine> std::fmt::Debug for Writeback<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writeback")
            .field("dirty_bytes", &self.bound.bytes())
            .field("limit", &self.bound.limit())
            .finish_non_exhaustive()
    }
}

impl<E: WritebackEngine> Writeback<E> {
    /// Writeback of a mount without dirty files, and without threads yet. `active` is the rank of
    /// the lock of the active files, `leaf` the rank of all other locks, under which no other is
    /// taken.
    pub fn new(settings: Settings, active: E::Rank, leaf: E::Rank) -> Self {
        Self {
            settings,
            workers: Workers::new(leaf, 2),
            bound: ByteBound::new(leaf, settings.dirty_bytes),
            relieving: AtomicBool::new(false),
            active: ActiveFiles::new(active),
            age: Arc::new(Alarm::new(leaf)),
        }
    }

    /// Starts the threads, once. Call it when a mount begins: a thread inherits the CPU affinity of
    /// its creator, and a request thread may be bound to a CPU.
    pub fn start(&self, engine: &Arc<E>) {
        if self.settings.inline || self.workers.is_started() {
            return;
        }
        let Settings { name, batching, .. } = self.settings;
        let threads = match self.settings.threads {
            0 => thread::available_parallelism().map_or(2, usize::from),
            threads => threads,
        };
        let (io, complete) = (format!("{name}-data"), format!("{name}-complete"));
        let groups = [
            WorkerGroup {
                name: &io,
                threads: threads.clamp(2, WIDEST),
                batching: None,
            },
            WorkerGroup {
                name: &complete,
                threads: COMPLETERS,
                batching,
            },
        ];
        let started = self.workers.start(&groups, Job::run);
        if started && self.settings.background {
            let (weak, alarm) = (Arc::downgrade(engine), Arc::clone(&self.age));
            let interval = self.settings.interval;
            let begin_due =
                |engine: &Arc<E>, interval| engine.writeback().begin_due(engine, interval);
            let write_back_old = move || age::write_back_old(&weak, &alarm, interval, begin_due);
            self.workers.spawn(&format!("{name}-flush"), write_back_old);
        }
    }

    /// Ends the threads once their queues are empty, and waits for them.
    pub fn stop(&self) {
        self.age.stop();
        self.workers.stop();
    }

    /// Queues a piece of work. If no thread serves the queue, the calling thread executes it. So
    /// the caller must not hold a lock that the work takes, or one that ranks higher.
    pub fn push(&self, engine: &Arc<E>, work: E::Work) {
        self.start(engine);
        let queue = E::queue(&work);
        self.push_job(queue, Job::Work(Arc::clone(engine), work));
    }

    fn push_job(&self, queue: Queue, job: Job<E>) {
        if let Err(job) = self.workers.push(queue.index(), job) {
            job.run();
        }
    }

    /// Ends the delay of completions, because a thread waits for one.
    pub fn hurry(&self) {
        if self.settings.batching.is_some() {
            self.workers.hurry(Queue::Completion.index());
        }
    }

    /// Holds completions back, or releases them: for tests of callers that must not wait for one.
    pub fn hold_completions(&self, hold: bool) {
        self.workers.hold(Queue::Completion.index(), hold);
    }

    /// Waits until `bytes` more may be dirty, and counts them. Returns false, and counts nothing,
    /// if the host has no space for writeback.
    #[must_use]
    pub fn enter(&self, engine: &Arc<E>, bytes: u64) -> bool {
        self.start(engine);
        self.bound.enter(bytes, || self.kick(engine))
    }

    /// Records that the host had no space for bytes, which stay dirty.
    pub fn refuse(&self) {
        self.bound.refuse();
    }

    /// Corrects the count of a writer that entered `counted` bytes and added `added`.
    pub fn correct(&self, counted: u64, added: u64) {
        self.bound.correct(counted, added);
    }

    /// Removes bytes that left memory from the count.
    pub fn leave(&self, bytes: u64) {
        self.bound.leave(bytes);
    }

    /// Bytes in memory of all files.
    pub fn bytes(&self) -> u64 {
        self.bound.bytes()
    }

    /// The files with data in memory, by number.
    pub fn active(&self) -> Vec<Arc<E::File>> {
        self.active.all()
    }

    /// Records that a file has data in memory, after the data is there.
    pub fn activate(&self, file: &Arc<E::File>) {
        let added = self.active.add(file);
        if added == Added::First {
            self.age.ring();
        }
        if added != Added::No {
            // The data may be on disk already, and the thread that wrote it found no entry.
            self.settle(file);
        }
    }

    /// Removes a file from the active ones if it has nothing left in memory.
    pub fn settle(&self, file: &E::File) {
        self.active.settle(file, || file.is_idle());
    }

    /// Discards dirty data of a file until none is left. `take` removes it from memory and returns
    /// its bytes. `wait` waits until none is in flight, and returns whether none is dirty: data
    /// that could not be written becomes dirty again.
    pub fn discard(
        &self,
        file: &E::File,
        mut take: impl FnMut() -> u64,
        mut wait: impl FnMut() -> bool,
    ) {
        loop {
            self.leave(take());
            self.settle(file);
            if wait() {
                return;
            }
        }
    }

    fn kick(&self, engine: &Arc<E>) {
        self.hurry();
        if !self.relieving.swap(true, Ordering::SeqCst) {
            self.start(engine);
            self.push_job(Queue::Io, Job::Relieve(Arc::clone(engine)));
        }
    }

    /// Begins writeback of the files that have been active longest, until a quarter of the bound is
    /// dirty.
    fn relieve(&self, engine: &Arc<E>) {
        let mut files = self.active.oldest_first();
        let mut dirty: u64 = files.iter().map(|file| file.dirty_bytes()).sum();
        files.retain(|file| {
            let bytes = file.dirty_bytes();
            let chosen = bytes > 0 && dirty > self.bound.limit() / 4;
            if chosen {
                dirty = dirty.saturating_sub(bytes);
            }
            chosen
        });
        engine.begin(&files);
    }

    /// Begins writeback of data older than the interval. Returns the time until the next data is
    /// due; `None` if no file is active.
    fn begin_due(&self, engine: &Arc<E>, interval: Duration) -> Option<Duration> {
        let (mut files, next) = self.active.due(interval);
        files.retain(|file| file.dirty_bytes() > 0);
        engine.begin(&files);
        next
    }
}

impl<E: WritebackEngine> Drop for Writeback<E> {
    fn drop(&mut self) {
        // The last reference may be dropped in one of the threads: no thread waits here.
        self.age.stop();
    }
}
