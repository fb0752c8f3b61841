//! Small files from a fixed seed, 0.2 to 12 KB each: as an archive and as a directory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context, Error, Result};
use crate::program::{output, syncfs};

/// Bytes of the smallest and the largest file.
const SIZES: (usize, usize) = (200, 12_000);
/// The directory that contains all files.
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

/// The path of a file: 100 files in a directory, 10 directories in a package.
pub(crate) fn path(number: u32) -> String {
    let (dir, package) = (number / 100, number / 1000);
    format!("{ROOT}/package-{package:03}/part-{dir:04}/file-{number:06}.js")
}

/// Writes an archive of `files` files.
///
/// # Errors
/// I/O errors of the medium.
pub(crate) fn make_archive(archive: &Path, files: u32) -> Result<()> {
    let out = BufWriter::with_capacity(1 << 20, File::create(archive).on(archive.display())?);
    write_archive(out, files).on(archive.display())
}

fn write_archive(out: impl Write, files: u32) -> io::Result<()> {
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

/// The same files in every form of which an image is made.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) files: u32,
    pub(crate) tree: PathBuf,
    pub(crate) tar: PathBuf,
    pub(crate) gzip: PathBuf,
    /// A container image whose layer is the compressed archive.
    pub(crate) oci: PathBuf,
    /// The name of this layer in `oci`.
    pub(crate) layer: String,
    /// Removes all with this value.
    _home: tempfile::TempDir,
}

impl Source {
    /// Makes `files` files on `medium`.
    ///
    /// # Errors
    /// I/O errors of the medium.
    pub(crate) fn new(medium: &Path, files: u32) -> Result<Self> {
        let home = crate::image::home(medium)?;
        let (tree, tar) = (home.path().join("tree"), home.path().join("small.tar"));
        make_archive(&tar, files)?;
        fs::create_dir(&tree)?;
        output(
            Command::new("tar")
                .arg("-xf")
                .arg(&tar)
                .arg("-C")
                .arg(&tree),
        )?;
        output(Command::new("gzip").arg("-kn").arg(&tar))?;
        let [gzip, oci] = ["small.tar.gz", "small.oci.tar"].map(|name| home.path().join(name));
        let layer = crate::oci::make(&oci, &tar, &gzip)?;
        // So that nothing is written back during a measurement.
        syncfs(&tree)?;
        Ok(Self {
            files,
            tree,
            tar,
            gzip,
            oci,
            layer,
            _home: home,
        })
    }
}

/// Fails unless there are exactly `files` files in and below a directory.
///
/// # Errors
/// There are fewer or more, or a directory cannot be read.
pub(crate) fn expect(dir: &Path, files: u32) -> Result<()> {
    let found = count(dir).on(dir.display())?;
    if found != u64::from(files) {
        let dir = dir.display();
        return Err(Error::new(format!("{found} of {files} files are in {dir}")));
    }
    Ok(())
}

fn count(dir: &Path) -> io::Result<u64> {
    let mut files = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
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
    fn every_form_has_every_file_once() {
        let [mut one, mut other] = [Vec::new(), Vec::new()];
        write_archive(&mut one, 250).unwrap();
        write_archive(&mut other, 250).unwrap();
        assert_eq!(one, other, "the same each time");
        let mut archive = tar::Archive::new(&*one);
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(found, (0..250).map(path).collect::<Vec<_>>());
        let medium = tempfile::tempdir().unwrap();
        let source = Source::new(medium.path(), 120).unwrap();
        expect(&source.tree, 120).unwrap();
        fs::remove_file(source.tree.join(path(7))).unwrap();
        assert!(expect(&source.tree, 120).is_err());
        assert!(source.gzip.metadata().unwrap().len() < source.tar.metadata().unwrap().len());
        drop(source);
        assert_eq!(count(medium.path()).unwrap(), 0);
    }
}
