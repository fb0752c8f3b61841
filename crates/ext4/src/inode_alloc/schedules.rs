//! The claim of an inode under a scheduler that decides every step: the next thread at each atomic
//! access, lock and wait. Schedules come from seeds, so a failure repeats. Random ones show the
//! common orders; PCT schedules have few, unlikely switches, and find errors that need a certain
//! order.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::AtomicU64;
use shuttle::sync::{Mutex, MutexGuard};
use shuttle::{Config, Runner, thread};

use super::claim::{Bits, Locked, Pool, claim};
use crate::counters::AllocCounters;

/// A group of the store; its lock and atomics belong to the scheduler.
struct Group {
    words: Vec<AtomicU64>,
    lock: Mutex<()>,
}

impl Group {
    /// A group whose bitmap has these words.
    fn new(words: &[u64]) -> Self {
        Self {
            words: words.iter().map(|word| AtomicU64::new(*word)).collect(),
            lock: Mutex::new(()),
        }
    }

    fn clear(&self, bit: u32) {
        let _held = self.lock.lock().unwrap();
        let word = &self.words[(bit / 64) as usize];
        word.store(
            word.load(Ordering::Relaxed) & !(1 << (bit % 64)),
            Ordering::Release,
        );
    }

    fn free(&self) -> u32 {
        let words = self.words.iter();
        words
            .map(|word| word.load(Ordering::Acquire).count_zeros())
            .sum()
    }
}

/// A group in the hands of one claim.
struct Claiming<'a> {
    group: &'a Group,
    has_access: Cell<bool>,
}

impl Bits for Claiming<'_> {
    fn used(&self, index: u32) -> u64 {
        self.group.words[index as usize].load(Ordering::Acquire)
    }
    fn recent(&self, _index: u32) -> u64 {
        0
    }
}

struct Guard<'a>(&'a Group, #[allow(dead_code)] MutexGuard<'a, ()>);

impl Bits for Guard<'_> {
    fn used(&self, index: u32) -> u64 {
        self.0.words[index as usize].load(Ordering::Acquire)
    }
    fn recent(&self, _index: u32) -> u64 {
        0
    }
}

impl Locked for Guard<'_> {
    type Error = Infallible;

    /// A load and a store: only the lock makes it one step, as in the store, where the bitmap block
    /// is changed too.
    fn test_and_set(&mut self, bit: u32) -> Result<bool, Infallible> {
        let word = &self.0.words[(bit / 64) as usize];
        let before = word.load(Ordering::Relaxed);
        word.store(before | 1 << (bit % 64), Ordering::Release);
        Ok(before >> (bit % 64) & 1 == 0)
    }
}

impl Pool for Claiming<'_> {
    type Error = Infallible;
    type Guard<'a>
        = Guard<'a>
    where
        Self: 'a;

    fn access(&self) -> Result<(), Infallible> {
        if !self.has_access.replace(true) {
            // A wait for a commit: other threads may continue meanwhile.
            thread::yield_now();
        }
        Ok(())
    }

    fn lock(&self) -> Guard<'_> {
        Guard(self.group, self.group.lock.lock().unwrap())
    }
}

/// The result of one claim, and the number of lost races.
struct Outcome {
    bit: Option<u32>,
    lost: u64,
    second: u64,
}

fn claim_one(group: &Group, start: u32) -> Outcome {
    let counters = AllocCounters::default();
    let span = 0..group.words.len() as u32 * 64;
    let claiming = Claiming {
        group,
        has_access: Cell::new(false),
    };
    let Ok(claimed) = claim(&claiming, &span, start, &counters);
    Outcome {
        bit: claimed.map(|(_held, bit)| bit),
        lost: counters.lost_races.load(Ordering::Relaxed),
        second: counters.second_searches.load(Ordering::Relaxed),
    }
}

/// Runs the body under random and PCT schedules.
fn schedules(seed: u64, iterations: usize, body: impl Fn() + Send + Sync + 'static) {
    let body = Arc::new(body);
    let schedulers: [Box<dyn Scheduler + Send>; 2] = [
        Box::new(RandomScheduler::new_from_seed(seed, iterations)),
        Box::new(PctScheduler::new_from_seed(seed, 4, iterations)),
    ];
    for scheduler in schedulers {
        let body = Arc::clone(&body);
        Runner::new(scheduler, Config::new()).run(move || body());
    }
}

