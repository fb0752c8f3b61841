//! Quota files: loading them, and adding the entries of new owners.
//!
//! [`quota_table`](crate::quota_table) keeps the usage. An operation that gives an inode an owner
//! calls [`ensure`] before it begins, so that the owner has an entry. An entry stays when its usage
//! becomes zero.

mod recount;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use sapwood_ext4_format::{
    QUOTA_BLOCK, QUOTA_DEPTH, QUOTA_ENTRIES, QUOTA_ROOT, QuotaEntry, QuotaHeader, QuotaInfo,
    QuotaKind, QuotaLeaf, RoCompat, SuperBlock, quota_reference,
};
use sapwood_jbd2::{Buffer, Handle};

use crate::inode::Inode;
use crate::lock::{Rank, RankedMutex};
use crate::quota_table::{Entry, KindTable, Owners, no_entries};
use crate::volume::Volume;
use crate::{Error, Result, map};

pub(crate) use recount::recount;

/// Most owners of a kind whose usage is kept.
const MOST_OWNERS: usize = 1 << 20;
/// Byte of the [`QuotaInfo`] in the first block.
const INFO_AT: usize = size_of::<QuotaHeader>();
/// Name of a number in the list of blocks with room, in errors.
const ROOM: &str = "free entries in block";
/// Blocks of the file system that an added entry may need: nodes of the tree, entries, the map.
const BLOCKS: u64 = 8;
/// Credits of adding an entry: these blocks with their bitmaps, the blocks that refer to them, the
/// inode and its map.
const CREDITS: u32 = 48;

/// Refuses a mount whose options ask for quotas that the image does not keep.
///
/// # Errors
/// [`Error::NoQuota`].
pub(crate) fn check_wanted(sb: &SuperBlock, wanted: &[QuotaKind]) -> Result<()> {
    let feature = sb.features().has_ro_compat(RoCompat::QUOTA);
    let kept = |kind: QuotaKind| {
        let ino = match kind {
            QuotaKind::User => sb.usr_quota_inum.get(),
            QuotaKind::Group => sb.grp_quota_inum.get(),
            QuotaKind::Project => sb.prj_quota_inum.get(),
        };
        feature && ino != 0
    };
    let lacking = wanted.iter().find(|kind| !kept(**kind));
    lacking.map_or(Ok(()), |kind| Err(Error::NoQuota { kind: *kind }))
}

/// Loads the quotas of a file system that keeps them.
///
/// # Errors
/// [`Error::BadInode`]: a file is damaged, or has too many owners; errors of the device.
pub(crate) fn load(volume: &Volume) -> Result<()> {
    if !volume.geometry.features().has_ro_compat(RoCompat::QUOTA) {
        return Ok(());
    }
    let inodes = {
        let sb = volume.super_block.lock();
        [
            (QuotaKind::User, sb.usr_quota_inum.get()),
            (QuotaKind::Group, sb.grp_quota_inum.get()),
            (QuotaKind::Project, sb.prj_quota_inum.get()),
        ]
    };
    let mut kinds = Vec::new();
    for (kind, ino) in inodes {
        if ino != 0 {
            kinds.push(load_kind(volume, kind, ino)?);
        }
    }
    volume.quota.set(kinds, volume.options.quota_limits);
    Ok(())
}

/// A quota file.
struct File<'a> {
    volume: &'a Volume,
    inode: Arc<Inode>,
}

impl<'a> File<'a> {
    fn open(volume: &'a Volume, ino: u32) -> Result<Self> {
        let inode = volume.inodes.get(volume, ino)?;
        Ok(Self { volume, inode })
    }

    fn bad(&self, reason: impl Into<String>) -> Error {
        Error::BadInode {
            ino: self.inode.ino,
            reason: format!("quota file: {}", reason.into()),
        }
    }

    /// The block of the file system with a block of the file, and its byte there.
    fn place(&self, number: u32) -> Result<(Arc<Buffer>, usize)> {
        let at = u64::from(number) * QUOTA_BLOCK as u64;
        let size = self.volume.block_size();
        let buffer = map::block_of(self.volume, &self.inode, at / size)?;
        Ok((buffer, (at % size) as usize))
    }

    /// A copy of a block of the file.
    fn read(&self, number: u32) -> Result<Vec<u8>> {
        let (buffer, at) = self.place(number)?;
        let content = buffer.read();
        let bytes = content.get(at..at + QUOTA_BLOCK);
        Ok(bytes.ok_or_else(|| self.bad("short block"))?.to_vec())
    }

    fn info(&self) -> Result<QuotaInfo> {
        let first = self.read(0)?;
        Ok(QuotaInfo::read(first.get(INFO_AT..).unwrap_or_default())?)
    }

    /// Checks a stored number of a block: 0, or a block of the file after the root.
    fn check(&self, what: &str, number: u32, blocks: u32) -> Result<u32> {
        if number != 0 && (number <= QUOTA_ROOT || number >= blocks) {
            return Err(self.bad(format!("{what} {number} of {blocks}")));
        }
        Ok(number)
    }

