//! Directories in the inode: entries in the 60 bytes of the map after the parent's number, and in
//! the value of the attribute `system.data`.
//!
//! Both regions are taken out, changed, and put back. The second one is made as large as the inode
//! allows when the first is full. When that is full too, all entries move to a block, where each
//! keeps its place: [`list`](super::list) counts on it.

use sapwood_ext4_format::{
    DirEntry, Incompat, Inode as RawInode, InodeFlags, NewEntry, XattrSet, XattrValue,
    inline_dir_parent, inline_dir_region, inline_dir_region_mut, xattr_index,
};
use sapwood_jbd2::Handle;

use super::shape::{Dir, Found, Wanted, new_entry};
use crate::inode::{Inode, MAP_BYTES};
use crate::seal::SealKind;
use crate::store::Store;
use crate::{Error, Result, map};

/// Name of the attribute, after `system.`.
const DATA: &[u8] = sapwood_ext4_format::INLINE_XATTR;

/// Bytes that `.` and `..` take in the block to which the entries may move.
const DOTS: usize = 24;

/// An inline directory, taken out of its inode.
pub(super) struct Inline {
    map: [u8; MAP_BYTES],
    value: Vec<u8>,
}

/// Place of a name: region and byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct InlinePlace {
    second: bool,
    offset: usize,
    pub(super) found: Found,
}

fn attributes(dir: &Dir<'_>) -> Result<XattrSet> {
    let state = dir.inode.state.lock();
    XattrSet::parse_ibody(state.raw.attr_area(), dir.format.inodes)
        .map_err(|reason| dir.bad(format!("attributes: {reason}")))
}

/// Puts a value into a set of attributes, if the result fits into the inode.
fn with_value(mut set: XattrSet, value: &[u8], room: usize) -> Option<XattrSet> {
    set.set(xattr_index::SYSTEM, DATA, XattrValue::Bytes(value.to_vec()));
    (set.ibody_size_needed() <= room).then_some(set)
}

fn area_size(inode: &Inode) -> usize {
    inode.state.lock().raw.attr_area().len()
}

fn write_set(dir: &Dir<'_>, set: &XattrSet) -> Result<()> {
    let mut state = dir.inode.state.lock();
    set.write_ibody(state.raw.attr_area_mut())
        .map_err(|reason| dir.bad(format!("attributes: {reason}")))
}

fn set_size(dir: &Dir<'_>, size: u64) -> Result<()> {
    let mut state = dir.inode.state.lock();
    state.raw.set_size(size, &dir.store.geometry)?;
    state.size = size;
    Ok(())
}

impl Inline {
    /// Reads and validates both regions.
    ///
    /// # Errors
    /// The regions are damaged.
    pub(super) fn read(dir: &Dir<'_>) -> Result<Self> {
        let map = *dir.inode.map.read();
        let value = match attributes(dir)?.get(xattr_index::SYSTEM, DATA) {
            Some(xattr) => match &xattr.value {
                XattrValue::Bytes(bytes) => bytes.clone(),
                XattrValue::Inode { .. } => return Err(dir.bad("inline names in another inode")),
            },
            None => Vec::new(),
        };
        let inline = Self { map, value };
        for second in [false, true] {
            dir.format
                .check_region(inline.region(second))
                .map_err(|reason| dir.bad(format!("inline names: {reason}")))?;
        }
        Ok(inline)
    }

    fn region(&self, second: bool) -> &[u8] {
        if second {
            &self.value
        } else {
            inline_dir_region(&self.map).unwrap_or_default()
        }
    }

    fn region_mut(&mut self, second: bool) -> &mut [u8] {
        if second {
            &mut self.value
        } else {
            inline_dir_region_mut(&mut self.map).unwrap_or_default()
        }
    }

    /// The inode that `..` would name.
    pub(super) fn parent(&self, dir: &Dir<'_>) -> Result<u32> {
        inline_dir_parent(&self.map)
            .filter(|parent| (1..=dir.format.inodes).contains(parent))
            .ok_or_else(|| dir.bad("an inline directory without a parent"))
    }

