//! FUSE over io_uring (Linux 6.14 and newer): one system call for an answer and the next
//! request together, and no queue that all CPUs share.
//!
//! # How it works
//!
//! The kernel has a queue for each possible CPU and gives a request to that of the CPU that
//! its caller runs on. A queue has *entries*, each with memory for one request. Here each
//! entry has a thread and an io_uring of its own ([`ring`]): the kernel puts a request into
//! the memory and wakes the thread, which serves it, puts the answer into the same memory and
//! in one call commits it and waits for the next. It runs on the caller's CPU. So no request
//! ever waits behind another in a ring, and none changes threads. A request that takes long
//! (an fsync, a big read) holds up its own entry only; [`Load`] adds entries before a queue
//! runs out.
//!
//! What goes on over `/dev/fuse`: the handshake, forgets, interrupts, our notifications. Two
//! threads of the plain loop stay for it.
//!
//! Start: the kernel holds all requests back from the handshake on until every queue has an
//! entry. So all threads and rings exist before the flag is agreed to ([`Rings::prepare`]),
//! and only then register ([`Rings::begin`]). If one cannot be made the flag is not set, and
//! the plain loop serves alone.
//!
//! Trouble: the kernel gives a request that found no idle entry only to one that commits; a
//! new one stays idle beside it until the next request comes. So entries are added while some
//! are still idle. And a thread may have to wait for the kernel (`later`), which in turn
//! writes back through a queue that has no idle entry left, with all others waiting too.
//! Then nothing would ever commit: a thread that waits for long adds entries wherever none is
//! idle, and gives each queue a request ([`Shared::kick`]; test
//! `many_seeks_in_files_being_written` in `tests/mount/contents.rs`). A connection that ends
//! completes all entries with an error, and the threads end.
//! An entry that is not registered in time ends the attempt, and the mount begins anew on `/dev/fuse`; not so one that comes
//! when the mount is over, which a busy machine can make of a short one (`a_mount_that_is_over_is_an_end_and_no_error`).

mod memory;
mod ring;
mod worker;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

use super::MAX_IO;
use super::crew::{Crew, Load, Need};
use super::device::Device;
use super::later::Helper;
use super::server::Server;
use ring::Ring;
use worker::Worker;

/// Entries of each queue at the start, and how many of them should be idle.
const FIRST: usize = 2;
const SPARE: usize = 2;
/// Bound on the entries of all queues together, and of one.
const MOST_IN_ALL: usize = 512;
const MOST: usize = 64;
/// Longest time for an entry to be registered, which takes no I/O. A mount that waits for ever for
/// a kernel that does not answer would hang a thread that looks at it.
const REGISTRATION: Duration = Duration::from_secs(20);

/// What all queues share.
pub(super) struct Shared {
    device: Arc<Device>,
    server: Arc<Server>,
    crew: Arc<Crew>,
    helper: Helper,
    mount_point: PathBuf,
    queues: OnceLock<Vec<Weak<Queue>>>,
}

impl Shared {
    pub(super) fn new(
        device: &Arc<Device>,
        server: &Arc<Server>,
        crew: &Arc<Crew>,
        helper: &Helper,
        mount_point: &Path,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            server: Arc::clone(server),
            crew: Arc::clone(crew),
            helper: helper.clone(),
            mount_point: mount_point.to_path_buf(),
            queues: OnceLock::new(),
        }
    }

    /// Sees to it that each queue has an idle entry, and sends each a request of our own,
    /// after which that entry takes those that wait.
    fn kick(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let kicker = std::thread::Builder::new().name("fuse-kick".to_owned());
        let started = kicker.spawn(move || {
            for queue in shared.queues.get().into_iter().flatten() {
                let Some(queue) = queue.upgrade() else { return };
                if let Some(registered) = queue.grow(queue.load.must_serve()) {
                    // If it could not be added, the request waits like the others.
                    let _ = registered.recv();
                }
                queue.stay_on_cpu();
                // What it says does not matter; the kernel always asks us.
                let _ = rustix::fs::statfs(&shared.mount_point);
            }
        });
        if let Err(error) = started {
            log::warn!("queues that may be stuck get no request: {error}");
        }
    }
}

/// One of the kernel's queues.
struct Queue {
    number: u16,
    load: Load,
    shared: Arc<Shared>,
}

impl Queue {
    fn ring(&self) -> io::Result<Ring> {
        let payload = usize::try_from(MAX_IO).map_err(io::Error::other)?;
        Ring::new(self.shared.device.as_fd(), self.number, payload)
    }

    /// Binds the calling thread to the queue's CPU, if it may run there.
    fn stay_on_cpu(&self) {
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(usize::from(self.number));
        if let Err(error) = rustix::thread::sched_setaffinity(None, &cpus) {
            log::debug!("CPU {}: {error}", self.number);
        }
    }

