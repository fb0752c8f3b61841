//! ACLs that an inode has and its source lacks.
//!
//! A new inode inherits the default ACL of its directory, and an existing one keeps its own. A copy
//! that keeps attributes has those of its source alone, so it loses the others.
//!
//! Without its access list an inode has the rights of its mode, in which the mask of the list has
//! become the bits of the owning group. So the mode becomes [`private`] first. The caller sets the
//! mode of the source at the end.

use crate::changes::Xattrs;
use crate::vfs::acl::{ACCESS, DEFAULT};
use crate::vfs::{Attr, Error, FileKind, FileSystem, Result, SetAttr};

/// Whether `xattrs` has an access list.
pub(crate) fn has_access(xattrs: &Xattrs) -> bool {
    has(xattrs, ACCESS)
}

/// Whether `xattrs` has an ACL.
pub(crate) fn has_any(xattrs: &Xattrs) -> bool {
    has(xattrs, ACCESS) || has(xattrs, DEFAULT)
}

/// The ACLs that an inode of this kind can have and that `xattrs` lacks.
pub(crate) fn absent(kind: FileKind, xattrs: &Xattrs) -> impl Iterator<Item = &'static [u8]> {
    let possible: &[&'static [u8]] = match kind {
        FileKind::Symlink => &[],
        FileKind::Directory => &[ACCESS, DEFAULT],
        _ => &[ACCESS],
    };
    let absent = |name: &&[u8]| !has(xattrs, name);
    possible.iter().copied().filter(absent)
}

/// The bits of a mode that the owner alone has.
pub(crate) fn private(perm: u32) -> u32 {
    perm & 0o700
}

/// Removes the ACLs of an inode that `xattrs` lacks. Calls `allow` before the first change. True if
/// the mode became [`private`].
///
/// # Errors
/// Those of `allow`; as [`FileSystem::setattr`] and [`FileSystem::removexattr`].
pub(crate) fn remove_absent(
    fs: &dyn FileSystem,
    attr: &Attr,
    xattrs: &Xattrs,
    allow: impl Fn() -> Result<()>,
) -> Result<bool> {
    let mut lost = false;
    for name in absent(attr.kind, xattrs) {
        match fs.getxattr(attr.ino, name) {
            Ok(_) => allow()?,
            Err(Error::NoAttribute | Error::NotSupported) => continue,
            Err(error) => return Err(error),
        }
        if name == ACCESS {
            let changes = SetAttr {
                perm: Some(private(attr.perm)),
                ..SetAttr::default()
            };
            fs.setattr(attr.ino, &changes)?;
            lost = true;
        }
        fs.removexattr(attr.ino, name)?;
    }
    Ok(lost)
}

fn has(xattrs: &Xattrs, name: &[u8]) -> bool {
    xattrs.iter().any(|(other, _)| other == name)
}
