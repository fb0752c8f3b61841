//! [`Orders`]: the possible orders of the calls of several threads.
//!
//! # How it works
//! Each call takes effect at one moment between its begin and its return. Three conditions make an
//! order of all changing calls possible:
//!
//! - A call that had returned before another began comes before it.
//! - A plain model ([`step`]) that performs the calls in this order has every result that the
//!   engine returned.
//! - The model ends with the tree that the engine had at the end.
//!
//! All possible orders are searched, up to a limit. If there is none, the engine is not atomic,
//! which is a failure of its own.
//!
//! An fsync is not a change. In each order its guarantee is about the first state with all calls
//! that had returned when the fsync began: concurrent calls may or may not be durable. If a
//! concurrent call changes the names of the inode, the fsync may also have seen the names of a
//! later state, and each such state gives an order of its own. If the inode may have lost its last
//! name during the fsync, the fsync guarantees nothing.
//!
//! After a crash, the last possible state is the one before the first call in the order that had
//! not begun.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use sapwood_testing::op::{Op, Target};
use sapwood_testing::tree::Tree;
use sapwood_testing::{RecordLog, Step};
use sapwood_vfs::{Error, Ino};

use crate::engine::Format;
use crate::oracle::{Moment, Oracle};
use crate::record::{BEGIN, END, Lane, Progress, Promise};
use crate::step::step;

/// Limit of orders. A workload with more is checked with these orders; a crash that fits none of
/// them counts as undecided.
const MOST: usize = 128;

/// One call of the engine.
#[derive(Debug, Clone)]
pub struct Call {
    /// The operation.
    pub op: Op,
    /// The inode that it changes, by [`target_of`].
    pub target: Option<Ino>,
    /// Its result: the inode that it created, if it creates one.
    pub result: Result<Option<Ino>, Error>,
}

impl Call {
    /// True if the engine was not called, because `@0` is still empty.
    #[must_use]
    pub fn new(
        op: &Op,
        created: Option<Ino>,
        target: Option<Ino>,
        result: Result<Option<Ino>, Error>,
    ) -> Self {
        let target = match target_of(op) {
            Some(Target::Held(_)) => created,
            _ => target,
        };
        Self {
            op: op.clone(),
            target,
            result,
        }
    }

    fn promise(&self) -> Promise {
        match (&self.op, self.target, &self.result) {
            (Op::Sync {}, _, Ok(_)) => Promise::All,
            (Op::Fsync { .. }, Some(ino), Ok(_)) => Promise::Inode(ino),
            (Op::Fdatasync { .. }, Some(ino), Ok(_)) => Promise::Data(ino),
            _ => Promise::Nothing,
        }
    }
}

/// The inode that an operation changes, apart from names.
#[must_use]
pub fn target_of(op: &Op) -> Option<&Target> {
    match op {
        Op::Write { file, .. } | Op::Append { file, .. } | Op::Truncate { file, .. } => Some(file),
        Op::Link { from, .. } => Some(from),
        Op::SetXattr { on, .. }
        | Op::RemoveXattr { on, .. }
        | Op::Chmod { on, .. }
        | Op::Fsync { on }
        | Op::Fdatasync { on } => Some(on),
        _ => None,
    }
}

/// Thread and number of a call.
type Id = (usize, usize);

/// One possible order.
#[derive(Debug)]
pub struct Order {
    /// Its states and promises.
    pub lane: Lane,
    /// The call of each entry of the lane, and true if it changes something.
    calls: Vec<(Id, bool)>,
}

impl Order {
    /// The moment of a crash in this order, given the progress of each thread.
    #[must_use]
    pub fn moment(&self, progress: &[Progress]) -> Moment {
        let of = |(thread, _): &Id| {
            let none = Progress { done: 0, begun: 0 };
            progress.get(*thread).copied().unwrap_or(none)
        };
        let calls = self.calls.iter();
        let not_begun = |(id, changes): &(Id, bool)| *changes && of(id).begun <= id.1;
        let last = calls.clone().position(not_begun);
        let returned = calls.enumerate().filter(|(_, (id, _))| id.1 < of(id).done);
        Moment {
            returned: returned.map(|(index, _)| index).collect(),
            last: last.unwrap_or(self.calls.len()),
        }
    }
}

