//! `sapwood subvolume`, on images and on mounts.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::host::mount::{SubvolumeList, control};
use sapwood::internal::Target;
use sapwood::vfs::SubvolumeId;
use sapwood::{Error, ErrorKind, FileSystem, Kind};
use serde_json::json;

use super::choice::{self, SubvolumeChoice};
use super::failure::{Failure, Result, USAGE};
use super::files::{failed, failed_on, in_image};
use super::output::{self, Array};
use super::{files, owner, session, times};

/// Id of the subvolume above all others.
const TOP_LEVEL: SubvolumeId = SubvolumeId(5);

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List all subvolumes
    List {
        /// Image, or directory of a mount
        #[arg(value_name = "IMAGE")]
        image: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make an empty subvolume
    Create {
        /// Place: IMAGE:PATH or MOUNT_DIR/PATH
        #[arg(value_name = "PLACE")]
        place: OsString,
        /// Owner of its root directory [default: the user that calls]
        #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
        owner: Option<(u32, u32)>,
        #[command(flatten)]
        choice: SubvolumeChoice,
    },
    /// Make a snapshot of a subvolume
    Snapshot {
        /// The subvolume: IMAGE[:PATH] or MOUNT_DIR[/PATH]; without a path the default one, or the
        /// one that is mounted
        #[arg(value_name = "SOURCE")]
        source: OsString,
        /// Place of the snapshot in the same image or mount: [IMAGE:]PATH or MOUNT_DIR/PATH
        #[arg(value_name = "PLACE")]
        place: OsString,
        /// Make it read-only
        #[arg(short, long)]
        read_only: bool,
        #[command(flatten)]
        choice: SubvolumeChoice,
    },
    /// Delete subvolumes
    Delete {
        /// Places: IMAGE:PATH or MOUNT_DIR/PATH
        #[arg(value_name = "PLACE", required = true)]
        places: Vec<OsString>,
        #[command(flatten)]
        choice: SubvolumeChoice,
    },
    /// Print the default subvolume
    GetDefault {
        /// Image, or directory of a mount
        #[arg(value_name = "IMAGE")]
        image: PathBuf,
    },
    /// Set the default subvolume
    SetDefault {
        /// Place: IMAGE:PATH or MOUNT_DIR/PATH; or IMAGE or MOUNT_DIR, and the next argument
        #[arg(value_name = "PLACE")]
        place: OsString,
        /// Id, or path from the top level, as `subvolume list` prints them
        #[arg(value_name = "ID")]
        subvolume: Option<OsString>,
        #[command(flatten)]
        choice: SubvolumeChoice,
    },
    /// Make a subvolume read-only
    SetReadOnly {
        /// Place: IMAGE:PATH or MOUNT_DIR/PATH
        #[arg(value_name = "PLACE")]
        place: OsString,
        /// Make it writable again
        #[arg(long)]
        off: bool,
        #[command(flatten)]
        choice: SubvolumeChoice,
    },
}

pub(super) fn run(command: &Command) -> Result<()> {
    match command {
        Command::List { image, json } => {
            let found = read_list(image)?;
            print_list(&found, *json)
        }
        Command::Create {
            place,
            owner,
            choice,
        } => create(place, *owner, choice),
        Command::Snapshot {
            source,
            place,
            read_only,
            choice,
        } => snapshot(source, place, *read_only, choice),
        Command::Delete { places, choice } => delete(places, choice),
        Command::GetDefault { image } => {
            let found = read_list(image)?;
            let path = found.subvolumes.iter().find(|one| one.id == found.default);
            let path = path.map_or_else(|| "/".to_owned(), |one| output::name(&one.path));
            output::line(format!("{:>8}  {path}", found.default.0))
        }
        Command::SetDefault {
            place,
            subvolume,
            choice,
        } => set_default(place, subvolume.as_deref(), choice),
        Command::SetReadOnly { place, off, choice } => set_read_only(place, !off, choice),
    }
}

