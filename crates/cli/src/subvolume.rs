//! `sapwood subvolume`, on images and on mounts of ours.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sapwood::mount::{SubvolumeList, control};
use sapwood::target::Target;
use sapwood::vfs::{self, SubvolumeId};
use sapwood::{Error, FileSystem, Options};
use serde_json::json;

use super::failure::{Failure, Result};
use super::files::{failed, failed_on, in_image};
use super::output::{self, Array};
use super::{choice, files, owner, times};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List all subvolumes
    List {
        /// Image, or directory of a mount
        #[arg(value_name = "IMAGE|MOUNT_DIR")]
        image: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make an empty subvolume
    Create {
        /// Its place: in an image, from the top level; or in a mount
        #[arg(value_name = "IMAGE:PATH|MOUNT_DIR/PATH")]
        place: OsString,
        /// Owner of its root directory [default: the user that calls]
        #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
        owner: Option<(u32, u32)>,
    },
    /// Make a snapshot of a subvolume
    Snapshot {
        /// The subvolume: in an image, from the top level; or in a mount
        #[arg(value_name = "IMAGE[:PATH]|MOUNT_DIR[/PATH]")]
        source: OsString,
        /// Place of the snapshot in the same image or mount; IMAGE: may be left out
        #[arg(value_name = "[IMAGE:]PATH|MOUNT_DIR/PATH")]
        place: OsString,
        /// Make it read-only
        #[arg(short, long)]
        read_only: bool,
    },
    /// Delete subvolumes
    Delete {
        /// Their places: in an image, from the top level; or in a mount
        #[arg(value_name = "IMAGE:PATH|MOUNT_DIR/PATH", required = true)]
        places: Vec<OsString>,
    },
    /// Print the subvolume that is mounted when none is named
    GetDefault {
        /// Image, or directory of a mount
        #[arg(value_name = "IMAGE|MOUNT_DIR")]
        image: PathBuf,
    },
    /// Make the subvolume the one that is mounted when none is named
    SetDefault {
        /// Image, or directory of a mount
        #[arg(value_name = "IMAGE|MOUNT_DIR")]
        image: PathBuf,
        /// Id of the subvolume
        id: u64,
    },
    /// Make a subvolume read-only
    SetReadOnly {
        /// Its place: in an image, from the top level; or in a mount
        #[arg(value_name = "IMAGE:PATH|MOUNT_DIR/PATH")]
        place: OsString,
        /// Make it writable again
        #[arg(long)]
        off: bool,
    },
}

pub(super) fn run(command: &Command) -> Result<()> {
    match command {
        Command::List { image, json } => {
            let found = read_list(image)?;
            print_list(&found, *json)
        }
        Command::Create { place, owner } => create(place, *owner),
        Command::Snapshot {
            source,
            place,
            read_only,
        } => snapshot(source, place, *read_only),
        Command::Delete { places } => delete(places),
        Command::GetDefault { image } => {
            let found = read_list(image)?;
            let path = found.subvolumes.iter().find(|one| one.id == found.default);
            let path = path.map_or_else(|| "/".to_owned(), |one| output::name(&one.path));
            output::line(format!("{:>8}  {path}", found.default.0))
        }
        Command::SetDefault { image, id } => {
            let id = SubvolumeId(*id);
            let failed = |error: &vfs::Error| Failure::on(format!("subvolume {}", id.0), error);
            match mounted(image) {
                Some(path) => control::set_default_subvolume(path, id).map_err(|error| match error
                    .raw_os_error()
                {
                    Some(libc::ENOENT) => failed(&vfs::Error::NotFound),
                    _ => refused(path, &error),
                }),
                None => with(image, false, |fs| {
                    fs.set_default_subvolume(id)
                        .map_err(|error| match error.cause() {
                            Some(cause) => failed(cause),
                            None => error.into(),
                        })
                }),
            }
        }
        Command::SetReadOnly { place, off } => set_read_only(place, !off),
    }
}

