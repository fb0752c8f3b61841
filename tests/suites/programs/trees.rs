//! `tar` and `rsync`: whole trees in and out, with hard links, ACLs and attributes.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::fill::{self, Limits};
use sapwood_tests::mount::Driver;
use sapwood_tests::volume::{Volume, check};
use sapwood_tests::{Need, Outcome, machine, process, trial};

use super::MOUNT;

const LIMIT: Duration = Duration::from_secs(3600);

pub(super) fn trials() -> Vec<Trial> {
    let with = |program| {
        let mut needs = MOUNT.to_vec();
        needs.extend([Need::Program("rsync"), Need::Program(program)]);
        needs
    };
    vec![
        trial("tar::round_trip", &with("tar"), tar),
        trial("rsync::round_trip", &with("rsync"), rsync),
        trial("rsync::mixed_tree_there_and_back", &with("rsync"), mixed),
    ]
}

/// What is copied: all of /usr, or so much of it that it does not take long.
fn source() -> &'static str {
    if machine::full() {
        "/usr"
    } else {
        "/usr/sbin /usr/share/perl5 /usr/share/zoneinfo /usr/lib/git-core /usr/include/linux"
    }
}

/// Space for it.
const SIZE: u64 = 24 << 30;

/// Differences that rsync finds between the source and what is in the mount, whole files compared.
fn differences(volume: &Volume) -> Result<String, String> {
    let compare = format!(
        "for dir in $(ls -d {} 2>/dev/null); do rsync -naHAXic --delete $dir/ ./$dir/; done",
        source()
    );
    process::shell(volume.path(), &compare, LIMIT)
}

fn unchanged(volume: &Volume, when: &str) -> Outcome {
    let differences = differences(volume)?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(format!("{when}: {}", process::tail(&differences)).into())
}

fn finish(mut volume: Volume) -> Outcome {
    unchanged(&volume, "at once")?;
    volume.remount()?;
    unchanged(&volume, "after an unmount")?;
    volume.unmount()?;
    check(volume.image())?;
    let kernel = Driver::Kernel.mount(volume.image().path(), "ro")?;
    let compare = format!(
        "cd {}; for dir in $(ls -d {} 2>/dev/null); do rsync -naHAXic --delete $dir/ ./$dir/; done",
        kernel.path().display(),
        source()
    );
    let seen = process::shell(kernel.path(), &compare, LIMIT)?;
    kernel.unmount()?;
    if !seen.is_empty() {
        return Err(format!("the kernel sees: {}", process::tail(&seen)).into());
    }
    Ok(())
}

fn tar() -> Outcome {
    let volume = Volume::new(SIZE, "rw")?;
    let pack = "tar --xattrs --xattrs-include='*' --acls --numeric-owner";
    let script = format!(
        "{pack} -cf - $(ls -d {} 2>/dev/null) 2>/dev/null | {pack} -xpf -",
        source()
    );
    process::shell(volume.path(), &script, LIMIT)?;
    finish(volume)
}

fn rsync() -> Outcome {
    let volume = Volume::new(SIZE, "compress=zstd")?;
    let script = format!(
        "for dir in $(ls -d {} 2>/dev/null); do mkdir -p .$dir; rsync -aHAX $dir/ .$dir/; done",
        source()
    );
    process::shell(volume.path(), &script, LIMIT)?;
    // A second time: everything is there already; a third: deltas in place.
    process::shell(volume.path(), &script, LIMIT)?;
    let touch = "{ find usr -type f -size +64k || true; } | head -n 200 | while read -r f; do printf x | dd of=\"$f\" bs=1 seek=5000 conv=notrunc status=none; done";
    process::shell(volume.path(), touch, LIMIT)?;
    let again = script.replace("-aHAX", "-aHAXc --inplace --no-whole-file");
    process::shell(volume.path(), &again, LIMIT)?;
    finish(volume)
}

/// A mixed tree goes from one of our mounts to another one and back.
fn mixed() -> Outcome {
    let limits = Limits {
        names: 300,
        ..Limits::new(99, 16384, true)
    };
    let (one, two) = (
        Volume::new(2 << 30, "rw")?,
        Volume::new(2 << 30, "compress=lzo")?,
    );
    let from = one.join("tree");
    fs::create_dir(&from)?;
    fill::fill(&from, limits)?;
    let sync = |from: &std::path::Path, to: &std::path::Path, more: &str| {
        let script = format!(
            "rsync -aHAXS {more} --exclude=/deep --exclude=/sparse/islands --exclude=/flags '{}/' '{}/'",
            from.display(),
            to.display()
        );
        process::shell(from, &script, LIMIT)
    };
    let (there, back) = (two.join("there"), one.join("back"));
    sync(&from, &there, "")?;
    sync(&there, &back, "")?;
    let differences = sync(&from, &back, "-nic --delete")?;
    if !differences.is_empty() {
        return Err(process::tail(&differences).into());
    }
    one.finish_and_compare()?;
    two.finish_and_compare()?;
    Ok(())
}
