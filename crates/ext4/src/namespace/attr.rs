//! Changing attributes, flags and access times.

use std::sync::Arc;

use sapwood_ext4_format::InodeFlags as DiskFlags;
use sapwood_jbd2::Handle;
use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs, FileKind, InodeFlags, SetAttr, SetTime, Timestamp, acl};

use super::reap;
use crate::engine::Engine;
use crate::inode::disk_flags;
use crate::inode::{Inode, disk_time};
use crate::quota_table::Owners;
use crate::{Result, quota, xattr};

/// Stores changes of attributes, except the length. See [`vfs::front::Engine::setattr`].
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(crate) fn setattr(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    changes: &SetAttr,
    access: Option<Option<Vec<u8>>>,
    strip: bool,
) -> Result<()> {
    if changes.uid.is_some() || changes.gid.is_some() {
        let mut owners = Owners::of(&inode.state.lock().raw);
        owners.uid = changes.uid.unwrap_or(owners.uid);
        owners.gid = changes.gid.unwrap_or(owners.gid);
        quota::ensure(engine, &owners)?;
    }
    let len = access.iter().flatten().map(Vec::len).sum();
    let credits = 2 + 2 * xattr::credits(engine, len);
    let h = match inode.kind {
        FileKind::Directory => engine.start(credits)?,
        _ => engine.start_tracked(credits)?,
    };
    engine.abort((|| {
        if let Some(access) = &access {
            xattr::set_in(engine, &h, inode, acl::ACCESS, access.as_deref())?;
        }
        if strip {
            xattr::set_in(engine, &h, inode, rules::CAPABILITY, None)?;
        }
        apply(inode, changes, engine.now());
        inode.store(engine, &h)
    })())?;
    drop(h);
    reap::reap_values(engine)
}

fn apply(inode: &Inode, changes: &SetAttr, now: Timestamp) {
    let time = |set: SetTime| match set {
        SetTime::Now => disk_time(now),
        SetTime::To(time) => disk_time(time),
    };
    let mut state = inode.state.lock();
    let perm = rules::setattr_perm(inode.kind, state.mode() & 0o7777, changes);
    state.set_perm(perm);
    state.changed(now);
    let raw = &mut state.raw;
    if let Some(uid) = changes.uid {
        raw.set_uid(uid);
    }
    if let Some(gid) = changes.gid {
        raw.set_gid(gid);
    }
    if changes.size.is_some() {
        raw.set_mtime(disk_time(now));
    }
    if let Some(set) = changes.atime {
        raw.set_atime(time(set));
    }
    if let Some(set) = changes.mtime {
        raw.set_mtime(time(set));
    }
    if let Some(set) = changes.ctime {
        raw.set_ctime(disk_time(set));
    }
    if let Some(set) = changes.btime {
        raw.set_crtime(disk_time(set));
    }
}

/// Refuses flags that only btrfs has.
///
/// # Errors
/// `NotSupported`.
pub(crate) fn check_flags(asked: InodeFlags) -> vfs::Result<()> {
    let unknown = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS | InodeFlags::NOCOW;
    if asked.intersects(unknown) {
        Err(vfs::Error::NotSupported)
    } else {
        Ok(())
    }
}

/// Stores flags that were checked. Expects the `io` lock exclusively.
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(crate) fn set_flags(engine: &Arc<Engine>, inode: &Arc<Inode>, flags: InodeFlags) -> Result<()> {
    let h = engine.start(1)?;
    {
        let mut state = inode.state.lock();
        let flags = disk_flags(state.raw.flags(), flags);
        state.raw.set_flags(flags);
        state.changed(engine.now());
    }
    engine.abort(inode.store(engine, &h))
}

/// A request of `FS_IOC_FSSETXATTR` without the project, which only some images keep.
pub(crate) fn without_project(value: &vfs::Fsxattr) -> vfs::Fsxattr {
    vfs::Fsxattr {
        xflags: value.xflags & !XFLAG_PROJINHERIT,
        projid: 0,
        ..*value
    }
}

/// Refuses a project where the image keeps none.
///
/// # Errors
/// `NotSupported`.
pub(crate) fn check_project(inode: &Inode, value: &vfs::Fsxattr) -> vfs::Result<()> {
    let wanted = value.projid != 0 || value.xflags & XFLAG_PROJINHERIT != 0;
    if wanted && inode.state.lock().raw.projid().is_none() {
        Err(vfs::Error::NotSupported)
    } else {
        Ok(())
    }
}

/// Stores the project of `FS_IOC_FSSETXATTR`.
///
/// # Errors
/// `Invalid`; the image is damaged; errors of the journal.
pub(crate) fn set_project(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    value: &vfs::Fsxattr,
) -> Result<()> {
    let inherit = value.xflags & XFLAG_PROJINHERIT != 0;
    let _io = inode.io.write();
    let had = inode.flags().contains(DiskFlags::PROJINHERIT);
    let current = inode.state.lock().raw.projid();
    if current.unwrap_or(0) == value.projid && had == inherit {
        return Ok(());
    }
    let owners = Owners {
        project: value.projid,
        ..Owners::of(&inode.state.lock().raw)
    };
    quota::ensure(engine, &owners)?;
    let h = engine.start(1)?;
    {
        let mut state = inode.state.lock();
        state.raw.set_projid(value.projid)?;
        let mut flags = state.raw.flags();
        flags.set(DiskFlags::PROJINHERIT, inherit);
        state.raw.set_flags(flags);
        state.changed(engine.now());
    }
    engine.abort(inode.store(engine, &h))
}

/// `FS_XFLAG_PROJINHERIT`.
const XFLAG_PROJINHERIT: u32 = 0x200;

/// The result of `FS_IOC_FSGETXATTR`.
pub(crate) fn fsxattr(inode: &Inode) -> vfs::Fsxattr {
    let mut shown = rules::fsxattr_of(inode.vfs_flags());
    let state = inode.state.lock();
    shown.projid = state.raw.projid().unwrap_or(0);
    if state.raw.flags().contains(DiskFlags::PROJINHERIT) {
        shown.xflags |= XFLAG_PROJINHERIT;
    }
    shown
}

/// Sets an access time. It reaches the disk with the next change or sync.
pub(crate) fn set_access_time(inode: &Inode, now: Timestamp) {
    let mut state = inode.state.lock();
    state.raw.set_atime(disk_time(now));
    state.unstored = true;
}

/// Stores permission bits, and removes the file capability if `strip`. Expects the `io` lock
/// exclusively.
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(crate) fn set_privileges(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    perm: u32,
    strip: bool,
) -> Result<()> {
    let h = engine.start_tracked(1 + xattr::credits(engine, 0))?;
    engine.abort((|| {
        if strip {
            xattr::set_in(engine, &h, inode, rules::CAPABILITY, None)?;
        }
        {
            let mut state = inode.state.lock();
            state.set_perm(perm);
            state.changed(engine.now());
        }
        inode.store(engine, &h)
    })())?;
    drop(h);
    reap::reap_values(engine)
}

/// Records a change of the content that no other operation stores. Expects the `io` lock
/// exclusively.
///
/// # Errors
/// Errors of the journal.
pub(crate) fn content_changed(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let h: Handle = engine.start_tracked(1)?;
    inode.state.lock().content_changed(engine.now());
    engine.abort(inode.store(engine, &h))
}
