//! Changing attributes, flags and access times.

use std::sync::Arc;

use sapwood_ext4_format::InodeFlags as DiskFlags;
use sapwood_jbd2::Handle;
use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs, FileKind, InodeFlags, SetAttr, SetTime, Timestamp, acl};

use super::disk_flags;
use crate::engine::Engine;
use crate::inode::{Inode, disk_time, vfs_time};
use crate::{Error, Result, data, xattr};

/// Seconds after which an access time is renewed though it is newer than the last change.
const RELATIME_LIMIT: i64 = 24 * 60 * 60;

/// Changes attributes. See [`vfs::FileSystem::setattr`].
///
/// # Errors
/// See there.
pub(super) fn setattr(engine: &Arc<Engine>, inode: &Arc<Inode>, changes: &SetAttr) -> Result<()> {
    if *changes == SetAttr::default() {
        return Ok(());
    }
    let _io = inode.io.write();
    rules::check_setattr(inode.kind, inode.vfs_flags(), changes)?;
    // To the length that it has, too: blocks behind the end go.
    if let Some(size) = changes.size {
        data::truncate(engine, inode, size)?;
    }
    let access = match changes.perm {
        Some(_) => xattr::get(engine, inode, acl::ACCESS)?,
        None => None,
    };
    let access = access
        .map(|access| new_acl(inode, &access, changes))
        .transpose()?;
    let drops = rules::drops_capability(changes)
        && inode.kind == FileKind::Regular
        && xattr::get(engine, inode, rules::CAPABILITY)?.is_some();
    let len = access.iter().flatten().map(Vec::len).sum();
    let credits = 2 + 2 * xattr::credits(engine, inode, len);
    let h = match inode.kind {
        FileKind::Directory => engine.start(credits)?,
        _ => engine.start_noted(credits)?,
    };
    engine.abort((|| {
        if let Some(access) = &access {
            xattr::set_in(engine, &h, inode, acl::ACCESS, access.as_deref())?;
        }
        if drops {
            xattr::set_in(engine, &h, inode, rules::CAPABILITY, None)?;
        }
        apply(inode, changes);
        inode.store(engine, &h)
    })())?;
    drop(h);
    xattr::reap(engine)
}

fn new_acl(inode: &Inode, access: &[u8], changes: &SetAttr) -> Result<Option<Vec<u8>>> {
    let current = inode.state.lock().mode() & 0o7777;
    let perm = rules::setattr_perm(inode.kind, current, changes);
    acl::chmod(access, perm).map_err(|reason| Error::BadInode {
        ino: inode.ino,
        reason: format!("access ACL: {reason}"),
    })
}

fn apply(inode: &Inode, changes: &SetAttr) {
    let now = Timestamp::now();
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

/// Sets the flags. See [`vfs::FileSystem::set_flags`].
///
/// # Errors
/// See there.
pub(super) fn set_flags(engine: &Arc<Engine>, inode: &Arc<Inode>, asked: InodeFlags) -> Result<()> {
    let unknown = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS | InodeFlags::NOCOW;
    if asked.intersects(unknown) {
        return Err(vfs::Error::NotSupported.into());
    }
    let _io = inode.io.write();
    let flags = rules::set_flags(inode.kind, inode.size(), inode.vfs_flags(), asked)?;
    let h = engine.start(1)?;
    {
        let mut state = inode.state.lock();
        let flags = disk_flags(state.raw.flags(), flags);
        state.raw.set_flags(flags);
        state.changed(Timestamp::now());
    }
    engine.abort(inode.store(engine, &h))
}

/// `FS_IOC_FSSETXATTR`: flags, and the project where the image keeps one.
///
/// # Errors
/// `NotSupported`, `Invalid`.
pub(super) fn set_fsxattr(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    value: &vfs::Fsxattr,
) -> Result<()> {
    let inherit = value.xflags & XFLAG_PROJINHERIT != 0;
    let rest = vfs::Fsxattr {
        xflags: value.xflags & !XFLAG_PROJINHERIT,
        projid: 0,
        ..*value
    };
    let flags = rules::flags_of_fsxattr(inode.vfs_flags(), &rest)?;
    let current = inode.state.lock().raw.projid();
    if current.is_none() && (value.projid != 0 || inherit) {
        return Err(vfs::Error::NotSupported.into());
    }
    set_flags(engine, inode, flags)?;
    let _io = inode.io.write();
    let had = inode.flags().contains(DiskFlags::PROJINHERIT);
    if current.unwrap_or(0) == value.projid && had == inherit {
        return Ok(());
    }
    let h = engine.start(1)?;
    {
        let mut state = inode.state.lock();
        state.raw.set_projid(value.projid)?;
        let mut flags = state.raw.flags();
        flags.set(DiskFlags::PROJINHERIT, inherit);
        state.raw.set_flags(flags);
        state.changed(Timestamp::now());
    }
    engine.abort(inode.store(engine, &h))
}

/// `FS_XFLAG_PROJINHERIT`.
const XFLAG_PROJINHERIT: u32 = 0x200;

/// What `FS_IOC_FSGETXATTR` shows.
pub(super) fn fsxattr(inode: &Inode) -> vfs::Fsxattr {
    let mut shown = rules::fsxattr_of(inode.vfs_flags());
    let state = inode.state.lock();
    shown.projid = state.raw.projid().unwrap_or(0);
    if state.raw.flags().contains(DiskFlags::PROJINHERIT) {
        shown.xflags |= XFLAG_PROJINHERIT;
    }
    shown
}

/// Notes a read: renews the access time if it is older than the last change, or than a day. It reaches the disk with the
/// next change or sync.
pub(super) fn accessed(engine: &Engine, inode: &Inode) {
    if engine.options.noatime || engine.read_only() {
        return;
    }
    let now = Timestamp::now();
    let mut state = inode.state.lock();
    let atime = vfs_time(state.raw.atime());
    let old = atime <= vfs_time(state.raw.mtime()) || atime <= vfs_time(state.raw.ctime());
    let stale = now.sec.saturating_sub(atime.sec) >= RELATIME_LIMIT;
    if (old || stale) && !state.raw.flags().contains(DiskFlags::NOATIME) {
        state.raw.set_atime(disk_time(now));
        state.unstored = true;
    }
}

/// Takes away what a write by this caller takes away from the inode: set-id bits and the file capability. Expects the
/// `io` lock exclusively.
///
/// # Errors
/// Damage, the journal.
pub(crate) fn written(engine: &Arc<Engine>, inode: &Arc<Inode>, kill_setid: bool) -> Result<()> {
    let perm = inode.state.lock().mode() & 0o7777;
    let kept = match kill_setid {
        true => rules::kill_setid(inode.kind, perm),
        false => perm,
    };
    let capability =
        xattr::may_have(inode) && xattr::get(engine, inode, rules::CAPABILITY)?.is_some();
    if kept == perm && !capability {
        return Ok(());
    }
    let h = engine.start_noted(1 + xattr::credits(engine, inode, 0))?;
    engine.abort((|| {
        if capability {
            xattr::set_in(engine, &h, inode, rules::CAPABILITY, None)?;
        }
        {
            let mut state = inode.state.lock();
            state.set_perm(kept);
            state.changed(Timestamp::now());
        }
        inode.store(engine, &h)
    })())?;
    drop(h);
    xattr::reap(engine)
}

/// Notes a change of the content that nothing else stores. Expects the `io` lock exclusively.
///
/// # Errors
/// The journal.
pub(super) fn content_changed(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let h: Handle = engine.start_noted(1)?;
    inode.state.lock().content_changed(Timestamp::now());
    engine.abort(inode.store(engine, &h))
}
