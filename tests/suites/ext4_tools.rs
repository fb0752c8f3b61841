//! `mkfs`, `info` and `dump` of ext4 images on the command line.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::mount::sapwood;
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};

const LIMIT: Duration = Duration::from_secs(60);

fn trials() -> Vec<Trial> {
    let check = [Need::Program("e2fsck")];
    vec![
        trial("made_and_shown", &check, made_and_shown),
        trial("filled_from_a_directory", &check, filled),
        trial("refused", &check, refused),
    ]
}

/// Runs a command of ours that succeeds; what it prints.
fn said(args: &[&str]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), LIMIT)
}

fn sound(image: &Path) -> Result<(), String> {
    process::run("e2fsck", &["-fn", image.to_str().unwrap()]).map(drop)
}

fn holds(text: &str, part: &str) -> Result<(), String> {
    match text.contains(part) {
        true => Ok(()),
        false => Err(format!("no {part:?} in:\n{text}")),
    }
}

fn made_and_shown() -> Outcome {
    let dir = scratch::directory();
    let path = dir.path().join("image");
    let image = path.to_str().unwrap();
    let uuid = "0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d";
    let made = said(&[
        "mkfs",
        "-t",
        "ext4",
        "--size",
        "64M",
        "-b",
        "2k",
        "-I",
        "512",
        "-N",
        "1000",
        "-m",
        "2",
        "-L",
        "name",
        "-U",
        uuid,
        "-O",
        "^resize_inode,orphan_file",
        "-E",
        "root_owner=7:8",
        image,
    ])?;
    holds(&made, uuid)?;
    sound(&path)?;
    let info = said(&["info", image])?;
    for part in ["ext4", "name", uuid, "orphan_file", "2048", "512"] {
        holds(&info, part)?;
    }
    let json = said(&["info", "--json", image])?;
    holds(&json, "\"journal\": false")?;
    let shown = said(&["dump", image])?;
    holds(&shown, "Reserved block count:     655")?;
    holds(&shown, "Group 1: ")?;
    holds(
        &said(&["dump", image, "inode:2"])?,
        "User:     7   Group:     8",
    )?;
    holds(&said(&["dump", image, "dir:/"])?, "lost+found")?;
    holds(
        &said(&["dump", image, "map:8"])?,
        "node in the inode: depth 0",
    )?;
    holds(&said(&["dump", image, "journal"])?, "The log is empty")?;
    Ok(())
}

fn filled() -> Outcome {
    let dir = scratch::directory();
    let (source, path) = (dir.path().join("source"), dir.path().join("image"));
    fs::create_dir_all(source.join("sub/deep"))?;
    let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 251) as u8).collect();
    fs::write(source.join("sub/big"), &big)?;
    fs::write(source.join("first"), b"some text\n")?;
    fs::hard_link(source.join("first"), source.join("second"))?;
    std::os::unix::fs::symlink("first", source.join("link"))?;
    let (image, from) = (path.to_str().unwrap(), source.to_str().unwrap());
    said(&[
        "mkfs", "-t", "ext4", "--size", "64M", "-q", "-r", from, image,
    ])?;
    sound(&path)?;
    let inode = said(&["dump", image, "inode:/first"])?;
    holds(&inode, "Links: 2")?;
    holds(&said(&["dump", image, "inode:/link"])?, "Target: first")?;
    let back = Command::new(sapwood())
        .args(["cat", &format!("{image}:sub/big")])
        .output()?;
    if back.stdout != big {
        return Err("sub/big reads back wrong".into());
    }
    Ok(())
}

/// What is there is kept, and what makes no sense is refused, each with a word about why.
fn refused() -> Outcome {
    let dir = scratch::directory();
    let path = dir.path().join("image");
    let image = path.to_str().unwrap();
    let fails = |args: &[&str], why: &str| -> Result<(), String> {
        let said = process::finish(Command::new(sapwood()).args(args), LIMIT)?;
        if said.status.success() {
            return Err(format!("{args:?} succeeded"));
        }
        holds(&said.all(), why)
    };
    let make = ["mkfs", "-t", "ext4", image];
    said(&["mkfs", "-t", "btrfs", "--size", "128M", "-q", image])?;
    fails(&make, "contains a btrfs file system")?;
    said(&[&make[..], &["-q", "--force"]].concat())?;
    sound(&path)?;
    holds(&said(&["info", image])?, "ext4")?;
    fails(&make, "contains an ext2, ext3 or ext4")?;
    for (option, value, why) in [
        ("-O", "turbo", "unknown feature turbo"),
        ("-O", "bigalloc", "bigalloc is not supported"),
        ("-O", "meta_bg", "exclude each other"),
        ("-b", "64k", "block size 65536"),
        ("-I", "100", "inode size 100"),
        ("-J", "size=4000", "journal of"),
        ("-L", "more_than_16_bytes", "label of 18 bytes"),
    ] {
        fails(&[&make[..], &["--force", option, value]].concat(), why)?;
    }
    fails(&["dump", image, "inode:/nothing"], "there is no /nothing")?;
    fails(&["dump", image, "turbo"], "turbo")?;
    // Whatever was refused left it as it was.
    sound(&path)?;
    Ok(())
}

fn main() {
    machine::run(2, trials);
}
