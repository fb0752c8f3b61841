//! Changing mode, owner, times and extended attributes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::file_system::FileSystem;
use super::metadata::Times;
use crate::error::Result;
use crate::vfs::{self, SetAttr, SetXattrMode};

impl FileSystem {
    /// Sets permission, set-id and sticky bits (`0o7777`).
    ///
    /// # Errors
    /// The path does not exist; the file is immutable.
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let perm = Some(mode & 0o7777);
        let changes = SetAttr {
            perm,
            ..SetAttr::default()
        };
        self.change("change the mode of", path.as_ref(), true, &changes)
    }

    /// Sets owner and group, as far as they are named. A symbolic link at the end is not followed.
    /// Set-id bits are cleared, as chown(2) does.
    ///
    /// # Errors
    /// The path does not exist; the file is immutable.
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let changes = SetAttr {
            uid,
            gid,
            kill_setid: true,
            ..SetAttr::default()
        };
        self.change("change the owner of", path.as_ref(), false, &changes)
    }

    /// Sets times.
    ///
    /// # Errors
    /// The path does not exist; the file is immutable.
    pub fn set_times(&self, path: impl AsRef<Path>, times: Times) -> Result<()> {
        self.change("set the times of", path.as_ref(), true, &times.changes())
    }

    /// The value of an extended attribute by its full name (`user.x`), if it exists. A symbolic
    /// link at the end is not followed.
    ///
    /// # Errors
    /// The path does not exist; the namespace is unknown.
    pub fn xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
    ) -> Result<Option<Vec<u8>>> {
        self.with(
            "read attributes of",
            path.as_ref(),
            false,
            |fs, node| match fs.getxattr(node.ino(), name.as_ref().as_bytes()) {
                Ok(value) => Ok(Some(value)),
                Err(vfs::Error::NoAttribute) => Ok(None),
                Err(error) => Err(error),
            },
        )
    }

    /// Full names of all extended attributes. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// The path does not exist.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.with("read attributes of", path.as_ref(), false, |fs, node| {
            let names = fs.listxattr(node.ino())?;
            Ok(names.into_iter().map(OsString::from_vec).collect())
        })
    }

    /// Sets an extended attribute. A symbolic link at the end is not followed. An ACL is validated,
    /// and the mode changes with it.
    ///
    /// # Errors
    /// The path does not exist; the namespace is unknown; the value finds no space.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<OsStr>,
        value: &[u8],
    ) -> Result<()> {
        self.with("set an attribute of", path.as_ref(), false, |fs, node| {
            fs.setxattr(
                node.ino(),
                name.as_ref().as_bytes(),
                value,
                SetXattrMode::Any,
            )
        })
    }

    /// Removes an extended attribute. A symbolic link at the end is not followed.
    ///
    /// # Errors
    /// The path or the attribute does not exist.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        self.with(
            "remove an attribute of",
            path.as_ref(),
            false,
            |fs, node| fs.removexattr(node.ino(), name.as_ref().as_bytes()),
        )
    }

    fn change(
        &self,
        action: &'static str,
        path: &Path,
        follow: bool,
        changes: &SetAttr,
    ) -> Result<()> {
        self.with(action, path, follow, |fs, node| {
            fs.setattr(node.ino(), changes).map(drop)
        })
    }
}
