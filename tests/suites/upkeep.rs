//! Upkeep of a mounted file system by its daemon, while programs use it: a scrub, a balance,
//! devices that come and go. The kernel reads and scrubs the result.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

use super::several::{SIZE, Set, content, run, said, spoil};

const SECTOR: usize = 4096;
const NOBODY: u32 = 65534;

pub(crate) fn trials() -> Vec<Trial> {
    let both = [machine::KERNEL, Need::Program("btrfs"), Need::Fuse];
    vec![
        trial("a_mount_is_scrubbed_while_it_is_used", &both, scrubbed),
        trial(
            "a_mount_moves_to_another_disk_while_it_is_used",
            &both,
            moved,
        ),
        trial("a_disk_of_a_mount_is_replaced", &both, replaced),
        trial(
            "a_daemon_that_is_killed_in_a_balance_loses_nothing",
            &both,
            killed,
        ),
        trial(
            "a_balance_of_a_mount_is_shown_paused_and_cancelled",
            &[Need::Fuse],
            paused,
        ),
        trial(
            "the_kernel_continues_a_balance_of_ours",
            &both,
            continued_by_the_kernel,
        ),
        trial(
            "a_balance_of_the_kernel_is_continued",
            &both,
            continued_from_the_kernel,
        ),
        trial(
            "a_mounted_ext4_is_scrubbed",
            &[Need::Fuse, Need::Program("dumpe2fs")],
            ext4,
        ),
        trial("upkeep_is_refused_by_name", &[Need::Fuse], refused),
    ]
}

fn mounted(set: &Set) -> Result<SapwoodMount, String> {
    SapwoodMount::new(Path::new(set.at(0)), &format!("device={}", set.at(1)))
}

/// Ends the writers of a scope, also after a failed assertion.
struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes and removes files with fsyncs until it is told to end. Returns the last files.
fn busy(dir: &Path, ended: &AtomicBool) -> Vec<(String, Vec<u8>)> {
    let mut kept = Vec::new();
    for round in 0.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let (name, bytes) = (
            format!("busy{}", round % 7),
            content(SECTOR * (1 + round % 60)),
        );
        let _ = fs::remove_file(dir.join(&name));
        fs::write(dir.join(&name), &bytes).unwrap();
        File::open(dir.join(&name)).unwrap().sync_all().unwrap();
        kept.retain(|(other, _)| *other != name);
        kept.push((name, bytes));
    }
    kept
}

fn scrubbed() -> Outcome {
    let set = Set::made(2, &["-d", "raid1", "-m", "raid1"])?;
    let mount = mounted(&set)?;
    let dir = mount.path().to_owned();
    let place = dir.to_str().unwrap().to_owned();
    let mut file = content(40 * SECTOR);
    // Differs from the files that change.
    file.chunks_mut(SECTOR)
        .for_each(|sector| sector[..8].copy_from_slice(b"the kept"));
    fs::write(dir.join("kept"), &file)?;
    File::open(dir.join("kept"))?.sync_all()?;
    run(&["sync", &place])?;
    let clean = said(&["scrub", &place])?;
    assert!(clean.status.success(), "{}", clean.all());
    assert_eq!(spoil(set.at(1), &file)?, 40);
    let only = said(&["scrub", "--read-only", &place])?;
    assert_eq!(only.status.code(), Some(1), "{}", only.all());
    let ended = AtomicBool::new(false);
    let (scrubs, kept) = thread::scope(|scope| {
        let writers = scope.spawn(|| busy(&dir, &ended));
        let scrubs: Vec<_> = (0..4).map(|_| said(&["scrub", "--json", &place])).collect();
        ended.store(true, Ordering::Relaxed);
        let kept = writers.join().unwrap();
        (scrubs, kept)
    });
    for (nth, scrub) in scrubs.into_iter().enumerate() {
        let scrub = scrub?;
        assert!(scrub.status.success(), "{}", scrub.all());
        let report: serde_json::Value = serde_json::from_str(&scrub.stdout)?;
        let found = if nth == 0 { 40 } else { 0 };
        assert_eq!(report["devices"][0]["data"], 0, "{report}");
        assert_eq!(report["devices"][1]["data"], found, "{report}");
        assert_eq!(report["devices"][1]["lost"], 0, "{report}");
    }
    Box::new(mount).unmount()?;
    set.command(&["check", "-q", "--check-data-csum"], "")?;
    set.by_kernel(|dir| {
        assert!(fs::read(dir.join("kept")).unwrap() == file);
        for (name, bytes) in &kept {
            assert!(fs::read(dir.join(name)).unwrap() == *bytes, "{name}");
        }
    })?;
    Ok(())
}

