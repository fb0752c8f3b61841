//! Quota files: their trees, and their usage compared with the inodes.
//!
//! # How it works
//! The pass over the inodes adds each inode to the [`Usage`] of its owners. The file of each kind
//! is then read through the map of its inode. Every reference of the last level of its tree belongs
//! to one id and leads to a block with an entry of this id, and every entry has such a reference.
//! Usage is compared only if the tree is intact and all inodes could be read.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sapwood_ext4_format::{
    Compat, Inode, InodeFlags, QUOTA_BLOCK, QUOTA_DEPTH, QUOTA_ENTRIES, QUOTA_ROOT, QuotaEntry,
    QuotaHeader, QuotaInfo, QuotaKind, QuotaLeaf, RoCompat, special_ino,
};

use super::finding::{Finding, QuotaSum};
use super::state::{Check, View};
use super::walk::{self, Piece};
use crate::quota_table::Owners;

/// Most owners of a kind that are read, as in a mount.
const MOST_OWNERS: usize = 1 << 20;
/// Most blocks of a tree that are read.
const MOST_BLOCKS: u32 = 1 << 22;
/// Most findings about the usage in one file.
const MOST_FINDINGS: usize = 1000;
/// Defect of a block of entries.
const UNREACHED: &str = "has an entry to which the tree does not lead";
/// Byte of the [`QuotaInfo`] in the first block.
const INFO_AT: usize = size_of::<QuotaHeader>();

/// Usage by owner, counted from the inodes.
#[derive(Debug, Default)]
pub(super) struct Usage {
    users: HashMap<u32, QuotaSum>,
    groups: HashMap<u32, QuotaSum>,
    projects: HashMap<u32, QuotaSum>,
    /// Some inode was not counted, or not with all of its blocks.
    pub(super) incomplete: bool,
}

impl Usage {
    fn of(&self, kind: QuotaKind) -> &HashMap<u32, QuotaSum> {
        match kind {
            QuotaKind::User => &self.users,
            QuotaKind::Group => &self.groups,
            QuotaKind::Project => &self.projects,
        }
    }

    fn add(&mut self, owners: &Owners, space: u64) {
        let sums = [
            (&mut self.users, owners.uid),
            (&mut self.groups, owners.gid),
            (&mut self.projects, owners.project),
        ];
        for (sums, id) in sums {
            let sum = sums.entry(id).or_default();
            sum.space = sum.space.saturating_add(space);
            sum.inodes += 1;
        }
    }
}

impl Check<'_> {
    /// Adds an inode with this many bytes of blocks to the usage of its owners.
    pub(super) fn charge(&mut self, view: &View, ino: u32, inode: &Inode, space: u64) {
        if !view.geometry.features().has_ro_compat(RoCompat::QUOTA) {
            return;
        }
        if inode.flags().contains(InodeFlags::EA_INODE) {
            // The owners of the attribute have its usage, not the inode with the value.
            self.usage.incomplete = true;
            return;
        }
        let reserved = ino < view.geometry.first_ino() && ino != special_ino::ROOT;
        if !reserved && !self.is_named(view, ino) {
            self.usage.add(&Owners::of(inode), space);
        }
    }

    /// Checks a quota file, whose inode is intact.
    pub(super) fn quota_file(&mut self, view: &View, ino: u32, kind: QuotaKind) {
        let Some(inode) = self.again(ino) else {
            return;
        };
        let file = QuotaFile::new(view, ino, &inode);
        let content = match file.read(kind) {
            Ok(content) => content,
            Err(finding) => return self.found(finding),
        };
        // Records of fast commits do not change quota files. The mount that replays them counts.
        let fast = view.geometry.features().has_compat(Compat::FAST_COMMIT);
        let replay = self.recovered && fast;
        if self.usage.incomplete || self.tables_incomplete || self.incomplete || replay {
            return;
        }
        let stored = content.entries.iter().map(|(id, entry)| {
            let (space, inodes) = (entry.space.get(), entry.inodes.get());
            (*id, QuotaSum { space, inodes })
        });
        let stored: BTreeMap<u32, QuotaSum> = stored.collect();
        let differences = differences((ino, kind), &stored, self.usage.of(kind));
        self.found_all(differences);
    }
}

/// Differences of the usage in a file from the counted usage, by owner.
fn differences(
    (ino, kind): (u32, QuotaKind),
    stored: &BTreeMap<u32, QuotaSum>,
    counted: &HashMap<u32, QuotaSum>,
) -> Vec<Finding> {
    let ids: BTreeSet<u32> = stored.keys().chain(counted.keys()).copied().collect();
    let difference = |id: u32| {
        let expected = counted.get(&id).copied().unwrap_or_default();
        let (found, missing) = match stored.get(&id) {
            Some(found) => (*found, false),
            None => (QuotaSum::default(), true),
        };
        if found == expected {
            return None;
        }
        Some(if missing {
            Finding::QuotaMissing {
                ino,
                kind,
                id,
                expected,
            }
        } else {
            Finding::QuotaUsage {
                ino,
                kind,
                id,
                found,
                expected,
            }
        })
    };
    let found = ids.into_iter().filter_map(difference);
    found.take(MOST_FINDINGS).collect()
}

