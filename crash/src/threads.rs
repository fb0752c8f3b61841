//! [`Threads`]: several threads at once, each below a directory of its own.
//!
//! The seed determines the operations of a thread, but not their timing. Because each thread has a
//! directory of its own, the required state of its files is known anyway. The threads share log
//! commits, transactions and tree blocks, in which they could damage each other's files.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fastrand::Rng;
use sapwood_testing::MemoryFs;
use sapwood_testing::op::{Op, Session, Who};
use sapwood_vfs::{FileSystem, NewInode};

use crate::base::Base;
use crate::bounded;
use crate::delay::{Delays, recorder};
use crate::engine::Format;
use crate::explore::seed_of;
use crate::plant::Plant;
use crate::record::{Lane, Recording, Run, Setting};
use crate::subject::Subject;

/// A workload of several threads. Its text is `threads: SEED LANES OPS`, with the engine's name
/// before the numbers if it is not btrfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Threads {
    /// The engine that they work on.
    pub engine: Format,
    /// Determines the operations of each thread.
    pub seed: u64,
    /// Number of threads.
    pub lanes: usize,
    /// Number of operations of each thread.
    pub ops: usize,
}

/// First word of the text.
pub const PREFIX: &str = "threads:";

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        if self.engine != Format::default() {
            write!(f, " {}", self.engine)?;
        }
        write!(f, " {} {} {}", self.seed, self.lanes, self.ops)
    }
}

impl FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("not a workload of threads: {text:?}");
        let words = text.trim().strip_prefix(PREFIX).ok_or_else(bad)?;
        let first = words.split_whitespace().next().ok_or_else(bad)?;
        let (engine, words) = match first.parse() {
            Ok(engine) => (
                engine,
                words.trim_start().strip_prefix(first).unwrap_or(words),
            ),
            Err(_) => (Format::default(), words),
        };
        let numbers: Result<Vec<u64>, _> = words.split_whitespace().map(str::parse).collect();
        match numbers.map_err(|_| bad())?.as_slice() {
            [seed, lanes, ops] => Ok(Self {
                engine,
                seed: *seed,
                lanes: *lanes as usize,
                ops: *ops as usize,
            }),
            _ => Err(bad()),
        }
    }
}

impl Threads {
    /// The operations of a thread.
    ///
    /// # Errors
    /// If the base cannot be made.
    pub fn plan(&self, lane: usize) -> Result<Vec<Op>, String> {
        let model = Base::get(self.engine.standard())?.model()?;
        let mut random = Rng::with_seed(self.seed ^ (lane as u64) << 32);
        by_chance(self.engine, &model, &mut random, self.ops)
    }

    /// Runs the workload.
    ///
    /// # Errors
    /// As [`Recording::run`].
    pub fn run(&self, setting: &Setting) -> Result<Recording, String> {
        let engine = self.engine;
        let setup = Base::get(engine.standard())?;
        let memory = Base::get(engine.empty())?.device.snapshot();
        let recorder = Arc::new(recorder(memory, Delays::NONE));
        let fs = engine
            .open(setting.planted(&recorder), setting.policy, 2)
            .map_err(|error| format!("mount: {error}"))?;
        let mut dirs = Vec::new();
        for lane in 0..self.lanes {
            dirs.push(prepare(&*fs, lane, &setup.setup)?);
        }
        fs.sync().map_err(|error| error.to_string())?;
        recorder.take_log();
        let base = recorder.inner().inner().snapshot();
        let seed = seed_of(&Subject::from(*self));
        recorder.inner().set(setting.delays(seed));
        let plans = (0..self.lanes).map(|lane| self.plan(lane));
        let plans: Vec<Vec<Op>> = plans.collect::<Result<_, _>>()?;
        let skip_fsync = setting.plant == Some(Plant::SkipFsync);
        let lanes: Result<Vec<Lane>, String> = std::thread::scope(|scope| {
            let threads: Vec<_> = plans
                .iter()
                .enumerate()
                .map(|(number, plan)| {
                    let (fs, dir, recorder, setup) = (&*fs, dirs[number], &recorder, &setup);
                    scope.spawn(move || {
                        let model = setup.model()?;
                        let lane = Run::new(engine, (fs, dir), &model, skip_fsync)
                            .all(number, plan, recorder);
                        lane.map(|lane| Lane {
                            shared: true,
                            ..lane
                        })
                    })
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|lane| lane.map_err(|_| "a thread panicked".to_owned())?)
                .collect()
        });
        let log = recorder.take_log();
        for dir in dirs {
            fs.forget(dir, 1);
        }
        Ok(Recording {
            engine,
            base,
            log,
            lanes: lanes?,
            race: None,
            sizes: None,
        })
    }
}

/// The directory of a lane with the files of a base; the caller holds it.
fn prepare(fs: &dyn FileSystem, lane: usize, setup: &[Op]) -> Result<sapwood_vfs::Ino, String> {
    let name = format!("T{lane}");
    let failed = |error: sapwood_vfs::Error| format!("setup of {name}: {error}");
    let mut top = Session::new(fs, fs.root());
    let make = Op::create(name.clone(), NewInode::Directory, 0o755, Who::Root);
    top.perform(&make).map_err(failed)?;
    let dir = fs.lookup(fs.root(), name.as_bytes()).map_err(failed)?.ino();
    let mut actor = Session::new(fs, dir);
    for op in setup {
        actor.perform(op).map_err(failed)?;
    }
    Ok(dir)
}

/// Random operations that can be performed one after another on the model, which they change.
///
/// # Errors
/// Never, unless the list of operations is wrong.
pub(crate) fn by_chance(
    engine: Format,
    model: &MemoryFs,
    random: &mut Rng,
    ops: usize,
) -> Result<Vec<Op>, String> {
    let mut actor = Session::new(model, model.root());
    let persists = bounded::persists()?;
    let mut plan = Vec::new();
    // Most choices can be performed; the others are skipped.
    for attempt in 0..ops * 20 {
        if plan.len() == ops {
            break;
        }
        let list = match random.u32(0..3) {
            0 => persists.clone(),
            _ => bounded::changes(attempt as u8)?,
        };
        let Some(op) = random.choice(list) else { break };
        // The directory of a thread is no subvolume.
        let fits = engine.can(&op) && !matches!(op, Op::Snapshot { .. });
        if fits && actor.perform(&op).is_ok() {
            plan.push(op);
        }
    }
    Ok(plan)
}
