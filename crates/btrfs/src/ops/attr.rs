//! Changing attributes, flags and access times.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs, FileKind, InodeFlags, SetAttr, SetTime, Timestamp, acl};

use super::inode::Inode;
use super::{create, xattr};
use crate::engine::Engine;
use crate::transaction::Handle;
use crate::{Error, Result};

/// Seconds after which an access time is renewed though it is newer than the last change.
const RELATIME_LIMIT: i64 = 24 * 60 * 60;

/// Changes attributes. See [`vfs::FileSystem::setattr`].
pub(crate) fn setattr(engine: &Arc<Engine>, inode: &Arc<Inode>, changes: &SetAttr) -> Result<()> {
    if *changes == SetAttr::default() {
        return Ok(());
    }
    inode.require_writable()?;
    let _io = inode.io.write();
    rules::check_setattr(inode.kind, inode.vfs_flags(), changes)?;
    if let Some(size) = changes.size
        && size != inode.state.lock().size
    {
        crate::data::truncate(engine, inode, size)?;
    }
    let access = match changes.perm {
        Some(_) => xattr::get(engine, inode, acl::ACCESS)?,
        None => None,
    };
    let drops = rules::drops_capability(changes) && inode.kind == FileKind::Regular;
    let capability = drops && xattr::get(engine, inode, rules::CAPABILITY)?.is_some();
    let mut h = engine.start(3)?;
    let mut done = Ok(());
    if let Some(access) = access {
        done = update_acl(&mut h, inode, &access, changes);
    }
    if capability && done.is_ok() {
        done = xattr::replace(&mut h, inode, rules::CAPABILITY, None);
    }
    apply(&h, inode, changes);
    create::finish(h, done)
}

fn update_acl(h: &mut Handle, inode: &Inode, access: &[u8], changes: &SetAttr) -> Result<()> {
    let perm = rules::setattr_perm(inode.kind, inode.state.lock().perm(), changes);
    let damaged = |reason| Error::Acl {
        tree: inode.root.id(),
        objectid: inode.objectid,
        reason,
    };
    let value = acl::chmod(access, perm).map_err(damaged)?;
    xattr::replace(h, inode, acl::ACCESS, value.as_deref())
}

fn apply(h: &Handle, inode: &Arc<Inode>, changes: &SetAttr) {
    let now = Timestamp::now();
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    inode.change(h, |state| {
        let perm = rules::setattr_perm(inode.kind, state.perm(), changes);
        state.set_perm(perm);
        state.uid = changes.uid.unwrap_or(state.uid);
        state.gid = changes.gid.unwrap_or(state.gid);
        state.inode_changed(now);
        if changes.size.is_some() {
            state.mtime = now;
        }
        state.atime = changes.atime.map_or(state.atime, time);
        state.mtime = changes.mtime.map_or(state.mtime, time);
        state.ctime = changes.ctime.unwrap_or(state.ctime);
        state.otime = changes.btime.unwrap_or(state.otime);
    });
}

/// Sets the flags. See [`vfs::FileSystem::set_flags`].
pub(crate) fn set_flags(engine: &Arc<Engine>, inode: &Arc<Inode>, asked: InodeFlags) -> Result<()> {
    inode.require_writable()?;
    let _io = inode.io.write();
    let (size, current) = {
        let state = inode.state.lock();
        (state.size, state.vfs_flags())
    };
    let flags = rules::set_flags(inode.kind, size, current, asked)?;
    let kept = xattr::get(engine, inode, xattr::COMPRESSION)?;
    let property: Option<&[u8]> = match (flags.contains(InodeFlags::COMPRESS), kept.as_deref()) {
        (false, _) => None,
        (true, Some(b"lzo")) => Some(b"lzo"),
        (true, Some(b"zstd")) => Some(b"zstd"),
        (true, Some(b"zlib")) => Some(b"zlib"),
        // As the kernel chooses: what the mount compresses with, else zlib.
        (true, _) => {
            let mounted = engine.options.compress.map(|compress| compress.name());
            Some(mounted.unwrap_or("zlib").as_bytes())
        }
    };
    let mut h = engine.start(2)?;
    let done = match kept.as_deref() == property {
        true => Ok(()),
        false => xattr::replace(&mut h, inode, xattr::COMPRESSION, property),
    };
    let now = Timestamp::now();
    inode.change(&h, |state| {
        state.set_vfs_flags(flags);
        if inode.kind == FileKind::Regular && size == 0 {
            let nocow = flags.contains(InodeFlags::NOCOW);
            state.flags.set(
                sapwood_btrfs_format::InodeFlags::NODATASUM,
                nocow || engine.options.nodatasum,
            );
        }
        state.inode_changed(now);
    });
    create::finish(h, done)?;
    inode.forget_property();
    Ok(())
}

/// Notes a read: renews the access time if it is older than the last change, or than a day.
pub(crate) fn accessed(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let fixed = inode.root.is_read_only() || inode.is_stub();
    if engine.options.noatime || engine.read_only() || fixed {
        return Ok(());
    }
    let now = Timestamp::now();
    let due = {
        let state = inode.state.lock();
        let old = state.atime <= state.mtime || state.atime <= state.ctime;
        let stale = now.sec.saturating_sub(state.atime.sec) >= RELATIME_LIMIT;
        (old || stale) && !state.vfs_flags().contains(InodeFlags::NOATIME)
    };
    if !due {
        return Ok(());
    }
    let h = match engine.start(1) {
        Ok(h) => h,
        // A file can be read on a full file system.
        Err(Error::NoSpace) => return Ok(()),
        Err(error) => return Err(error),
    };
    inode.change(&h, |state| state.atime = now);
    h.end()
}

/// Takes away what a write by this caller takes away from the inode: set-id bits and the file
/// capability. Expects the `io` lock exclusively.
pub(crate) fn written(engine: &Arc<Engine>, inode: &Arc<Inode>, kill_setid: bool) -> Result<()> {
    let perm = inode.state.lock().perm();
    let kept = if kill_setid {
        rules::kill_setid(inode.kind, perm)
    } else {
        perm
    };
    let capability = has_capability(engine, inode)?;
    if kept == perm && !capability {
        return Ok(());
    }
    let mut h = engine.start(2)?;
    let done = match capability {
        true => xattr::replace(&mut h, inode, rules::CAPABILITY, None),
        false => Ok(()),
    };
    let now = Timestamp::now();
    inode.change(&h, |state| {
        state.set_perm(kept);
        state.inode_changed(now);
    });
    create::finish(h, done)
}

/// Notes a change of the content that no completion of data will note. Expects the `io` lock
/// exclusively.
pub(crate) fn content_changed(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let h = engine.start(1)?;
    let now = Timestamp::now();
    inode.change(&h, |state| state.content_changed(now));
    h.end()
}

/// What `FS_IOC_FSGETXATTR` shows.
pub(crate) fn fsxattr(inode: &Inode) -> vfs::Fsxattr {
    rules::fsxattr_of(inode.vfs_flags())
}

/// True if the inode has a file capability. That it has none is remembered.
fn has_capability(engine: &Arc<Engine>, inode: &Inode) -> Result<bool> {
    if inode.lacks_capability.load(Ordering::Acquire) {
        return Ok(false);
    }
    let found = xattr::get(engine, inode, rules::CAPABILITY)?.is_some();
    inode.lacks_capability.store(!found, Ordering::Release);
    Ok(found)
}
