//! [`Campaign`]: many workloads on several threads, with a limit of time.

use std::fmt;
use std::time::{Duration, Instant};

use fastrand::Rng;
use parking_lot::Mutex;

use crate::again::Again;
use crate::base::{Base, BaseKind};
use crate::bounded::Bounded;
use crate::cases;
use crate::cut::{Depth, tears};
use crate::engine::Format;
use crate::explore::{Found, explore_with, seed_of};
use crate::judge::{Judge, Tally};
use crate::kernel::Kernel;
use crate::kernel_queue::{KernelQueue, Sample, Verdicts};
use crate::race::Race;
use crate::record::{Recording, Setting, Workload};
use crate::reshape;
use crate::shrink::shrink;
use crate::subject::Subject;
use crate::threads::Threads;

/// The extent of a campaign.
#[derive(Debug, Clone)]
pub struct CampaignPlan {
    /// The engine under test.
    pub engine: Format,
    /// How workloads are mounted.
    pub setting: Setting,
    /// Threads.
    pub jobs: usize,
    /// Time limit. Phases that are complete by definition run to their end even if it takes longer.
    pub time: Duration,
    /// Have the kernel check sampled images too, if it can.
    pub kernel: bool,
    /// Number of failures after which a phase ends.
    pub patience: usize,
    /// Determines all random choices.
    pub seed: u64,
    /// Run one in this many of the sequences of two operations; 1 runs all.
    pub stride: usize,
    /// The base that replaces the standard one.
    pub base: Option<BaseKind>,
}

/// Depth and frequency of the checks of a phase.
#[derive(Debug, Clone, Copy)]
struct Care {
    depth: Depth,
    /// The kernel checks an image of one in this many workloads; 0: of none.
    sample: u64,
    /// Wait for the kernel, instead of skipping the image.
    wait: bool,
}

/// The result of a phase.
#[derive(Debug, Clone)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Its counters.
    pub tally: Tally,
    /// Failures.
    pub failures: Vec<Found>,
    /// Duration of the phase.
    pub time: Duration,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        write!(
            f,
            "{:28} {:8} workloads {:9} cuts {:9} images {:9} recoveries {:9} comparisons {:3} failures {:6.1} s",
            self.name,
            tally.workloads,
            tally.cuts,
            tally.images,
            tally.recoveries,
            tally.comparisons,
            self.failures.len(),
            self.time.as_secs_f64()
        )
    }
}

/// All phases.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The engine under test.
    pub engine: Format,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// The kernel's verdicts; `None` if the kernel checked no images.
    pub kernel: Option<Verdicts>,
    /// The reason why it checked none.
    pub no_kernel: Option<String>,
}

impl Report {
    /// All failures.
    pub fn failures(&self) -> impl Iterator<Item = &Found> {
        let phases = self.phases.iter().flat_map(|phase| &phase.failures);
        phases.chain(self.kernel.iter().flat_map(|kernel| &kernel.failures))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Tally::default();
        let mut time = Duration::ZERO;
        for phase in &self.phases {
            all += phase.tally;
            time += phase.time;
        }
        let failures = self.failures().count();
        writeln!(
            f,
            "{} workloads, {} crashes, {} different images, {} recoveries, {} comparisons with the model ({} undecided), {failures} failures, {:.0} s",
            all.workloads,
            all.cuts,
            all.images,
            all.recoveries,
            all.comparisons,
            all.undecided,
            time.as_secs_f64()
        )?;
        match (&self.kernel, &self.no_kernel) {
            (Some(kernel), _) => {
                writeln!(
                    f,
                    "{} images judged by the kernel, {} of them with a log; {} runs of {}",
                    kernel.images,
                    kernel.with_log,
                    kernel.checks,
                    self.engine.tool()
                )?;
                let operations = kernel.by_operation.iter();
                let operations: Vec<String> =
                    operations.map(|(verb, n)| format!("{verb} {n}")).collect();
                writeln!(f, "    by operation: {}", operations.join(", "))
            }
            (None, Some(why)) => writeln!(f, "SKIPPED the kernel as a judge: {why}"),
            (None, None) => Ok(()),
        }
    }
}

/// Runs phases.
pub struct Campaign {
    plan: CampaignPlan,
    end: Instant,
    queue: Option<KernelQueue>,
    report: Report,
}

impl Campaign {
    /// Starts a campaign, and its time limit.
    #[must_use]
    pub fn new(plan: CampaignPlan) -> Self {
        let mut report = Report {
            engine: plan.engine,
            ..Report::default()
        };
        let queue = plan.kernel.then(|| {
            let base = Base::get(plan.engine.standard())?;
            Kernel::new(plan.engine, &base.device).map(KernelQueue::open)
        });
        let queue = match queue {
            Some(Ok(queue)) => Some(queue),
            Some(Err(why)) => {
                report.no_kernel = Some(why);
                None
            }
            None => None,
        };
        Self {
            end: Instant::now() + plan.time,
            plan,
            queue,
            report,
        }
    }

