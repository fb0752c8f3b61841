//! The files of a damaged ext4.

use std::cell::Cell;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::OnceLock;

use parking_lot::Mutex;
use sapwood_ext4_format::{
    INLINE_XATTR, Inode, InodeFlags as Stored, Timestamp as Time, XattrSet, XattrValue,
    acl_from_disk, dir_type, special_ino, xattr_full_name, xattr_index,
};
use sapwood_vfs::{
    Attr, DirEntry, Error, FileKind, FsStat, Ino, InodeFlags, Result, SeekFrom, Timestamp,
    device_number,
};

use super::map::{self, Life, Mapped, Numbered};
use super::owners::Owners;
use super::volume::Volume;
use super::{dir, nameless};
use crate::Lost;
use crate::name_index::NameIndex;
use crate::tree::{Tree, Xattrs, nameless_directory};

/// Number of the directory with nameless inodes, if the image has no `lost+found`.
const LOST_FOUND: u64 = 1 << 40;
/// Number of the first deleted inode.
const DELETED: u64 = 1 << 41;
/// Positions of entries in a block of a directory.
const PER_BLOCK: u64 = 1 << 16;
/// Position of the first nameless inode.
const NAMELESS_AT: u64 = 1 << 62;
/// Largest value of an attribute.
const VALUE_MAX: u32 = 65536;

/// The files of an image.
pub struct Files {
    pub(super) volume: Volume,
    nameless: OnceLock<(Vec<u32>, u64)>,
    /// Directories with a damaged block.
    pub(super) damaged: Mutex<HashSet<u32>>,
    pub(super) names: NameIndex,
    /// The directory that shows the nameless inodes.
    lost_found: OnceLock<u64>,
    /// Deleted inodes, which no directory shows.
    deleted: Vec<(u32, Inode)>,
    /// The last owners of the blocks of deleted inodes.
    pub(super) owners: Owners,
}

/// Converts a stored time to one for callers.
pub(super) fn time(stored: Time) -> Timestamp {
    Timestamp {
        sec: stored.seconds,
        nsec: stored.nanos,
    }
}

fn flags(stored: Stored) -> InodeFlags {
    // The interface has the same bits as the disk.
    InodeFlags::from_bits_truncate(stored.bits())
}

impl Files {
    pub(super) fn new(volume: Volume) -> Self {
        Self {
            volume,
            nameless: OnceLock::new(),
            damaged: Mutex::default(),
            names: NameIndex::default(),
            lost_found: OnceLock::new(),
            deleted: Vec::new(),
            owners: Owners::default(),
        }
    }

    /// Adds a deleted inode, and returns its number here.
    pub(super) fn add_deleted(&mut self, ino: u32, inode: Inode) -> Ino {
        self.deleted.push((ino, inode));
        Ino(DELETED + self.deleted.len() as u64 - 1)
    }

    fn inode(&self, ino: Ino) -> Result<(u32, Inode)> {
        if let Some(index) = ino.0.checked_sub(DELETED) {
            let index = usize::try_from(index).map_err(|_| Error::Stale)?;
            return self.deleted.get(index).cloned().ok_or(Error::Stale);
        }
        let number = u32::try_from(ino.0).map_err(|_| Error::Stale)?;
        let lost = Lost::Inode { ino: ino.0 };
        let inode = self.volume.inode(number).ok_or(lost)?;
        Ok((number, inode))
    }

    pub(super) fn nameless(&self) -> &(Vec<u32>, u64) {
        self.nameless.get_or_init(|| nameless::find(&self.volume))
    }

    /// The number of the directory that shows the nameless inodes: the image's `lost+found`, if
    /// there is one.
    fn lost_found(&self) -> u64 {
        *self.lost_found.get_or_init(|| {
            let root = Ino(special_ino::ROOT.into());
            let own = self.own_find(root, b"lost+found");
            let own = own.filter(|ino| {
                let attr = self.attr(Ino((*ino).into()));
                attr.is_ok_and(|attr| attr.kind == FileKind::Directory)
            });
            own.map_or(LOST_FOUND, u64::from)
        })
    }

