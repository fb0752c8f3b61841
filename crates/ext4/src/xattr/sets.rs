//! The two sets of attributes of an inode: in the inode itself, and in a block.

use std::sync::Arc;

use sapwood_ext4_format::{XattrSet, xattr_block_verify, xattr_index, xattr_split_name};
use sapwood_jbd2::Buffer;
use sapwood_vfs as vfs;

use crate::inode::Inode;
use crate::seal::SealKind;
use crate::volume::Volume;
use crate::{Error, Result};

/// Kind of a validated block of attributes, see [`Buffer::kind`].
pub(super) const KIND: u8 = SealKind::Xattr as u8;

pub(super) fn damaged(inode: &Inode, reason: impl ToString) -> Error {
    Error::BadInode {
        ino: inode.ino,
        reason: format!("attributes: {}", reason.to_string()),
    }
}

/// The set in the inode.
pub(super) fn body_set(volume: &Volume, inode: &Inode) -> Result<XattrSet> {
    let state = inode.state.lock();
    XattrSet::parse_ibody(state.raw.attr_area(), volume.geometry.inodes_count())
        .map_err(|reason| damaged(inode, reason))
}

/// The block of attributes of an inode, validated, if it has one.
pub(super) fn block_of(volume: &Volume, inode: &Inode) -> Result<Option<Arc<Buffer>>> {
    let block = inode.state.lock().raw.file_acl();
    if block == 0 {
        return Ok(None);
    }
    let buffer = volume.block(block)?;
    if buffer.kind() != KIND {
        let content = buffer.read();
        let bad = |reason: String| Error::BadBlock {
            ino: inode.ino,
            block,
            reason,
        };
        if volume.geometry.metadata_csum() {
            xattr_block_verify(&content, volume.geometry.csum_seed(), block)
                .map_err(|reason| bad(reason.to_string()))?;
        }
        XattrSet::parse_block(&content, volume.geometry.inodes_count())
            .map_err(|reason| bad(reason.to_string()))?;
        buffer.set_kind(KIND);
    }
    Ok(Some(buffer))
}

/// The set in a block.
pub(super) fn parse_block(
    volume: &Volume,
    inode: &Inode,
    buffer: &Buffer,
) -> Result<(u32, XattrSet)> {
    XattrSet::parse_block(&buffer.read(), volume.geometry.inodes_count())
        .map(|(header, set)| (header.refcount.get(), set))
        .map_err(|reason| Error::BadBlock {
            ino: inode.ino,
            block: buffer.block(),
            reason: reason.to_string(),
        })
}

/// The set in the inode's block; empty without one.
pub(super) fn block_set(volume: &Volume, inode: &Inode) -> Result<XattrSet> {
    match block_of(volume, inode)? {
        Some(buffer) => Ok(parse_block(volume, inode, &buffer)?.1),
        None => Ok(XattrSet::default()),
    }
}

/// Index and name on disk of a full name.
pub(super) fn split(name: &[u8]) -> Result<(u8, &[u8])> {
    Ok(xattr_split_name(name).ok_or(vfs::Error::NotSupported)?)
}

pub(super) fn is_acl(index: u8) -> bool {
    matches!(
        index,
        xattr_index::POSIX_ACL_ACCESS | xattr_index::POSIX_ACL_DEFAULT
    )
}
