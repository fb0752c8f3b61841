//! Commands that change names in an image: rm, mkdir, mv, ln.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sapwood::{ErrorKind, FileSystem, Progress};

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result};
use super::files::{
    by_image, expand, failed, failed_on, for_each, in_image, shown_path, with_image, within_place,
};
use super::mode::ModeChange;
use super::{interrupt, output, owner, progress};

#[derive(Debug, clap::Args)]
pub(super) struct RmArgs {
    /// Names to remove, or patterns
    #[arg(value_name = "IMAGE:PATH", required = true)]
    pub(super) places: Vec<OsString>,
    /// Remove directories and everything below them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore missing names
    #[arg(short, long)]
    force: bool,
    /// Report each removal
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct MkdirArgs {
    /// Directories to make
    #[arg(value_name = "IMAGE:PATH", required = true)]
    pub(super) places: Vec<OsString>,
    /// Make missing parents, and accept existing directories
    #[arg(short, long)]
    parents: bool,
    /// Mode of the new directories, as chmod has it [default: 777 less the umask]
    #[arg(short, long)]
    mode: Option<ModeChange>,
    /// Report each new directory
    #[arg(short, long)]
    verbose: bool,
    /// Owner of the new directories [default: the user that calls]
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
    owner: Option<(u32, u32)>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct MvArgs {
    /// Sources, then the target; `help` has the text
    #[arg(value_names = ["SOURCE", "DESTINATION"], required = true, num_args = 2.., hide = true)]
    pub(super) places: Vec<OsString>,
    /// Keep existing files
    #[arg(short, long)]
    no_clobber: bool,
    /// Report each rename
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct LnArgs {
    /// Target of a link, or text of a symbolic link, then the new name; `help` has the text
    #[arg(value_names = ["FILE", "NEW"], required = true, num_args = 2.., hide = true)]
    pub(super) places: Vec<OsString>,
    /// Make a symbolic link
    #[arg(short, long)]
    pub(super) symbolic: bool,
    /// Replace a file that has the new name
    #[arg(short, long)]
    force: bool,
    /// Report each new link
    #[arg(short, long)]
    verbose: bool,
    /// Owner of a symbolic link [default: the user that calls]
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
    owner: Option<(u32, u32)>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn rm(args: &RmArgs) -> Result<()> {
    let stop = interrupt::stop();
    let bar = progress::items(args.verbose || !args.recursive, "removed");
    let mut count = 0_u64;
    let removed = for_each(&args.places, &args.choice, false, |fs, path, _| {
        named(path)?;
        let removed = match fs.symlink_metadata(path) {
            Err(error) => Err(error),
            Ok(found) if !found.is_dir() => fs.remove_file(path).inspect(|()| {
                count += 1;
                if args.verbose {
                    // An error of standard output ends the command at the next path.
                    let _ = output::line(format!("removed {}", shown_path(path)));
                }
            }),
            Ok(_) if args.recursive => {
                let before = count;
                fs.remove_dir_all_with(path, &stop, &mut |step| match step {
                    Progress::Done { done, .. } => {
                        count = before + done;
                        bar.set_position(count);
                    }
                    Progress::Item(name) if args.verbose => {
                        let name = name.to_string();
                        let _ = output::line(format!("removed /{}", name.trim_start_matches('/')));
                    }
                    _ => {}
                })
            }
            Ok(_) => {
                let why = "is a directory; -r removes it";
                return Err(Failure::on(shown_path(path), why));
            }
        };
        interrupt::check(|| format!("{count} names removed"))?;
        match removed {
            Err(error) if args.force && error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(failed),
        }
    });
    bar.finish_and_clear();
    removed
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
            "is the root directory; name something in it as IMAGE:/PATH",
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
    for_each(&args.places, &args.choice, false, |fs, path, _| {
        fs.set_creator(uid, gid);
        fs.set_umask(umask);
        let exists = fs.exists(path).map_err(failed)?;
        if args.parents {
            fs.create_dir_all_with(path, 0o777).map_err(failed)?
        } else {
            named(path)?;
            let made = fs.create_dir_with(path, 0o777);
            made.map_err(|error| match error.kind() {
                ErrorKind::NotFound => failed(error).advise("-p makes missing directories"),
                _ => failed(error),
            })?;
        }
        // Like mkdir(1), sets the mode of the last directory only, without regard to the umask.
        if let Some(mode) = args.mode.as_ref().filter(|_| !exists) {
            let mode = mode.apply(0o777, true, umask);
            fs.set_permissions(path, mode).map_err(failed)?;
        }
        if args.verbose && !exists {
            output::line(format!("created {}", shown_path(path)))
        } else {
            Ok(())
        }
    })
}

/// The destination of a command that gives names: a new name, or a directory that gets the last
/// name of each source.
struct Destination {
    path: PathBuf,
    is_dir: bool,
}

impl Destination {
    fn new(fs: &FileSystem, path: &Path, several: bool) -> Result<Self> {
        let is_dir = match fs.metadata(path) {
            Ok(there) => there.is_dir(),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(failed_on(path, error));
            }
            Err(_) => false,
        };
        if several && !is_dir {
            return Err(Failure::on(
                shown_path(path),
                "not a directory, and several go there",
            ));
        }
        let path = path.to_owned();
        Ok(Self { path, is_dir })
    }

    /// Target of a source. Only a directory may get a name that ends with a slash.
    fn target(&self, from: &Path, from_is_dir: bool) -> Result<PathBuf> {
        let slash = self.path.as_os_str().as_bytes().ends_with(b"/");
        match self.is_dir {
            true => Ok(self.path.join(from.file_name().unwrap_or_default())),
            false if slash && !from_is_dir => {
                Err(Failure::on(shown_path(&self.path), "not a directory"))
            }
            false => named(&self.path).map(|()| self.path.clone()),
        }
    }
}

pub(super) fn mv(args: &MvArgs) -> Result<()> {
    let Some((to, sources)) = args.places.split_last() else {
        return Ok(());
    };
    let mut images = by_image(sources)?;
    let (Some((image, paths)), true) = (images.pop(), images.is_empty()) else {
        return Err(Failure::on(
            "mv",
            "all places must be in one image; `sapwood cp` copies",
        ));
    };
    let to = within_place(&image, to, "mv")?;
    with_image(&image, &args.choice, false, |fs| {
        let sources = expand(fs, &paths)?;
        let to = Destination::new(fs, &to, sources.len() > 1)?;
        let mut all_done = Ok(());
        for from in sources {
            if let Err(failure) = move_one(fs, &from, &to, args) {
                output::report(&failure);
                all_done = Err(Failure::reported());
            }
        }
        all_done
    })
}

fn move_one(fs: &FileSystem, from: &Path, to: &Destination, args: &MvArgs) -> Result<()> {
    named(from)?;
    let moved = fs.symlink_metadata(from).map_err(failed)?;
    let target = to.target(from, moved.is_dir())?;
    let renamed = if args.no_clobber {
        fs.rename_no_replace(from, &target)
    } else {
        fs.rename(from, &target)
    };
    match renamed {
        Ok(()) if args.verbose => {
            let (from, to) = (shown_path(from), shown_path(&target));
            output::line(format!("renamed {from} -> {to}"))
        }
        Ok(()) => Ok(()),
        Err(error) => Err(match error.kind() {
            ErrorKind::InvalidInput if moved.is_dir() => {
                Failure::on(shown_path(from), "a directory cannot be moved into itself")
            }
            _ => failed_on(&to.path, error),
        }),
    }
}

pub(super) fn ln(args: &LnArgs) -> Result<()> {
    let Some((new, targets)) = args.places.split_last() else {
        return Ok(());
    };
    let (uid, gid, _) = owner::chosen(args.owner);
    let (image, old, new) = if args.symbolic {
        let (image, new) = in_image(new)?;
        let old: Vec<PathBuf> = targets.iter().map(PathBuf::from).collect();
        (image, old, new)
    } else {
        let mut images = by_image(targets)?;
        let (Some((image, old)), true) = (images.pop(), images.is_empty()) else {
            return Err(Failure::on(
                "ln",
                "a hard link cannot lead to another image",
            ));
        };
        let new = within_place(&image, new, "ln")?;
        (image, old, new)
    };
    with_image(&image, &args.choice, false, |fs| {
        fs.set_creator(uid, gid);
        let old = if args.symbolic {
            old
        } else {
            expand(fs, &old)?
        };
        let to = Destination::new(fs, &new, old.len() > 1)?;
        old.iter().try_for_each(|old| link(fs, old, &to, args))
    })
}

fn link(fs: &FileSystem, old: &Path, to: &Destination, args: &LnArgs) -> Result<()> {
    let new = to.target(old, false)?;
    if !args.symbolic && fs.symlink_metadata(old).map_err(failed)?.is_dir() {
        let why = "is a directory, which has no hard links; -s makes a symbolic link";
        return Err(Failure::on(shown_path(old), why));
    }
    if args.force {
        match fs.symlink_metadata(&new) {
            Ok(there) if !there.is_dir() => fs.remove_file(&new).map_err(failed)?,
            _ => {}
        }
    }
    let made = if args.symbolic {
        fs.symlink(old, &new)
    } else {
        fs.hard_link(old, &new)
    };
    made.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::on(shown_path(&new), "file exists; -f replaces it"),
        _ => failed_on(&new, error),
    })?;
    if args.verbose {
        let old = output::name(old.as_os_str().as_bytes());
        output::line(format!("{} -> {old}", shown_path(&new)))
    } else {
        Ok(())
    }
}
