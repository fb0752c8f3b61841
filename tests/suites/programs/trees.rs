//! `tar` and `rsync`: whole trees in and out, with hard links, ACLs and attributes.

use std::fs;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_tests::fill::{self, Limits};
use sapwood_tests::form::Form;
use sapwood_tests::mount::Driver;
use sapwood_tests::volume::{Volume, check};
use sapwood_tests::{Need, Outcome, machine, process};

const LIMIT: Duration = Duration::from_secs(3600);

pub(super) fn trials() -> Vec<Trial> {
    let needs = ["rsync", "tar"].map(Need::Program);
    let (btrfs, ext4) = (Form::plain(Kind::Btrfs), Form::plain(Kind::Ext4));
    let compressed = Form::btrfs("compressed", "", "compress=zstd");
    let other = Form::btrfs("other", "", "compress=lzo");
    let between = "rsync::mixed_tree_there_and_back";
    let (one, two) = (other.clone(), other);
    vec![
        btrfs.trial("tar::round_trip", &needs, tar),
        ext4.trial("tar::round_trip", &needs, tar),
        compressed.trial("rsync::round_trip", &needs, rsync),
        ext4.trial("rsync::round_trip", &needs, rsync),
        btrfs.trial(between, &needs, move |form| {
            mixed(form, &one, Limits::new(99, 16384, true))
        }),
        ext4.trial(
            between,
            &[needs, [machine::KERNEL; 2]].concat(),
            move |form| mixed(form, &two, Limits::ext4(99, 4096, true)),
        ),
    ]
}

/// The source: all of /usr, or a part that does not take long.
fn source() -> &'static str {
    if machine::full() {
        "/usr"
    } else {
        "/usr/sbin /usr/share/perl5 /usr/share/zoneinfo /usr/lib/git-core /usr/include/linux"
    }
}

/// Space for it.
const SIZE: u64 = 24 << 30;

/// Differences that rsync finds between the source and the mount, comparing whole files.
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

fn tar(form: &Form) -> Outcome {
    let volume = form.volume(SIZE)?;
    let pack = "tar --xattrs --xattrs-include='*' --acls --numeric-owner";
    let script = format!(
        "{pack} -cf - $(ls -d {} 2>/dev/null) 2>/dev/null | {pack} -xpf -",
        source()
    );
    process::shell(volume.path(), &script, LIMIT)?;
    finish(volume)
}

fn rsync(form: &Form) -> Outcome {
    let volume = form.volume(SIZE)?;
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
fn mixed(form: &Form, other: &Form, limits: Limits) -> Outcome {
    let limits = Limits {
        names: 300,
        ..limits
    };
    let (one, two) = (form.volume(2 << 30)?, other.volume(2 << 30)?);
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
