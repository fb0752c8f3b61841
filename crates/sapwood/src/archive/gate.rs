//! Changes on behalf of a process whose rights the kernel did not check.

use super::entry::{Attributes, Xattrs};
use super::error::ArchiveError;
use crate::acls;
use crate::tree::HeldInode;
use crate::vfs::permission::{Capabilities, Process};
use crate::vfs::{
    Attr, Content, Credentials, Error, FileKind, FileSystem, Ino, NewInode, Result, SetAttr,
    SetTime, SetXattrMode, Timestamp, acl,
};

const SET_ID: u32 = 0o6000;
const SET_GID: u32 = 0o2000;

/// The process that an archive is extracted for, in a mounted file system.
#[derive(Clone, Copy)]
pub(crate) struct Client<'a> {
    /// Its rights.
    pub(crate) process: &'a Process,
    /// Its umask.
    pub(crate) umask: u32,
    /// The entries are a copy that keeps what the client may keep, as `cp -a`.
    pub(crate) copies: bool,
    /// Called after a change that the kernel may have cached otherwise.
    pub(crate) changed: &'a dyn Fn(Change<'_>),
}

impl Client<'_> {
    /// Whether inodes get the owners of their entries.
    pub(super) fn restores_owners(&self) -> bool {
        self.process.can(Capabilities::CHOWN)
    }

    /// Whether an inode may be made with another owner from the start, because the client keeps
    /// every right to it.
    pub(super) fn creates_for_others(&self) -> bool {
        let keeps = Capabilities::FOWNER | Capabilities::DAC_OVERRIDE;
        self.restores_owners() && self.process.can(keeps)
    }

    /// Whether the other entries are still extracted after this error.
    pub(super) fn continues_after(&self, error: &ArchiveError) -> bool {
        match error {
            ArchiveError::Inode { source, .. } if self.copies => {
                !matches!(source, Error::NoSpace | Error::Quota | Error::ReadOnly)
            }
            ArchiveError::Inode { source, .. } => {
                matches!(source, Error::NotPermitted | Error::AccessDenied)
            }
            // The first name of the inode was left out.
            ArchiveError::NoTarget { .. } | ArchiveError::Truncated(_) => self.copies,
            _ => false,
        }
    }

    /// Owner, group and mode that an inode gets when the client sets the attributes of an entry on
    /// it. Without a mode, the inode keeps the mode with which it was made, or the mode of its ACL.
    /// `found`: the inode is a directory that was there before.
    pub(super) fn attributes(
        &self,
        now: &Attr,
        wanted: &Attributes,
        found: bool,
    ) -> (u32, u32, Option<u32>) {
        let process = self.process;
        if self.restores_owners() {
            let perm = process.settable(now.kind, wanted.gid, wanted.perm);
            return (wanted.uid, wanted.gid, Some(perm));
        }
        if !self.copies {
            // The directory and the umask gave it its mode; a new directory was made accessible. A
            // default ACL alone replaces what the directory gave.
            let kept = if found || acls::has_any(&wanted.xattrs) {
                (wanted.perm & !self.umask & 0o777) | (now.perm & SET_GID)
            } else {
                now.perm & (wanted.perm | !0o700)
            };
            let settles = now.kind == FileKind::Directory && kept != now.perm;
            let settles = settles && !acls::has_access(&wanted.xattrs);
            return (now.uid, now.gid, settles.then_some(kept));
        }
        let keeps = now.uid == process.uid && process.is_member(wanted.gid);
        let gid = if keeps { wanted.gid } else { now.gid };
        let owned = (now.uid, gid) == (wanted.uid, wanted.gid);
        let perm = if owned {
            wanted.perm
        } else {
            wanted.perm & !SET_ID
        };
        (now.uid, gid, Some(process.settable(now.kind, gid, perm)))
    }
}

/// A change that the kernel has to learn of.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "fuse"), expect(dead_code, reason = "of mounts alone"))]
pub(crate) enum Change<'c> {
    /// A name in this directory was added, removed or replaced.
    Name(Ino, &'c [u8]),
    /// Attributes of an inode changed.
    Attributes(Ino),
}

