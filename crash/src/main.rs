//! `sapwood-crash`: checks crashes of many workloads, or reproduces one.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use sapwood_block::MemoryDevice;
use sapwood_crash::base::{Base, BaseKind};
use sapwood_crash::campaign::{Campaign, CampaignPlan};
use sapwood_crash::cut::Depth;
use sapwood_crash::engine::Format;
use sapwood_crash::explore::{explore, parse_id, replay};
use sapwood_crash::kernel::Kernel;
use sapwood_crash::kernel_queue;
use sapwood_crash::plant::Plant;
use sapwood_crash::policy::Policy;
use sapwood_crash::record::Setting;
use sapwood_crash::sets::{SetTally, Sets};
use sapwood_crash::subject::Subject;
use sapwood_crash::threads::Threads;
use sapwood_testing::CrashPlan;
use sapwood_testing::op::to_text;

/// Check the states that power cuts leave.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Plant a fault: lying-flush, skip-fsync, no-barrier.
    #[arg(long, global = true)]
    plant: Option<Plant>,
    /// How changes become durable: now (the default); for ext4 data-journal, full-fast-commits; for
    /// btrfs no-log, busy (each fsync is next to another one).
    #[arg(long, global = true, default_value = "now")]
    policy: Policy,
    /// Do not delay the device's answers to threads.
    #[arg(long, global = true)]
    at_once: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check one failure again, by its id.
    Replay {
        /// The text after FAILED.
        id: String,
        /// Write the image of the failing crash to this file.
        #[arg(long)]
        keep: Option<std::path::PathBuf>,
    },
    /// Run all phases, with a time limit.
    All {
        /// Time limit of the random phases, in seconds; the complete phases run to their end.
        #[arg(long, default_value_t = 1500)]
        seconds: u64,
        /// Number of threads; 0: one for each processor.
        #[arg(long, default_value_t = 0)]
        jobs: usize,
        /// Seed of all random choices.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Do not check images with the kernel.
        #[arg(long)]
        no_kernel: bool,
        /// Number of failures after which a phase ends.
        #[arg(long, default_value_t = 10)]
        patience: usize,
        /// Engine under test: btrfs, ext4.
        #[arg(long, default_value = "btrfs")]
        engine: Format,
        /// Run one in this many of the sequences of two operations, chosen by the seed.
        #[arg(long, default_value_t = 1)]
        stride: usize,
        /// Use this base in place of the standard one, for example ext4-fast.
        #[arg(long)]
        base: Option<BaseKind>,
        /// Run only this phase: cases, ones, twos, longs, threads, races, agains, reshapes,
        /// threes.
        #[arg(long)]
        only: Option<String>,
    },
    /// Write the image of a crash to a file.
    Save {
        /// Id of the crash.
        id: String,
        /// The file.
        path: std::path::PathBuf,
    },
    /// Show the operations of each thread of `threads: SEED LANES OPS`.
    Plan {
        /// Text of the workload.
        threads: Threads,
    },
    /// Check one crash with the kernel, by its id.
    Kernel {
        /// Id of the crash.
        id: String,
    },
    /// Check power cuts of a btrfs over several devices, while devices and block groups change.
    Devices {
        /// Seconds.
        #[arg(long, default_value_t = 300)]
        seconds: u64,
        /// Seed of the first workload; the others follow.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Power cuts of each workload.
        #[arg(long, default_value_t = 30)]
        cuts: usize,
        /// Failures after which it ends.
        #[arg(long, default_value_t = 10)]
        patience: usize,
    },
    /// Check all crashes of one workload.
    One {
        /// Text of the workload, for example `std: creat A/x; fsync A/x`.
        workload: String,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let setting = Setting {
        plant: arguments.plant,
        policy: arguments.policy,
        at_once: arguments.at_once,
        ..Setting::default()
    };
    match &arguments.command {
        Command::All {
            seconds,
            jobs,
            seed,
            no_kernel,
            patience,
            engine,
            stride,
            base,
            only,
        } => {
            if !setting.policy.fits(*engine) {
                return Err(format!("{engine} has no policy {}", setting.policy));
            }
            if let Some(base) = base.filter(|base| base.engine() != *engine) {
                return Err(format!("{engine} has no base {base}"));
            }
            let jobs = match jobs {
                0 => std::thread::available_parallelism().map_or(2, usize::from),
                jobs => *jobs,
            };
            let campaign = Campaign::new(CampaignPlan {
                engine: *engine,
                setting,
                jobs,
                time: Duration::from_secs(*seconds),
                kernel: !no_kernel,
                patience: *patience,
                seed: *seed,
                stride: *stride,
                base: *base,
            });
            all(campaign, only.as_deref())
        }
        Command::Devices {
            seconds,
            seed,
            cuts,
            patience,
        } => devices(Duration::from_secs(*seconds), *seed, *cuts, *patience),
        Command::Plan { threads } => {
            for lane in 0..threads.lanes {
                println!("{}", to_text(&threads.plan(lane)?));
            }
            Ok(())
        }
        Command::Save { id, path } => {
            let image = image(id, &setting)?;
            image.save(path).map_err(|error| error.to_string())
        }
        Command::Kernel { id } => {
            let engine = parse_id(id)?.0.engine();
            let image = image(id, &setting)?;
            let kernel = Kernel::new(engine, &Base::get(engine.standard())?.device)?;
            kernel_queue::judge(&kernel, &image)?;
            println!("the kernel agrees");
            Ok(())
        }
        Command::Replay { id, keep } => {
            let (workload, cut) = parse_id(id)?;
            let cut = cut.map(|cut| cut.0);
            replayed(&workload, cut.as_ref(), &setting, keep.as_deref())?;
            println!("nothing is wrong");
            Ok(())
        }
        Command::One { workload } => {
            let start = Instant::now();
            let (tally, result) = explore(&workload.parse()?, &setting, Depth::FULL);
            println!("{tally:?} in {:?}", start.elapsed());
            result.map_err(|found| found.to_string())
        }
    }
}

