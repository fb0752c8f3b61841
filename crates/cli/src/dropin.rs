//! The program under the name of another one: `mke2fs`, `mkfs.ext2`, `mkfs.ext3`, `mkfs.ext4` and
//! `mkfs.btrfs`.
//!
//! Image builders call those tools. Under such a name the program takes the tool's options
//! (`sapwood_dropin`), and exits with 1 on any failure, as the tool does.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood::block::{Device, Operand, PartDevice};
use sapwood::internal::image::{OpenError, open_device};
use sapwood::internal::{BuildError, NewFile, mkfs_several};
use sapwood::{FileSystem, ImageBuilder, Place, Sources};
use sapwood_dropin::{Asked, Request};

use super::failure::{FAILED, Failure, Result};
use super::progress::{self, Holes};
use super::{choice, copy, files, interrupt, output, times};

/// Runs the tool whose name the program was called by; its exit code. `None` for any other name.
pub(super) fn run_by_name(args: &[OsString]) -> Option<u8> {
    let tool = sapwood_dropin::tool(args)?;
    Some(match run(tool, args) {
        Ok(()) => 0,
        Err(failure) => {
            let line = failure.to_string();
            if !line.is_empty() {
                output::message(format_args!("{tool}: {line}"));
            }
            FAILED
        }
    })
}

fn run(tool: &str, args: &[OsString]) -> Result<()> {
    let asked = sapwood_dropin::parse(tool, args);
    match asked.map_err(|error| Failure::new(FAILED, error))? {
        Asked::Make(mut request) => {
            for warning in &request.warnings {
                output::message(warning);
            }
            if let Some(time) = times::source_date_epoch()? {
                request.options.set_time(time);
            }
            make(&request)
        }
        Asked::Print(text) => output::line(text.trim_end()),
    }
}

fn make(request: &Request) -> Result<()> {
    if let Some(source) = &request.rootdir {
        check(request, source)?;
    }
    interrupt::abandon_new_files();
    let (device, new) = prepare(request)?;
    let operand = operand(request);
    let whole = request.size.is_none() || request.offset > 0;
    let others = request.others.iter();
    let others = others.map(|path| open_device(path, false));
    let others = others.collect::<Result<Vec<_>, OpenError>>()?;
    let mut devices: Vec<&dyn Device> = vec![&*device];
    devices.extend(others.iter().map(Arc::as_ref));
    let made = mkfs_several(&devices, &operand, &request.options, whole);
    let made = made.map_err(|error| Failure::new(FAILED, error))?;
    if let Some(source) = &request.rootdir {
        fill(request, &device, &operand, source)?;
    }
    drop(device);
    if let Some(new) = new {
        new.finish()?;
    }
    if request.quiet {
        Ok(())
    } else {
        output::line(format_args!(
            "{}: {}, {}, uuid {}",
            request.file.display(),
            request.options.kind(),
            output::size(made.size()),
            output::uuid(&made.uuid())
        ))
    }
}

/// Finds what would make the filling fail at once.
fn check(request: &Request, source: &Path) -> Result<()> {
    std::fs::read_dir(source).map_err(|error| Failure::local(source, error))?;
    if request.options.is_journal_device() {
        return Err(Failure::local(
            &request.file,
            "a journal device has no files",
        ));
    }
    let fits = request.storage.check(request.options.kind());
    fits.and_then(|()| request.storage.check_directories(source))
        .map_err(|error| Failure::new(FAILED, error))
}

/// Opens the device, or the file, which is made as large as the file system needs it. A file
/// that does not exist gets its name at the end.
fn prepare(request: &Request) -> Result<(Arc<dyn Device>, Option<NewFile>)> {
    let failed = |error| Failure::local(&request.file, error);
    if !Operand::is_fixed(&request.file) {
        if !request.file.exists() {
            return prepare_new(request).map(|(device, new)| (device, Some(new)));
        }
        let found = request.file.metadata().map_err(failed)?;
        let wanted = request.size.map(|size| request.offset.saturating_add(size));
        if let Some(wanted) = wanted.filter(|wanted| found.is_file() && found.len() < *wanted) {
            let file = OpenOptions::new().write(true).open(&request.file);
            let sized = file.and_then(|file| file.set_len(wanted));
            sized.map_err(failed)?;
        }
    }
    Ok((open_device(&operand(request), false)?, None))
}

fn prepare_new(request: &Request) -> Result<(Arc<dyn Device>, NewFile)> {
    if !request.creates {
        let why = "does not exist, and no size was given";
        return Err(Failure::local(&request.file, why));
    }
    let wanted = match (request.size, &request.rootdir) {
        (Some(size), _) => request.offset.saturating_add(size),
        (None, Some(source)) => needed(request, source)?,
        (None, None) => 0,
    };
    let new = NewFile::create(&request.file, false)?;
    let whole = new.device_of(wanted).map_err(OpenError::from)?;
    if request.offset == 0 {
        return Ok((whole, new));
    }
    let name = operand(request).display().to_string();
    let left = wanted.saturating_sub(request.offset);
    let length = request.size.unwrap_or(left);
    let part = PartDevice::new(whole, name, request.offset, length).map_err(OpenError::from)?;
    Ok((Arc::new(part), new))
}

/// Bytes of a file system with room for everything in a directory.
fn needed(request: &Request, source: &Path) -> Result<u64> {
    let builder = ImageBuilder::new(request.options.kind()).from_dir(source);
    let builder = builder.map_err(|error| Failure::new(FAILED, error))?;
    let builder = match request.options.time() {
        Some(time) => builder.time(time),
        None => builder,
    };
    let needed = builder.needed_size();
    let needed = needed.map_err(|error| Failure::new(FAILED, error))?;
    needed.ok_or_else(|| Failure::local(&request.file, "the image needs a size"))
}

/// The image as the library takes it: with the range of the file, if it is not all of it.
fn operand(request: &Request) -> PathBuf {
    if request.offset == 0 {
        return request.file.clone();
    }
    let mut operand = request.file.clone().into_os_string();
    operand.push(format!("#offset={}", request.offset));
    if let Some(size) = request.size {
        operand.push(format!(",length={size}"));
    }
    operand.into()
}

fn fill(request: &Request, device: &Arc<dyn Device>, operand: &Path, source: &Path) -> Result<()> {
    copy::lift_file_limit();
    let mut bar = progress::Files::new(request.quiet, "copied", copy::show);
    bar.measure(&[Place::host(source)], Holes::AreLeftOut);
    let mut sources = Sources::default();
    sources.dir(source);
    *sources.storage_mut() = request.storage.clone();
    if let Some(time) = request.options.time() {
        sources.set_time(time);
    }
    let options = &request.options;
    let filled = sapwood::internal::fill(device, operand, &sources, options, None, &mut |step| {
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
        return Err(Failure::local(&request.file, why));
    }
    let Some(root) = &request.root else {
        return Ok(());
    };
    let opening = options.opening(choice::fixed(sapwood::Options::new())?);
    let fs = FileSystem::open_on(Arc::clone(device), operand, &opening)?;
    let (uid, gid) = root.owner;
    let set = fs.set_owner("/", Some(uid), Some(gid));
    let set = set.and_then(|()| fs.set_permissions("/", root.mode));
    let closed = files::close(fs);
    set.map_err(|error| files::whole(operand, error))
        .and(closed)
}