/// The inode to create for a kind. `rdev` counts for devices, `target` for symbolic links.
pub(crate) fn new_inode(kind: FileKind, rdev: u64, target: &[u8]) -> NewInode<'_> {
    match kind {
        FileKind::Regular => NewInode::Regular,
        FileKind::Directory => NewInode::Directory,
        FileKind::Symlink => NewInode::Symlink(target),
        FileKind::CharDevice => NewInode::CharDevice(rdev),
        FileKind::BlockDevice => NewInode::BlockDevice(rdev),
        FileKind::Fifo => NewInode::Fifo,
        FileKind::Socket => NewInode::Socket,
    }
}

/// The attributes that an inode gets when its content is complete.
pub(crate) struct Final<'x> {
    /// Owner and group, where they change.
    pub(crate) owner: (Option<u32>, Option<u32>),
    /// The mode; `None` if it stays.
    pub(crate) perm: Option<u32>,
    /// Times; `None` if one stays.
    pub(crate) atime: Option<Timestamp>,
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) xattrs: &'x Xattrs,
}

/// A file system that is changed for a client, whose permissions are checked, or by its owner.
pub(crate) struct Gate<'a> {
    fs: &'a dyn FileSystem,
    client: Option<Client<'a>>,
}

impl<'a> Gate<'a> {
    pub(crate) fn new(fs: &'a dyn FileSystem, client: Option<Client<'a>>) -> Self {
        Self { fs, client }
    }

    /// The inode of a name in a directory. A symbolic link is not followed.
    ///
    /// # Errors
    /// `AccessDenied`: the client may not search the directory. The errors of
    /// [`FileSystem::lookup`].
    pub(super) fn child(&self, dir: &HeldInode<'a>, name: &[u8]) -> Result<Option<HeldInode<'a>>> {
        if let Some(client) = self.client {
            let attr = self.fs.getattr(dir.ino())?;
            client
                .process
                .check_search(&attr, || self.access_list(dir.ino()))?;
        }
        match dir.child(name) {
            Ok(node) => Ok(Some(node)),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes an inode.
    ///
    /// # Errors
    /// `AccessDenied` and `NotPermitted`: the client has no right to. The errors of
    /// [`FileSystem::create`].
    pub(crate) fn create(
        &self,
        who: &Credentials,
        dir: &HeldInode<'a>,
        name: &[u8],
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<HeldInode<'a>> {
        self.check_change(dir)?;
        if let Some(client) = self.client {
            client.process.check_new(&what)?;
        }
        let made = self.fs.create(who, dir.ino(), name, what, perm)?;
        Ok(HeldInode::new(self.fs, made))
    }

    /// Makes a regular file with its content and times, if that can be done at once.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    pub(crate) fn create_filled(
        &self,
        who: &Credentials,
        dir: &HeldInode<'a>,
        name: &[u8],
        perm: u32,
        content: &Content<'_>,
    ) -> Result<Option<HeldInode<'a>>> {
        self.check_change(dir)?;
        if let Some(client) = self.client {
            client.process.check_new(&NewInode::Regular)?;
        }
        let made = (self.fs).create_filled(who, dir.ino(), name, perm, content)?;
        Ok(made.map(|made| HeldInode::new(self.fs, made)))
    }

    /// Adds a name to an inode.
    ///
    /// # Errors
    /// `AccessDenied` and `NotPermitted`: the client has no right to. The errors of
    /// [`FileSystem::link`].
    pub(crate) fn link(
        &self,
        node: &HeldInode<'a>,
        dir: &HeldInode<'a>,
        name: &[u8],
    ) -> Result<()> {
        self.check_change(dir)?;
        if let Some(client) = self.client {
            client.process.check_link(&self.fs.getattr(node.ino())?)?;
        }
        let entry = self.fs.link(node.ino(), dir.ino(), name)?;
        self.fs.forget(entry.ino(), 1);
        Ok(())
    }

    /// Removes the name of `node` from a directory. If it is a directory, it must be empty.
    ///
    /// # Errors
    /// `AccessDenied` and `NotPermitted`: the client has no right to. The errors of
    /// [`FileSystem::unlink`] and [`FileSystem::rmdir`].
    pub(super) fn remove(
        &self,
        dir: &HeldInode<'a>,
        node: &HeldInode<'a>,
        name: &[u8],
    ) -> Result<()> {
        self.check_change(dir)?;
        if let Some(client) = self.client {
            let attr = self.fs.getattr(dir.ino())?;
            client.process.check_sticky(&attr, node.attr())?;
        }
        if node.is_dir() {
            self.fs.rmdir(dir.ino(), name)?
        } else {
            self.fs.unlink(dir.ino(), name)?
        }
        self.changed(Change::Name(dir.ino(), name));
        Ok(())
    }

    /// Changes attributes of an inode that the client must own.
    ///
    /// # Errors
    /// `NotPermitted`: the client does not own the inode. The errors of [`FileSystem::setattr`].
    pub(crate) fn set(&self, ino: Ino, changes: &SetAttr) -> Result<()> {
        self.check_owner(ino)?;
        self.fs.setattr(ino, changes).map(drop)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `NotPermitted`: the client has no right to. The errors of [`FileSystem::setxattr`].
    pub(super) fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8]) -> Result<()> {
        if let Some(client) = self.client {
            let attr = self.fs.getattr(ino)?;
            client.process.check_xattr(&attr, name)?;
        }
        self.fs.setxattr(ino, name, value, SetXattrMode::Any)
    }

