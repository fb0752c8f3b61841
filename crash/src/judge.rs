//! [`Judge`]: recovers crash images of one recording and reports what is wrong with them.
//!
//! The engine mounts each image (and replays its log), reads everything, and checks it with data
//! checksums; then the [`Oracle`] compares. The result of a recovery is reused for all images that
//! have the same content in every sector that it read (see [`crate::image`]).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use sapwood_block::{Device, MemoryDevice, Result as BlockResult};
use sapwood_testing::{CrashPlan, Replayer};

use sapwood_testing::tree::{Detail, Tree};
use sapwood_vfs::Timestamp;

use crate::cut::Cut;
use crate::engine::Format;
use crate::image::{Footprint, Images, digest};
use crate::oracle::Oracle;
use crate::policy::Policy;
use crate::record::{Progress, Recording};

/// What a recovery found.
#[derive(Debug, Clone)]
pub struct Recovered {
    /// All files.
    pub tree: Tree,
    /// Bytes of the file system.
    pub size: u64,
}

/// The result of a recovery, or the reason why there is none.
pub type Outcome = Result<Recovered, String>;

/// A crash with a wrong recovery.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The crash, if there is one.
    pub cut: Option<Cut>,
    /// What is wrong, one line each.
    pub wrong: Vec<String>,
    /// The image that the crash left.
    pub image: Option<Arc<MemoryDevice>>,
}

impl Failure {
    /// A failure of the workload itself, which has no crash.
    #[must_use]
    pub fn without_crash(why: String) -> Self {
        Self {
            cut: None,
            wrong: vec![why],
            image: None,
        }
    }
}

/// Counters of what was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Workloads that ran.
    pub workloads: u64,
    /// Crashes that were checked.
    pub cuts: u64,
    /// Different images among them.
    pub images: u64,
    /// Images that were mounted and checked; the others equal one of them in every sector that was
    /// read.
    pub recoveries: u64,
    /// Comparisons of a recovered tree with the reference model.
    pub comparisons: u64,
    /// Comparisons that could not be decided, because too many orders of calls are possible.
    pub undecided: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.cuts += other.cuts;
        self.images += other.images;
        self.recoveries += other.recoveries;
        self.comparisons += other.comparisons;
        self.undecided += other.undecided;
    }
}

struct Known {
    footprint: Footprint,
    outcome: Arc<Outcome>,
    judged: HashSet<Vec<Progress>>,
    /// A crash that leaves the image, for the oracles that use samples.
    plan: CrashPlan,
}

/// Checks crashes of one recording.
pub struct Judge<'a> {
    recording: &'a Recording,
    oracles: Vec<Oracle<'a>>,
    images: Images<'a>,
    replayer: Replayer<'a>,
    seen: HashSet<(u64, Vec<Progress>)>,
    digests: HashSet<u64>,
    known: Vec<Known>,
    progress: BTreeMap<usize, Vec<Progress>>,
    /// The counters so far.
    pub tally: Tally,
}

impl<'a> Judge<'a> {
    /// A judge of this recording.
    ///
    /// # Errors
    /// As [`Images::new`].
    pub fn new(recording: &'a Recording) -> Result<Self, String> {
        Ok(Self {
            recording,
            oracles: match &recording.race {
                Some(race) => race
                    .orders
                    .iter()
                    .map(|order| Oracle::new(&order.lane))
                    .collect(),
                None => recording.lanes.iter().map(Oracle::new).collect(),
            },
            images: Images::new(&recording.log, &recording.base)?,
            replayer: Replayer::new(&recording.log, &recording.base),
            seen: HashSet::new(),
            digests: HashSet::new(),
            known: Vec::new(),
            progress: BTreeMap::new(),
            tally: Tally {
                workloads: 1,
                ..Tally::default()
            },
        })
    }

