//! Permission checks for a front end that does them itself.
//!
//! With FUSE the kernel checks. A daemon that works for a process without the kernel in between
//! applies the rules of `path_resolution(7)`, `acl(5)`, `unlink(2)`, `link(2)` and `xattr(7)`.

use bitflags::bitflags;

use crate::acl::{Acl, Tag};
use crate::rules::{self, CAPABILITY, XattrClass};
use crate::{Attr, Credentials, Error, FileKind, NewInode, Result};

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
/// `w` and `x`: the rights in a directory that a change of its names needs.
const CHANGE: u32 = 0o3;
/// `x` of a directory: looking a name up.
const SEARCH: u32 = 0o1;

bitflags! {
    /// Capabilities with their numbers of `capabilities(7)`, as in `CapEff` of `/proc/PID/status`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Capabilities: u64 {
        /// May change owners.
        const CHOWN = 1 << 0;
        /// Bypasses the permission bits.
        const DAC_OVERRIDE = 1 << 1;
        /// May read and search every directory.
        const DAC_READ_SEARCH = 1 << 2;
        /// Counts as the owner of every inode.
        const FOWNER = 1 << 3;
        /// May keep set-id bits.
        const FSETID = 1 << 4;
        /// May set `trusted.` and `security.` attributes.
        const SYS_ADMIN = 1 << 21;
        /// May make device nodes.
        const MKNOD = 1 << 27;
        /// May set file capabilities.
        const SETFCAP = 1 << 31;
    }
}

/// The process that a change is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities in the file system's user namespace.
    pub capabilities: Capabilities,
}

