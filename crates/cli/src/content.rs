//! Commands that print and write the content of files in an image: cat, write, edit.

use std::ffi::{OsStr, OsString};
use std::io::{Cursor, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sapwood::{FileSystem, OpenOptions};

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result, USAGE};
use super::files::{failed, for_each, in_image, shown_path, with_image};
use super::interrupt::{self, Input};
use super::{mode, output, owner, session};

/// Bytes that are read or written at once.
const CHUNK: usize = 1 << 20;
/// Largest file that is edited.
const EDIT_MAX: u64 = 1 << 30;

#[derive(Debug, clap::Args)]
pub(super) struct CatArgs {
    /// Files to print, whose names may be patterns; - is standard input
    #[arg(value_name = "IMAGE:PATH | -", required = true)]
    pub(super) places: Vec<OsString>,
    /// Continue after a part that cannot be read, which becomes zeros
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct WriteArgs {
    /// File; created if missing
    #[arg(value_name = "IMAGE:PATH")]
    pub(super) place: OsString,
    /// Add to the end of the file
    #[arg(short, long)]
    append: bool,
    /// Owner of a new file [default: the user that calls]
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
    owner: Option<(u32, u32)>,
    /// Mode of the file, in octal [default: for a new file 666 without the umask]
    #[arg(long, value_name = "MODE", value_parser = mode::octal)]
    mode: Option<u32>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct EditArgs {
    /// File; created if missing
    #[arg(value_name = "IMAGE:PATH")]
    pub(super) place: OsString,
    /// Editor [default: $VISUAL, then $EDITOR, then vi]
    #[arg(short, long, value_name = "COMMAND")]
    editor: Option<OsString>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn cat(args: &CatArgs) -> Result<()> {
    let standard = |place: &OsString| place == "-";
    for places in args
        .places
        .chunk_by(|one, next| standard(one) == standard(next))
    {
        if !places.iter().any(standard) {
            cat_files(places, args)?;
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

fn cat_files(places: &[OsString], args: &CatArgs) -> Result<()> {
    for_each(places, &args.choice, true, |fs, path, _| {
        let file = fs.open(path).map_err(failed)?;
        let (mut end, mut unwritten) = (0, None);
        let read = file.read_around_damage(args.keep_going, &mut |at, data| {
            let written = zeros(at - end).and_then(|()| output::bytes(data));
            end = at + data.len() as u64;
            written.map_err(|failure| {
                unwritten = Some(failure);
                ErrorKind::Other.into()
            })
        });
        if let Some(failure) = unwritten {
            return Err(failure);
        }
        let found = read.map_err(|error| match error.downcast::<sapwood::Error>() {
            Ok(error) => failed(error),
            Err(error) => Failure::on(shown_path(path), error),
        })?;
        let Some(damage) = found else {
            return Ok(());
        };
        if args.keep_going {
            let size = file.metadata().map_err(failed)?.len();
            zeros(size.saturating_sub(end))?;
        }
        Err(Failure::on(shown_path(path), damage))
    })
}

/// Prints zeros.
fn zeros(mut count: u64) -> Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while count > 0 {
        let most = usize::try_from(count).unwrap_or(ZEROS.len());
        let piece = ZEROS.get(..most).unwrap_or(&ZEROS);
        output::bytes(piece)?;
        count -= piece.len() as u64;
    }
    Ok(())
}

/// The image and the path of a command that needs a file.
fn file_of(place: &OsStr, command: &str) -> Result<(PathBuf, PathBuf)> {
    let (image, path) = in_image(place)?;
    if path.as_os_str().is_empty() {
        let line = format!(
            "{command} needs a file in the image: {}:/PATH",
            image.display()
        );
        Err(Failure::new(USAGE, line))
    } else {
        Ok((image, path))
    }
}

pub(super) fn write(args: &WriteArgs) -> Result<()> {
    let (image, path) = file_of(&args.place, "write")?;
    let (uid, gid, umask) = owner::chosen(args.owner);
    interrupt::stop();
    with_image(&image, &args.choice, false, |fs| {
        fs.set_creator(uid, gid);
        fs.set_umask(umask);
        let options = OpenOptions::new()
            .write(!args.append)
            .append(args.append)
            .truncate(!args.append)
            .create(true)
            .mode(args.mode.map_or(0o666, |mode| mode & 0o700 | 0o600))
            .clone();
        let file = fs.open_with(&path, &options).map_err(failed)?;
        let mut input: Box<dyn Read> = match session::take_input() {
            Some(text) => Box::new(Cursor::new(text)),
            None => Box::new(Input(std::io::stdin())),
        };
        let (mut buf, mut done) = (vec![0; CHUNK], 0);
        loop {
            let count = match input.read(&mut buf) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) if interrupt::came() => {
                    let line = format!("{done} bytes written to {}", shown_path(&path));
                    return Err(interrupt::failure(&line));
                }
                Err(error) => return Err(Failure::on("standard input", error)),
            };
            if count == 0 {
                break;
            }
            let piece = buf.get(..count).unwrap_or_default();
            file.write_at(piece, done).map_err(failed)?;
            done += count as u64;
        }
        // A write clears set-id bits.
        let mode = args.mode.map(|mode| file.set_permissions(mode));
        mode.unwrap_or(Ok(())).map_err(failed)
    })
}

/// The image stays open, so that nothing else changes it while the editor runs.
pub(super) fn edit(args: &EditArgs) -> Result<()> {
    let (image, path) = file_of(&args.place, "edit")?;
    let editor = args.editor.clone().or_else(|| std::env::var_os("VISUAL"));
    let editor = editor
        .or_else(|| std::env::var_os("EDITOR"))
        .unwrap_or_else(|| "vi".into());
    let (uid, gid, umask) = owner::chosen(None);
    with_image(&image, &args.choice, false, |fs| {
        fs.set_creator(uid, gid);
        fs.set_umask(umask);
        let old = content(fs, &path)?;
        let dir = tempfile::tempdir();
        let dir = dir.map_err(|error| Failure::on("temporary directory", error))?;
        // The editor knows the language by the name.
        let copy = dir
            .path()
            .join(path.file_name().unwrap_or(OsStr::new("file")));
        let local = |error| Failure::local(&copy, error);
        std::fs::write(&copy, old.as_deref().unwrap_or_default()).map_err(local)?;
        run(&editor, &copy)?;
        let new = std::fs::read(&copy).map_err(local)?;
        if old.as_deref().unwrap_or_default() == new {
            return Ok(());
        }
        let names = fs.metadata(&path).map_or(1, |found| found.nlink());
        let replaced = fs.replace(&path, &new).and_then(|()| fs.sync());
        if let Err(error) = replaced {
            let kept = dir.keep().join(copy.file_name().unwrap_or_default());
            let line = format!(
                "{}; the edited text is in {}",
                failed(error),
                kept.display()
            );
            return Err(Failure::new(super::failure::FAILED, line));
        }
        if names > 1 {
            let (path, others) = (shown_path(&path), names - 1);
            output::message(format_args!(
                "{path}: {others} other names keep the old content"
            ));
        }
        Ok(())
    })
}

/// The content of a file; `None` if there is none.
fn content(fs: &FileSystem, path: &Path) -> Result<Option<Vec<u8>>> {
    match fs.metadata(path) {
        Err(error) if error.kind() == sapwood::ErrorKind::NotFound => {
            let above = path.parent().unwrap_or(Path::new(""));
            fs.read_dir(above).map_err(failed)?;
            Ok(None)
        }
        Err(error) => Err(failed(error)),
        Ok(found) if !found.is_file() => {
            let kind = output::kind(found.file_type().kind());
            Err(Failure::on(
                shown_path(path),
                format_args!("is a {kind}, and cannot be edited"),
            ))
        }
        Ok(found) if found.len() > EDIT_MAX => {
            let why = "is too large to be edited; copy it with `sapwood cp`";
            Err(Failure::on(shown_path(path), why))
        }
        Ok(_) => fs.read(path).map(Some).map_err(failed),
    }
}

/// Runs the editor, which may be a command with arguments.
fn run(editor: &OsStr, file: &Path) -> Result<()> {
    let mut script = editor.as_bytes().to_vec();
    script.extend_from_slice(b" \"$@\"");
    let status = Command::new("sh")
        .arg("-c")
        .arg(OsStr::from_bytes(&script))
        .arg("sh")
        .arg(file)
        .status()
        .map_err(|error| Failure::on("sh", error))?;
    if status.success() {
        Ok(())
    } else {
        let name = output::name(editor.as_bytes());
        let why = format_args!(
            "{status}; the image is unchanged. $VISUAL or $EDITOR names another editor"
        );
        Err(Failure::on(name, why))
    }
}
