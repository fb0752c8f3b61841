//! References to inodes of an open image.

use super::file_system::FileSystem;
use crate::tree::HeldInode;
use crate::vfs::{self, Ino};

/// A reference to an inode that keeps the file system open.
#[derive(Debug)]
pub(super) struct Handle {
    fs: FileSystem,
    ino: Ino,
    /// The root has no references.
    counted: bool,
}

impl Handle {
    /// Takes a reference of its own to the node's inode.
    pub(super) fn of(fs: &FileSystem, node: &HeldInode<'_>) -> vfs::Result<Self> {
        let ino = node.ino();
        let counted = ino != fs.vfs().root();
        if counted {
            fs.vfs().reference(ino)?;
        }
        Ok(Self {
            fs: fs.clone(),
            ino,
            counted,
        })
    }

    pub(super) fn fs(&self) -> &FileSystem {
        &self.fs
    }

    pub(super) fn vfs(&self) -> &dyn vfs::FileSystem {
        self.fs.vfs()
    }

    pub(super) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.counted {
            self.vfs().forget(self.ino, 1);
        }
    }
}
