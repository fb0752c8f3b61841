//! What the engine tells of its changes, at the places where all changes pass: [`Inode::store`], the map, names, the
//! allocator of inodes, attributes, orphans.

use sapwood_ext4_format::{Incompat, Inode as RawInode, InodeFlags, XATTR_MAGIC, special_ino};
use sapwood_jbd2::Handle;
use sapwood_vfs::FileKind;

use super::area::{Name, Naming, Range};
use super::records::{Record, Records};
use crate::Result;
use crate::commit_reason::Reason;
use crate::engine::Engine;
use crate::inode::{Inode, table_place};

/// Flags of files that fast commits leave alone.
const SPECIAL: InodeFlags = InodeFlags::JOURNAL_DATA
    .union(InodeFlags::EA_INODE)
    .union(InodeFlags::ENCRYPT)
    .union(InodeFlags::VERITY)
    .union(InodeFlags::CASEFOLD);

/// Only a whole commit makes this handle's transaction durable.
pub(crate) fn whole(engine: &Engine, h: &Handle, reason: Reason) {
    if engine.fast_commits.enabled() && !sapwood_fault::planted(126) {
        h.require_whole(reason.number());
    }
}

/// Whether notes are of use.
pub(crate) fn wanted(engine: &Engine, h: &Handle) -> bool {
    engine.fast_commits.enabled() && !h.requires_whole()
}

/// Notes something, unless it is of no use any more. False of `what`: it cannot be said.
fn note(engine: &Engine, h: &Handle, reason: Reason, what: impl FnOnce(&mut Records) -> bool) {
    let tracker = &engine.fast_commits;
    if wanted(engine, h) && !tracker.with(h.tid(), what) {
        h.require_whole(reason.number());
    }
}

/// An inode was stored.
pub(crate) fn stored(engine: &Engine, h: &Handle, inode: &Inode, flags: InodeFlags) {
    let reserved = inode.ino < engine.geometry.first_ino() && inode.ino != special_ino::ROOT;
    let regular = inode.kind == FileKind::Regular;
    // The kernel and e2fsck take the 60 bytes of whatever they are told of for a tree of extents.
    let other = !regular && inode.kind != FileKind::Directory;
    if reserved || other || flags.intersects(SPECIAL) {
        whole(engine, h, Reason::SpecialFile);
    } else if flags.contains(InodeFlags::INLINE_DATA) {
        whole(engine, h, Reason::Inline);
    } else if regular && !flags.contains(InodeFlags::EXTENTS) {
        whole(engine, h, Reason::BlockMap);
    } else if regular && counts_attributes(engine, inode) && !sapwood_fault::planted(363) {
        whole(engine, h, Reason::Xattrs);
    }
    note(engine, h, Reason::TooMany, |records| {
        records.stored(inode.ino);
        true
    });
}

/// Whether blocks of attributes are among those that the inode counts. The kernel's replay (6.18) counts
/// the blocks of the map alone, and leaves an inode that `e2fsck` finds wrong.
fn counts_attributes(engine: &Engine, inode: &Inode) -> bool {
    let values = engine.geometry.features().has_incompat(Incompat::EA_INODE);
    let state = inode.state.lock();
    let in_inode = state
        .raw
        .attr_area()
        .starts_with(&XATTR_MAGIC.to_le_bytes());
    state.raw.file_acl() != 0 || values && in_inode
}

/// Data that the device may still have in its cache belongs to a file from now on.
pub(crate) fn landed(engine: &Engine, h: &Handle) {
    note(engine, h, Reason::TooMany, |records| {
        records.landed();
        true
    });
}

