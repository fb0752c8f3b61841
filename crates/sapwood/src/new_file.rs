//! [`NewFile`]: a file that gets its name when it is complete.
//!
//! # How it works
//! - The file has no name while it is written (`O_TMPFILE`), so it vanishes with the process,
//!   however that ends. [`NewFile::finish`] makes it durable and links its name.
//! - If the host's file system has no such files, or `/proc` cannot name them, the file has a
//!   temporary name. A program that a signal ends calls [`abandon`], which removes these names. The
//!   program is notified before the first such name exists ([`before_temporary_names`]): until
//!   then, a signal that ends the process at once leaves nothing.
//! - If a file has the name already, it is an error, unless the caller asks to replace the file.
//!   That file is locked from the start, so an image in use is never replaced. No system call links
//!   a file over another one, so the new file gets a temporary name, which is renamed at once.
//!   another one: the new file gets a temporary name, which is renamed at once.

mod renamed;

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use sapwood_block::{Device, FileDevice, OpenOptions};
use uuid::Uuid;

use crate::host::{Found, by_descriptor, link, rename_new, unnamed};
use renamed::Renamed;

/// Prefix of temporary names.
const PREFIX: &str = ".sapwood-";

/// Why a file was not made, or did not get its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewFileError {
    /// The name exists, and the caller does not want to replace it.
    #[error("{}: exists", .0.display())]
    Exists(PathBuf),
    /// The name belongs to a directory, device, pipe or socket.
    #[error("{}: is no regular file", .0.display())]
    NotRegular(PathBuf),
    /// The name is a symbolic link whose target does not exist.
    #[error("{}: is a link to nothing, and is not written through", .0.display())]
    Dangling(PathBuf),
    /// Another program replaced the file while the new one was written.
    #[error("{}: another program replaced it meanwhile", .0.display())]
    Changed(PathBuf),
    /// The file that has the name is in use, or cannot be opened.
    #[error(transparent)]
    Old(sapwood_block::Error),
    /// The host refused or failed.
    #[error("{}: {source}", path.display())]
    Host {
        /// The file.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
}

type Result<T, E = NewFileError> = std::result::Result<T, E>;

/// A file that gets its name when it is complete. Dropping it removes the file.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    /// The path of its name: `path`, with the symbolic links at its end resolved.
    place: PathBuf,
    file: File,
    temporary: Option<Temporary>,
    old: Option<Old>,
}

/// The file that is replaced.
#[derive(Debug)]
struct Old {
    /// Device and inode.
    id: (u64, u64),
    permissions: fs::Permissions,
    /// Holds the lock.
    _lock: FileDevice,
}

impl NewFile {
    /// An empty file, which will be called `path`. With `replace` it may replace a regular file,
    /// whose permissions it gets.
    ///
    /// # Errors
    /// [`NewFileError`]: the name exists, and is in use, no file, or not to be replaced; the
    /// directory does not exist or may not be written to.
    pub fn create(path: impl AsRef<Path>, replace: bool) -> Result<Self> {
        Self::made(path.as_ref(), replace, unnamed)
    }

    fn made(
        path: &Path,
        replace: bool,
        unnamed: impl FnOnce(&Path) -> Option<File>,
    ) -> Result<Self> {
        let host = |source| host(path, source);
        let old = old(path, replace)?;
        let place = match old {
            Some(_) => path.canonicalize().map_err(host)?,
            None => path.to_owned(),
        };
        let dir = directory(&place);
        let (file, temporary) = opened(unnamed(dir), dir).map_err(host)?;
        if let Some(old) = &old {
            let set = file.set_permissions(old.permissions.clone());
            set.map_err(host)?;
        }
        Ok(Self {
            path: path.to_owned(),
            place,
            file,
            temporary,
            old,
        })
    }