    /// All names, each with its byte offset in the block to which they may move.
    pub(super) fn names<'a>(
        &'a self,
        dir: &Dir<'_>,
    ) -> impl Iterator<Item = (usize, DirEntry<'a>)> + use<'a> {
        let format = dir.format;
        [false, true].into_iter().flat_map(move |second| {
            let region = self.region(second);
            let before = if second {
                DOTS + self.region(false).len()
            } else {
                DOTS
            };
            format
                .region_entries(region)
                .flatten()
                .filter(|entry| entry.inode != 0)
                .map(move |entry| (before + entry.offset, entry))
        })
    }

    /// Finds a name.
    pub(super) fn find(&self, dir: &Dir<'_>, name: &[u8]) -> Result<Option<InlinePlace>> {
        let wanted = Wanted::new(dir, name);
        for second in [false, true] {
            let entries = dir.format.region_entries(self.region(second));
            let hit = wanted.among(entries).map_err(|reason| dir.bad(reason))?;
            if let Some(entry) = hit {
                return Ok(Some(InlinePlace {
                    second,
                    offset: entry.offset,
                    found: dir.found(&entry),
                }));
            }
        }
        Ok(None)
    }

    /// Puts a region back.
    fn put(&self, dir: &Dir<'_>, second: bool) -> Result<()> {
        if !second {
            *dir.inode.map.write() = self.map;
            return Ok(());
        }
        let set = with_value(attributes(dir)?, &self.value, area_size(dir.inode));
        write_set(dir, &set.ok_or(Error::NoSpace)?)?;
        set_size(dir, (MAP_BYTES + self.value.len()) as u64)
    }

    /// Makes the second region as large as it can be. False if it is already.
    fn widen(&mut self, dir: &Dir<'_>) -> Result<bool> {
        let old = self.value.len();
        let Some(set) = with_value(attributes(dir)?, &self.value, usize::MAX) else {
            return Ok(false);
        };
        let free = area_size(dir.inode).saturating_sub(set.ibody_size_needed()) / 4 * 4;
        if !old.is_multiple_of(4) || free < sapwood_ext4_format::DIR_HEADER_SIZE {
            return Ok(false);
        }
        self.value.resize(old + free, 0);
        let new = self.value.get_mut(old..).unwrap_or_default();
        dir.format
            .init_region(new)
            .map_err(|reason| dir.bad(reason))?;
        Ok(true)
    }

    /// Puts a name into free room, in memory; returns the region. `None` if the inode has no room.
    fn place(&mut self, dir: &Dir<'_>, entry: &NewEntry<'_>) -> Result<Option<bool>> {
        for round in 0..3 {
            let second = round > 0;
            if round == 2 && !self.widen(dir)? {
                return Ok(None);
            }
            let put = dir
                .format
                .region_insert(self.region_mut(second), entry)
                .map_err(|reason| dir.bad(reason))?;
            if put.is_some() {
                return Ok(Some(second));
            }
        }
        Ok(None)
    }

    /// Whether [`insert`](Self::insert) would find room.
    ///
    /// # Errors
    /// The image is damaged.
    pub(super) fn has_room(mut self, dir: &Dir<'_>, name: &[u8]) -> Result<bool> {
        let entry = new_entry(name, dir.inode.ino, dir.inode.kind);
        Ok(self.place(dir, &entry)?.is_some())
    }

    /// Puts a name where there is room; false if the inode has none.
    ///
    /// # Errors
    /// The image is damaged.
    pub(super) fn insert(mut self, dir: &Dir<'_>, entry: &NewEntry<'_>) -> Result<bool> {
        match self.place(dir, entry)? {
            Some(second) => self.put(dir, second).map(|()| true),
            None => Ok(false),
        }
    }

    /// Removes the name at a place.
    ///
    /// # Errors
    /// The image is damaged.
    pub(super) fn remove(&mut self, dir: &Dir<'_>, place: InlinePlace) -> Result<()> {
        dir.format
            .region_remove(self.region_mut(place.second), place.offset)
            .map_err(|reason| dir.bad(reason))?;
        self.put(dir, place.second)
    }

    /// Sets the target of the name at a place.
    ///
    /// # Errors
    /// The image is damaged.
    pub(super) fn replace(
        &mut self,
        dir: &Dir<'_>,
        place: InlinePlace,
        ino: u32,
        kind: u8,
    ) -> Result<()> {
        dir.format
            .region_set_inode(self.region_mut(place.second), place.offset, ino, kind)
            .map_err(|reason| dir.bad(reason))?;
        self.put(dir, place.second)
    }

    /// Sets the target of `..`.
    pub(super) fn set_parent(&mut self, dir: &Dir<'_>, parent: u32) -> Result<()> {
        if let Some(head) = self.map.first_chunk_mut() {
            *head = parent.to_le_bytes();
        }
        self.put(dir, false)
    }

    /// Moves all names to a block. Invalid names, and names that do not fit, are found before the
    /// first change.
    ///
    /// # Errors
    /// The image is damaged; no space; errors of the journal.
    pub(super) fn convert<'a>(&self, dir: Dir<'a>, h: &Handle) -> Result<Dir<'a>> {
        let parent = self.parent(&dir)?;
        let (store, inode) = (dir.store, dir.inode);
        let mut content = vec![0; dir.format.block_size];
        dir.format
            .init_from_regions(
                &mut content,
                inode.ino,
                parent,
                [self.region(false), self.region(true)],
            )
            .map_err(|reason| dir.bad(reason))?;
        let mut set = attributes(&dir)?;
        set.remove(xattr_index::SYSTEM, DATA);
        write_set(&dir, &set)?;
        let mut dir = dir;
        let extents = store.geometry.features().has_incompat(Incompat::EXTENTS);
        let form = if extents {
            InodeFlags::EXTENTS
        } else {
            InodeFlags::empty()
        };
        dir.set_flags(form, InodeFlags::INLINE_DATA);
        *inode.map.write() = map::empty(dir.flags);
        set_size(&dir, 0)?;
        let mut dir = Dir::open(store, inode)?;
        let (_, buffer) = dir.append(h, SealKind::DirLeaf)?;
        h.modify(&buffer)?.copy_from_slice(&content);
        Ok(dir)
    }
}

/// The attributes of a new directory that begins inline; `None` if directories do not.
pub(super) fn first_attributes(store: &Store) -> Option<XattrSet> {
    let features = store.geometry.features();
    if !features.has_incompat(Incompat::INLINE_DATA) {
        return None;
    }
    let room = RawInode::new(&store.geometry).attr_area().len();
    with_value(XattrSet::default(), &[], room)
}

/// Makes a new directory inline, if the file system has such and the inode has room. False if it
/// needs a block.
///
/// # Errors
/// The image is damaged.
pub(super) fn init(store: &Store, inode: &Inode, parent: u32) -> Result<bool> {
    let Some(set) = first_attributes(store) else {
        return Ok(false);
    };
    let mut dir = Dir::open(store, inode)?;
    write_set(&dir, &set)?;
    dir.set_flags(InodeFlags::INLINE_DATA, InodeFlags::EXTENTS);
    set_size(&dir, MAP_BYTES as u64)?;
    let mut inline = Inline {
        map: [0; MAP_BYTES],
        value: Vec::new(),
    };
    dir.format
        .init_region(inline.region_mut(false))
        .map_err(|reason| dir.bad(reason))?;
    inline.set_parent(&dir, parent)?;
    Ok(true)
}
