//! [`Sets`]: a btrfs over two to four devices, each with a cache that a power cut loses by itself,
//! while a workload runs and devices and block groups change.
//!
//! # How it works
//! The seed chooses profiles, operations and one to three [`Change`]s: balances, scrubs, devices
//! that are added, removed and replaced. They run while the operations do, or between two of them.
//! One request to any device happens at a time, and each is a step of a common clock. A power cut is
//! a moment of that clock, and a loss for each device.
//!
//! After it every set of devices that opens must have what was promised, pass the check, and scrub
//! without an error; at least one must open.

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use sapwood_block::{Device, MemoryDevice, Result as BlockResult};
use sapwood_btrfs::balance::{BalanceError, BalanceOptions, Filter, balance_mounted};
use sapwood_btrfs::check::CheckOptions;
use sapwood_btrfs::membership::{MembershipError, MountedDevice, add_mounted, remove_mounted};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs_several};
use sapwood_btrfs::replacement::replace_mounted;
use sapwood_btrfs::scrub::{ScrubOptions, scrub_mounted};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_testing::device::RecordLog;
use sapwood_testing::op::{Op, Session};
use sapwood_testing::tree::{Detail, Tree};
use sapwood_testing::{CrashPlan, RecordDevice};
use sapwood_vfs::{FileSystem, Timestamp};

use crate::base::Base;
use crate::delay::{Delays, Recorder, recorder};
use crate::engine::Format;
use crate::oracle::Oracle;
use crate::record::{BEGIN, END, GARBAGE, Lane, Progress, Run};
use crate::threads;

/// Bytes of a device.
const SIZE: u64 = 96 << 20;
/// Most devices, with the ones that come later.
const MOST: usize = 4;
/// Before this offset a device has no chunk.
const FIRST_CHUNK: u64 = 1 << 20;
/// Offset of the second superblock.
const SECOND_SUPER: u64 = 64 << 20;
const SECTOR: u64 = 4096;

/// A change of devices or block groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// All block groups get these profiles (data, metadata).
    Balance(Profile, Profile),
    /// The first unused device is added.
    Add,
    /// The device with this id is removed.
    Remove(u64),
    /// The first unused device replaces the one with this id.
    Replace(u64),
    Scrub,
}

/// A workload over several devices that its seed determines, but for the order of its threads. Its
/// text is `devices: SEED`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sets {
    /// The seed.
    pub seed: u64,
}

impl fmt::Display for Sets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "devices: {}", self.seed)
    }
}

impl FromStr for Sets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seed = text.trim().strip_prefix("devices:").map(str::trim);
        let seed = seed.and_then(|seed| seed.parse().ok());
        let seed = seed.ok_or_else(|| format!("not a workload over devices: {text:?}"))?;
        Ok(Self { seed })
    }
}

/// Counters of the work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetTally {
    /// Workloads that ran.
    pub workloads: u64,
    /// Changes that were made.
    pub changes: u64,
    /// Changes that were refused.
    pub refused: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Sets of devices that opened after them.
    pub opened: u64,
}

impl std::ops::AddAssign for SetTally {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.changes += other.changes;
        self.refused += other.refused;
        self.cuts += other.cuts;
        self.opened += other.opened;
    }
}

type Recorded = RecordDevice<MemoryDevice>;
/// The common clock: its recorder, which refuses nothing, gets a request for each one of a device.
#[derive(Debug)]
struct Clock {
    recorder: Recorder,
    devices: Vec<Arc<Recorded>>,
    /// Positions of all logs after each request.
    ticks: Mutex<Vec<(usize, Vec<usize>)>>,
}

impl Clock {
    fn tick<T>(&self, request: impl FnOnce() -> T) -> T {
        let mut ticks = self.ticks.lock();
        let done = request();
        let _ = self.recorder.write_at(0, &[0]);
        let positions = self.devices.iter().map(|device| device.position());
        ticks.push((self.recorder.position(), positions.collect()));
        // The requests of the threads alternate.
        MutexGuard::unlock_fair(ticks);
        thread::yield_now();
        done
    }
}