    /// Runs all phases: the complete ones first, then the random ones until the time is over.
    ///
    /// # Errors
    /// If a base cannot be made.
    pub fn everything(mut self) -> Result<Report, String> {
        self.cases()?;
        self.ones()?;
        self.twos()?;
        self.longs();
        self.threads();
        self.races();
        self.agains();
        self.reshapes();
        self.threes()?;
        Ok(self.close())
    }

    /// The base of most workloads.
    fn base(&self) -> BaseKind {
        let standard = self.plan.engine.standard();
        self.plan.base.unwrap_or(standard)
    }

    /// All sequences of one operation, on all bases.
    ///
    /// # Errors
    /// If a base cannot be made.
    pub fn ones(&mut self) -> Result<(), String> {
        let mut all = Vec::new();
        let bases = self
            .plan
            .base
            .map_or_else(|| self.plan.engine.bases(), |base| vec![base]);
        for kind in bases {
            all.extend(Bounded::new(kind)?.ones());
        }
        let care = Care {
            depth: Depth::FULL,
            sample: 2,
            wait: true,
        };
        self.phase(
            "one operation",
            all.into_iter().map(Subject::from),
            care,
            None,
        );
        Ok(())
    }

    /// All sequences of two.
    ///
    /// # Errors
    /// If the base cannot be made.
    pub fn twos(&mut self) -> Result<(), String> {
        let bounded = Bounded::new(self.base())?;
        let all = (0..bounded.firsts()).flat_map(move |first| bounded.twos(first));
        let stride = self.plan.stride.max(1);
        let all = all.skip(self.plan.seed as usize % stride).step_by(stride);
        let name = match stride {
            1 => "two operations, all",
            _ => "two operations, some",
        };
        let care = Care {
            depth: Depth::BRIEF,
            sample: 20,
            wait: false,
        };
        self.phase(name, all.map(Subject::from), care, None);
        Ok(())
    }

    /// Random sequences of three, until the time is over.
    ///
    /// # Errors
    /// If the base cannot be made.
    pub fn threes(&mut self) -> Result<(), String> {
        let bounded = Bounded::new(self.base())?;
        let seed = self.plan.seed;
        let all = (seed..).filter_map(move |seed| bounded.three(seed));
        let care = Care {
            depth: Depth::BRIEF,
            sample: 20,
            wait: false,
        };
        self.phase(
            "three operations, by chance",
            all.map(Subject::from),
            care,
            Some(self.end),
        );
        Ok(())
    }

    /// The known trouble cases.
    ///
    /// # Errors
    /// Never, unless the text of a case is wrong.
    pub fn cases(&mut self) -> Result<(), String> {
        let (standard, base) = (self.plan.engine.standard(), self.base());
        let all = cases::all(self.plan.engine)?.into_iter().map(|case| {
            let mut workload = case.workload;
            if workload.base == standard {
                workload.base = base;
            }
            workload.into()
        });
        let care = Care {
            depth: Depth::FULL,
            sample: 1,
            wait: true,
        };
        self.phase("known trouble cases", all, care, None);
        Ok(())
    }

    /// Long random sequences, for a share of the time.
    pub fn longs(&mut self) {
        let (seed, engine, base) = (self.plan.seed, self.plan.engine, self.base());
        let all = (seed..).filter_map(|seed| {
            let ops = 4 + (seed % 9) as usize;
            let alone = Threads {
                engine,
                seed,
                lanes: 1,
                ops,
            };
            Some(
                Workload {
                    base,
                    ops: alone.plan(0).ok()?,
                }
                .into(),
            )
        });
        let care = Care {
            depth: Depth::BRIEF,
            sample: 20,
            wait: false,
        };
        let end = self.share(5);
        self.phase("long sequences, by chance", all, care, Some(end));
    }

    /// The end of a share: the remaining time divided by `parts`.
    fn share(&self, parts: u32) -> Instant {
        let now = Instant::now();
        now + self.end.saturating_duration_since(now) / parts
    }

    /// Threads in directories of their own, for a share of the time.
    pub fn threads(&mut self) {
        let (seed, engine) = (self.plan.seed, self.plan.engine);
        let all = (seed..).map(|seed| {
            let lanes = 2 + (seed % 3) as usize;
            let ops = 6 + (seed % 13) as usize;
            Threads {
                engine,
                seed,
                lanes,
                ops,
            }
            .into()
        });
        let care = Care {
            depth: Depth::BRIEF,
            sample: 10,
            wait: false,
        };
        let end = self.share(4);
        self.phase("threads", all, care, Some(end));
    }

    /// Threads on the same names, for a share of the time.
    pub fn races(&mut self) {
        let (seed, bases) = (self.plan.seed, self.racing_bases());
        let all = (seed..).filter_map(move |seed| {
            let base = bases.get(seed as usize % bases.len())?;
            let threads = 2 + (seed / 2 % 2) as usize;
            let ops = 3 + (seed % 5) as usize;
            let race = Race::by_chance(*base, seed, threads, ops);
            Some(race.ok()?.into())
        });
        let care = Care {
            depth: Depth::BRIEF,
            sample: 20,
            wait: false,
        };
        let end = self.share(3);
        self.phase("threads on the same names", all, care, Some(end));
    }

