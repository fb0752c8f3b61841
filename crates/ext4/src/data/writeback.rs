//! Writeback of all files: threads, the bound on dirty bytes, which files have any.
//!
//! # How it works
//! Jobs go through two queues. *I/O* jobs plan flights and write; *landing* jobs join transactions and change
//! maps. Each has threads of its own, so that the device is kept busy while a landing waits for a
//! commit. Threads start with the first write or job.
//!
//! A file with data in memory is *active*: [`ActiveFiles`] holds it, so that it is not evicted. It leaves when
//! a landing or a truncation left nothing.
//!
//! A [`ByteBound`] counts the bytes in memory. At half of the bound writeback begins on its own with the file
//! that has been active longest. A thread of its own writes back what has been dirty for the commit interval.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sapwood_base::{ActiveFiles, Added, Alarm, ByteBound, WorkerGroup, Workers, age};

use super::complete;
use super::flush::{self, Dispatch};
use crate::engine::Engine;
use crate::file_data::InFlight;
use crate::inode::Inode;
use crate::lock::Rank;
use crate::{Error, Options, Result};

/// Threads that land flights.
const COMPLETERS: usize = 2;

/// Work for a thread.
pub(super) enum Work {
    /// Plan a flight.
    Prepare(Arc<Inode>, Arc<InFlight>),
    /// Write a part of a flight.
    Write(Arc<Inode>, Arc<InFlight>, flush::Request),
    /// Bring what is ready of a file into its map.
    Complete(Arc<Inode>),
    /// Begin writeback until the dirty bytes fall below the lower mark.
    Relieve,
}

struct Job {
    engine: Arc<Engine>,
    work: Work,
}

/// Lanes of the workers.
const IO: usize = 0;
const COMPLETION: usize = 1;

/// Does a piece of work in this thread.
fn run(engine: &Arc<Engine>, work: Work) {
    match work {
        Work::Prepare(inode, io) => flush::prepare(engine, &inode, &io, Dispatch::Queue),
        Work::Write(inode, io, request) => {
            flush::write_part(engine, &inode, &io, &request, Dispatch::Queue);
        }
        Work::Complete(inode) => complete::complete(engine, &inode),
        Work::Relieve => {
            engine.writeback.relieving.store(false, Ordering::SeqCst);
            engine.writeback.relieve(engine);
        }
    }
}

/// Writeback of all files.
pub(crate) struct Writeback {
    workers: Workers<Rank, Job>,
    /// Threads that do I/O jobs.
    width: usize,
    background: bool,
    interval: Duration,
    bound: ByteBound<Rank>,
    /// A [`Work::Relieve`] is queued.
    relieving: AtomicBool,
    active: ActiveFiles<Rank, Inode>,
    /// Wakes the thread that writes back what is old: the first active file, or the end.
    age: Arc<Alarm<Rank>>,
}

impl std::fmt::Debug for Writeback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writeback")
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}

impl Writeback {
    /// Begins writeback of what is older than the interval. Returns how long the oldest of the
    /// others has until then; `None` if no file is active.
    fn flush_due(&self, engine: &Arc<Engine>, interval: Duration) -> Option<Duration> {
        let (files, next) = self.active.due(interval);
        for inode in files {
            if inode.data.dirty_bytes() > 0 {
                flush::begin(engine, &inode, 0..u64::MAX, flush::Dispatch::Queue);
            }
        }
        next
    }

    /// No file has data in memory; without threads yet.
    pub(crate) fn new(options: &Options) -> Self {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        let width = if options.threads == 0 {
            processors
        } else {
            options.threads
        };
        Self {
            workers: Workers::new(Rank::Leaf, 2),
            width: width.clamp(2, 16),
            background: options.background,
            interval: options.commit_interval,
            bound: ByteBound::new(Rank::Leaf, options.dirty_bytes as u64),
            relieving: AtomicBool::new(false),
            active: ActiveFiles::new(Rank::ActiveFiles),
            age: Arc::new(Alarm::new(Rank::Leaf)),
        }
    }

