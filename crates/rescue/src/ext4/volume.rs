//! Blocks, group descriptors and inodes, each from its place or from a copy.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use sapwood_block::{Device, OverlayDevice};
use sapwood_ext4_format::{
    Geometry, GroupDesc, GroupFlags, Incompat, Inode, SuperBlock, special_ino, validate_group,
    validate_inode,
};
use sapwood_jbd2::{LayoutMap, LayoutRun, Log};

use super::free::BlockBitmap;
use super::journal::{self, Copies, TagForm};
use super::map::{self, Life, Mapped};
use super::supers::FoundSuper;

/// Blocks that are kept in memory.
const CACHED: usize = 1024;
/// Most blocks of a journal that is read.
const JOURNAL_BLOCKS: u64 = 1 << 20;

/// The source of a group's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DescSource {
    /// Its place.
    Primary,
    /// A backup of the table.
    Backup,
    /// A copy in the journal.
    Journal,
    /// Computed from the usual layout, and confirmed by the inodes there.
    Layout,
    /// No source: the group's inodes are lost.
    None,
}

/// A group's inode table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) table: Option<u64>,
    /// Inodes of the table that were ever used, if the descriptor is trustworthy.
    pub(super) used: u32,
    pub(super) bitmap: BlockBitmap,
    pub(super) source: DescSource,
}

/// The state of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalState {
    /// The file system has none, or one on another device.
    None,
    /// Nothing to replay.
    Clean,
    /// Transactions that were not written back are applied in memory.
    Replayed,
    /// It is damaged, and ignored.
    Ignored(String),
}

/// The parts of a damaged file system.
pub(super) struct Volume {
    pub(super) device: Arc<dyn Device>,
    pub(super) sb: SuperBlock,
    pub(super) geometry: Geometry,
    pub(super) groups: Vec<Group>,
    pub(super) copies: Copies,
    pub(super) journal: JournalState,
    cache: Mutex<HashMap<u64, Arc<[u8]>>>,
}

impl Volume {
    pub(super) fn open(device: Arc<dyn Device>, found: &FoundSuper, ignore_journal: bool) -> Self {
        let mut volume = Self {
            device,
            sb: found.sb.clone(),
            geometry: found.geometry.clone(),
            groups: Vec::new(),
            copies: Copies::default(),
            journal: JournalState::None,
            cache: Mutex::default(),
        };
        volume.read_groups();
        volume.read_journal(ignore_journal);
        volume
    }

    pub(super) fn block_size(&self) -> usize {
        self.geometry.block_size() as usize
    }

    /// The bytes of a block; `None` if it cannot be read.
    pub(super) fn block(&self, block: u64) -> Option<Arc<[u8]>> {
        if let Some(bytes) = self.cache.lock().get(&block) {
            return Some(Arc::clone(bytes));
        }
        let bytes: Arc<[u8]> = self.uncached(block)?.into();
        let mut cache = self.cache.lock();
        if cache.len() >= CACHED {
            cache.clear();
        }
        cache.insert(block, Arc::clone(&bytes));
        Some(bytes)
    }