fn refused() -> Outcome {
    let set = Set::made(2, &["-d", "raid1", "-m", "raid1"])?;
    let mount = SapwoodMount::new(
        Path::new(set.at(0)),
        &format!("allow_other,device={}", set.at(1)),
    )?;
    let place = mount.path().to_str().unwrap().to_owned();
    let mut other = Command::new(sapwood());
    other.args(["scrub", &place]).uid(NOBODY).gid(NOBODY);
    let other = process::finish(&mut other, process::ORDINARY)?;
    assert_eq!(other.status.code(), Some(3), "{}", other.all());
    let others = said(&["scrub", &place, set.at(1)])?;
    assert_eq!(others.status.code(), Some(2), "{}", others.all());
    let elsewhere = said(&["scrub", "/proc"])?;
    assert!(
        elsewhere.stderr.contains("not in a mount by Sapwood"),
        "{}",
        elsewhere.all()
    );
    // The daemon would wait for itself.
    let inner = mount.path().join("inner.img");
    File::create(&inner)?.set_len(SIZE)?;
    let own = said(&["device", "add", &place, inner.to_str().unwrap()])?;
    assert!(own.stderr.contains("lies in the mount"), "{}", own.all());
    Box::new(mount).unmount()?;
    Ok(())
}

/// An image of the size of a set's images.
fn another(set: &Set, name: &str) -> Result<String, String> {
    let path = Path::new(set.at(0)).with_file_name(name);
    let file = File::create(&path).map_err(|error| error.to_string())?;
    file.set_len(SIZE).map_err(|error| error.to_string())?;
    Ok(path.to_str().unwrap().to_owned())
}

fn moved() -> Outcome {
    let mut set = Set::made(1, &[])?;
    let (second, third) = (another(&set, "second.img")?, another(&set, "third.img")?);
    let mount = SapwoodMount::new(Path::new(set.at(0)), "rw")?;
    let dir = mount.path().to_owned();
    let place = dir.to_str().unwrap().to_owned();
    let file = content(3000 * SECTOR);
    fs::write(dir.join("kept"), &file)?;
    let kept = while_busy(&dir, || {
        run(&["device", "add", "-q", &place, &second])?;
        let again = said(&["device", "add", &place, &second])?;
        assert!(again.stderr.contains("in use"), "{}", again.all());
        run(&[
            "balance",
            "-q",
            "-dconvert=raid1",
            "-mconvert=raid1",
            &place,
        ])?;
        run(&["device", "add", "-q", &place, &third])?;
        run(&["device", "remove", "-q", &place, set.at(0)])?;
        let few = said(&["device", "remove", &place, &third])?;
        assert!(few.stderr.contains("needs 2 devices"), "{}", few.all());
        let scrub = said(&["scrub", &place])?;
        assert!(scrub.status.success(), "{}", scrub.all());
        Ok(())
    })?;
    // The removed device is free at once.
    run(&["mkfs", "-q", "-f", "--type", "ext4", set.at(0)])?;
    Box::new(mount).unmount()?;
    set.names = vec![second, third];
    holds(&set, &file, &kept)
}

