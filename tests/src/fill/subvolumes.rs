//! Subvolumes and snapshots: nested, read-only, changed after they were taken, deleted.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::image::TempImage;
use crate::mount::{Driver, Mounted, sapwood};
use crate::process;
use crate::random::Random;

/// One step on subvolumes, by paths from the top level.
enum Step {
    Create(&'static str),
    Snapshot {
        of: &'static str,
        at: &'static str,
        read_only: bool,
    },
    Delete(&'static str),
    /// Writes in the mounted file system.
    Write(fn(&Path, u64) -> io::Result<()>),
}

/// Fills the top level of an image with subvolumes below `sub/`, through mounts by `driver`.
///
/// # Errors
/// What failed.
pub fn fill(image: &TempImage, driver: Driver, options: &str, seed: u64) -> Result<(), String> {
    use Step::{Create, Delete, Snapshot, Write};
    let steps = [
        Write(|root, _| fs::create_dir(root.join("sub"))),
        Create("sub/one"),
        Create("sub/one/nested"),
        Write(first),
        Snapshot {
            of: "sub/one",
            at: "sub/frozen",
            read_only: true,
        },
        Snapshot {
            of: "sub/one",
            at: "sub/branch",
            read_only: false,
        },
        Write(change),
        Snapshot {
            of: "sub/branch",
            at: "sub/twig",
            read_only: false,
        },
        Snapshot {
            of: "sub/branch",
            at: "sub/gone",
            read_only: false,
        },
        Snapshot {
            of: "",
            at: "sub/all",
            read_only: true,
        },
        Write(again),
        Delete("sub/gone"),
    ];
    let mut mount: Option<Box<dyn Mounted>> = None;
    for step in steps {
        // Our own tool works on the image, which is then not mounted.
        if driver == Driver::Sapwood
            && !matches!(step, Write(_))
            && let Some(mount) = mount.take()
        {
            mount.unmount()?;
        }
        if mount.is_none() && (driver == Driver::Kernel || matches!(step, Write(_))) {
            mount = Some(driver.mount(image.path(), options)?);
        }
        let root = mount.as_ref().map(|mount| mount.path());
        apply(&step, image, root, seed)?;
    }
    mount.map_or(Ok(()), Mounted::unmount)
}

fn apply(step: &Step, image: &TempImage, root: Option<&Path>, seed: u64) -> Result<(), String> {
    let mut command = match root {
        Some(_) => Command::new("btrfs"),
        None => Command::new(sapwood()),
    };
    let place = |path: &str| match root {
        Some(root) => root.join(path).into_os_string(),
        None => {
            let mut place = image.path().as_os_str().to_owned();
            place.push(":");
            place.push(path);
            place
        }
    };
    command.arg("subvolume");
    match step {
        Step::Write(work) => {
            let root = root.expect("mounted to write");
            return work(root, seed).map_err(|error| format!("in subvolumes: {error}"));
        }
        Step::Create(at) => command.arg("create").arg(place(at)),
        Step::Snapshot { of, at, read_only } => {
            command.arg("snapshot").args(read_only.then_some("-r"));
            command.arg(place(of)).arg(place(at))
        }
        Step::Delete(at) => command.arg("delete").arg(place(at)),
    };
    process::succeed(&mut command, process::ORDINARY).map(drop)
}

/// Before the snapshots: files of every size, a directory with many names.
fn first(root: &Path, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    let one = root.join("sub/one");
    for (at, len) in [10, 3000, 100_000, 1_000_000].into_iter().enumerate() {
        fs::write(one.join(format!("file-{at}")), random.bytes(len))?;
    }
    fs::create_dir(one.join("dir"))?;
    for at in 0..400 {
        fs::write(one.join(format!("dir/name-{at}")), random.text(at * 10))?;
    }
    fs::write(one.join("nested/file"), random.bytes(20_000))
}

/// After the first snapshots: changes on both sides.
fn change(root: &Path, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed + 1);
    for (name, step) in [("sub/one", 3), ("sub/branch", 5)] {
        let top = root.join(name);
        for at in (0..400).step_by(step) {
            let path = top.join(format!("dir/name-{at}"));
            if at % 2 == 0 {
                fs::remove_file(path)?
            } else {
                fs::write(path, random.bytes(500))?
            }
        }
        let file = File::options().write(true).open(top.join("file-3"))?;
        for at in 0..10 {
            file.write_all_at(&random.bytes(5000), at * 90_001)?;
        }
        fs::rename(top.join("file-1"), top.join("dir/moved"))?;
    }
    Ok(())
}

/// After the second ones.
fn again(root: &Path, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed + 2);
    fs::remove_dir_all(root.join("big"))?;
    fs::remove_dir_all(root.join("sub/branch/dir"))?;
    fs::write(root.join("sub/branch/file-3"), random.bytes(70_000))?;
    fs::write(root.join("sub/twig/new"), random.text(70_000))?;
    fs::write(root.join("sub/gone/new"), random.bytes(300_000))
}
