//! The files of a state of a btrfs.
//!
//! All subvolumes are below the top-level one. Inodes of the top level keep their numbers. Inodes
//! of other subvolumes have `subvolume << 40 | number`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sapwood_btrfs_format::{
    FileExtent, InodeFlags as Stored, InodeItem, Key, RootItem, Timespec, dir_items, kind,
    objectid, root_ref, split_device,
};
use sapwood_vfs::{
    Attr, DirEntry, Error, FileKind, FsStat, Ino, InodeFlags, Result, SeekFrom, Timestamp,
    device_number,
};

use super::content::Run;
use super::data::Data;
use super::items::{floor, item, items};
use super::leaves::{Leaves, Orphans, RootPtr};
use super::nodes::Nodes;
use super::orphans::{self, FIRST, Name, Orphaned};
use crate::Lost;
use crate::name_index::NameIndex;
use crate::tree::{Tree, Xattrs, nameless_directory};

const NUMBER_BITS: u32 = 40;
const NUMBERS: u64 = (1 << NUMBER_BITS) - 1;
/// Number of the directory with nameless inodes, in each subvolume.
const LOST_FOUND: u64 = 3;
/// Number of the empty directory in place of a subvolume that is elsewhere.
const STUB: u64 = 2;
/// Most entries of a directory that are read at once.
const BATCH: usize = 1024;
/// Position of the first name that only an inode has.
const NAMES_AT: u64 = 1 << 62;
/// Position of the directory with nameless inodes.
const LOST_FOUND_AT: u64 = NAMES_AT + (1 << 61);
/// Position after all entries.
pub(super) const END: u64 = LOST_FOUND_AT + 1;

/// A subvolume.
pub(super) struct Subvolume {
    pub(super) id: u64,
    pub(super) leaves: Leaves,
    orphaned: OnceLock<Orphaned>,
}

/// The files of one state.
pub struct Files {
    pub(super) nodes: Arc<Nodes>,
    pub(super) data: Data,
    pub(super) roots: Leaves,
    newest: u64,
    size: u64,
    subvolumes: Mutex<HashMap<u64, Arc<Subvolume>>>,
    pub(super) names: NameIndex,
}

impl Subvolume {
    /// The names and inodes that its directories no longer reference; none in a subvolume without
    /// damage.
    fn orphaned(&self, nodes: &Nodes) -> &Orphaned {
        self.orphaned.get_or_init(|| {
            if self.leaves.missing == 0 && self.leaves.lost.is_empty() {
                return Orphaned::default();
            }
            orphans::find(nodes, &self.leaves)
        })
    }
}

/// The root of a tree in a root item.
pub(super) fn root_of(item: &RootItem) -> RootPtr {
    RootPtr {
        logical: item.bytenr.get(),
        generation: item.generation.get(),
        level: item.level,
    }
}

/// The newest root item of a tree.
pub(super) fn root_item(nodes: &Nodes, roots: &Leaves, id: u64) -> Option<RootItem> {
    let key = |offset| Key::new(id, kind::ROOT_ITEM, offset);
    let (_, data) = floor(nodes, roots, key(u64::MAX), key(0))?;
    RootItem::parse(&data).ok()
}

/// The leaves of a tree by its root item, with gaps filled from orphans.
pub(super) fn tree(nodes: &Nodes, roots: &Leaves, id: u64, newest: u64) -> Leaves {
    let item = root_item(nodes, roots, id);
    let mut from = vec![Orphans { owner: id, newest }];
    if let Some(item) = &item
        && item.parent_uuid != [0; 16]
    {
        // A snapshot shares blocks that still have its origin as their owner.
        let made = item.otransid.get();
        from.extend(
            origin(nodes, roots, &item.parent_uuid).map(|owner| Orphans {
                owner,
                newest: made.min(newest),
            }),
        );
    }
    Leaves::build(nodes, item.as_ref().map(root_of), &from)
}

