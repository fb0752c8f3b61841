//! Full file systems: filled in three ways, emptied, filled again. Durable data stays, data that
//! does not fit is refused and not lost later, deleting works, and the space returns.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood_tests::form::Form;
use sapwood_tests::random::{Random, seed};
use sapwood_tests::volume::{Volume, check, ours};
use sapwood_tests::{Outcome, machine, subvolumes};

const SIZE: u64 = 176 << 20;

/// Fills it until it is full. Returns the durable data and its size.
type Way = fn(&Volume, &mut Random) -> Result<Filled, String>;

/// Ways with their names.
type Ways = &'static [(&'static str, Way)];

const OF_BTRFS: Ways = &[
    ("one_file", one_file),
    ("many_files", many_files),
    ("many_snapshots", many_snapshots),
];
const OF_EXT4: Ways = &[("one_file", one_file), ("many_files", many_files)];
const OF_INODES: Ways = &[("many_names", many_names)];

/// The forms, in which ways each is filled, and whether always.
fn forms() -> Vec<(Form, Ways, bool)> {
    let btrfs = |name, args| Form::btrfs(name, args, "rw");
    let ext4 = |name, args| Form::ext4(name, args, "rw");
    let journaled = Form::ext4("data_journal", "", "data=journal");
    let no_journal = "-N 3000 -O ^has_journal";
    vec![
        (btrfs("default", ""), OF_BTRFS, true),
        (btrfs("mixed", "-M"), OF_BTRFS, false),
        (btrfs("single", "-m single"), OF_BTRFS, false),
        (ext4("default", ""), OF_EXT4, true),
        (ext4("blocks_1k", "-b 1024"), OF_EXT4, false),
        (ext4("no_journal", "-O ^has_journal"), OF_EXT4, false),
        (journaled, OF_EXT4, false),
        (ext4("block_maps", "-O ^extents,^64bit"), OF_EXT4, false),
        (
            ext4("inline_data", "-O inline_data -I 1024"),
            OF_EXT4,
            false,
        ),
        (
            Form::ext4("few_inodes", "-N 3000", "io_uring=auto,sandbox=off"),
            OF_INODES,
            true,
        ),
        (
            Form::ext4("few_inodes_plain_loop", "-N 3000", "io_uring=off"),
            OF_INODES,
            true,
        ),
        (ext4("few_inodes_no_journal", no_journal), OF_INODES, false),
    ]
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (form, ways, always) in forms() {
        for &(name, way) in ways {
            if always || machine::full() {
                let name = format!("{name}::{}", form.name);
                trials.push(form.trial(name, &[], move |form| fill_empty_fill(form, way)));
            }
        }
    }
    trials
}

struct Filled {
    durable: Vec<(PathBuf, Vec<u8>)>,
    bytes: u64,
}

fn fill_empty_fill(form: &Form, way: Way) -> Outcome {
    let mut volume = form.volume(SIZE)?;
    let mut random = Random::new(seed(0xf111));
    let empty = free(&volume)?;
    let first = way(&volume, &mut random)?;
    verify(&volume, &first, "when full")?;
    volume.remount()?;
    verify(&volume, &first, "full, after an unmount")?;
    volume.unmount()?;
    check(volume.image())?;
    volume.remount()?;
    empty_again(&volume)?;
    wait_for_space(&volume, empty)?;
    let second = way(&volume, &mut random)?;
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
    verify(&volume, &second, "full again")?;
    volume.remount()?;
    verify(&volume, &second, "full again, after an unmount")?;
    volume.finish()?;
    Ok(())
}

fn free(volume: &Volume) -> Result<u64, String> {
    let stat = rustix::fs::statvfs(volume.path()).map_err(|error| error.to_string())?;
    Ok(stat.f_bavail * stat.f_frsize)
}

fn free_inodes(volume: &Volume) -> Result<u64, String> {
    let stat = rustix::fs::statvfs(volume.path()).map_err(|error| error.to_string())?;
    Ok(stat.f_ffree)
}

