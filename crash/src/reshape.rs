//! [`Reshape`]: the size of a file system changes, or its free space is discarded, while it is not
//! mounted.
//!
//! # How it works
//! A workload fills a base, and a crash or an unmount ends it. The state that a recovery makes of
//! the image is the only possible state of everything that follows. All changes are performed one
//! after another; the last one is recorded and crashed. After each crash the files must be as
//! before, and the file system has the old size or the new one.
//!
//! After a crash, discarded bytes hold garbage.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fastrand::Rng;
use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::RecordLog;
use sapwood_testing::op::{Op, Session, from_text};
use sapwood_testing::tree::Tree;
use sapwood_vfs::{FileSystem, Timestamp, TrimRange};

use crate::again::THEN;
use crate::base::{Base, BaseKind};
use crate::cut::Cut;
use crate::delay::{Delays, Recorder, recorder};
use crate::engine::Format;
use crate::judge::recover;
use crate::policy::Policy;
use crate::record::{BEGIN, END, GARBAGE, Lane, Progress, Promise, Recording, Setting, Workload};
use crate::subject::Subject;
use crate::threads;

const MIB: u64 = 1 << 20;

/// What is done to a file system that is not mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// It gets this many bytes, or, if that is refused, stays as it is.
    Resize(u64),
    /// It becomes as small as possible.
    Min,
    /// Its free space is discarded.
    Trim,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resize(size) => write!(f, "resize {size}"),
            Self::Min => f.write_str("resize min"),
            Self::Trim => f.write_str("trim"),
        }
    }
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("no change is named {text:?}");
        match text.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["resize", "min"] => Ok(Self::Min),
            ["resize", size] => size.parse().map(Self::Resize).map_err(|_| bad()),
            ["trim"] => Ok(Self::Trim),
            _ => Err(bad()),
        }
    }
}

/// The sizes that a file system may have after a crash of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes before.
    pub before: u64,
    /// Bytes after.
    pub after: u64,
    /// Sizes between the two are possible: ext4 becomes as small as possible in several steps.
    pub steps: bool,
    /// Inodes may get other numbers: ext4 shrinks.
    pub renumbers: bool,
    /// Inodes that got other numbers.
    pub renumbered: usize,
}

impl Sizes {
    /// What is wrong with the size of a recovered file system.
    #[must_use]
    pub fn judge(&self, size: u64, progress: &[Progress]) -> Option<String> {
        let returned = progress.first().is_some_and(|lane| lane.done > 0);
        let Self {
            before,
            after,
            steps,
            ..
        } = *self;
        let possible = if returned {
            size == after
        } else {
            [before, after].contains(&size) || steps && (after..before).contains(&size)
        };
        (!possible).then(|| format!("has {size} bytes, before {before}, after {after}"))
    }
}

/// A workload, its end, and changes of its result. Its text is
/// `reshape: BASE: OP; OP => CHANGE; CHANGE`, with ` @ CUT` before the arrow if a crash ends it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reshape {
    /// The workload.
    pub first: Workload,
    /// The text of the crash that ends it. Without one it is unmounted.
    pub cut: Option<String>,
    /// The changes. The last one is explored.
    pub changes: Vec<Change>,
}

/// First word of the text.
pub const PREFIX: &str = "reshape:";

impl fmt::Display for Reshape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX} {}", self.first)?;
        if let Some(cut) = &self.cut {
            write!(f, " @ {cut}")?;
        }
        let changes: Vec<String> = self.changes.iter().map(ToString::to_string).collect();
        write!(f, "{THEN}{}", changes.join("; "))
    }
}

impl FromStr for Reshape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("not a reshape: {text:?}");
        let parts = text.trim().strip_prefix(PREFIX).ok_or_else(bad)?;
        let (first, changes) = parts.split_once(THEN.trim_end()).ok_or_else(bad)?;
        let (first, cut) = match first.rsplit_once(" @ ") {
            Some((first, cut)) => (first, Some(cut.trim().parse::<Cut>()?.to_string())),
            None => (first, None),
        };
        let changes = changes.split(';').map(|change| change.trim().parse());
        Ok(Self {
            first: first.parse()?,
            cut,
            changes: changes.collect::<Result<_, _>>()?,
        })
    }
}