fn create(place: &OsStr, owner: Option<(u32, u32)>) -> Result<()> {
    if let Some(path) = live(place) {
        let (dir, name) = dir_and_name(&path)?;
        control::create_subvolume(&dir, name).map_err(|error| refused(&path, &error))?;
        return owner.map_or(Ok(()), |(uid, gid)| {
            let given = std::os::unix::fs::chown(&path, Some(uid), Some(gid));
            given.map_err(|error| refused(&path, &error))
        });
    }
    let (image, path) = in_image(place)?;
    let (uid, gid, _) = owner::chosen(owner);
    with(&image, false, |fs| {
        fs.set_creator(uid, gid);
        fs.create_subvolume(&path).map_err(failed)
    })
}

/// The path of an argument that names a place in a mount: a directory, or a new name in one.
fn live(argument: &OsStr) -> Option<PathBuf> {
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
        return Err(Failure::local(path, "no name of a subvolume"));
    };
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    Ok((dir.to_path_buf(), name.as_bytes()))
}

/// Why a control command to a mount failed.
fn refused(path: &Path, error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::ENOTTY) => Failure::local(path, "not in a mount of sapwood"),
        Some(libc::EOPNOTSUPP) => Failure::local(path, "this file system has no subvolumes"),
        Some(libc::EPERM) => Failure::local(
            path,
            "not permitted (only root and the user who mounted may)",
        ),
        Some(libc::EINVAL) => Failure::local(path, "not a subvolume"),
        Some(number) => Failure::local(path, rustix::io::Errno::from_raw_os_error(number)),
        None => Failure::local(path, error),
    }
}

fn delete(places: &[OsString]) -> Result<()> {
    let (in_mounts, in_images): (Vec<_>, Vec<_>) = places
        .iter()
        .cloned()
        .partition(|place| live(place).is_some());
    for path in in_mounts.iter().filter_map(|place| live(place)) {
        let (dir, name) = dir_and_name(&path)?;
        control::delete_subvolume(&dir, name).map_err(|error| refused(&path, &error))?;
    }
    for (image, paths) in files::by_image(&in_images)? {
        with(&image, false, |fs| {
            let delete = |path| fs.delete_subvolume(path).map_err(failed);
            paths.iter().try_for_each(delete)
        })?;
    }
    Ok(())
}

fn set_read_only(place: &OsStr, read_only: bool) -> Result<()> {
    if let Some(path) = live(place) {
        return control::set_read_only(&path, read_only).map_err(|error| refused(&path, &error));
    }
    let (image, path) = in_image(place)?;
    with(&image, false, |fs| {
        let set = fs.set_subvolume_read_only(&path, read_only);
        set.map_err(failed)
    })
}

fn read_list(image: &Path) -> Result<SubvolumeList> {
    if let Some(path) = mounted(image) {
        return control::list_subvolumes(path).map_err(|error| refused(path, &error));
    }
    with(image, true, |fs| {
        Ok(SubvolumeList {
            default: fs.default_subvolume()?,
            subvolumes: fs.subvolumes()?,
        })
    })
}

/// Opens the top level of an image, so that every subvolume can be reached.
fn with<T>(
    image: &Path,
    read_only: bool,
    work: impl FnOnce(&FileSystem) -> Result<T>,
) -> Result<T> {
    let mut options = Options::new().read_only(read_only);
    if !read_only {
        options = choice::fixed(options)?;
    }
    files::within(FileSystem::open_top_level(image, &options)?, work)
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
        return array.end();
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

fn snapshot(source: &OsStr, place: &OsStr, read_only: bool) -> Result<()> {
    if let Some(source) = live(source) {
        let path = live(place)
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
    with(&image, false, |fs| {
        fs.metadata(&from).map_err(failed)?;
        let made = match read_only {
            true => fs.snapshot_read_only(&from, &to),
            false => fs.snapshot(&from, &to),
        };
        made.map_err(|error: Error| failed_on(&to, error))
    })
}