/// True for an error about full space.
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
fn one_file(volume: &Volume, random: &mut Random) -> Result<Filled, String> {
    const PIECE: usize = 4 << 20;
    let path = volume.join("one");
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
fn many_files(volume: &Volume, random: &mut Random) -> Result<Filled, String> {
    let mut filled = Filled {
        durable: Vec::new(),
        bytes: 0,
    };
    for at in 0_usize.. {
        let dir = PathBuf::from(format!("dir-{}", at / 100));
        if at.is_multiple_of(100) && !fits(fs::create_dir(volume.join(&dir)), "mkdir")? {
            break;
        }
        let len = [500, 1900, 6000, 40_000, 300_000][at % 5];
        let (name, content) = (dir.join(format!("file-{at}")), random.bytes(len));
        let write = || -> io::Result<()> {
            let mut file = File::create(volume.join(&name))?;
            file.write_all(&content)?;
            // Each sync is a commit; changes in between are part of the next one.
            if at.is_multiple_of(10) {
                volume.sync().map_err(|why| match file.sync_all() {
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
fn many_snapshots(volume: &Volume, random: &mut Random) -> Result<Filled, String> {
    let driver = ours();
    let base = volume.join("base");
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
        let place = volume.join(&name);
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

/// Small files until no inode is left: as many as were reported free. Operations without a new
/// inode still work.
fn many_names(volume: &Volume, random: &mut Random) -> Result<Filled, String> {
    let free = free_inodes(volume)?;
    let mut filled = Filled {
        durable: Vec::new(),
        bytes: 0,
    };
    for at in 0_usize.. {
        let dir = PathBuf::from(format!("dir-{}", at / 500));
        if at.is_multiple_of(500) && !fits(fs::create_dir(volume.join(&dir)), "mkdir")? {
            break;
        }
        let (name, content) = (dir.join(format!("file-{at}")), random.bytes(20));
        if !fits(fs::write(volume.join(&name), &content), "write")? {
            break;
        }
        filled.bytes += content.len() as u64;
        filled.durable.push((name, content));
    }
    let taken = fs_err(fs::read_dir(volume.path()))?.count() as u64 - 1;
    let taken = taken + filled.durable.len() as u64;
    if taken != free || free_inodes(volume)? != 0 {
        return Err(format!("{taken} of {free} inodes could be taken"));
    }
    let (first, last) = (volume.join(&filled.durable[0].0), volume.join("dir-0/link"));
    fs_err(fs::hard_link(&first, &last))?;
    fs_err(fs::rename(&last, volume.join("moved")))?;
    if fits(fs::create_dir(volume.join("more")), "mkdir")? {
        return Err("a directory without an inode".to_owned());
    }
    if let Some((victim, content)) = filled.durable.pop() {
        filled.bytes -= content.len() as u64;
        one_for_another(volume, victim)?;
    }
    volume.sync()?;
    Ok(filled)
}

/// Waits until `statfs` counts the inode of a deleted file.
fn wait_for_inode(volume: &Volume) -> Result<(), String> {
    let end = Instant::now() + Duration::from_secs(60);
    while free_inodes(volume)? != 1 {
        if Instant::now() > end {
            return Err("the inode of a deleted file is not free".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A new file gets the inode of the deleted one, also right after the deletion.
fn one_for_another(volume: &Volume, victim: PathBuf) -> Result<(), String> {
    let mut last = victim;
    for at in 0..300 {
        fs_err(fs::remove_file(volume.join(&last)))?;
        if at % 2 == 0 {
            wait_for_inode(volume).map_err(|why| format!("round {at}: {why}"))?;
        }
        last = PathBuf::from(format!("other-{at}"));
        fs::write(volume.join(&last), b"other").map_err(|why| format!("round {at}: {why}"))?;
    }
    Ok(())
}

fn fs_err<T>(result: io::Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn verify(volume: &Volume, filled: &Filled, when: &str) -> Result<(), String> {
    for (name, content) in &filled.durable {
        let found = fs::read(volume.join(name))
            .map_err(|error| format!("{when}: {}: {error}", name.display()))?;
        // More data may follow the durable part.
        if !found.starts_with(content) {
            return Err(format!("{when}: {} has lost its content", name.display()));
        }
    }
    Ok(())
}

/// Deletes everything, one by one, the way `rm` does.
fn empty_again(volume: &Volume) -> Result<(), String> {
    let driver = ours();
    for entry in fs::read_dir(volume.path()).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("snapshot-") || name == "base" {
            subvolumes::delete(driver, &path)?;
        } else if name == "lost+found" {
            // Tools that repair a file system expect it.
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
        volume.sync()?;
        let now = free(volume)?;
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
