//! `sapwood umount`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::failure::{Failure, Result};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory that an image is mounted on
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Detach it now even if it is in use
    #[arg(short, long)]
    lazy: bool,
}

/// Unmounts, and waits until the daemon has made the image complete and let go of it.
pub(super) fn run(args: &Args) -> Result<()> {
    let dir = args
        .dir
        .canonicalize()
        .map_err(|error| Failure::local(&args.dir, error))?;
    let source = mounted_source(&dir)
        .ok_or_else(|| Failure::local(&dir, "nothing of ours is mounted here"))?;
    sapwood_fuse::unmount(&dir, args.lazy).map_err(|error| Failure::local(&dir, error))?;
    if !args.lazy {
        wait_for_release(Path::new(&source));
    }
    Ok(())
}

/// Source of the topmost mount on `dir`, if it is ours.
fn mounted_source(dir: &Path) -> Option<OsString> {
    let entry = sapwood_fuse::mounted_on(dir)?;
    (entry.kind == "fuse.sapwood").then_some(entry.source)
}

/// Waits for the daemon's lock on the image to go: then everything is on disk.
fn wait_for_release(image: &Path) {
    let opened = rustix::fs::open(image, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(image) = opened {
        // A file that cannot be locked cannot be waited for either.
        let _ = rustix::fs::flock(&image, FlockOperation::LockShared);
    }
}
