//! `sapwood umount`.

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
fn mounted_source(dir: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    table
        .lines()
        .rev()
        .find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let point = unescape(before.split(' ').nth(4)?);
            let mut fields = after.split(' ');
            let (kind, source) = (fields.next()?, fields.next()?);
            (Path::new(&point) == dir).then(|| (kind.to_owned(), unescape(source)))
        })
        .and_then(|(kind, source)| (kind == "fuse.sapwood").then_some(source))
}

/// Undoes the octal escapes of the mount table.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [byte, tail @ ..] = rest {
        let octal = (*byte == b'\\').then(|| tail.get(..3)).flatten();
        let value =
            octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (value, tail.get(3..)) {
            (Some(value), Some(after)) => {
                bytes.push(value);
                rest = after;
            }
            _ => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for the daemon's lock on the image to go: then everything is on disk.
fn wait_for_release(image: &Path) {
    let opened = rustix::fs::open(image, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(image) = opened {
        // A file that cannot be locked cannot be waited for either.
        let _ = rustix::fs::flock(&image, FlockOperation::LockShared);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn escapes_are_undone() {
        assert_eq!(super::unescape("/a\\040b\\134c\\04"), "/a b\\c\\04");
    }
}
