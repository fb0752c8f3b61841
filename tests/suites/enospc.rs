//! Full file systems: filled in three ways, emptied, filled again. What was durable stays, what
//! does not fit is refused and not lost later, deleting works, and the space comes back.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood_tests::image::Mkfs;
use sapwood_tests::random::{Random, seed};
use sapwood_tests::volume::{Volume, check, ours};
use sapwood_tests::{Need, Outcome, machine, subvolumes, trial};

const SIZE: u64 = 176 << 20;

fn trials() -> Vec<Trial> {
    let needs = [Need::Kernel, Need::Fuse];
    let mut trials = Vec::new();
    let variants = [("default", ""), ("mixed", "-M"), ("single", "-m single")];
    for (name, args) in variants
        .into_iter()
        .take(if machine::full() { 3 } else { 1 })
    {
        let ways: [(&str, Way); 3] = [
            ("one_file", one_file),
            ("many_files", many_files),
            ("many_snapshots", many_snapshots),
        ];
        for (way_name, way) in ways {
            let run = move || fill_empty_fill(args, way);
            trials.push(trial(format!("{way_name}::{name}"), &needs, run));
        }
    }
    trials
}

/// Fills a directory until nothing fits: what is durable, and how many bytes of content that is.
type Way = fn(&Path, &mut Random) -> Result<Filled, String>;

struct Filled {
    durable: Vec<(PathBuf, Vec<u8>)>,
    bytes: u64,
}

fn fill_empty_fill(args: &str, way: Way) -> Outcome {
    let mut volume = Volume::with(&Mkfs::with(args).sized(SIZE), "rw", ours())?;
    let mut random = Random::new(seed(0xf111));
    let empty = free(volume.path())?;
    let first = way(volume.path(), &mut random)?;
    verify(volume.path(), &first, "when full")?;
    volume.remount()?;
    verify(volume.path(), &first, "full, after an unmount")?;
    volume.unmount()?;
    check(volume.image())?;
    volume.remount()?;
    empty_again(volume.path())?;
    wait_for_space(&volume, empty)?;
    let second = way(volume.path(), &mut random)?;
    println!(
        "{:?} of {SIZE} at first, then {:?}",
        first.bytes, second.bytes
    );
    // Metadata chunks made meanwhile may have to go first; most of it has to be there.
    if second.bytes * 10 < first.bytes * 8 {
        return Err(format!(
            "{} bytes fitted at first, then only {}",
            first.bytes, second.bytes
        )
        .into());
    }
    verify(volume.path(), &second, "full again")?;
    volume.remount()?;
    verify(volume.path(), &second, "full again, after an unmount")?;
    volume.finish()?;
    Ok(())
}

