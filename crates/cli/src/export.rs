//! `sapwood export`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use sapwood::internal::{ExportError, NewFile, Target};
use sapwood::{ExportCompression, ExportOptions, ExportReport, FileSystem, Options, Place};
use serde_json::json;

use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result};
use super::files::{close, in_image, same_file, target, with_image};
use super::progress::{self, Holes};
use super::{copy, interrupt, output, session};

/// For `sapwood help export`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood export disk.img --tar root.tar",
        "everything as an archive",
    ),
    (
        "sapwood export disk.img:work --oci-layer layer.tgz --since monday",
        "the changes since a snapshot, as a layer",
    ),
];

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("form").required(true)))]
pub(super) struct Args {
    /// The directory to export; IMAGE: is the root of the image
    #[arg(value_name = "IMAGE[:PATH]")]
    pub(super) place: OsString,
    /// Write a tar archive; - for standard output
    #[arg(long, value_name = "FILE", group = "form")]
    tar: Option<PathBuf>,
    /// Write a layer of an OCI image, and print its digests; - for standard output
    #[arg(long, value_name = "FILE", group = "form")]
    oci_layer: Option<PathBuf>,
    /// Only changes since this snapshot, another directory of the image, or another image; a
    /// removed name becomes a whiteout
    #[arg(long, value_name = "PATH|IMAGE[:PATH]")]
    since: Option<OsString>,
    /// Compression: none, gzip or zstd, with a level if need be (zstd:19) [default: gzip for a
    /// layer, else none]
    #[arg(long, value_name = "NAME[:LEVEL]", value_parser = compression)]
    compress: Option<ExportCompression>,
    /// Replace a file of that name, if it is not in use
    #[arg(short, long)]
    force: bool,
    /// Leave out the holes of files, in the sparse format of GNU tar [default: in an archive, not
    /// in a layer]
    #[arg(long, overrides_with = "no_sparse")]
    sparse: bool,
    /// Write the holes of files as zeros
    #[arg(long, overrides_with = "sparse")]
    no_sparse: bool,
    /// Continue after a part of a file that cannot be read, which becomes zeros
    #[arg(long)]
    keep_going: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

fn compression(text: &str) -> Result<ExportCompression, String> {
    let (name, level) = match text.split_once(':') {
        Some((name, level)) => (name, Some(level)),
        None => (text, None),
    };
    let level = level.map(str::parse::<u32>).transpose();
    let level = level.map_err(|_| "the level is not a number".to_owned())?;
    match (name, level) {
        ("none", None) => Ok(ExportCompression::None),
        ("gzip", None | Some(0..=9)) => Ok(ExportCompression::Gzip(level.unwrap_or(6))),
        ("zstd", None | Some(1..=22)) => {
            let level = i32::try_from(level.unwrap_or(3)).unwrap_or(3);
            Ok(ExportCompression::Zstd(level))
        }
        ("gzip" | "zstd", Some(_)) => Err("no such level".to_owned()),
        _ => Err("none, gzip or zstd, with :LEVEL".to_owned()),
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let in_session = session::image().is_some();
    if !in_session {
        interrupt::abandon_new_files();
    }
    let (image, path) = in_image(&args.place)?;
    let file = args.tar.as_ref().or(args.oci_layer.as_ref());
    let Some(file) = file else {
        return Err(Failure::new(FAILED, "no archive"));
    };
    let default = match args.oci_layer {
        Some(_) => ExportCompression::Gzip(6),
        None => ExportCompression::None,
    };
    let mut options = ExportOptions::default();
    if in_session {
        // Signals make the request that `Heeding` finds.
        interrupt::stop();
    }
    options.layer = args.oci_layer.is_some();
    options.keep_going = args.keep_going;
    options.sparse = match (args.sparse, args.no_sparse) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    options.compression = args.compress.unwrap_or(default);
    let report = with_image(&image, &args.choice, true, |fs| {
        let base = match &args.since {
            None => None,
            Some(since) => Some(base(fs, &image, since)?),
        };
        options.since.clone_from(&base);
        let exported = export(fs, &path, file, &options, args);
        options.since = None;
        let ended = match base {
            Some((base, _)) if !base.is_same(fs) => close(base),
            _ => Ok(()),
        };
        let report = exported?;
        ended.map(|()| report)
    })?;
    if args.oci_layer.is_some() && file != Path::new("-") {
        print(&report, options.compression)?;
    }
    match report.damaged {
        0 => Ok(()),
        _ => Err(Failure::reported()),
    }
}

/// The value of `--since`: another image or a directory in one, or a directory of this image.
fn base(fs: &FileSystem, image: &Path, since: &OsStr) -> Result<(FileSystem, PathBuf)> {
    let here = |path: PathBuf| (fs.clone(), path);
    let (other, path) = match target(since) {
        Ok(Target::Image { image, path }) => (image, OsString::from_vec(path).into()),
        Ok(Target::Local(path)) if path.exists() => (path, PathBuf::new()),
        _ => {
            let path = session::path(since).map(OsString::from_vec);
            return Ok(here(path.unwrap_or_else(|| since.to_owned()).into()));
        }
    };
    if same_file(&other, image) {
        return Ok(here(path));
    }
    let options = Options::new().read_only(true);
    let other = FileSystem::open_with_options(&other, &options)?;
    Ok((other, path))
}

/// An output that ends when Ctrl-C ends the command of a shell.
struct Heeding<'w>(&'w mut dyn Write);

impl Write for Heeding<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if interrupt::came() {
            return Err(io::Error::other("interrupted"));
        }
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Exports to a file, which gets its name when it is complete.
fn export(
    fs: &FileSystem,
    path: &Path,
    file: &Path,
    options: &ExportOptions,
    args: &Args,
) -> Result<ExportReport> {
    let write = |out: &mut dyn io::Write| {
        let quiet = args.quiet || file == Path::new("-");
        let mut bar = progress::Files::new(quiet, "exported", copy::show);
        let sparse = options.sparse.unwrap_or(!options.layer);
        let holes = if sparse {
            Holes::AreLeftOut
        } else {
            Holes::Count
        };
        // The export itself finds the changes.
        if options.since.is_none() {
            bar.measure(&[Place::image(fs, path)], holes);
        }
        let mut out = Heeding(out);
        let written = fs.export_tar(path, &mut out, options, &mut |step| bar.show(step));
        bar.end();
        interrupt::check(|| "the archive is incomplete".to_owned())?;
        written.map_err(|error| failed(file, error))
    };
    if file == Path::new("-") {
        return write(&mut BufWriter::with_capacity(1 << 20, io::stdout().lock()));
    }
    let local = |error| Failure::local(file, error);
    if let Ok(found) = file.metadata()
        && !found.is_file()
    {
        // A pipe or a device is written in place.
        let device = match found.file_type().is_block_device() {
            true if !args.force => {
                let why = "is a block device; -f overwrites it";
                return Err(Failure::local(file, why));
            }
            // Opening it for writing refuses a device in use.
            true => Some(sapwood::internal::image::open_device(file, false)?),
            false => None,
        };
        let mut out = File::options().write(true).open(file).map_err(local)?;
        let report = write(&mut out)?;
        return match device {
            Some(_) => out.sync_all().map_err(local).map(|()| report),
            None => Ok(report),
        };
    }
    let new = NewFile::create(file, args.force)?;
    let mut out = BufWriter::with_capacity(1 << 20, new.file());
    let report = write(&mut out)?;
    out.flush().map_err(local)?;
    drop(out);
    new.finish()?;
    Ok(report)
}

fn failed(file: &Path, error: sapwood::Error) -> Failure {
    match error.downcast() {
        Ok(ExportError::Write(error)) if file == Path::new("-") => output::failed(error),
        Ok(ExportError::Write(error)) => Failure::local(file, error),
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    }
}

/// The descriptor of a layer, and its `diff_id`.
fn print(report: &ExportReport, compression: ExportCompression) -> Result<()> {
    let digest = |bytes: &[u8]| format!("sha256:{}", HEXLOWER.encode(bytes));
    let end = match compression {
        ExportCompression::Gzip(_) => "+gzip",
        ExportCompression::Zstd(_) => "+zstd",
        _ => "",
    };
    output::object(&json!({
        "mediaType": format!("application/vnd.oci.image.layer.v1.tar{end}"),
        "digest": digest(&report.digest),
        "size": report.size,
        "diffID": digest(&report.diff_id),
    }))
}