    /// The bytes of a block that will not be read again soon.
    pub(super) fn uncached(&self, block: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.block_size()];
        let at = block.checked_mul(bytes.len() as u64)?;
        self.device.read_at(at, &mut bytes).ok()?;
        Some(bytes)
    }

    /// The first content of a block that `accept` takes: in its place, then in the journal.
    pub(super) fn content<T>(
        &self,
        block: u64,
        mut accept: impl FnMut(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let here = self.block(block);
        if let Some(found) = here.and_then(|bytes| accept(&bytes)) {
            return Some(found);
        }
        let mut copies = self.copies.contents(&*self.device, block);
        copies.find_map(|bytes| accept(&bytes))
    }

    /// Groups that begin on the device.
    fn group_count(&self) -> u32 {
        let size = u64::from(self.geometry.block_size());
        let blocks = self.device.size() / size;
        let groups = blocks / u64::from(self.geometry.blocks_per_group().max(1)) + 1;
        let groups = u32::try_from(groups).unwrap_or(u32::MAX);
        self.geometry.group_count().min(groups)
    }

    /// Reads all descriptors, each from the first valid source.
    fn read_groups(&mut self) {
        let groups = (0..self.group_count()).map(|group| self.read_group(group));
        let groups: Vec<Group> = groups.collect();
        self.groups = groups;
        self.lay_out();
    }

    fn read_group(&self, group: u32) -> Group {
        let lost = Group {
            table: None,
            used: self.geometry.inodes_per_group(),
            bitmap: BlockBitmap::Lost,
            source: DescSource::None,
        };
        let Ok((block, offset)) = self.geometry.descriptor_block(group) else {
            return lost;
        };
        let parse = |bytes: &[u8]| self.desc(group, bytes.get(offset as usize..)?);
        let of = |desc: GroupDesc, source| Group {
            table: Some(desc.inode_table()),
            used: self.used(&desc),
            bitmap: if desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
                BlockBitmap::Unwritten
            } else {
                BlockBitmap::At(desc.block_bitmap())
            },
            source,
        };
        if let Some(desc) = self.block(block).and_then(|bytes| parse(&bytes)) {
            return of(desc, DescSource::Primary);
        }
        let index = group / self.geometry.descs_per_block();
        for backup in self.geometry.desc_table_backups(index) {
            if let Some(desc) = self.block(backup).and_then(|bytes| parse(&bytes)) {
                // The counts of a backup are as old as the file system.
                let all = self.geometry.inodes_per_group();
                let used = Group {
                    used: all,
                    ..of(desc, DescSource::Backup)
                };
                return used;
            }
        }
        let mut copies = self.copies.contents(&*self.device, block);
        let copy = copies.find_map(|bytes| parse(&bytes));
        copy.map_or(lost, |desc| of(desc, DescSource::Journal))
    }

    fn desc(&self, group: u32, bytes: &[u8]) -> Option<GroupDesc> {
        let desc = GroupDesc::read(bytes, &self.geometry).ok()?;
        validate_group(group, &desc, &self.geometry).ok()?;
        Some(desc)
    }

    /// Inodes of a table that were ever used.
    fn used(&self, desc: &GroupDesc) -> u32 {
        let all = self.geometry.inodes_per_group();
        if !self.geometry.features().group_csum() {
            return all;
        }
        if desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return 0;
        }
        all.saturating_sub(desc.itable_unused())
    }

    /// Finds tables without descriptor where mke2fs puts them, if valid inodes are there.
    fn lay_out(&mut self) {
        let flex = self.geometry.flex_size().max(1);
        let blocks = u64::from(self.geometry.inode_table_blocks());
        for group in 0..self.groups.len() as u32 {
            if self.groups[group as usize].table.is_some() {
                continue;
            }
            let place = group % flex;
            let first = group - place;
            let near = (first..self.groups.len() as u32)
                .take(flex as usize)
                .find_map(|other| {
                    let table = self.groups[other as usize].table?;
                    let begin = table.checked_sub(u64::from(other - first) * blocks)?;
                    Some(begin + u64::from(place) * blocks)
                });
            let start = self.geometry.group_first_block(first).ok();
            let usual = start.map(|start| {
                let fixed = u64::from(self.geometry.fixed_blocks(first));
                start + fixed + 2 * u64::from(flex) + u64::from(place) * blocks
            });
            let found = near.into_iter().chain(usual);
            let table = found.into_iter().find(|table| self.is_table(group, *table));
            if table.is_some() {
                self.groups[group as usize].table = table;
                self.groups[group as usize].source = DescSource::Layout;
            }
        }
    }

    /// Whether a group's inodes are in a table at this block: its first blocks have a valid inode,
    /// or nothing at all.
    fn is_table(&self, group: u32, table: u64) -> bool {
        if self
            .geometry
            .check_blocks(table, self.geometry.inode_table_blocks().into())
            .is_err()
        {
            return false;
        }
        let size = usize::from(self.geometry.inode_size());
        let mut any = false;
        for number in 0..u64::from(self.geometry.inode_table_blocks()).min(8) {
            let Some(bytes) = self.block(table + number) else {
                continue;
            };
            for (slot, raw) in bytes.chunks_exact(size).enumerate() {
                let index = number as u32 * self.geometry.inodes_per_block() + slot as u32;
                let ino = self.geometry.ino(group, index);
                any |= raw.iter().any(|byte| *byte != 0);
                if ino.is_some_and(|ino| is_in_use(raw) && self.valid(ino, raw).is_some()) {
                    return true;
                }
            }
        }
        !any
    }

    /// A valid inode in these bytes.
    pub(super) fn valid(&self, ino: u32, raw: &[u8]) -> Option<Inode> {
        Inode::parse(ino, raw, &self.geometry).ok()
    }

    /// An inode in use, from its place or from the journal. Without a valid one, an inode whose
    /// checksum alone is wrong.
    pub(super) fn inode(&self, ino: u32) -> Option<Inode> {
        let (group, index) = self.geometry.inode_location(ino).ok()?;
        let table = self.groups.get(group as usize)?.table?;
        let (block, offset) = self.geometry.inode_in_table(table, index);
        let size = usize::from(self.geometry.inode_size());
        let range = offset as usize..offset as usize + size;
        let here = self.block(block);
        let here = here.as_ref().and_then(|bytes| bytes.get(range.clone()));
        if let Some(raw) = here
            && is_in_use(raw)
            && let Some(inode) = self.valid(ino, raw)
        {
            return Some(inode);
        }
        let is_free = here.is_some_and(|raw| is_freed(raw) && self.sums_match(ino, raw));
        if is_free {
            return None;
        }
        let mut copies = self.copies.contents(&*self.device, block);
        let copy = copies.find_map(|bytes| {
            let raw = bytes.get(range.clone())?;
            is_in_use(raw).then(|| self.valid(ino, raw)).flatten()
        });
        copy.or_else(|| {
            let raw = here.filter(|raw| is_in_use(raw))?;
            let inode = Inode::read(raw, &self.geometry).ok()?;
            validate_inode(ino, &inode, &self.geometry).ok()?;
            Some(inode)
        })
    }

    /// Whether the bytes of a free inode are what the file system wrote.
    fn sums_match(&self, ino: u32, raw: &[u8]) -> bool {
        let inode = Inode::read(raw, &self.geometry);
        inode.is_ok_and(|inode| inode.verify_checksum(ino, &self.geometry).is_ok())
    }

    /// Blocks of the journal; `None` without one that can be found.
    fn journal_blocks(&self) -> Option<Vec<u64>> {
        let ino = self.sb.journal_inum.get();
        if ino == 0 || ino > special_ino::LOST_FOUND * 2 {
            return None;
        }
        let inode = self.inode(ino);
        let inode = inode.filter(|inode| inode.is_regular() && inode.size(&self.geometry) > 0);
        let inode = match inode {
            Some(inode) => inode,
            None => self.journal_backup()?,
        };
        let size = inode.size(&self.geometry) / self.block_size() as u64;
        let mut blocks = Vec::new();
        while (blocks.len() as u64) < size.min(JOURNAL_BLOCKS) {
            let at = u32::try_from(blocks.len()).ok()?;
            match map::find(self, (ino, &inode, Life::InUse), at) {
                Mapped::Data { physical, len } => {
                    let rest = size.min(JOURNAL_BLOCKS) - blocks.len() as u64;
                    blocks.extend((physical..).take(len.min(rest) as usize));
                }
                _ => break,
            }
        }
        Some(blocks).filter(|blocks| blocks.len() > 1)
    }

    /// The journal's inode from its backup in the superblock.
    fn journal_backup(&self) -> Option<Inode> {
        if self.sb.jnl_backup_type != 1 {
            return None;
        }
        let mut inode = Inode::new(&self.geometry);
        for (word, bytes) in self
            .sb
            .jnl_blocks
            .iter()
            .zip(inode.block_mut().chunks_exact_mut(4))
        {
            bytes.copy_from_slice(&word.get().to_le_bytes());
        }
        let [high, low] = [self.sb.jnl_blocks[15], self.sb.jnl_blocks[16]];
        let size = u64::from(high.get()) << 32 | u64::from(low.get());
        inode.set_size(size, &self.geometry).ok()?;
        if self.geometry.features().has_incompat(Incompat::EXTENTS) {
            inode.set_flags(sapwood_ext4_format::InodeFlags::EXTENTS);
        }
        inode.set_mode(0x8180);
        Some(inode)
    }

    /// Reads the journal's copies, and applies transactions that were not written back.
    fn read_journal(&mut self, ignore: bool) {
        let Some(blocks) = self.journal_blocks() else {
            if self.sb.journal_inum.get() != 0 {
                self.journal = JournalState::Ignored("its inode is lost".to_owned());
            }
            return;
        };
        let first = blocks.first().and_then(|block| self.uncached(*block));
        let fallback = TagForm {
            version3: self.geometry.metadata_csum(),
            version2: false,
            wide: self.geometry.features().has_incompat(Incompat::BIT64),
        };
        let form = journal::form(&first.unwrap_or_default(), fallback);
        self.copies = Copies::read(&*self.device, &blocks, self.block_size(), form);
        if ignore {
            self.journal = JournalState::Ignored("as asked for".to_owned());
        } else {
            self.journal = match self.replay(&blocks) {
                Ok(true) => JournalState::Replayed,
                Ok(false) => JournalState::Clean,
                Err(error) => JournalState::Ignored(error.to_string()),
            };
        }
        let lost = self.groups.iter().any(|group| group.table.is_none());
        if lost || self.journal == JournalState::Replayed {
            self.read_groups();
        }
    }

    /// Replays the journal into memory. False: nothing to replay.
    fn replay(&mut self, blocks: &[u64]) -> sapwood_jbd2::Result<bool> {
        let mut runs: Vec<LayoutRun> = Vec::new();
        for (logical, physical) in blocks.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.physical + run.len == *physical => run.len += 1,
                _ => runs.push(LayoutRun {
                    logical: logical as u64,
                    physical: *physical,
                    len: 1,
                }),
            }
        }
        let layout = LayoutMap::new(runs, self.geometry.blocks_count())?;
        let log = Log::load(Arc::clone(&self.device), layout, self.geometry.block_size())?;
        if !log.needs_recovery() {
            return Ok(false);
        }
        let overlay = Arc::new(OverlayDevice::new(Arc::clone(&self.device)));
        let plan = log.scan(&|block| self.geometry.may_be_logged(block))?;
        plan.replay(&*overlay)?;
        self.device = overlay;
        self.cache.lock().clear();
        Ok(true)
    }
}

/// The 16-bit field of an inode's bytes at this offset.
fn half(raw: &[u8], at: usize) -> u16 {
    let bytes = raw.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

/// Whether the bytes of an inode have a mode, links and no time of deletion.
pub(super) fn is_in_use(raw: &[u8]) -> bool {
    let dtime = raw.get(20..24).is_some_and(|bytes| bytes != [0; 4]);
    // Orphans have a link to the next orphan in place of the time.
    half(raw, 0) != 0 && half(raw, 26) != 0 && !dtime
}

/// Whether an inode with these bytes was in use and then freed.
fn is_freed(raw: &[u8]) -> bool {
    half(raw, 26) == 0 && raw.iter().any(|byte| *byte != 0)
}
