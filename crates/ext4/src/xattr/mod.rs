//! Extended attributes: in the inode, in a block that inodes share, in inodes of their own.

use std::sync::Arc;

use sapwood_ext4_format::Geometry;
use sapwood_jbd2::Handle;
use sapwood_vfs::SetXattrMode;

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result};

fn none<T>() -> Result<T> {
    Err(Error::Vfs(sapwood_vfs::Error::NotSupported))
}

/// Value of an attribute by its full name. The caller holds `io` shared.
///
/// # Errors
/// The attributes are damaged, the device.
pub(crate) fn get(engine: &Engine, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let _ = (engine, inode, name);
    none()
}

/// Full names of all. The caller holds `io` shared.
///
/// # Errors
/// As [`get`].
pub(crate) fn list(engine: &Engine, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let _ = (engine, inode);
    none()
}

/// Credits that [`set_in`] needs for a value of `len` bytes.
pub(crate) fn credits(engine: &Engine, inode: &Inode, len: usize) -> u32 {
    let _ = (engine, inode, len);
    0
}

/// Sets or removes (`None`) an attribute within a handle; no rules are applied. The caller holds `io` exclusively (or the
/// inode is new) and stores the inode.
///
/// # Errors
/// No space (`NoSpace`), `AttributeTooLarge`, damage.
pub(crate) fn set_in(
    engine: &Engine,
    h: &Handle,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<()> {
    let _ = (engine, h, inode, name, value);
    none()
}

/// `setxattr`: rules, ACLs and mode, handle, store.
///
/// # Errors
/// See [`setxattr`](sapwood_vfs::FileSystem::setxattr).
pub(crate) fn set(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    name: &[u8],
    value: &[u8],
    mode: SetXattrMode,
) -> Result<()> {
    let _ = (engine, inode, name, value, mode);
    none()
}

/// `removexattr`.
///
/// # Errors
/// See [`removexattr`](sapwood_vfs::FileSystem::removexattr).
pub(crate) fn remove(engine: &Arc<Engine>, inode: &Arc<Inode>, name: &[u8]) -> Result<()> {
    let _ = (engine, inode, name);
    none()
}

/// Frees all attributes of an inode that is being deleted; restarts the handle as needed.
///
/// # Errors
/// As [`get`].
pub(crate) fn drop_all(engine: &Engine, h: &mut Handle, inode: &Inode) -> Result<()> {
    let _ = (engine, h, inode);
    none()
}

/// Puts the checksum into a block of attributes.
pub(crate) fn seal_block(
    geometry: &Geometry,
    block: u64,
    content: &mut [u8],
) -> Result<(), String> {
    let _ = (geometry, block, content);
    Ok(())
}

/// Credits that [`set_in`] needs for a value of `len` bytes on a new inode.
pub(crate) fn credits_of_new(engine: &Engine, len: usize) -> u32 {
    let _ = (engine, len);
    0
}

/// Credits with which [`drop_all`] is begun.
pub(crate) const DROP_CREDITS: u32 = 8;

/// Whether the inode may have attributes, by what its object tells: a quick look before a slow one.
pub(crate) fn may_have(inode: &Inode) -> bool {
    let _ = inode;
    true
}