    pub(super) fn directory(&self, dir: Ino) -> Result<Option<(u32, Inode)>> {
        let is_root = dir.0 == u64::from(special_ino::ROOT);
        match self.inode(dir) {
            Ok((_, inode)) if !inode.is_dir() && !is_root => Err(Error::NotDirectory),
            Ok((ino, inode)) => Ok(Some((ino, inode)).filter(|(_, inode)| inode.is_dir())),
            Err(_) if is_root => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn entry_kind(&self, ino: u32, kind: u8) -> FileKind {
        let known = FileKind::from_entry_type(kind);
        known.unwrap_or_else(|| {
            let inode = self.volume.inode(ino);
            let kind = inode.and_then(|inode| FileKind::from_mode(inode.mode().into()));
            kind.unwrap_or(FileKind::Regular)
        })
    }

    /// Data of the inode itself.
    fn inline(&self, inode: &Inode) -> Option<Vec<u8>> {
        if !inode.flags().contains(Stored::INLINE_DATA) {
            return None;
        }
        let mut data = inode.block().to_vec();
        data.extend(dir::inline_rest(&self.volume, inode).unwrap_or_default());
        Some(data)
    }

    /// Fills `buf` with the content from an offset on, which may be after the end.
    fn read_content(&self, whole: Numbered<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (ino, inode, life) = whole;
        if let Some(data) = self.inline(inode) {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let rest = data.get(from..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf.fill(0);
            buf[..len].copy_from_slice(&rest[..len]);
            return Ok(());
        }
        let size = self.volume.block_size() as u64;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (block, within) = (at / size, at % size);
            let rest = (buf.len() - done) as u64;
            let mapped = match u32::try_from(block) {
                Ok(block) => map::find(&self.volume, whole, block),
                Err(_) => Mapped::Hole { len: 1 << 32 },
            };
            let run = |len: u64| (len.saturating_mul(size) - within).min(rest);
            match mapped {
                Mapped::Hole { len } => {
                    let len = run(len) as usize;
                    buf[done..done + len].fill(0);
                    done += len;
                }
                Mapped::Data { physical, len } => {
                    let len = match life {
                        Life::InUse => len,
                        Life::Deleted => self.free_run(ino, inode, physical, len)?,
                    };
                    let len = run(len) as usize;
                    let place = physical
                        .checked_mul(size)
                        .and_then(|at| at.checked_add(within));
                    let lost = Lost::Outside {
                        ino: ino.into(),
                        block: physical,
                    };
                    let part = &mut buf[done..done + len];
                    let read = self.volume.device.read_at(place.ok_or(lost)?, part);
                    read.map_err(|_| Lost::Data {
                        logical: physical.saturating_mul(size),
                    })?;
                    done += len;
                }
                Mapped::Lost { block, .. } => {
                    let ino = ino.into();
                    return Err(Lost::Map { ino, block }.into());
                }
            }
        }
        Ok(())
    }

    /// The number of blocks from `physical` on, at most `len`, that no other file has now or had
    /// later. None is an error.
    fn free_run(&self, ino: u32, inode: &Inode, physical: u64, len: u64) -> Result<u64> {
        // A read takes no more at once.
        let end = physical.saturating_add(len.min(4096));
        let free = (physical..end).take_while(|block| self.volume.is_free(*block));
        let (number, block) = (ino.into(), physical);
        match free.count() as u64 {
            0 => Err(Lost::Reused { ino: number, block }.into()),
            free => {
                let own = self.owners.run((ino, inode.generation()), physical, free);
                own.map_err(|_| Lost::Overwritten { ino: number, block }.into())
            }
        }
    }

    /// How many blocks of a deleted inode no other file has now or had later.
    pub(super) fn unchanged(&self, ino: u32, inode: &Inode, physical: u64, len: u64) -> u64 {
        let identity = (ino, inode.generation());
        let (mut at, end) = (physical, physical.saturating_add(len));
        let mut unchanged = 0;
        while at < end {
            at += match self.owners.run(identity, at, end - at) {
                Ok(run) => {
                    let free = (at..at + run).filter(|block| self.volume.is_free(*block));
                    unchanged += free.count() as u64;
                    run
                }
                Err(taken) => taken,
            };
        }
        unchanged
    }

    /// The value of an attribute in an inode of its own.
    fn value(&self, ino: u32, size: u32) -> Option<Vec<u8>> {
        let inode = self.volume.inode(ino).filter(|_| size <= VALUE_MAX)?;
        // A deleted file may name an inode that another file has now.
        let inode = Some(inode).filter(|inode| inode.flags().contains(Stored::EA_INODE))?;
        let mut value = vec![0; size as usize];
        self.read_content((ino, &inode, Life::InUse), 0, &mut value)
            .ok()?;
        Some(value)
    }

    fn attribute_block(&self, life: Life, inode: &Inode) -> Option<XattrSet> {
        let block = inode.file_acl();
        if block == 0 {
            return None;
        }
        let inodes = self.volume.geometry.inodes_count();
        let parse = |bytes: &[u8]| Some(XattrSet::parse_block(bytes, inodes).ok()?.1);
        map::content(&self.volume, life, block, parse)
    }
}

fn life(ino: Ino) -> Life {
    if ino.0 >= DELETED {
        Life::Deleted
    } else {
        Life::InUse
    }
}

/// The value of an ACL in the form of the interface.
fn interface_value(index: u8, value: Vec<u8>) -> Option<Vec<u8>> {
    match index {
        xattr_index::POSIX_ACL_ACCESS | xattr_index::POSIX_ACL_DEFAULT => {
            acl_from_disk(&value).ok()
        }
        _ => Some(value),
    }
}

impl Tree for Files {
    fn kind(&self) -> &'static str {
        "ext4"
    }

    fn root(&self) -> Ino {
        Ino(special_ino::ROOT.into())
    }

    fn statfs(&self) -> FsStat {
        FsStat {
            block_size: self.volume.geometry.block_size(),
            blocks: self.volume.geometry.blocks_count(),
            inodes: self.volume.geometry.inodes_count().into(),
            name_max: 255,
            ..FsStat::default()
        }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        if ino.0 == LOST_FOUND {
            return Ok(nameless_directory(ino));
        }
        let (number, inode) = match self.inode(ino) {
            Ok(found) => found,
            Err(_) if ino == self.root() => return Ok(nameless_directory(ino)),
            Err(error) => return Err(error),
        };
        let mode = u32::from(inode.mode());
        let lost = Lost::Inode { ino: number.into() };
        let kind = FileKind::from_mode(mode).ok_or(lost)?;
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let geometry = &self.volume.geometry;
        Ok(Attr {
            ino,
            kind,
            perm: mode & 0o7777,
            nlink: inode.links().into(),
            uid: inode.uid(),
            gid: inode.gid(),
            rdev: if device {
                let (major, minor) = inode.device();
                device_number::make(major, minor)
            } else {
                0
            },
            size: inode.size(geometry).min(i64::MAX as u64),
            allocated: inode.sectors(geometry).saturating_mul(512),
            atime: time(inode.atime()),
            mtime: time(inode.mtime()),
            ctime: time(inode.ctime()),
            btime: inode.crtime().map(time).unwrap_or_default(),
            generation: inode.generation().into(),
            blksize: geometry.block_size(),
            flags: flags(inode.flags()),
            layout: 0,
        })
    }

    fn entries(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = match dir.0 {
            LOST_FOUND => None,
            _ => self.directory(dir)?,
        };
        let (any, broken) = (Cell::new(false), Cell::new(false));
        let mut sink = |entry: DirEntry| {
            any.set(true);
            let flow = sink(entry);
            broken.set(flow.is_break());
            flow
        };
        if let Some((ino, inode)) = &directory
            && from < NAMELESS_AT
        {
            let (block, skip) = (from / PER_BLOCK, from % PER_BLOCK);
            let block = u32::try_from(block).unwrap_or(u32::MAX);
            self.each_block(*ino, inode, block, &mut |number, listed| {
                let skip = if number == block { skip as usize } else { 0 };
                let base = u64::from(number) * PER_BLOCK;
                for (at, entry) in listed.entries.into_iter().enumerate().skip(skip) {
                    sink(DirEntry {
                        ino: Ino(entry.ino.into()),
                        next: base + at as u64 + 1,
                        kind: self.entry_kind(entry.ino, entry.kind),
                        name: entry.name,
                    })?;
                }
                ControlFlow::Continue(())
            });
        }
        if broken.get() {
            return Ok(());
        }
        if dir == self.root() && from <= NAMELESS_AT && self.lost_found() == LOST_FOUND {
            if !self.nameless().0.is_empty() {
                let entry = DirEntry {
                    ino: Ino(LOST_FOUND),
                    next: NAMELESS_AT + 1,
                    kind: FileKind::Directory,
                    name: b"lost+found".to_vec(),
                };
                if sink(entry).is_break() {
                    return Ok(());
                }
            }
        } else if dir.0 == self.lost_found() {
            let skip = usize::try_from(from.saturating_sub(NAMELESS_AT)).unwrap_or(usize::MAX);
            for (at, ino) in self.nameless().0.iter().enumerate().skip(skip) {
                let entry = DirEntry {
                    ino: Ino((*ino).into()),
                    next: NAMELESS_AT + at as u64 + 1,
                    kind: self.entry_kind(*ino, dir_type::UNKNOWN),
                    name: format!("#{ino}").into_bytes(),
                };
                if sink(entry).is_break() {
                    return Ok(());
                }
            }
        }
        let damaged = match &directory {
            Some((ino, _)) => self.damaged.lock().contains(ino),
            None => dir == self.root(),
        };
        if damaged && !any.get() {
            let lost = Lost::Directory {
                ino: dir.0,
                block: 0,
            };
            return Err(lost.into());
        }
        Ok(())
    }

    fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        if dir.0 != LOST_FOUND {
            self.directory(dir)?;
        }
        if let Some(ino) = self.own_find(dir, name) {
            return Ok(Ino(ino.into()));
        }
        let lost_found = self.lost_found();
        if dir == self.root() && name == b"lost+found" && lost_found == LOST_FOUND {
            return Ok(Ino(LOST_FOUND));
        }
        let number = name.strip_prefix(b"#").filter(|_| dir.0 == lost_found);
        let number = number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let number: Option<u32> = number.filter(|ino| self.nameless().0.binary_search(ino).is_ok());
        number.map(|ino| Ino(ino.into())).ok_or(Error::NotFound)
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        if dir.0 == LOST_FOUND || dir == self.root() {
            return Ok(self.root());
        }
        let (ino, inode) = self.inode(dir)?;
        if !inode.is_dir() {
            return Err(Error::NotDirectory);
        }
        Ok(Ino(dir::parent(&self.volume, ino, &inode).into()))
    }