impl Process {
    /// Whether it has this capability.
    #[must_use]
    pub fn can(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    /// Whether it is in this group.
    #[must_use]
    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the process may change mode, times and ACLs, as only an owner may.
    #[must_use]
    pub fn owns(&self, attr: &Attr) -> bool {
        self.uid == attr.uid || self.can(Capabilities::FOWNER)
    }

    /// The credentials of an inode that it makes.
    #[must_use]
    pub fn credentials(&self, umask: u32) -> Credentials {
        Credentials {
            uid: self.uid,
            gid: self.gid,
            umask,
            keep_setgid: self.can(Capabilities::FSETID),
        }
    }

    /// Whether the mode or ACL of an inode grants all of `want` (`rwx`). `acl` reads the value of
    /// its access list and is called only if that counts.
    ///
    /// # Errors
    /// The errors of `acl`; `Corrupt` for an invalid list.
    pub fn is_granted(
        &self,
        attr: &Attr,
        want: u32,
        acl: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<bool> {
        if self.uid == attr.uid {
            return Ok(grants(attr.perm >> 6, want));
        }
        // Without bits for the group class no entry of a list grants anything.
        if attr.perm & 0o070 != 0
            && let Some(value) = acl()?
        {
            let list = Acl::parse(&value).map_err(Error::corrupt)?;
            if let Some(list) = list {
                return Ok(self.is_granted_by(&list, attr, want));
            }
        }
        let shift = if self.is_member(attr.gid) { 3 } else { 0 };
        Ok(grants(attr.perm >> shift, want))
    }

    /// The algorithm of `acl(5)`, for a process that is not the owner.
    fn is_granted_by(&self, list: &Acl, attr: &Attr, want: u32) -> bool {
        let find = |tag| list.entries().iter().find(|entry| entry.tag == tag);
        let mask = find(Tag::Mask).map_or(0o7, |entry| entry.perm);
        if let Some(named) = find(Tag::User(self.uid)) {
            return grants(named.perm & mask, want);
        }
        let mut in_group = false;
        for entry in list.entries() {
            let member = match entry.tag {
                Tag::GroupObj => self.is_member(attr.gid),
                Tag::Group(gid) => self.is_member(gid),
                _ => false,
            };
            if member && grants(entry.perm & mask, want) {
                return true;
            }
            in_group |= member;
        }
        !in_group && find(Tag::Other).is_some_and(|entry| grants(entry.perm, want))
    }

    /// Checks that it may look names up in a directory.
    ///
    /// # Errors
    /// `AccessDenied`; the errors of [`is_granted`](Self::is_granted).
    pub fn check_search(
        &self,
        dir: &Attr,
        acl: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        let all = Capabilities::DAC_OVERRIDE | Capabilities::DAC_READ_SEARCH;
        self.check(dir, SEARCH, all, acl)
    }

    /// Checks that it may add names to a directory, and remove names.
    ///
    /// # Errors
    /// `AccessDenied`; the errors of [`is_granted`](Self::is_granted).
    pub fn check_change(
        &self,
        dir: &Attr,
        acl: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        self.check(dir, CHANGE, Capabilities::DAC_OVERRIDE, acl)
    }

    fn check(
        &self,
        dir: &Attr,
        want: u32,
        bypass: Capabilities,
        acl: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<()> {
        if self.capabilities.intersects(bypass) || self.is_granted(dir, want, acl)? {
            Ok(())
        } else {
            Err(Error::AccessDenied)
        }
    }

    /// Checks the sticky bit of a directory in which it may otherwise remove names.
    ///
    /// # Errors
    /// `NotPermitted`.
    pub fn check_sticky(&self, dir: &Attr, victim: &Attr) -> Result<()> {
        let kept = dir.perm & STICKY != 0 && self.uid != dir.uid && !self.owns(victim);
        if kept {
            Err(Error::NotPermitted)
        } else {
            Ok(())
        }
    }

    /// Checks that it may make an inode of this kind.
    ///
    /// # Errors
    /// `NotPermitted` for a device node.
    pub fn check_new(&self, what: &NewInode<'_>) -> Result<()> {
        let device = matches!(what, NewInode::CharDevice(_) | NewInode::BlockDevice(_));
        if device && !self.can(Capabilities::MKNOD) {
            Err(Error::NotPermitted)
        } else {
            Ok(())
        }
    }

    /// Checks that it may add a name to an inode, as with `fs.protected_hardlinks`.
    ///
    /// # Errors
    /// `NotPermitted` for an inode of another owner.
    pub fn check_link(&self, attr: &Attr) -> Result<()> {
        if self.owns(attr) {
            Ok(())
        } else {
            Err(Error::NotPermitted)
        }
    }

    /// Checks that it may set the attribute `name` of an inode.
    ///
    /// # Errors
    /// `NotPermitted`; for a `user.` attribute of another owner's file also if it grants writing.
    pub fn check_xattr(&self, attr: &Attr, name: &[u8]) -> Result<()> {
        let allowed = match rules::xattr_class(name)? {
            XattrClass::Trusted => self.can(Capabilities::SYS_ADMIN),
            XattrClass::Security if name == CAPABILITY => self.can(Capabilities::SETFCAP),
            XattrClass::Security => self.can(Capabilities::SYS_ADMIN),
            // In a sticky directory only the owner may set `user.` attributes.
            XattrClass::User if attr.kind != FileKind::Directory || attr.perm & STICKY == 0 => {
                self.uid == attr.uid || self.can(Capabilities::DAC_OVERRIDE)
            }
            _ => self.owns(attr),
        };
        if allowed {
            Ok(())
        } else {
            Err(Error::NotPermitted)
        }
    }

    /// The bits of `perm` that it may give an inode of this kind in group `gid`.
    #[must_use]
    pub fn settable(&self, kind: FileKind, gid: u32, perm: u32) -> u32 {
        let keeps = self.is_member(gid) || self.can(Capabilities::FSETID);
        match kind {
            FileKind::Directory | FileKind::Regular if !keeps => perm & !SETGID,
            FileKind::Directory | FileKind::Regular => perm,
            _ => perm & !(SETUID | SETGID),
        }
    }
}

fn grants(bits: u32, want: u32) -> bool {
    bits & want == want
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::AclEntry;
    use crate::{Ino, InodeFlags, Timestamp};

    fn dir(perm: u32, uid: u32, gid: u32) -> Attr {
        let time = Timestamp::default();
        Attr {
            ino: Ino(2),
            kind: FileKind::Directory,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            generation: 0,
            blksize: 4096,
            flags: InodeFlags::empty(),
            layout: 0,
        }
    }

    fn user(uid: u32, groups: &[u32]) -> Process {
        Process {
            uid,
            gid: uid,
            groups: groups.to_vec(),
            capabilities: Capabilities::empty(),
        }
    }

    fn root() -> Process {
        Process {
            capabilities: Capabilities::all(),
            ..user(0, &[])
        }
    }

    fn may_change(process: &Process, dir: &Attr) -> bool {
        process.check_change(dir, || Ok(None)).is_ok()
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        assert!(may_change(&user(7, &[]), &dir(0o700, 7, 8)));
        // The owner's bits count for the owner although the other bits grant more.
        assert!(!may_change(&user(7, &[8]), &dir(0o077, 7, 8)));
        assert!(may_change(&user(9, &[8]), &dir(0o030, 7, 8)));
        assert!(!may_change(&user(9, &[8]), &dir(0o703, 7, 8)));
        assert!(may_change(&user(9, &[]), &dir(0o703, 7, 8)));
        assert!(!may_change(&user(9, &[]), &dir(0o702, 7, 8)));
        assert!(may_change(&root(), &dir(0, 7, 8)));
        // Root without capabilities is any user.
        assert!(!may_change(&user(0, &[]), &dir(0o700, 7, 8)));
    }

    #[test]
    fn an_access_list_decides_for_all_but_the_owner() {
        let entry = |tag, perm| AclEntry { tag, perm };
        let list = Acl::new(vec![
            entry(Tag::UserObj, 7),
            entry(Tag::User(20), 7),
            entry(Tag::User(21), 0),
            entry(Tag::GroupObj, 0),
            entry(Tag::Group(30), 3),
            entry(Tag::Mask, 3),
            entry(Tag::Other, 3),
        ]);
        let value = list.map(|list| list.to_bytes()).unwrap_or_default();
        let dir = dir(0o733, 7, 8);
        let may = |process: &Process| process.check_change(&dir, || Ok(Some(value.clone())));
        for (uid, groups, expected) in [
            (20, &[][..], true),
            (21, &[30], false),
            (22, &[30], true),
            (22, &[8], false),
            (22, &[8, 30], true),
            (22, &[], true),
        ] {
            assert_eq!(
                may(&user(uid, groups)).is_ok(),
                expected,
                "{uid} {groups:?}"
            );
        }
        let broken = user(22, &[]).check_change(&dir, || Ok(Some(vec![9])));
        assert!(matches!(broken, Err(Error::Corrupt(_))));
    }

    #[test]
    fn a_sticky_directory_keeps_files_of_others() {
        let tmp = dir(0o1777, 0, 0);
        let mine = dir(0o644, 7, 7);
        assert_eq!(user(7, &[]).check_sticky(&tmp, &mine), Ok(()));
        assert_eq!(
            user(8, &[]).check_sticky(&tmp, &mine),
            Err(Error::NotPermitted)
        );
        assert_eq!(user(8, &[]).check_sticky(&dir(0o1777, 8, 8), &mine), Ok(()));
        assert_eq!(user(8, &[]).check_sticky(&dir(0o777, 0, 0), &mine), Ok(()));
        assert_eq!(root().check_sticky(&tmp, &mine), Ok(()));
    }

    #[test]
    fn privileges_need_their_capability() {
        let (one, mine) = (user(7, &[8]), dir(0o644, 7, 7));
        for (name, allowed) in [
            (&b"user.x"[..], true),
            (b"trusted.x", false),
            (b"security.selinux", false),
            (CAPABILITY, false),
            (b"system.posix_acl_access", true),
        ] {
            assert_eq!(one.check_xattr(&mine, name).is_ok(), allowed, "{name:?}");
            assert_eq!(root().check_xattr(&mine, name), Ok(()));
        }
        let mut writer = user(9, &[]);
        writer.capabilities = Capabilities::DAC_OVERRIDE;
        assert_eq!(writer.check_xattr(&mine, b"user.x"), Ok(()));
        assert!(
            writer
                .check_xattr(&mine, b"system.posix_acl_access")
                .is_err()
        );
        assert!(writer.check_xattr(&dir(0o1777, 7, 7), b"user.x").is_err());
        assert!(one.check_new(&NewInode::CharDevice(1)).is_err());
        assert_eq!(one.check_new(&NewInode::Fifo), Ok(()));
        assert!(user(9, &[]).check_link(&mine).is_err());
        let regular = FileKind::Regular;
        assert_eq!(one.settable(regular, 8, 0o6755), 0o6755);
        assert_eq!(one.settable(regular, 9, 0o6755), 0o4755);
        assert_eq!(root().settable(regular, 9, 0o6755), 0o6755);
        assert_eq!(root().settable(FileKind::Fifo, 9, 0o6755), 0o755);
    }
}
