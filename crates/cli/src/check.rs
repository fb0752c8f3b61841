//! `sapwood check` and `sapwood undo`.

use std::path::PathBuf;

use sapwood::internal::CheckError;
use sapwood::{
    CheckFinding, CheckOptions, CheckReport, ErrorKind, RepairOptions, RepairReport, UndoOptions,
};
use serde_json::json;

use super::failure::{DEVICES, FAILED, Failure, IMAGE, Result};
use super::{choice, interrupt, output, progress};

/// For `sapwood help check`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    ("sapwood check disk.img", "exit code 0 without errors"),
    (
        "sapwood check --check-data-csum --json disk.img",
        "all data too, as JSON",
    ),
    (
        "sapwood check --repair --dry-run disk.img",
        "what a repair would change",
    ),
    (
        "sapwood check --repair disk.img",
        "repair; disk.img.undo has the old bytes",
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image
    pub(super) image: PathBuf,
    /// Read all data too, and compare every copy with its checksums (btrfs; ext4 has none of data)
    #[arg(long)]
    check_data_csum: bool,
    /// Repair what can be derived from intact parts, with an undo file; leave everything else
    #[arg(long, conflicts_with = "check_data_csum")]
    repair: bool,
    /// Print the repairs, and change nothing
    #[arg(long, requires = "repair")]
    dry_run: bool,
    /// Undo file; default: the name of the image with .undo
    #[arg(long, value_name = "FILE", requires = "repair")]
    undo: Option<PathBuf>,
    /// Drop the log of a btrfs, with the fsyncs since the last commit
    #[arg(long, requires = "repair")]
    drop_log: bool,
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

#[derive(Debug, clap::Args)]
pub(super) struct UndoArgs {
    /// Undo file of a repair
    file: PathBuf,
    /// Image, if it has another name than at the time of the repair
    #[arg(long, value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// Overwrite an image that was changed since the repair
    #[arg(long)]
    force: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

/// Undoes a repair. Exit code 3: the undo file or the image cannot be used.
pub(super) fn undo(args: &UndoArgs) -> Result<()> {
    let options = UndoOptions {
        image: args.image.clone(),
        devices: choice::opening(false).devices().to_vec(),
        force: args.force,
    };
    let done = sapwood::undo(&args.file, &options).map_err(|error| {
        let changed = error.kind() == ErrorKind::InvalidInput;
        let failure = Failure::new(IMAGE, error);
        if changed && !args.force {
            failure.advise("--force overwrites it")
        } else {
            failure
        }
    })?;
    if args.quiet {
        return Ok(());
    }
    let image = done.image.display();
    output::line(match done.pages {
        0 => format!("{image}: as before the repair already"),
        _ => format!("{image}: as before the repair"),
    })
}

/// Exit code 0: nothing wrong; 1: something is; 3: the image could not be checked. After a repair
/// it is about the repaired image, after a dry run about the image as it is.
pub(super) fn run(args: &Args) -> Result<()> {
    if args.repair {
        return repair(args);
    }
    let options = CheckOptions {
        data: args.check_data_csum,
        max_findings: args.most,
        opening: choice::opening(true),
    };
    let bar = progress::phases(args.quiet || args.json);
    let checked = sapwood::check(&args.image, &options, &mut |step| {
        progress::show_phase(&bar, step);
    });
    bar.finish_and_clear();
    let report = checked.map_err(|error| match error.downcast_ref() {
        None => error.into(),
        Some(part) if CheckError::needs_devices(part) => Failure::new(IMAGE, error).advise(DEVICES),
        Some(_) => Failure::new(IMAGE, error),
    })?;
    if args.json {
        output::object(&report_json(&report))?;
    } else {
        print(args, &report)?;
    }
    exit(report.clean)
}

fn exit(clean: bool) -> Result<()> {
    if clean {
        Ok(())
    } else {
        Err(Failure::reported())
    }
}

fn repair(args: &Args) -> Result<()> {
    interrupt::abandon_new_files();
    let options = RepairOptions {
        dry_run: args.dry_run,
        undo: args.undo.clone(),
        drop_log: args.drop_log,
        max_findings: args.most,
        opening: choice::opening(false),
    };
    let bar = progress::phases(args.quiet || args.json);
    let repaired = sapwood::repair(&args.image, &options, &mut |step| {
        progress::show_phase(&bar, step);
    });
    bar.finish_and_clear();
    let report = repaired.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Failure::new(FAILED, error).advise("name another undo file (--undo FILE)")
        }
        _ => match error.downcast_ref() {
            Some(part) if CheckError::needs_devices(part) => {
                Failure::new(IMAGE, error).advise(DEVICES)
            }
            _ => Failure::new(IMAGE, error),
        },
    })?;
    if args.json {
        output::object(&repair_json(args, &report))?;
    } else {
        print_repair(args, &report)?;
    }
    let would_change = args.dry_run && (report.resumed.is_some() || !report.repairs.is_empty());
    exit(report.after.clean && !would_change)
}

