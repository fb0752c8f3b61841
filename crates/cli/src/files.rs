//! Opening images, and finding places in them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sapwood::internal::{NoImage, OperationError, Target};
use sapwood::{Error, FileSystem, vfs};

use super::choice::{self, SubvolumeChoice};
use super::failure::{FULL, Failure, Result, USAGE, engine_error};
use super::{interrupt, output, session};

/// A path as text.
fn text(path: &Path) -> String {
    output::name(path.as_os_str().as_bytes())
}

/// Reads an operand that is a path of this machine or in an image. In a shell, `:PATH` is in the
/// image of the shell.
pub(super) fn target(place: &OsStr) -> Result<Target, NoImage> {
    match session::marked(place).zip(session::image()) {
        Some((path, image)) => Ok(Target::Image { image, path }),
        None => Target::parse(place),
    }
}

/// Reads a place in an image: the image and the path.
///
/// In a script, a path without an image is in the image of the script. In a shell, every place is
/// in the image of the shell, unless it names another image that exists.
pub(super) fn in_image(place: &OsStr) -> Result<(PathBuf, PathBuf)> {
    if let Some((path, image)) = session::path(place).zip(session::image())
        && !matches!(target(place), Ok(Target::Image { image: other, .. }) if !same_file(&other, &image))
    {
        return Ok((image, OsString::from_vec(path).into()));
    }
    if let Some(image) = session::image()
        && let Ok(Target::Local(path)) = Target::parse(place)
    {
        return Ok((image, path));
    }
    let (image, path) = Target::parse_in_image(place)?;
    Ok((image, OsString::from_vec(path).into()))
}

/// Refuses `-` for a new image: standard output has no positions.
pub(super) fn refuse_stream(image: &Path) -> Result<()> {
    if image == Path::new("-") {
        let why = "an image cannot be written to standard output; ./- is a file of that name";
        Err(Failure::local(image, why).with_code(USAGE))
    } else {
        Ok(())
    }
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
    match error.downcast_ref() {
        Some(OperationError::Path { path, source, .. }) => on_path(path, source),
        _ => error.into(),
    }
}

/// The failure of `error`, on another path.
pub(super) fn failed_on(path: &Path, error: Error) -> Failure {
    match error.downcast_ref() {
        Some(OperationError::Path { source, .. }) => on_path(path, source),
        _ => error.into(),
    }
}

fn on_path(path: &Path, cause: &vfs::Error) -> Failure {
    let failure = Failure::on(shown_path(path), cause);
    let root = shown_path(path) == "/";
    match cause {
        vfs::Error::NoSpace => failure.advise(FULL),
        vfs::Error::IsDirectory if root => failure.advise("name a file as IMAGE:/PATH"),
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
    if session::dir().is_some() {
        let (other, path) = in_image(place)?;
        return if same_file(&other, image) {
            Ok(path)
        } else {
            Err(Failure::on(command, "both places must be in one image"))
        };
    }
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

/// Opens images, runs `work` on each path, and closes them. Patterns are expanded; the argument of
/// `work` includes whether a pattern matched several paths. As with coreutils, a path that fails is
/// reported, and the others follow.
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

/// Opens an image for a command; the image of a script or of a shell is open.
pub(super) fn open(image: &Path, choice: &SubvolumeChoice, read_only: bool) -> Result<FileSystem> {
    if let (Some(fs), Some(open)) = (session::fs(), session::image())
        && same_file(image, &open)
    {
        refuse_choice(choice)?;
        return Ok(fs);
    }
    let options = choice.options(read_only)?;
    Ok(FileSystem::open_with_options(image, &options)?)
}

/// Opens an image for a command that reads all of it in order: a small cache suffices.
pub(super) fn open_in_order(image: &Path, choice: &SubvolumeChoice) -> Result<FileSystem> {
    if session::fs().is_some() {
        return open(image, choice, true);
    }
    let mut options = choice.options(true)?;
    choice::reading_in_order(&mut options)?;
    Ok(FileSystem::open_with_options(image, &options)?)
}

/// Opens an image for a command that makes the changes of a stream.
pub(super) fn open_in_bulk(image: &Path, choice: &SubvolumeChoice) -> Result<FileSystem> {
    if session::fs().is_some() {
        return open(image, choice, false);
    }
    let mut options = choice.options(false)?;
    choice::changing_in_bulk(&mut options)?;
    Ok(FileSystem::open_with_options(image, &options)?)
}

/// Opens the other image of a comparison or a send.
pub(super) fn open_other(image: &Path) -> Result<FileSystem> {
    let mut options = choice::opening(true);
    choice::reading_in_order(&mut options)?;
    Ok(FileSystem::open_with_options(image, &options)?)
}

/// Refuses the choice of a subvolume in a line of a script or of a shell.
pub(super) fn refuse_choice(choice: &SubvolumeChoice) -> Result<()> {
    let line = match (choice.is_made(), session::dir()) {
        (false, _) => return Ok(()),
        (true, None) => "a script is for one subvolume: `sapwood apply` takes its options",
        (true, Some(_)) => "a shell is for one subvolume: `sapwood shell` takes its options",
    };
    Err(Failure::new(USAGE, line))
}

/// Closes an image after a command, unless it is the image of a script or of a shell.
pub(super) fn close(fs: FileSystem) -> Result<()> {
    if session::fs().is_some_and(|open| open.is_same(&fs)) {
        return Ok(());
    }
    let image = fs.image_path().to_owned();
    fs.close().map_err(|error| whole(&image, error))
}

/// The failure of an operation on a whole image.
pub(super) fn whole(image: &Path, error: sapwood::Error) -> Failure {
    match engine_error(&error) {
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
    within(open(image, choice, read_only)?, work)
}

/// Runs `work` on an opened image, and closes it whether that succeeded or not.
pub(super) fn within<T>(fs: FileSystem, work: impl FnOnce(&FileSystem) -> Result<T>) -> Result<T> {
    let result = work(&fs);
    let ended = close(fs);
    let value = result?;
    ended?;
    Ok(value)
}