/// Threads that claim `each` inodes from places of their own. All outcomes.
fn race(group: &Arc<Group>, starts: &[u32], each: u32) -> Vec<Outcome> {
    let threads: Vec<_> = starts
        .iter()
        .map(|start| {
            let (group, start) = (Arc::clone(group), *start);
            thread::spawn(move || {
                let one = |_| claim_one(&group, start);
                (0..each).map(one).collect::<Vec<_>>()
            })
        })
        .collect();
    threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect()
}

fn assert_no_bit_twice(outcomes: &[Outcome]) -> usize {
    let given: Vec<u32> = outcomes.iter().filter_map(|outcome| outcome.bit).collect();
    let distinct: BTreeSet<u32> = given.iter().copied().collect();
    assert_eq!(distinct.len(), given.len(), "given twice: {given:?}");
    given.len()
}

#[test]
fn no_inode_is_given_twice_and_a_group_is_left_only_when_it_is_full() {
    schedules(1, 1500, || {
        // 9 claims, 7 free inodes.
        let group = Arc::new(Group::new(&[!0b111_1000_0111, !0]));
        let outcomes = race(&group, &[0, 0, 64], 3);
        assert_eq!(assert_no_bit_twice(&outcomes), 7);
        assert_eq!(group.free(), 0);
    });
}

#[test]
fn the_second_search_ends_a_claim_after_one_lost_race() {
    schedules(2, 3000, || {
        let group = Arc::new(Group::new(&[0]));
        let outcomes = race(&group, &[0; 5], 2);
        assert_eq!(assert_no_bit_twice(&outcomes), 10);
        for outcome in outcomes {
            assert!(outcome.lost <= 1, "lost {} races", outcome.lost);
            assert_eq!(outcome.second, outcome.lost);
        }
    });
}

#[test]
fn threads_that_search_from_places_of_their_own_do_not_meet() {
    schedules(4, 500, || {
        let group = Arc::new(Group::new(&[0; 4]));
        let outcomes = race(&group, &[0, 64, 128, 192], 3);
        assert_eq!(assert_no_bit_twice(&outcomes), 12);
        assert!(outcomes.iter().all(|outcome| outcome.lost == 0));
    });
}

#[test]
fn an_inode_freed_meanwhile_is_found_by_the_second_search() {
    schedules(5, 3000, || {
        // One is free, one is freed while two threads claim: both may get one, at least one does.
        let group = Arc::new(Group::new(&[!1]));
        let freer = {
            let group = Arc::clone(&group);
            thread::spawn(move || group.clear(7))
        };
        let outcomes = race(&group, &[0, 0], 1);
        freer.join().unwrap();
        let given = assert_no_bit_twice(&outcomes);
        assert_eq!(given as u32 + group.free(), 2);
        assert!(given >= 1);
    });
}

/// Lost races of all claims, and the most of one, over some schedules.
fn measure(threads: u32, apart: bool) -> (u64, u64) {
    let sum = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let most = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (to_sum, to_most) = (Arc::clone(&sum), Arc::clone(&most));
    schedules(6, MEASURED, move || {
        let group = Arc::new(Group::new(&vec![0; threads as usize]));
        let starts: Vec<u32> = (0..threads)
            .map(|n| if apart { n * 64 } else { 0 })
            .collect();
        let outcomes = race(&group, &starts, EACH);
        assert_eq!(assert_no_bit_twice(&outcomes) as u32, threads * EACH);
        for outcome in outcomes {
            to_sum.fetch_add(outcome.lost, Ordering::Relaxed);
            to_most.fetch_max(outcome.lost, Ordering::Relaxed);
        }
    });
    (sum.load(Ordering::Relaxed), most.load(Ordering::Relaxed))
}

/// Schedules of each kind in [`measure`], and claims of a thread.
const MEASURED: usize = 20;
const EACH: u32 = 4;

/// Prints the lost races per create (`--nocapture`) of threads that search from one place, and from
/// places of their own; the same schedules for both.
#[test]
fn lost_races_per_create() {
    println!("threads  one place: per create, most  places of their own: per create, most");
    for threads in [2, 8, 24, 48] {
        let creates = f64::from(threads * EACH) * (2 * MEASURED) as f64;
        let (together, most) = measure(threads, false);
        let (apart, apart_most) = measure(threads, true);
        println!(
            "{threads:7}  {:20.3}, {most:4}  {:30.3}, {apart_most:4}",
            together as f64 / creates,
            apart as f64 / creates,
        );
        assert!(most <= 1 && apart == 0);
    }
}
