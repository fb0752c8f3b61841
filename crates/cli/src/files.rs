//! Opening images and finding places in them; the commands cat and tree.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sapwood::target::Target;
use sapwood::{Error, FileSystem, vfs};

use super::choice::SubvolumeChoice;
use super::entry::{self, Entry};
use super::failure::{FULL, Failure, Result};
use super::interrupt;
use super::output::{self, Array};

/// Bytes per read.
const CHUNK: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct CatArgs {
    /// Files to print, whose names may be patterns; - is standard input
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
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
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
        Error::Path { path, source, .. } => on_path(&path, &source),
        error => error.into(),
    }
}

/// As [`failed`], on another path than that of the error.
pub(super) fn failed_on(path: &Path, error: Error) -> Failure {
    match error {
        Error::Path { source, .. } => on_path(path, &source),
        error => error.into(),
    }
}

fn on_path(path: &Path, cause: &vfs::Error) -> Failure {
    let failure = Failure::on(shown_path(path), cause);
    let root = shown_path(path) == "/";
    match cause {
        vfs::Error::NoSpace => failure.advise(FULL),
        vfs::Error::IsDirectory if root => failure.advise("a file is named as IMAGE:/PATH"),
        vfs::Error::NotPermitted => failure.advise("`sapwood stat` shows the flags of the file"),
        _ => failure,
    }
}

/// True if two paths lead to one file.
pub(super) fn same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    one == other || id(one).is_some_and(|found| id(other) == Some(found))
}

/// Reads a second place of a command that works within one image; `IMAGE:` may be left out.
pub(super) fn within_place(image: &Path, place: &OsStr, command: &str) -> Result<PathBuf> {
    match Target::parse(place)? {
        Target::Image { image: other, path } if same_file(&other, image) => {
            Ok(OsString::from_vec(path).into())
        }
        Target::Image { .. } => Err(Failure::on(command, "both places must be in one image")),
        Target::Local(path) => Ok(path),
    }
}

/// A path of an image that begins with a slash.
pub(super) fn absolute(path: &Path) -> PathBuf {
    Path::new("/").join(path)
}

/// The paths that `paths` name, with patterns expanded.
pub(super) fn expand(fs: &FileSystem, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        all.extend(fs.glob(path).map_err(failed)?);
    }
    Ok(all)
}

/// Opens images, runs `work` on each path, and closes them. Patterns are expanded; `work` is also
/// told whether a pattern led to several paths. As with coreutils, a path that fails is reported,
/// and the others follow.
pub(super) fn for_each(
    places: &[OsString],
    choice: &SubvolumeChoice,
    read_only: bool,
    mut work: impl FnMut(&FileSystem, &Path, bool) -> Result<()>,
) -> Result<()> {
    let mut all_done = Ok(());
    for (image, paths) in by_image(places)? {
        with_image(&image, choice, read_only, |fs| {
            let found = expand(fs, &paths)?;
            let several = found.len() > paths.len();
            let mut go_on = |done| match done {
                Err(failure) if output::broken() || interrupt::came() => Err(failure),
                Err(failure) => {
                    output::report(&failure);
                    all_done = Err(Failure::reported());
                    Ok(())
                }
                Ok(()) => Ok(()),
            };
            found
                .iter()
                .try_for_each(|path| go_on(work(fs, path, several)))
        })?;
    }
    all_done
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
    for_each(places, choice, true, |fs, path, _| {
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
    let mut array = args.json.then(Array::begin).transpose()?;
    let shown = for_each(place, &args.choice, true, |fs, path, _| {
        let below = fs.walk(path).map_err(failed)?;
        if array.is_none() {
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
            if let Some(array) = &mut array {
                array.push(&Entry::new(fs, path, below, entry.metadata())?)?;
                continue;
            }
            let target = match entry.file_type().is_dir() {
                true => "/".to_owned(),
                false => entry::arrow(fs, path, entry.metadata())?,
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
        match array {
            Some(_) => Ok(()),
            None => output::line(format!("{} directories, {} files", counts.0, counts.1)),
        }
    });
    if let Some(array) = array {
        array.end()?;
    }
    shown
}
