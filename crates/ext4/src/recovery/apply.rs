//! Applying fast commits to the image.
//!
//! # How it works
//! 1. All blocks that files get are marked as used, so that no block of a map is put there.
//! 2. The changes are made in their order. A file keeps its map on disk, and ranges change it: the
//!    blocks of the kernel's own map are not in the records. An inode that has another generation
//!    on disk, or was free there, begins with an empty map. The map updates the block counts.
//! 3. Links of directories are counted, because a directory itself has no records. A directory
//!    whose names changed gets the time of the replay.
//! 4. Orphans of the log are finished, then inodes without a name are deleted. Until then they keep
//!    one link, so that they can be loaded.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_ext4_format::{Inode as RawInode, InodeFlags, LINK_MAX};
use sapwood_jbd2::Handle;
use sapwood_vfs::FileKind;

use super::area::Change;
use super::orphans;
use crate::block_alloc::{self, Extent};
use crate::engine::Engine;
use crate::inode::{Inode, table_place};
use crate::map::{self, BLOCKS_MAX, Mapped};
use crate::store::Store;
use crate::track::{Name, Naming, Range};
use crate::{Error, Result, dir, inode_alloc, namespace};

/// Makes the changes.
///
/// # Errors
/// They contradict the image; errors of the device.
pub(super) fn apply(engine: &Arc<Engine>, changes: Vec<Change>) -> Result<()> {
    let mut replay = Replay {
        engine,
        listed: listed(engine)?,
        nameless: BTreeSet::new(),
        parents: BTreeSet::new(),
    };
    for change in &changes {
        if let Change::Add(range) = change {
            replay.mark(range)?;
        }
    }
    for change in changes {
        replay.make(change)?;
    }
    replay.finish()
}

struct Replay<'a> {
    engine: &'a Arc<Engine>,
    /// Members of the list of orphans on disk, and the next one of each.
    listed: HashMap<u32, u32>,
    /// Inodes without a name, which still have a link.
    nameless: BTreeSet<u32>,
    /// Directories that got or lost a directory.
    parents: BTreeSet<u32>,
}