/// The known facts of a race.
#[derive(Debug)]
pub struct Orders {
    /// Number of threads.
    pub threads: usize,
    /// Possible orders; at least one.
    pub orders: Vec<Order>,
    /// True if these are all orders.
    pub complete: bool,
}

impl Orders {
    /// The mistakes of a recovered tree in the order that fits it best, with one oracle for each
    /// order; `None` if this cannot be decided.
    #[must_use]
    pub fn judge(
        &self,
        oracles: &[Oracle<'_>],
        tree: &Tree,
        progress: &[Progress],
    ) -> Option<Vec<String>> {
        let all = self.orders.iter().zip(oracles);
        let mut best: Option<Vec<String>> = None;
        for (order, oracle) in all {
            let wrong = oracle.judge_at(tree, &order.moment(progress));
            if wrong.is_empty() {
                return Some(wrong);
            }
            if best.as_ref().is_none_or(|best| wrong.len() < best.len()) {
                best = Some(wrong);
            }
        }
        best.filter(|_| self.complete)
    }
}

/// Finds the orders of the threads' calls that lead from the tree `start` to the tree `end`.
///
/// # Errors
/// That there is no such order.
pub fn find(
    engine: Format,
    start: Tree,
    end: Tree,
    opened: BTreeMap<String, Ino>,
    calls: Vec<Vec<Call>>,
    log: &RecordLog,
) -> Result<Orders, String> {
    let timeless = |mut tree: Tree| {
        for node in tree.nodes.values_mut() {
            node.times = None;
        }
        tree
    };
    let mut search = Search {
        opened,
        spans: spans(log, calls.len()),
        changes: calls
            .iter()
            .map(|calls| {
                let numbers = calls.iter().enumerate();
                let changes = numbers.filter(|(_, call)| !call.op.persists());
                changes.map(|(number, _)| number).collect()
            })
            .collect(),
        calls,
        end: timeless(end),
        dead: HashSet::new(),
        path: Vec::new(),
        found: Vec::new(),
    };
    let start = timeless(start);
    let root = start.root;
    let mut at = vec![0; search.calls.len()];
    let complete = search.go(&mut at, &start);
    if search.found.is_empty() {
        return Err(search.unexplained());
    }
    let found = std::mem::take(&mut search.found);
    let paths = found.iter();
    let all = paths.flat_map(|path| search.orders(engine, root, &start, path));
    let mut orders: Vec<Order> = all.take(MOST + 1).collect();
    let complete = complete && orders.len() <= MOST;
    orders.truncate(MOST);
    Ok(Orders {
        threads: search.calls.len(),
        orders,
        complete,
    })
}

/// Begin and end of each call of each thread, as steps of the log.
fn spans(log: &RecordLog, threads: usize) -> Vec<Vec<(usize, usize)>> {
    let mut spans = vec![Vec::new(); threads];
    for (index, step) in log.steps().iter().enumerate() {
        let Step::Mark(mark) = step else { continue };
        let (what, thread) = mark.split_at(1);
        let thread = thread.parse().ok();
        let Some(spans) = thread.and_then(|thread: usize| spans.get_mut(thread)) else {
            continue;
        };
        match what {
            BEGIN => spans.push((index, usize::MAX)),
            END => {
                if let Some((_, end)) = spans.last_mut() {
                    *end = index;
                }
            }
            _ => {}
        }
    }
    spans
}

struct Search {
    opened: BTreeMap<String, Ino>,
    calls: Vec<Vec<Call>>,
    spans: Vec<Vec<(usize, usize)>>,
    /// Numbers of the calls of each thread that change something.
    changes: Vec<Vec<usize>>,
    end: Tree,
    /// Positions and states from which no order leads to the end.
    dead: HashSet<(Vec<usize>, u64)>,
    path: Vec<(Id, Tree)>,
    found: Vec<Vec<(Id, Tree)>>,
}

impl Search {
    fn span(&self, (thread, number): Id) -> (usize, usize) {
        let spans = self.spans.get(thread);
        let span = spans.and_then(|spans| spans.get(number));
        span.copied().unwrap_or((0, usize::MAX))
    }

