//! In-place changes of a directory block. They do not update checksums: call [`DirFormat::seal`] at
//! the end.

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::{
    DIR_HEADER_SIZE, DirEntry, DirEntryHeader, DirError, DirFormat, DirTail, NAME_MAX, dir_type,
    rec_len_encode,
};

/// An entry to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry<'a> {
    /// Name, 1 to 255 bytes.
    pub name: &'a [u8],
    /// Inode.
    pub inode: u32,
    /// [`dir_type`]; ignored where the format has none.
    pub file_type: u8,
    /// Major and minor hash, written only where entries carry them.
    pub hash: (u32, u32),
}

impl DirFormat {
    /// Initializes an empty block: one free entry, and the tail.
    pub fn init_block(&self, block: &mut [u8]) -> Result<(), DirError> {
        self.size(block)?;
        block.fill(0);
        let usable = self.usable();
        self.put_header(block, 0, 0, usable, 0, 0)?;
        self.put_tail(block)
    }

    /// Initializes the first block of a directory: `.`, and `..` with the rest of the block.
    pub fn init_dots(&self, block: &mut [u8], inode: u32, parent: u32) -> Result<(), DirError> {
        self.size(block)?;
        block.fill(0);
        let kind = if self.file_type {
            dir_type::DIRECTORY
        } else {
            0
        };
        self.put_header(block, 0, inode, 12, 1, kind)?;
        self.put_header(block, 12, parent, self.usable() - 12, 2, kind)?;
        block[8] = b'.';
        block[20..22].copy_from_slice(b"..");
        self.put_tail(block)
    }

    /// Initializes the first block of a directory from the regions of an inline directory: `.`,
    /// `..`, then the entries, with their distances unchanged.
    pub fn init_from_regions(
        &self,
        block: &mut [u8],
        inode: u32,
        parent: u32,
        regions: [&[u8]; 2],
    ) -> Result<(), DirError> {
        self.init_dots(block, inode, parent)?;
        let (mut at, mut last) = (24, 12);
        for region in regions.into_iter().filter(|region| !region.is_empty()) {
            for entry in self.region_entries(region) {
                last = at + entry?.offset;
            }
            let (need, room) = (at + region.len(), self.usable());
            if need > room {
                return Err(DirError::Full { need, room });
            }
            block[at..need].copy_from_slice(region);
            at = need;
        }
        if last > 12 {
            self.put_rec_len(block, 12, 12)?;
            self.put_rec_len(block, last, self.usable() - last)?;
        }
        Ok(())
    }

    /// Initializes a region without tail (of an inline directory) as one free entry.
    pub fn init_region(&self, region: &mut [u8]) -> Result<(), DirError> {
        region.fill(0);
        if region.is_empty() {
            return Ok(());
        }
        let len = region.len();
        self.put_header(region, 0, 0, len, 0, 0)
    }

    /// Inserts an entry where there is room, in a free entry or the slack of another. Returns its
    /// offset, or `None` if there is no room.
    pub fn insert(
        &self,
        block: &mut [u8],
        entry: &NewEntry<'_>,
    ) -> Result<Option<usize>, DirError> {
        self.size(block)?;
        let usable = self.usable();
        self.region_insert(&mut block[..usable], entry)
    }

    /// [`DirFormat::insert`] for a region without tail.
    pub fn region_insert(
        &self,
        region: &mut [u8],
        new: &NewEntry<'_>,
    ) -> Result<Option<usize>, DirError> {
        check_name(new.name)?;
        let need = self.entry_size(new.name);
        let Some(room) = self.find_room(region, need)? else {
            return Ok(None);
        };
        self.put_into(region, &room, new).map(Some)
    }

    fn put_into(
        &self,
        region: &mut [u8],
        room: &EntrySpace,
        new: &NewEntry<'_>,
    ) -> Result<usize, DirError> {
        if room.used > 0 {
            self.put_rec_len(region, room.offset, room.used)?;
        }
        let at = room.offset + room.used;
        self.put_entry(region, at, room.rec_len - room.used, new)?;
        Ok(at)
    }

    /// Inserts an entry into the slack of the one at `offset`, or replaces it if it is free.
    /// Returns false if there is no room.
    pub fn insert_at(
        &self,
        block: &mut [u8],
        offset: usize,
        new: &NewEntry<'_>,
    ) -> Result<bool, DirError> {
        self.size(block)?;
        check_name(new.name)?;
        let usable = self.usable();
        let region = &mut block[..usable];
        let entry = self.entry_in(region, offset)?;
        let Some(room) = self.room_in(&entry, self.entry_size(new.name)) else {
            return Ok(false);
        };
        self.put_into(region, &room, new)?;
        Ok(true)
    }

    /// Whether [`DirFormat::insert_at`] would put an entry of `need` bytes into this one.
    pub fn has_room_in(&self, entry: &DirEntry<'_>, need: usize) -> bool {
        self.room_in(entry, need).is_some()
    }

