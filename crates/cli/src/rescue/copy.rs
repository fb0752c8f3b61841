//! `sapwood rescue copy`: everything that can be read, and a report of the rest.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sapwood::internal::{CopyCause, CopyError, ExportError, NewFile};
use sapwood::{CopyOptions, Damage, ErrorKind, ExportOptions, FileSystem, Place, Progress};
use serde_json::{Value, json};

use super::deleted::Wanted;
use super::{Reading, failure, scan, with_generation};
use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::files::{close, in_image};
use crate::{copy, interrupt, output, progress};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to copy, as IMAGE[@GENERATION][:PATH] [default: everything]
    #[arg(value_name = "PLACE")]
    place: OsString,
    /// Directory, which is made if it does not exist; a tar archive if the name ends in .tar; - for
    /// an archive on standard output
    #[arg(value_name = "DEST")]
    destination: PathBuf,
    /// Write the report as JSON to this file; - for standard output
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Copy deleted files under their former paths, in place of the files that are there
    #[arg(long)]
    deleted: bool,
    #[command(flatten)]
    wanted: Wanted,
    /// Replace an archive or report of that name
    #[arg(short, long)]
    force: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    reading: Reading,
}

impl Args {
    /// Restricts the image to a range.
    pub(super) fn apply(&mut self, range: crate::range::Range) -> Result<()> {
        range.place(&mut self.place)
    }
}

/// A file that was copied in part.
struct Partial {
    path: String,
    damage: Damage,
}

/// The report of a copy, with everything that it left out.
#[derive(Default)]
struct Report {
    copied: u64,
    bytes: u64,
    partial: Vec<Partial>,
    /// Paths, and why each was left out.
    lost: Vec<(String, String)>,
}