    fn next(&self, at: &[usize], thread: usize) -> Option<Id> {
        let number = self.changes.get(thread)?.get(*at.get(thread)?)?;
        Some((thread, *number))
    }

    /// Continues from a state; false at the limit.
    fn go(&mut self, at: &mut Vec<usize>, state: &Tree) -> bool {
        let nexts: Vec<Id> = (0..at.len())
            .filter_map(|thread| self.next(at, thread))
            .collect();
        if nexts.is_empty() {
            if same(state, &self.end) {
                self.found.push(self.path.clone());
            }
            return self.found.len() < MOST;
        }
        let key = (at.clone(), digest(state));
        if self.dead.contains(&key) {
            return true;
        }
        let before = self.found.len();
        for id in &nexts {
            let begin = self.span(*id).0;
            if nexts.iter().any(|other| self.span(*other).1 < begin) {
                continue;
            }
            let call = self.calls.get(id.0).and_then(|calls| calls.get(id.1));
            let new = call.and_then(|call| step(state, call, &self.opened));
            let Some(new) = new else { continue };
            self.path.push((*id, new.clone()));
            if let Some(at) = at.get_mut(id.0) {
                *at += 1;
            }
            let more = self.go(at, &new);
            if let Some(at) = at.get_mut(id.0) {
                *at -= 1;
            }
            self.path.pop();
            if !more {
                return false;
            }
        }
        if self.found.len() == before {
            self.dead.insert(key);
        }
        true
    }

    /// The orders of a path: one for each choice of places of the calls that make something
    /// durable.
    fn orders(&self, engine: Format, root: Ino, start: &Tree, path: &[(Id, Tree)]) -> Vec<Order> {
        let mut choices: Vec<Vec<Persist>> = vec![Vec::new()];
        for (thread, calls) in self.calls.iter().enumerate() {
            for (number, call) in calls.iter().enumerate() {
                if !call.op.persists() {
                    continue;
                }
                let id = (thread, number);
                let begin = self.span(id).0;
                let before = path.iter().rposition(|(id, _)| self.span(*id).1 < begin);
                let first = before.map_or(0, |index| index + 1);
                let promise = if self.may_be_nameless(id, first, start, path) {
                    Promise::Nothing
                } else {
                    call.promise()
                };
                let places = self.places(id, promise, first, start, path);
                let with = |choice: &Vec<Persist>| {
                    let choice = choice.clone();
                    places.clone().into_iter().map(move |place| {
                        let mut choice = choice.clone();
                        choice.push((place, id, promise));
                        choice
                    })
                };
                choices = choices.iter().flat_map(with).take(MOST + 1).collect();
            }
        }
        let choices = choices.into_iter();
        let order = |choice| arranged(engine, root, start, path, choice);
        choices.map(order).collect()
    }

    /// The places that a call which makes something durable may have: `first`, and each state
    /// during the call in which the inode has other names than in the state before.
    fn places(
        &self,
        id: Id,
        promise: Promise,
        first: usize,
        start: &Tree,
        path: &[(Id, Tree)],
    ) -> Vec<usize> {
        let (Promise::Inode(ino) | Promise::Data(ino)) = promise else {
            return vec![first];
        };
        let end = self.span(id).1;
        let state = |place: usize| match place.checked_sub(1).and_then(|last| path.get(last)) {
            Some((_, state)) => state,
            None => start,
        };
        let beside = path.iter().enumerate().skip(first);
        let beside = beside.take_while(|(_, (other, _))| self.span(*other).0 < end);
        let other =
            beside.filter(|(index, (_, after))| names(after, ino) != names(state(*index), ino));
        let other = other.map(|(index, _)| index + 1);
        std::iter::once(first).chain(other).collect()
    }