    /// Starts the threads, once. A mount does so when it begins: a thread may run only where the one that
    /// started it may, and a request's may be bound to a CPU.
    pub(crate) fn start(&self, engine: &Arc<Engine>) {
        let group = |name, threads| WorkerGroup {
            name,
            threads,
            batching: None,
        };
        let crews = [
            group("ext4-data", self.width),
            group("ext4-complete", COMPLETERS),
        ];
        let started = self
            .workers
            .start(&crews, |job: Job| run(&job.engine, job.work));
        if started && self.background {
            let (weak, alarm) = (Arc::downgrade(engine), Arc::clone(&self.age));
            let interval = self.interval;
            let flush_old = move || {
                age::write_back_old(&weak, &alarm, interval, |engine, interval| {
                    engine.writeback.flush_due(engine, interval)
                });
            };
            self.workers.spawn("ext4-flush", flush_old);
        }
    }

    /// Queues work. Hold no handle, and no lock of a higher rank than [`Rank::Inode`]: where no thread serves
    /// the queue the work is done here.
    pub(super) fn push(&self, engine: &Arc<Engine>, work: Work) {
        self.start(engine);
        let lane = match work {
            Work::Complete(..) => COMPLETION,
            _ => IO,
        };
        let job = Job {
            engine: Arc::clone(engine),
            work,
        };
        if let Err(job) = self.workers.push(lane, job) {
            run(&job.engine, job.work);
        }
    }

    /// Ends the threads once their queues are empty, and waits for them.
    pub(crate) fn stop(&self) {
        self.age.stop();
        self.workers.stop();
    }

    /// Waits until `bytes` more may be dirty, and counts them. Hold no handle.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing can be written because the host has no space.
    pub(super) fn enter(&self, engine: &Arc<Engine>, bytes: u64) -> Result<()> {
        self.start(engine);
        let entered = self.bound.enter(bytes, || self.kick(engine));
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

    fn kick(&self, engine: &Arc<Engine>) {
        if !self.relieving.swap(true, Ordering::SeqCst) {
            self.push(engine, Work::Relieve);
        }
    }

    /// Begins writeback of the files that have been active longest, until what is left dirty is a quarter of
    /// the bound.
    fn relieve(&self, engine: &Arc<Engine>) {
        let files = self.active.oldest_first();
        let mut dirty: u64 = files.iter().map(|inode| inode.data.dirty_bytes()).sum();
        for inode in files {
            if dirty <= self.bound.limit() / 4 {
                break;
            }
            let bytes = inode.data.dirty_bytes();
            if bytes > 0 {
                flush::begin(engine, &inode, 0..u64::MAX, Dispatch::Queue);
                dirty = dirty.saturating_sub(bytes);
            }
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

    /// Writes back what all files have in memory now, and waits for it.
    pub(super) fn drain(&self, engine: &Arc<Engine>) {
        self.drain_files(engine, &self.active.all());
    }

    fn drain_files(&self, engine: &Arc<Engine>, files: &[Arc<Inode>]) {
        let mut left = Vec::new();
        for inode in files {
            if flush::begin(engine, inode, 0..u64::MAX, Dispatch::Queue) {
                left.push(inode);
            }
        }
        for inode in left {
            flush::wait_for_io(inode);
            flush::begin(engine, inode, 0..u64::MAX, Dispatch::Queue);
        }
        for inode in files {
            flush::wait_for_io(inode);
        }
    }

    /// Flushes all files. The first error is returned, after all were tried.
    pub(super) fn flush_all(&self, engine: &Arc<Engine>) -> Result<()> {
        let files = self.active.all();
        let refusals: Vec<u64> = files.iter().map(|inode| flush::refusals(inode)).collect();
        self.drain_files(engine, &files);
        let told = files.iter().zip(refusals);
        told.map(|(inode, refusals)| flush::failure(inode, refusals))
            .fold(Ok(()), Result::and)
    }
}