    /// An empty file in the directory of this one. It never gets a name, and errors call it by the
    /// name of this one.
    ///
    /// # Errors
    /// [`NewFileError::Host`].
    pub(crate) fn scratch(&self) -> Result<Self> {
        let dir = directory(&self.place);
        let unnamed = match self.temporary {
            Some(_) => None,
            None => unnamed(dir),
        };
        let (file, temporary) = opened(unnamed, dir).map_err(|source| host(&self.path, source))?;
        Ok(Self {
            path: self.path.clone(),
            place: self.place.clone(),
            file,
            temporary,
            old: None,
        })
    }

    /// The name that it will have, as the caller gave it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the file.
    pub(crate) fn directory(&self) -> &Path {
        directory(&self.place)
    }

    /// The file, open for reading and writing.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file as a device, which errors call [`path`](Self::path).
    ///
    /// # Errors
    /// The host refuses a further descriptor.
    pub fn device(&self) -> Result<Arc<dyn Device>, sapwood_block::Error> {
        let opened = match &self.temporary {
            Some(temporary) => FileDevice::open(&temporary.0.shown, OpenOptions::default()),
            None => FileDevice::open(by_descriptor(&self.file), OpenOptions::default()),
        };
        Renamed::over(opened, &self.path)
    }

    /// Like [`device`](Self::device), after the file was emptied and has `size` zero bytes.
    ///
    /// # Errors
    /// The host refuses a further descriptor, or files of that size.
    pub fn device_of(&self, size: u64) -> Result<Arc<dyn Device>, sapwood_block::Error> {
        let sized = self.file.set_len(0).and_then(|()| self.file.set_len(size));
        let name = self.path.display().to_string();
        sized.map_err(|error| sapwood_block::Error::open(&name, error))?;
        self.device()
    }

    /// Makes the file durable, and then gives it its name, durably.
    ///
    /// # Errors
    /// [`NewFileError`]: the host refuses; a file got the name, or another one replaced the file
    /// that was to be replaced. The file is gone then.
    pub fn finish(self) -> Result<()> {
        let host = |source| host(&self.path, source);
        self.file.sync_all().map_err(host)?;
        let named = match (self.temporary, &self.old) {
            (None, None) => link(&self.file, &self.place),
            (Some(temporary), None) => temporary.rename(&self.place, false),
            (temporary, Some(old)) => {
                let now = self.place.symlink_metadata().map_err(host)?;
                if old.id != (now.dev(), now.ino()) {
                    return Err(NewFileError::Changed(self.path));
                }
                let temporary = match temporary {
                    Some(temporary) => temporary,
                    None => Temporary::link(&self.file, directory(&self.place)).map_err(host)?,
                };
                temporary.rename(&self.place, true)
            }
        };
        match named {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(NewFileError::Exists(self.path));
            }
            named => named.map_err(host)?,
        }
        let dir = File::open(directory(&self.place)).and_then(|dir| dir.sync_all());
        dir.map_err(host)
    }
}

fn host(path: &Path, source: io::Error) -> NewFileError {
    NewFileError::Host {
        path: path.to_owned(),
        source,
    }
}