fn replayed(
    subject: &Subject,
    cut: Option<&CrashPlan>,
    setting: &Setting,
    keep: Option<&std::path::Path>,
) -> Result<(), String> {
    let Err(found) = replay(subject, cut, setting) else {
        return Ok(());
    };
    if let (Some(path), Some(image)) = (keep, &found.failure.image) {
        image.save(path).map_err(|error| error.to_string())?;
    }
    Err(found.to_string())
}

/// The image that a crash leaves.
fn image(id: &str, setting: &Setting) -> Result<MemoryDevice, String> {
    let (subject, cut) = parse_id(id)?;
    let cut = cut.ok_or("the id has no cut")?;
    let recording = subject.run(setting)?;
    Ok(recording.log.image(&recording.base, &cut.0))
}

fn all(mut campaign: Campaign, only: Option<&str>) -> Result<(), String> {
    let report = match only {
        None => campaign.everything()?,
        Some(phase) => {
            match phase {
                "cases" => campaign.cases()?,
                "longs" => campaign.longs(),
                "threads" => campaign.threads(),
                "races" => campaign.races(),
                "agains" => campaign.agains(),
                "reshapes" => campaign.reshapes(),
                "ones" => campaign.ones()?,
                "twos" => campaign.twos()?,
                "threes" => campaign.threes()?,
                other => return Err(format!("no phase is named {other:?}")),
            }
            campaign.close()
        }
    };
    for found in report.kernel.iter().flat_map(|kernel| &kernel.failures) {
        eprint!("{found}");
    }
    println!("{report}");
    match report.failures().count() {
        0 => Ok(()),
        n => Err(format!("{n} failures")),
    }
}

/// Explores workloads over several devices until the time or the patience ends.
fn devices(time: Duration, first: u64, cuts: usize, patience: usize) -> Result<(), String> {
    let start = Instant::now();
    let mut sum = SetTally::default();
    let mut failures = 0;
    for seed in first.. {
        if start.elapsed() >= time || failures >= patience {
            break;
        }
        let (tally, explored) = Sets { seed }.explore(cuts);
        sum += tally;
        if let Err(why) = explored {
            eprintln!("{why}");
            failures += 1;
        }
    }
    println!("{sum:?} in {:?}", start.elapsed());
    match failures {
        0 => Ok(()),
        failures => Err(format!("{failures} failures")),
    }
}
