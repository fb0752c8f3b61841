//! Making an image of a directory, and extracting it.
//!
//! Programs that make images do both without a mount if they can. The kernel's image is extracted
//! through a mount, and so are the images of contestants, which copy files into a mount first. The
//! source files were read just before, so that no measurement includes their disk.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use sapwood::Kind;

use super::Place;
use crate::contestant::{Contestant, Room, Standing};
use crate::error::{on, run_program};
use crate::figures::Seen;
use crate::images::Images;
use crate::peer::{Peer, PeerMount};
use crate::program::{peak_mib, sapwood, watched};
use crate::tool::Tool;
use crate::{Error, Result};

/// The source of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// `/usr/include`
    Include,
    /// `/usr/share`
    Share,
    /// `/usr`
    Usr,
}

impl Tree {
    /// All sources.
    pub const ALL: [Self; 3] = [Self::Include, Self::Share, Self::Usr];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Include => "include",
            Self::Share => "share",
            Self::Usr => "usr",
        }
    }

    fn path(self) -> &'static Path {
        Path::new(match self {
            Self::Include => "/usr/include",
            Self::Share => "/usr/share",
            Self::Usr => "/usr",
        })
    }

    /// Requirements for its image.
    #[must_use]
    pub fn room(self) -> Room {
        let default = Room {
            sparse: true,
            ..Room::default()
        };
        match self {
            Self::Include | Self::Share => default,
            Self::Usr => Room {
                bytes: 24 << 30,
                ..default
            },
        }
    }
}

/// Seconds of both directions, and the peak memory.
struct Took {
    made: f64,
    out: f64,
    peak: Option<f64>,
}

pub(crate) fn run(
    contestant: Contestant,
    images: &Images,
    medium: &Path,
    tree: Tree,
    commit: Option<u64>,
) -> Result<Seen> {
    warm(tree.path())?;
    let took = match contestant {
        Contestant::Tool(tool) => by_tool(tool, medium, tree)?,
        other => by_copying(other, images, medium, tree, commit)?,
    };
    let seen = Seen::rate(1.0 / took.made)
        .with("s", took.made)
        .with("out_s", took.out);
    Ok(match took.peak {
        Some(mib) => seen.with("peak_mib", mib),
        None => seen,
    })
}

/// Reads all files.
fn warm(dir: &Path) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "tar -cf - . | cat > /dev/null"]);
    run_program(command.current_dir(dir)).map(drop)
}

fn by_tool(tool: Tool, medium: &Path, tree: Tree) -> Result<Took> {
    let home = tempfile::Builder::new()
        .prefix("sapwood-bench-")
        .tempdir_in(medium)
        .map_err(on(medium))?;
    let [image, out] = ["image", "out"].map(|name| home.path().join(name));
    let size = tree.room().bytes;
    let file = fs::File::create(&image).map_err(on(&image))?;
    file.set_len(size).map_err(on(&image))?;
    let mut make = tool.command(tree.path(), None, &image)?;
    let began = Instant::now();
    let peak = watched(&mut make)?.peak_mib;
    file.sync_all().map_err(on(&image))?;
    let made = began.elapsed().as_secs_f64();
    let began = Instant::now();
    match tool {
        Tool::Sapwood(_) => {
            let mut from = image.clone().into_os_string();
            from.push(":/");
            let mut command = Command::new(sapwood()?);
            run_program(command.args(["cp", "--quiet", "-a"]).arg(from).arg(&out))?;
        }
        _ => {
            let peer = if tool == Tool::Mke2fs {
                Peer::Ext4
            } else {
                Peer::Btrfs
            };
            let dir = home.path().join("mount");
            fs::create_dir(&dir).map_err(on(&dir))?;
            let mount = PeerMount::start(peer, &image, &dir, None, false)?;
            copy(mount.dir(), &out)?;
            mount.stop()?;
        }
    }
    let out = began.elapsed().as_secs_f64();
    Ok(Took { made, out, peak })
}

fn by_copying(
    contestant: Contestant,
    images: &Images,
    medium: &Path,
    tree: Tree,
    commit: Option<u64>,
) -> Result<Took> {
    let began = Instant::now();
    let mut standing = Standing::start(contestant, images, medium, tree.room(), commit)?;
    let Place::Directory(dir) = standing.place()? else {
        return Err(Error::Refused("an image in process is mkfs's".to_owned()));
    };
    let inside = dir.join("tree");
    copy(tree.path(), &inside)?;
    standing.begin()?;
    let peak = standing.process().and_then(peak_mib);
    let made = began.elapsed().as_secs_f64();
    standing.remount_cold()?;
    let began = Instant::now();
    copy(&inside, &standing.scratch()?.join("out"))?;
    let out = began.elapsed().as_secs_f64();
    standing.stop()?;
    Ok(Took { made, out, peak })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    run_program(command.arg("-a").arg(from).arg(to)).map(drop)
}

/// The contestants that make images.
#[must_use]
pub fn contestants() -> Vec<Contestant> {
    let [btrfs, ext4] = Kind::ALL.map(Tool::Sapwood);
    let tools = [btrfs, ext4, Tool::MkfsBtrfs, Tool::Mke2fs].into_iter();
    let tools = tools.map(Contestant::Tool);
    let peers = [Peer::Btrfs, Peer::Ext4].map(Contestant::Peer);
    let ours = Kind::ALL.map(|kind| Contestant::ours(kind, crate::contestant::Face::Fuse));
    tools.chain(peers).chain(ours).collect()
}
