//! `sapwood check`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use indicatif::ProgressBar;
use sapwood::Kind;
use sapwood_block::Device;
use sapwood_btrfs::check as btrfs_check;
use sapwood_ext4::check as ext4_check;
use serde_json::json;

use super::failure::{Failure, IMAGE, Result};
use super::{output, progress};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    image: PathBuf,
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
    let (device, kind) = sapwood::image::open_known(&args.image, true)?;
    let report = match kind {
        Kind::Btrfs => btrfs(args, &*device)?,
        Kind::Ext4 => ext4(args, &device)?,
    };
    print(args, &report)?;
    match report.clean {
        true => Ok(()),
        false => Err(Failure::reported()),
    }
}

/// What a check of any kind of file system found.
struct Report {
    clean: bool,
    findings: Vec<Shown>,
    /// Findings that were too many to keep.
    suppressed: u64,
}

/// A finding.
#[derive(serde::Serialize)]
struct Shown {
    code: String,
    severity: String,
    text: String,
}

fn bar(args: &Args) -> ProgressBar {
    match args.quiet || args.json {
        true => ProgressBar::hidden(),
        false => progress::items("checking"),
    }
}

fn btrfs(args: &Args, device: &dyn Device) -> Result<Report> {
    let options = btrfs_check::CheckOptions {
        check_data_csum: args.check_data_csum,
        max_findings: args.most,
    };
    let bar = bar(args);
    let checked = btrfs_check::check(&[device], &options, &mut |step| {
        bar.set_message(match step.phase {
            btrfs_check::Phase::Space => "space",
            btrfs_check::Phase::Trees => "trees",
            btrfs_check::Phase::Compare => "cross references",
            btrfs_check::Phase::Data => "data",
        });
        bar.set_position(step.done);
    });
    bar.finish_and_clear();
    let report = checked.map_err(|error| Failure::local(&args.image, error).with_code(IMAGE))?;
    let findings = report.findings.iter().map(|finding| Shown {
        code: finding.code().to_string(),
        severity: format!("{:?}", finding.severity()).to_lowercase(),
        text: finding.to_string(),
    });
    Ok(Report {
        clean: report.is_clean(),
        findings: findings.collect(),
        suppressed: report.suppressed,
    })
}

fn ext4(args: &Args, device: &Arc<dyn Device>) -> Result<Report> {
    let options = ext4_check::CheckOptions {
        max_findings: args.most,
    };
    let bar = bar(args);
    let checked = ext4_check::check(device, &options, &mut |step| {
        bar.set_message(match step.phase {
            ext4_check::Phase::Groups => "groups",
            ext4_check::Phase::Inodes => "inodes",
            ext4_check::Phase::Directories => "directories",
            ext4_check::Phase::Compare => "bitmaps",
        });
        bar.set_position(step.done);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let report = checked.map_err(|error| Failure::local(&args.image, error).with_code(IMAGE))?;
    let findings = report.findings.iter().map(|finding| Shown {
        code: finding.code().to_owned(),
        severity: format!("{:?}", finding.severity()).to_lowercase(),
        text: finding.to_string(),
    });
    Ok(Report {
        clean: report.is_clean(),
        findings: findings.collect(),
        suppressed: report.suppressed,
    })
}

fn print(args: &Args, report: &Report) -> Result<()> {
    if args.json {
        return output::json(&json!({
            "clean": report.clean,
            "findings": report.findings,
            "suppressed": report.suppressed,
        }));
    }
    for finding in &report.findings {
        output::line(&finding.text)?;
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
