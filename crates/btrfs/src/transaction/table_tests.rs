//! The state machine alone: which thread enters, waits, or shares a commit.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use super::state::{HandlePurpose, State};
use super::table::{Transaction, Transactions, Turn};
use crate::Error;
use sapwood_base::Health;

struct Rig {
    all: Transactions,
    health: Health,
}

/// What a thread reports when it is through.
type Report<T> = Receiver<T>;

impl Rig {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            all: Transactions::new(10),
            health: Health::new(false),
        })
    }

    fn enter(&self, entry: HandlePurpose) -> Arc<Transaction> {
        self.all.enter(&self.health, entry).unwrap()
    }

    fn changed(&self) -> Arc<Transaction> {
        let trans = self.enter(HandlePurpose::Start);
        self.all.mark_dirty(&trans);
        trans
    }

    fn claim(&self) -> Arc<Transaction> {
        match self.turn() {
            Ok(Turn::Commit(trans)) => trans,
            _ => panic!("not to be claimed"),
        }
    }

    fn turn(&self) -> crate::Result<Turn> {
        match self.all.target(&self.health, None)? {
            Some(target) => self.all.turn(&self.health, target, State::SuperWritten),
            None => Ok(Turn::Done),
        }
    }

    fn finish(&self, trans: &Arc<Transaction>) {
        while trans.state() != State::Completed {
            let next = State::from_u8(trans.state() as u8 + 1);
            self.all.advance(trans, next);
        }
    }

    /// Runs `work` in a thread; the report arrives when it is through.
    fn spawn<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> T + Send + 'static,
    ) -> Report<T> {
        let (send, receive) = channel();
        let rig = self.clone();
        thread::spawn(move || {
            let _ = send.send(work(&rig));
        });
        receive
    }

    /// Waits until `n` threads sleep in the table.
    fn wait_asleep(&self, n: usize) {
        while self.all.sleepers() < n {
            thread::yield_now();
        }
    }
}

fn got<T>(report: &Report<T>) -> T {
    report.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn handles_share_the_running_transaction() {
    let rig = Rig::new();
    let (a, b) = (
        rig.enter(HandlePurpose::Start),
        rig.enter(HandlePurpose::Join),
    );
    assert!(Arc::ptr_eq(&a, &b));
    assert_eq!(a.transid, 11);
}

#[test]
fn nothing_changed_nothing_committed() {
    let rig = Rig::new();
    let trans = rig.enter(HandlePurpose::Start);
    rig.all.leave(&trans, HandlePurpose::Start);
    assert!(matches!(rig.turn(), Ok(Turn::Done)));
    assert_eq!(trans.state(), State::Running);
}

#[test]
fn a_commit_waits_for_starters_then_pins_then_joiners() {
    let rig = Rig::new();
    let trans = rig.changed();
    rig.all.pin(&trans);
    let claimed = rig.claim();
    let joiner = rig.enter(HandlePurpose::Join);
    let committer = {
        let trans = trans.clone();
        rig.spawn(move |rig| {
            rig.all.drain_starters(&trans, || ());
            rig.all.advance(&trans, State::CommitDoing);
        })
    };
    rig.wait_asleep(1);
    assert_eq!(claimed.state(), State::CommitStart);
    rig.all.leave(&trans, HandlePurpose::Start);
    rig.wait_asleep(1);
    assert_eq!(claimed.state(), State::CommitStart);
    rig.all.unpin(&trans);
    while claimed.state() != State::CommitDoing {
        thread::yield_now();
    }
    rig.wait_asleep(1);
    assert!(committer.try_recv().is_err());
    rig.all.leave(&joiner, HandlePurpose::Join);
    got(&committer);
}

#[test]
fn starters_and_joiners_wait_until_unblocked_and_get_the_next() {
    let rig = Rig::new();
    let trans = rig.changed();
    rig.all.leave(&trans, HandlePurpose::Start);
    let claimed = rig.claim();
    let starter = rig.spawn(|rig| rig.enter(HandlePurpose::Start).transid);
    rig.wait_asleep(1);
    let joiner = rig.enter(HandlePurpose::Join);
    assert_eq!(joiner.transid, 11, "a joiner enters at commit start");
    rig.all.leave(&joiner, HandlePurpose::Join);
    rig.all.advance(&claimed, State::CommitDoing);
    let late_joiner = rig.spawn(|rig| rig.enter(HandlePurpose::Join).transid);
    rig.wait_asleep(2);
    assert_eq!(rig.enter(HandlePurpose::Commit).transid, 11);
    rig.all.advance(&claimed, State::Unblocked);
    assert_eq!((got(&starter), got(&late_joiner)), (12, 12));
    assert_eq!(rig.all.last_committed(), 10);
}

#[test]
fn callers_who_come_together_share_one_commit() {
    let rig = Rig::new();
    let trans = rig.changed();
    rig.all.leave(&trans, HandlePurpose::Start);
    let claimed = rig.claim();
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            rig.spawn(|rig| {
                let turn = rig.turn();
                matches!(turn, Ok(Turn::Done))
            })
        })
        .collect();
    rig.wait_asleep(4);
    rig.finish(&claimed);
    assert!(waiters.iter().all(got));
    assert_eq!(rig.all.last_committed(), 11);
}

