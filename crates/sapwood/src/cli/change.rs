//! Commands that change files inside an image: rm, mkdir, mv.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use sapwood::target::Target;
use sapwood::tree::{self, Names, Node};
use sapwood_vfs::{Credentials, Error, FileKind, FileSystem, Ino, NewInode, RenameMode};

use super::copy::same_file;
use super::failure::{Failure, Result};
use super::files::{for_each, shown_path, with_image};
use super::{SubvolumeChoice, owner};

#[derive(Debug, clap::Args)]
pub(super) struct RmArgs {
    /// What to remove
    #[arg(value_name = "IMAGE:PATH", required = true)]
    places: Vec<OsString>,
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
    places: Vec<OsString>,
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
    from: OsString,
    /// New name, or a directory; IMAGE: may be left out
    #[arg(value_name = "[IMAGE:]PATH")]
    to: OsString,
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
            Ok(node) => remove(fs, &dir, node, &name).map_err(|(below, error)| {
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

/// A directory that is being emptied.
struct Emptied<'a> {
    node: Node<'a>,
    name: Vec<u8>,
    names: Names,
}

/// Removes the directory `top`, which is `name` in `dir`, and everything below it. Fails with the path from it.
///
/// An image can contain a directory below itself: such a loop is refused before anything in it is removed twice.
fn remove<'a>(
    fs: &'a dyn FileSystem,
    dir: &Node<'a>,
    top: Node<'a>,
    name: &[u8],
) -> Result<(), (Vec<u8>, Error)> {
    let mut inside: HashSet<Ino> = HashSet::from([dir.ino(), top.ino()]);
    let mut open = vec![Emptied {
        node: top,
        name: name.to_vec(),
        names: Names::default(),
    }];
    let step = |open: &mut Vec<Emptied<'a>>, inside: &mut HashSet<Ino>| -> Result<bool, Error> {
        let Some(last) = open.last_mut() else {
            return Ok(false);
        };
        let Some(entry) = last.names.next(&last.node)? else {
            let Some(Emptied { node, name, .. }) = open.pop() else {
                return Ok(false);
            };
            inside.remove(&node.ino());
            let parent = open.last().map_or(dir.ino(), |above| above.node.ino());
            fs.rmdir(parent, &name)?;
            return Ok(!open.is_empty());
        };
        if entry.kind != FileKind::Directory {
            fs.unlink(last.node.ino(), &entry.name)?;
            return Ok(true);
        }
        let below = last.node.child(&entry.name)?;
        if !inside.insert(below.ino()) {
            return Err(tree::directory_loop(&entry.name));
        }
        last.names.shed();
        open.push(Emptied {
            node: below,
            name: entry.name,
            names: Names::default(),
        });
        Ok(true)
    };
    loop {
        match step(&mut open, &mut inside) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                let names = open.iter().skip(1);
                let path = names
                    .flat_map(|one| [b"/", one.name.as_slice()].concat())
                    .collect();
                return Err((path, error));
            }
        }
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
