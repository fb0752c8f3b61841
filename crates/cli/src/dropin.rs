//! The program under the name of another one: `mke2fs`, `mkfs.ext2`, `mkfs.ext3`, `mkfs.ext4` and
//! `mkfs.btrfs`.
//!
//! Image builders call those tools. Under such a name the program takes the tool's options, as
//! far as builders use them, and exits with 1 on any failure, as the tool does. An option that
//! changes nothing here is accepted, and one that cannot be served is refused by name.

mod btrfs;
mod mke2fs;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::error::ErrorKind;
use sapwood::block::{Device, Operand, PartDevice};
use sapwood::copy::Place;
use sapwood::image::OpenError;
use sapwood::mkfs::mkfs;
use sapwood::{BuildError, FileSystem, ImageBuilder, MkfsOptions, NewFile, Sources, Storage};

use super::failure::{FAILED, Failure, Result};
use super::progress::{self, Holes};
use super::{choice, copy, files, interrupt, output, times};

/// What a tool is asked to make.
struct Request {
    options: MkfsOptions,
    /// The file or device that has to exist.
    file: PathBuf,
    /// First byte of the file system in it.
    offset: u64,
    /// Bytes of the file system; else all of the file from the offset on.
    size: Option<u64>,
    /// A file that does not exist is made.
    creates: bool,
    rootdir: Option<PathBuf>,
    storage: Storage,
    /// What the root directory has, unless it has what that of `rootdir` has.
    root: Option<RootDirectory>,
    quiet: bool,
}

/// Attributes of the root directory.
struct RootDirectory {
    owner: (u32, u32),
    mode: u32,
}

/// What the words after the name of a tool ask for.
enum Asked {
    /// A file system.
    Make(Box<Request>),
    /// A text, on standard output.
    Print(String),
}

/// Runs the tool whose name the program was called by; its exit code. `None` for any other name.
pub(super) fn run_by_name(args: &[OsString]) -> Option<u8> {
    let name = Path::new(args.first()?).file_name()?.to_str()?;
    let asked = match name {
        "mkfs.btrfs" => btrfs::parse(args),
        "mke2fs" | "mkfs.ext2" | "mkfs.ext3" | "mkfs.ext4" => mke2fs::parse(name, args),
        _ => return None,
    };
    let done = asked.and_then(|asked| match asked {
        Asked::Make(mut request) => {
            if let Some(time) = times::source_date_epoch()? {
                request.options.set_time(time);
            }
            request.make()
        }
        Asked::Print(text) => output::line(text.trim_end()),
    });
    Some(match done {
        Ok(()) => 0,
        Err(failure) => {
            let line = failure.to_string();
            if !line.is_empty() {
                output::message(format_args!("{name}: {line}"));
            }
            FAILED
        }
    })
}

/// Reads the words of a tool; the inner error is a text that they ask for.
fn words<A: clap::Parser>(args: &[OsString]) -> Result<Result<A, String>> {
    match A::try_parse_from(args) {
        Ok(args) => Ok(Ok(args)),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => Ok(Err(error.to_string())),
        Err(error) => {
            let text = error.to_string();
            let text = text.trim_end();
            let text = text.strip_prefix("error: ").unwrap_or(text);
            Err(Failure::new(FAILED, text))
        }
    }
}

fn refused(what: impl std::fmt::Display) -> Failure {
    Failure::new(FAILED, format_args!("{what} is not supported"))
}

impl Request {
    fn make(&self) -> Result<()> {
        if let Some(source) = &self.rootdir {
            self.check(source)?;
        }
        interrupt::abandon_new_files();
        let (device, new) = self.prepare()?;
        let operand = self.operand();
        let whole = self.size.is_none() || self.offset > 0;
        let made = mkfs(&*device, &operand, &self.options, whole);
        let made = made.map_err(|error| Failure::new(FAILED, error))?;
        if let Some(source) = &self.rootdir {
            self.fill(&device, &operand, source)?;
        }
        drop(device);
        if let Some(new) = new {
            new.finish()?;
        }
        if self.quiet {
            Ok(())
        } else {
            output::line(format_args!(
                "{}: {}, {}, uuid {}",
                self.file.display(),
                self.options.kind(),
                output::size(made.size()),
                output::uuid(&made.uuid())
            ))
        }
    }