impl Reshape {
    /// Performs the workload and the changes, and records the last change.
    ///
    /// # Errors
    /// What failed, other than a resize that has no room.
    pub fn run(&self, setting: &Setting) -> Result<Recording, String> {
        let engine = self.first.base.engine();
        let (last, before) = self.changes.split_last().ok_or("no change")?;
        let mut image = self.filled()?;
        for change in before {
            let memory = Arc::new(room(&image, *change));
            let device: Arc<dyn Device> = memory.clone();
            apply(engine, &device, *change)?;
            image = memory.snapshot();
        }
        let image = room(&image, *last);
        record(engine, image, *last, setting)
    }

    /// The image after the workload.
    fn filled(&self) -> Result<MemoryDevice, String> {
        let base = Base::get(self.first.base)?;
        let recorder = Arc::new(recorder(base.device.snapshot(), Delays::NONE));
        let log = self.perform(&recorder)?;
        let Some(cut) = &self.cut else {
            return Ok(recorder.inner().inner().snapshot());
        };
        let cut: Cut = cut.parse()?;
        Ok(log.image(&base.device, &cut.0))
    }

    /// Performs the workload, and unmounts if no crash ends it. Returns the requests before that.
    fn perform(&self, recorder: &Arc<Recorder>) -> Result<RecordLog, String> {
        let engine = self.first.base.engine();
        let fs = engine.open(recorder.clone(), Policy::Now, 1)?;
        let mut actor = Session::new(&*fs, fs.root());
        for op in &self.first.ops {
            let done = actor.perform(op);
            done.map_err(|error| format!("{op}: {error}"))?;
        }
        drop(actor);
        let log = recorder.take_log();
        if self.cut.is_none() {
            fs.unmount().map_err(|error| error.to_string())?;
        }
        Ok(log)
    }

    /// Chooses a crash that ends the workload, one that leaves a log if possible.
    fn crash(&mut self, random: &mut Rng) -> Result<(), String> {
        let engine = self.first.base.engine();
        let base = Base::get(self.first.base)?;
        self.cut = Some(String::new());
        let log = self.perform(&Arc::new(recorder(base.device.snapshot(), Delays::NONE)))?;
        let points = log.crash_points();
        let late = points.get(points.len() * 2 / 3..).unwrap_or_default();
        for _ in 0..8 {
            let at = random.choice(late).copied().ok_or("no crash point")?;
            let mut plan = log.random_plan(at, random.u64(..));
            // The only superblock is written whole.
            plan.torn.clear();
            self.cut = Some(Cut(plan.clone()).to_string());
            if engine.has_log(&log.image(&base.device, &plan)) {
                break;
            }
        }
        Ok(())
    }

    /// Reshapes with less of everything.
    #[must_use]
    pub fn shorter(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if self.cut.is_some() {
            all.push(Self {
                cut: None,
                ..self.clone()
            });
        }
        for index in 0..self.changes.len().saturating_sub(1) {
            let mut less = self.clone();
            less.changes.remove(index);
            all.push(less);
        }
        // The crash of the first workload belongs to its operations.
        if self.cut.is_none() {
            for index in (0..self.first.ops.len()).rev() {
                let mut less = self.clone();
                less.first.ops.remove(index);
                all.push(less);
            }
        }
        all
    }
}

/// The image on a device that is large enough for a change.
fn room(image: &MemoryDevice, change: Change) -> MemoryDevice {
    match change {
        Change::Resize(size) => image.resized(size.max(image.size())),
        Change::Min | Change::Trim => image.snapshot(),
    }
}

/// Performs a change; true if it was not refused.
fn apply(engine: Format, device: &Arc<dyn Device>, change: Change) -> Result<bool, String> {
    let failed = |error: String| format!("{change}: {error}");
    let size = match change {
        Change::Resize(size) => Some(size),
        Change::Min => None,
        Change::Trim => {
            let trimmed = trim(engine, device);
            return trimmed.map(|()| true).map_err(failed);
        }
    };
    let resized = engine.resize(device, size).map_err(failed)?;
    Ok(resized.is_ok())
}

