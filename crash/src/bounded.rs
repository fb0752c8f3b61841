//! Bounded black-box workloads: all sequences of one and of two operations over few names, each
//! followed by every way to make the touched inodes durable.
//!
//! A sequence with an operation that fails in the reference model is left out: without that
//! operation it equals a shorter sequence.

use std::collections::BTreeSet;

use fastrand::Rng;
use sapwood_testing::MemoryFs;
use sapwood_testing::op::{Op, Session, Target, from_text};
use sapwood_vfs::FileSystem;

use crate::base::{Base, BaseKind};
use crate::record::Workload;

/// The operations, over the names of [`crate::base::STANDARD`] and a few new ones. An operation
/// that fails at the beginning (the name is taken) can succeed as the second one (after the name
/// was renamed away).
const CHANGES: &str = "
    creat A/new; creat A/C/new; creat A/foo; creat A/bar; creat B/new;
    fill A/new 5000 T; fill A/C/new 8192 T; fill A/foo 100 T; fill B/new 9000 T;
    mkdir A/E; mkdir A/C; mkdir A/C/F; mkdir A/foo;
    write A/foo 4096 4096 T; write A/foo 3000 3000 T; write A/foo 28672 4096 T;
    write A/bar 0 200 T; write A/bar 0 9000 T; write B/foo 0 8192 T; write A/new 0 5000 T;
    append A/foo 5000 T; append A/bar 100 T; append A/two 4096 T; append A/new 100 T;
    falloc A/foo 20480 16384; falloc-keep A/foo 20480 16384; falloc A/bar 0 8192;
    punch A/foo 4096 8192; punch A/foo 16384 16384; punch A/foo 5000 200; punch B/foo 0 8192;
    zero A/foo 4096 8192; zero A/foo 16384 8192; zero-keep A/foo 16384 8192;
    truncate A/foo 5000; truncate A/foo 0; truncate A/foo 40000; truncate A/bar 10; truncate B/foo 4096;
    link A/foo A/ln; link A/foo B/ln; link A/foo A/C/ln; link A/bar A/foo; link B/two B/D/ln;
    symlink A/foo A/sl; symlink B B/sl; symlink x A/foo;
    rename A/foo A/moved; rename A/foo B/moved; rename A/foo A/bar; rename A/bar A/foo;
    rename A/foo B/foo; rename B/foo A/foo; rename A/new A/foo; rename A/two A/new; rename A/foo A/C/moved;
    rename A/C A/E; rename A/C B/C; rename A/C B/D; rename B/D A/E; rename A/E A/C; rename B A/E;
    exchange A/foo A/bar; exchange A/foo B/foo; exchange A/C B/D; exchange A/foo A/C; exchange A/two B/two;
    unlink A/foo; unlink A/bar; unlink B/foo; unlink A/two; unlink B/two; unlink A/new; unlink A/ln;
    rmdir A/C; rmdir B/D; rmdir A/E;
    mknod A/dev; mknod B/D/dev; mknod A/foo;
    setxattr A/foo new 30 T; setxattr A/foo base 60 T; setxattr A dirattr 20 T; setxattr A/new big 900 T;
    utimes A/foo 1000; utimes A 2000; removexattr A/foo base; removexattr A/foo new;
    reflink B/foo 0 A/foo 0 8192; reflink A/foo 0 A/foo 20480 4096; reflink A/foo 0 B/foo 4096 8192;
    reflink B/foo 0 A/new 0 0;
    snapshot . snap; snapshot . B/snap";

/// Operations that make something durable, in the middle of a workload or at its end.
const PERSISTS: &str = "fsync A/foo; fsync A/bar; fsync B/foo; fsync A/new; fsync A; fsync B; \
    fsync A/C; fsync .; fdatasync A/foo; fdatasync A/bar; sync";

fn parse(text: &str, tag: u8) -> Result<Vec<Op>, String> {
    let text: Vec<String> = text
        .split(';')
        .map(|op| op.trim().trim_end_matches(" T").to_owned() + tag_of(op, tag).as_str())
        .collect();
    from_text(&text.join(";")).map_err(|error| error.to_string())
}

fn tag_of(op: &str, tag: u8) -> String {
    if op.trim().ends_with(" T") {
        format!(" {tag}")
    } else {
        String::new()
    }
}

/// Operations that change something; another `tag` changes the written data.
///
/// # Errors
/// Never, unless the list here is wrong.
pub fn changes(tag: u8) -> Result<Vec<Op>, String> {
    parse(CHANGES, tag)
}

/// Operations that make something durable.
///
/// # Errors
/// Never, unless the list here is wrong.
pub fn persists() -> Result<Vec<Op>, String> {
    parse(PERSISTS, 0)
}

/// Makes workloads on one base.
#[derive(Debug)]
pub struct Bounded {
    kind: BaseKind,
    base: std::sync::Arc<Base>,
    /// For each place in a sequence, the operations that it can have.
    lists: Vec<Vec<Op>>,
    persists: Vec<Op>,
}

/// Longest sequence.
const LONGEST: usize = 3;

impl Bounded {
    /// Workloads on this base, which has the names of [`crate::base::STANDARD`].
    ///
    /// # Errors
    /// If the base cannot be made.
    pub fn new(kind: BaseKind) -> Result<Self, String> {
        let persists = persists()?;
        let list = |place: usize| -> Result<Vec<Op>, String> {
            let mut list = changes(10 + place as u8)?;
            list.retain(|op| kind.can(op));
            list.extend(persists.iter().cloned());
            Ok(list)
        };
        Ok(Self {
            kind,
            base: Base::get(kind)?,
            lists: (0..LONGEST).map(list).collect::<Result<_, _>>()?,
            persists,
        })
    }

