//! `sapwood check`.

use std::path::PathBuf;
use std::process::ExitCode;

use indicatif::ProgressBar;
use sapwood_btrfs::check::{self, CheckOptions, CheckReport, Phase, Progress};
use serde_json::json;

use super::failure::{FAILED, Failure, IMAGE};
use super::{output, progress};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    image: PathBuf,
    /// Read all data too, and compare every copy with its checksums
    #[arg(long)]
    check_data_csum: bool,
    /// Print at most this many findings
    #[arg(long, default_value_t = 1000)]
    most: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print findings only
    #[arg(short, long)]
    quiet: bool,
}

/// Exit code 0: nothing wrong; 1: something is; 3: the image could not be checked.
pub(super) fn run(args: &Args) -> ExitCode {
    let device = match sapwood::image::open_device(&args.image, true) {
        Ok(device) => device,
        Err(error) => return Failure::from(error).report(),
    };
    let options = CheckOptions {
        check_data_csum: args.check_data_csum,
        max_findings: args.most,
    };
    let bar = match args.quiet || args.json {
        true => ProgressBar::hidden(),
        false => progress::items("checking"),
    };
    let checked = check::check(&[&*device], &options, &mut |step: Progress| {
        bar.set_message(phase(step.phase));
        bar.set_position(step.done);
    });
    bar.finish_and_clear();
    match checked {
        Ok(report) => {
            print(args, &report);
            ExitCode::from(if report.is_clean() { 0 } else { FAILED })
        }
        Err(error) => Failure::local(&args.image, error).with_code(IMAGE).report(),
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Space => "space",
        Phase::Trees => "trees",
        Phase::Compare => "cross references",
        Phase::Data => "data",
    }
}

fn print(args: &Args, report: &CheckReport) {
    if args.json {
        let findings = report.findings.iter().map(|finding| {
            json!({ "code": finding.code(), "severity": format!("{:?}", finding.severity()).to_lowercase(), "text": finding.to_string() })
        });
        output::json(&json!({
            "clean": report.is_clean(),
            "findings": findings.collect::<Vec<_>>(),
            "suppressed": report.suppressed,
        }));
        return;
    }
    for finding in &report.findings {
        output::line(finding);
    }
    if report.suppressed > 0 {
        output::line(format!("and {} more", report.suppressed));
    }
    if !args.quiet {
        let count = report.findings.len() as u64 + report.suppressed;
        output::line(match (report.is_clean(), count) {
            (true, 0) => "clean".to_owned(),
            (true, _) => "clean, with warnings".to_owned(),
            (false, 1) => "1 finding".to_owned(),
            (false, many) => format!("{many} findings"),
        });
    }
}