/// As `sapwood trim`.
fn trim(engine: Format, device: &Arc<dyn Device>) -> Result<(), String> {
    let fs = engine.open(device.clone(), Policy::Now, 1)?;
    let trimmed = fs.sync().and_then(|()| fs.trim(&TrimRange::default()));
    let bytes = trimmed.map_err(|error| error.to_string())?;
    fs.unmount().map_err(|error| error.to_string())?;
    match bytes {
        0 => Err("nothing was free".to_owned()),
        _ => Ok(()),
    }
}

fn record(
    engine: Format,
    image: MemoryDevice,
    change: Change,
    setting: &Setting,
) -> Result<Recording, String> {
    let began = Timestamp::now();
    let found = recover(engine, image.snapshot()).0?;
    let recovery = (began, Timestamp::now());
    let recorder = Arc::new(recorder(image.snapshot(), Delays::NONE));
    let device = setting.planted(&recorder);
    recorder.mark(format!("{BEGIN}0"));
    let done = apply(engine, &device, change)?;
    recorder.mark(format!("{END}0"));
    drop(device);
    let after = engine.size(&*recorder)?;
    if !done && after != found.size && change != Change::Min {
        return Err(format!("{change}: refused, but the size changed"));
    }
    let last = recover(engine, recorder.inner().inner().snapshot()).0?;
    let renumbers = engine == Format::Ext4
        && match change {
            Change::Resize(size) => size < found.size,
            Change::Min => true,
            Change::Trim => false,
        };
    let (old, new) = (found.tree.paths(), last.tree.paths());
    let renumbered = (old.iter()).filter(|(path, ino)| new.get(*path) != Some(ino));
    let renumbered = renumbered.count();
    if renumbered > 0 && !renumbers {
        return Err(format!("{change}: {renumbered} paths have other inodes"));
    }
    let tree = if renumbers {
        last.tree.numbered_as(&found.tree)
    } else {
        last.tree
    };
    let states = vec![known(&found.tree), changed(&found.tree, &tree, recovery)];
    let lane = Lane {
        engine,
        root: found.tree.root,
        states,
        promises: vec![Promise::All],
        shared: false,
        recovery: Some(recovery),
    };
    Ok(Recording {
        engine,
        base: image,
        log: recorder.take_log().discards_leave(GARBAGE),
        lanes: vec![lane],
        race: None,
        sizes: Some(Sizes {
            before: found.size,
            after,
            steps: change == Change::Min && engine == Format::Ext4,
            renumbers,
            renumbered,
        }),
    })
}

/// A recovered tree as a state of a history.
fn known(tree: &Tree) -> Tree {
    Tree {
        recovered: None,
        ..tree.clone()
    }
}

/// The state `before` as a change leaves it. The change began with a recovery of its own: the times
/// that the first one set, within `recovery`, are those of `last`.
fn changed(before: &Tree, last: &Tree, recovery: (Timestamp, Timestamp)) -> Tree {
    let mut state = known(before);
    for (ino, node) in &mut state.nodes {
        let new = last.nodes.get(ino).and_then(|node| node.times);
        let (Some(times), Some(new)) = (&mut node.times, new) else {
            continue;
        };
        for (time, new) in [(&mut times.mtime, new.mtime), (&mut times.ctime, new.ctime)] {
            if (recovery.0..=recovery.1).contains(time) {
                *time = new;
            }
        }
    }
    state
}

