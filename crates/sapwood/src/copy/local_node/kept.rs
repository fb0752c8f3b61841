//! The attributes of the source that a node of this machine keeps: owner, xattrs, mode, times.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{LocalNode, by_path, failure};
use crate::acls;
use crate::copy::error::Result;
use crate::copy::side::{Meta, Xattrs};
use crate::shown;
use crate::vfs::Timestamp;
use crate::vfs::acl::ACCESS;

impl LocalNode {
    /// Removes the ACLs that `xattrs` lacks.
    pub(super) fn remove_other_acls(&self, xattrs: &Xattrs) -> Result<()> {
        let path = self.by_path();
        for name in acls::absent(self.meta.kind, xattrs) {
            let access = name == ACCESS;
            let name = OsStr::from_bytes(name);
            let mut none = [0; 0];
            let found = match self.opened.get() {
                Some(fd) => rustix::fs::fgetxattr(fd, name, &mut none[..]),
                None => rustix::fs::lgetxattr(&path, name, &mut none[..]),
            };
            if found.is_err() {
                continue;
            }
            if access {
                self.set_mode(acls::private(self.meta.perm))?;
            }
            let removed = match self.opened.get() {
                Some(fd) => rustix::fs::fremovexattr(fd, name),
                None => rustix::fs::lremovexattr(&path, name),
            };
            match removed {
                Err(Errno::NODATA) => {}
                other => self.on(other)?,
            }
        }
        Ok(())
    }

    pub(super) fn keep_xattrs(&self, xattrs: &Xattrs, owned: bool) -> Result<()> {
        let path = self.by_path();
        for (name, value) in xattrs {
            if !owned && name == b"security.capability" {
                continue;
            }
            let name = OsStr::from_bytes(name);
            let set = match self.opened.get() {
                Some(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()),
                None => rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty()),
            };
            match set {
                // Some namespaces belong to the superuser, some to one kind of file system. The
                // namespace `user` needs the right to write.
                Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {
                    let name = shown::name(name.as_bytes());
                    log::warn!("{}: attribute {name} not kept", self.shown);
                }
                other => self.on(other)?,
            }
        }
        Ok(())
    }

    /// Gives the node to the source's owner; false if the process has no right to.
    pub(super) fn keep_owner(&self, meta: &Meta) -> Result<bool> {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        let chown = |uid| match self.opened.get() {
            Some(fd) => rustix::fs::fchown(fd, uid, Some(gid)),
            None => rustix::fs::chownat(
                &self.base,
                self.os_name(),
                uid,
                Some(gid),
                AtFlags::SYMLINK_NOFOLLOW,
            ),
        };
        match chown(Some(uid)) {
            Ok(()) => Ok(true),
            // The group alone may be one of the user's. INVAL: a user namespace that does not know
            // the owner.
            Err(Errno::PERM | Errno::INVAL) => {
                let _ = chown(None);
                Ok(false)
            }
            Err(error) => Err(failure(&self.shown, error)),
        }
    }

    pub(super) fn set_mode(&self, perm: u32) -> Result<()> {
        let mode = Mode::from_raw_mode(perm);
        if let Some(fd) = self.opened.get() {
            return self.on(rustix::fs::fchmod(fd, mode));
        }
        // Of a special file a descriptor that opens nothing, and its path, which follows no link.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.on(rustix::fs::openat(
            &self.base,
            self.os_name(),
            flags,
            Mode::empty(),
        ))?;
        self.on(rustix::fs::chmod(by_path(&fd, OsStr::new("")), mode))
    }

    pub(super) fn set_times(&self, meta: &Meta) -> Result<()> {
        let time = |time: Timestamp| Timespec {
            tv_sec: time.sec,
            tv_nsec: time.nsec.into(),
        };
        let times = Timestamps {
            last_access: time(meta.atime),
            last_modification: time(meta.mtime),
        };
        self.on(match self.opened.get() {
            Some(fd) => rustix::fs::futimens(fd, &times),
            None => rustix::fs::utimensat(
                &self.base,
                self.os_name(),
                &times,
                AtFlags::SYMLINK_NOFOLLOW,
            ),
        })
    }
}
