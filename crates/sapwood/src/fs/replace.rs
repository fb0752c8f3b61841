//! Atomic replacement of a file.

use std::path::{Path, PathBuf};

use super::file::OpenOptions;
use super::file_system::FileSystem;
use super::metadata::Metadata;
use super::operation::OperationError;
use crate::error::{Error, ErrorKind, Result};
use crate::vfs;

/// Temporary names that are tried.
const TRIES: u32 = 1000;

impl FileSystem {
    /// Replaces a whole file atomically: writes a new file, and renames it over the old one. The
    /// name always leads to the old content or to the new one, also after a crash. The new file
    /// gets mode, owner and extended attributes of the old one. Other names of the old file keep
    /// the old content. A symbolic link at the end of the path is followed. If no file exists, the
    /// new one has the mode `0o666` less the umask.
    ///
    /// # Errors
    /// The directory does not exist; `path` is no regular file; no space. The old file stays.
    pub fn replace(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let (place, old) = match self.canonicalize(path) {
            Ok(place) => {
                let old = self.symlink_metadata(&place)?;
                (place, Some(old))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => (path.to_owned(), None),
            Err(error) => return Err(error),
        };
        if let Some(old) = &old
            && !old.is_file()
        {
            let cause = if old.is_dir() {
                vfs::Error::IsDirectory
            } else {
                vfs::Error::Invalid
            };
            return Err(Error::at("replace", path)(cause));
        }
        let (new, file) = self.beside(&place)?;
        let filled = file
            .write_at(content.as_ref(), 0)
            .and_then(|()| match &old {
                Some(old) => self.like(&place, old, &new),
                None => Ok(()),
            })
            .and_then(|()| file.sync_all())
            .and_then(|()| self.rename(&new, &place));
        drop(file);
        if filled.is_err() {
            // The first error is the one to return. If this fails too, the temporary name stays.
            let _ = self.remove_file(&new);
        }
        filled
    }

    /// A new file in the directory of `place`.
    fn beside(&self, place: &Path) -> Result<(PathBuf, super::File)> {
        let options = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o666)
            .clone();
        let mut last = Error::at("replace", place)(vfs::Error::Exists);
        for number in 0..TRIES {
            let new = place.with_file_name(format!(".sapwood-new-{number}"));
            match self.open_with(&new, &options) {
                Ok(file) => return Ok((new, file)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => last = error,
                Err(error) => {
                    return Err(match error.downcast() {
                        Ok(OperationError::Path { action, source, .. }) => {
                            Error::at(action, place)(source)
                        }
                        Ok(other) => other.into(),
                        Err(error) => error,
                    });
                }
            }
        }
        Err(last)
    }

    /// Gives `new` the metadata of `old`. Mode and attributes follow the owner, because a change of
    /// the owner drops set-id bits and capabilities.
    fn like(&self, place: &Path, old: &Metadata, new: &Path) -> Result<()> {
        self.set_owner(new, Some(old.uid()), Some(old.gid()))?;
        for name in self.xattrs(place)? {
            if let Some(value) = self.xattr(place, &name)? {
                self.set_xattr(new, &name, &value)?;
            }
        }
        self.set_permissions(new, old.mode())
    }
}