    /// Finds what would make the filling fail at once.
    fn check(&self, source: &Path) -> Result<()> {
        std::fs::read_dir(source).map_err(|error| Failure::local(source, error))?;
        let fits = self.storage.check(self.options.kind());
        fits.and_then(|()| self.storage.check_directories(source))
            .map_err(|error| Failure::new(FAILED, error))
    }

    /// Opens the device, or the file, which is made as large as the file system needs it. A file
    /// that does not exist gets its name at the end.
    fn prepare(&self) -> Result<(Arc<dyn Device>, Option<NewFile>)> {
        let failed = |error| Failure::local(&self.file, error);
        if !Operand::is_fixed(&self.file) {
            if !self.file.exists() {
                return self.prepare_new().map(|(device, new)| (device, Some(new)));
            }
            let found = self.file.metadata().map_err(failed)?;
            let wanted = self.size.map(|size| self.offset.saturating_add(size));
            if let Some(wanted) = wanted.filter(|wanted| found.is_file() && found.len() < *wanted) {
                let file = OpenOptions::new().write(true).open(&self.file);
                let sized = file.and_then(|file| file.set_len(wanted));
                sized.map_err(failed)?;
            }
        }
        Ok((sapwood::image::open_device(&self.operand(), false)?, None))
    }

    fn prepare_new(&self) -> Result<(Arc<dyn Device>, NewFile)> {
        if !self.creates {
            let why = "does not exist, and no size was given";
            return Err(Failure::local(&self.file, why));
        }
        let wanted = match (self.size, &self.rootdir) {
            (Some(size), _) => self.offset.saturating_add(size),
            (None, Some(source)) => self.needed(source)?,
            (None, None) => 0,
        };
        let new = NewFile::create(&self.file, false)?;
        let whole = new.device_of(wanted).map_err(OpenError::from)?;
        if self.offset == 0 {
            return Ok((whole, new));
        }
        let name = self.operand().display().to_string();
        let left = wanted.saturating_sub(self.offset);
        let length = self.size.unwrap_or(left);
        let part = PartDevice::new(whole, name, self.offset, length).map_err(OpenError::from)?;
        Ok((Arc::new(part), new))
    }

    /// Bytes of a file system with room for everything in a directory.
    fn needed(&self, source: &Path) -> Result<u64> {
        let builder = ImageBuilder::new(self.options.kind()).from_dir(source);
        let builder = builder.map_err(|error| Failure::new(FAILED, error))?;
        let builder = match self.options.time() {
            Some(time) => builder.time(time),
            None => builder,
        };
        let needed = builder.needed_size();
        let needed = needed.map_err(|error| Failure::new(FAILED, error))?;
        needed.ok_or_else(|| Failure::local(&self.file, "the image needs a size"))
    }

    /// The image as the library takes it: with the range of the file, if it is not all of it.
    fn operand(&self) -> PathBuf {
        if self.offset == 0 {
            return self.file.clone();
        }
        let mut operand = self.file.clone().into_os_string();
        operand.push(format!("#offset={}", self.offset));
        if let Some(size) = self.size {
            operand.push(format!(",length={size}"));
        }
        operand.into()
    }

    fn fill(&self, device: &Arc<dyn Device>, operand: &Path, source: &Path) -> Result<()> {
        copy::lift_file_limit();
        let mut bar = progress::Files::new(self.quiet, "copied", copy::show);
        bar.measure(&[Place::host(source)], Holes::AreLeftOut);
        let mut sources = Sources::default();
        sources.dir(source);
        *sources.storage_mut() = self.storage.clone();
        if let Some(time) = self.options.time() {
            sources.set_time(time);
        }
        let filled = sapwood::build::fill(device, operand, &sources, None, &mut |step| {
            bar.show(step);
        });
        bar.end();
        let report = filled.map_err(|error| match error {
            BuildError::Copy(error) => copy::failure(error),
            BuildError::FileSystem(error) => files::whole(operand, error),
            error => Failure::new(FAILED, error),
        })?;
        if report.left_out > 0 {
            let why = format!("{} files could not be copied", report.left_out);
            return Err(Failure::local(&self.file, why));
        }
        let Some(root) = &self.root else {
            return Ok(());
        };
        let options = choice::fixed(sapwood::Options::new())?;
        let fs = FileSystem::open_on(Arc::clone(device), operand, &options)?;
        let (uid, gid) = root.owner;
        let set = fs.set_owner("/", Some(uid), Some(gid));
        let set = set.and_then(|()| fs.set_permissions("/", root.mode));
        let closed = files::close(fs);
        set.map_err(|error| files::whole(operand, error))
            .and(closed)
    }
}
