//! `sapwood-crash`: explores crashes, or replays one.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use sapwood_crash::cut::Depth;
use sapwood_crash::explore::{explore, parse_id, replay};
use sapwood_crash::plant::Plant;
use sapwood_crash::record::Setting;

/// Explores what power cuts leave behind.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Break something on purpose: lying-flush, skip-fsync, no-barrier.
    #[arg(long, global = true)]
    plant: Option<Plant>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Judges one failure again, by its id.
    Replay {
        /// The text behind FAILED.
        id: String,
    },
    /// Judges all crashes of one workload.
    One {
        /// Its text, say `std: creat A/x; fsync A/x`.
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
        ..Setting::default()
    };
    match &arguments.command {
        Command::Replay { id } => {
            let (workload, cut) = parse_id(id)?;
            let cut = cut.map(|cut| cut.0);
            replay(&workload, cut.as_ref(), &setting).map_err(|found| found.to_string())?;
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