/// Blocks came into a map, or became written.
pub(crate) fn added(
    engine: &Engine,
    h: &Handle,
    inode: &Inode,
    (logical, physical, len): (u64, u64, u64),
    written: bool,
) {
    match inode.kind {
        FileKind::Regular => {}
        FileKind::Directory => return whole(engine, h, Reason::Directory),
        _ => return whole(engine, h, Reason::LongLink),
    }
    let mut at = 0;
    note(engine, h, Reason::TooMany, |records| {
        while at < len {
            let step = (len - at).min(Range::MOST.into());
            let range = Range {
                ino: inode.ino,
                logical: logical + at,
                len: step as u32,
                physical: physical + at,
                written,
            };
            if !sapwood_fault::planted(124) && !records.add(Record::Add(range)) {
                return false;
            }
            at += step;
        }
        if written {
            records.landed();
        }
        true
    });
}

/// Nothing is in this part of a map.
pub(crate) fn removed(engine: &Engine, h: &Handle, inode: &Inode, blocks: std::ops::Range<u64>) {
    // Those of an inode that is being deleted: its last name tells.
    if blocks.is_empty() || !inode.is_linked() {
        return;
    }
    if inode.kind != FileKind::Regular {
        return whole(engine, h, Reason::Directory);
    }
    note(engine, h, Reason::TooMany, |records| {
        records.add(Record::Remove {
            ino: inode.ino,
            logical: blocks.start,
            len: blocks.end - blocks.start,
        })
    });
}

/// A map lost all its blocks.
pub(crate) fn emptied(engine: &Engine, h: &Handle, inode: &Inode) {
    if engine.fast_commits.careful() && inode.is_linked() {
        whole(engine, h, Reason::Emptied);
    }
}

/// A name leads to an inode.
pub(crate) fn named(engine: &Engine, h: &Handle, dir: &Inode, name: &[u8], ino: u32) {
    note(engine, h, Reason::TooMany, |records| {
        records.stored(dir.ino);
        sapwood_fault::planted(125)
            || records.add_name(Name {
                parent: dir.ino,
                ino,
                name: name.to_vec(),
            })
    });
}

/// A name went.
pub(crate) fn unnamed(engine: &Engine, h: &Handle, dir: &Inode, name: &[u8], ino: u32) {
    note(engine, h, Reason::TooMany, |records| {
        records.stored(dir.ino);
        records.add(Record::Name {
            name: Name {
                parent: dir.ino,
                ino,
                name: name.to_vec(),
            },
            how: Naming::Unlink,
        })
    });
}

/// A free inode was taken. What its place in the table has is still of the one before: a recovery of the kernel, to which only the
/// fields are told, would leave that one's attributes there.
///
/// # Errors
/// The device.
pub(crate) fn created(engine: &Engine, h: &Handle, ino: u32) -> Result<()> {
    if !wanted(engine, h) {
        return Ok(());
    }
    let (buffer, offset) = table_place(engine, ino)?;
    let content = buffer.read();
    let size = usize::from(engine.geometry.inode_size());
    let bytes = content.get(offset..offset + size).unwrap_or_default();
    let magic = XATTR_MAGIC.to_le_bytes();
    let old = RawInode::read(bytes, &engine.geometry)?;
    if old.attr_area().starts_with(&magic) {
        whole(engine, h, Reason::Xattrs);
    }
    note(engine, h, Reason::InodeReused, |records| {
        records.created(ino)
    });
    Ok(())
}

/// An inode was freed.
pub(crate) fn freed(engine: &Engine, h: &Handle, ino: u32) {
    note(engine, h, Reason::TooMany, |records| {
        records.freed(ino);
        true
    });
}

/// An inode became an orphan.
pub(crate) fn orphan_added(engine: &Engine, h: &Handle, ino: u32) {
    note(engine, h, Reason::TooMany, |records| {
        records.orphan_added(ino);
        true
    });
}

/// An inode is no orphan any more. A recovery begins with the list as it was before the transaction, and would lose its way if
/// something that is on it were changed.
pub(crate) fn orphan_removed(engine: &Engine, h: &Handle, inode: &Inode) {
    // What has no name is told by its last name.
    let linked = inode.is_linked();
    note(engine, h, Reason::Orphan, |records| {
        records.orphan_removed(inode.ino) || !linked
    });
}
