//! The examples run, one after another on the same images.
//!
//! These tests are a program of their own. Cargo builds the examples when it builds all tests of
//! the crate, but not when one test program is named.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use sapwood::ImageBuilder;

/// Cargo builds the examples with the tests, in the folder `examples` next to them.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    profile.join("examples").join(name)
}

fn run(name: &str, args: &[&Path]) -> String {
    let output = Command::new(example(name)).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {}\n{errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn examples_do_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let ext4 = dir.path().join("root.img");
    run("build_image", &[&ext4]);
    assert_eq!(
        run("read_file", &[&ext4, Path::new("/etc/hostname")]),
        "box\n"
    );
    assert!(run("read_file", &[&ext4, Path::new("init")]).starts_with("#!/bin/sh"));
    assert_eq!(run("edit", &[&ext4]).matches("/var/log/edits").count(), 2);
    assert_eq!(
        run("read_file", &[&ext4, Path::new("var/log/edits")]),
        "edited\n"
    );
    assert!(run("disk_usage", &[&ext4]).contains(" var\n"));
    assert_eq!(run("check", &[&ext4]), "");

    let btrfs = dir.path().join("disk.img");
    ImageBuilder::btrfs()
        .size(128 << 20)
        .write_to(&btrfs)
        .unwrap();
    let listed = run("snapshot", &[&btrfs]);
    assert!(
        listed.contains(" home\n") && listed.contains(" snapshots/monday\n"),
        "{listed}"
    );
    assert_eq!(run("check", &[&btrfs]), "");
}

/// Without FUSE on this machine the example is left out.
#[cfg(feature = "fuse")]
#[test]
fn the_example_mount_writes_through_the_mount() {
    if sapwood_testing::machine::left_out(&[sapwood_testing::machine::Need::File("/dev/fuse")]) {
        return;
    }
    for kind in sapwood::Kind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (image, mount) = (dir.path().join("disk.img"), dir.path().join("mnt"));
        ImageBuilder::new(kind)
            .size(128 << 20)
            .write_to(&image)
            .unwrap();
        std::fs::create_dir(&mount).unwrap();
        run("mount", &[&image, &mount]);
        assert_eq!(
            run("read_file", &[&image, Path::new("hello")]),
            "written through the mount\n"
        );
        assert_eq!(run("check", &[&image]), "");
    }
}
