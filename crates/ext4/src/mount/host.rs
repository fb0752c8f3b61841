//! The journal's calls into the engine: last changes of a transaction, checksums, release of space
//! after a commit.

use sapwood_ext4_format as format;
use sapwood_jbd2::{Buffer, Closing, Host, HostError, Request, Tid};

use crate::engine::Engine;
use crate::seal::SealKind;

impl Host for Engine {
    fn before_commit(&self, closing: &Closing<'_>) -> Result<(), HostError> {
        Ok(self.groups.write_dirty(closing)?)
    }

    fn seal(&self, buffer: &Buffer, content: &mut [u8]) {
        let Some(seal) = buffer.seal() else {
            return;
        };
        if !self.geometry.metadata_csum() {
            return;
        }
        let ino = u32::try_from(seal.owner).unwrap_or(0);
        let seed = self.geometry.inode_seed(ino, seal.extra);
        let sealed = match seal.kind {
            kind if kind == SealKind::Extent as u8 => {
                format::extent_block_seal(content, seed).map_err(|e| e.to_string())
            }
            kind if kind == SealKind::DirLeaf as u8 => {
                crate::dir::seal_leaf(&self.geometry, content, seed)
            }
            kind if kind == SealKind::HashNode as u8 => {
                crate::dir::seal_node(&self.geometry, content, seed)
            }
            kind if kind == SealKind::Xattr as u8 => {
                crate::xattr::seal_block(&self.geometry, buffer.block(), content)
            }
            kind if kind == SealKind::Orphan as u8 => {
                format::orphan_seal(content, seed, buffer.block()).map_err(|e| e.to_string())
            }
            _ => Ok(()),
        };
        if let Err(reason) = sealed {
            // A block that was validated when it was changed cannot fail here; if it does, it is
            // written with the old checksum, which readers refuse.
            log::error!("block {}: no checksum: {reason}", buffer.block());
        }
    }

    fn after_commit(&self, tid: Tid) {
        self.groups.committed(tid);
    }

    fn failed(&self, error: &sapwood_jbd2::Error) {
        self.health.fail(&error);
    }

    fn wake(&self, request: Request) {
        self.alarm.request(request);
    }
}
