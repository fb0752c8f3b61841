//! [`Recording`]: a workload that ran, with everything that is needed to check a crash of it.
//!
//! The workload runs on the engine and on the reference model side by side. Each operation must
//! have the same result in both. The state of the model after it, with the engine's inode numbers,
//! is a *state* of the history: state 0 is the base, and state `k` follows the `k`-th operation.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::op::{Op, SLOTS, Session, Target, from_text, to_text};
use sapwood_testing::tree::{Detail, Times, Tree};
use sapwood_testing::{MemoryFs, RecordLog};
use sapwood_vfs::{FileSystem, Ino, Timestamp, TrimRange};

use crate::base::{Base, BaseKind};
use crate::delay::{Delays, Recorder, recorder};
use crate::engine::Format;
use crate::orders::Orders;
use crate::plant::{Plant, Planted};
use crate::policy::Policy;
use crate::reshape::Sizes;

/// A base and operations on it. Its text is `BASE: OP; OP; ...`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    /// The base.
    pub base: BaseKind,
    /// The operations.
    pub ops: Vec<Op>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.base, to_text(&self.ops))
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (base, ops) = text.split_once(':').ok_or("a workload begins with BASE:")?;
        Ok(Self {
            base: base.trim().parse()?,
            ops: from_text(ops).map_err(|error| error.to_string())?,
        })
    }
}

/// The guarantee of a returned operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Nothing.
    Nothing,
    /// This inode is durable.
    Inode(Ino),
    /// Data and size of this inode are durable.
    Data(Ino),
    /// Everything is durable.
    All,
}

/// Parameters of a run of a workload.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    /// The mechanisms that the engine uses.
    pub policy: Policy,
    /// The planted fault.
    pub plant: Option<Plant>,
    /// The device does not delay its answers to threads.
    pub at_once: bool,
    /// Free space is discarded before each operation.
    pub trims: bool,
}

impl Setting {
    /// The device of the engine: the recorder, or a faulty device above it.
    #[must_use]
    pub fn planted(&self, recorder: &Arc<Recorder>) -> Arc<dyn Device> {
        match self.plant {
            Some(plant) => Arc::new(Planted::new(recorder.clone(), plant)),
            None => recorder.clone(),
        }
    }

    /// How requests of threads are delayed.
    #[must_use]
    pub fn delays(&self, seed: u64) -> Delays {
        if self.at_once {
            Delays::NONE
        } else {
            Delays::brief(seed)
        }
    }
}

/// The history of one thread below a directory of its own.
#[derive(Debug)]
pub struct Lane {
    /// The engine.
    pub engine: Format,
    /// The directory.
    pub root: Ino,
    /// States of the history.
    pub states: Vec<Tree>,
    /// Guarantee of each operation; operation `k` (from 1) has index `k - 1`.
    pub promises: Vec<Promise>,
    /// A commit can happen in the middle of an operation: other threads were running, or data goes
    /// through the journal.
    pub shared: bool,
    /// Begin and end of the mount before the operations, which may have been a recovery that set
    /// times.
    pub recovery: Option<(Timestamp, Timestamp)>,
}

/// A workload that ran.
#[derive(Debug)]
pub struct Recording {
    /// The engine.
    pub engine: Format,
    /// The device before the workload.
    pub base: MemoryDevice,
    /// All requests.
    pub log: RecordLog,
    /// The histories of threads with a directory of their own.
    pub lanes: Vec<Lane>,
    /// The orders of threads with shared names.
    pub race: Option<Orders>,
    /// Sizes that the file system may have, if the workload can change it.
    pub sizes: Option<Sizes>,
}

/// The operations that had begun and ended at a crash point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Progress {
    /// Number of operations that had returned.
    pub done: usize,
    /// Number of operations that had begun.
    pub begun: usize,
}

impl Recording {
    /// Runs a workload.
    ///
    /// # Errors
    /// Why it cannot be checked: an operation had another result than in the model, or the mount
    /// failed.
    pub fn run(workload: &Workload, setting: &Setting) -> Result<Self, String> {
        let base = Base::get(workload.base)?;
        let engine = workload.base.engine();
        Self::on(engine, &base.device, &base.model()?, &workload.ops, setting)
    }

    /// Mounts a copy of `image`, whose content `model` has, and performs the operations. The
    /// recording includes the mount, with the recovery that the image may need.
    ///
    /// # Errors
    /// The mismatch with the model.
    pub fn on(
        engine: Format,
        image: &MemoryDevice,
        model: &MemoryFs,
        ops: &[Op],
        setting: &Setting,
    ) -> Result<Self, String> {
        let recorder = Arc::new(recorder(image.snapshot(), Delays::NONE));
        let began = Timestamp::now();
        let fs = engine.open(setting.planted(&recorder), setting.policy, 1);
        let fs = fs.map_err(|error| format!("mount: {error}"))?;
        let recovery = (began, Timestamp::now());
        let skip_fsync = setting.plant == Some(Plant::SkipFsync);
        let mut run = Run::new(engine, (&*fs, fs.root()), model, skip_fsync);
        run.trims = setting.trims;
        let mut lane = run.all(0, ops, &recorder)?;
        lane.recovery = Some(recovery);
        // Data that is longer than a transaction is committed in several parts.
        lane.shared = setting.policy == Policy::DataJournal;
        let log = recorder.take_log().discards_leave(GARBAGE);
        Ok(Self {
            engine,
            base: image.snapshot(),
            log,
            lanes: vec![lane],
            race: None,
            sizes: None,
        })
    }

    /// The smallest size of the file system in bytes.
    #[must_use]
    pub fn least_size(&self) -> u64 {
        let sizes = self.sizes.as_ref();
        sizes.map_or(self.base.size(), |sizes| sizes.before.min(sizes.after))
    }

