//! Commands that change files inside an image: rm, mkdir, mv.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sapwood::Error;
use sapwood::target::Target;

use super::choice::SubvolumeChoice;
use super::copy::same_file;
use super::failure::{Failure, Result};
use super::files::{failed, failed_on, for_each, in_image, shown_path, with_image};
use super::owner;

#[derive(Debug, clap::Args)]
pub(super) struct RmArgs {
    /// What to remove
    #[arg(value_name = "IMAGE:PATH", required = true)]
    pub(super) places: Vec<OsString>,
    /// Remove directories and all below them
    #[arg(short, long)]
    recursive: bool,
    /// Say nothing of what does not exist
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct MkdirArgs {
    /// Directories to make
    #[arg(value_name = "IMAGE:PATH", required = true)]
    pub(super) places: Vec<OsString>,
    /// Make missing parents, and say nothing of what exists
    #[arg(short, long)]
    parents: bool,
    /// Owner of the new directories [default: the user that calls]
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
    owner: Option<(u32, u32)>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct MvArgs {
    /// What to move
    #[arg(value_name = "IMAGE:PATH")]
    pub(super) from: OsString,
    /// New name, or a directory; IMAGE: may be left out
    #[arg(value_name = "[IMAGE:]PATH")]
    pub(super) to: OsString,
    /// Do not replace what exists
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn rm(args: &RmArgs) -> Result<()> {
    for_each(&args.places, &args.choice, false, |fs, path| {
        named(path)?;
        let removed = match fs.symlink_metadata(path) {
            Err(error) => Err(error),
            Ok(found) if !found.is_dir() => fs.remove_file(path),
            Ok(_) if args.recursive => fs.remove_dir_all(path),
            Ok(_) => {
                let why = "is a directory; -r removes it";
                return Err(Failure::on(shown_path(path), why));
            }
        };
        match removed {
            Err(error) if args.force && error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(failed),
        }
    })
}

/// Refuses a path without a last name: the root, or one that ends with a dot.
fn named(path: &Path) -> Result<()> {
    let bytes = path.as_os_str().as_bytes();
    let last = bytes
        .split(|byte| *byte == b'/')
        .rfind(|part| !part.is_empty());
    match last {
        None => Err(Failure::on(
            shown_path(Path::new("")),
            "is the root directory",
        )),
        Some(b"." | b"..") => Err(Failure::on(
            shown_path(path),
            "the last part has to be a name",
        )),
        Some(_) => Ok(()),
    }
}

pub(super) fn mkdir(args: &MkdirArgs) -> Result<()> {
    let (uid, gid, umask) = owner::chosen(args.owner);
    for_each(&args.places, &args.choice, false, |fs, path| {
        fs.set_creator(uid, gid);
        fs.set_umask(umask);
        if !args.parents {
            named(path)?;
            return fs.create_dir_with(path, 0o777).map_err(failed);
        }
        fs.create_dir_all_with(path, 0o777).map_err(failed)
    })
}

/// Reads a second place of a command that works within one image; `IMAGE:` may be left out.
pub(super) fn within(image: &Path, place: &OsStr, command: &str) -> Result<PathBuf> {
    match Target::parse(place)? {
        Target::Image { image: other, path } if same_file(&other, image) => {
            Ok(OsString::from_vec(path).into())
        }
        Target::Image { .. } => Err(Failure::on(command, "both places must be in one image")),
        Target::Local(path) => Ok(path),
    }
}

pub(super) fn mv(args: &MvArgs) -> Result<()> {
    let (image, from) = in_image(&args.from)?;
    let to = within(&image, &args.to, "mv")?;
    with_image(&image, &args.choice, false, |fs| {
        named(&from)?;
        let moved = fs.symlink_metadata(&from).map_err(failed)?;
        let fail = |error: Error| failed_on(&to, error);
        let to_file = to.as_os_str().as_bytes().ends_with(b"/") && !moved.is_dir();
        let target = match fs.metadata(&to) {
            Ok(there) if there.is_dir() => to.join(from.file_name().unwrap_or_default()),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(fail(error)),
            _ if to_file => return Err(Failure::on(shown_path(&to), "not a directory")),
            _ => {
                named(&to)?;
                to.clone()
            }
        };
        let renamed = match args.no_clobber {
            true => fs.rename_no_replace(&from, &target),
            false => fs.rename(&from, &target),
        };
        renamed.map_err(|error| match error.kind() {
            ErrorKind::InvalidInput if moved.is_dir() => {
                Failure::on(shown_path(&from), "a directory cannot be moved into itself")
            }
            _ => fail(error),
        })
    })
}