/// A device whose requests are steps of the clock.
#[derive(Debug)]
struct Clocked {
    own: Arc<Recorded>,
    clock: Arc<Clock>,
}

impl sapwood_block::Layer for Clocked {
    type Below = Recorded;

    fn below(&self) -> &Self::Below {
        &self.own
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> BlockResult<()> {
        self.clock
            .tick(|| Device::write_at(&*self.own, offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> BlockResult<()> {
        self.clock
            .tick(|| Device::write_vectored_at(&*self.own, offset, bufs))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> BlockResult<()> {
        self.clock
            .tick(|| Device::write_fua(&*self.own, offset, buf))
    }

    fn flush(&self) -> BlockResult<()> {
        self.clock.tick(|| Device::flush(&*self.own))
    }

    fn discard(&self, offset: u64, len: u64) -> BlockResult<()> {
        self.clock.tick(|| Device::discard(&*self.own, offset, len))
    }
}

/// The choices of a seed.
struct Plan {
    /// Devices at the beginning.
    devices: usize,
    data: Profile,
    metadata: Profile,
    ops: Vec<Op>,
    changes: Vec<Change>,
    at_once: bool,
    /// Sectors of one device are bad at the beginning.
    bad: bool,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (data, metadata, devices) = (self.data, self.metadata, self.devices);
        write!(
            f,
            "{data} and {metadata} on {devices} devices, {:?}",
            self.changes
        )
    }
}

impl Plan {
    fn new(seed: u64) -> Result<Self, String> {
        let mut random = Rng::with_seed(seed ^ 0xde1c);
        let devices = 2 + random.usize(..2);
        let (data, metadata) = profiles(&mut random, devices);
        let model = Base::get(Format::Btrfs.standard())?.model()?;
        let at_once = !seed.is_multiple_of(3);
        let count = 4 + random.usize(..if at_once { 60 } else { 8 });
        let ops = threads::by_chance(Format::Btrfs, &model, &mut random, count)?;
        let count = 1 + random.usize(..3);
        let changes = std::iter::repeat_with(|| match random.u32(..10) {
            0..3 => {
                let (data, metadata) = profiles(&mut random, MOST);
                Change::Balance(data, metadata)
            }
            3 => Change::Add,
            4 | 5 => Change::Remove(random.u64(1..=3)),
            6..9 => Change::Replace(random.u64(1..=3)),
            _ => Change::Scrub,
        });
        let changes = changes.take(count).collect();
        let mirrored = |profile| matches!(profile, Profile::Raid1 | Profile::Raid1c3);
        Ok(Self {
            devices,
            data,
            metadata,
            ops,
            changes,
            at_once,
            bad: seed.is_multiple_of(4) && mirrored(data) && mirrored(metadata),
        })
    }
}

/// Profiles of data and metadata for a number of devices.
fn profiles(random: &mut Rng, devices: usize) -> (Profile, Profile) {
    // Half of them are mirrored.
    let mut all = vec![Profile::Single, Profile::Dup, Profile::Raid0];
    all.extend([Profile::Raid1; 4]);
    if devices > 2 {
        all.push(Profile::Raid1c3);
    }
    let mut one = || random.choice(&all).copied().unwrap_or(Profile::Single);
    (one(), one())
}

/// A workload that ran.
struct Ran {
    plan: Plan,
    base: Vec<MemoryDevice>,
    logs: Vec<RecordLog>,
    clock: RecordLog,
    ticks: Vec<(usize, Vec<usize>)>,
    lane: Lane,
}

/// Options without background threads, so that only the workload changes the devices.
fn options() -> Options {
    Options {
        background: false,
        threads: 2,
        ..Options::default()
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// The devices of the base, with the files of the standard base.
fn base(plan: &Plan, seed: u64) -> Result<Vec<MemoryDevice>, String> {
    let devices: Vec<_> = (0..MOST)
        .map(|_| Arc::new(MemoryDevice::new(SIZE)))
        .collect();
    let members = devices.get(..plan.devices).unwrap_or_default();
    let each: Vec<&dyn Device> = members.iter().map(|device| &**device as _).collect();
    let made = MkfsOptions {
        data: Some(plan.data),
        metadata: Some(plan.metadata),
        node_size: Some(4096),
        block_group_tree: Some(false),
        ..MkfsOptions::default()
    };
    mkfs_several(&each, &made).map_err(text)?;
    let members = members
        .iter()
        .map(|device| device.clone() as Arc<dyn Device>);
    let fs = Btrfs::open(members.collect(), options()).map_err(text)?;
    let setup = Base::get(Format::Btrfs.standard())?;
    let mut actor = Session::new(&fs, fs.root());
    for op in &setup.setup {
        actor
            .perform(op)
            .map_err(|error| format!("{op}: {error}"))?;
    }
    drop(actor);
    fs.unmount().map_err(text)?;
    drop(fs);
    if plan.bad {
        spoil(&devices, seed)?;
    }
    Ok(devices.iter().map(|device| device.snapshot()).collect())
}

/// Overwrites random sectors of the second device.
fn spoil(devices: &[Arc<MemoryDevice>], seed: u64) -> Result<(), String> {
    let mut random = Rng::with_seed(seed);
    let Some(device) = devices.get(1) else {
        return Ok(());
    };
    for _ in 0..200 {
        let at = random.u64(FIRST_CHUNK / SECTOR..SIZE / SECTOR / 2) * SECTOR;
        if at != SECOND_SUPER {
            device
                .write_at(at, &[0x5a; SECTOR as usize])
                .map_err(text)?;
        }
    }
    Ok(())
}

/// Makes a change. False if it was refused.
fn change(fs: &Btrfs, change: Change, unused: &mut Vec<Arc<dyn Device>>) -> Result<bool, String> {
    let step = &mut |_, _| ControlFlow::Continue(());
    let failed = |error: MembershipError| match error {
        MembershipError::Engine(error) => Err(format!("{change:?}: {error}")),
        _ => Ok(false),
    };
    match change {
        Change::Balance(data, metadata) => {
            let to = |convert| {
                Some(Filter {
                    convert: Some(convert),
                    soft: true,
                    ..Filter::default()
                })
            };
            let options = BalanceOptions {
                data: to(data),
                metadata: to(metadata),
                system: to(metadata),
                force: true,
                ..BalanceOptions::default()
            };
            match balance_mounted(fs, &options, step) {
                Err(BalanceError::Engine(error)) => Err(format!("{change:?}: {error}")),
                done => Ok(done.is_ok()),
            }
        }
        Change::Add => {
            let Some(new) = unused.pop() else {
                return Ok(false);
            };
            add_mounted(fs, &new, true).map_or_else(failed, |_| Ok(true))
        }
        Change::Remove(devid) => {
            let removed = remove_mounted(fs, MountedDevice::Devid(devid), step);
            removed.map_or_else(failed, Ok)
        }
        Change::Replace(devid) => {
            let Some(new) = unused.pop() else {
                return Ok(false);
            };
            let device = MountedDevice::Devid(devid);
            let replaced = replace_mounted(fs, device, &new, true, step);
            replaced.map_or_else(failed, |_| Ok(true))
        }
        Change::Scrub => {
            let go_on = &mut |_: &_| ControlFlow::Continue(());
            let report = scrub_mounted(fs, &ScrubOptions::default(), go_on).map_err(text)?;
            if report.is_clean() {
                Ok(true)
            } else {
                Err(format!("the scrub found what it cannot repair: {report:?}"))
            }
        }
    }
}

impl Sets {
    /// Runs the workload, and checks `cuts` power cuts.
    ///
    /// # Errors
    /// The first failure.
    pub fn explore(&self, cuts: usize) -> (SetTally, Result<(), String>) {
        let mut tally = SetTally::default();
        let explored = self.explored(cuts, &mut tally);
        (tally, explored.map_err(|why| format!("{self}: {why}")))
    }

    fn explored(&self, cuts: usize, tally: &mut SetTally) -> Result<(), String> {
        let ran = self.run(tally)?;
        tally.workloads += 1;
        let oracle = Oracle::new(&ran.lane);
        let mut random = Rng::with_seed(self.seed);
        // Without a request there is no moment.
        let Some(last) = ran.ticks.len().checked_sub(1) else {
            return Ok(());
        };
        for nth in 0..cuts {
            // The first cut is the end.
            let at = if nth == 0 {
                last
            } else {
                random.usize(..=last)
            };
            tally.cuts += 1;
            ran.judge(&oracle, at, random.u64(..), tally)?;
        }
        Ok(())
    }

    fn run(&self, tally: &mut SetTally) -> Result<Ran, String> {
        let plan = Plan::new(self.seed)?;
        let base = base(&plan, self.seed)?;
        let recorded = base
            .iter()
            .map(|device| Arc::new(RecordDevice::new(device.snapshot())));
        let recorded: Vec<Arc<Recorded>> = recorded.collect();
        let clock = Arc::new(Clock {
            recorder: recorder(MemoryDevice::new(SECTOR), Delays::NONE),
            devices: recorded.clone(),
            ticks: Mutex::default(),
        });
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        for own in &recorded {
            let (own, clock) = (own.clone(), clock.clone());
            devices.push(Arc::new(Clocked { own, clock }));
        }
        let mut unused = devices.split_off(plan.devices);
        let began = Timestamp::now();
        let fs = Btrfs::open(devices, options()).map_err(text)?;
        let recovery = (began, Timestamp::now());
        let model = Base::get(Format::Btrfs.standard())?.model()?;
        let mut run = Run::new(Format::Btrfs, (&fs, fs.root()), &model, false);
        let ended = AtomicBool::new(false);
        let mut changes = || -> Result<(), String> {
            for one in &plan.changes {
                let made = change(&fs, *one, &mut unused)?;
                tally.changes += u64::from(made);
                tally.refused += u64::from(!made);
            }
            ended.store(true, Ordering::Release);
            Ok(())
        };
        let mut lane = if plan.at_once {
            thread::scope(|scope| {
                let changing = scope.spawn(&mut changes);
                let lane = run.all(0, &plan.ops, &clock.recorder);
                let changed = changing
                    .join()
                    .map_err(|_| "a change panicked".to_owned())?;
                changed.and(lane)
            })?
        } else {
            changes()?;
            run.all(0, &plan.ops, &clock.recorder)?
        };
        drop(run);
        fs.unmount().map_err(text)?;
        drop(fs);
        lane.recovery = Some(recovery);
        lane.shared = true;
        let logs = recorded
            .iter()
            .map(|device| device.take_log().discards_leave(GARBAGE));
        let ticks = std::mem::take(&mut *clock.ticks.lock());
        Ok(Ran {
            logs: logs.collect(),
            clock: clock.recorder.take_log(),
            ticks,
            base,
            lane,
            plan,
        })
    }
}

impl Ran {
    /// What had begun and ended at a moment of the clock.
    fn progress(&self, at: usize) -> Progress {
        let position = self.ticks.get(at).map_or(0, |(position, _)| *position);
        let mut progress = Progress { done: 0, begun: 0 };
        for (_, mark) in self.clock.marks_before(position) {
            progress.begun += usize::from(mark.starts_with(BEGIN));
            progress.done += usize::from(mark.starts_with(END));
        }
        progress
    }

    /// The devices after a power cut. Each loses all of its cache, nothing, or a random part.
    fn images(&self, at: usize, seed: u64) -> Vec<MemoryDevice> {
        let mut random = Rng::with_seed(seed);
        let positions = self
            .ticks
            .get(at)
            .map(|(_, positions)| positions.as_slice());
        let positions = positions.unwrap_or_default().iter();
        let each = self.logs.iter().zip(&self.base).zip(positions);
        let image = |((log, base), at): ((&RecordLog, &MemoryDevice), &usize)| {
            let mut plan = match random.u32(..4) {
                0 => CrashPlan::at(*at),
                1 => CrashPlan::at(*at).without(log.volatile(*at)),
                _ => log.random_plan(*at, random.u64(..)),
            };
            // Superblocks are written whole.
            plan.torn.clear();
            log.image(base, &plan)
        };
        each.map(image).collect()
    }

    fn judge(
        &self,
        oracle: &Oracle<'_>,
        at: usize,
        seed: u64,
        tally: &mut SetTally,
    ) -> Result<(), String> {
        let images = self.images(at, seed);
        let progress = self.progress(at);
        let plan = &self.plan;
        let why = |what: &str| {
            let (ticks, way) = (self.ticks.len(), if plan.at_once { " at once" } else { "" });
            format!("cut {at} of {ticks} (seed {seed}), {plan}{way}: {what}")
        };
        let mut opened = 0;
        let mut refused = Vec::new();
        for set in 1_u32..1 << MOST {
            let members = images.iter().enumerate();
            let members = members.filter(|(nth, _)| set >> nth & 1 == 1);
            let members: Vec<Arc<dyn Device>> = members
                .map(|(_, image)| Arc::new(image.snapshot()) as Arc<dyn Device>)
                .collect();
            match recovered(&members) {
                Ok(tree) => {
                    opened += 1;
                    let wrong = oracle.judge(&tree, progress);
                    if !wrong.is_empty() {
                        return Err(why(&format!("devices {set:b}: {}", wrong.join("; "))));
                    }
                }
                Err(NotWhole::Refused(error)) => refused.push(format!("{set:b}: {error}")),
                Err(NotWhole::Wrong(error)) => {
                    return Err(why(&format!("devices {set:b}: {error}")));
                }
            }
        }
        tally.opened += opened;
        if opened > 0 {
            return Ok(());
        }
        Err(why(&format!("no devices open: {}", refused.join("; "))))
    }
}

/// Why there is no tree of some devices.
enum NotWhole {
    /// They do not open.
    Refused(String),
    /// They open and are damaged.
    Wrong(String),
}

/// The files of a set of devices, after the check and a scrub.
fn recovered(members: &[Arc<dyn Device>]) -> Result<Tree, NotWhole> {
    let wrong = |what: &str, error: String| NotWhole::Wrong(format!("{what}: {error}"));
    let began = Timestamp::now();
    let fs = Btrfs::open(members.to_vec(), options());
    let fs = fs.map_err(|error| NotWhole::Refused(error.to_string()))?;
    let tree = Tree::of(&fs, Detail::Bytes);
    let mut tree = tree.map_err(|error| wrong("reading all", text(error)))?;
    tree.recovered = Some(began);
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let scrub = scrub_mounted(&fs, &ScrubOptions::default(), go_on);
    let scrub = scrub.map_err(|error| wrong("scrub", text(error)))?;
    if !scrub.is_clean() {
        return Err(wrong("scrub", format!("{scrub:?}")));
    }
    fs.unmount()
        .map_err(|error| wrong("unmount", text(error)))?;
    drop(fs);
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let each: Vec<&dyn Device> = members.iter().map(|device| &**device).collect();
    let report = sapwood_btrfs::check::check(&each, &options, &mut |_| ());
    let report = report.map_err(|error| wrong("check", text(error)))?;
    match report.errors().next() {
        Some(first) => Err(wrong("check", text(first))),
        None => Ok(tree),
    }
}
