//! Steps that the operations share.

use std::sync::Arc;

use super::engine::{AttributeChange, Engine, Inode};
use crate::rules::{self, XattrClass};
use crate::{
    Entry, Error, FileKind, Ino, InodeFlags, Result, SetAttr, SetXattrMode, SyncKind, acl,
};

/// Steps that the operations share, for every engine. Operations on subvolumes use them, too.
pub trait Steps: Engine {
    /// Fails if the mount refuses changes.
    fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.refuses_changes() {
            Err(Error::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// The inode with this number, unless it is being deleted.
    ///
    /// # Errors
    /// `Stale`.
    fn live(&self, ino: Ino) -> Result<Arc<Self::Inode>> {
        let inode = self.inode_by_number(ino)?;
        if inode.is_dying() {
            Err(Error::Stale)
        } else {
            Ok(inode)
        }
    }

    /// The regular file with this number.
    ///
    /// # Errors
    /// `IsDirectory`, `Invalid`.
    fn regular(&self, ino: Ino) -> Result<Arc<Self::Inode>> {
        let inode = self.live(ino)?;
        match inode.kind() {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    /// The directory with this number.
    ///
    /// # Errors
    /// `NotDirectory`.
    fn directory(&self, ino: Ino) -> Result<Arc<Self::Inode>> {
        let inode = self.live(ino)?;
        rules::check_directory(inode.kind())?;
        Ok(inode)
    }

    /// The inode with this number, if it can have extended attributes.
    ///
    /// # Errors
    /// `NotSupported`.
    fn with_attributes(&self, ino: Ino) -> Result<Arc<Self::Inode>> {
        let inode = self.live(ino)?;
        if inode.takes_attributes() {
            Ok(inode)
        } else {
            Err(Error::NotSupported)
        }
    }

    /// Takes a reference for the caller. Fails if the inode was deleted meanwhile.
    fn entry(&self, inode: &Arc<Self::Inode>) -> Result<Entry> {
        inode.refer();
        if inode.is_dying() {
            return Err(Error::Stale);
        }
        Ok(Entry {
            attr: self.getattr(inode),
        })
    }

    /// Makes a change durable if the inode is synchronous (`chattr +S`, `+D`).
    fn sync_if_asked(&self, inode: &Arc<Self::Inode>) -> Result<()> {
        let wanted = match inode.kind() {
            FileKind::Directory => InodeFlags::SYNC | InodeFlags::DIRSYNC,
            _ => InodeFlags::SYNC,
        };
        if inode.flags().intersects(wanted) {
            self.fsync(inode, SyncKind::All)
        } else {
            Ok(())
        }
    }

    /// Renews the access time if it is older than the last change, or older than a day.
    fn accessed(&self, inode: &Arc<Self::Inode>) -> Result<()> {
        if self.keeps_access_time(inode) {
            return Ok(());
        }
        let now = self.now();
        let due = rules::access_time_is_due(inode.times(), now);
        if due && !inode.flags().contains(InodeFlags::NOATIME) {
            self.set_access_time(inode, now)
        } else {
            Ok(())
        }
    }

    /// Removes the privileges that a write by this caller clears: set-id bits and the file
    /// capability. The caller holds the I/O lock exclusively.
    fn strip_privileges(&self, inode: &Arc<Self::Inode>, kill_setid: bool) -> Result<()> {
        let perm = inode.perm();
        let kept = if kill_setid {
            rules::kill_setid(inode.kind(), perm)
        } else {
            perm
        };
        let capability = self.has_capability(inode)?;
        if kept == perm && !capability {
            Ok(())
        } else {
            self.set_privileges(inode, kept, capability)
        }
    }

    /// `setattr` with at least one change.
    fn change_attributes(&self, inode: &Arc<Self::Inode>, changes: &SetAttr) -> Result<()> {
        inode.check_changeable()?;
        let _io = inode.lock_exclusive();
        rules::check_setattr(inode.kind(), inode.flags(), changes)?;
        if let Some(size) = changes.size {
            inode.check_content_changeable()?;
            self.truncate(inode, size)?;
        }
        let stored = match changes.perm {
            Some(_) => self.getxattr(inode, acl::ACCESS)?,
            None => None,
        };
        let perm = rules::setattr_perm(inode.kind(), inode.perm(), changes);
        let access = stored
            .map(|stored| acl::chmod(&stored, perm))
            .transpose()
            .map_err(|reason| self.damaged_acl(inode, reason))?;
        let strip = rules::drops_capability(changes)
            && inode.kind() == FileKind::Regular
            && self.has_capability(inode)?;
        self.setattr(inode, changes, access, strip)
    }

    /// `setxattr` of an ACL, which may change the mode, or be equivalent to the mode. The caller
    /// holds the I/O lock exclusively.
    fn set_acl(
        &self,
        inode: &Arc<Self::Inode>,
        name: &[u8],
        class: XattrClass,
        value: &[u8],
    ) -> Result<()> {
        let refused = |reason| match reason {
            acl::AclError::Version(_) => Error::NotSupported,
            _ => Error::Invalid,
        };
        let (stored, perm) = match class {
            XattrClass::AccessAcl => {
                let wanted = acl::set_access(value, inode.perm()).map_err(refused)?;
                (wanted.stored, Some(wanted.perm))
            }
            _ => (acl::set_default(value).map_err(refused)?, None),
        };
        rules::check_xattr_change(inode.kind(), inode.flags(), class, stored.is_none())?;
        self.change_xattr(
            inode,
            AttributeChange {
                name,
                class,
                value: stored.as_deref(),
                mode: SetXattrMode::Any,
                perm,
            },
        )
    }
}

impl<E: Engine> Steps for E {}
