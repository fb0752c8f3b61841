//! The orders that explain the calls of threads on the same names, and the states that a crash may
//! leave.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use sapwood_block::MemoryDevice;
use sapwood_crash::engine::Format;
use sapwood_crash::oracle::Oracle;
use sapwood_crash::orders::{Call, Orders, find, target_of};
use sapwood_crash::record::Progress;
use sapwood_testing::op::{Op, Session, from_text};
use sapwood_testing::tree::{Detail, Tree};
use sapwood_testing::{MemoryFs, RecordDevice};
use sapwood_vfs::{Error, FileSystem, Ino};

/// The calls of threads on `d/f` and `d/g`: begins and ends in their order, `0+` and `0-` for
/// thread 0.
struct Story {
    start: Tree,
    opened: BTreeMap<String, Ino>,
    calls: Vec<Vec<Call>>,
    marks: &'static str,
}

impl Story {
    fn new(threads: &[&str], marks: &'static str) -> Self {
        let model = MemoryFs::new();
        perform(&model, "mkdir d; creat d/f; write d/f 0 1000 1; creat d/g");
        let start = Tree::of(&model, Detail::Bytes).unwrap();
        let opened = start.paths();
        let call = |op: &Op| {
            let target = target_of(op).and_then(|target| opened.get(&target.to_string()));
            Call::new(op, None, target.copied(), Ok(None))
        };
        let calls = threads.iter().map(|text| from_text(text).unwrap());
        let calls = calls.map(|ops| ops.iter().map(call).collect()).collect();
        Self {
            start,
            opened,
            calls,
            marks,
        }
    }

    fn result(mut self, thread: usize, number: usize, result: Result<Option<Ino>, Error>) -> Self {
        self.calls[thread][number].result = result;
        self
    }

    /// The orders that end with the tree of these operations.
    fn ending(&self, ops: &str) -> Result<Orders, String> {
        let device = RecordDevice::new(MemoryDevice::new(4096));
        for mark in self.marks.split_whitespace() {
            let (thread, what) = mark.split_at(1);
            let what = if what == "+" { "b" } else { "e" };
            device.mark(format!("{what}{thread}"));
        }
        let (start, opened) = (self.start.clone(), self.opened.clone());
        let calls = self.calls.clone();
        let log = device.take_log();
        find(Format::Btrfs, start, self.after(ops), opened, calls, &log)
    }

    fn after(&self, ops: &str) -> Tree {
        let model = MemoryFs::new();
        perform(&model, "mkdir d; creat d/f; write d/f 0 1000 1; creat d/g");
        perform(&model, ops);
        Tree::of(&model, Detail::Bytes).unwrap()
    }

    /// The mistakes in a crash state that has the tree of these operations.
    fn crash(&self, orders: &Orders, ops: &str, progress: &[(usize, usize)]) -> Vec<String> {
        let mut tree = self.after(ops);
        for node in tree.nodes.values_mut() {
            node.times = None;
        }
        let lanes = orders.orders.iter().map(|order| Oracle::new(&order.lane));
        let oracles: Vec<Oracle<'_>> = lanes.collect();
        let progress = progress.iter();
        let progress: Vec<Progress> = progress
            .map(|(done, begun)| Progress {
                done: *done,
                begun: *begun,
            })
            .collect();
        orders.judge(&oracles, &tree, &progress).unwrap()
    }
}

fn perform(model: &MemoryFs, ops: &str) {
    let mut actor = Session::new(model, model.root());
    for op in from_text(ops).unwrap() {
        actor.perform(&op).unwrap();
    }
}

const APPENDS: [&str; 2] = ["append d/f 100 5", "append d/f 200 6"];

#[test]
fn calls_beside_each_other_may_have_any_order() {
    let story = Story::new(&APPENDS, "0+ 1+ 0- 1-");
    for end in [
        "append d/f 100 5; append d/f 200 6",
        "append d/f 200 6; append d/f 100 5",
    ] {
        assert_eq!(story.ending(end).unwrap().orders.len(), 1);
    }
    let lost = story.ending("append d/f 200 6");
    assert!(lost.unwrap_err().contains("no order of the calls"));
}