/// A disk that is there, and one that is missing, are replaced by others while the mount is used.
fn replaced() -> Outcome {
    let mut set = Set::made(2, &["-d", "raid1", "-m", "raid1"])?;
    let (new, last) = (another(&set, "new.img")?, another(&set, "last.img")?);
    let file = content(3000 * SECTOR);
    let mount = mounted(&set)?;
    let place = mount.path().to_str().unwrap().to_owned();
    fs::write(mount.path().join("kept"), &file)?;
    let (old, left) = (set.at(1).to_owned(), set.at(0).to_owned());
    let kept = while_busy(mount.path(), || {
        let told = run(&["device", "replace", &place, &old, &new])?;
        assert!(told.contains("is device 2 now"), "{told}");
        let itself = said(&["device", "replace", &place, "2", &new])?;
        assert!(itself.stderr.contains("in use"), "{}", itself.all());
        let gone = said(&["device", "replace", &place, &old, &last])?;
        assert!(gone.stderr.contains("is no device"), "{}", gone.all());
        Ok(())
    })?;
    // The replaced device is free at once.
    run(&["mkfs", "-q", "-f", "--type", "ext4", &old])?;
    Box::new(mount).unmount()?;
    set.names = vec![left, new.clone()];
    holds(&set, &file, &kept)?;
    fs::remove_file(&new)?;
    let mount = SapwoodMount::new(Path::new(set.at(0)), "degraded")?;
    let place = mount.path().to_str().unwrap().to_owned();
    let kept = while_busy(mount.path(), || {
        run(&["device", "replace", "-q", &place, "missing", &last])?;
        let scrub = said(&["scrub", &place])?;
        assert!(scrub.status.success(), "{}", scrub.all());
        Ok(())
    })?;
    Box::new(mount).unmount()?;
    set.names[1] = last;
    holds(&set, &file, &kept)
}

/// Runs `work` while files are written. Returns the last files.
fn while_busy(
    dir: &Path,
    work: impl FnOnce() -> Result<(), String>,
) -> Result<Vec<(String, Vec<u8>)>, String> {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| busy(dir, &ended));
        let worked = {
            let _ends = Ends(&ended);
            work()
        };
        let kept = writer.join().unwrap();
        worked.map(|()| kept)
    })
}

/// The images have the files, by the check, the kernel, and the kernel's scrub.
fn holds(set: &Set, file: &[u8], kept: &[(String, Vec<u8>)]) -> Outcome {
    set.command(&["check", "-q", "--check-data-csum"], "")?;
    set.by_progs(&["check", "--check-data-csum"])?;
    set.by_kernel(|dir| {
        assert!(fs::read(dir.join("kept")).unwrap() == *file);
        for (name, bytes) in kept {
            assert!(fs::read(dir.join(name)).unwrap() == *bytes, "{name}");
        }
    })?;
    Ok(())
}

/// Two images with a file, and all profiles single.
fn single() -> Result<(Set, Vec<u8>), String> {
    let set = Set::made(2, &["-d", "single", "-m", "single"])?;
    let file = content(15_000 * SECTOR);
    let source = Path::new(set.at(0)).with_file_name("source");
    fs::write(&source, &file).map_err(|error| error.to_string())?;
    let target = format!("{}:/kept", set.at(0));
    let source = source.to_str().unwrap();
    run(&["cp", "-q", "--device", set.at(1), source, &target])?;
    fs::remove_file(source).map_err(|error| error.to_string())?;
    Ok((set, file))
}

const CONVERT: [&str; 2] = ["-dconvert=raid1", "-mconvert=raid1"];

/// Kills the daemon of a mount while it converts. A file that is written meanwhile is durable.
fn kill_in_conversion(set: &Set, delay: u64) -> Result<Vec<(String, Vec<u8>)>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mount = mounted(set)?;
    let dir = mount.path().to_owned();
    let daemon = mount.daemon().ok_or("no daemon")?;
    let mut balance = Command::new(sapwood());
    balance
        .args(["balance", "-q", "-f"])
        .args(CONVERT)
        .arg(&dir);
    let mut balance = balance.stderr(Stdio::null()).spawn().map_err(failed)?;
    let late = content(7 * SECTOR);
    fs::write(dir.join("late"), &late).map_err(failed)?;
    let synced = File::open(dir.join("late")).and_then(|file| file.sync_all());
    synced.map_err(failed)?;
    thread::sleep(Duration::from_millis(delay));
    let mut kill = Command::new("kill");
    process::succeed(kill.args(["-9", &daemon.to_string()]), process::ORDINARY)?;
    balance.wait().map_err(failed)?;
    Ok(vec![("late".to_owned(), late)])
}

