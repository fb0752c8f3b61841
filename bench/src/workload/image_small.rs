//! Making an image of many small files, by every program that can.
//!
//! The directory and its archive are made once for a medium, and read before each run, so that no
//! measurement includes their disk. A file system of the kernel gets the archive through `tar` and
//! a mount: its time includes the mount and the unmount. Every image is durable at the end.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::contestant::{self, Contestant, Room};
use crate::error::on;
use crate::figures::Seen;
use crate::images::{Images, Source};
use crate::peer::{Peer, PeerMount};
use crate::program::{Used, timed, watched};
use crate::tool::Tool;
use crate::{Error, Result};

pub(crate) fn run(
    contestant: Contestant,
    images: &Images,
    medium: &Path,
    files: u32,
) -> Result<Seen> {
    images.with_source(medium, files, |source| {
        warm(source)?;
        let home = tempfile::Builder::new()
            .prefix("sapwood-bench-")
            .tempdir_in(medium)
            .map_err(on(medium))?;
        let image = home.path().join("image");
        let file = File::create(&image).map_err(on(&image))?;
        file.set_len(room(files).bytes).map_err(on(&image))?;
        let began = Instant::now();
        let used = match contestant {
            Contestant::Tool(tool) => {
                let mut command = tool.command(&source.tree, Some(&source.archive), &image)?;
                watched(&mut command)?
            }
            Contestant::Peer(peer) => through_mount(peer, source, &image, home.path(), files)?,
            Contestant::Sapwood { .. } => {
                return Err(Error::Refused("an image in process is mkfs's".to_owned()));
            }
        };
        file.sync_all().map_err(on(&image))?;
        let made = began.elapsed().as_secs_f64();
        let size = file.metadata().map_err(on(&image))?.blocks() * 512;
        Ok(seen(contestant, made, &used, size))
    })
}

fn seen(contestant: Contestant, made: f64, used: &Used, size: u64) -> Seen {
    let seen = Seen::rate(1.0 / made)
        .with("s", made)
        .with("cpu_s", used.processor_seconds);
    let seen = match used.peak_mib {
        Some(mib) => seen.with("peak_mib", mib),
        None => seen,
    };
    match contestant {
        // It makes none.
        Contestant::Tool(Tool::ReadSource) => seen,
        _ => seen.with("size_mib", size as f64 / f64::from(1 << 20)),
    }
}

/// Reads all files and the archive.
fn warm(source: &Source) -> Result<()> {
    let read = Tool::ReadSource.command(&source.tree, None, Path::new(""));
    timed(&mut read?)?;
    timed(Command::new("cat").arg(&source.archive)).map(drop)
}

/// Extracts the archive with `tar` into a mount of a new file system.
fn through_mount(
    peer: Peer,
    source: &Source,
    image: &Path,
    home: &Path,
    files: u32,
) -> Result<Used> {
    contestant::make(Contestant::Peer(peer), image, room(files))?;
    let dir = home.join("mount");
    fs::create_dir(&dir).map_err(on(&dir))?;
    let mount = PeerMount::start(peer, image, &dir, None, false)?;
    let mut tar = Command::new("tar");
    let used = watched(tar.arg("-xf").arg(&source.archive).arg("-C").arg(&dir));
    mount.stop()?;
    used
}

/// Requirements for the image.
#[must_use]
pub(crate) fn room(files: u32) -> Room {
    // `mke2fs` makes an inode for each 16 KiB.
    let needed = u64::from(files) * 5 / 4 * 16384;
    let default = Room::default();
    Room {
        bytes: default.bytes.max(needed.next_multiple_of(1 << 30)),
        sparse: true,
        ..default
    }
}

/// The contestants that make images of small files; those that cannot run here too.
#[must_use]
pub fn contestants() -> Vec<Contestant> {
    let tools = Tool::ALL.map(Contestant::Tool).into_iter();
    let peers = [Peer::Btrfs, Peer::Ext4].map(Contestant::Peer);
    tools.chain(peers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_room_for_an_inode_of_each_file() {
        assert_eq!(room(2000).bytes, Room::default().bytes);
        assert!(room(1_000_000).bytes / 16384 > 1_000_000);
    }

    #[test]
    fn the_source_alone_is_measured_and_has_no_size() {
        let medium = tempfile::tempdir().unwrap();
        let images = Images::new(true);
        let source = Contestant::Tool(Tool::ReadSource);
        let seen = run(source, &images, medium.path(), 150).unwrap();
        assert!(seen.more["s"] > 0.0 && seen.more.contains_key("cpu_s"));
        assert!(!seen.more.contains_key("size_mib"));
        assert!(
            run(
                Contestant::Tool(Tool::Mke2fs),
                &images,
                Path::new("/nowhere"),
                1
            )
            .is_err()
        );
    }
}