    /// True if the inode that a call makes durable may have had no name at that time: it had none
    /// in one of the states between the begin of the call, at `place`, and its end.
    fn may_be_nameless(&self, id: Id, place: usize, start: &Tree, path: &[(Id, Tree)]) -> bool {
        let call = self.calls.get(id.0).and_then(|calls| calls.get(id.1));
        let Some(target) = call.and_then(|call| call.target) else {
            return false;
        };
        let end = self.span(id).1;
        let first = match place.checked_sub(1).and_then(|place| path.get(place)) {
            Some((_, state)) => state,
            None => start,
        };
        let beside = path.iter().skip(place);
        let beside = beside.take_while(|(other, _)| self.span(*other).0 < end);
        let mut states = beside.map(|(_, state)| state).chain([first]);
        states.any(|state| !state.nodes.contains_key(&target))
    }

    fn unexplained(&self) -> String {
        let mut lines =
            vec!["no order of the calls explains what they returned and left".to_owned()];
        let mut all: Vec<(usize, Id)> = Vec::new();
        for (thread, calls) in self.calls.iter().enumerate() {
            all.extend(
                (0..calls.len()).map(|number| (self.span((thread, number)).0, (thread, number))),
            );
        }
        all.sort_unstable();
        for (_, id) in all {
            let (begin, end) = self.span(id);
            if let Some(call) = self.calls.get(id.0).and_then(|calls| calls.get(id.1)) {
                let (op, result) = (&call.op, &call.result);
                lines.push(format!("{begin}-{end} thread {}: {op}: {result:?}", id.0));
            }
        }
        lines.push(format!("end: {:?}", self.end.paths()));
        lines.join("; ")
    }
}

/// Place, call and promise of a call that makes something durable.
type Persist = (usize, Id, Promise);

/// The order of a path with the calls that make something durable at their places.
fn arranged(
    engine: Format,
    root: Ino,
    start: &Tree,
    path: &[(Id, Tree)],
    mut persists: Vec<Persist>,
) -> Order {
    persists.sort_by_key(|(place, ..)| *place);
    let mut persists = persists.into_iter().peekable();
    let (mut states, mut promises) = (vec![start.clone()], Vec::new());
    let mut calls = Vec::new();
    let mut now = start.clone();
    for place in 0..=path.len() {
        while let Some((_, id, promise)) = persists.next_if(|(at, ..)| *at == place) {
            states.push(now.clone());
            promises.push(promise);
            calls.push((id, false));
        }
        if let Some((id, state)) = path.get(place) {
            now = state.clone();
            states.push(now.clone());
            promises.push(Promise::Nothing);
            calls.push((*id, true));
        }
    }
    let lane = Lane {
        engine,
        root,
        states,
        promises,
        shared: true,
        recovery: None,
    };
    Order { lane, calls }
}

/// The names of an inode: directory and name.
fn names(tree: &Tree, ino: Ino) -> Vec<(Ino, &[u8])> {
    let dirs = tree.nodes.iter();
    let names = dirs.flat_map(|(dir, node)| {
        let entries = node.entries.iter().filter(|(_, there)| **there == ino);
        entries.map(|(name, _)| (*dir, name.as_slice()))
    });
    names.collect()
}

/// True if two trees have the same names and the same inodes behind them.
fn same(state: &Tree, end: &Tree) -> bool {
    state.nodes.len() == end.nodes.len()
        && state.nodes.iter().all(|(ino, node)| {
            end.nodes.get(ino).is_some_and(|other| {
                node.entries == other.entries && node.differences(other, node.plain()).is_empty()
            })
        })
}

fn digest(state: &Tree) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (ino, node) in state.nodes.iter().chain(&state.nameless) {
        (ino, node.nlink, node.owner.perm).hash(&mut hasher);
        (&node.content, &node.xattrs, &node.entries).hash(&mut hasher);
    }
    hasher.finish()
}