/// A change of a filled file system, or a workload with trims, that the seed determines.
///
/// # Errors
/// An operation that failed.
pub fn by_chance(engine: Format, seed: u64) -> Result<Subject, String> {
    let mut random = Rng::with_seed(seed ^ 0x5e5a);
    let mut bases = engine.bases();
    bases.push(engine.empty());
    let base = *random.choice(&bases).ok_or("no base")?;
    if random.u32(..5) == 0 {
        let model = Base::get(base)?.model()?;
        let count = 3 + random.usize(..6);
        let ops = threads::by_chance(engine, &model, &mut random, count)?;
        let ops = ops.into_iter().filter(|op| base.can(op)).collect();
        return Ok(Subject::Trims(Workload { base, ops }));
    }
    let mut reshape = Reshape {
        first: Workload {
            base,
            ops: filling(base, &mut random)?,
        },
        cut: None,
        changes: Vec::new(),
    };
    if random.u32(..3) > 0 {
        reshape.crash(&mut random)?;
    }
    if random.u32(..3) == 0 {
        let size = random.u64(17..40) * 4 * MIB;
        reshape.changes.push(Change::Resize(size));
    }
    reshape.changes.push(match random.u32(..10) {
        0..2 => Change::Trim,
        2..5 => Change::Min,
        5..7 => Change::Resize(random.u64(1_000..40_000) * 4096),
        _ => Change::Resize(random.u64(5_000..15_000) * 4096),
    });
    Ok(reshape.into())
}

/// Operations that fill a file system to some degree: files of all sizes with gaps between them,
/// names, attributes, holes, and what the format has beyond that; random ones at the end.
fn filling(base: BaseKind, random: &mut Rng) -> Result<Vec<Op>, String> {
    let model = Base::get(base)?.model()?;
    let mut plan = Filling {
        base,
        actor: Session::new(&model, model.root()),
        ops: Vec::new(),
    };
    // Directories are spread over the groups of ext4, and inodes lie in the groups of theirs.
    let dirs: &[&str] = if random.bool() {
        &["", "", "d/", "e/"]
    } else {
        &[""]
    };
    if dirs.len() > 1 {
        plan.add("mkdir d; mkdir e")?;
    }
    let most = random.choice([1, 1, 6, 6, 26]).unwrap_or(1) * MIB;
    let mut left = random.u64(..most);
    let mut number = 0;
    while left > 0 && number < 40 {
        let scale = random.u64(8..=21);
        let len = random.u64(1..1 << scale).min(left);
        left -= len;
        let dir = random.choice(dirs).copied().unwrap_or_default();
        let file = format!("{dir}f{number}");
        plan.add(&format!("creat {file}; write {file} 0 {len} {number}"))?;
        plan.add(&special(&file, number, len, random.u32(..14)))?;
        match random.u32(..12) {
            0 => plan.add("sync")?,
            1 | 2 => plan.add(&format!("fsync {file}"))?,
            _ => {}
        }
        number += 1;
    }
    plan.add("sync")?;
    for gap in (0..number).filter(|_| random.u32(..3) == 0) {
        plan.add(&format!("unlink f{gap}"))?;
    }
    if random.bool() {
        plan.add("sync")?;
    }
    plan.add("creat z; write z 0 30000 9; fsync z; write z 5000 9000 8; fsync z; creat y")?;
    Ok(plan.ops)
}

/// Operations that the model and the base accept.
struct Filling<'m> {
    base: BaseKind,
    actor: Session<'m>,
    ops: Vec<Op>,
}

impl Filling<'_> {
    fn add(&mut self, text: &str) -> Result<(), String> {
        for op in from_text(text).map_err(|error| error.to_string())? {
            if self.base.can(&op) && self.actor.perform(&op).is_ok() {
                self.ops.push(op);
            }
        }
        Ok(())
    }
}

/// More operations on a file of `len` bytes, or none.
fn special(file: &str, number: u32, len: u64, choice: u32) -> String {
    match choice {
        0 => format!("link {file} l{number}"),
        1 => format!("setxattr {file} a 40 3; setxattr {file} b 700 4"),
        2 => format!("punch {file} {} {}", len / 4, (len / 2).max(1)),
        3 => format!("truncate {file} {}", len * 3),
        4 => format!("falloc-keep {file} {len} 300000"),
        5 => format!("symlink {} s{number}", "t".repeat(200)),
        6 => format!("snapshot . snap{number}"),
        7 => format!("subvolume v{number}; creat v{number}/x; write v{number}/x 0 9000 5"),
        8 => format!("creat r{number}; reflink {file} 0 r{number} 0 0"),
        9 => format!("hold {file} 1; unlink {file}"),
        10 => format!("write {file} {} 5000 77", len * 2 + 40_000),
        11 => format!("creat c{number}; compress c{number}; write c{number} 0 200000 =7"),
        _ => String::new(),
    }
}
