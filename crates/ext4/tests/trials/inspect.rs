//! `inspect` of images that `debugfs` filled, compared with the output of `debugfs`; and of damaged
//! ones, where it must end in a line or an error.
//!
//! Without `debugfs` cases are skipped by name.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use sapwood_block::{Device, FileDevice, OpenOptions};
use sapwood_ext4::inspect::{Image, What};
use sapwood_ext4::mkfs::{MkfsOptions, mkfs};
use sapwood_testing::machine::{E2FSPROGS, trial};

const MIB: u64 = 1 << 20;

struct Fixture {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new(features: &[(&str, bool)]) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("sapwood-inspect-")
            .tempdir()
            .unwrap();
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 64 * MIB).unwrap();
        let options = MkfsOptions {
            features: features
                .iter()
                .map(|(name, on)| ((*name).to_owned(), *on))
                .collect(),
            ..MkfsOptions::default()
        };
        mkfs(&device, &options).unwrap();
        Self { path, _dir: dir }
    }

    /// Runs commands of `debugfs`, writing; returns its output.
    fn debugfs(&self, commands: &str) -> String {
        let mut child = Command::new("debugfs")
            .args(["-w", "-f", "-", self.path.to_str().unwrap()])
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(commands.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn device(&self) -> Arc<dyn Device> {
        // A child that another test is just starting may hold the file until it is a program of its
        // own.
        for _ in 0..100 {
            match FileDevice::open(&self.path, OpenOptions::default()) {
                Err(sapwood_block::Error::Busy { .. }) => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                other => return Arc::new(other.unwrap()),
            }
        }
        panic!("{}: busy for two seconds", self.path.display());
    }

    fn show(&self, words: &str) -> Result<String, Failed> {
        let image = Image::open(self.device())?;
        let mut all = String::new();
        image.show(&What::named(words).unwrap(), &mut |line| {
            all += &line;
            all += "\n";
        })?;
        Ok(all)
    }

    /// A file of the host with these bytes, next to the image.
    fn host_file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path.with_file_name(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn holds(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) {
        Ok(())
    } else {
        Err(format!("no {part:?} in:\n{text}").into())
    }
}

/// Extents, names and attributes of small files.
fn files() -> Result<(), Failed> {
    let fixture = Fixture::new(&[]);
    let data = fixture.host_file("data", &[7; 300_000]);
    let value = fixture.host_file("value", &[b'v'; 300]);
    let said = fixture.debugfs(&format!(
        "mkdir dir\nwrite {data} dir/file\nsymlink dir/link target\n\
         ea_set dir/file user.small tiny\nea_set -f {value} dir/file user.large\n\
         stat dir/file\nls -l dir\n"
    ));
    let extents = said
        .lines()
        .skip_while(|line| !line.starts_with("EXTENTS"))
        .nth(1)
        .unwrap();
    // debugfs: (0-292):9217-9509
    let (logical, physical) = extents.trim().split_once("):").unwrap();
    let expected = format!("{}: {physical}", logical.trim_start_matches('('));
    holds(&fixture.show("map:/dir/file")?, &expected)?;
    let inode = fixture.show("inode:dir/file")?;
    holds(&inode, "Size: 300000")?;
    holds(&inode, "user.small (4 bytes) = tiny")?;
    holds(
        &fixture.show("attrs:/dir/file")?,
        "user.large (300 bytes) = vvvv",
    )?;
    holds(&fixture.show("attrs:/dir/file")?, "attributes in block")?;
    holds(&fixture.show("inode:/dir/link")?, "Target: target")?;
    let names = fixture.show("dir:/dir")?;
    for name in [".", "..", "file", "link"] {
        holds(&names, &format!(" {name}\n"))?;
    }
    holds(&fixture.show("dir:/")?, "lost+found")?;
    let missing = fixture.show("inode:/dir/nothing").unwrap_err();
    holds(missing.message().unwrap_or_default(), "/dir/nothing")
}

/// Block pointers, and data in inodes.
fn other_shapes() -> Result<(), Failed> {
    let old = Fixture::new(&[("none", true), ("filetype", true)]);
    let data = old.host_file("data", &[7; 400_000]);
    let said = old.debugfs(&format!("write {data} file\nblocks file\n"));
    let blocks = said.lines().last().unwrap_or_default().to_owned();
    let shown = old.show("map:file")?;
    let numbers: Vec<_> = shown
        .lines()
        .filter(|line| !line.contains("pointers"))
        .filter_map(|line| line.rsplit(' ').next())
        .collect();
    let all: Vec<_> = said
        .lines()
        .filter(|line| {
            line.split_whitespace()
                .all(|word| word.parse::<u64>().is_ok())
        })
        .flat_map(str::split_whitespace)
        .collect();
    // debugfs counts blocks of pointers among them.
    if numbers.len() != 391 || !numbers.iter().all(|number| all.contains(number)) {
        return Err(format!("{numbers:?}\n{blocks}").into());
    }
    let inline = Fixture::new(&[("inline_data", true)]);
    let small = inline.host_file("small", b"tiny");
    inline.debugfs(&format!("mkdir d\nwrite {small} d/name\n"));
    holds(&inline.show("dir:/d")?, "names in the inode, parent 2")?;
    holds(&inline.show("dir:/d")?, " name\n")?;
    holds(&inline.show("map:/d/name")?, "data in the inode")
}

/// An index of a directory with many names.
fn index() -> Result<(), Failed> {
    let fixture = Fixture::new(&[]);
    let names = fixture.host_file("empty", b"");
    let mut commands = "mkdir d\n".to_owned();
    for n in 0..400 {
        commands += &format!("write {names} d/a_rather_long_name_{n:04}\n");
    }
    fixture.debugfs(&commands);
    // debugfs adds names without an index; e2fsck makes one.
    let path = fixture.path.to_str().unwrap();
    let output = Command::new("e2fsck").args(["-fyD", path]).output()?;
    assert!(output.status.code().is_some_and(|code| code <= 1));
    let shown = fixture.show("dir:/d")?;
    holds(&shown, "index: hash version 1, 0 levels of nodes")?;
    for n in 0..400 {
        holds(&shown, &format!(" a_rather_long_name_{n:04}\n"))?;
    }
    if shown.contains("checksum") {
        Err(shown.into())
    } else {
        Ok(())
    }
}

/// A log with transactions and a revoke.
fn journal() -> Result<(), Failed> {
    let fixture = Fixture::new(&[]);
    holds(&fixture.show("journal")?, "The log is empty")?;
    let data = fixture.host_file("data", &[9; 4096]);
    fixture.debugfs(&format!(
        "jo\njw -b 40000,40001,40002,40003 {data}\njw -r 40001,40002\njc\n"
    ));
    let shown = fixture.show("journal")?;
    holds(&shown, "copies of 4 blocks\n")?;
    holds(&shown, "40003@")?;
    holds(&shown, "revokes 2 blocks\n  40001 40002\n")?;
    holds(&shown, "committed at")?;
    holds(&shown, "the log ends")?;
    let none = Fixture::new(&[("has_journal", false)]);
    let refused = none.show("journal").unwrap_err();
    holds(refused.message().unwrap_or_default(), "no journal")
}

/// Superblock and groups equal dumpe2fs's listing as far as that has the same fields.
fn superblock_and_groups() -> Result<(), Failed> {
    let fixture = Fixture::new(&[]);
    holds(&fixture.show("super")?, "Block count:              65536")?;
    let groups = fixture.show("groups")?;
    for group in 0..8 {
        holds(&groups, &format!("Group {group}: "))?;
    }
    holds(&fixture.show("group:3")?, "Group 3: ")?;
    assert!(fixture.show("group:8").is_err());
    Ok(())
}

/// With any bytes as metadata, every inspection ends.
fn damage() -> Result<(), Failed> {
    let fixture = Fixture::new(&[]);
    let data = fixture.host_file("data", &[7; 30_000]);
    fixture.debugfs(&format!("mkdir d\nwrite {data} d/f\n"));
    let sound = std::fs::read(&fixture.path)?;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..40 {
        let mut bytes = sound.clone();
        for _ in 0..200 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Superblock, descriptors, bitmaps, the first tables and the first files.
            let at = 2048 + (seed >> 33) as usize % (4500 << 10);
            bytes[at] = (seed >> 20) as u8;
        }
        std::fs::write(&fixture.path, &bytes)?;
        for words in [
            "super",
            "groups",
            "inode:2",
            "map:8",
            "map:7",
            "dir:/",
            "dir:/d",
            "inode:/d/f",
            "map:/d/f",
            "attrs:12",
            "journal",
        ] {
            let _ = fixture.show(words);
        }
    }
    Ok(())
}

type Case = fn() -> Result<(), Failed>;

pub(crate) fn trials() -> Vec<Trial> {
    let cases: &[(&str, Case)] = &[
        ("files", files),
        ("other_shapes", other_shapes),
        ("index", index),
        ("journal", journal),
        ("superblock_and_groups", superblock_and_groups),
        ("damage", damage),
    ];
    cases
        .iter()
        .map(|(name, body)| trial(*name, &E2FSPROGS, *body))
        .collect()
}