impl Replay<'_> {
    fn inode(&self, ino: u32) -> Result<Arc<Inode>> {
        self.engine.inodes.named(self.engine, ino)
    }

    fn start(&self, credits: u32) -> Result<Handle> {
        self.engine.start(credits)
    }

    fn make(&mut self, change: Change) -> Result<()> {
        match change {
            Change::Add(range) => self.add(&range),
            Change::Remove { ino, logical, len } => {
                let inode = self.inode(ino)?;
                if !inode.flags().contains(InodeFlags::INLINE_DATA) {
                    self.remove(&inode, logical..logical.saturating_add(len))?;
                }
                Ok(())
            }
            Change::Name { name, how } => match how {
                Naming::Unlink => self.unlink(&name),
                Naming::Create | Naming::Link => self.link(&name, how),
            },
            Change::Inode { ino, raw } => self.put(ino, &raw),
        }
    }

    /// Marks the blocks as used where they are not.
    fn mark(&self, range: &Range) -> Result<()> {
        let bad = |reason: &str| Error::BadInode {
            ino: range.ino,
            reason: format!("blocks {}+{}: {reason}", range.physical, range.len),
        };
        let len = u64::from(range.len);
        if self.engine.groups.is_system(range.physical, len) {
            return Err(bad("metadata of a group"));
        }
        let mut at = range.physical;
        let end = range.physical + len;
        while at < end {
            let (number, offset) = self.engine.geometry.group_of_block(at)?;
            let blocks = self.engine.groups.group(number)?.blocks();
            let here = u64::from(blocks.saturating_sub(offset)).min(end - at);
            let len = u32::try_from(here).ok().filter(|len| *len > 0);
            let len = len.ok_or_else(|| bad("outside their group"))?;
            let h = self.start(block_alloc::CREDITS)?;
            block_alloc::mark_used(&self.engine.groups, &h, Extent { start: at, len })?;
            at += here;
        }
        Ok(())
    }

    /// Makes a part of a file a hole.
    fn remove(&self, inode: &Inode, blocks: std::ops::Range<u64>) -> Result<()> {
        let end = blocks.end.min(map::blocks_max(self.engine, inode.flags()));
        self.step(inode, blocks.start..end.max(blocks.start), map::remove)
    }

    /// Changes the map in a range, in as many handles as that takes.
    fn step(
        &self,
        inode: &Inode,
        blocks: std::ops::Range<u64>,
        change: impl Fn(&Store, &Handle, &Inode, std::ops::Range<u64>) -> Result<std::ops::Range<u64>>,
    ) -> Result<()> {
        let mut left = blocks;
        while !left.is_empty() {
            let need = map::remove_credits(self.engine, inode)
                .max(map::insert_credits(self.engine, inode, 1))
                .saturating_add(1);
            let h = self.start(need)?;
            let before = left.clone();
            left = change(self.engine, &h, inode, left)?;
            inode.store(self.engine, &h)?;
            if left == before {
                return Err(Error::BadInode {
                    ino: inode.ino,
                    reason: format!("blocks {left:?} cannot be changed"),
                });
            }
        }
        Ok(())
    }

    /// Adds blocks to the map of a file.
    fn add(&self, range: &Range) -> Result<()> {
        let inode = self.inode(range.ino)?;
        let end = range.logical + u64::from(range.len);
        let mut at = range.logical;
        while at < end {
            let wanted = range.physical + (at - range.logical);
            let run = map::lookup(self.engine, &inode, at, end - at)?;
            if run.len == 0 {
                return Err(Error::BadInode {
                    ino: range.ino,
                    reason: format!("no run at block {at}"),
                });
            }
            let piece = at..(at + run.len).min(end);
            at = piece.end;
            match run.what {
                Mapped::Written(there) if there == wanted => {
                    if !range.written {
                        self.step(&inode, piece, map::unwrite)?;
                    }
                }
                Mapped::Unwritten(there) if there == wanted => {
                    if range.written {
                        self.step(&inode, piece, map::convert)?;
                    }
                }
                Mapped::Hole => self.insert(&inode, piece, wanted, range)?,
                Mapped::Written(_) | Mapped::Unwritten(_) => {
                    self.remove(&inode, piece.clone())?;
                    self.insert(&inode, piece, wanted, range)?;
                }
            }
        }
        Ok(())
    }

    fn insert(
        &self,
        inode: &Inode,
        piece: std::ops::Range<u64>,
        physical: u64,
        range: &Range,
    ) -> Result<()> {
        let len = piece.end - piece.start;
        // An earlier change may have freed them since all were marked.
        self.mark(&Range {
            physical,
            len: u32::try_from(len).unwrap_or(range.len),
            ..*range
        })?;
        let need = map::insert_credits(self.engine, inode, len).saturating_add(1);
        let h = self.start(need)?;
        let (start, written) = (piece.start, range.written);
        map::insert(self.engine, &h, inode, start, physical, len, written)?;
        inode.store(self.engine, &h)
    }

    /// Applies the fields of an inode.
    fn put(&mut self, ino: u32, fields: &[u8]) -> Result<()> {
        let geometry = &self.engine.geometry;
        if self.engine.is_special(ino) {
            return Err(Error::BadInode {
                ino,
                reason: "a fast commit changes an inode of the file system's own".into(),
            });
        }
        let mut bytes = vec![0; usize::from(geometry.inode_size())];
        if let Some(front) = bytes.get_mut(..fields.len()) {
            front.copy_from_slice(fields);
        }
        let mut raw = RawInode::read(&bytes, geometry)?;
        if raw.links() == 0 {
            self.nameless.insert(ino);
            raw.set_links(1);
        } else {
            self.nameless.remove(&ino);
        }
        let directory = raw.is_dir();
        let h = self.start(inode_alloc::CREDITS + 1)?;
        let new = inode_alloc::mark_used(self.engine, &h, ino, directory)?;
        let there = if new { None } else { self.on_disk(ino)? };
        drop(h);
        let same = there.filter(|old| {
            old.generation() == raw.generation() && old.mode() & 0xf000 == raw.mode() & 0xf000
        });
        match same {
            Some(old) => self.renew(ino, raw, &old, fields.len()),
            None => self.found(ino, raw, new),
        }
    }

    /// The table's contents for an inode in use.
    fn on_disk(&self, ino: u32) -> Result<Option<RawInode>> {
        let raw = table_inode(self.engine, ino)?;
        // The time of deletion of an orphan names another orphan.
        let undeleted = raw.dtime() == 0 || self.listed.contains_key(&ino);
        Ok((raw.mode() != 0 && undeleted || raw.links() > 0).then_some(raw))
    }

    /// Changes an inode that is there.
    fn renew(&self, ino: u32, mut raw: RawInode, old: &RawInode, known: usize) -> Result<()> {
        let engine = self.engine;
        let geometry = &engine.geometry;
        let mapped = has_map(&raw, geometry);
        raw.set_sectors(old.sectors(geometry), geometry)?;
        self.clean_fields(ino, &mut raw);
        if mapped && has_map(old, geometry) {
            *raw.block_mut() = *old.block();
        } else if mapped {
            *raw.block_mut() = map::empty(raw.flags());
        }
        // Attributes are after the fields.
        let mut bytes = vec![0; raw.size_on_disk()];
        old.write(&mut bytes)?;
        let mut fresh = vec![0; raw.size_on_disk()];
        raw.write(&mut fresh)?;
        let (Some(place), Some(from)) = (bytes.get_mut(..known), fresh.get(..known)) else {
            return Ok(());
        };
        place.copy_from_slice(from);
        self.write(ino, RawInode::read(&bytes, geometry)?)
    }

    /// Sets the fields that a record does not decide: an inode in use has no fragment, and its time
    /// of deletion is 0 or the link of the list of orphans.
    fn clean_fields(&self, ino: u32, raw: &mut RawInode) {
        raw.base_mut().obso_faddr = 0.into();
        raw.set_dtime(self.listed.get(&ino).copied().unwrap_or(0));
    }

    /// Creates an inode where there was none, or another one.
    fn found(&self, ino: u32, mut raw: RawInode, free_before: bool) -> Result<()> {
        let engine = self.engine;
        let geometry = &engine.geometry;
        if !free_before
            && let Ok(old) = self.inode(ino)
            && has_map(&old.state.lock().raw.clone(), geometry)
        {
            self.remove(&old, 0..BLOCKS_MAX)?;
        }
        let mut sectors = 0;
        if raw.file_acl() != 0 {
            sectors = u64::from(geometry.block_size() / 512);
        }
        raw.set_sectors(sectors, geometry)?;
        self.clean_fields(ino, &mut raw);
        if has_map(&raw, geometry) {
            *raw.block_mut() = map::empty(raw.flags());
        }
        self.write(ino, raw)
    }

    /// Writes an inode into the table, before it is loaded.
    fn write(&self, ino: u32, mut raw: RawInode) -> Result<()> {
        let engine = self.engine;
        if let Some(old) = engine.inodes.peek(ino) {
            engine.inodes.remove(&old);
        }
        raw.set_checksum(ino, &engine.geometry);
        let (buffer, offset) = table_place(engine, ino)?;
        let h = self.start(1)?;
        engine.set_size_feature(&h, raw.size(&engine.geometry))?;
        let mut content = h.modify(&buffer)?;
        raw.write(content.get_mut(offset..).unwrap_or_default())?;
        Ok(())
    }

    /// The directory of a name, held like by an operation.
    fn parent(&self, name: &Name) -> Result<Arc<Inode>> {
        let parent = self.inode(name.parent)?;
        parent.require_dir().map_err(|_| Error::BadInode {
            ino: name.parent,
            reason: "a fast commit names it as a directory".into(),
        })?;
        Ok(parent)
    }

    /// Stores a directory whose names changed. No record has the time of that change, so it is the
    /// time of the replay. The kernel's replay does the same.
    fn changed(&self, dir: &Inode, h: &Handle) -> Result<()> {
        dir.state.lock().content_changed(self.engine.now());
        dir.store(self.engine, h)
    }

    /// An earlier, interrupted replay changed the names. Its changes of the directory's inode may
    /// be lost.
    fn changed_before(&self, dir: &Inode) -> Result<()> {
        let h = self.start(1)?;
        self.changed(dir, &h)
    }

    fn link(&mut self, name: &Name, how: Naming) -> Result<()> {
        let parent = self.parent(name)?;
        let inode = self.inode(name.ino)?;
        if inode.kind == FileKind::Directory {
            self.check_above(&inode, &parent)?;
            self.prepare_dir(&inode, name.parent)?;
            self.parents.insert(name.parent);
        }
        match dir::find(self.engine, &parent, &name.name)? {
            Some(found) if found.ino == name.ino => return self.changed_before(&parent),
            Some(found) => {
                let other = Name {
                    ino: found.ino,
                    ..name.clone()
                };
                self.unlink(&other)?;
            }
            None => {}
        }
        let room = dir::room(self.engine, &parent, &name.name)?;
        let h = self.start(room.credits.saturating_add(2))?;
        dir::insert(self.engine, &h, &parent, &name.name, name.ino, inode.kind)?;
        self.changed(&parent, &h)?;
        if how == Naming::Link && inode.kind != FileKind::Directory {
            {
                let mut state = inode.state.lock();
                let links = state.raw.links().saturating_add(1);
                // The one that it has while it has no name is not counted.
                if !self.nameless.remove(&name.ino) {
                    state.raw.set_links(links.min(LINK_MAX));
                }
            }
            inode.store(self.engine, &h)?;
        }
        Ok(())
    }

    /// Refuses to put a directory into itself, or below.
    fn check_above(&self, inode: &Inode, parent: &Arc<Inode>) -> Result<()> {
        let mut at = Arc::clone(parent);
        for _ in 0..self.engine.geometry.inodes_count() {
            if at.ino == inode.ino {
                break;
            }
            let up = dir::parent(self.engine, &at)?;
            if up == at.ino {
                return Ok(());
            }
            at = self.inode(up)?;
            at.require_dir()?;
        }
        Err(Error::BadInode {
            ino: inode.ino,
            reason: "a fast commit puts it below itself".into(),
        })
    }

    /// Gives a directory without a block its first one, and sets its `..`.
    fn prepare_dir(&self, inode: &Inode, parent: u32) -> Result<()> {
        let engine = self.engine;
        let flags = inode.flags();
        if !flags.contains(InodeFlags::INLINE_DATA)
            && map::lookup(engine, inode, 0, 1)?.what == Mapped::Hole
        {
            {
                let mut state = inode.state.lock();
                state.raw.set_size(0, &engine.geometry)?;
                state.raw.set_flags(flags - InodeFlags::INDEX);
                state.size = 0;
            }
            let h = self.start(map::append_credits(engine, inode, 1).saturating_add(8))?;
            dir::init(engine, &h, inode, parent)?;
            return inode.store(engine, &h);
        }
        if dir::parent(engine, inode)? != parent {
            let h = self.start(4)?;
            dir::set_parent(engine, &h, inode, parent)?;
            inode.store(engine, &h)?;
        }
        Ok(())
    }

    fn unlink(&mut self, name: &Name) -> Result<()> {
        let parent = self.parent(name)?;
        match dir::find(self.engine, &parent, &name.name)? {
            Some(found) if found.ino == name.ino => {}
            _ => return self.changed_before(&parent),
        }
        let h = self.start(dir::credits(self.engine, &parent).saturating_add(2))?;
        dir::remove(self.engine, &h, &parent, &name.name)?;
        self.changed(&parent, &h)?;
        let inode = match self.inode(name.ino) {
            Ok(inode) => inode,
            // It was removed already.
            Err(Error::Vfs(sapwood_vfs::Error::Stale)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let links = inode.state.lock().raw.links();
        if inode.kind == FileKind::Directory {
            self.parents.insert(name.parent);
            self.nameless.insert(name.ino);
        } else if links <= 1 {
            self.nameless.insert(name.ino);
        } else {
            inode.state.lock().raw.set_links(links - 1);
            inode.store(self.engine, &h)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        let engine = self.engine;
        for ino in &self.parents {
            if !self.nameless.contains(ino) {
                self.count_links(&*self.inode(*ino)?)?;
            }
        }
        orphans::recover(engine)?;
        for ino in &self.nameless {
            let inode = match self.inode(*ino) {
                Ok(inode) => inode,
                Err(Error::Vfs(sapwood_vfs::Error::Stale)) => continue,
                Err(error) => return Err(error),
            };
            let _io = inode.io.write();
            {
                let mut state = inode.state.lock();
                state.raw.set_links(0);
                state.dying = true;
            }
            namespace::delete(engine, &inode)?;
        }
        Ok(())
    }

    /// Sets the link count of a directory from its subdirectories.
    fn count_links(&self, parent: &Inode) -> Result<()> {
        let mut links = 2u32;
        dir::readdir(self.engine, parent, 0, &mut |entry| {
            let own = matches!(entry.name.as_slice(), b"." | b"..");
            links = links.saturating_add(u32::from(!own && entry.kind == FileKind::Directory));
            ControlFlow::Continue(())
        })?;
        let links = match u16::try_from(links) {
            Ok(links) if links <= LINK_MAX => links,
            _ => 1,
        };
        let h = self.start(1)?;
        parent.state.lock().raw.set_links(links);
        parent.store(self.engine, &h)
    }
}

/// The list of orphans on disk, as far as it goes, before anything is changed.
fn listed(engine: &Engine) -> Result<HashMap<u32, u32>> {
    let mut listed = HashMap::new();
    let mut ino = engine.super_block.lock().last_orphan.get();
    while ino != 0 && !listed.contains_key(&ino) {
        if engine.geometry.inode_location(ino).is_err() {
            break;
        }
        let next = table_inode(engine, ino)?.dtime();
        listed.insert(ino, next);
        ino = next;
    }
    Ok(listed)
}

/// The inode with the contents in its table.
pub(crate) fn table_inode(engine: &Engine, ino: u32) -> Result<RawInode> {
    let (buffer, offset) = table_place(engine, ino)?;
    let content = buffer.read();
    let bytes = content.get(offset..).unwrap_or_default();
    Ok(RawInode::read(bytes, &engine.geometry)?)
}

/// Whether the 60 bytes of the inode are a map.
fn has_map(raw: &RawInode, geometry: &sapwood_ext4_format::Geometry) -> bool {
    if raw.flags().contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    raw.is_regular() || raw.is_dir() || raw.is_symlink() && !raw.is_fast_symlink(geometry)
}
