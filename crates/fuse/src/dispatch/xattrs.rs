//! Extended attributes.

use sapwood_vfs::{Error, SetAttr, SetXattrMode};

use super::{Dispatcher, errno};
use crate::node::NodeId;
use crate::request::{Reply, XattrReply};

impl Dispatcher {
    /// Sets an extended attribute, with the flags of `setxattr`. With `kill_setgid` the file loses
    /// its set-group-id bit: a caller that is not in its group sets its ACL.
    ///
    /// # Errors
    /// `EINVAL` for other flags; errors of the engine.
    pub(crate) fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: i32,
        kill_setgid: bool,
    ) -> Reply<()> {
        let _open = self.enter()?;
        let mode = match flags {
            0 => SetXattrMode::Any,
            libc::XATTR_CREATE => SetXattrMode::Create,
            libc::XATTR_REPLACE => SetXattrMode::Replace,
            _ => return Err(libc::EINVAL),
        };
        let ino = self.map.ino(node);
        self.fs.setxattr(ino, name, value, mode).map_err(errno)?;
        if kill_setgid {
            // The kernel holds the inode's lock: the mode does not change in between.
            let perm = self.fs.getattr(ino).map_err(errno)?.perm;
            if perm & libc::S_ISGID != 0 {
                let set = SetAttr {
                    perm: Some(perm & !libc::S_ISGID),
                    ..SetAttr::default()
                };
                self.fs.setattr(ino, &set).map_err(errno)?;
            }
        }
        self.settle(ino)
    }

    /// Value of an extended attribute, at most `size` bytes; 0 asks for its size.
    ///
    /// # Errors
    /// `ERANGE` if it is larger; errors of the engine.
    pub(crate) fn getxattr(&self, node: NodeId, name: &[u8], size: u32) -> Reply<XattrReply> {
        let _open = self.enter()?;
        match self.fs.getxattr(self.map.ino(node), name) {
            Ok(value) => xattr_reply(value, size),
            // For an ACL, the kernel would fail the access check with "not supported".
            Err(Error::NotSupported) if name.starts_with(b"system.posix_acl_") => {
                Err(libc::ENODATA)
            }
            Err(error) => Err(error.errno()),
        }
    }

    /// Names of all extended attributes, each ended by a NUL, at most `size` bytes; 0 asks
    /// for the size.
    ///
    /// # Errors
    /// `ERANGE` if they are longer; errors of the engine.
    pub(crate) fn listxattr(&self, node: NodeId, size: u32) -> Reply<XattrReply> {
        let _open = self.enter()?;
        let names = self.fs.listxattr(self.map.ino(node)).map_err(errno)?;
        let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
        for name in names {
            list.extend_from_slice(&name);
            list.push(0);
        }
        xattr_reply(list, size)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn removexattr(&self, node: NodeId, name: &[u8]) -> Reply<()> {
        let _open = self.enter()?;
        let ino = self.map.ino(node);
        self.fs.removexattr(ino, name).map_err(errno)?;
        self.settle(ino)
    }
}

fn xattr_reply(value: Vec<u8>, size: u32) -> Reply<XattrReply> {
    let len = u32::try_from(value.len()).map_err(|_| libc::E2BIG)?;
    match size {
        0 => Ok(XattrReply::Size(len)),
        size if size < len => Err(libc::ERANGE),
        _ => Ok(XattrReply::Data(value)),
    }
}
