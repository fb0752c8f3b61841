//! [`Recording`]: a workload that ran, with everything that is needed to judge a crash of it.
//!
//! The workload runs on the engine and on the reference model side by side. Each operation has
//! to end the same way in both; the model's state after it, with the engine's inode numbers, is
//! a *state* of the history: state 0 is the base, state `k` comes after the `k`-th operation.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice, RecordDevice, RecordLog};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_vfs::{FileSystem, Ino};

use crate::actor::Actor;
use crate::base::{Base, BaseKind, options};
use crate::op::{Op, SLOTS, Target, from_text, to_text};
use crate::plant::{Plant, Planted};
use crate::tree::Tree;

/// A base and operations on it. Its text is `BASE: OP; OP; ...`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    /// Where it starts.
    pub base: BaseKind,
    /// What it does.
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

/// What an operation promised when it returned.
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

/// How a workload is run.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    /// Mount options of the workload.
    pub options: Option<Options>,
    /// What is broken on purpose.
    pub plant: Option<Plant>,
}

impl Setting {
    /// The mount options.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options.clone().unwrap_or_else(options)
    }
}

/// A workload that ran.
#[derive(Debug)]
pub struct Recording {
    /// What ran.
    pub workload: Workload,
    /// The device before it.
    pub base: MemoryDevice,
    /// All that was written.
    pub log: RecordLog,
    /// States of the history.
    pub states: Vec<Tree>,
    /// Promise of each operation; that of operation `k` (from 1) has index `k - 1`.
    pub promises: Vec<Promise>,
}

/// The operations that had begun and ended at a crash point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Progress {
    /// So many had returned.
    pub done: usize,
    /// So many had begun.
    pub begun: usize,
}

impl Recording {
    /// Runs a workload.
    ///
    /// # Errors
    /// Why it cannot be judged: an operation ended otherwise than in the model, or the mount
    /// failed.
    pub fn run(workload: &Workload, setting: &Setting) -> Result<Self, String> {
        let base = Base::get(workload.base)?;
        let memory = base.device.snapshot();
        let before = memory.snapshot();
        let recorder = Arc::new(RecordDevice::new(memory));
        let device: Arc<dyn Device> = match setting.plant {
            Some(plant) => Arc::new(Planted::new(recorder.clone(), plant)),
            None => recorder.clone(),
        };
        let fs = Btrfs::open(vec![device], setting.options())
            .map_err(|error| format!("mount: {error}"))?;
        let model = base.model()?;
        let mut run = Run {
            engine: Actor::new(&fs),
            model: Actor::new(&model),
            map: BTreeMap::from([(model.root(), fs.root())]),
            skip_fsync: setting.plant == Some(Plant::SkipFsync),
        };
        let mut states = vec![run.state(&model)?];
        let mut promises = Vec::new();
        for (number, op) in workload.ops.iter().enumerate() {
            recorder.mark(format!("{BEGIN}{number}"));
            let promise = run.step(op)?;
            recorder.mark(format!("{END}{number}"));
            promises.push(promise);
            states.push(match op.persists() {
                true => states.last().cloned().ok_or("no state")?,
                false => run.state(&model)?,
            });
        }
        let log = recorder.take_log();
        Ok(Self {
            workload: workload.clone(),
            base: before,
            log,
            states,
            promises,
        })
    }

    /// How far the workload was at a crash point.
    #[must_use]
    pub fn progress(&self, at: usize) -> Progress {
        let mut progress = Progress { done: 0, begun: 0 };
        for (_, mark) in self.log.marks_before(at) {
            if mark.starts_with(BEGIN) {
                progress.begun += 1;
            } else if mark.starts_with(END) {
                progress.done += 1;
            }
        }
        progress
    }
}

const BEGIN: &str = "begin ";
const END: &str = "end ";

struct Run<'a> {
    engine: Actor<'a>,
    model: Actor<'a>,
    /// From the model's inode numbers to the engine's.
    map: BTreeMap<Ino, Ino>,
    skip_fsync: bool,
}

impl Run<'_> {
    fn step(&mut self, op: &Op) -> Result<Promise, String> {
        let expected = self.model.apply(op);
        if self.skip_fsync && op.persists() {
            return Ok(self.promise(op));
        }
        let found = self.engine.apply(op);
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

    /// The model's state in the engine's numbers. Times of the two have nothing in common.
    fn state(&mut self, model: &dyn FileSystem) -> Result<Tree, String> {
        let mut tree = Tree::of(model).map_err(|error| format!("model: {error}"))?;
        for node in tree.nodes.values_mut() {
            node.mtime = None;
        }
        for (path, ino) in tree.paths() {
            if self.map.contains_key(&ino) {
                continue;
            }
            let found = self.engine.ino(&Target::Path(path.clone()));
            let found = found.map_err(|error| format!("{path}: the engine says {error}"))?;
            self.map.insert(ino, found);
        }
        for slot in 0..SLOTS {
            if let (Some(ino), Some(found)) = (self.model.held(slot), self.engine.held(slot)) {
                self.map.insert(ino, found);
            }
        }
        Ok(tree.renumbered(&self.map))
    }
}
