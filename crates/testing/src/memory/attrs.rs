//! Attributes, extended attributes and flags.

use super::state::{Body, MemoryInode, State};
use sapwood_vfs::rules::{self, XattrClass};
use sapwood_vfs::{
    Attr, Error, Fsxattr, Ino, InodeFlags, Result, SetAttr, SetTime, SetXattrMode, Timestamp, acl,
};

/// Greatest length of name and value together: they must fit in one item of a leaf of 16 KiB.
const XATTR_ITEM_MAX: usize = 16384 - 101 - 25 - 30;

/// Flags of an inode after a property was set; `None` if the property has no meaning for it.
fn property_flags(node: &MemoryInode, name: &[u8], value: &[u8]) -> Result<Option<InodeFlags>> {
    match name {
        rules::COMPRESSION => rules::set_compression(node.kind, node.flags, value),
        _ => Err(Error::Invalid),
    }
}

impl State {
    pub(super) fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.node(ino)?.attr(ino))
    }

    pub(super) fn setattr(&mut self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let node = self.node(ino)?;
        self.writable(ino)?;
        rules::check_setattr(node.kind, node.flags, changes)?;
        if *changes == SetAttr::default() {
            return self.getattr(ino);
        }
        let now = Timestamp::now();
        if let Some(size) = changes.size {
            self.change_content(ino, |content| content.truncate(size))?;
            self.node_mut(ino)?.mtime = now;
        }
        let node = self.node_mut(ino)?;
        node.ctime = changes.ctime.unwrap_or(now);
        node.perm = rules::setattr_perm(node.kind, node.perm, changes);
        if changes.perm.is_some()
            && let Some(access) = node.xattrs.get_mut(acl::ACCESS)
            && let Some(changed) = acl::chmod(access, node.perm)?
        {
            *access = changed;
        }
        if rules::drops_capability(changes) {
            node.xattrs.remove(rules::CAPABILITY);
        }
        node.uid = changes.uid.unwrap_or(node.uid);
        node.gid = changes.gid.unwrap_or(node.gid);
        node.btime = changes.btime.unwrap_or(node.btime);
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        node.atime = changes.atime.map_or(node.atime, time);
        node.mtime = changes.mtime.map_or(node.mtime, time);
        self.getattr(ino)
    }

    pub(super) fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.node(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::Invalid),
        }
    }

    /// Fails for the stub of a subvolume, which has no attributes.
    fn has_xattrs(&self, ino: Ino) -> Result<()> {
        if self.node(ino)?.stub {
            Err(Error::NotSupported)
        } else {
            Ok(())
        }
    }

    pub(super) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.has_xattrs(ino)?;
        rules::xattr_class(name)?;
        let value = self.node(ino)?.xattrs.get(name);
        value.cloned().ok_or(Error::NoAttribute)
    }

    pub(super) fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.node(ino)?.xattrs.keys().cloned().collect())
    }

    pub(super) fn setxattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: SetXattrMode,
    ) -> Result<()> {
        self.has_xattrs(ino)?;
        let class = rules::xattr_class(name)?;
        if value.len() > rules::XATTR_VALUE_MAX {
            return Err(Error::AttributeTooLarge);
        }
        self.writable(ino)?;
        let node = self.node(ino)?;
        let is_acl = matches!(class, XattrClass::AccessAcl | XattrClass::DefaultAcl);
        let removes = is_acl && acl::Acl::parse(value)?.is_none();
        rules::check_xattr_change(node.kind, node.flags, class, removes)?;
        if name.len() + value.len() > XATTR_ITEM_MAX {
            return Err(Error::NoSpace);
        }
        let property = match class {
            XattrClass::Btrfs => match property_flags(node, name, value)? {
                Some(flags) => Some(flags),
                None => return Ok(()),
            },
            _ => None,
        };
        let exists = node.xattrs.contains_key(name);
        // Linux ignores these modes for an ACL.
        match mode {
            SetXattrMode::Create if exists && !is_acl => return Err(Error::Exists),
            SetXattrMode::Replace if !exists && !is_acl => return Err(Error::NoAttribute),
            _ => {}
        }
        let stored = match class {
            XattrClass::AccessAcl => {
                let change = acl::set_access(value, node.perm)?;
                self.node_mut(ino)?.perm = change.perm;
                change.stored
            }
            XattrClass::DefaultAcl => acl::set_default(value)?,
            XattrClass::Btrfs => Some(value.to_vec()).filter(|value| !value.is_empty()),
            _ => Some(value.to_vec()),
        };
        let node = self.node_mut(ino)?;
        match stored {
            Some(value) => node.xattrs.insert(name.to_vec(), value),
            None => node.xattrs.remove(name),
        };
        node.flags = property.unwrap_or(node.flags);
        node.ctime = Timestamp::now();
        Ok(())
    }

    pub(super) fn removexattr(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        self.has_xattrs(ino)?;
        let class = rules::xattr_class(name)?;
        self.writable(ino)?;
        let node = self.node(ino)?;
        rules::check_xattr_change(node.kind, node.flags, class, true)?;
        let property = match class {
            XattrClass::Btrfs => match property_flags(node, name, b"")? {
                Some(flags) => Some(flags),
                None => return Ok(()),
            },
            _ => None,
        };
        if !node.xattrs.contains_key(name) {
            // On Linux, removing an ACL that does not exist is no error.
            return match class {
                XattrClass::AccessAcl | XattrClass::DefaultAcl => Ok(()),
                _ => Err(Error::NoAttribute),
            };
        }
        let node = self.node_mut(ino)?;
        node.xattrs.remove(name);
        node.flags = property.unwrap_or(node.flags);
        node.ctime = Timestamp::now();
        Ok(())
    }

    pub(super) fn set_flags(&mut self, ino: Ino, asked: InodeFlags) -> Result<()> {
        self.writable(ino)?;
        let attr = self.getattr(ino)?;
        let flags = rules::set_flags(attr.kind, attr.size, attr.flags, asked)?;
        let node = self.node_mut(ino)?;
        node.flags = flags;
        if flags.contains(InodeFlags::COMPRESS) {
            let property = node.xattrs.entry(rules::COMPRESSION.to_vec());
            property.or_insert_with(|| b"zlib".to_vec());
        } else {
            node.xattrs.remove(rules::COMPRESSION);
        }
        node.ctime = Timestamp::now();
        Ok(())
    }

    pub(super) fn fsxattr(&self, ino: Ino) -> Result<Fsxattr> {
        Ok(rules::fsxattr_of(self.node(ino)?.flags))
    }

    pub(super) fn set_fsxattr(&mut self, ino: Ino, value: &Fsxattr) -> Result<()> {
        let flags = rules::flags_of_fsxattr(self.node(ino)?.flags, value)?;
        self.set_flags(ino, flags)
    }
}