    /// Adds an entry with its thread if one is needed; tells when it is there.
    fn grow(self: &Arc<Self>, need: Need) -> Option<mpsc::Receiver<()>> {
        if need == Need::Enough {
            return None;
        }
        let queue = Arc::clone(self);
        let (registered, told) = mpsc::channel();
        let started = self.shared.crew.start(move || {
            let ring = queue.ring().and_then(|mut ring| {
                ring.register()?;
                Ok(ring)
            });
            let _ = registered.send(());
            match ring {
                Ok(ring) => Worker::new(queue, ring).run(),
                // The entries that there are go on.
                Err(error) => {
                    queue.load.lost();
                    log::debug!("no further ring entry: {error}");
                    Ok(())
                }
            }
        });
        if let Err(error) = started {
            self.load.lost();
            log::debug!("no thread for a further ring entry: {error}");
        }
        Some(told)
    }
}

/// Threads with their rings that wait for the handshake.
pub(super) struct Rings {
    /// Dropped without a word: they end.
    go: Vec<mpsc::Sender<()>>,
    registered: mpsc::Receiver<io::Result<()>>,
}

impl Rings {
    /// Starts the first threads of every queue and has them make their rings.
    ///
    /// # Errors
    /// One of them could not: there is no io_uring to be had.
    pub(super) fn prepare(
        shared: &Arc<Shared>,
        threads: Option<usize>,
        most_in_all: usize,
    ) -> io::Result<Self> {
        let queues = possible_cpus()?;
        // A fixed number of threads is shared out; each queue needs one.
        let (first, most) = match threads {
            Some(threads) => {
                let each = threads.div_ceil(queues).max(1);
                (each, each)
            }
            None => (
                FIRST,
                (MOST_IN_ALL.min(most_in_all) / queues).clamp(FIRST, MOST),
            ),
        };
        let (prepared, preparations) = mpsc::channel();
        let (report, registered) = mpsc::channel();
        let (mut go, mut all) = (Vec::new(), Vec::new());
        for number in 0..queues {
            let queue = Arc::new(Queue {
                number: u16::try_from(number).map_err(io::Error::other)?,
                load: Load::new(first, SPARE, most),
                shared: Arc::clone(shared),
            });
            all.push(Arc::downgrade(&queue));
            for _ in 0..first {
                let (word, wait) = mpsc::channel();
                go.push(word);
                let (queue, prepared, report) =
                    (Arc::clone(&queue), prepared.clone(), report.clone());
                shared
                    .crew
                    .start(move || first_entry(queue, &prepared, &wait, &report))?;
            }
        }
        // Set once, here.
        let _ = shared.queues.set(all);
        for _ in &go {
            preparations.recv().map_err(io::Error::other)??;
        }
        Ok(Self { go, registered })
    }

    /// Lets them register and serve. Call it once the kernel knows of the flag.
    ///
    /// # Errors
    /// The kernel refuses an entry: requests would wait for ever.
    pub(super) fn begin(self) -> io::Result<()> {
        for word in &self.go {
            // A thread that is gone says so below, by saying nothing.
            let _ = word.send(());
        }
        for _ in &self.go {
            let told = self.registered.recv_timeout(REGISTRATION);
            told.unwrap_or_else(|why| {
                Err(io::Error::other(format!(
                    "an entry was not registered: {why}"
                )))
            })?;
        }
        Ok(())
    }
}

/// The life of a thread that exists before the handshake.
fn first_entry(
    queue: Arc<Queue>,
    prepared: &mpsc::Sender<io::Result<()>>,
    go: &mpsc::Receiver<()>,
    report: &mpsc::Sender<io::Result<()>>,
) -> io::Result<()> {
    let mut ring = match queue.ring() {
        Ok(ring) => ring,
        Err(error) => {
            let _ = prepared.send(Err(error));
            return Ok(());
        }
    };
    let _ = prepared.send(Ok(()));
    if go.recv().is_err() {
        return Ok(());
    }
    let registered = ring.register();
    let good = registered.is_ok();
    let _ = report.send(registered);
    if good {
        Worker::new(queue, ring).run()
    } else {
        Ok(())
    }
}

/// Number of CPUs that there may ever be, each of which has a queue.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_cpus(text.trim()).ok_or_else(|| io::Error::other(format!("not a list of CPUs: {text}")))
}

/// Counts a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<usize> {
    let mut count: usize = 0;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (1..=usize::from(u16::MAX))
        .contains(&count)
        .then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-1"), Some(2));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        for bad in ["", "x", "3-1", "0-", "0-18446744073709551615"] {
            assert_eq!(count_cpus(bad), None);
        }
    }
}