    /// All sequences of one operation, with all their ends.
    #[must_use]
    pub fn ones(&self) -> Vec<Workload> {
        let list = self.lists.first().into_iter().flatten();
        list.flat_map(|op| self.ended(vec![op.clone()])).collect()
    }

    /// All sequences of two that begin with the operation of this number; none if the number is too
    /// large.
    #[must_use]
    pub fn twos(&self, first: usize) -> Vec<Workload> {
        let [firsts, seconds, ..] = self.lists.as_slice() else {
            return Vec::new();
        };
        let Some(first) = firsts.get(first) else {
            return Vec::new();
        };
        let seconds = seconds.iter();
        seconds
            .flat_map(|second| self.ended(vec![first.clone(), second.clone()]))
            .collect()
    }

    /// The number of first operations.
    #[must_use]
    pub fn firsts(&self) -> usize {
        self.lists.first().map_or(0, Vec::len)
    }

    /// A random sequence of three with one end; `None` if it cannot be performed.
    #[must_use]
    pub fn three(&self, seed: u64) -> Option<Workload> {
        let mut random = Rng::with_seed(seed);
        let ops: Option<Vec<Op>> = self
            .lists
            .iter()
            .map(|list| random.choice(list).cloned())
            .collect();
        let all = self.ended(ops?);
        random.choice(&all).cloned()
    }

    /// The sequence with each end that can be performed; none if the sequence itself cannot be.
    fn ended(&self, ops: Vec<Op>) -> Vec<Workload> {
        let Ok(model) = self.base.model() else {
            return Vec::new();
        };
        if !succeeds(&model, &ops) {
            return Vec::new();
        }
        let mut touched: BTreeSet<String> = ops.iter().flat_map(names).collect();
        let parents: Vec<String> = touched.iter().filter_map(|path| parent(path)).collect();
        touched.extend(parents);
        let with = |end: Op| {
            let mut ops = ops.clone();
            ops.push(end);
            Workload {
                base: self.kind,
                ops,
            }
        };
        let mut ends: Vec<Op> = Vec::new();
        for path in &touched {
            let on = Target::Path(path.clone());
            ends.push(Op::Fsync { on: on.clone() });
            if ops
                .iter()
                .any(|op| is_data(op) && names(op).first() == Some(path))
            {
                ends.push(Op::Fdatasync { on });
            }
        }
        // A name that was not touched: its fsync must not damage the names that it commits as well.
        let other = self.persists.iter().find(
            |op| matches!(op, Op::Fsync { on: Target::Path(path) } if !touched.contains(path)),
        );
        ends.extend(other.cloned());
        ends.push(Op::Sync {});
        let actor = Session::new(&model, model.root());
        let possible = |end: &Op| match end {
            Op::Fsync { on } | Op::Fdatasync { on } => actor.ino(on).is_ok(),
            _ => true,
        };
        ends.into_iter().filter(possible).map(with).collect()
    }
}

fn succeeds(model: &MemoryFs, ops: &[Op]) -> bool {
    let mut actor = Session::new(model, model.root());
    ops.iter().all(|op| actor.perform(op).is_ok())
}

fn parent(path: &str) -> Option<String> {
    let (dir, _) = path.rsplit_once('/').unwrap_or((".", path));
    (path != ".").then(|| dir.to_owned())
}

/// Paths that an operation names, with the path of the inode that it changes first.
fn names(op: &Op) -> Vec<String> {
    let path = |target: &Target| match target {
        Target::Path(path) => path.clone(),
        Target::Held(_) => ".".to_owned(),
    };
    match op {
        Op::Create { at, .. }
        | Op::Filled { at, .. }
        | Op::Mkdir { at, .. }
        | Op::Symlink { at, .. }
        | Op::Mknod { at, .. }
        | Op::Hold { at, .. }
        | Op::Unlink { at }
        | Op::Rmdir { at }
        | Op::Subvolume { at }
        | Op::Snapshot { at, .. }
        | Op::DeleteSubvolume { at } => vec![at.clone()],
        Op::Write { file, .. }
        | Op::Append { file, .. }
        | Op::Allocate { file, .. }
        | Op::AllocateKeep { file, .. }
        | Op::Punch { file, .. }
        | Op::Zero { file, .. }
        | Op::ZeroKeep { file, .. }
        | Op::Truncate { file, .. }
        | Op::Nocow { file }
        | Op::Compress { file } => vec![path(file)],
        Op::SetXattr { on, .. }
        | Op::RemoveXattr { on, .. }
        | Op::SetAcl { on, .. }
        | Op::Chmod { on, .. }
        | Op::Chown { on, .. }
        | Op::SetTimes { on, .. }
        | Op::Fsync { on }
        | Op::Fdatasync { on } => vec![path(on)],
        Op::Link { from, to } => vec![path(from), to.clone()],
        Op::Rename { from, to, .. } | Op::Exchange { a: from, b: to } => {
            vec![from.clone(), to.clone()]
        }
        Op::Reflink { from, to, .. } => vec![path(to), path(from)],
        Op::Tmpfile { dir, .. } => vec![dir.clone()],
        _ => Vec::new(),
    }
}

/// True if an fdatasync after the operation guarantees something.
fn is_data(op: &Op) -> bool {
    matches!(
        op,
        Op::Write { .. }
            | Op::Append { .. }
            | Op::Allocate { .. }
            | Op::Punch { .. }
            | Op::Zero { .. }
            | Op::Truncate { .. }
            | Op::Reflink { .. }
            | Op::Create { .. }
            | Op::Filled { .. }
    )
}
