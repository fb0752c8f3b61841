//! Commands that read files inside an image: ls, cat, tree.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sapwood::fs::Metadata;
use sapwood::target::Target;
use sapwood::vfs::FileKind;
use sapwood::{Error, FileSystem};
use serde::Serialize;

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result};
use super::{output, times};

/// Bytes per read.
const CHUNK: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct LsArgs {
    /// What to list
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    pub(super) places: Vec<OsString>,
    /// Long form: mode, links, owner, size, time
    #[arg(short, long)]
    long: bool,
    /// List a directory itself, not what is in it
    #[arg(short, long)]
    directory: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct CatArgs {
    /// Files to print; - is standard input
    #[arg(value_name = "IMAGE:PATH | -", required = true)]
    pub(super) places: Vec<OsString>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct TreeArgs {
    /// Directory to show
    #[arg(value_name = "IMAGE[:PATH]")]
    pub(super) place: OsString,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// A file or directory as `--json` shows it.
#[derive(Serialize)]
pub(super) struct Shown {
    path: String,
    kind: &'static str,
    mode: String,
    ino: u64,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Shown {
    /// What is at `path`, under the name `shown`.
    fn new(fs: &FileSystem, path: &Path, shown: &Path, found: &Metadata) -> Self {
        let target = found
            .is_symlink()
            .then(|| fs.read_link(path).unwrap_or_default());
        Self {
            path: text(shown),
            kind: output::kind(found.file_type().kind()),
            mode: format!("{:04o}", found.mode()),
            ino: found.ino(),
            links: found.nlink(),
            uid: found.uid(),
            gid: found.gid(),
            size: found.len(),
            mtime: times::json(found.attr().mtime),
            target: target.map(|target| text(&target)),
        }
    }
}

/// A path as text.
fn text(path: &Path) -> String {
    output::name(path.as_os_str().as_bytes())
}

/// Reads a place in an image: the image and the path.
pub(super) fn in_image(place: &OsStr) -> Result<(PathBuf, PathBuf)> {
    let (image, path) = Target::parse_in_image(place)?;
    Ok((image, OsString::from_vec(path).into()))
}

/// Paths grouped by the image that they are in, each image to be opened once.
pub(super) fn by_image(places: &[OsString]) -> Result<Vec<(PathBuf, Vec<PathBuf>)>> {
    let mut images: Vec<(PathBuf, Vec<PathBuf>)> = Vec::new();
    for place in places {
        let (image, path) = in_image(place)?;
        match images.iter_mut().find(|(other, _)| *other == image) {
            Some((_, paths)) => paths.push(path),
            None => images.push((image, vec![path])),
        }
    }
    Ok(images)
}

pub(super) fn shown_path(path: &Path) -> String {
    format!("/{}", text(path).trim_start_matches('/'))
}

/// The failure of an operation on a path in an image: the path, and the cause.
pub(super) fn failed(error: Error) -> Failure {
    match error {
        Error::Path { path, source, .. } => Failure::on(shown_path(&path), source),
        error => error.into(),
    }
}

/// As [`failed`], on another path than that of the error.
pub(super) fn failed_on(path: &Path, error: Error) -> Failure {
    match error {
        Error::Path { source, .. } => Failure::on(shown_path(path), source),
        error => error.into(),
    }
}

/// Opens images, runs `work` on each path, and closes them.
pub(super) fn for_each(
    places: &[OsString],
    choice: &SubvolumeChoice,
    read_only: bool,
    mut work: impl FnMut(&FileSystem, &Path) -> Result<()>,
) -> Result<()> {
    for (image, paths) in by_image(places)? {
        with_image(&image, choice, read_only, |fs| {
            paths.iter().try_for_each(|path| work(fs, path))
        })?;
    }
    Ok(())
}

/// Closes an image after a command.
pub(super) fn close(fs: FileSystem) -> Result<()> {
    let image = fs.image_path().to_owned();
    fs.close().map_err(|error| whole(&image, error))
}

/// The failure of an operation on a whole image.
pub(super) fn whole(image: &Path, error: sapwood::Error) -> Failure {
    match error.cause() {
        Some(cause) => Failure::local(image, cause),
        None => Failure::from(error),
    }
}

/// Opens an image, runs `work` on it, and closes it whether that succeeded or not.
pub(super) fn with_image<T>(
    image: &Path,
    choice: &SubvolumeChoice,
    read_only: bool,
    work: impl FnOnce(&FileSystem) -> Result<T>,
) -> Result<T> {
    let options = choice.options(read_only)?;
    within(FileSystem::open_with_options(image, &options)?, work)
}

/// Runs `work` on an opened image, and closes it whether that succeeded or not.
pub(super) fn within<T>(fs: FileSystem, work: impl FnOnce(&FileSystem) -> Result<T>) -> Result<T> {
    let result = work(&fs);
    let ended = close(fs);
    let value = result?;
    ended?;
    Ok(value)
}

pub(super) fn ls(args: &LsArgs) -> Result<()> {
    let several = args.places.len() > 1;
    let mut shown = Vec::new();
    for_each(&args.places, &args.choice, true, |fs, path| {
        let top = match args.long {
            true => fs.symlink_metadata(path),
            false => fs.metadata(path),
        };
        let top = top.map_err(failed)?;
        let mut found: Vec<(PathBuf, PathBuf, Metadata)> = Vec::new();
        if top.is_dir() && !args.directory {
            for entry in fs.read_dir(path).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let metadata = entry.metadata().map_err(failed)?;
                found.push((entry.file_name().into(), entry.path(), metadata));
            }
            found.sort_by(|(one, ..), (other, ..)| one.as_os_str().cmp(other.as_os_str()));
            if several && !args.json {
                output::line(format!("{}:", shown_path(path)))?;
            }
        } else {
            found.push((path.to_owned(), path.to_owned(), top));
        }
        for (name, path, metadata) in found {
            match (args.json, args.long) {
                (true, _) => shown.push(Shown::new(fs, &path, &name, &metadata)),
                (false, true) => output::line(long_line(fs, &path, &name, &metadata))?,
                (false, false) => output::line(text(&name))?,
            }
        }
        Ok(())
    })?;
    match args.json {
        true => output::json(&shown),
        false => Ok(()),
    }
}

fn long_line(fs: &FileSystem, path: &Path, name: &Path, metadata: &Metadata) -> String {
    let shown = Shown::new(fs, path, name, metadata);
    let attr = metadata.attr();
    let size = match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let (major, minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
            format!("{major}, {minor}")
        }
        _ => attr.size.to_string(),
    };
    let time = times::local_seconds(attr.mtime);
    let target = shown
        .target
        .map(|target| format!(" -> {target}"))
        .unwrap_or_default();
    format!(
        "{} {:>3} {:>5} {:>5} {size:>12} {time} {}{target}",
        output::mode(attr),
        attr.nlink,
        attr.uid,
        attr.gid,
        shown.path
    )
}

pub(super) fn cat(args: &CatArgs) -> Result<()> {
    let standard = |place: &OsString| place == "-";
    for places in args
        .places
        .chunk_by(|one, next| standard(one) == standard(next))
    {
        if !places.iter().any(standard) {
            cat_files(places, &args.choice)?;
            continue;
        }
        cat_input()?;
    }
    Ok(())
}

fn cat_input() -> Result<()> {
    let mut buf = vec![0; CHUNK];
    loop {
        match std::io::stdin().read(&mut buf) {
            Ok(0) => return Ok(()),
            Ok(count) => output::bytes(buf.get(..count).unwrap_or_default())?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::on("standard input", error)),
        }
    }
}

fn cat_files(places: &[OsString], choice: &SubvolumeChoice) -> Result<()> {
    let mut buf = vec![0; CHUNK];
    for_each(places, choice, true, |fs, path| {
        let file = fs.open_file(path).map_err(failed)?;
        let mut at = 0;
        loop {
            let count = file.read_at(&mut buf, at).map_err(failed)?;
            if count == 0 {
                return Ok(());
            }
            output::bytes(buf.get(..count).unwrap_or_default())?;
            at += count as u64;
        }
    })
}

pub(super) fn tree(args: &TreeArgs) -> Result<()> {
    let place = std::slice::from_ref(&args.place);
    for_each(place, &args.choice, true, |fs, path| {
        let below = fs.walk(path).map_err(failed)?;
        if !args.json {
            output::line(shown_path(path))?;
        }
        let mut counts = (0_u64, 0_u64);
        for entry in below {
            let entry = entry.map_err(failed)?;
            let (path, below) = (entry.path(), entry.relative_path());
            match entry.file_type().is_dir() {
                true => counts.0 += 1,
                false => counts.1 += 1,
            }
            if args.json {
                output::json_line(&Shown::new(fs, path, below, entry.metadata()))?;
                continue;
            }
            let target = match entry.file_type().kind() {
                FileKind::Symlink => {
                    format!(" -> {}", text(&fs.read_link(path).map_err(failed)?))
                }
                FileKind::Directory => "/".to_owned(),
                _ => String::new(),
            };
            let bytes = below.as_os_str().as_bytes();
            let depth = bytes.iter().filter(|byte| **byte == b'/').count() + 1;
            let name = bytes
                .rsplit(|byte| *byte == b'/')
                .next()
                .unwrap_or_default();
            let indent = "  ".repeat(depth);
            output::line(format!("{indent}{}{target}", output::name(name)))?;
        }
        if args.json {
            return Ok(());
        }
        output::line(format!("{} directories, {} files", counts.0, counts.1))
    })
}
