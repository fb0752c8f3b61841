//! [`Unfinished`]: a file that gets its name when it is complete.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

use super::{Identity, OutputError, OutputFormat, Result, convert};
use crate::progress::OnProgress;

/// A new image in a file without its final name, in the directory of that name. Dropping it removes
/// the file.
#[derive(Debug)]
pub(crate) struct Unfinished<'p> {
    file: NamedTempFile,
    path: &'p Path,
}

impl<'p> Unfinished<'p> {
    /// An empty file, which will be called `path`.
    pub(crate) fn new(path: &'p Path) -> io::Result<Self> {
        let file = temporary(directory(path))?;
        Ok(Self { file, path })
    }

    /// Where the file is.
    pub(crate) fn place(&self) -> &Path {
        self.file.path()
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        self.file.as_file()
    }

    /// The image in another format. It is raw.
    ///
    /// # Errors
    /// [`OutputError`].
    pub(crate) fn converted(
        self,
        format: OutputFormat,
        identity: Identity,
        progress: &mut OnProgress<'_>,
    ) -> Result<Self> {
        if format == OutputFormat::Raw {
            return Ok(self);
        }
        let out = Self::new(self.path).map_err(|source| OutputError::Write {
            path: self.path.to_owned(),
            source,
        })?;
        let (raw, place) = (self.place(), out.place());
        convert(raw, place, self.path, format, identity, progress)?;
        Ok(out)
    }

    /// Makes the file durable, and then gives it its name, durably. A file that has the name is
    /// replaced.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.file().sync_all()?;
        self.file.persist(self.path).map_err(|error| error.error)?;
        File::open(directory(self.path))?.sync_all()
    }
}

/// The directory of the name `path`.
pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// A file in a directory that is removed when it is dropped, with the permissions of any new file.
pub(crate) fn temporary(dir: &Path) -> io::Result<NamedTempFile> {
    let permissions = fs::Permissions::from_mode(0o666);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".sapwood-").permissions(permissions);
    builder.tempfile_in(dir)
}
