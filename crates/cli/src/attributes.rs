//! Commands that change attributes of files in an image: chmod, chown, touch, truncate.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sapwood::{Error, ErrorKind, FileSystem, Metadata, OpenOptions, Times};

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result, USAGE};
use super::files::{failed, failed_on, for_each, shown_path, within_place};
use super::interrupt;
use super::mode::ModeChange;
use super::{output, owner, times};

#[derive(Debug, clap::Args)]
pub(super) struct ChmodArgs {
    /// Octal, as 644, or symbolic, as u+rwX,go-w
    #[arg(value_name = "MODE", allow_hyphen_values = true)]
    mode: ModeChange,
    /// Files; a name may be a pattern
    #[arg(value_name = "IMAGE:PATH", required = true)]
    pub(super) places: Vec<OsString>,
    /// Also change everything below directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Report each change
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct ChownArgs {
    /// USER, USER:GROUP or :GROUP: numbers, or names that the image's own etc/passwd and etc/group
    /// have
    #[arg(value_name = "OWNER")]
    owner: String,
    /// Files; a name may be a pattern
    #[arg(value_name = "IMAGE:PATH", required = true)]
    pub(super) places: Vec<OsString>,
    /// Also change everything below directories; symbolic links below change themselves
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves, not their targets
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Report each change
    #[arg(short, long)]
    verbose: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct TouchArgs {
    /// Files, created if missing; a name may be a pattern
    #[arg(value_name = "IMAGE:PATH", required = true)]
    pub(super) places: Vec<OsString>,
    /// This time, not now: as 2025-07-01T12:00:00Z, '2025-07-01 12:00' (local time) or @SECONDS
    #[arg(short, long, value_name = "TIME", value_parser = times::parse, allow_hyphen_values = true)]
    date: Option<SystemTime>,
    /// The times of this file in the image
    #[arg(short, long, value_name = "[IMAGE:]PATH", conflicts_with = "date")]
    pub(super) reference: Option<OsString>,
    /// Make no file
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Only the time of the last access
    #[arg(short = 'a')]
    access: bool,
    /// Only the time of the last change
    #[arg(short = 'm')]
    modification: bool,
    /// Owner of new files [default: the user that calls]
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
    owner: Option<(u32, u32)>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct TruncateArgs {
    /// New size: bytes, or with k, M, G, T; + and - change the size by that
    #[arg(short, long, value_name = "[+-]SIZE", allow_hyphen_values = true)]
    size: Resize,
    /// Files, created if missing; a name may be a pattern
    #[arg(value_name = "IMAGE:PATH", required = true)]
    pub(super) places: Vec<OsString>,
    /// Make no file
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Owner of new files [default: the user that calls]
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
    owner: Option<(u32, u32)>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// A new size.
#[derive(Debug, Clone, Copy)]
enum Resize {
    To(u64),
    More(u64),
    Less(u64),
}

impl std::str::FromStr for Resize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, number): (fn(u64) -> Self, &str) = match text.as_bytes().first() {
            Some(b'+') => (Self::More, text.get(1..).unwrap_or_default()),
            Some(b'-') => (Self::Less, text.get(1..).unwrap_or_default()),
            _ => (Self::To, text),
        };
        let size = sapwood::internal::options::parse_size(number);
        size.map(kind)
            .ok_or_else(|| format!("{text} is not a size, such as 4096, 10M, +1G or -512"))
    }
}

pub(super) fn chmod(args: &ChmodArgs) -> Result<()> {
    let umask = owner::umask();
    let mut changed = 0_u64;
    let stop = interrupt::stop();
    for_each(&args.places, &args.choice, false, |fs, path, _| {
        let mut change = |path: &Path, found: &Metadata, named: bool| {
            // Like chmod(1), changes the target of a link only if the command line named the link.
            if found.is_symlink() && !named {
                return Ok(());
            }
            let found = if named {
                fs.metadata(path).map_err(failed)?
            } else {
                *found
            };
            let mode = args.mode.apply(found.mode(), found.is_dir(), umask);
            if mode != found.mode() {
                fs.set_permissions(path, mode).map_err(failed)?;
            }
            changed += 1;
            if args.verbose {
                let (path, old) = (shown_path(path), found.mode());
                output::line(format!("{path}: {old:04o} -> {mode:04o}"))?;
            }
            if stop.is_stopped() {
                Err(interrupt::failure(&format!("{changed} changed")))
            } else {
                Ok(())
            }
        };
        with_all_below(fs, path, args.recursive, &mut change)
    })
}

/// Calls `change` for a path, and for everything below it if that is wanted.
fn with_all_below(
    fs: &FileSystem,
    path: &Path,
    below: bool,
    change: &mut dyn FnMut(&Path, &Metadata, bool) -> Result<()>,
) -> Result<()> {
    let found = fs.symlink_metadata(path).map_err(failed)?;
    if below && found.is_dir() {
        for entry in fs.walk(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            change(entry.path(), entry.metadata(), false)?;
        }
    }
    change(path, &found, true)
}

pub(super) fn chown(args: &ChownArgs) -> Result<()> {
    let mut changed = 0_u64;
    let stop = interrupt::stop();
    for_each(&args.places, &args.choice, false, |fs, path, _| {
        let (uid, gid) = ids(fs, &args.owner)?;
        let mut change = |path: &Path, found: &Metadata, named: bool| {
            let follows = named && found.is_symlink() && !args.no_dereference && !args.recursive;
            let real: PathBuf = if follows {
                fs.canonicalize(path).map_err(failed)?
            } else {
                path.to_owned()
            };
            fs.set_owner(&real, uid, gid).map_err(failed)?;
            changed += 1;
            if args.verbose {
                output::line(format!("{}: {}", shown_path(path), args.owner))?;
            }
            if stop.is_stopped() {
                Err(interrupt::failure(&format!("{changed} changed")))
            } else {
                Ok(())
            }
        };
        with_all_below(fs, path, args.recursive, &mut change)
    })
}

/// The numbers of `USER`, `USER:GROUP` or `:GROUP`, by the names of the image.
fn ids(fs: &FileSystem, text: &str) -> Result<(Option<u32>, Option<u32>)> {
    let (user, group) = text.split_once(':').unwrap_or((text, ""));
    let uid = match user {
        "" => None,
        name => Some(user_id(fs, name)?),
    };
    let gid = match group {
        "" => None,
        name => Some(group_id(fs, name)?),
    };
    match (uid, gid) {
        (None, None) => Err(Failure::new(
            USAGE,
            "chown needs USER, USER:GROUP or :GROUP",
        )),
        ids => Ok(ids),
    }
}

/// A user of the image, by number or name.
pub(super) fn user_id(fs: &FileSystem, name: &str) -> Result<u32> {
    match name.parse() {
        Ok(number) => Ok(number),
        Err(_) => fs.user_id(name).map_err(failed)?.ok_or_else(|| {
            let why = "no such user in /etc/passwd of the image; give a number";
            Failure::on(name, why)
        }),
    }
}

/// A group of the image, by number or name.
pub(super) fn group_id(fs: &FileSystem, name: &str) -> Result<u32> {
    match name.parse() {
        Ok(number) => Ok(number),
        Err(_) => fs.group_id(name).map_err(failed)?.ok_or_else(|| {
            let why = "no such group in /etc/group of the image; give a number";
            Failure::on(name, why)
        }),
    }
}

/// Opens a file to change it; `None` if there is none and none is to be made.
fn open(fs: &FileSystem, path: &Path, no_create: bool) -> Result<Option<sapwood::File>> {
    let options = OpenOptions::new()
        .write(true)
        .create(!no_create)
        .mode(0o666)
        .clone();
    match fs.open_with(path, &options) {
        Ok(file) => Ok(Some(file)),
        Err(error) if no_create && error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

pub(super) fn touch(args: &TouchArgs) -> Result<()> {
    let (uid, gid, umask) = owner::chosen(args.owner);
    let both = args.access == args.modification;
    for_each(&args.places, &args.choice, false, |fs, path, _| {
        fs.set_creator(uid, gid);
        fs.set_umask(umask);
        let now = times::source_date_epoch()?.unwrap_or_else(SystemTime::now);
        let (mut accessed, mut modified) = (args.date.unwrap_or(now), args.date.unwrap_or(now));
        if let Some(place) = &args.reference {
            let reference = within_place(fs.image_path(), place, "touch")?;
            let found = fs.metadata(&reference).map_err(failed)?;
            (accessed, modified) = (found.accessed(), found.modified());
        }
        let mut new = Times::new();
        if both || args.access {
            new = new.accessed(accessed);
        }
        if both || args.modification {
            new = new.modified(modified);
        }
        let set = match fs.set_times(path, new) {
            Err(error) if error.kind() == ErrorKind::NotFound && !args.no_create => {
                open(fs, path, false)?;
                fs.set_times(path, new)
            }
            set => set,
        };
        match set {
            Err(error) if error.kind() == ErrorKind::NotFound && args.no_create => Ok(()),
            set => set.map_err(|error: Error| failed_on(path, error)),
        }
    })
}

pub(super) fn truncate(args: &TruncateArgs) -> Result<()> {
    let (uid, gid, umask) = owner::chosen(args.owner);
    for_each(&args.places, &args.choice, false, |fs, path, _| {
        fs.set_creator(uid, gid);
        fs.set_umask(umask);
        let Some(file) = open(fs, path, args.no_create)? else {
            return Ok(());
        };
        let old = file.metadata().map_err(failed)?.len();
        let new = match args.size {
            Resize::To(size) => Some(size),
            Resize::More(by) => old.checked_add(by),
            Resize::Less(by) => Some(old.saturating_sub(by)),
        };
        let new = new.ok_or_else(|| Failure::on(shown_path(path), "the new size is too large"))?;
        file.set_len(new).map_err(failed)
    })
}
