//! Commands that change files inside an image: rm, mkdir, mv.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use sapwood::target::Target;
use sapwood::tree::{self, Node};
use sapwood_vfs::{Credentials, Error, FileSystem, NewInode, RenameMode};

use super::choice::SubvolumeChoice;
use super::copy::same_file;
use super::failure::{Failure, Result};
use super::files::{for_each, shown_path, with_image};
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
        let found = tree::resolve_parent(fs, path);
        let (dir, name) = match found {
            Err(Error::NotFound) if args.force => return Ok(()),
            other => other.map_err(|error| unnamed(path, error))?,
        };
        let fail = |error: Error| Failure::on(shown_path(path), error);
        match dir.child(&name) {
            Err(Error::NotFound) if args.force => Ok(()),
            Err(error) => Err(fail(error)),
            Ok(node) if !node.is_dir() => fs.unlink(dir.ino(), &name).map_err(fail),
            Ok(_) if !args.recursive => Err(Failure::on(
                shown_path(path),
                "is a directory; -r removes it",
            )),
            Ok(node) => tree::remove_all(&dir, node, &name).map_err(|(below, error)| {
                let whole = [path, &below].concat();
                Failure::on(shown_path(&whole), error)
            }),
        }
    })
}

/// A path without a last name: the root, or one that ends with a dot.
fn unnamed(path: &[u8], error: Error) -> Failure {
    match error {
        Error::Invalid if path.iter().all(|byte| *byte == b'/') => {
            Failure::on(shown_path(b""), "is the root directory")
        }
        Error::Invalid => Failure::on(shown_path(path), "the last part has to be a name"),
        error => Failure::on(shown_path(path), error),
    }
}

pub(super) fn mkdir(args: &MkdirArgs) -> Result<()> {
    let who = owner::chosen(args.owner);
    for_each(&args.places, &args.choice, false, |fs, path| {
        let fail = |error: Error| Failure::on(shown_path(path), error);
        if !args.parents {
            let (dir, name) =
                tree::resolve_parent(fs, path).map_err(|error| unnamed(path, error))?;
            return make(fs, &who, &dir, &name).map(drop).map_err(fail);
        }
        let mut at = Node::root(fs)?;
        for part in path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
        {
            at = match at.child(part) {
                Err(Error::NotFound) => make(fs, &who, &at, part).map_err(fail)?,
                other => other.map_err(fail)?,
            };
        }
        if at.is_dir() {
            Ok(())
        } else {
            Err(fail(Error::Exists))
        }
    })
}

fn make<'a>(
    fs: &'a dyn FileSystem,
    who: &Credentials,
    dir: &Node<'_>,
    name: &[u8],
) -> Result<Node<'a>, Error> {
    let entry = fs.create(who, dir.ino(), name, NewInode::Directory, 0o777)?;
    Ok(Node::new(fs, entry))
}

/// Reads a second place of a command that works within one image; `IMAGE:` may be left out.
pub(super) fn within(image: &Path, place: &OsStr, command: &str) -> Result<Vec<u8>> {
    match Target::parse(place)? {
        Target::Image { image: other, path } if same_file(&other, image) => Ok(path),
        Target::Image { .. } => Err(Failure::on(command, "both places must be in one image")),
        Target::Local(path) => Ok(path.into_os_string().into_encoded_bytes()),
    }
}

pub(super) fn mv(args: &MvArgs) -> Result<()> {
    let (image, from) = Target::parse_in_image(&args.from)?;
    let to = within(&image, &args.to, "mv")?;
    with_image(&image, &args.choice, false, |fs| {
        let fs: &dyn FileSystem = &**fs;
        let (dir, name) = tree::resolve_parent(fs, &from).map_err(|error| unnamed(&from, error))?;
        let node = dir
            .child(&name)
            .map_err(|error| Failure::on(shown_path(&from), error))?;
        let fail = |error: Error| Failure::on(shown_path(&to), error);
        let (to_dir, to_name) = match tree::resolve(fs, &to, true) {
            Ok(there) if there.is_dir() => (there, name.clone()),
            Ok(_) | Err(Error::NotFound) if to.ends_with(b"/") && !node.is_dir() => {
                return Err(fail(Error::NotDirectory));
            }
            Ok(_) | Err(Error::NotFound) => {
                tree::resolve_parent(fs, &to).map_err(|error| unnamed(&to, error))?
            }
            Err(error) => return Err(fail(error)),
        };
        let mode = if args.no_clobber {
            RenameMode::NoReplace
        } else {
            RenameMode::Replace
        };
        let renamed = fs.rename(dir.ino(), &name, to_dir.ino(), &to_name, mode);
        renamed.map_err(|error| match error {
            Error::Invalid if node.is_dir() => {
                Failure::on(shown_path(&from), "a directory cannot be moved into itself")
            }
            error => fail(error),
        })
    })
}
