//! Writeback with an engine of a counter for each file.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::resident::{Key, Residence};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TestRank {
    Active,
    Leaf,
}

impl Rank for TestRank {
    type Order = Self;

    fn place(self) -> u16 {
        self as u16
    }
}

#[derive(Debug, Default)]
struct Inode {
    number: u64,
    dirty: AtomicU64,
    in_flight: AtomicU64,
    residence: Residence,
}

impl Resident for Inode {
    fn key(&self) -> Key {
        (0, self.number)
    }

    fn residence(&self) -> &Residence {
        &self.residence
    }

    fn may_leave(&self) -> bool {
        self.is_idle()
    }

    fn footprint(&self) -> usize {
        size_of::<Self>()
    }
}

impl File for Inode {
    fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::SeqCst)
    }

    fn is_idle(&self) -> bool {
        self.dirty_bytes() + self.in_flight.load(Ordering::SeqCst) == 0
    }
}

enum Work {
    /// Write this many bytes of a file.
    Write(Arc<Inode>, u64),
    Complete(Arc<Inode>, u64),
}

struct Mount {
    writeback: Writeback<Self>,
    /// Numbers of the files whose writeback began.
    begun: Mutex<Sender<u64>>,
    /// The device has no space.
    full: AtomicBool,
}

impl WritebackEngine for Mount {
    type Rank = TestRank;
    type File = Inode;
    type Work = Work;

    fn writeback(&self) -> &Writeback<Self> {
        &self.writeback
    }

    fn queue(work: &Work) -> Queue {
        match work {
            Work::Write(..) => Queue::Io,
            Work::Complete(..) => Queue::Completion,
        }
    }

    fn run(self: &Arc<Self>, work: Work) {
        match work {
            Work::Write(inode, bytes) if self.full.load(Ordering::SeqCst) => {
                inode.dirty.fetch_add(bytes, Ordering::SeqCst);
                inode.in_flight.fetch_sub(bytes, Ordering::SeqCst);
                self.writeback.refuse();
            }
            Work::Write(inode, bytes) => {
                self.writeback.push(self, Work::Complete(inode, bytes));
            }
            Work::Complete(inode, bytes) => {
                inode.in_flight.fetch_sub(bytes, Ordering::SeqCst);
                self.writeback.leave(bytes);
                self.writeback.settle(&inode);
            }
        }
    }

    fn begin(self: &Arc<Self>, inodes: &[Arc<Inode>]) {
        for inode in inodes {
            self.begun.lock().unwrap().send(inode.number).unwrap();
            let bytes = inode.dirty.swap(0, Ordering::SeqCst);
            inode.in_flight.fetch_add(bytes, Ordering::SeqCst);
            self.writeback
                .push(self, Work::Write(Arc::clone(inode), bytes));
        }
    }
}

const LIMIT: u64 = 1000;

fn mount(interval: Option<Duration>) -> (Arc<Mount>, Receiver<u64>) {
    let settings = Settings {
        name: "test",
        threads: 2,
        inline: false,
        background: interval.is_some(),
        interval: interval.unwrap_or_default(),
        dirty_bytes: LIMIT,
        batching: None,
    };
    let (begun, seen) = channel();
    let mount = Mount {
        writeback: Writeback::new(settings, TestRank::Active, TestRank::Leaf),
        begun: Mutex::new(begun),
        full: AtomicBool::new(false),
    };
    (Arc::new(mount), seen)
}

fn inode(number: u64) -> Arc<Inode> {
    Arc::new(Inode {
        number,
        ..Inode::default()
    })
}

fn write(mount: &Arc<Mount>, inode: &Arc<Inode>, bytes: u64) -> bool {
    if !mount.writeback.enter(mount, bytes) {
        return false;
    }
    inode.dirty.fetch_add(bytes, Ordering::SeqCst);
    mount.writeback.activate(inode);
    true
}