fn free(root: &Path) -> Result<u64, String> {
    let stat = rustix::fs::statvfs(root).map_err(|error| error.to_string())?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// True if an error says that the space is used up.
fn no_space(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}

/// Passes on errors other than `ENOSPC`; false for that one.
fn fits(result: io::Result<()>, what: &str) -> Result<bool, String> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if no_space(&error) => Ok(false),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// One file, in pieces that are made durable one by one.
fn one_file(root: &Path, random: &mut Random) -> Result<Filled, String> {
    const PIECE: usize = 4 << 20;
    let path = root.join("one");
    let mut file = File::create(&path).map_err(|error| error.to_string())?;
    let mut content = Vec::new();
    loop {
        let piece = random.bytes(PIECE);
        if !fits(file.write_all(&piece), "write")? || !fits(file.sync_data(), "fsync")? {
            break;
        }
        content.extend_from_slice(&piece);
        if content.len() as u64 > SIZE {
            return Err("more fits than there is".to_owned());
        }
    }
    drop(file);
    let bytes = content.len() as u64;
    Ok(Filled {
        durable: vec![(PathBuf::from("one"), content)],
        bytes,
    })
}

/// Many files: inline, small, middling.
fn many_files(root: &Path, random: &mut Random) -> Result<Filled, String> {
    let mut filled = Filled {
        durable: Vec::new(),
        bytes: 0,
    };
    for at in 0_usize.. {
        let dir = PathBuf::from(format!("dir-{}", at / 100));
        if at.is_multiple_of(100) && !fits(fs::create_dir(root.join(&dir)), "mkdir")? {
            break;
        }
        let len = [500, 1900, 6000, 40_000, 300_000][at % 5];
        let (name, content) = (dir.join(format!("file-{at}")), random.bytes(len));
        let write = || -> io::Result<()> {
            let mut file = File::create(root.join(&name))?;
            file.write_all(&content)?;
            // Each sync is a commit; what comes between is carried by the next one.
            if at.is_multiple_of(10) {
                subvolumes::sync(ours(), root).map_err(|why| match file.sync_all() {
                    Err(error) => error,
                    Ok(()) => io::Error::other(why),
                })
            } else {
                file.sync_data()
            }
        };
        if !fits(write(), "write")? {
            break;
        }
        filled.bytes += len as u64;
        filled.durable.push((name, content));
        if filled.bytes > SIZE {
            return Err("more fits than there is".to_owned());
        }
    }
    Ok(filled)
}

/// A subvolume and snapshots of it, each changed a little.
fn many_snapshots(root: &Path, random: &mut Random) -> Result<Filled, String> {
    let driver = ours();
    let base = root.join("base");
    let failed = |error: io::Error| format!("base: {error}");
    subvolumes::create(driver, &base)?;
    for at in 0..300 {
        fs::write(base.join(format!("file-{at}")), random.bytes(3000)).map_err(failed)?;
    }
    let mut filled = Filled {
        durable: Vec::new(),
        bytes: 0,
    };
    for at in 0_usize.. {
        let name = format!("snapshot-{at}");
        let place = root.join(&name);
        match subvolumes::snapshot(driver, &base, &place) {
            Ok(()) => {}
            Err(why) if why.contains("No space left") => break,
            Err(why) => return Err(why),
        }
        let (file, content) = (format!("file-{}", at % 300), random.bytes(400_000));
        let write = || -> io::Result<()> {
            let mut file = File::create(place.join(&file))?;
            file.write_all(&content)?;
            file.sync_all()
        };
        if !fits(write(), "write")? {
            break;
        }
        filled.bytes += content.len() as u64;
        filled
            .durable
            .push((PathBuf::from(name).join(file), content));
    }
    Ok(filled)
}

fn verify(root: &Path, filled: &Filled, when: &str) -> Result<(), String> {
    for (name, content) in &filled.durable {
        let found = fs::read(root.join(name))
            .map_err(|error| format!("{when}: {}: {error}", name.display()))?;
        // Behind the durable part there may be more.
        if !found.starts_with(content) {
            return Err(format!("{when}: {} has lost its content", name.display()));
        }
    }
    Ok(())
}

/// Deletes everything, one by one, the way `rm` does.
fn empty_again(root: &Path) -> Result<(), String> {
    let driver = ours();
    for entry in fs::read_dir(root).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("snapshot-") || name == "base" {
            subvolumes::delete(driver, &path)?;
        } else if path.is_dir() {
            fs::remove_dir_all(&path).map_err(|error| format!("rm {name}: {error}"))?;
        } else {
            fs::remove_file(&path).map_err(|error| format!("rm {name}: {error}"))?;
        }
    }
    Ok(())
}

/// Waits until deleted subvolumes have given back their space.
fn wait_for_space(volume: &Volume, empty: u64) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        subvolumes::sync(ours(), volume.path())?;
        let now = free(volume.path())?;
        if now * 100 >= empty * 85 {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!(
                "emptied, {now} bytes are free; at first there were {empty}"
            ));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn main() {
    machine::run(2, trials);
}
