//! The small files of several workloads, from a fixed seed: 0.2 to 12 KB each.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{on, run_program, syncfs};
use crate::{Error, Result};

/// Number of files of a directory.
const PER_DIRECTORY: u32 = 100;
/// Number of directories of a directory.
const PER_PACKAGE: u32 = 10;
/// Bytes of the smallest and the largest file.
pub(crate) const SIZES: (usize, usize) = (200, 12_000);
/// The directory that contains all files of an archive.
pub(crate) const ROOT: &str = "small";

/// The contents of the files, one after the other.
pub(crate) struct Contents {
    random: fastrand::Rng,
    buffer: Vec<u8>,
}

impl Contents {
    pub(crate) fn new() -> Self {
        Self {
            random: fastrand::Rng::with_seed(19),
            buffer: vec![0; SIZES.1],
        }
    }

    /// The content of the next file. Similar to text: it compresses, but no two files are the same.
    pub(crate) fn next(&mut self) -> &[u8] {
        let size = self.random.usize(SIZES.0..SIZES.1);
        let part = &mut self.buffer[..size];
        part.fill_with(|| b"etaoin shrdlu\n{}();"[self.random.usize(0..19)]);
        part
    }
}

/// The path of a file below the directory that has [`ROOT`].
pub(crate) fn path(number: u32) -> String {
    let dir = number / PER_DIRECTORY;
    let package = dir / PER_PACKAGE;
    format!("{ROOT}/package-{package:03}/part-{dir:04}/file-{number:06}.js")
}

/// Writes the archive of `files` files.
pub(crate) fn write_archive(out: impl Write, files: u32) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    let mut contents = Contents::new();
    for number in 0..files {
        let content = contents.next();
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000 + u64::from(number));
        archive.append_data(&mut header, path(number), content)?;
    }
    archive.into_inner()?.flush()
}

/// Makes the archive in a new file.
///
/// # Errors
/// The error of the medium.
pub(crate) fn make_archive(archive: &Path, files: u32) -> Result<()> {
    let file = File::create(archive).map_err(on(archive))?;
    write_archive(BufWriter::with_capacity(1 << 20, file), files).map_err(on(archive))
}

/// Extracts the archive into a new directory, makes the result durable, so that nothing writes it
/// back during a measurement, and returns the path of its [`ROOT`].
///
/// # Errors
/// The error of the medium.
pub(crate) fn extract(archive: &Path, dir: &Path) -> Result<PathBuf> {
    fs::create_dir(dir).map_err(on(dir))?;
    let mut tar = Command::new("tar");
    run_program(tar.arg("-xf").arg(archive).arg("-C").arg(dir))?;
    syncfs(dir)?;
    Ok(dir.join(ROOT))
}

/// Fails unless there are exactly `files` files in and below a directory.
///
/// # Errors
/// There are fewer or more, or a directory cannot be read.
pub(crate) fn expect(dir: &Path, files: u32) -> Result<()> {
    let found = count(dir)?;
    if found == u64::from(files) {
        Ok(())
    } else {
        Err(Error::Refused(format!(
            "{found} of {files} files are in {}",
            dir.display()
        )))
    }
}

fn count(dir: &Path) -> Result<u64> {
    let mut files = 0;
    for entry in fs::read_dir(dir).map_err(on(dir))? {
        let entry = entry.map_err(on(dir))?;
        let kind = entry.file_type().map_err(on(&entry.path()))?;
        files += if kind.is_dir() {
            count(&entry.path())?
        } else {
            u64::from(kind.is_file())
        };
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_every_file_once_and_is_the_same_each_time() {
        let [mut one, mut other] = [Vec::new(), Vec::new()];
        write_archive(&mut one, 250).unwrap();
        write_archive(&mut other, 250).unwrap();
        assert_eq!(one, other);
        let mut archive = tar::Archive::new(&*one);
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(found, (0..250).map(path).collect::<Vec<_>>());
    }

    #[test]
    fn a_missing_file_is_noticed() {
        let home = tempfile::tempdir().unwrap();
        let archive = home.path().join("archive");
        make_archive(&archive, 120).unwrap();
        let root = extract(&archive, &home.path().join("tree")).unwrap();
        expect(&root, 120).unwrap();
        fs::remove_file(home.path().join("tree").join(path(7))).unwrap();
        assert!(expect(&root, 120).is_err());
    }
}