/// The content of a quota file.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// Seconds that space and inodes may exceed their soft limits; `None` without a valid start.
    pub(super) grace: Option<(u32, u32)>,
    pub(super) entries: BTreeMap<u32, QuotaEntry>,
}

/// Reads a quota file.
pub(super) struct QuotaFile<'a> {
    view: &'a View,
    ino: u32,
    /// Bytes.
    size: u64,
    /// Runs of written blocks: first block of the file, first block of the device, length.
    /// Ascending.
    runs: Vec<(u64, u64, u64)>,
}

impl<'a> QuotaFile<'a> {
    pub(super) fn new(view: &'a View, ino: u32, inode: &Inode) -> Self {
        let (mut runs, mut nodes) = (Vec::new(), HashSet::new());
        if walk::has_map(view, inode) {
            walk::walk(view, ino, inode, &mut |piece| match piece {
                Piece::Node { block } => nodes.insert(block),
                Piece::Data {
                    logical,
                    physical,
                    len,
                    unwritten,
                } => {
                    if !unwritten {
                        runs.push((logical, physical, len));
                    }
                    true
                }
            });
        }
        runs.sort_unstable();
        Self {
            view,
            ino,
            size: inode.size(&view.geometry),
            runs,
        }
    }

    fn bad(&self, block: u32, why: &'static str) -> Finding {
        let ino = self.ino;
        Finding::QuotaTree { ino, block, why }
    }

    /// Block of the device with a block of the file, and its byte there.
    pub(super) fn place(&self, number: u32) -> Option<(u64, usize)> {
        let at = u64::from(number).checked_mul(QUOTA_BLOCK as u64)?;
        let size = u64::from(self.view.geometry.block_size());
        let logical = at / size;
        let after = self.runs.partition_point(|run| run.0 <= logical);
        let (first, physical, len) = *self.runs.get(after.checked_sub(1)?)?;
        let within = logical - first;
        (within < len).then(|| (physical.saturating_add(within), (at % size) as usize))
    }

    /// Blocks of the file from the first one on that are inside its size and have a place.
    pub(super) fn room(&self) -> u32 {
        let most = u32::try_from(self.size / QUOTA_BLOCK as u64).unwrap_or(u32::MAX);
        let per_block = u64::from(self.view.geometry.block_size()) / QUOTA_BLOCK as u64;
        let mut end = 0;
        for (first, _, len) in &self.runs {
            if *first > end {
                break;
            }
            end = end.max(first.saturating_add(*len));
        }
        let mapped = u32::try_from(end.saturating_mul(per_block)).unwrap_or(u32::MAX);
        most.min(mapped)
    }

    fn block(&self, number: u32) -> Result<Vec<u8>, Finding> {
        let (block, at) = self
            .place(number)
            .ok_or_else(|| self.bad(number, "is a hole"))?;
        let bytes = self.view.block(block)?;
        let bytes = bytes.get(at..at.saturating_add(QUOTA_BLOCK));
        let short = || self.bad(number, "is larger than a block of the file system");
        Ok(bytes.ok_or_else(short)?.to_vec())
    }

    fn info(&self, kind: QuotaKind) -> Result<QuotaInfo, Finding> {
        let ino = self.ino;
        let first = self.block(0).map_err(|_| Finding::QuotaBad { ino })?;
        if QuotaKind::recognise(&first) != Some((kind, 1)) {
            return Err(Finding::QuotaBad { ino });
        }
        QuotaInfo::read(first.get(INFO_AT..).unwrap_or_default())
            .map_err(|_| Finding::QuotaBad { ino })
    }

    /// Reads a file whose tree is intact.
    fn read(&self, kind: QuotaKind) -> Result<Content, Finding> {
        let info = self.info(kind)?;
        let blocks = info.blocks.get();
        if u64::from(blocks) > self.size.div_ceil(QUOTA_BLOCK as u64) || blocks <= QUOTA_ROOT {
            return Err(self.bad(0, "has a number of blocks that the file has not"));
        }
        for (number, why) in [
            (info.free_block.get(), "names a free block past the end"),
            (
                info.free_entry.get(),
                "names a block with room past the end",
            ),
        ] {
            if number != 0 && (number <= QUOTA_ROOT || number >= blocks) {
                return Err(self.bad(0, why));
            }
        }
        let mut tree = Tree {
            file: self,
            blocks,
            seen: HashSet::from([0, QUOTA_ROOT]),
            leaves: HashMap::new(),
            content: Content {
                grace: Some((info.space_grace.get(), info.inode_grace.get())),
                entries: BTreeMap::new(),
            },
        };
        tree.node(QUOTA_ROOT, 0, 0)?;
        let unreferenced = tree.leaves.iter().find(|(_, leaf)| !leaf.is_empty());
        if let Some((leaf, _)) = unreferenced {
            return Err(self.bad(*leaf, UNREACHED));
        }
        for number in self.candidates().take_while(|number| *number < blocks) {
            let reached = tree.seen.contains(&number) || tree.leaves.contains_key(&number);
            if !reached && self.leaf_at(number).is_some_and(|leaf| !leaf.is_empty()) {
                return Err(self.bad(number, UNREACHED));
            }
        }
        Ok(tree.content)
    }

