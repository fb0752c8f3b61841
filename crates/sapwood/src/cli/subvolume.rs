//! `sapwood subvolume`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use sapwood::target::Target;
use sapwood::tree::{self, Node};
use sapwood_btrfs::{Btrfs, Options, SubvolumeChoice};
use sapwood_vfs::{FileSystem, SubvolumeId, Subvolumes};
use serde_json::json;

use super::failure::{Failure, Result};
use super::files::shown_path;
use super::output;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// List all subvolumes of an image
    List {
        /// Image
        image: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make an empty subvolume
    Create {
        /// Its place, from the top level
        #[arg(value_name = "IMAGE:PATH")]
        place: OsString,
    },
    /// Make a snapshot of a subvolume
    Snapshot {
        /// The subvolume, from the top level
        #[arg(value_name = "IMAGE[:PATH]")]
        source: OsString,
        /// Place of the snapshot in the same image; IMAGE: may be left out
        #[arg(value_name = "[IMAGE:]PATH")]
        place: OsString,
        /// Make it read-only
        #[arg(short, long)]
        read_only: bool,
    },
    /// Delete subvolumes
    Delete {
        /// Their places, from the top level
        #[arg(value_name = "IMAGE:PATH", required = true)]
        places: Vec<OsString>,
    },
    /// Make the subvolume the one that is mounted when none is named
    SetDefault {
        /// Image
        image: PathBuf,
        /// Id of the subvolume
        id: u64,
    },
}

pub(super) fn run(command: &Command) -> Result<()> {
    match command {
        Command::List { image, json } => with(image, true, |fs| list(fs, *json)),
        Command::Create { place } => {
            let (image, path) = Target::parse_in_image(place);
            with(&image, false, |fs| {
                let (dir, name) = parent(fs, &path)?;
                let made = fs.create_subvolume(dir.ino(), &name);
                made.map(|entry| drop(Node::new(fs, entry)))
                    .map_err(|error| Failure::on(shown_path(&path), error))
            })
        }
        Command::Snapshot {
            source,
            place,
            read_only,
        } => snapshot(source, place, *read_only),
        Command::Delete { places } => {
            for (image, paths) in super::files::by_image(places) {
                with(&image, false, |fs| {
                    for path in &paths {
                        let (dir, name) = parent(fs, path)?;
                        let deleted = fs.delete_subvolume(dir.ino(), &name);
                        deleted.map_err(|error| Failure::on(shown_path(path), error))?;
                    }
                    Ok(())
                })?;
            }
            Ok(())
        }
        Command::SetDefault { image, id } => with(image, false, |fs| {
            fs.set_default_subvolume(SubvolumeId(*id))
                .map_err(|error| Failure::on(format!("subvolume {id}"), error))
        }),
    }
}

/// Opens the top level of an image, so that every subvolume can be reached.
fn with<T>(
    image: &std::path::Path,
    read_only: bool,
    work: impl FnOnce(&Btrfs) -> Result<T>,
) -> Result<T> {
    let options = Options {
        read_only,
        subvolume: SubvolumeChoice::Id(5),
        ..Options::default()
    };
    let fs: Arc<Btrfs> = sapwood::image::open_btrfs(image, options, "a subvolume")?;
    let result = work(&fs);
    let ended = fs.unmount().map_err(|error| Failure::local(image, error));
    let value = result?;
    ended?;
    Ok(value)
}

fn parent<'a>(fs: &'a Btrfs, path: &[u8]) -> Result<(Node<'a>, Vec<u8>)> {
    tree::resolve_parent(fs, path).map_err(|error| Failure::on(shown_path(path), error))
}

fn list(fs: &Btrfs, as_json: bool) -> Result<()> {
    let subvolumes = fs.list()?;
    let default = fs.default_subvolume()?;
    if as_json {
        let rows = subvolumes.iter().map(|one| {
            json!({
                "id": one.id.0, "path": output::name(&one.path), "parent": one.parent.map(|id| id.0),
                "generation": one.generation, "created_generation": one.created_generation,
                "created": output::time(one.created), "read_only": one.read_only, "uuid": output::uuid(&one.uuid),
                "parent_uuid": output::uuid(&one.parent_uuid), "default": one.id == default,
            })
        });
        output::json(&rows.collect::<Vec<_>>());
        return Ok(());
    }
    for one in &subvolumes {
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
        ));
    }
    Ok(())
}

fn snapshot(source: &OsString, place: &OsString, read_only: bool) -> Result<()> {
    let (image, from) = Target::parse_in_image(source);
    let to = match Target::parse(place) {
        Target::Image { image: other, path } if other == image => path,
        Target::Image { .. } => {
            return Err(Failure::on("snapshot", "both places must be in one image"));
        }
        Target::Local(path) => path.into_os_string().into_encoded_bytes(),
    };
    with(&image, false, |fs| {
        let source = tree::resolve(fs, &from, true)
            .map_err(|error| Failure::on(shown_path(&from), error))?;
        let (dir, name) = parent(fs, &to)?;
        let made = fs.snapshot(source.ino(), dir.ino(), &name, read_only);
        made.map(|entry| drop(Node::new(fs, entry)))
            .map_err(|error| Failure::on(shown_path(&to), error))
    })
}