impl Report {
    fn failed(&mut self, error: &(dyn std::error::Error + 'static)) {
        if let Some(error) = error.downcast_ref::<CopyError>() {
            let path = error.place().replace("/./", "/");
            match error.cause() {
                CopyCause::Damaged(damage) => self.partial(path, damage),
                cause => self.lost.push((path, cause.to_string())),
            }
            return;
        }
        match error.downcast_ref::<ExportError>() {
            Some(ExportError::Damaged { path, damage }) => self.partial(shown(path), damage),
            Some(ExportError::Image { path, source }) => {
                self.lost.push((shown(path), source.to_string()));
            }
            _ => self.lost.push((String::new(), error.to_string())),
        }
    }

    fn partial(&mut self, path: String, damage: &Damage) {
        let damage = damage.clone();
        self.partial.push(Partial { path, damage });
    }

    fn is_complete(&self) -> bool {
        self.partial.is_empty() && self.lost.is_empty()
    }

    fn json(&self, nameless: u64) -> Value {
        let partial = self.partial.iter().map(|file| {
            let ranges = file.damage.ranges().iter();
            let ranges: Vec<_> = ranges
                .map(|range| json!([range.start, range.end]))
                .collect();
            json!({
                "path": file.path,
                "ranges": ranges,
                "bytes": file.damage.bytes(),
                "why": file.damage.cause().to_string(),
            })
        });
        let lost = self
            .lost
            .iter()
            .map(|(path, why)| json!({ "path": path, "why": why }));
        json!({
            "copied": self.copied,
            "bytes": self.bytes,
            "nameless": nameless,
            "partial": partial.collect::<Vec<_>>(),
            "lost": lost.collect::<Vec<_>>(),
        })
    }
}

fn shown(path: &Path) -> String {
    output::name(path.as_os_str().as_bytes())
}

/// Exit code 0: everything was copied; 1: something was lost, and the report names it.
pub(super) fn run(args: &Args) -> Result<()> {
    interrupt::abandon_new_files();
    let (image, path) = in_image(&args.place)?;
    let (image, generation) = with_generation(&image);
    if args.deleted && generation.is_some() {
        let why = "--deleted looks in all states, so the image has no @GENERATION";
        return Err(Failure::new(USAGE, why));
    }
    if args.wanted.is_limited() && !args.deleted {
        return Err(Failure::new(USAGE, "--since needs --deleted"));
    }
    let deleted = args.deleted.then(|| args.wanted.files());
    let options = args.reading.choose(generation, deleted);
    let fs = scan(args.quiet, |on_scan| {
        let opened = FileSystem::open_damaged(&image, &options, on_scan);
        opened.map_err(|error| match error.downcast() {
            Ok(error) => failure(error),
            Err(error) => error.into(),
        })
    })?;
    let report = to_destination(args, &fs, &path);
    let nameless = nameless(&fs);
    close(fs)?;
    let report = report?;
    write_report(args, &report.json(nameless))?;
    if !args.quiet && args.destination != Path::new("-") && args.report.is_none() {
        output::line(format!(
            "{} names copied, {} files in part, {} names lost, {nameless} files without a name",
            report.copied,
            report.partial.len(),
            report.lost.len()
        ))?;
    }
    if report.is_complete() {
        Ok(())
    } else {
        Err(Failure::reported())
    }
}

/// The number of entries in `lost+found` that have a number for a name.
fn nameless(fs: &FileSystem) -> u64 {
    let Ok(entries) = fs.read_dir("lost+found") else {
        return 0;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.as_bytes().starts_with(b"#"))
        .count() as u64
}

fn write_report(args: &Args, report: &Value) -> Result<()> {
    let Some(file) = &args.report else {
        return Ok(());
    };
    if file == Path::new("-") {
        return output::object(report);
    }
    let local = |error: io::Error| Failure::local(file, error);
    let new = NewFile::create(file, args.force)?;
    let mut out = new.file();
    let text = serde_json::to_string_pretty(report).map_err(|error| local(error.into()))?;
    out.write_all(text.as_bytes()).map_err(local)?;
    out.write_all(b"\n").map_err(local)?;
    new.finish()?;
    Ok(())
}

fn to_destination(args: &Args, fs: &FileSystem, path: &Path) -> Result<Report> {
    let destination = &args.destination;
    let is_archive =
        destination == Path::new("-") || destination.extension().is_some_and(|end| end == "tar");
    if is_archive && !destination.is_dir() {
        return to_archive(args, fs, path);
    }
    to_directory(args, fs, path)
}

fn to_directory(args: &Args, fs: &FileSystem, path: &Path) -> Result<Report> {
    let destination = &args.destination;
    copy::spare_image(destination)?;
    if !destination.is_dir() {
        fs::create_dir(destination).map_err(|error| Failure::local(destination, error))?;
    }
    copy::lift_file_limit();
    let mut options = CopyOptions::archive();
    options.keep_going = true;
    options.stop = interrupt::stop();
    let is_directory = fs.metadata(path).map_err(crate::files::failed)?.is_dir();
    let source = if is_directory {
        path.join(".")
    } else {
        path.to_owned()
    };
    let mut report = Report::default();
    let mut bar = progress::Files::new(args.quiet, "copied", copy::show);
    let sources = [Place::image(fs, source)];
    let copied = sapwood::copy(&sources, &Place::host(destination), &options, &mut |step| {
        if let Progress::Failed(error) = step {
            report.failed(error);
        }
        bar.show(step);
    });
    let files = bar.done();
    bar.end();
    match copied {
        Ok(found) => {
            (report.copied, report.bytes) = (found.copied, found.bytes);
            Ok(report)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => {
            let done = format!("{files} files copied, the last of them perhaps in part");
            Err(interrupt::failure(&done))
        }
        Err(error) => Err(match error.downcast() {
            Ok(error) => copy::failure(error),
            Err(error) => error.into(),
        }),
    }
}

fn to_archive(args: &Args, fs: &FileSystem, path: &Path) -> Result<Report> {
    let destination = &args.destination;
    let mut options = ExportOptions::default();
    options.keep_going = true;
    let mut report = Report::default();
    let mut write = |out: &mut dyn Write| -> Result<()> {
        let quiet = args.quiet || destination == Path::new("-");
        let mut bar = progress::Files::new(quiet, "exported", copy::show);
        let written = fs.export_tar(path, out, &options, &mut |step| {
            if let Progress::Failed(error) = step {
                report.failed(error);
            }
            bar.show(step);
        });
        bar.end();
        let written = written.map_err(|error| match error.downcast() {
            Ok(ExportError::NotDirectory(path)) => {
                Failure::on(path.display(), "not a directory; an archive is made of one")
                    .with_code(USAGE)
            }
            Ok(error) => Failure::new(FAILED, error),
            Err(error) => error.into(),
        })?;
        (report.copied, report.bytes) = (written.entries, written.size);
        Ok(())
    };
    if destination == Path::new("-") {
        write(&mut BufWriter::with_capacity(1 << 20, io::stdout().lock()))?;
        return Ok(report);
    }
    let local = |error| Failure::local(destination, error);
    let new = NewFile::create(destination, args.force)?;
    let mut out = BufWriter::with_capacity(1 << 20, new.file());
    write(&mut out)?;
    out.flush().map_err(local)?;
    drop(out);
    new.finish()?;
    Ok(report)
}