    /// A second workload on the state that a crash of the first left, for a share of the time.
    pub fn agains(&mut self) {
        let (seed, bases) = (self.plan.seed, self.racing_bases());
        let setting = self.plan.setting.clone();
        let all = (seed..).filter_map(move |seed| {
            let base = *bases.get(seed as usize % bases.len())?;
            let (first, second) = (2 + (seed % 5) as usize, 1 + (seed / 3 % 4) as usize);
            match Again::by_chance(base, seed, first, second, &setting) {
                Ok(again) => Some(again.into()),
                Err(why) => {
                    eprintln!("seed {seed} has no second generation: {why}");
                    None
                }
            }
        });
        let care = Care {
            depth: Depth::BRIEF,
            sample: 20,
            wait: false,
        };
        let end = self.share(2);
        self.phase("second generation", all, care, Some(end));
    }

    /// Changes of the size and trims, for a share of the time.
    pub fn reshapes(&mut self) {
        let (seed, engine) = (self.plan.seed, self.plan.engine);
        let all = (seed..).filter_map(move |seed| match reshape::by_chance(engine, seed) {
            Ok(subject) => Some(subject),
            Err(why) => {
                eprintln!("seed {seed} has no reshape: {why}");
                None
            }
        });
        let care = Care {
            depth: Depth::BRIEF,
            sample: 3,
            wait: true,
        };
        let end = self.share(2);
        self.phase("resize and trim", all, care, Some(end));
    }

    /// The base of most workloads; for ext4 also the one with fast commits.
    fn racing_bases(&self) -> Vec<BaseKind> {
        match (self.plan.base, self.plan.engine) {
            (Some(base), _) => vec![base],
            (None, Format::Btrfs) => vec![BaseKind::Standard],
            (None, Format::Ext4) => vec![BaseKind::Ext4, BaseKind::Ext4Fast],
        }
    }

    /// Ends the campaign after the kernel has checked all queued images.
    #[must_use]
    pub fn close(mut self) -> Report {
        self.report.kernel = self.queue.take().map(KernelQueue::close);
        self.report
    }

    fn phase(
        &mut self,
        name: &'static str,
        workloads: impl Iterator<Item = Subject> + Send,
        care: Care,
        end: Option<Instant>,
    ) {
        let start = Instant::now();
        let workloads = Mutex::new(workloads);
        let done = Mutex::new((Tally::default(), Vec::new()));
        let this = &*self;
        std::thread::scope(|scope| {
            for _ in 0..this.plan.jobs.max(1) {
                scope.spawn(|| {
                    loop {
                        if end.is_some_and(|end| Instant::now() >= end) {
                            return;
                        }
                        let Some(subject) = workloads.lock().next() else {
                            return;
                        };
                        let (tally, result) = this.one(&subject, care);
                        let mut done = done.lock();
                        done.0 += tally;
                        if let Err(found) = result {
                            eprint!("{found}");
                            done.1.push(found);
                        }
                        if done.1.len() >= this.plan.patience {
                            return;
                        }
                    }
                });
            }
        });
        let (tally, failures) = done.into_inner();
        let failures = failures.into_iter().map(|found| {
            let small = shrink(found, &self.plan.setting, care.depth);
            eprint!("shrunk: {small}");
            small
        });
        let phase = Phase {
            name,
            tally,
            failures: failures.collect(),
            time: start.elapsed(),
        };
        println!("{phase}");
        self.report.phases.push(phase);
    }

    fn one(&self, subject: &Subject, care: Care) -> (Tally, Result<(), Found>) {
        let mut random = Rng::with_seed(seed_of(subject) ^ self.plan.seed);
        let asked = care.sample > 0 && random.u64(..care.sample) == 0;
        explore_with(
            subject,
            &self.plan.setting,
            care.depth,
            &mut |run, judge| {
                if let Some(queue) = self.queue.as_ref().filter(|_| asked) {
                    hand_over(subject, (run, judge), queue, &mut random, care.wait);
                }
                Ok(())
            },
        )
    }
}

/// Queues one image for the kernel: one with a log to replay, if there is one.
fn hand_over(
    subject: &Subject,
    (run, judge): (&Recording, &mut Judge<'_>),
    queue: &KernelQueue,
    random: &mut Rng,
    wait: bool,
) {
    let first_super = subject.engine().first_super();
    let mut plans: Vec<_> = judge.recoveries().map(|(plan, _)| plan.clone()).collect();
    plans.retain(|plan| !tears(&run.log, plan, first_super));
    random.shuffle(&mut plans);
    let Some(mut plan) = plans.first().cloned() else {
        return;
    };
    let mut image = judge.image(&plan);
    for other in plans {
        if subject.engine().has_log(&image) {
            break;
        }
        let next = judge.image(&other);
        if subject.engine().has_log(&next) {
            (plan, image) = (other, next);
        }
    }
    let sample = Sample {
        subject: subject.clone(),
        plan,
        image,
    };
    if wait {
        queue.send(sample);
    } else {
        queue.try_send(sample);
    }
}