    /// Whether [`DirFormat::insert`] of a name would find room.
    pub fn has_room(&self, block: &[u8], name: &[u8]) -> Result<bool, DirError> {
        self.size(block)?;
        Ok(self
            .find_room(&block[..self.usable()], self.entry_size(name))?
            .is_some())
    }

    /// Removes the entry in use at `offset`. The previous entry gets its space; the first entry of
    /// a block becomes free.
    pub fn remove(&self, block: &mut [u8], offset: usize) -> Result<(), DirError> {
        self.size(block)?;
        let usable = self.usable();
        self.region_remove(&mut block[..usable], offset)
    }

    /// [`DirFormat::remove`] for a region without tail.
    pub fn region_remove(&self, region: &mut [u8], offset: usize) -> Result<(), DirError> {
        let (mut before, mut found) = (None, None);
        for entry in self.region_entries(region) {
            let entry = entry?;
            if entry.offset == offset && entry.inode != 0 {
                found = Some(entry.rec_len);
                break;
            }
            if entry.offset >= offset {
                break;
            }
            before = Some((entry.offset, entry.rec_len));
        }
        let rec_len = found.ok_or(DirError::NoEntry { offset })?;
        self.take_out(region, before, (offset, rec_len))
    }

    /// [`DirFormat::remove`] of an entry whose predecessor is known: `before` is its offset.
    pub fn remove_behind(
        &self,
        block: &mut [u8],
        before: Option<usize>,
        offset: usize,
    ) -> Result<(), DirError> {
        self.size(block)?;
        let usable = self.usable();
        let region = &mut block[..usable];
        let missing = DirError::NoEntry { offset };
        let entry = self.entry_in(region, offset)?;
        let taken = (offset, entry.rec_len);
        let before = match before {
            Some(at) => {
                let before = self.entry_in(region, at)?;
                (before.end() == offset).then_some(Some((at, before.rec_len)))
            }
            None => (offset == 0).then_some(None),
        };
        match before {
            Some(before) if entry.inode != 0 => self.take_out(region, before, taken),
            _ => Err(missing),
        }
    }

    /// Zeroes the bytes of a block of names that belong to no name. True if any changed.
    pub fn erase_gaps(&self, block: &mut [u8]) -> Result<bool, DirError> {
        self.size(block)?;
        let region = &mut block[..self.usable()];
        let mut gaps = Vec::new();
        for entry in self.region_entries(region) {
            let entry = entry?;
            let used = if entry.inode == 0 {
                DIR_HEADER_SIZE
            } else {
                self.entry_size(entry.name)
            };
            gaps.push(entry.offset + used..entry.end());
        }
        let mut changed = false;
        for gap in gaps {
            if let Some(bytes) = region.get_mut(gap) {
                changed |= bytes.iter().any(|byte| *byte != 0);
                bytes.fill(0);
            }
        }
        Ok(changed)
    }

    /// Frees an entry; both are given by offset and length.
    fn take_out(
        &self,
        region: &mut [u8],
        before: Option<(usize, usize)>,
        (offset, rec_len): (usize, usize),
    ) -> Result<(), DirError> {
        match before {
            Some((at, len)) => {
                region[offset..offset + DIR_HEADER_SIZE].fill(0);
                self.put_rec_len(region, at, len + rec_len)
            }
            None => {
                region[..4].fill(0);
                Ok(())
            }
        }
    }

    /// Sets another inode and type in the entry at `offset`: for a rename over a name, and for
    /// `..`.
    pub fn set_inode(
        &self,
        block: &mut [u8],
        offset: usize,
        inode: u32,
        kind: u8,
    ) -> Result<(), DirError> {
        let usable = self.usable().min(block.len());
        self.region_set_inode(&mut block[..usable], offset, inode, kind)
    }

    /// [`DirFormat::set_inode`] for a region without tail.
    pub fn region_set_inode(
        &self,
        block: &mut [u8],
        offset: usize,
        inode: u32,
        kind: u8,
    ) -> Result<(), DirError> {
        let entry = self.entry_in(block, offset)?;
        if entry.inode == 0 {
            return Err(DirError::NoEntry { offset });
        }
        block[offset..offset + 4].copy_from_slice(&inode.to_le_bytes());
        if self.file_type {
            block[offset + 7] = kind;
        }
        Ok(())
    }

    /// Moves all entries in use to the front, without slack. All free space is then after the last
    /// one.
    pub fn compact(&self, block: &mut [u8]) -> Result<(), DirError> {
        self.size(block)?;
        let old = block[..self.usable()].to_vec();
        let mut keep = Vec::new();
        for entry in self.region_entries(&old) {
            let entry = entry?;
            if entry.inode != 0 {
                keep.push((entry.offset, self.entry_size(entry.name)));
            }
        }
        self.rebuild(block, &old, &keep)
    }

