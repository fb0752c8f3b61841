//! Decompressed copies of archives that are read several times, in unnamed files.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::error::ArchiveError;

/// The directory of copies; `None` for the directory of temporary files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scratch(pub(crate) Option<PathBuf>);

impl Scratch {
    fn file(&self) -> io::Result<File> {
        match &self.0 {
            Some(dir) => tempfile::tempfile_in(dir),
            None => tempfile::tempfile(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Kept(File);

impl Kept {
    /// Copies `plain` while `work` reads it, and then the rest.
    ///
    /// # Errors
    /// The error of `work`; `plain` cannot be read; the copy cannot be written.
    pub(crate) fn while_read<T, E: From<ArchiveError>>(
        plain: &mut dyn Read,
        scratch: &Scratch,
        work: impl FnOnce(&mut dyn Read) -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let copy = scratch.file().map_err(ArchiveError::Read)?;
        let mut tee = Tee {
            plain,
            copy: &copy,
            failed: None,
        };
        let worked = work(&mut tee)?;
        let rest = io::copy(&mut tee, &mut io::sink());
        // `work` may have passed over an error.
        if let Some(error) = tee.failed {
            return Err(ArchiveError::Read(error).into());
        }
        rest.map_err(ArchiveError::Read)?;
        Ok((Self(copy), worked))
    }

    /// Reads the copy from its start.
    pub(crate) fn reader(&self) -> Section<'_> {
        Section::new(&self.0, 0, u64::MAX)
    }
}

/// A reader that writes a copy of the bytes it reads.
struct Tee<'t> {
    plain: &'t mut dyn Read,
    copy: &'t File,
    /// The first error. Every later read fails with it too, because the copy lacks bytes.
    failed: Option<io::Error>,
}

impl Read for Tee<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.failed.is_none() {
            match self.copied(buf) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    self.failed = Some(error);
                }
                read => return read,
            }
        }
        let failed = self.failed.as_ref();
        failed.map_or(Ok(0), |error| {
            Err(io::Error::new(error.kind(), error.to_string()))
        })
    }
}

impl Tee<'_> {
    fn copied(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.plain.read(buf)?;
        let written = self.copy.write_all(buf.get(..count).unwrap_or_default());
        written.map_err(|error| {
            io::Error::new(error.kind(), format!("its temporary copy: {error}"))
        })?;
        Ok(count)
    }
}

/// A part of a file. Several can be read at the same time.
pub(crate) struct Section<'f> {
    file: &'f File,
    at: u64,
    left: u64,
}

impl<'f> Section<'f> {
    /// `len` bytes from `at` on, or all up to the end of the file.
    pub(crate) fn new(file: &'f File, at: u64, len: u64) -> Self {
        let left = len;
        Self { file, at, left }
    }
}

impl Read for Section<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        let count = self
            .file
            .read_at(buf.get_mut(..most).unwrap_or_default(), self.at)?;
        self.at = self.at.saturating_add(count as u64);
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails once between two halves.
    struct Flaky(u32);

    impl Read for Flaky {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            match self.0 {
                2 => Err(io::Error::other("broken")),
                1 | 3 => Ok(buf.len().min(4)),
                _ => Ok(0),
            }
        }
    }

    #[test]
    fn an_error_that_the_work_passes_over_is_one_of_the_copy() {
        let kept = Kept::while_read(&mut Flaky(0), &Scratch::default(), |plain| {
            let _ = io::copy(plain, &mut io::sink());
            Ok::<_, ArchiveError>(())
        });
        let error = kept.map(drop).unwrap_err().to_string();
        assert!(error.contains("broken"), "{error}");
    }
}