#[test]
fn writeback_begins_with_the_oldest_file_and_ends_at_a_quarter_of_the_bound() {
    let (mount, begun) = mount(None);
    let files = [5, 3, 4].map(inode);
    for (file, bytes) in files.iter().zip([300, 150, 100]) {
        assert!(write(&mount, file, bytes));
    }
    assert_eq!(begun.recv(), Ok(5));
    mount.writeback.stop();
    assert_eq!(begun.try_recv().ok(), None);
    assert_eq!(mount.writeback.bytes(), 250);
    let active = mount.writeback.active();
    let numbers: Vec<u64> = active.iter().map(|file| file.number).collect();
    assert_eq!(numbers, [3, 4]);
}

#[test]
fn a_writer_beyond_the_bound_waits_for_completions() {
    let (mount, begun) = mount(None);
    let file = inode(1);
    mount.writeback.hold_completions(true);
    assert!(write(&mount, &file, 900));
    thread::scope(|scope| {
        let writer = scope.spawn(|| write(&mount, &file, 200));
        assert_eq!(begun.recv(), Ok(1));
        // The writer cannot have entered: nothing has left memory.
        assert_eq!(mount.writeback.bytes(), 900);
        mount.writeback.hold_completions(false);
        assert!(writer.join().unwrap());
    });
    mount.writeback.stop();
    assert_eq!(mount.writeback.bytes(), file.dirty_bytes());
}

#[test]
fn a_writer_is_refused_where_nothing_can_be_written() {
    let (mount, _begun) = mount(None);
    let file = inode(1);
    mount.full.store(true, Ordering::SeqCst);
    assert!(write(&mount, &file, 900));
    while write(&mount, &file, 200) {}
    mount.writeback.stop();
    assert_eq!(mount.writeback.bytes(), 900);
    assert_eq!(mount.writeback.active().len(), 1);
}

#[test]
fn old_data_is_written_back() {
    let (mount, begun) = mount(Some(Duration::ZERO));
    let file = inode(7);
    assert!(write(&mount, &file, 1));
    assert_eq!(begun.recv(), Ok(7));
    mount.writeback.stop();
    assert!(file.is_idle() && mount.writeback.active().is_empty());
}

#[test]
fn a_discard_includes_data_that_became_dirty_again() {
    let (mount, _begun) = mount(None);
    let file = inode(1);
    assert!(write(&mount, &file, 100));
    file.dirty.store(60, Ordering::SeqCst);
    file.in_flight.store(40, Ordering::SeqCst);
    let take = || file.dirty.swap(0, Ordering::SeqCst);
    let wait = || {
        let refused = file.in_flight.swap(0, Ordering::SeqCst);
        file.dirty.store(refused, Ordering::SeqCst);
        refused == 0
    };
    mount.writeback.discard(&file, take, wait);
    mount.writeback.stop();
    assert_eq!(mount.writeback.bytes(), 0);
    assert!(file.is_idle() && mount.writeback.active().is_empty());
}

#[test]
fn work_after_the_end_runs_in_the_caller() {
    let (mount, _begun) = mount(None);
    let file = inode(1);
    mount.writeback.start(&mount);
    mount.writeback.stop();
    assert!(write(&mount, &file, 100));
    mount.begin(std::slice::from_ref(&file));
    assert!(file.is_idle());
    assert_eq!(mount.writeback.bytes(), 0);
}

#[test]
fn the_engine_may_be_dropped_in_a_thread() {
    let (mount, begun) = mount(Some(Duration::from_secs(3600)));
    let file = inode(1);
    // The first write asks for writeback before its bytes are there.
    assert!(write(&mount, &file, 600) && write(&mount, &file, 1));
    assert_eq!(begun.recv(), Ok(1));
    let weak = Arc::downgrade(&mount);
    drop(mount);
    while weak.upgrade().is_some() {
        thread::yield_now();
    }
}