    fn link_target(&self, ino: Ino) -> Result<Vec<u8>> {
        let (number, inode) = self.inode(ino)?;
        if !inode.is_symlink() {
            return Err(Error::Invalid);
        }
        let size = inode.size(&self.volume.geometry).min(4096) as usize;
        let mut target = vec![0; size];
        if inode.is_fast_symlink(&self.volume.geometry) {
            let len = size.min(inode.block().len());
            target[..len].copy_from_slice(&inode.block()[..len]);
        } else {
            self.read_content((number, &inode, life(ino)), 0, &mut target)?;
        }
        if target.is_empty() || target.contains(&0) {
            let ino = number.into();
            return Err(Lost::Inode { ino }.into());
        }
        Ok(target)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (number, inode) = self.inode(ino)?;
        if inode.is_dir() {
            return Err(Error::IsDirectory);
        }
        if !inode.is_regular() {
            return Err(Error::Invalid);
        }
        let size = inode.size(&self.volume.geometry);
        let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        self.read_content((number, &inode, life(ino)), offset, &mut buf[..len])?;
        Ok(len)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let (number, inode) = self.inode(ino)?;
        let size = inode.size(&self.volume.geometry);
        let (SeekFrom::Data(start) | SeekFrom::Hole(start)) = from;
        if start >= size {
            return Err(Error::NoSuchOffset);
        }
        let block_size = self.volume.block_size() as u64;
        let mut at = start;
        while at < size {
            let mapped = match u32::try_from(at / block_size) {
                _ if inode.flags().contains(Stored::INLINE_DATA) => Mapped::Data {
                    physical: 0,
                    len: 1,
                },
                Ok(block) => map::find(&self.volume, (number, &inode, life(ino)), block),
                Err(_) => Mapped::Hole { len: 1 << 32 },
            };
            let (is_hole, len) = match mapped {
                Mapped::Hole { len } => (true, len),
                Mapped::Data { len, .. } => (false, len),
                // The range before the lost one ends here.
                Mapped::Lost { .. } if at > start && matches!(from, SeekFrom::Hole(_)) => {
                    return Ok(at);
                }
                Mapped::Lost { block, .. } => {
                    let ino = number.into();
                    return Err(Lost::Map { ino, block }.into());
                }
            };
            if is_hole == matches!(from, SeekFrom::Hole(_)) {
                return Ok(at);
            }
            let end = (at / block_size).saturating_add(len.max(1));
            at = end.saturating_mul(block_size);
        }
        match from {
            SeekFrom::Data(_) => Err(Error::NoSuchOffset),
            SeekFrom::Hole(_) => Ok(size),
        }
    }

    fn xattrs(&self, ino: Ino) -> Result<Xattrs> {
        if ino.0 == LOST_FOUND {
            return Ok(Xattrs::new());
        }
        let Ok((_, inode)) = self.inode(ino) else {
            return Ok(Xattrs::new());
        };
        let inodes = self.volume.geometry.inodes_count();
        let body = XattrSet::parse_ibody(inode.attr_area(), inodes).unwrap_or_default();
        let block = self.attribute_block(life(ino), &inode).unwrap_or_default();
        let mut all = Xattrs::new();
        for xattr in body.entries.into_iter().chain(block.entries) {
            let is_inline = xattr.index == xattr_index::SYSTEM && xattr.name == INLINE_XATTR;
            let Some(name) = xattr_full_name(xattr.index, &xattr.name).filter(|_| !is_inline)
            else {
                continue;
            };
            let value = match xattr.value {
                XattrValue::Bytes(bytes) => Some(bytes),
                XattrValue::Inode { inode, size, .. } => self.value(inode, size),
            };
            let value = value.and_then(|value| interface_value(xattr.index, value));
            all.extend(value.map(|value| (name, value)));
        }
        Ok(all)
    }
}
