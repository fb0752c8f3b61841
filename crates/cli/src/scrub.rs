//! `sapwood scrub`.

use std::path::PathBuf;

use sapwood::internal::ScrubError;
use sapwood::internal::options::parse_size;
use sapwood::{ScrubOptions, ScrubReport, ScrubSource, ScrubbedDevice, ScrubbedFile};
use serde_json::{Value, json};

use super::failure::{DEVICES, Failure, IMAGE, Result};
use super::{choice, device, interrupt, output, progress};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image that nothing has mounted, or a directory in a mount by Sapwood
    pub(super) image: PathBuf,
    /// Further devices of a btrfs over several; the same as --device
    #[arg(value_name = "DEVICE")]
    others: Vec<PathBuf>,
    /// Repair nothing
    #[arg(short, long)]
    read_only: bool,
    /// Read at most this much in a second: bytes, or a number with k, M, G
    #[arg(long, value_name = "RATE", value_parser = rate)]
    limit: Option<u64>,
    /// Record the position of a btrfs scrub in this file, and continue there if it exists
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Repair data without a good copy from a file, an image or a stream of `send` that has it;
    /// more than once for several
    #[arg(long, value_name = "SOURCE", conflicts_with_all = ["read_only", "state"])]
    from: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

fn rate(text: &str) -> std::result::Result<u64, String> {
    let rate = parse_size(text).filter(|rate| *rate > 0);
    rate.ok_or_else(|| format!("{text} is no rate"))
}

/// Exit code 0: every copy is good, maybe after a repair; 1: something is lost, or was found with
/// `--read-only`; 3: the image could not be scrubbed.
pub(super) fn run(args: &Args) -> Result<()> {
    let mut opening = choice::fixed(choice::opening(args.read_only))?;
    for other in &args.others {
        opening.add_device(other);
    }
    device::check_others(&args.image, &args.others)?;
    let options = ScrubOptions {
        read_only: args.read_only,
        limit: args.limit,
        state: args.state.clone(),
        from: args.from.clone(),
        stop: interrupt::stop(),
    };
    let bar = progress::phases(args.quiet || args.json);
    let scrubbed = sapwood::scrub(&args.image, &opening, &options, &mut |step| {
        progress::show_scrub(&bar, step);
    });
    bar.finish_and_clear();
    let report = scrubbed.map_err(|error| match error.downcast_ref() {
        None => error.into(),
        Some(part) if needs_devices(part) => Failure::new(IMAGE, error).advise(DEVICES),
        Some(_) => Failure::new(IMAGE, error),
    })?;
    print(args, &report)?;
    if report.interrupted {
        interrupt::check(|| "not everything is read".to_owned())?;
    }
    if report.clean {
        Ok(())
    } else {
        Err(Failure::reported())
    }
}

fn needs_devices(error: &ScrubError) -> bool {
    let ScrubError::Btrfs { source, .. } = error else {
        return false;
    };
    matches!(
        **source,
        sapwood::internal::btrfs::Error::MissingDevice { .. }
    )
}

fn found(device: &ScrubbedDevice) -> u64 {
    device.unreadable + device.data + device.trees + device.superblocks
}

fn print(args: &Args, report: &ScrubReport) -> Result<()> {
    if args.json {
        return output::object(&as_json(report));
    }
    for finding in &report.findings {
        output::line(finding)?;
    }
    for block in &report.lost_blocks {
        output::line(format_args!("tree block {block}: no good copy"))?;
    }
    for file in &report.files {
        output::line(line_of(file, report))?;
    }
    for source in &report.sources {
        if let Some(error) = &source.error {
            output::line(format_args!(
                "{}: not read to its end: {error}",
                source.path.display()
            ))?;
        }
        if !args.quiet {
            let (path, sectors) = (source.path.display(), source.sectors);
            output::line(format_args!("{path}: {sectors} sectors repaired from it"))?;
        }
    }
    for device in &report.devices {
        if args.quiet && found(device) == 0 {
            continue;
        }
        output::line(summary(device))?;
    }
    if !args.quiet && report.unverified > 0 {
        let size = output::size(report.unverified);
        output::line(format_args!("{size} of data have no checksums"))?;
    }
    Ok(())
}

fn line_of(file: &ScrubbedFile, report: &ScrubReport) -> String {
    let name = if file.path.is_empty() {
        format!("inode {} of subvolume {}", file.inode, file.subvolume)
    } else {
        output::name(&file.path)
    };
    let source = file.source.and_then(|nth| report.sources.get(nth));
    let state = match source {
        Some(source) => format!("repaired from {}", source.path.display()),
        None if file.repaired => "repaired".to_owned(),
        None => "LOST".to_owned(),
    };
    let (start, end) = (file.range.start, file.range.end);
    format!("{name}: bytes {start} to {end}: {state}")
}

fn summary(device: &ScrubbedDevice) -> String {
    let size = output::size(device.bytes);
    let mut line = format!("{}: {size} read, {} errors", device.name, found(device));
    let parts = [
        (device.unreadable, "unreadable"),
        (device.data, "in data"),
        (device.trees, "in tree blocks"),
        (device.superblocks, "in superblocks"),
        (device.repaired, "repaired"),
        (device.lost, "lost"),
    ];
    for (count, what) in parts.iter().filter(|(count, _)| *count > 0) {
        line.push_str(&format!(", {count} {what}"));
    }
    if device.was_stale {
        line.push_str("; it was stale");
    }
    line
}

fn as_json(report: &ScrubReport) -> Value {
    let device = |device: &ScrubbedDevice| {
        json!({
            "name": device.name, "devid": device.devid, "stale": device.was_stale,
            "bytes": device.bytes, "unreadable": device.unreadable, "data": device.data,
            "trees": device.trees, "superblocks": device.superblocks,
            "repaired": device.repaired, "lost": device.lost,
        })
    };
    let file = |file: &ScrubbedFile| {
        let (path, bytes) = output::json::text(&file.path);
        let mut row = json!({
            "path": path, "subvolume": file.subvolume,
            "inode": file.inode, "start": file.range.start, "end": file.range.end,
            "repaired": file.repaired, "source": file.source,
        });
        if let (Some(bytes), Some(row)) = (bytes, row.as_object_mut()) {
            row.insert("path_bytes".to_owned(), bytes.into());
        }
        row
    };
    let source = |source: &ScrubSource| {
        json!({
            "path": source.path.display().to_string(), "sectors": source.sectors,
            "error": source.error,
        })
    };
    json!({
        "clean": report.clean,
        "devices": report.devices.iter().map(device).collect::<Vec<_>>(),
        "files": report.files.iter().map(file).collect::<Vec<_>>(),
        "sources": report.sources.iter().map(source).collect::<Vec<_>>(),
        "lost_blocks": report.lost_blocks,
        "unverified": report.unverified,
        "findings": report.findings.iter().map(|f| &f.text).collect::<Vec<_>>(),
        "interrupted": report.interrupted,
    })
}