/// Whether the image records a balance, by btrfs-progs.
fn is_recorded(set: &Set) -> Result<bool, String> {
    let tree = set.by_progs(&["inspect-internal", "dump-tree", "-t", "root"])?;
    Ok(tree.contains("BALANCE TEMPORARY_ITEM"))
}

fn killed() -> Outcome {
    for delay in [0, 60, 150] {
        let (set, file) = single()?;
        let kept = kill_in_conversion(&set, delay)?;
        run(&[
            "balance",
            "-q",
            "-f",
            CONVERT[0],
            CONVERT[1],
            set.at(0),
            set.at(1),
        ])?;
        assert!(!is_recorded(&set)?);
        holds(&set, &file, &kept)?;
    }
    Ok(())
}

/// Starts a balance of a mount, and ends it by a command. False if it was too fast for that.
fn is_ended_by(word: &str, place: &str) -> Result<bool, String> {
    let (balance, ends) = thread::scope(|scope| {
        let args = [&["balance"][..], &CONVERT, &[place]].concat();
        let balance = scope.spawn(move || said(&args));
        while !balance.is_finished() && !run(&["balance", "status", place])?.contains("running") {
            thread::sleep(Duration::from_millis(1));
        }
        let ends = said(&["balance", word, place])?;
        Ok::<_, String>((balance.join().unwrap()?, ends))
    })?;
    if balance.status.success() {
        let back = ["-f", "-dconvert=single", "-mconvert=single"];
        run(&[&["balance", "-q"], &back[..], &[place]].concat())?;
        return Ok(false);
    }
    assert!(ends.status.success(), "{}", ends.all());
    assert_eq!(balance.status.code(), Some(1), "{}", balance.all());
    assert!(balance.stderr.contains("ended early"), "{}", balance.all());
    Ok(true)
}

/// A balance of a mount is seen and ended from outside.
fn paused() -> Outcome {
    let (set, file) = single()?;
    let image_state = || set.command(&["balance", "--status"], "");
    assert!(image_state()?.contains("no balance"));
    let mount = mounted(&set)?;
    let place = mount.path().to_str().unwrap().to_owned();
    let state = || run(&["balance", "status", &place]);
    assert!(state()?.contains("no balance"));
    let none = said(&["balance", "pause", &place])?;
    assert!(none.stderr.contains("runs a balance"), "{}", none.all());
    for (word, after) in [("pause", "paused"), ("cancel", "no balance")] {
        let ended = (0..10).find_map(|_| {
            is_ended_by(word, &place)
                .map(|ended| ended.then_some(()))
                .transpose()
        });
        ended.ok_or("every balance was too fast")??;
        assert!(state()?.contains(after), "{word}: {}", state()?);
    }
    let mixed = said(&["balance", "-d", "usage=5", "status", &place])?;
    assert_eq!(mixed.status.code(), Some(2), "{}", mixed.all());
    assert!(fs::read(mount.path().join("kept"))? == file);
    Box::new(mount).unmount()?;
    assert!(image_state()?.contains("no balance"));
    set.command(&["check", "-q", "--check-data-csum"], "")?;
    Ok(())
}

/// The mount has no data and no metadata of the profile single.
fn is_mirrored(dir: &Path) -> bool {
    let place = dir.to_str().unwrap();
    let df = process::run("btrfs", &["filesystem", "df", place]).unwrap();
    df.contains("Data, RAID1") && !df.contains("Data, single") && !df.contains("Metadata, single")
}

