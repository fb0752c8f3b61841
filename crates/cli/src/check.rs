//! `sapwood check`.

use std::path::PathBuf;

use sapwood::internal::CheckError;
use sapwood::{CheckFinding, CheckOptions, CheckReport, Progress};
use serde_json::json;

use super::failure::{DEVICES, Failure, IMAGE, Result};
use super::{choice, output, progress};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    pub(super) image: PathBuf,
    /// Read all data too, and compare every copy with its checksums (btrfs; ext4 has none of data)
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
pub(super) fn run(args: &Args) -> Result<()> {
    let options = CheckOptions {
        data: args.check_data_csum,
        max_findings: args.most,
        opening: choice::opening(true),
    };
    let bar = progress::phases(args.quiet || args.json);
    let checked = sapwood::check(&args.image, &options, &mut |step| match step {
        Progress::Total(total) => progress::begin_phase(&bar, total),
        Progress::Done { phase, done } => {
            bar.set_message(phase);
            bar.set_position(done);
        }
        _ => {}
    });
    bar.finish_and_clear();
    let report = checked.map_err(|error| match error.downcast_ref() {
        None => error.into(),
        Some(part) if CheckError::needs_devices(part) => Failure::new(IMAGE, error).advise(DEVICES),
        Some(_) => Failure::new(IMAGE, error),
    })?;
    print(args, &report)?;
    if report.clean {
        Ok(())
    } else {
        Err(Failure::reported())
    }
}

/// A finding as JSON.
#[derive(serde::Serialize)]
struct Shown<'f> {
    code: &'f str,
    severity: &'f str,
    text: &'f str,
}

impl<'f> Shown<'f> {
    fn new(finding: &'f CheckFinding) -> Self {
        Self {
            code: finding.code,
            severity: if finding.warning { "warning" } else { "error" },
            text: &finding.text,
        }
    }
}

fn print(args: &Args, report: &CheckReport) -> Result<()> {
    if args.json {
        return output::object(&json!({
            "clean": report.clean,
            "findings": report.findings.iter().map(Shown::new).collect::<Vec<_>>(),
            "suppressed": report.suppressed,
        }));
    }
    for finding in &report.findings {
        output::line(finding)?;
    }
    if report.suppressed > 0 {
        output::line(format!("and {} more", report.suppressed))?;
    }
    if !args.quiet {
        let count = report.findings.len() as u64 + report.suppressed;
        output::line(match (report.clean, count) {
            (true, 0) => "clean".to_owned(),
            (true, _) => "clean, with warnings".to_owned(),
            (false, 1) => "1 finding".to_owned(),
            (false, many) => format!("{many} findings"),
        })?;
    }
    Ok(())
}