#[test]
fn a_call_that_returned_before_another_began_comes_first() {
    let story = Story::new(&APPENDS, "0+ 0- 1+ 1-");
    assert!(story.ending("append d/f 100 5; append d/f 200 6").is_ok());
    assert!(story.ending("append d/f 200 6; append d/f 100 5").is_err());
}

#[test]
fn results_have_to_fit_an_order() {
    let unlinks = || Story::new(&["unlink d/f", "unlink d/f"], "0+ 1+ 0- 1-");
    assert!(
        unlinks().ending("unlink d/f").is_err(),
        "both cannot succeed"
    );
    let one = unlinks().result(1, 0, Err(Error::NotFound));
    assert!(one.ending("unlink d/f").is_ok());
    let none = one.result(0, 0, Err(Error::NotFound));
    assert!(none.ending("").is_err(), "one of them must succeed");
    let other = unlinks().result(1, 0, Err(Error::Exists));
    assert!(
        other.ending("unlink d/f").is_err(),
        "an error with no cause"
    );
}

#[test]
fn an_fsync_promises_what_had_returned_when_it_began() {
    let threads = ["append d/f 100 5; fsync d/f", "append d/f 200 6"];
    let story = Story::new(&threads, "0+ 0- 0+ 1+ 1- 0-");
    let orders = story.ending("append d/f 100 5; append d/f 200 6").unwrap();
    let both = [(2, 2), (1, 1)];
    assert!(!story.crash(&orders, "", &both).is_empty());
    assert!(
        story.crash(&orders, "", &[(1, 2), (1, 1)]).is_empty(),
        "it had not returned"
    );
    assert!(story.crash(&orders, "append d/f 100 5", &both).is_empty());
    assert!(
        story
            .crash(&orders, "append d/f 100 5; append d/f 200 6", &both)
            .is_empty()
    );
    // The second append had not begun.
    let early = [(2, 2), (0, 0)];
    let crash = story.crash(&orders, "append d/f 100 5; append d/f 200 6", &early);
    assert!(!crash.is_empty());
}

#[test]
fn an_fsync_beside_the_last_unlink_promises_nothing() {
    let threads = ["append d/f 100 5; fsync d/f", "unlink d/f"];
    let beside = Story::new(&threads, "0+ 0- 0+ 1+ 1- 0-");
    let orders = beside.ending("unlink d/f").unwrap();
    assert!(beside.crash(&orders, "", &[(2, 2), (1, 1)]).is_empty());
    let after = Story::new(&threads, "0+ 0- 0+ 0- 1+ 1-");
    let orders = after.ending("unlink d/f").unwrap();
    assert!(!after.crash(&orders, "", &[(2, 2), (1, 1)]).is_empty());
}

#[test]
fn an_fsync_beside_a_rename_may_have_seen_the_names_after_it() {
    // The file moves over the other one and back.
    let threads = ["rename d/f d/g; fsync d/f", "rename d/g d/f"];
    let end = "rename d/f d/g; rename d/g d/f";
    let all = [(2, 2), (1, 1)];
    let beside = Story::new(&threads, "0+ 0- 0+ 1+ 1- 0-");
    let orders = beside.ending(end).unwrap();
    for durable in ["", "rename d/f d/g", end] {
        assert_eq!(beside.crash(&orders, durable, &all), [""; 0], "{durable}");
    }
    let after = Story::new(&threads, "0+ 0- 0+ 0- 1+ 1-");
    let orders = after.ending(end).unwrap();
    assert!(!after.crash(&orders, "", &all).is_empty());
}

#[test]
fn a_crash_has_to_fit_one_order_as_a_whole() {
    // The rename moved the file that was there; the other thread's file was created later, or
    // replaced.
    let threads = ["rename d/g d/f", "append d/f 100 5; append d/f 200 6"];
    let story = Story::new(&threads, "0+ 1+ 1- 1+ 1- 0-");
    let orders = story
        .ending("append d/f 100 5; append d/f 200 6; rename d/g d/f")
        .unwrap();
    assert_eq!(orders.orders.len(), 3);
    let all = [(1, 1), (2, 2)];
    assert!(story.crash(&orders, "append d/f 100 5", &all).is_empty());
    assert!(story.crash(&orders, "rename d/g d/f", &all).is_empty());
    let lost = story.crash(&orders, "append d/f 300 7", &all);
    assert!(!lost.is_empty());
}
