//! Upkeep of a mounted file system by its daemon, while programs use it: a scrub.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libtest_mimic::Trial;
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, trial};

use super::several::{Set, content, run, said, spoil};

const SECTOR: usize = 4096;
const NOBODY: u32 = 65534;

pub(crate) fn trials() -> Vec<Trial> {
    let both = [machine::KERNEL, Need::Program("btrfs"), Need::Fuse];
    vec![
        trial("a_mount_is_scrubbed_while_it_is_used", &both, scrubbed),
        trial("upkeep_is_refused_by_name", &[Need::Fuse], refused),
    ]
}

fn mounted(set: &Set) -> Result<SapwoodMount, String> {
    SapwoodMount::new(Path::new(set.at(0)), &format!("device={}", set.at(1)))
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
    let kept = thread::scope(|scope| {
        let writers = scope.spawn(|| busy(&dir, &ended));
        let scrubs: Vec<_> = (0..4).map(|_| said(&["scrub", "--json", &place])).collect();
        ended.store(true, Ordering::Relaxed);
        let kept = writers.join().unwrap();
        (scrubs, kept)
    });
    let (scrubs, kept) = kept;
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
    Box::new(mount).unmount()?;
    Ok(())
}