    /// The entries of a damaged file, from all blocks that look like blocks of entries. The last
    /// entry of an id counts. Nothing else is known about an owner's limits.
    pub(super) fn salvage(&self, kind: QuotaKind) -> Content {
        let info = self.info(kind).ok();
        let mut content = Content {
            grace: info.map(|info| (info.space_grace.get(), info.inode_grace.get())),
            entries: BTreeMap::new(),
        };
        for number in self.candidates() {
            let found = self.leaf_at(number).unwrap_or_default();
            content.entries.extend(found);
            if content.entries.len() > MOST_OWNERS {
                break;
            }
        }
        content
    }

    /// Blocks that may have entries.
    fn candidates(&self) -> std::ops::Range<u32> {
        QUOTA_ROOT + 1..self.room().min(MOST_BLOCKS)
    }

    /// The entries of a block that looks like a block of entries.
    fn leaf_at(&self, number: u32) -> Option<HashMap<u32, QuotaEntry>> {
        let bytes = self.block(number).ok()?;
        self.leaf(number, &bytes).ok()
    }

    /// The entries of a block.
    fn leaf(&self, number: u32, bytes: &[u8]) -> Result<HashMap<u32, QuotaEntry>, Finding> {
        let bad = |why| self.bad(number, why);
        let head = QuotaLeaf::read(bytes).map_err(|_| bad("is no block of entries"))?;
        if head.pad1.get() != 0 || head.pad2.get() != 0 {
            return Err(bad("is no block of entries"));
        }
        let mut entries = HashMap::new();
        for slot in 0..QUOTA_ENTRIES {
            let at = QuotaLeaf::SIZE + slot * QuotaEntry::SIZE;
            let stored = QuotaEntry::read(bytes.get(at..).unwrap_or_default());
            let stored = stored.map_err(|_| bad("is no block of entries"))?;
            if stored.is_free() {
                continue;
            }
            if stored.pad.get() != 0 {
                return Err(bad("is no block of entries"));
            }
            let values = stored.loaded();
            if entries.insert(values.id.get(), values).is_some() {
                return Err(bad("has two entries of an owner"));
            }
        }
        if entries.len() != usize::from(head.entries.get()) {
            return Err(bad("has another number of entries than it counts"));
        }
        Ok(entries)
    }
}

/// The tree of a file that is being read.
struct Tree<'f, 'a> {
    file: &'f QuotaFile<'a>,
    /// Blocks of the file.
    blocks: u32,
    /// Nodes that were read.
    seen: HashSet<u32>,
    /// Entries of blocks to which no reference led yet.
    leaves: HashMap<u32, HashMap<u32, QuotaEntry>>,
    content: Content,
}

impl Tree<'_, '_> {
    /// Reads a node and everything below it. `prefix`: the bytes of the ids above it.
    fn node(&mut self, node: u32, level: u32, prefix: u32) -> Result<(), Finding> {
        let bytes = self.file.block(node)?;
        for (byte, word) in (0_u32..).zip(bytes.chunks_exact(4)) {
            let word = word.first_chunk().copied().unwrap_or_default();
            let next = u32::from_le_bytes(word);
            if next == 0 {
                continue;
            }
            if next <= QUOTA_ROOT || next >= self.blocks {
                return Err(self.file.bad(node, "has a reference past the end"));
            }
            let id = prefix << 8 | byte;
            if level + 1 == QUOTA_DEPTH {
                self.entry(node, next, id)?;
                continue;
            }
            if !self.seen.insert(next) || self.leaves.contains_key(&next) {
                return Err(self.file.bad(next, "has two references"));
            }
            self.bounded(next)?;
            self.node(next, level + 1, id)?;
        }
        Ok(())
    }

    /// Takes the entry of an id from the block to which its reference leads.
    fn entry(&mut self, node: u32, leaf: u32, id: u32) -> Result<(), Finding> {
        if self.seen.contains(&leaf) {
            return Err(self.file.bad(leaf, "has two references"));
        }
        if !self.leaves.contains_key(&leaf) {
            let entries = self.file.leaf(leaf, &self.file.block(leaf)?)?;
            self.leaves.insert(leaf, entries);
        }
        let entries = self.leaves.get_mut(&leaf);
        let values = entries.and_then(|entries| entries.remove(&id));
        let missing = || {
            self.file
                .bad(node, "leads an owner to a block without its entry")
        };
        self.content.entries.insert(id, values.ok_or_else(missing)?);
        self.bounded(node)
    }

    /// Refuses a tree that would need too much memory.
    fn bounded(&self, node: u32) -> Result<(), Finding> {
        let blocks = self.seen.len() + self.leaves.len();
        if self.content.entries.len() > MOST_OWNERS || blocks > MOST_BLOCKS as usize {
            return Err(self
                .file
                .bad(node, "is part of a tree with too many owners"));
        }
        Ok(())
    }
}