#[test]
fn only_one_commit_at_a_time() {
    let rig = Rig::new();
    let trans = rig.changed();
    rig.all.leave(&trans, HandlePurpose::Start);
    let first = rig.claim();
    rig.all.advance(&first, State::CommitDoing);
    rig.all.advance(&first, State::Unblocked);
    let next = rig.changed();
    rig.all.leave(&next, HandlePurpose::Start);
    assert_eq!(next.transid, 12);
    let second = rig.spawn(|rig| rig.claim().transid);
    rig.wait_asleep(1);
    assert_eq!(next.state(), State::Running, "still takes handles");
    rig.all.advance(&first, State::SuperWritten);
    rig.all.advance(&first, State::Completed);
    assert_eq!(got(&second), 12);
}

#[test]
fn a_failed_commit_wakes_everybody_with_an_error() {
    let rig = Rig::new();
    let trans = rig.changed();
    rig.all.leave(&trans, HandlePurpose::Start);
    let claimed = rig.claim();
    let starter = rig.spawn(|rig| rig.all.enter(&rig.health, HandlePurpose::Start).is_err());
    let waiter = rig.spawn(|rig| rig.turn().is_err());
    rig.wait_asleep(2);
    rig.health.fail(&Error::NoDevice);
    rig.all.fail(&claimed);
    assert!(got(&starter) && got(&waiter));
    assert_eq!(rig.all.last_committed(), 10);
    let older = rig.all.turn(&rig.health, 10, State::SuperWritten);
    assert!(matches!(older, Ok(Turn::Done)), "what was durable stays so");
}

#[test]
fn the_committer_sleeps_until_something_changed_or_is_asked_for() {
    let rig = Rig::new();
    let due = rig.spawn(|rig| rig.all.wait_due(Duration::ZERO));
    rig.wait_asleep(1);
    assert!(due.try_recv().is_err());
    rig.changed();
    assert!(got(&due));
    let hour = Duration::from_secs(3600);
    let due = rig.spawn(move |rig| rig.all.wait_due(hour));
    rig.wait_asleep(1);
    rig.all.request_commit();
    assert!(got(&due));
    let due = rig.spawn(move |rig| rig.all.wait_due(hour));
    rig.wait_asleep(1);
    rig.all.stop();
    assert!(!got(&due));
}

#[test]
#[should_panic(expected = "Unblocked")]
fn a_step_may_not_be_left_out() {
    let rig = Rig::new();
    rig.changed();
    let claimed = rig.claim();
    rig.all.advance(&claimed, State::Unblocked);
}
