//! Makes a failing workload smaller.

use std::collections::BTreeSet;

use crate::cut::Depth;
use crate::explore::{Found, explore};
use crate::record::{Setting, Workload};
use crate::subject::Subject;
use crate::threads::Threads;
use sapwood_testing::op::Op;

/// Greatest number of runs.
const PATIENCE: usize = 400;

/// The smallest workload that still fails. Operations are left out one by one, and numbers are
/// rounded. It may fail with another symptom of the same cause.
#[must_use]
pub fn shrink(found: Found, setting: &Setting, depth: Depth) -> Found {
    let mut best = found;
    let mut tried: BTreeSet<Subject> = BTreeSet::new();
    loop {
        let candidates = smaller(&best.subject);
        let better = candidates.into_iter().find_map(|candidate| {
            if tried.len() >= PATIENCE || !tried.insert(candidate.clone()) {
                return None;
            }
            let mut attempts = 0..candidate.attempts();
            let failed = attempts.find_map(|_| explore(&candidate, setting, depth).1.err())?;
            // A workload that does not run at all is not the failure to shrink.
            (failed.failure.cut.is_some() || best.failure.cut.is_none()).then_some(failed)
        });
        match better {
            Some(better) => best = better,
            None => return best,
        }
    }
}

fn smaller(subject: &Subject) -> Vec<Subject> {
    match subject {
        Subject::Sequence(workload) => shorter(workload).into_iter().map(Subject::from).collect(),
        Subject::Trims(workload) => shorter(workload).into_iter().map(Subject::Trims).collect(),
        Subject::Reshape(reshape) => reshape.shorter().into_iter().map(Subject::from).collect(),
        Subject::Race(race) => {
            let mut all = Vec::new();
            for (thread, plan) in race.plans.iter().enumerate() {
                for index in 0..plan.len() {
                    let mut less = race.clone();
                    if let Some(plan) = less.plans.get_mut(thread) {
                        plan.remove(index);
                    }
                    less.plans.retain(|plan| !plan.is_empty());
                    all.push(less.into());
                }
            }
            all
        }
        Subject::Again(again) => (0..again.ops.len())
            .map(|index| {
                let mut less = again.clone();
                less.ops.remove(index);
                less.into()
            })
            .collect(),
        Subject::Threads(threads) => {
            let fewer = |lanes, ops| {
                Subject::from(Threads {
                    lanes,
                    ops,
                    ..*threads
                })
            };
            let mut all = Vec::new();
            if threads.lanes > 1 {
                all.push(fewer(threads.lanes - 1, threads.ops));
            }
            if threads.ops > 1 {
                all.push(fewer(threads.lanes, threads.ops / 2));
                all.push(fewer(threads.lanes, threads.ops - 1));
            }
            all
        }
    }
}

fn shorter(workload: &Workload) -> Vec<Workload> {
    let mut all = Vec::new();
    for index in (0..workload.ops.len()).rev() {
        let mut less = workload.clone();
        less.ops.remove(index);
        all.push(less);
    }
    for (index, op) in workload.ops.iter().enumerate() {
        for simpler in simpler(op) {
            let mut less = workload.clone();
            if let Some(op) = less.ops.get_mut(index) {
                *op = simpler;
            }
            all.push(less);
        }
    }
    all
}

fn simpler(op: &Op) -> Vec<Op> {
    const BLOCK: u64 = 4096;
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Op)| {
        let mut simpler = op.clone();
        change(&mut simpler);
        all.push(simpler);
    };
    match *op {
        Op::Write { offset, len, .. } => {
            for (at, less) in [(0, len), (offset, BLOCK), (offset / BLOCK * BLOCK, len)] {
                add(&|op| {
                    if let Op::Write { offset, len, .. } = op {
                        (*offset, *len) = (at, less);
                    }
                });
            }
        }
        Op::Append { len, .. } | Op::Filled { len, .. } | Op::SetXattr { len, .. } => {
            let least = match op {
                Op::SetXattr { .. } => 1,
                _ => len.min(BLOCK),
            };
            add(&|op| {
                if let Op::Append { len, .. } | Op::Filled { len, .. } | Op::SetXattr { len, .. } =
                    op
                {
                    *len = least.min(*len);
                }
            });
        }
        Op::Fsync { .. } | Op::Fdatasync { .. } => all.push(Op::Sync {}),
        _ => {}
    }
    all.retain(|simpler| simpler != op);
    all
}
