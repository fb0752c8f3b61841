//! Names: directories and links, rename, removal.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::file_system::FileSystem;
use crate::error::{Error, ErrorKind, Result};
use crate::tree::{self, HeldInode};
use crate::vfs::{self, Ino, NewInode, RenameMode};
use crate::{OnProgress, Progress, Stop, progress, shown};

impl FileSystem {
    /// Creates a directory with mode `0o755`.
    ///
    /// # Errors
    /// The name exists; the parent directory does not.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with(path, 0o755)
    }

    /// Like [`create_dir`](Self::create_dir), with these permission bits, less the
    /// [umask](Self::set_umask).
    ///
    /// # Errors
    /// The name exists; the parent directory does not.
    pub fn create_dir_with(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let what = NewInode::Directory;
        self.make("create directory", path.as_ref(), what, mode & 0o7777)
    }

    /// Creates a directory and all missing ones above it.
    ///
    /// # Errors
    /// A component of the path is not a directory; no space.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_all_with(path, 0o755)
    }

    /// Like [`create_dir_all`](Self::create_dir_all), with these permission bits, less the
    /// [umask](Self::set_umask).
    ///  # Errors A component of the path is not a directory; no space.
    pub fn create_dir_all_with(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let mut made = PathBuf::new();
        for part in path.components() {
            made.push(part);
            let std::path::Component::Normal(_) = part else {
                continue;
            };
            match self.create_dir_with(&made, mode) {
                Err(error)
                    if error.kind() == ErrorKind::AlreadyExists
                        && self.metadata(&made)?.is_dir() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Creates a symbolic link at `link` that contains `target`.
    ///
    /// # Errors
    /// The name exists; the target is too long.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        self.make(
            "create symbolic link",
            link.as_ref(),
            NewInode::Symlink(target),
            0o777,
        )
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The path does not exist, or is not a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.with("read link", path.as_ref(), false, |fs, node| {
            let target = fs.readlink(node.ino())?;
            Ok(OsString::from_vec(target).into())
        })
    }

    /// Adds the name `link` to the file at `original`. A symbolic link at the end of `original` is
    /// not followed.
    ///
    /// # Errors
    /// The name exists; `original` is a directory or in another subvolume.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let link = link.as_ref();
        self.with("link", original.as_ref(), false, |fs, node| {
            let (dir, name) = tree::resolve_parent(fs, link.as_os_str().as_bytes())?;
            drop(HeldInode::new(fs, fs.link(node.ino(), dir.ino(), &name)?));
            Ok(())
        })
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// The path does not exist, or is a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent("remove", path.as_ref(), |fs, dir, name| {
            fs.unlink(dir, name)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The path does not exist, or is not an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent("remove directory", path.as_ref(), |fs, dir, name| {
            fs.rmdir(dir, name)
        })
    }

    /// Removes a directory and everything below it. A symbolic link below is removed, not followed.
    ///
    /// # Errors
    /// The first failure, with its path; earlier removals stay.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.remove_dir_all_with(path, &Stop::new(), &mut progress::ignore)
    }

    /// Like [`remove_dir_all`](Self::remove_dir_all). Reports each removed name to `progress`, as
    /// its path in the image, and the number of removed names. `stop` ends the removal early.
    ///
    /// # Errors
    /// The first failure, with its path; earlier removals stay.
    /// [`Interrupted`](crate::ErrorKind::Interrupted): `stop` ended the removal.
    pub fn remove_dir_all_with(
        &self,
        path: impl AsRef<Path>,
        stop: &Stop,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let path = path.as_ref();
        let fs = self.vfs();
        let at = Error::at("remove", path);
        let found = tree::resolve_parent(fs, path.as_os_str().as_bytes())
            .and_then(|(dir, name)| Ok((dir.child(&name)?, dir, name)))
            .and_then(|found| {
                if found.0.is_dir() {
                    Ok(found)
                } else {
                    Err(vfs::Error::NotDirectory)
                }
            });
        let (top, dir, name) = found.map_err(at)?;
        let mut done = 0;
        let shown = shown::name(path.as_os_str().as_bytes());
        let mut removed = |below: &dyn Display| {
            done += 1;
            let phase = "removed";
            progress(Progress::Done { phase, done });
            progress(Progress::Item(&format_args!("{shown}{below}")));
            if stop.is_stopped() {
                Err(vfs::Error::Interrupted)
            } else {
                Ok(())
            }
        };
        tree::remove_all(&dir, top, &name, &mut removed).map_err(|(below, error)| {
            let mut whole = path.as_os_str().to_owned().into_vec();
            whole.extend_from_slice(&below);
            Error::at("remove", Path::new(&OsString::from_vec(whole)))(error)
        })
    }

    /// Renames; replaces a file or an empty directory at `to`.
    ///
    /// # Errors
    /// The errors of rename(2); `to` in another subvolume.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_as(from.as_ref(), to.as_ref(), RenameMode::Replace)
    }

    /// Like [`rename`](Self::rename), but fails if `to` exists.
    ///
    /// # Errors
    /// The errors of rename(2); `to` exists.
    pub fn rename_no_replace(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_as(from.as_ref(), to.as_ref(), RenameMode::NoReplace)
    }

    /// Like [`rename`](Self::rename), and leaves a whiteout at `from`, in the same transaction: a
    /// character device 0/0 without permission bits, which hides the name from the lower layers of
    /// an overlay. Its owner is the [creator](Self::set_creator) of new files.
    ///
    /// # Errors
    /// The errors of rename(2); no space for the whiteout.
    pub fn rename_whiteout(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let mode = RenameMode::Whiteout {
            who: self.creator(),
            replace: true,
        };
        self.rename_as(from.as_ref(), to.as_ref(), mode)
    }

    fn rename_as(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        self.in_parent("rename", from, |fs, dir, name| {
            let (to_dir, to_name) = tree::resolve_parent(fs, to.as_os_str().as_bytes())?;
            fs.rename(dir, name, to_dir.ino(), &to_name, mode)
        })
    }

    pub(super) fn in_parent<T>(
        &self,
        action: &'static str,
        path: &Path,
        work: impl FnOnce(&dyn vfs::FileSystem, Ino, &[u8]) -> vfs::Result<T>,
    ) -> Result<T> {
        let fs = self.vfs();
        let parent = tree::resolve_parent(fs, path.as_os_str().as_bytes());
        parent
            .and_then(|(dir, name)| work(fs, dir.ino(), &name))
            .map_err(Error::at(action, path))
    }

    fn make(&self, action: &'static str, path: &Path, what: NewInode<'_>, mode: u32) -> Result<()> {
        self.in_parent(action, path, |fs, dir, name| {
            let made = fs.create(&self.creator(), dir, name, what, mode)?;
            drop(HeldInode::new(fs, made));
            Ok(())
        })
    }
}