    /// A recovered tree with the inode numbers of before, if the workload can change them.
    #[must_use]
    pub fn numbered(&self, tree: &Tree) -> Option<Tree> {
        self.sizes.filter(|sizes| sizes.renumbers)?;
        let before = self.lanes.first()?.states.first()?;
        Some(tree.numbered_as(before))
    }

    fn threads(&self) -> usize {
        self.race
            .as_ref()
            .map_or(self.lanes.len(), |race| race.threads)
    }

    /// The progress of each thread at a crash point.
    #[must_use]
    pub fn progress(&self, at: usize) -> Vec<Progress> {
        let mut all = vec![Progress { done: 0, begun: 0 }; self.threads()];
        for (_, mark) in self.log.marks_before(at) {
            let (what, lane) = mark.split_at(1);
            let lane = lane.parse().ok().and_then(|lane: usize| all.get_mut(lane));
            match (what, lane) {
                (BEGIN, Some(progress)) => progress.begun += 1,
                (END, Some(progress)) => progress.done += 1,
                _ => {}
            }
        }
        all
    }
}

/// The value of discarded bytes after a crash.
pub(crate) const GARBAGE: u8 = 0xa5;

/// Marks in the log, followed by the number of the lane.
pub(crate) const BEGIN: &str = "b";
pub(crate) const END: &str = "e";

/// One thread of a workload.
pub struct Run<'a> {
    on: Format,
    engine: Session<'a>,
    engine_fs: &'a dyn FileSystem,
    model: Session<'a>,
    model_fs: &'a dyn FileSystem,
    /// The engine's inode number of each of the model's.
    map: BTreeMap<Ino, Ino>,
    root: Ino,
    skip_fsync: bool,
    trims: bool,
}

impl<'a> Run<'a> {
    /// A run on the engine below a directory, side by side with a model of that directory.
    #[must_use]
    pub fn new(
        on: Format,
        (engine, root): (&'a dyn FileSystem, Ino),
        model: &'a dyn FileSystem,
        skip_fsync: bool,
    ) -> Self {
        Self {
            on,
            engine: Session::new(engine, root),
            engine_fs: engine,
            model: Session::new(model, model.root()),
            model_fs: model,
            map: BTreeMap::from([(model.root(), root)]),
            root,
            skip_fsync,
            trims: false,
        }
    }

    /// Performs all operations, and marks their begins and ends with lane `number`.
    ///
    /// # Errors
    /// The operation whose result differs from the model's.
    pub fn all(&mut self, number: usize, ops: &[Op], recorder: &Recorder) -> Result<Lane, String> {
        let mut states = vec![self.state()?];
        let mut promises = Vec::new();
        for op in ops {
            recorder.mark(format!("{BEGIN}{number}"));
            let promise = self.step(op)?;
            recorder.mark(format!("{END}{number}"));
            promises.push(promise);
            states.push(if op.persists() {
                states.last().cloned().ok_or("no state")?
            } else {
                self.state()?
            });
        }
        Ok(Lane {
            engine: self.on,
            root: self.root,
            states,
            promises,
            shared: false,
            recovery: None,
        })
    }

    fn step(&mut self, op: &Op) -> Result<Promise, String> {
        let expected = self.model.perform(op);
        if self.skip_fsync && op.persists() {
            return Ok(self.promise(op));
        }
        if self.trims {
            let trimmed = self.engine_fs.trim(&TrimRange::default());
            trimmed.map_err(|error| format!("trim before {op}: {error}"))?;
        }
        let found = self.engine.perform(op);
        if expected != found {
            return Err(format!(
                "{op}: the engine says {found:?}, the model {expected:?}"
            ));
        }
        match found {
            Ok(()) => Ok(self.promise(op)),
            Err(_) => Ok(Promise::Nothing),
        }
    }

    fn promise(&self, op: &Op) -> Promise {
        let known = |on: &Target| {
            let ino = self.model.ino(on).ok();
            ino.and_then(|ino| self.map.get(&ino).copied())
        };
        let promise = match op {
            Op::Fsync { on } => known(on).map(Promise::Inode),
            Op::Fdatasync { on } => known(on).map(Promise::Data),
            Op::Sync {} => Some(Promise::All),
            _ => None,
        };
        promise.unwrap_or(Promise::Nothing)
    }

    /// The model's state with the engine's inode numbers and times: the model's times are not
    /// comparable.
    fn state(&mut self) -> Result<Tree, String> {
        let mut tree =
            Tree::of(self.model_fs, Detail::Bytes).map_err(|error| format!("model: {error}"))?;
        let held = (0..SLOTS).filter_map(|slot| self.model.held(slot));
        tree.add_held(self.model_fs, held)
            .map_err(|error| format!("model: {error}"))?;
        let mut times = BTreeMap::new();
        for (path, ino) in tree.paths() {
            let found = self.engine.attr(&Target::Path(path.clone()));
            let found = found.map_err(|error| format!("{path}: the engine says {error}"))?;
            self.map.entry(ino).or_insert(found.ino);
            times.insert(ino, Times::of(&found));
        }
        for slot in 0..SLOTS {
            if let (Some(ino), Ok(found)) =
                (self.model.held(slot), self.engine.attr(&Target::Held(slot)))
            {
                self.map.insert(ino, found.ino);
                times.insert(ino, Times::of(&found));
            }
        }
        for (ino, node) in tree.nodes.iter_mut().chain(tree.nameless.iter_mut()) {
            node.times = times.get(ino).copied();
        }
        Ok(tree.renumbered(&self.map))
    }
}