fn create(place: &OsStr, owner: Option<(u32, u32)>, choice: &SubvolumeChoice) -> Result<()> {
    if let Some(path) = live(place, choice)? {
        let (dir, name) = dir_and_name(&path)?;
        control::create_subvolume(&dir, name).map_err(|error| refused(&path, &error))?;
        return owner.map_or(Ok(()), |(uid, gid)| {
            let given = std::os::unix::fs::chown(&path, Some(uid), Some(gid));
            given.map_err(|error| refused(&path, &error))
        });
    }
    let (image, path) = in_image(place)?;
    let (uid, gid, _) = owner::chosen(owner);
    with(&image, choice, |fs| {
        fs.set_creator(uid, gid);
        let made = fs.create_subvolume(&path);
        made.map_err(|error| missed(fs, choice, error))
    })
}

/// The path of an argument that names a place in a mount: a directory, or a new name in one.
///
/// # Errors
/// A subvolume was chosen, although a mount shows one.
fn live(argument: &OsStr, choice: &SubvolumeChoice) -> Result<Option<PathBuf>> {
    let path = place_in_mount(argument);
    if path.is_some() && choice.is_made() {
        let why = "--subvol, --subvolid and --top-level choose in an image; a mount shows one \
                   subvolume";
        return Err(Failure::new(USAGE, why));
    }
    Ok(path)
}

fn place_in_mount(argument: &OsStr) -> Option<PathBuf> {
    if session::image().is_some() {
        return None;
    }
    let Ok(Target::Local(path)) = Target::parse(argument) else {
        return None;
    };
    let in_mount = match std::fs::metadata(&path) {
        Ok(found) => found.is_dir(),
        Err(_) => dir_and_name(&path).is_ok_and(|(dir, _)| dir.is_dir()),
    };
    in_mount.then_some(path)
}

/// The path of an argument that names a directory of a mount, not an image.
fn mounted(argument: &Path) -> Option<&Path> {
    argument.is_dir().then_some(argument)
}

/// The directory of a path, and its last name.
fn dir_and_name(path: &Path) -> Result<(PathBuf, &[u8])> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::local(path, "not a name for a subvolume"));
    };
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    Ok((dir.to_path_buf(), name.as_bytes()))
}

/// The failure of a control command to a mount.
fn refused(path: &Path, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ENOTTY) => Failure::local(path, "not in a Sapwood mount"),
        Some(libc::EOPNOTSUPP) => Failure::local(path, "this file system has no subvolumes"),
        Some(libc::EPERM) => Failure::local(
            path,
            "not permitted (only for root and the user who mounted)",
        ),
        Some(libc::EINVAL) => Failure::local(path, "not a subvolume"),
        Some(number) => Failure::local(path, rustix::io::Errno::from_raw_os_error(number)),
        None => Failure::local(path, error),
    }
}

fn delete(places: &[OsString], choice: &SubvolumeChoice) -> Result<()> {
    let (mut in_mounts, mut in_images) = (Vec::new(), Vec::new());
    for place in places {
        match live(place, choice)? {
            Some(path) => in_mounts.push(path),
            None => in_images.push(place.clone()),
        }
    }
    for path in in_mounts {
        let (dir, name) = dir_and_name(&path)?;
        control::delete_subvolume(&dir, name).map_err(|error| refused(&path, &error))?;
    }
    for (image, paths) in files::by_image(&in_images)? {
        with(&image, choice, |fs| {
            paths.iter().try_for_each(|path| {
                let deleted = fs.delete_subvolume(path);
                deleted.map_err(|error| not_one(fs, choice, error))
            })
        })?;
    }
    Ok(())
}

fn set_read_only(place: &OsStr, read_only: bool, choice: &SubvolumeChoice) -> Result<()> {
    if let Some(path) = live(place, choice)? {
        return control::set_read_only(&path, read_only).map_err(|error| refused(&path, &error));
    }
    let (image, path) = in_image(place)?;
    with(&image, choice, |fs| {
        let set = fs.set_subvolume_read_only(&path, read_only);
        set.map_err(|error| not_one(fs, choice, error))
    })
}