    /// Removes the ACLs that `xattrs` lacks from an inode, which the client must own. Returns
    /// whether the inode has lost its mode with them.
    ///
    /// # Errors
    /// `NotPermitted`: the client does not own the inode. The errors of [`acls::remove_absent`].
    pub(crate) fn remove_other_acls(&self, node: &HeldInode<'a>, xattrs: &Xattrs) -> Result<bool> {
        let allow = || self.check_owner(node.ino());
        acls::remove_absent(self.fs, node.attr(), xattrs, allow)
    }

    /// Gives an inode its last attributes: the owner first, because a change of it drops
    /// capabilities and set-id bits, and the mode last. `refused` decides on an extended attribute
    /// that cannot be set.
    ///
    /// # Errors
    /// `NotPermitted`: the client has no right to. An error that `refused` returns. The errors of
    /// [`FileSystem::setattr`].
    pub(crate) fn finish(
        &self,
        ino: Ino,
        last: &Final<'_>,
        refused: &mut dyn FnMut(&[u8], Error) -> Result<()>,
    ) -> Result<()> {
        let (uid, gid) = last.owner;
        let mut changes = SetAttr {
            uid,
            gid,
            atime: last.atime.map(SetTime::To),
            mtime: last.mtime.map(SetTime::To),
            ..SetAttr::default()
        };
        // A client may lose its rights to an inode with the owner, and its further changes are
        // refused then.
        let loses = uid.is_some()
            && self
                .client
                .is_some_and(|client| !client.creates_for_others());
        if last.xattrs.is_empty() && !loses {
            changes.perm = last.perm;
            return self.set(ino, &changes);
        }
        self.set(ino, &changes)?;
        for (name, value) in last.xattrs {
            let set = self.set_xattr(ino, name, value);
            set.or_else(|error| refused(name, error))?;
        }
        if last.perm.is_none() {
            return Ok(());
        }
        let mode = SetAttr {
            perm: last.perm,
            ..SetAttr::default()
        };
        self.set(ino, &mode)
    }

    fn check_owner(&self, ino: Ino) -> Result<()> {
        let Some(client) = self.client else {
            return Ok(());
        };
        if client.process.owns(&self.fs.getattr(ino)?) {
            Ok(())
        } else {
            Err(Error::NotPermitted)
        }
    }

    /// Reports a change to the client's callback.
    pub(super) fn changed(&self, change: Change<'_>) {
        if let Some(client) = self.client {
            (client.changed)(change);
        }
    }

    fn check_change(&self, dir: &HeldInode<'a>) -> Result<()> {
        let Some(client) = self.client else {
            return Ok(());
        };
        let attr = self.fs.getattr(dir.ino())?;
        client
            .process
            .check_change(&attr, || self.access_list(dir.ino()))
    }

    fn access_list(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        match self.fs.getxattr(ino, acl::ACCESS) {
            Ok(value) => Ok(Some(value)),
            Err(Error::NoAttribute | Error::NotSupported) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