/// The file that has the name, locked against every other user.
fn old(path: &Path, replace: bool) -> Result<Option<Old>> {
    let found = match path.metadata() {
        Ok(found) if found.is_file() => found,
        Ok(_) => return Err(NewFileError::NotRegular(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match path.symlink_metadata() {
                Ok(_) => Err(NewFileError::Dangling(path.to_owned())),
                Err(_) => Ok(None),
            };
        }
        Err(error) => return Err(host(path, error)),
    };
    match FileDevice::open(path, OpenOptions::default()) {
        Err(busy @ sapwood_block::Error::Busy { .. }) => Err(NewFileError::Old(busy)),
        _ if !replace => Err(NewFileError::Exists(path.to_owned())),
        Err(error) => Err(NewFileError::Old(error)),
        Ok(lock) => {
            let now = path.metadata().map_err(|source| host(path, source))?;
            let id = (found.dev(), found.ino());
            if id != (now.dev(), now.ino()) {
                Err(NewFileError::Changed(path.to_owned()))
            } else {
                Ok(Some(Old {
                    id,
                    permissions: now.permissions(),
                    _lock: lock,
                }))
            }
        }
    }
}

/// The directory of the name `path`.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// The file without a name, or one with a temporary name.
fn opened(unnamed: Option<File>, dir: &Path) -> io::Result<(File, Option<Temporary>)> {
    match unnamed {
        Some(file) => Ok((file, None)),
        None => {
            let (file, temporary) = Temporary::create(dir)?;
            Ok((file, Some(temporary)))
        }
    }
}

/// The names that [`abandon`] removes. Locked while a name is made or given up.
static TEMPORARY: Mutex<Vec<Arc<Name>>> = Mutex::new(Vec::new());

static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Calls `prepare` before a file gets a temporary name, each time. Only the first call counts.
pub fn before_temporary_names(prepare: fn()) {
    let _ = BEFORE.set(prepare);
}

/// A name of a file that is removed unless another file took it. Removing it allocates nothing.
#[derive(Debug)]
struct Name {
    path: CString,
    /// The name, for errors.
    shown: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl Name {
    fn remove(&self) {
        let same = rustix::fs::lstat(&*self.path).is_ok_and(|stat| Found::of(&stat).id == self.id);
        if same && let Err(error) = rustix::fs::unlink(&*self.path) {
            log::warn!("{}: not removed: {error}", self.shown.display());
        }
    }
}

/// A temporary name. Dropping it removes the name.
#[derive(Debug)]
struct Temporary(Arc<Name>);

impl Temporary {
    /// Makes a file with a temporary name.
    fn create(dir: &Path) -> io::Result<(File, Self)> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        Self::named(dir, |path| {
            let opened = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666));
            Ok(File::from(opened?))
        })
    }

    /// Gives a temporary name to a file without one.
    fn link(file: &File, dir: &Path) -> io::Result<Self> {
        let linked = Self::named(dir, |path| {
            link(file, path)?;
            file.try_clone()
        });
        linked.map(|(_, temporary)| temporary)
    }

    fn named(dir: &Path, make: impl Fn(&Path) -> io::Result<File>) -> io::Result<(File, Self)> {
        if let Some(prepare) = BEFORE.get() {
            prepare();
        }
        let mut names = TEMPORARY.lock();
        loop {
            let mut name = OsString::from(PREFIX);
            name.push(Uuid::new_v4().simple().to_string());
            let path = dir.join(name);
            let file = match make(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            };
            let found = file.metadata()?;
            let name = Arc::new(Name {
                path: CString::new(path.as_os_str().as_bytes())?,
                shown: path,
                id: (found.dev(), found.ino()),
            });
            names.push(Arc::clone(&name));
            return Ok((file, Self(name)));
        }
    }

    /// Renames the file to its own name. Only with `replace` may another file have that name.
    fn rename(self, place: &Path, replace: bool) -> io::Result<()> {
        let mut names = TEMPORARY.lock();
        let path = &*self.0.path;
        let renamed = if replace {
            rustix::fs::rename(path, place)
        } else {
            rename_new(path, place)
        };
        if renamed.is_ok() {
            names.retain(|name| !Arc::ptr_eq(name, &self.0));
        }
        drop(names);
        Ok(renamed?)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let mut names = TEMPORARY.lock();
        let before = names.len();
        names.retain(|name| !Arc::ptr_eq(name, &self.0));
        if names.len() < before {
            self.0.remove();
        }
    }
}

/// Removes all unfinished files that have a temporary name, and calls `end`, which ends the
/// process. No file gets a name meanwhile.
pub fn abandon(end: impl FnOnce()) {
    let mut names = TEMPORARY.lock();
    for name in names.drain(..) {
        name.remove();
    }
    end();
}