fn set_default(place: &OsStr, named: Option<&OsStr>, choice: &SubvolumeChoice) -> Result<()> {
    if named.is_some() && choice.is_made() {
        let why = "--subvol, --subvolid and --top-level are for IMAGE:PATH; an id or path from the \
                   top level needs none";
        return Err(Failure::new(USAGE, why));
    }
    if let Some(path) = live(place, choice)? {
        let Some(named) = named else {
            return control::set_default_to(&path).map_err(|error| refused(&path, &error));
        };
        let id = named_subvolume(named, || read_list(&path))?;
        return control::set_default_subvolume(&path, id).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOENT) => no_subvolume(named),
                _ => refused(&path, &error),
            }
        });
    }
    let is_image = match session::dir() {
        Some(_) => place == ":",
        None => matches!(Target::parse(place)?, Target::Local(_)),
    };
    let (image, path) = in_image(place)?;
    match named {
        Some(_) if !is_image => Err(Failure::new(
            USAGE,
            "name the subvolume once: IMAGE:PATH, or IMAGE and its id or path from the top level",
        )),
        None if is_image && !choice.is_made() => Err(Failure::new(
            USAGE,
            "name the subvolume: IMAGE:PATH, or IMAGE and its id or path from the top level",
        )),
        Some(named) => with(&image, choice, |fs| {
            let id = named_subvolume(named, || list(fs))?;
            let set = fs.set_default_subvolume(id);
            set.map_err(|error| match error.kind() {
                ErrorKind::NotFound => no_subvolume(named),
                _ => files::whole(&image, error),
            })
        }),
        None => with(&image, choice, |fs| {
            let id = fs.subvolume_at(&path);
            let id = id.map_err(|error| not_one(fs, choice, error))?;
            let set = fs.set_default_subvolume(id);
            set.map_err(|error| files::whole(&image, error))
        }),
    }
}

/// The subvolume that an id or a path from the top level names.
fn named_subvolume(
    named: &OsStr,
    list: impl FnOnce() -> Result<SubvolumeList>,
) -> Result<SubvolumeId> {
    if let Some(id) = named.to_str().and_then(|text| text.parse().ok()) {
        // Like subvolid=0.
        return Ok(if id == 0 { TOP_LEVEL } else { SubvolumeId(id) });
    }
    let path: PathBuf = Path::new("/").join(named).components().skip(1).collect();
    let path = path.as_os_str().as_bytes();
    if path.is_empty() {
        return Ok(TOP_LEVEL);
    }
    let all = list()?.subvolumes;
    let found = all.iter().find(|one| one.path == path);
    found.map(|one| one.id).ok_or_else(|| no_subvolume(named))
}

fn no_subvolume(named: &OsStr) -> Failure {
    let what = format!("subvolume {}", output::name(named.as_bytes()));
    Failure::on(what, "no subvolume has this id or path")
        .advise("`sapwood subvolume list` shows all")
}

/// The failure of an operation on the root of a subvolume.
fn not_one(fs: &FileSystem, choice: &SubvolumeChoice, error: Error) -> Failure {
    match (error.kind(), error.path()) {
        (ErrorKind::InvalidInput, Some(path)) => {
            Failure::on(files::shown_path(path), "not a subvolume")
        }
        _ => missed(fs, choice, error),
    }
}

/// The failure of an operation on a path. A path that is missing may be one from the top level.
fn missed(fs: &FileSystem, choice: &SubvolumeChoice, error: Error) -> Failure {
    let missing = error.kind() == ErrorKind::NotFound;
    let failure = failed(error);
    let other = !choice.is_made() && fs.default_subvolume().is_ok_and(|id| id != TOP_LEVEL);
    if missing && other {
        return failure.advise("the path is in the default subvolume; --top-level reaches all");
    }
    failure
}