    /// The reference in a block of the tree; 0: none.
    fn reference(&self, bytes: &[u8], at: usize, blocks: u32) -> Result<u32> {
        let word = bytes.get(at..at + 4).and_then(|word| word.first_chunk());
        let number = u32::from_le_bytes(word.copied().unwrap_or_default());
        self.check("reference to block", number, blocks)
    }

    /// Changes a block of the file.
    fn change(&self, h: &Handle, number: u32, with: impl FnOnce(&mut [u8])) -> Result<()> {
        let (buffer, at) = self.place(number)?;
        let mut content = h.modify(&buffer)?;
        with(content.get_mut(at..at + QUOTA_BLOCK).unwrap_or_default());
        Ok(())
    }

    fn set_info(&self, h: &Handle, info: &QuotaInfo) -> Result<()> {
        self.change(h, 0, |bytes| put(bytes, INFO_AT, info.bytes()))
    }

    /// A zeroed block: a free one, or one more at the end of the file.
    fn new_block(&self, h: &Handle, info: &mut QuotaInfo) -> Result<u32> {
        let free = self.check("free block", info.free_block.get(), info.blocks.get())?;
        if free != 0 {
            info.free_block = QuotaLeaf::read(&self.read(free)?)?.next;
            self.change(h, free, |bytes| bytes.fill(0))?;
            return Ok(free);
        }
        let number = info.blocks.get();
        let next = number.checked_add(1).ok_or_else(|| self.bad("full"))?;
        info.blocks = next.into();
        let end = u64::from(next) * QUOTA_BLOCK as u64;
        let logical = (end - 1) / self.volume.block_size();
        let run = map::lookup(self.volume, &self.inode, logical, 1)?;
        if run.what == map::Mapped::Hole {
            map::append_block(self.volume, h, &self.inode, logical)?;
        }
        self.change(h, number, |bytes| bytes.fill(0))?;
        {
            let mut state = self.inode.state.lock();
            if end > state.size {
                state.size = end;
                state.raw.set_size(end, &self.volume.geometry)?;
            }
        }
        self.inode.store(self.volume, h)?;
        Ok(number)
    }

    /// A block of entries with room, which is the first of the list of these.
    fn leaf_with_room(&self, h: &Handle, info: &mut QuotaInfo) -> Result<u32> {
        let mut first = self.check(ROOM, info.free_entry.get(), info.blocks.get())?;
        if first == 0 {
            first = self.new_block(h, info)?;
            info.free_entry = first.into();
        }
        Ok(first)
    }

    /// Stores an entry in a block of entries. Returns its number there.
    fn put_entry(
        &self,
        h: &Handle,
        info: &mut QuotaInfo,
        values: &QuotaEntry,
    ) -> Result<(u32, usize)> {
        let leaf = self.leaf_with_room(h, info)?;
        let bytes = self.read(leaf)?;
        let mut head = QuotaLeaf::read(&bytes)?;
        let free = |slot: &usize| entry(&bytes, *slot).is_ok_and(|entry| entry.is_free());
        let slot = (0..QUOTA_ENTRIES).find(free);
        let slot = slot.ok_or_else(|| self.bad(format!("no room in block {leaf}")))?;
        let used = head.entries.get().saturating_add(1);
        head.entries = used.into();
        if usize::from(used) >= QUOTA_ENTRIES {
            let next = std::mem::take(&mut head.next);
            head.previous = 0.into();
            info.free_entry = next;
            let next = self.check(ROOM, next.get(), info.blocks.get())?;
            if next != 0 {
                let mut after = QuotaLeaf::read(&self.read(next)?)?;
                after.previous = 0.into();
                self.change(h, next, |bytes| put(bytes, 0, after.bytes()))?;
            }
        }
        self.change(h, leaf, |bytes| {
            put(bytes, 0, head.bytes());
            put(bytes, slot_at(slot), values.stored().bytes());
        })?;
        Ok((leaf, slot))
    }

    /// Adds an entry without usage.
    fn insert(&self, h: &Handle, id: u32) -> Result<Entry> {
        let mut info = self.info()?;
        let values = QuotaEntry {
            id: id.into(),
            ..QuotaEntry::default()
        };
        let mut node = QUOTA_ROOT;
        for level in 0..QUOTA_DEPTH - 1 {
            let at = quota_reference(id, level);
            let mut next = self.reference(&self.read(node)?, at, info.blocks.get())?;
            if next == 0 {
                next = self.new_block(h, &mut info)?;
                self.change(h, node, |bytes| put(bytes, at, &next.to_le_bytes()))?;
            }
            node = next;
        }
        // The last level refers to entries, which several ids share.
        let at = quota_reference(id, QUOTA_DEPTH - 1);
        if self.reference(&self.read(node)?, at, info.blocks.get())? != 0 {
            return Err(self.bad(format!("id {id} has no entry where the tree leads")));
        }
        let (leaf, slot) = self.put_entry(h, &mut info, &values)?;
        self.change(h, node, |bytes| put(bytes, at, &leaf.to_le_bytes()))?;
        self.set_info(h, &info)?;
        self.entry_at(leaf, slot, values)
    }

