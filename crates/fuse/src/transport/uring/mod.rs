//! FUSE over io_uring (Linux 6.14 and newer): one system call sends an answer and receives the next
//! request, and no queue is shared by all CPUs.
//!
//! # How it works
//!
//! The kernel has a queue for each possible CPU, and puts a request into the queue of the CPU that
//! its caller runs on. A queue has *entries*, each with memory for one request. Here each entry has
//! its own thread and io_uring ([`ring`]), and runs on the queue's CPU:
//! 1. The kernel copies a request into the entry's memory and wakes the thread.
//! 2. The thread serves it and writes the answer into the same memory.
//! 3. One system call commits the answer and waits for the next request.
//!
//! While a client is [lone](super::lone), the thread leaves that CPU ([`affinity`]), commits the
//! answer, and polls the ring's memory for the next request before it waits.
//!
//! So no request waits behind another in a ring, and none moves between threads. A long request (an
//! fsync, a large read) blocks only its own entry; [`Load`] adds entries before a queue runs out.
//!
//! The handshake, forgets, interrupts and the server's notifications still go over `/dev/fuse`. Two
//! threads serve it.
//!
//! **Start.** From the handshake on, the kernel holds all requests back until every queue has an
//! entry. So all threads and rings are created before the server agrees to the flag
//! ([`Rings::prepare`]), and register afterwards ([`Rings::begin`]). If one cannot be created, the
//! flag is not set, and only `/dev/fuse` is used.
//!
//! Trouble cases:
//! - The kernel gives a request that found no idle entry only to an entry that commits. A new entry
//!   stays idle until the next request arrives. So entries are added while some are still idle.
//! - A thread may have to wait for the kernel (`later`), which in turn writes back through a queue
//!   without an idle entry, while all other entries wait too. Then no entry would ever commit. So a
//!   thread that waits for long adds an entry to each queue that has no idle one, and sends each
//!   queue a request ([`Shared::kick`]; test `many_seeks_in_files_being_written` in
//!   `tests/mount/contents.rs`).
//! - The end of the connection completes all entries with an error, and the threads end.
//! - An entry that is not registered in time ends the attempt, and the mount starts again on
//!   `/dev/fuse`. But an entry whose registration arrives after the mount has ended, as can happen
//!   to a short mount on a busy machine, is a normal end
//!   (`registering_on_an_ended_connection_is_no_error`).

mod affinity;
mod memory;
mod ring;
mod worker;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::time::Duration;

use super::device::Device;
use super::later::Helper;
use super::lone::Lone;
use super::pool::{Load, Need, Pool};
use super::server::Server;
use crate::options::MAX_IO;
use affinity::Cpus;
use ring::Ring;
use worker::Worker;

/// Entries of each queue at the start, and how many of them should stay idle.
const FIRST: usize = 2;
const SPARE: usize = 2;
/// Most entries of all queues together, and of one queue.
const MOST_IN_ALL: usize = 512;
const MOST: usize = 64;
/// Longest time for an entry to be registered, which takes no I/O. Without a limit, a mount that
/// waits for a kernel that does not answer would hang every process that accesses it.
const REGISTRATION: Duration = Duration::from_secs(20);

/// State that all queues share.
pub(super) struct Shared {
    device: Arc<Device>,
    server: Arc<Server>,
    pool: Arc<Pool>,
    lone: Arc<Lone>,
    helper: Helper,
    mount_point: PathBuf,
    cpus: Cpus,
    queues: OnceLock<Vec<Weak<Queue>>>,
}

impl Shared {
    pub(super) fn new(
        device: &Arc<Device>,
        server: &Arc<Server>,
        pool: &Arc<Pool>,
        lone: &Arc<Lone>,
        helper: &Helper,
        mount_point: &Path,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            server: Arc::clone(server),
            pool: Arc::clone(pool),
            lone: Arc::clone(lone),
            helper: helper.clone(),
            mount_point: mount_point.to_path_buf(),
            cpus: Cpus::of_caller(),
            queues: OnceLock::new(),
        }
    }

    /// Makes sure that each queue has an idle entry, and sends each queue a request. After serving
    /// it, the entry takes the requests that wait.
    fn kick(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let kicker = std::thread::Builder::new().name("fuse-kick".to_owned());
        let started = kicker.spawn(move || {
            for queue in shared.queues.get().into_iter().flatten() {
                let Some(queue) = queue.upgrade() else { return };
                if let Some(registered) = queue.grow(queue.load.must_serve()) {
                    // If no entry could be added, the request waits like the others.
                    let _ = registered.recv();
                }
                Cpus::stay_on(queue.number);
                // The result does not matter. The kernel passes every `statfs` on.
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

    /// Adds an entry with its thread, if one is needed. The receiver signals that the entry is
    /// registered.
    fn grow(self: &Arc<Self>, need: Need) -> Option<mpsc::Receiver<()>> {
        if need == Need::Enough {
            return None;
        }
        let queue = Arc::clone(self);
        let (registered, told) = mpsc::channel();
        let started = self.shared.pool.start(move || {
            let ring = queue.ring().and_then(|mut ring| {
                ring.register()?;
                Ok(ring)
            });
            let _ = registered.send(());
            match ring {
                Ok(ring) => Worker::new(queue, ring).run(),
                // The existing entries continue.
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

/// Threads with their rings, waiting for the handshake.
pub(super) struct Rings {
    /// If dropped without a message, the threads end.
    go: Vec<mpsc::Sender<()>>,
    registered: mpsc::Receiver<io::Result<()>>,
}

impl Rings {
    /// Starts the first threads of every queue and creates their rings.
    ///
    /// # Errors
    /// A thread or ring could not be created: io_uring is not available.
    pub(super) fn prepare(
        shared: &Arc<Shared>,
        threads: Option<usize>,
        most_in_all: usize,
    ) -> io::Result<Self> {
        let queues = possible_cpus()?;
        // A fixed number of threads is divided among the queues; each queue needs one.
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
                    .pool
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

    /// Lets the threads register and serve. Call it after the kernel has received the flag.
    ///
    /// # Errors
    /// The kernel refuses an entry: requests would wait for ever.
    pub(super) fn begin(self) -> io::Result<()> {
        for word in &self.go {
            // A thread that has ended is detected below: its channel closes.
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

/// Runs a thread that exists before the handshake.
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

/// Number of possible CPUs; each has a queue.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count_cpus(text.trim()).ok_or_else(|| io::Error::other(format!("not a list of CPUs: {text}")))
}

/// Counts a list of CPUs such as `0-3,8`.
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
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-1"), Some(2));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        for bad in ["", "x", "3-1", "0-", "0-18446744073709551615"] {
            assert_eq!(count_cpus(bad), None);
        }
    }
}