/// The subvolume with this uuid.
fn origin(nodes: &Nodes, roots: &Leaves, uuid: &[u8; 16]) -> Option<u64> {
    let mut found = None;
    items(nodes, roots, Key::MIN, Key::MAX, &mut |key, data| {
        let item = (key.kind == kind::ROOT_ITEM).then(|| RootItem::parse(data));
        match item {
            Some(Ok(item)) if item.uuid == *uuid => {
                found = Some(key.objectid);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    });
    found
}

pub(super) fn pack(tree: u64, number: u64) -> Ino {
    match tree {
        objectid::FS_TREE => Ino(number),
        _ => Ino(tree << NUMBER_BITS | number),
    }
}

/// The subvolume and the number of an inode.
fn unpack(ino: Ino) -> (u64, u64) {
    match ino.0 >> NUMBER_BITS {
        0 => (objectid::FS_TREE, ino.0),
        tree => (tree, ino.0 & NUMBERS),
    }
}

/// Whether an inode of a subvolume has a number.
fn fits(tree: u64, number: u64) -> bool {
    tree >> 23 == 0 && number <= NUMBERS
}

/// Converts a stored time to one for callers.
pub(super) fn time(stored: &Timespec) -> Timestamp {
    Timestamp {
        sec: stored.seconds(),
        nsec: stored.nanos(),
    }
}

fn flags(stored: Stored) -> InodeFlags {
    let pairs = [
        (Stored::COMPRESS, InodeFlags::COMPRESS),
        (Stored::SYNC, InodeFlags::SYNC),
        (Stored::IMMUTABLE, InodeFlags::IMMUTABLE),
        (Stored::APPEND, InodeFlags::APPEND),
        (Stored::NODUMP, InodeFlags::NODUMP),
        (Stored::NOATIME, InodeFlags::NOATIME),
        (Stored::NOCOMPRESS, InodeFlags::NOCOMPRESS),
        (Stored::DIRSYNC, InodeFlags::DIRSYNC),
        (Stored::NODATACOW, InodeFlags::NOCOW),
    ];
    let set = pairs.into_iter().filter(|(from, _)| stored.contains(*from));
    set.fold(InodeFlags::empty(), |all, (_, to)| all | to)
}

impl Files {
    pub(super) fn new(
        nodes: Arc<Nodes>,
        data: Data,
        roots: Leaves,
        newest: u64,
        size: u64,
    ) -> Self {
        Self {
            nodes,
            data,
            roots,
            newest,
            size,
            subvolumes: Mutex::default(),
            names: NameIndex::default(),
        }
    }

    pub(super) fn subvolume(&self, id: u64) -> Arc<Subvolume> {
        if let Some(found) = self.subvolumes.lock().get(&id) {
            return Arc::clone(found);
        }
        let made = Arc::new(Subvolume {
            id,
            leaves: tree(&self.nodes, &self.roots, id, self.newest),
            orphaned: OnceLock::new(),
        });
        let mut all = self.subvolumes.lock();
        Arc::clone(all.entry(id).or_insert(made))
    }

    pub(super) fn of(&self, ino: Ino) -> (Arc<Subvolume>, u64) {
        let (tree, number) = unpack(ino);
        (self.subvolume(tree), number)
    }

    fn inode(&self, sub: &Subvolume, number: u64) -> Option<InodeItem> {
        let key = Key::new(number, kind::INODE_ITEM, 0);
        let data = item(&self.nodes, &sub.leaves, key)?;
        InodeItem::read(&data).ok()
    }

    /// Attributes of an inode whose inode item is lost.
    fn guess(&self, sub: &Subvolume, number: u64) -> Result<Attr> {
        let ino = pack(sub.id, number);
        let range = |kind| (Key::new(number, kind, 0), Key::new(number, kind, u64::MAX));
        let has = |kind| {
            let (from, to) = range(kind);
            floor(&self.nodes, &sub.leaves, to, from)
        };
        let names = &sub.orphaned(&self.nodes).names;
        let is_top = number == FIRST;
        if is_top || names.contains_key(&number) || has(kind::DIR_INDEX).is_some() {
            return Ok(nameless_directory(ino));
        }
        let Some((key, data)) = has(kind::EXTENT_DATA) else {
            return Err(Lost::Inode { ino: number }.into());
        };
        let len = FileExtent::parse(&data).map_or(0, |extent| extent.len());
        let size = key.offset.saturating_add(len);
        Ok(Attr {
            kind: FileKind::Regular,
            perm: 0o600,
            nlink: 1,
            size,
            allocated: size,
            ..nameless_directory(ino)
        })
    }

    fn is_directory(&self, sub: &Subvolume, number: u64) -> Result<()> {
        match self.attr(pack(sub.id, number))?.kind {
            FileKind::Directory => Ok(()),
            _ => Err(Error::NotDirectory),
        }
    }

    /// The inode that an entry of a directory leads to.
    pub(super) fn target(
        &self,
        sub: &Subvolume,
        dir: u64,
        name: &[u8],
        location: Key,
    ) -> Option<Ino> {
        if location.kind == kind::ROOT_ITEM {
            let child = location.objectid;
            if !fits(child, FIRST) || !objectid::is_fs_tree(child) {
                return None;
            }
            let back = Key::new(child, kind::ROOT_BACKREF, sub.id);
            let here = item(&self.nodes, &self.roots, back).is_some_and(|data| {
                root_ref(&data).is_ok_and(|found| found.dirid == dir && found.name == name)
            });
            let number = if here { FIRST } else { STUB };
            return Some(pack(child, number));
        }
        let number = location.objectid;
        let sound = location.kind == kind::INODE_ITEM && number >= FIRST;
        (sound && fits(sub.id, number)).then(|| pack(sub.id, number))
    }

    /// Entries that the directory itself has, from an index on. False: the sink has broken.
    fn own_entries(
        &self,
        sub: &Subvolume,
        dir: u64,
        mut from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> bool {
        // A lookup wants one entry, a listing all.
        let mut most = 4;
        loop {
            let batch = self.batch(sub, dir, from, most);
            let full = batch.len() >= most;
            most = (most * 4).min(BATCH);
            for (index, kind, location, name) in batch {
                from = index + 1;
                let Some(ino) = self.target(sub, dir, &name, location) else {
                    continue;
                };
                let entry = DirEntry {
                    ino,
                    next: from,
                    kind: FileKind::from_entry_type(kind).unwrap_or(FileKind::Regular),
                    name,
                };
                if sink(entry).is_break() {
                    return false;
                }
            }
            if !full {
                return true;
            }
        }
    }

    /// Entries of a directory from an index on, about `most` of them.
    fn batch(
        &self,
        sub: &Subvolume,
        dir: u64,
        from: u64,
        most: usize,
    ) -> Vec<(u64, u8, Key, Vec<u8>)> {
        let mut batch = Vec::new();
        let first = Key::new(dir, kind::DIR_INDEX, from);
        let last = Key::new(dir, kind::DIR_INDEX, NAMES_AT - 1);
        items(&self.nodes, &sub.leaves, first, last, &mut |key, data| {
            for entry in dir_items(data).flatten() {
                batch.push((key.offset, entry.kind, entry.location, entry.name.to_vec()));
            }
            if batch.len() < most {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        batch
    }

    /// Entries of a list of names, whose positions begin at `base`. False: the sink has broken.
    fn listed(
        sub: &Subvolume,
        names: &[Name],
        base: u64,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> bool {
        let skip = usize::try_from(from.saturating_sub(base)).unwrap_or(usize::MAX);
        for (number, name) in names.iter().enumerate().skip(skip) {
            if !fits(sub.id, name.ino) {
                continue;
            }
            let entry = DirEntry {
                ino: pack(sub.id, name.ino),
                next: base + number as u64 + 1,
                kind: name.kind.kind(),
                name: name.name.clone(),
            };
            if sink(entry).is_break() {
                return false;
            }
        }
        true
    }
}

impl Tree for Files {
    fn kind(&self) -> &'static str {
        "btrfs"
    }

    fn root(&self) -> Ino {
        pack(objectid::FS_TREE, FIRST)
    }

    fn statfs(&self) -> FsStat {
        let block_size = self.nodes.identity.sectorsize;
        FsStat {
            block_size,
            blocks: self.size / u64::from(block_size.max(1)),
            name_max: 255,
            ..FsStat::default()
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let (sub, number) = self.of(ino);
        if number == LOST_FOUND || number == STUB {
            return Ok(nameless_directory(ino));
        }
        let Some(inode) = self.inode(&sub, number) else {
            return self.guess(&sub, number);
        };
        let mode = inode.mode.get();
        let kind = FileKind::from_mode(mode).ok_or(Lost::Inode { ino: number })?;
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = split_device(inode.rdev.get());
                device_number::make(major, minor)
            }
            _ => 0,
        };
        Ok(Attr {
            ino,
            kind,
            perm: mode & 0o7777,
            nlink: inode.nlink.get(),
            uid: inode.uid.get(),
            gid: inode.gid.get(),
            rdev,
            size: inode.size.get().min(i64::MAX as u64),
            allocated: inode.nbytes.get(),
            atime: time(&inode.atime),
            mtime: time(&inode.mtime),
            ctime: time(&inode.ctime),
            btime: time(&inode.otime),
            generation: inode.generation.get(),
            blksize: self.nodes.identity.sectorsize,
            flags: flags(inode.inode_flags()),
            layout: 0,
        })
    }

    fn entries(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let (sub, number) = self.of(dir);
        if number == STUB {
            return Ok(());
        }
        let orphaned = sub.orphaned(&self.nodes);
        if number == LOST_FOUND {
            Self::listed(&sub, &orphaned.nameless, 0, from, sink);
            return Ok(());
        }
        self.is_directory(&sub, number)?;
        let mut any = false;
        let mut sink = |entry| {
            any = true;
            sink(entry)
        };
        if from < NAMES_AT && !self.own_entries(&sub, number, from, &mut sink) {
            return Ok(());
        }
        let names = orphaned.names.get(&number).map_or(&[][..], Vec::as_slice);
        if from < LOST_FOUND_AT && !Self::listed(&sub, names, NAMES_AT, from, &mut sink) {
            return Ok(());
        }
        if number == FIRST && from <= LOST_FOUND_AT && !orphaned.nameless.is_empty() {
            let entry = DirEntry {
                ino: pack(sub.id, LOST_FOUND),
                next: END,
                kind: FileKind::Directory,
                name: b"lost+found".to_vec(),
            };
            if sink(entry).is_break() {
                return Ok(());
            }
        }
        let key = |offset| Key::new(number, kind::DIR_INDEX, offset);
        match sub.leaves.lost_in(&key(0), &key(u64::MAX)) {
            Some(span) if !any => {
                let key = span.start.max(key(0));
                Err(Lost::Item { tree: sub.id, key }.into())
            }
            _ => Ok(()),
        }
    }

    fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.find_name(dir, name)
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        let (sub, number) = self.of(dir);
        if number == FIRST {
            let from = Key::new(sub.id, kind::ROOT_BACKREF, 0);
            let to = Key::new(sub.id, kind::ROOT_BACKREF, u64::MAX);
            let back = floor(&self.nodes, &self.roots, to, from);
            let above = back.and_then(|(key, data)| {
                let dirid = root_ref(&data).ok()?.dirid;
                fits(key.offset, dirid).then(|| pack(key.offset, dirid))
            });
            return Ok(above.unwrap_or_else(|| self.root()));
        }
        let from = Key::new(number, kind::INODE_REF, 0);
        let to = Key::new(number, kind::INODE_REF, u64::MAX);
        let found = floor(&self.nodes, &sub.leaves, to, from);
        let above = found.filter(|(key, _)| fits(sub.id, key.offset));
        Ok(above.map_or(pack(sub.id, FIRST), |(key, _)| pack(sub.id, key.offset)))
    }

    fn link_target(&self, ino: Ino) -> Result<Vec<u8>> {
        let attr = self.attr(ino)?;
        if attr.kind != FileKind::Symlink {
            return Err(Error::Invalid);
        }
        let mut target = vec![0; attr.size.min(4096) as usize];
        let (sub, number) = self.of(ino);
        let len = self.read_run(&sub, number, 0, &mut target, true)?;
        target.truncate(len);
        if target.is_empty() || target.contains(&0) {
            Err(Lost::Inode { ino: number }.into())
        } else {
            Ok(target)
        }
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let attr = self.attr(ino)?;
        match attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid),
        }
        let (sub, number) = self.of(ino);
        let sums = self.inode(&sub, number);
        let sums = sums.is_none_or(|inode| !inode.inode_flags().contains(Stored::NODATASUM));
        let len = attr.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let part = &mut buf[done..len];
            let read = self.read_run(&sub, number, at, part, sums)?;
            if read == 0 {
                return Err(Lost::Inode { ino: number }.into());
            }
            done += read;
        }
        Ok(len)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let size = self.attr(ino)?.size;
        let (sub, number) = self.of(ino);
        let (SeekFrom::Data(start) | SeekFrom::Hole(start)) = from;
        if start >= size {
            return Err(Error::NoSuchOffset);
        }
        let mut at = start;
        while at < size {
            let end = match (self.run(&sub, number, at, size), from) {
                (Run::Data(_), SeekFrom::Data(_)) | (Run::Hole(_), SeekFrom::Hole(_)) => {
                    return Ok(at);
                }
                // The range before the lost one ends here.
                (Run::Lost, SeekFrom::Hole(_)) if at > start => return Ok(at),
                (Run::Lost, _) => return Err(Lost::Inode { ino: number }.into()),
                (Run::Data(end) | Run::Hole(end), _) => end,
            };
            if end <= at {
                return Err(Lost::Inode { ino: number }.into());
            }
            at = end;
        }
        match from {
            SeekFrom::Data(_) => Err(Error::NoSuchOffset),
            SeekFrom::Hole(_) => Ok(size),
        }
    }

    fn xattrs(&self, ino: Ino) -> Result<Xattrs> {
        let (sub, number) = self.of(ino);
        let key = |offset| Key::new(number, kind::XATTR_ITEM, offset);
        let mut all = Vec::new();
        let (from, to) = (key(0), key(u64::MAX));
        items(&self.nodes, &sub.leaves, from, to, &mut |_, data| {
            let known = dir_items(data).flatten();
            let known = known.filter(|entry| !entry.name.starts_with(b"btrfs."));
            all.extend(known.map(|entry| (entry.name.to_vec(), entry.data.to_vec())));
            ControlFlow::Continue(())
        });
        Ok(all)
    }
}