/// Like [`abandon`], for a process without free memory: allocates nothing. A name that another
/// thread is just making stays.
pub fn abandon_without_memory(end: impl FnOnce()) {
    if let Some(names) = TEMPORARY.try_lock() {
        for name in names.iter() {
            name.remove();
        }
        end();
    } else {
        end();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sapwood_testing::machine::{UNNAMED_FILES, left_out};

    use super::*;

    type Unnamed = fn(&Path) -> Option<File>;

    /// With files that have no name, and without.
    const WAYS: [Unnamed; 2] = [unnamed, |_| None];

    fn names(dir: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_when_it_is_complete() {
        if left_out(&[UNNAMED_FILES]) {
            return;
        }
        for (way, temporaries) in WAYS.into_iter().zip([0, 1]) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("f");
            let new = NewFile::made(&path, false, way).unwrap();
            assert_eq!(names(dir.path()).len(), temporaries);
            new.device_of(8192).unwrap().write_at(0, b"text").unwrap();
            new.finish().unwrap();
            assert_eq!(names(dir.path()), ["f"]);
            assert!(fs::read(&path).unwrap().starts_with(b"text\0"));
            drop(NewFile::made(&dir.path().join("g"), false, way).unwrap());
            assert_eq!(names(dir.path()), ["f"]);
        }
    }

    #[test]
    fn an_existing_file_is_replaced_only_on_request() {
        for way in WAYS {
            let dir = tempfile::tempdir().unwrap();
            let (path, link) = (dir.path().join("f"), dir.path().join("l"));
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            std::os::unix::fs::symlink("f", &link).unwrap();
            let refused = NewFile::made(&path, false, way).unwrap_err();
            assert!(matches!(refused, NewFileError::Exists(_)), "{refused}");
            NewFile::made(&link, true, way).unwrap().finish().unwrap();
            assert_eq!(names(dir.path()), ["f", "l"]);
            assert_eq!(fs::read(&path).unwrap(), b"");
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o640);
            assert!(link.symlink_metadata().unwrap().is_symlink());
        }
    }

    #[test]
    fn a_file_in_use_is_never_replaced() {
        for way in WAYS {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("f");
            fs::write(&path, "old").unwrap();
            let user = FileDevice::open(&path, OpenOptions::read_only()).unwrap();
            for replace in [false, true] {
                let refused = NewFile::made(&path, replace, way).unwrap_err();
                assert!(matches!(refused, NewFileError::Old(_)), "{refused}");
            }
            drop(user);
            let new = NewFile::made(&path, true, way).unwrap();
            assert!(FileDevice::open(&path, OpenOptions::read_only()).is_err());
            new.finish().unwrap();
        }
    }

    #[test]
    fn a_file_that_appears_meanwhile_stays() {
        for way in WAYS {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("f");
            let new = NewFile::made(&path, false, way).unwrap();
            fs::write(&path, "other").unwrap();
            let refused = new.finish().unwrap_err();
            assert!(matches!(refused, NewFileError::Exists(_)), "{refused}");
            let new = NewFile::made(&path, true, way).unwrap();
            fs::write(dir.path().join("g"), "third").unwrap();
            fs::rename(dir.path().join("g"), &path).unwrap();
            let refused = new.finish().unwrap_err();
            assert!(matches!(refused, NewFileError::Changed(_)), "{refused}");
            assert_eq!(fs::read(&path).unwrap(), b"third");
            assert_eq!(names(dir.path()), ["f"]);
        }
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let refused = NewFile::create(dir.path(), true).unwrap_err();
        assert!(matches!(refused, NewFileError::NotRegular(_)), "{refused}");
        let link = dir.path().join("l");
        std::os::unix::fs::symlink("nothing", &link).unwrap();
        let refused = NewFile::create(&link, true).unwrap_err();
        assert!(matches!(refused, NewFileError::Dangling(_)), "{refused}");
        assert!(NewFile::create(dir.path().join("no/f"), false).is_err());
    }
}