fn read_list(image: &Path) -> Result<SubvolumeList> {
    if let Some(fs) = of_session(&SubvolumeChoice::default())? {
        return list(&fs);
    }
    if let Some(path) = mounted(image) {
        return control::list_subvolumes(path).map_err(|error| refused(path, &error));
    }
    let options = choice::opening(true).top_level();
    files::within(FileSystem::open_btrfs(image, &options)?, list)
}

/// The open image of a shell.
fn of_session(choice: &SubvolumeChoice) -> Result<Option<FileSystem>> {
    let Some(fs) = session::fs() else {
        return Ok(None);
    };
    files::refuse_choice(choice)?;
    if fs.kind() == Kind::Btrfs {
        Ok(Some(fs))
    } else {
        let why = format_args!("subvolumes need a btrfs, and this is {}", fs.kind());
        Err(Failure::local(fs.image_path(), why))
    }
}

fn list(fs: &FileSystem) -> Result<SubvolumeList> {
    Ok(SubvolumeList {
        default: fs.default_subvolume()?,
        subvolumes: fs.subvolumes()?,
    })
}

/// Opens a subvolume of an image, to change it.
fn with<T>(
    image: &Path,
    choice: &SubvolumeChoice,
    work: impl FnOnce(&FileSystem) -> Result<T>,
) -> Result<T> {
    if let Some(fs) = of_session(choice)? {
        return work(&fs);
    }
    let options = choice.options(false)?;
    files::within(FileSystem::open_btrfs(image, &options)?, work)
}

fn print_list(found: &SubvolumeList, as_json: bool) -> Result<()> {
    let (subvolumes, default) = (&found.subvolumes, found.default);
    if as_json {
        let mut array = Array::begin()?;
        for one in subvolumes {
            let (path, path_bytes) = output::json::text(&one.path);
            let mut row = json!({
                "id": one.id.0, "path": path, "parent": one.parent.map(|id| id.0),
                "generation": one.generation, "created_generation": one.created_generation,
                "created": times::json(one.created), "read_only": one.read_only,
                "uuid": output::uuid(&one.uuid), "parent_uuid": output::uuid(&one.parent_uuid),
                "default": one.id == default,
            });
            if let (Some(bytes), Some(row)) = (path_bytes, row.as_object_mut()) {
                row.insert("path_bytes".to_owned(), bytes.into());
            }
            array.push(&row)?;
        }
        return array.end(Ok(()));
    }
    for one in subvolumes {
        let marks = match (one.read_only, one.id == default) {
            (true, true) => " (read-only, default)",
            (true, false) => " (read-only)",
            (false, true) => " (default)",
            (false, false) => "",
        };
        let parent = one.parent.map_or(0, |id| id.0);
        output::line(format!(
            "{:>8}  in {:<8}  generation {:<8}  {}{marks}",
            one.id.0,
            parent,
            one.generation,
            output::name(&one.path)
        ))?;
    }
    Ok(())
}

fn snapshot(
    source: &OsStr,
    place: &OsStr,
    read_only: bool,
    choice: &SubvolumeChoice,
) -> Result<()> {
    if let Some(source) = live(source, choice)? {
        let path = live(place, choice)?
            .ok_or_else(|| Failure::on("snapshot", "both places must be in one mount"))?;
        let (dir, name) = dir_and_name(&path)?;
        let made = control::snapshot(&source, &dir, name, read_only);
        return made.map_err(|error| match error.raw_os_error() {
            Some(libc::EXDEV) => Failure::on("snapshot", "both places must be in one mount"),
            Some(libc::EINVAL | libc::ENOTTY) => refused(&source, &error),
            _ => refused(&path, &error),
        });
    }
    let (image, from) = in_image(source)?;
    let to = files::within_place(&image, place, "snapshot")?;
    with(&image, choice, |fs| {
        let found = fs.subvolume_at(&from);
        found.map_err(|error| not_one(fs, choice, error))?;
        let made = if read_only {
            fs.snapshot_read_only(&from, &to)
        } else {
            fs.snapshot(&from, &to)
        };
        made.map_err(|error: Error| failed_on(&to, error))
    })
}
