//! Changes of extended attributes.

use super::engine::{AttributeChange, Engine, Inode};
use super::shared::Steps;
use crate::rules::{self, XattrClass};
use crate::{Error, Ino, Result, SetXattrMode};

/// Sets an attribute. See [`FileSystem::setxattr`](crate::FileSystem::setxattr).
pub(super) fn set<E: Engine>(
    engine: &E,
    ino: Ino,
    (name, value): (&[u8], &[u8]),
    mode: SetXattrMode,
) -> Result<()> {
    engine.check_writable()?;
    let inode = engine.with_attributes(ino)?;
    let class = rules::xattr_class(name)?;
    engine.check_xattr(class, name, value)?;
    inode.check_changeable()?;
    {
        let _io = inode.lock_exclusive();
        let checked = || rules::check_xattr_change(inode.kind(), inode.flags(), class, false);
        match class {
            XattrClass::AccessAcl | XattrClass::DefaultAcl => {
                engine.set_acl(&inode, name, class, value)?;
            }
            XattrClass::Btrfs => {
                checked()?;
                engine.set_property(&inode, name, value, mode)?;
            }
            _ => {
                checked()?;
                let change = AttributeChange {
                    name,
                    class,
                    value: Some(value),
                    mode,
                    perm: None,
                };
                engine.change_xattr(&inode, change)?;
            }
        }
    }
    engine.sync_if_asked(&inode)
}

/// Removes an attribute. See [`FileSystem::removexattr`](crate::FileSystem::removexattr).
pub(super) fn remove<E: Engine>(engine: &E, ino: Ino, name: &[u8]) -> Result<()> {
    engine.check_writable()?;
    let inode = engine.with_attributes(ino)?;
    let class = rules::xattr_class(name)?;
    inode.check_changeable()?;
    {
        let _io = inode.lock_exclusive();
        rules::check_xattr_change(inode.kind(), inode.flags(), class, true)?;
        let mode = SetXattrMode::Replace;
        if class == XattrClass::Btrfs {
            engine.set_property(&inode, name, b"", mode)?;
        } else if engine.getxattr(&inode, name)?.is_some() {
            let change = AttributeChange {
                name,
                class,
                value: None,
                mode,
                perm: None,
            };
            engine.change_xattr(&inode, change)?;
        } else if !matches!(class, XattrClass::AccessAcl | XattrClass::DefaultAcl) {
            // Removing an ACL that is equivalent to the mode is not an error.
            return Err(Error::NoAttribute);
        }
    }
    engine.sync_if_asked(&inode)
}