    /// Checks a crash.
    ///
    /// # Errors
    /// What is wrong with its recovery.
    pub fn judge(&mut self, plan: &CrashPlan) -> Result<(), Failure> {
        self.tally.cuts += 1;
        let recording = self.recording;
        let progress = self
            .progress
            .entry(plan.at)
            .or_insert_with(|| recording.progress(plan.at))
            .clone();
        let signature = self.images.signature(plan);
        let digest = digest(&signature);
        if self.digests.insert(digest) {
            self.tally.images += 1;
        }
        if !self.seen.insert((digest, progress.clone())) {
            return Ok(());
        }
        let index = match self
            .known
            .iter()
            .position(|known| known.footprint.matches(&signature))
        {
            Some(index) => index,
            None => {
                let (outcome, reads) = recover(recording.engine, self.replayer.image(plan));
                self.tally.recoveries += 1;
                self.known.push(Known {
                    footprint: self.images.footprint(&signature, &reads),
                    outcome: Arc::new(outcome),
                    judged: HashSet::new(),
                    plan: plan.clone(),
                });
                self.known.len() - 1
            }
        };
        let Some(known) = self.known.get_mut(index) else {
            return Ok(());
        };
        if !known.judged.insert(progress.clone()) {
            return Ok(());
        }
        self.tally.comparisons += 1;
        let wrong = match &*known.outcome {
            Ok(Recovered { tree, size }) => {
                let numbered = recording.numbered(tree);
                let tree = numbered.as_ref().unwrap_or(tree);
                let mut wrong = match &recording.race {
                    Some(race) => match race.judge(&self.oracles, tree, &progress) {
                        Some(wrong) => wrong,
                        None => {
                            self.tally.undecided += 1;
                            Vec::new()
                        }
                    },
                    None => judge_all(&self.oracles, tree, &progress),
                };
                if let Some(sizes) = &recording.sizes {
                    wrong.extend(sizes.judge(*size, &progress));
                }
                wrong
            }
            Err(why) => vec![why.clone()],
        };
        if wrong.is_empty() {
            return Ok(());
        }
        Err(Failure {
            cut: Some(Cut(plan.clone())),
            wrong,
            image: Some(Arc::new(self.replayer.image(plan))),
        })
    }

    /// The different recoveries so far: one crash of each, and its result.
    pub fn recoveries(&self) -> impl Iterator<Item = (&CrashPlan, &Outcome)> {
        self.known
            .iter()
            .map(|known| (&known.plan, &*known.outcome))
    }

    /// The image that a crash leaves.
    pub fn image(&mut self, plan: &CrashPlan) -> MemoryDevice {
        self.replayer.image(plan)
    }
}

fn judge_all(oracles: &[Oracle<'_>], tree: &Tree, progress: &[Progress]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (oracle, progress) in oracles.iter().zip(progress) {
        if oracle.root() == tree.root {
            wrong.extend(oracle.judge(tree, *progress));
        } else {
            wrong.extend(oracle.judge(&tree.below(oracle.root()), *progress));
        }
    }
    wrong
}

/// Mounts, reads and checks an image; returns also the ranges that were read, as offsets and
/// lengths.
pub fn recover(engine: Format, image: MemoryDevice) -> (Outcome, Vec<(u64, u64)>) {
    let device = Arc::new(Tracked {
        inner: image,
        reads: Mutex::default(),
    });
    let outcome = recovered(engine, &device);
    let reads = std::mem::take(&mut *device.reads.lock());
    (outcome, reads)
}

/// Mounts, reads and checks an image; returns also the image after that.
pub fn recover_in_place(engine: Format, image: MemoryDevice) -> (MemoryDevice, Outcome) {
    let device = Arc::new(Tracked {
        inner: image,
        reads: Mutex::default(),
    });
    let outcome = recovered(engine, &device);
    (device.inner.snapshot(), outcome)
}

fn recovered(engine: Format, device: &Arc<Tracked>) -> Outcome {
    let began = Timestamp::now();
    let fs = engine.open(device.clone(), Policy::Now, 1);
    let fs = fs.map_err(|error| format!("mount: {error}"))?;
    let mut tree =
        Tree::of(&*fs, Detail::Bytes).map_err(|error| format!("reading all: {error}"))?;
    tree.recovered = Some(began);
    fs.unmount().map_err(|error| format!("unmount: {error}"))?;
    drop(fs);
    let device: Arc<dyn Device> = device.clone();
    let checked = engine.check(&device);
    checked.map_err(|why| format!("check: {why}"))?;
    let size = engine.size(&*device)?;
    Ok(Recovered { tree, size })
}

/// Records the ranges that are read.
#[derive(Debug)]
struct Tracked {
    inner: MemoryDevice,
    reads: Mutex<Vec<(u64, u64)>>,
}

impl sapwood_block::Layer for Tracked {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.inner
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> BlockResult<()> {
        self.reads.lock().push((offset, buf.len() as u64));
        self.inner.read_at(offset, buf)
    }
}