fn repair_json(args: &Args, report: &RepairReport) -> serde_json::Value {
    let repairs = report.repairs.iter();
    let repairs: Vec<_> = repairs
        .map(|repair| json!({ "code": repair.code, "text": repair.text }))
        .collect();
    let mut shown = report_json(&report.after);
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("dry_run".into(), json!(args.dry_run));
        fields.insert("resumed".into(), json!(report.resumed));
        fields.insert("repairs".into(), json!(repairs));
        fields.insert("left".into(), json!(report.left));
        fields.insert("undo".into(), json!(report.undo));
    }
    shown
}

fn print_repair(args: &Args, report: &RepairReport) -> Result<()> {
    if let Some(file) = &report.resumed {
        let verb = if args.dry_run { "would be" } else { "is" };
        let file = file.display();
        output::line(format!(
            "an interrupted repair {verb} completed first, from {file}"
        ))?;
    }
    for repair in &report.repairs {
        output::line(&repair.text)?;
    }
    for left in &report.left {
        output::line(format!("left as it is: {left}"))?;
    }
    for finding in &report.after.findings {
        output::line(format!("left as it is: {finding}"))?;
    }
    if report.after.suppressed > 0 {
        output::line(format!("and {} more", report.after.suppressed))?;
    }
    if args.quiet {
        return Ok(());
    }
    let count = report.repairs.len();
    let resumed = report.resumed.is_some();
    output::line(match (count, args.dry_run, report.after.clean) {
        (0, true, true) if resumed => {
            "dry run: the interrupted repair would make the image clean".to_owned()
        }
        (0, true, false) if resumed => {
            "dry run: the interrupted repair would be completed, and some findings left".to_owned()
        }
        (0, false, true) if resumed => "the interrupted repair is completed, clean".to_owned(),
        (0, false, false) if resumed => {
            "the interrupted repair is completed, some findings are left".to_owned()
        }
        (0, _, true) => "clean, nothing to repair".to_owned(),
        (0, _, false) => "nothing that can be repaired".to_owned(),
        (_, true, true) => format!("dry run: {count} repairs would make the image clean"),
        (_, true, false) => format!("dry run: {count} repairs, and some findings would be left"),
        (_, false, true) => format!("{count} repairs, clean"),
        (_, false, false) => format!("{count} repairs, some findings are left"),
    })?;
    if let Some(file) = &report.undo {
        let file = file.display();
        output::line(format!(
            "to restore the image as it was: sapwood undo {file}"
        ))?;
    }
    Ok(())
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

fn report_json(report: &CheckReport) -> serde_json::Value {
    json!({
        "clean": report.clean,
        "findings": report.findings.iter().map(Shown::new).collect::<Vec<_>>(),
        "suppressed": report.suppressed,
    })
}

fn print(args: &Args, report: &CheckReport) -> Result<()> {
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