    /// Fills `block` with the entries at (offset, size) of `old`, in that order; the last one gets
    /// the remaining space. `block` may be a new one.
    pub(crate) fn rebuild(
        &self,
        block: &mut [u8],
        old: &[u8],
        keep: &[(usize, usize)],
    ) -> Result<(), DirError> {
        self.init_block(block)?;
        let (mut at, room) = (0usize, self.usable());
        for (number, &(offset, size)) in keep.iter().enumerate() {
            let source = old
                .get(offset..offset.saturating_add(size))
                .ok_or(DirError::Cut { offset })?;
            let rec_len = if number + 1 == keep.len() {
                room.saturating_sub(at)
            } else {
                size
            };
            if at + size > room {
                return Err(DirError::Full {
                    need: at + size,
                    room,
                });
            }
            block[at..at + size].copy_from_slice(source);
            self.put_rec_len(block, at, rec_len)?;
            at += rec_len;
        }
        Ok(())
    }

    fn find_room(&self, region: &[u8], need: usize) -> Result<Option<EntrySpace>, DirError> {
        for entry in self.region_entries(region) {
            let room = self.room_in(&entry?, need);
            if room.is_some() {
                return Ok(room);
            }
        }
        Ok(None)
    }

    fn room_in(&self, entry: &DirEntry<'_>, need: usize) -> Option<EntrySpace> {
        let used = if entry.inode == 0 {
            0
        } else {
            self.entry_size(entry.name)
        };
        (entry.rec_len.saturating_sub(used) >= need).then_some(EntrySpace {
            offset: entry.offset,
            rec_len: entry.rec_len,
            used,
        })
    }

    fn put_entry(
        &self,
        region: &mut [u8],
        at: usize,
        rec_len: usize,
        new: &NewEntry<'_>,
    ) -> Result<(), DirError> {
        let need = self.entry_size(new.name);
        let kind = if self.file_type { new.file_type } else { 0 };
        let target = region
            .get_mut(at..at + need)
            .ok_or(DirError::Cut { offset: at })?;
        target.fill(0);
        let end = DIR_HEADER_SIZE + new.name.len();
        target[DIR_HEADER_SIZE..end].copy_from_slice(new.name);
        if self.hash_in_entry && !matches!(new.name, b"." | b"..") {
            let hash = end.next_multiple_of(4);
            target[hash..hash + 4].copy_from_slice(&new.hash.0.to_le_bytes());
            target[hash + 4..hash + 8].copy_from_slice(&new.hash.1.to_le_bytes());
        }
        self.put_header(region, at, new.inode, rec_len, new.name.len() as u8, kind)
    }

    pub(crate) fn put_header(
        &self,
        bytes: &mut [u8],
        at: usize,
        inode: u32,
        rec_len: usize,
        name_len: u8,
        file_type: u8,
    ) -> Result<(), DirError> {
        let bad = DirError::RecLen {
            offset: at,
            rec_len,
            room: bytes.len().saturating_sub(at),
        };
        let field = rec_len_encode(rec_len, self.block_size).ok_or(bad)?;
        let header = DirEntryHeader {
            inode: U32::new(inode),
            rec_len: field.into(),
            name_len,
            file_type,
        };
        let target = bytes
            .get_mut(at..at + DIR_HEADER_SIZE)
            .ok_or(DirError::Cut { offset: at })?;
        target.copy_from_slice(header.as_bytes());
        Ok(())
    }

    fn put_rec_len(&self, bytes: &mut [u8], at: usize, rec_len: usize) -> Result<(), DirError> {
        let bad = DirError::RecLen {
            offset: at,
            rec_len,
            room: bytes.len().saturating_sub(at),
        };
        let field = rec_len_encode(rec_len, self.block_size).ok_or(bad)?;
        bytes
            .get_mut(at + 4..at + 6)
            .ok_or(DirError::Cut { offset: at })?
            .copy_from_slice(&field.to_le_bytes());
        Ok(())
    }

    fn put_tail(&self, block: &mut [u8]) -> Result<(), DirError> {
        if !self.checksums {
            return Ok(());
        }
        DirTail::EMPTY
            .write_to_suffix(block)
            .map_err(|_| DirError::Tail)
    }
}

/// Space for an entry: after the `used` bytes of the one at `offset`.
struct EntrySpace {
    offset: usize,
    rec_len: usize,
    used: usize,
}

/// Checks that a name may be written: not empty, not too long, without `/` and NUL.
fn check_name(name: &[u8]) -> Result<(), DirError> {
    let bad = name.is_empty()
        || name.len() > NAME_MAX
        || name.iter().any(|&byte| byte == b'/' || byte == 0);
    if bad {
        Err(DirError::BadName { len: name.len() })
    } else {
        Ok(())
    }
}