fn continued_by_the_kernel() -> Outcome {
    for delay in [20, 10, 40, 5, 80, 0, 120, 160] {
        let (set, file) = single()?;
        let kept = kill_in_conversion(&set, delay)?;
        if !is_recorded(&set)? {
            continue;
        }
        set.by_kernel(|dir| {
            let place = dir.to_str().unwrap();
            let ended = |_: &u32| {
                thread::sleep(Duration::from_millis(100));
                let status = process::run("btrfs", &["balance", "status", place]);
                status.is_ok_and(|status| status.contains("No balance found"))
            };
            assert!(
                (0..200).any(|turn| ended(&turn)),
                "the balance does not end"
            );
            assert!(is_mirrored(dir));
        })?;
        assert!(!is_recorded(&set)?);
        return holds(&set, &file, &kept);
    }
    Err("no kill came during the balance".into())
}

fn continued_from_the_kernel() -> Outcome {
    for mounted in [false, true] {
        let (set, file) = single()?;
        set.by_kernel(|dir| {
            let place = dir.to_str().unwrap();
            let start = [
                "balance", "start", "--bg", "-f", CONVERT[0], CONVERT[1], place,
            ];
            process::run("btrfs", &start).unwrap();
            // It may not have begun yet.
            let pause = || process::run("btrfs", &["balance", "pause", place]);
            let paused = (0..1000).any(|_| {
                thread::sleep(Duration::from_millis(1));
                pause().is_ok()
            });
            assert!(paused, "the balance was not paused");
        })?;
        assert!(is_recorded(&set)?);
        if mounted {
            let mount = self::mounted(&set)?;
            run(&["balance", "-q", "--resume", mount.path().to_str().unwrap()])?;
            Box::new(mount).unmount()?;
        } else {
            run(&["balance", "-q", "--resume", set.at(0), set.at(1)])?;
        }
        assert!(!is_recorded(&set)?);
        let again = said(&["balance", "--resume", set.at(0), set.at(1)])?;
        assert!(
            again.stderr.contains("no balance is paused"),
            "{}",
            again.all()
        );
        set.by_kernel(|dir| assert!(is_mirrored(dir)))?;
        holds(&set, &file, &[])?;
    }
    Ok(())
}

fn ext4() -> Outcome {
    let dir = scratch::directory();
    let image = dir.path().join("disk.img");
    let name = image.to_str().unwrap();
    run(&["mkfs", "-q", "--type", "ext4", "--size", "64M", name])?;
    let mount = SapwoodMount::new(&image, "rw")?;
    let place = mount.path().to_str().unwrap().to_owned();
    let ended = AtomicBool::new(false);
    let scrubs: Vec<_> = thread::scope(|scope| {
        let writer = scope.spawn(|| busy(mount.path(), &ended));
        let scrubs = (0..4).map(|_| said(&["scrub", &place])).collect();
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        scrubs
    });
    for scrub in scrubs {
        let scrub = scrub?;
        assert!(scrub.status.success(), "{}", scrub.all());
        assert!(
            scrub.stdout.contains("64.00 MiB read, 0 errors"),
            "{}",
            scrub.all()
        );
    }
    let told = said(&["balance", &place])?;
    assert!(told.stderr.contains("only btrfs"), "{}", told.all());
    fs::write(mount.path().join("kept"), b"content")?;
    let ino = fs::metadata(mount.path().join("kept"))?.ino();
    run(&["sync", &place])?;
    Box::new(mount).unmount()?;
    let mount = SapwoodMount::new(&image, "rw")?;
    let place = mount.path().to_str().unwrap().to_owned();
    let text = process::run("dumpe2fs", &[name])?;
    let number = |name: &str| -> Option<u64> {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.trim().strip_prefix(name))?;
        value.trim().split(['-', ' ']).next()?.parse().ok()
    };
    let parts = [
        number("Inode table at "),
        number("Block size:"),
        number("Inode size:"),
    ];
    let [Some(table), Some(block), Some(size)] = parts else {
        return Err(format!("{parts:?} in {text}").into());
    };
    let at = table * block + (ino - 1) * size + 100;
    let file = File::options().write(true).open(&image)?;
    file.write_all_at(b"damage", at)?;
    let found = said(&["scrub", &place])?;
    assert_eq!(found.status.code(), Some(1), "{}", found.all());
    assert!(
        found.stdout.contains(&format!("inode {ino}: ")),
        "{}",
        found.all()
    );
    Box::new(mount).unmount()?;
    Ok(())
}
