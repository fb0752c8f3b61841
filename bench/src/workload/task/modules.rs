//! Packages of small files, written as a package manager writes `node_modules`, without one.
//!
//! [`THREADS`] threads write whole packages, as the thread pool of Node.js does for npm. A file is
//! created under a temporary name in its directory, written, given its mode and renamed. Every
//! package has directories up to three deep; some are scoped, some are inside another package.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use super::measured::Part;
use crate::Result;
use crate::contestant::Standing;
use crate::error::io_error;
use crate::figures::Seen;
use crate::program::timed;
use crate::workload::panicked;
use crate::workload::small_files::{self, Contents};

const THREADS: u32 = 4;
/// Number of files of a package.
const PER_PACKAGE: u32 = 24;
/// Number of different contents, made before the measured part.
const CONTENTS: usize = 256;
/// The directory that has all packages.
const ROOT: &str = "node_modules";

pub(super) fn run(dir: &Path, standing: &mut Standing, files: u32) -> Result<Seen> {
    let mut source = Contents::new();
    let contents: Vec<Vec<u8>> = (0..CONTENTS).map(|_| source.next().to_vec()).collect();
    let part = Part::begin(standing)?;
    let began = Instant::now();
    install(dir, files, &contents)?;
    let installed = began.elapsed().as_secs_f64();
    let seen = Seen::rate(f64::from(files) / installed).with("s", installed);
    let seen = part.end(standing, seen, f64::from(files))?;
    let began = Instant::now();
    standing.begin()?;
    let durable = began.elapsed().as_secs_f64();
    let root = dir.join(ROOT);
    small_files::expect(&root, files)?;
    let removed = timed(Command::new("rm").arg("-rf").arg(&root))?;
    Ok(seen.with("durable_s", durable).with("remove_s", removed))
}

/// Writes all files below `dir`.
fn install(dir: &Path, files: u32, contents: &[Vec<u8>]) -> Result<()> {
    let packages = files.div_ceil(PER_PACKAGE);
    let some = |first: u32| -> io::Result<()> {
        for package in (first..packages).step_by(THREADS as usize) {
            let numbers = package * PER_PACKAGE..files.min((package + 1) * PER_PACKAGE);
            write_package(dir, numbers, contents)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| scope.spawn(move || some(first)))
            .collect();
        for thread in threads {
            let written = thread.join().map_err(|_| panicked())?;
            written.map_err(io_error(dir.display().to_string()))?;
        }
        Ok(())
    })
}

fn write_package(
    dir: &Path,
    numbers: std::ops::Range<u32>,
    contents: &[Vec<u8>],
) -> io::Result<()> {
    let mut made = None;
    for number in numbers {
        let path = dir.join(path(number));
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            continue;
        };
        // Files of one directory follow each other.
        if made.as_deref() != Some(parent) {
            fs::create_dir_all(parent)?;
            made = Some(parent.to_owned());
        }
        let temporary = parent.join(format!(".{}-{number:08x}", name.display()));
        let mut file = File::create_new(&temporary)?;
        file.write_all(&contents[number as usize % contents.len()])?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        drop(file);
        fs::rename(&temporary, &path)?;
    }
    Ok(())
}

/// The path of a file.
fn path(number: u32) -> String {
    let (package, file) = (number / PER_PACKAGE, number % PER_PACKAGE);
    let package = match package % 5 {
        3 => format!("@scope-{:02}/package-{package:05}", package % 40),
        4 => format!(
            "package-{:05}/{ROOT}/package-{package:05}",
            package - package % 5
        ),
        _ => format!("package-{package:05}"),
    };
    let file = match file {
        0 => "package.json".to_owned(),
        1 => "README.md".to_owned(),
        2 => "LICENSE".to_owned(),
        3 => "index.js".to_owned(),
        4..=11 => format!("lib/module-{file:02}.js"),
        12..=17 => format!("dist/cjs/internal/module-{file:02}.js"),
        _ => format!("dist/esm/internal/module-{file:02}.js"),
    };
    format!("{ROOT}/{package}/{file}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_has_its_own_path_and_no_temporary_name_stays() {
        let dir = tempfile::tempdir().unwrap();
        let contents = [b"one".to_vec(), b"two".to_vec()];
        install(dir.path(), 500, &contents).unwrap();
        small_files::expect(&dir.path().join(ROOT), 500).unwrap();
        let paths: BTreeSet<_> = (0..500).map(path).collect();
        assert_eq!(paths.len(), 500);
        for (number, path) in (0..500).map(|number| (number, path(number))) {
            let found = fs::read(dir.path().join(&path)).unwrap();
            assert_eq!(found, contents[number as usize % 2], "{path}");
        }
    }
}
