//! Changing attributes, flags and access times.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_vfs::rules;
use sapwood_vfs::{FileKind, InodeFlags, SetAttr, SetTime, Timestamp, acl};

use crate::inode::Inode;
use crate::transaction::{Handle, Store};
use crate::xattr;
use crate::{Error, Result};

/// Stores changes of attributes, except the length. See [`vfs::front::Engine::setattr`].
pub(crate) fn setattr(
    store: &Arc<Store>,
    inode: &Arc<Inode>,
    changes: &SetAttr,
    access: Option<Option<Vec<u8>>>,
    strip: bool,
) -> Result<()> {
    let mut h = store.start(3)?;
    let mut done = Ok(());
    if let Some(access) = access {
        done = xattr::replace(&mut h, inode, acl::ACCESS, access.as_deref());
    }
    if strip && done.is_ok() {
        done = xattr::replace(&mut h, inode, rules::CAPABILITY, None);
    }
    apply(&h, inode, changes);
    h.finish(done)
}

fn apply(h: &Handle, inode: &Arc<Inode>, changes: &SetAttr) {
    let now = h.store().now();
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

/// Stores flags that were checked. Expects the `io` lock exclusively.
pub(crate) fn set_flags(store: &Arc<Store>, inode: &Arc<Inode>, flags: InodeFlags) -> Result<()> {
    let size = inode.state.lock().size;
    let kept = xattr::get(store, inode, xattr::COMPRESSION)?;
    let property: Option<&[u8]> = match (flags.contains(InodeFlags::COMPRESS), kept.as_deref()) {
        (false, _) => None,
        (true, Some(b"lzo")) => Some(b"lzo"),
        (true, Some(b"zstd")) => Some(b"zstd"),
        (true, Some(b"zlib")) => Some(b"zlib"),
        // As the kernel chooses: the mount's compression, else zlib.
        (true, _) => {
            let mounted = store.options.compress.map(|compress| compress.name());
            Some(mounted.unwrap_or("zlib").as_bytes())
        }
    };
    let mut h = store.start(2)?;
    let done = if kept.as_deref() == property {
        Ok(())
    } else {
        xattr::replace(&mut h, inode, xattr::COMPRESSION, property)
    };
    let now = store.now();
    inode.change(&h, |state| {
        state.set_vfs_flags(flags);
        if inode.kind == FileKind::Regular && size == 0 {
            let nocow = flags.contains(InodeFlags::NOCOW);
            state.flags.set(
                sapwood_btrfs_format::InodeFlags::NODATASUM,
                nocow || store.options.nodatasum,
            );
        }
        state.inode_changed(now);
    });
    h.finish(done)?;
    inode.forget_property();
    Ok(())
}

/// Turns off checksums, and with them compression, for the data of an empty file. Expects the `io`
/// lock exclusively.
pub(crate) fn forgo_checksums(store: &Arc<Store>, inode: &Arc<Inode>) -> Result<()> {
    let h = store.start(1)?;
    let now = store.now();
    inode.change(&h, |state| {
        state.flags |= sapwood_btrfs_format::InodeFlags::NODATASUM;
        state.inode_changed(now);
    });
    h.end()
}

/// Stores an access time. A full file system keeps the old one, so that a file can be read.
pub(crate) fn set_access_time(
    store: &Arc<Store>,
    inode: &Arc<Inode>,
    now: Timestamp,
) -> Result<()> {
    let h = match store.start(1) {
        Ok(h) => h,
        Err(Error::NoSpace) => return Ok(()),
        Err(error) => return Err(error),
    };
    inode.change(&h, |state| state.atime = now);
    h.end()
}

/// Stores permission bits, and removes the file capability if `strip`. Expects the `io` lock
/// exclusively.
pub(crate) fn set_privileges(
    store: &Arc<Store>,
    inode: &Arc<Inode>,
    perm: u32,
    strip: bool,
) -> Result<()> {
    let mut h = store.start(2)?;
    let done = if strip {
        xattr::replace(&mut h, inode, rules::CAPABILITY, None)
    } else {
        Ok(())
    };
    let now = store.now();
    inode.change(&h, |state| {
        state.set_perm(perm);
        state.inode_changed(now);
    });
    h.finish(done)
}

/// Records a change of the content that no completion of data will record. Expects the `io` lock
/// exclusively.
pub(crate) fn content_changed(store: &Arc<Store>, inode: &Arc<Inode>) -> Result<()> {
    let h = store.start(1)?;
    let now = store.now();
    inode.change(&h, |state| state.content_changed(now));
    h.end()
}

/// True if the inode has a file capability. That it has none is remembered.
pub(crate) fn has_capability(store: &Arc<Store>, inode: &Inode) -> Result<bool> {
    if inode.lacks_capability.load(Ordering::Acquire) {
        return Ok(false);
    }
    let found = xattr::get(store, inode, rules::CAPABILITY)?.is_some();
    inode.lacks_capability.store(!found, Ordering::Release);
    Ok(found)
}
