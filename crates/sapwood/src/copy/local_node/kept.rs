//! The attributes of the source that a node of this machine keeps: owner, xattrs, mode, times.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Gid, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::{LocalNode, failure};
use crate::acls;
use crate::copy::error::Result;
use crate::copy::side::{Meta, Xattrs};
use crate::host::{NO_ATTRIBUTE, mode};
use crate::shown;
use crate::vfs::Timestamp;
use crate::vfs::acl::ACCESS;

impl LocalNode {
    /// Removes the ACLs that `xattrs` lacks.
    pub(super) fn remove_other_acls(&self, xattrs: &Xattrs) -> Result<()> {
        let host = self.host();
        for name in acls::absent(self.meta.kind, xattrs) {
            let access = name == ACCESS;
            let name = OsStr::from_bytes(name);
            if host.xattr(name, &mut []).is_err() {
                continue;
            }
            if access {
                self.set_mode(acls::private(self.meta.perm))?;
            }
            match host.remove_xattr(name) {
                Err(NO_ATTRIBUTE) => {}
                other => self.on(other)?,
            }
        }
        Ok(())
    }

    pub(super) fn keep_xattrs(&self, xattrs: &Xattrs, owned: bool) -> Result<()> {
        let host = self.host();
        for (name, value) in xattrs {
            if !owned && name == b"security.capability" {
                continue;
            }
            let name = OsStr::from_bytes(name);
            match host.set_xattr(name, value) {
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
        self.on(self.host().set_mode(mode(perm)))
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