    fn entry_at(&self, leaf: u32, slot: usize, values: QuotaEntry) -> Result<Entry> {
        let (buffer, at) = self.place(leaf)?;
        Ok(Entry {
            block: buffer.block(),
            offset: at + slot_at(slot),
            values,
            promised: Arc::new(AtomicU64::new(0)),
        })
    }

    /// Reads the entries of a block.
    fn entries_of(&self, leaf: u32, to: &mut HashMap<u32, Entry>) -> Result<()> {
        let bytes = self.read(leaf)?;
        for slot in 0..QUOTA_ENTRIES {
            let stored = entry(&bytes, slot)?;
            if stored.is_free() {
                continue;
            }
            let values = stored.loaded();
            let id = values.id.get();
            if to.insert(id, self.entry_at(leaf, slot, values)?).is_some() {
                return Err(self.bad(format!("two entries of {id}")));
            }
        }
        if to.len() > MOST_OWNERS {
            return Err(self.bad(format!("more than {MOST_OWNERS} owners")));
        }
        Ok(())
    }

    /// Reads all entries of the tree below the node.
    fn walk(
        &self,
        (node, level): (u32, u32),
        blocks: u32,
        seen: &mut HashSet<u32>,
        to: &mut HashMap<u32, Entry>,
    ) -> Result<()> {
        let bytes = self.read(node)?;
        for at in (0..QUOTA_BLOCK).step_by(4) {
            let next = self.reference(&bytes, at, blocks)?;
            if next == 0 {
                continue;
            }
            let leaf = level + 1 == QUOTA_DEPTH;
            if !seen.insert(next) {
                if leaf {
                    continue;
                }
                return Err(self.bad(format!("two references to block {next}")));
            }
            if leaf {
                self.entries_of(next, to)?;
            } else {
                self.walk((next, level + 1), blocks, seen, to)?;
            }
        }
        Ok(())
    }
}

fn put(bytes: &mut [u8], at: usize, from: &[u8]) {
    if let Some(to) = bytes.get_mut(at..at + from.len()) {
        to.copy_from_slice(from);
    }
}

fn slot_at(slot: usize) -> usize {
    QuotaLeaf::SIZE + slot * QuotaEntry::SIZE
}

fn entry(bytes: &[u8], slot: usize) -> Result<QuotaEntry> {
    Ok(QuotaEntry::read(
        bytes.get(slot_at(slot)..).unwrap_or_default(),
    )?)
}

fn load_kind(volume: &Volume, kind: QuotaKind, ino: u32) -> Result<KindTable> {
    let file = File::open(volume, ino)?;
    let found = QuotaKind::recognise(&file.read(0)?);
    if found != Some((kind, 1)) {
        return Err(file.bad("no header of version 1"));
    }
    let info = file.info()?;
    let blocks = info.blocks.get();
    if u64::from(blocks) > file.inode.size().div_ceil(QUOTA_BLOCK as u64) {
        return Err(file.bad(format!("{blocks} blocks are more than it has")));
    }
    let mut entries = HashMap::new();
    let mut seen = HashSet::from([0, QUOTA_ROOT]);
    file.walk((QUOTA_ROOT, 0), blocks, &mut seen, &mut entries)?;
    let table = no_entries();
    *table.lock() = entries;
    Ok(KindTable {
        kind,
        ino,
        grace: (info.space_grace.get(), info.inode_grace.get()),
        entries: table,
        growing: RankedMutex::new(Rank::QuotaFile, ()),
    })
}

/// Admits a new inode: checks the limits of its owners, unless its maker is `privileged`, and makes
/// sure that the owners have entries. Hold no handle, and no lock above an inode's.
///
/// # Errors
/// `Quota`; `NoSpace`; a quota file is damaged; errors of the journal.
pub(crate) fn admit(volume: &Volume, owners: &Owners, privileged: bool) -> Result<()> {
    if !volume.quota.is_on() {
        return Ok(());
    }
    let now = volume.ambient.seconds();
    volume.quota.check_inode(owners, privileged, now)?;
    ensure(volume, owners)
}

/// Makes sure that owners have entries. Hold no handle, and no lock above an inode's.
///
/// # Errors
/// `NoSpace`; a quota file is damaged; errors of the journal.
pub(crate) fn ensure(volume: &Volume, owners: &Owners) -> Result<()> {
    for table in volume.quota.kinds() {
        let id = owners.id(table.kind);
        if !table.has(id) {
            add(volume, table, id)?;
        }
    }
    Ok(())
}

fn add(volume: &Volume, table: &KindTable, id: u32) -> Result<()> {
    let file = File::open(volume, table.ino)?;
    let _blocks = volume.space.reserve(BLOCKS, true)?;
    let h = volume.start(CREDITS)?;
    volume.abort((|| {
        let _growing = table.growing.lock();
        if table.has(id) {
            return Ok(());
        }
        let entry = file.insert(&h, id)?;
        table.entries.lock().insert(id, entry);
        Ok(())
    })())
}
