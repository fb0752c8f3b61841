//! The files that Sapwood and the tools recovered.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sapwood::Kind;
use sapwood_testing::oracle::KernelMount;
use sapwood_tests::image::TempImage;
use sapwood_tests::machine::missing;
use sapwood_tests::{Need, process};
use sha2::{Digest, Sha256};

const LIMIT: Duration = Duration::from_secs(300);

/// The regular files of a tree: their paths and the digests of their content.
#[derive(Debug, Default)]
pub(super) struct Files(HashMap<PathBuf, [u8; 32]>);

/// Numbers of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// With their path and content.
    pub(super) paths: u64,
    /// With their content, under any name.
    pub(super) contents: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} under their paths)", self.contents, self.paths)
    }
}

impl Files {
    pub(super) fn of(top: &Path) -> Self {
        let mut files = Self::default();
        files.add(top, top);
        files
    }

    fn add(&mut self, top: &Path, dir: &Path) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type());
            match kind {
                Ok(kind) if kind.is_dir() => self.add(top, &path),
                Ok(kind) if kind.is_file() => {
                    if let Ok(content) = fs::read(&path) {
                        let name = path.strip_prefix(top).unwrap().to_owned();
                        self.0.insert(name, Sha256::digest(content).into());
                    }
                }
                _ => {}
            }
        }
    }

    /// These files except those that `other` has at their paths.
    pub(super) fn without(&self, other: &Self) -> Self {
        let rest = self
            .0
            .iter()
            .filter(|(path, _)| !other.0.contains_key(*path));
        Self(rest.map(|(path, digest)| (path.clone(), *digest)).collect())
    }

    /// Paths of some of these files that `one` has and `other` has not.
    pub(super) fn better_in<'f>(&'f self, one: &Self, other: &Self) -> Vec<&'f Path> {
        let has = |files: &Self, path: &PathBuf| files.0.get(path) == self.0.get(path);
        let better = self
            .0
            .keys()
            .filter(|path| has(one, path) && !has(other, path));
        better.take(8).map(PathBuf::as_path).collect()
    }

    pub(super) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// How many of these files the output has.
    pub(super) fn found_in(&self, output: &Self) -> Found {
        let mut contents: HashMap<[u8; 32], u64> = HashMap::new();
        for digest in output.0.values() {
            *contents.entry(*digest).or_default() += 1;
        }
        let mut found = Found {
            paths: 0,
            contents: 0,
        };
        for (path, digest) in &self.0 {
            found.paths += u64::from(output.0.get(path) == Some(digest));
            if let Some(left) = contents.get_mut(digest).filter(|left| **left > 0) {
                *left -= 1;
                found.contents += 1;
            }
        }
        found
    }
}

/// The files that each tool of the format recovers, with the name of the tool: `btrfs restore` and
/// `btrfs check --repair`, or `e2fsck -y`, the repairs with a mount by the kernel; and `photorec`,
/// if it is there.
pub(super) fn recovered_by_tools(image: &TempImage, dir: &Path) -> Vec<(&'static str, Files)> {
    let mut found = match image.kind() {
        Kind::Btrfs => vec![
            ("restore", by_restore(image, dir)),
            ("check", by_check(image)),
        ],
        Kind::Ext4 => vec![("e2fsck", by_e2fsck(image))],
    };
    if missing(&[Need::Program("photorec")]).is_none() {
        found.push(("photorec", by_photorec(image, dir)));
    }
    found
}

fn by_restore(image: &TempImage, dir: &Path) -> Files {
    let mut best = Files::default();
    for (number, copy) in [None, Some("1")].into_iter().enumerate() {
        let out = dir.join(format!("restore{number}"));
        fs::create_dir(&out).unwrap();
        let mut command = process::command("btrfs", &["restore", "-i", "-m", "-S", "-x", "-s"]);
        if let Some(copy) = copy {
            command.args(["-u", copy]);
        }
        command.arg(image.path()).arg(&out);
        let _ = process::finish(&mut command, LIMIT);
        let files = Files::of(&out);
        if files.count() > best.count() {
            best = files;
        }
    }
    best
}

/// The files that a mount of a repaired copy shows.
fn by_check(image: &TempImage) -> Files {
    let Ok(copy) = image.copy() else {
        return Files::default();
    };
    let mut command = process::command("timeout", &["60", "btrfs", "check"]);
    let command = command.args(["--repair", "--force"]).arg(copy.path());
    let _ = process::finish(command, LIMIT);
    mounted(&copy)
}

fn by_e2fsck(image: &TempImage) -> Files {
    let Ok(copy) = image.copy() else {
        return Files::default();
    };
    let fix = |more: &[&str]| {
        let mut command = process::command("e2fsck", &["-f", "-y"]);
        let said = process::finish(command.args(more).arg(copy.path()), LIMIT);
        said.is_ok_and(|said| matches!(said.status.code(), Some(0 | 1)))
    };
    if !fix(&[]) {
        fix(&["-b", "32768", "-B", "4096"]);
    }
    mounted(&copy)
}

fn mounted(image: &TempImage) -> Files {
    match KernelMount::new(image.path(), "ro") {
        Ok(mount) => Files::of(mount.path()),
        Err(_) => Files::default(),
    }
}

fn by_photorec(image: &TempImage, dir: &Path) -> Files {
    let out = dir.join("photorec");
    fs::create_dir(&out).unwrap();
    let mut command = process::command("timeout", &["120", "photorec", "/d"]);
    command.arg(out.join("found")).arg("/cmd").arg(image.path());
    command.arg("fileopt,everything,enable,search");
    let _ = process::finish(command.current_dir(&out), LIMIT);
    Files::of(&out)
}

/// The deleted files that `extundelete` restores; `None` without it.
pub(super) fn undeleted_by_tool(image: &TempImage, dir: &Path) -> Option<Files> {
    if image.kind() != Kind::Ext4 || missing(&[Need::Program("extundelete")]).is_some() {
        return None;
    }
    let out = dir.join("extundelete");
    fs::create_dir(&out).unwrap();
    let mut command = process::command("extundelete", &["--restore-all"]);
    let command = command.arg(image.path()).current_dir(&out);
    let _ = process::finish(command, LIMIT);
    Some(Files::of(&out.join("RECOVERED_FILES")))
}
