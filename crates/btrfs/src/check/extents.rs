//! Compares the extent tree with the actual use of space.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use sapwood_btrfs_format::{
    Block, BlockGroupFlags, BlockGroupItem, CompatRo, ExtentFlags, ExtentItemRef, InlineRef, Key,
    SUPER_OFFSETS, header_flag, kind, objectid,
};

use super::finding::Finding;
use super::refs::{Use, identity, listed};
use super::source::byte_of;
use super::state::{Check, Pointer};
use super::walk::{Walk, entries};

/// A 128-bit hash. Two values with equal hashes are taken for equal.
pub(super) fn hash(value: &impl Hash) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        value.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    (half(1) << 64) | half(2)
}

/// An extent: its item, and its actual use.
#[derive(Clone, Copy, Default)]
struct Extent {
    /// 0 if it has no item.
    len: u64,
    refs: u64,
    generation: u64,
    /// Sum of the listed refs.
    listed: u64,
    /// Number of uses.
    wanted: u64,
    /// Hashes of the uses minus hashes of the listed refs.
    balance: u128,
    used_len: u64,
    used_generation: u64,
    level: u8,
    used_level: u8,
    is_data: bool,
    full_backref: bool,
    /// Whether `full_backref` has to be set, as far as the block shows it.
    wanted_full: Option<bool>,
    /// A tree of which the block shows it.
    full_tree: u64,
    entered: bool,
    used_as_data: bool,
    used_as_block: bool,
    length_reported: bool,
}

/// All extents by address.
#[derive(Default)]
pub(super) struct Extents {
    all: HashMap<u64, Extent>,
    /// Refs before their extent item, or without one.
    orphaned: Vec<(u64, Key)>,
    /// Start and length, ascending. Built when the log is walked.
    by_place: Vec<(u64, u64)>,
    /// Blocks that were reached from another tree than their owner: tree, address, owner.
    foreign: Vec<(u64, u64, u64)>,
}

impl Extents {
    pub(super) fn is_full_backref(&self, bytenr: u64) -> bool {
        self.all.get(&bytenr).is_some_and(|e| e.full_backref)
    }

    pub(super) fn is_listed(&self, bytenr: u64) -> bool {
        self.all.get(&bytenr).is_some_and(|e| e.len != 0)
    }

    /// Whether more than one tree or parent may lead to a block.
    pub(super) fn is_shared(&self, bytenr: u64) -> bool {
        self.all.get(&bytenr).is_some_and(|e| e.refs > 1)
    }

    /// Whether a listed extent overlaps a tree block's range.
    pub(super) fn overlap(&mut self, bytenr: u64, len: u64) -> bool {
        if self.by_place.is_empty() {
            self.by_place = self.sorted();
        }
        let next = self
            .by_place
            .partition_point(|(at, _)| *at < bytenr.saturating_add(len));
        let last = next.checked_sub(1).and_then(|n| self.by_place.get(n));
        last.is_some_and(|(at, len)| at.saturating_add(*len) > bytenr)
    }

    pub(super) fn used_len(&self, bytenr: u64) -> u64 {
        self.all.get(&bytenr).map_or(0, |e| e.used_len)
    }

    /// Marks a block as seen. Returns false if it was already.
    pub(super) fn enter(&mut self, bytenr: u64) -> bool {
        !std::mem::replace(&mut self.all.entry(bytenr).or_default().entered, true)
    }

    pub(super) fn use_block(&mut self, at: &Pointer, nodesize: u64, reference: &InlineRef) {
        let extent = self.all.entry(at.logical).or_default();
        extent.used_as_block = true;
        extent.used_len = nodesize;
        extent.used_level = at.level;
        extent.used_generation = at.generation;
        extent.wanted += 1;
        extent.balance = extent.balance.wrapping_add(hash(&identity(reference)));
    }

    /// Records a use. A user with another length of the extent is a finding.
    pub(super) fn use_by(
        &mut self,
        what: &Use,
        nodesize: u64,
        reference: &InlineRef,
    ) -> Option<Finding> {
        let (bytenr, len) = match what {
            Use::Block(at) => {
                self.use_block(at, nodesize, reference);
                return None;
            }
            Use::Data { bytenr, len } => (*bytenr, *len),
        };
        let extent = self.all.entry(bytenr).or_default();
        extent.used_as_data = true;
        extent.used_len = len;
        extent.wanted += 1;
        extent.balance = extent.balance.wrapping_add(hash(&identity(reference)));
        if extent.len == 0 || extent.len == len || extent.length_reported {
            return None;
        }
        extent.length_reported = true;
        Some(Finding::ExtentLength {
            bytenr,
            found: extent.len,
            used: len,
        })
    }

    fn list(&mut self, key: &Key, data: &[u8], nodesize: u64) {
        let Ok(item) = ExtentItemRef::parse(key.kind, data) else {
            return;
        };
        let skinny = key.kind == kind::METADATA_ITEM;
        let extent = self.all.entry(key.objectid).or_default();
        extent.len = if skinny { nodesize } else { key.offset };
        extent.refs = item.refs;
        extent.generation = item.generation;
        extent.is_data = item.flags.contains(ExtentFlags::DATA);
        extent.full_backref = item.flags.contains(ExtentFlags::FULL_BACKREF);
        extent.level = match item.tree_block {
            Some((_, level)) => level,
            None => key.offset.try_into().unwrap_or(u8::MAX),
        };
    }

    fn list_refs(&mut self, key: &Key, data: &[u8]) {
        let extent = self.all.entry(key.objectid).or_default();
        if extent.len == 0 {
            self.orphaned.push((key.objectid, *key));
        }
        for reference in listed(key, data) {
            let count = reference.count();
            extent.listed = extent.listed.saturating_add(count);
            let sum = hash(&identity(&reference)).wrapping_mul(count.into());
            extent.balance = extent.balance.wrapping_sub(sum);
        }
    }

    /// Start and length of all listed data extents, ascending.
    pub(super) fn data(&self) -> Vec<(u64, u64)> {
        let data = self.all.iter().filter(|(_, e)| e.len != 0 && e.is_data);
        let mut data: Vec<_> = data
            .map(|(at, e)| (*at, at.saturating_add(e.len)))
            .collect();
        data.sort_unstable();
        data
    }

    fn sorted(&self) -> Vec<(u64, u64)> {
        let listed = self.all.iter().filter(|(_, e)| e.len != 0);
        let mut sorted: Vec<_> = listed.map(|(at, e)| (*at, e.len)).collect();
        sorted.sort_unstable();
        sorted
    }
}

impl Check<'_> {
    /// Walks the extent tree (and the block groups in it).
    pub(super) fn extent_tree(&mut self) {
        let Some(root) = self.tree(objectid::EXTENT_TREE) else {
            return;
        };
        let nodesize = self.nodesize();
        self.walk(
            &Walk::own(objectid::EXTENT_TREE),
            &root,
            &mut |check, block| {
                for (key, data) in entries(block) {
                    match key.kind {
                        kind::EXTENT_ITEM | kind::METADATA_ITEM => {
                            check.extents.list(&key, data, nodesize);
                            check.extents.list_refs(&key, data);
                        }
                        kind::TREE_BLOCK_REF
                        | kind::SHARED_BLOCK_REF
                        | kind::EXTENT_DATA_REF
                        | kind::SHARED_DATA_REF => check.extents.list_refs(&key, data),
                        kind::BLOCK_GROUP_ITEM => {
                            check.block_group(objectid::EXTENT_TREE, &key, data);
                        }
                        _ => check.unexpected(objectid::EXTENT_TREE, block, key),
                    }
                }
            },
        );
    }

    /// An item of a kind that its tree does not have.
    pub(super) fn unexpected(&mut self, tree: u64, block: &Block<'_>, key: Key) {
        self.found(Finding::UnexpectedItem {
            tree,
            logical: block.bytenr(),
            key,
        });
    }

    pub(super) fn block_group(&mut self, tree: u64, key: &Key, data: &[u8]) {
        let own_tree = self.sb.compat_ro().contains(CompatRo::BLOCK_GROUP_TREE);
        let logical = key.objectid;
        let place = if own_tree {
            objectid::BLOCK_GROUP_TREE
        } else {
            objectid::EXTENT_TREE
        };
        let Ok(item) = BlockGroupItem::read(data) else {
            return;
        };
        let flags = BlockGroupFlags::from_bits_retain(item.flags.get());
        let fresh = self.groups.add(logical, key.offset, flags, item.used.get());
        if tree != place || !fresh {
            self.found(Finding::BlockGroupPlace { logical, tree });
        }
    }

    /// Records a block of a subvolume that charges another subvolume than the one through which it
    /// was reached. The other one must still use it. Also records whether the block must charge its
    /// uses to itself.
    pub(super) fn note_owner(&mut self, tree: u64, block: &Block<'_>) {
        let (bytenr, owner) = (block.bytenr(), block.owner());
        if let Some(full) = self.charges_itself(tree, block) {
            let extent = self.extents.all.entry(bytenr).or_default();
            (extent.wanted_full, extent.full_tree) = (Some(full), tree);
        }
        let relocated = block.header().flags.get() & header_flag::RELOC != 0;
        let in_use = objectid::is_fs_tree(tree) && !self.roots.in_progress(tree);
        if relocated && in_use && self.is_root(tree, bytenr) {
            self.found(Finding::RootMoved { tree, bytenr });
        }
        let ordinary = objectid::is_fs_tree(tree) && objectid::is_fs_tree(owner) && !relocated;
        if ordinary && owner != tree && !self.extents.is_full_backref(bytenr) {
            self.extents.foreign.push((tree, bytenr, owner));
        }
    }

    fn is_root(&self, tree: u64, bytenr: u64) -> bool {
        let root = self.roots.pointer(tree);
        root.is_some_and(|root| root.logical == bytenr)
    }

    /// Whether a block that was reached through a tree must charge its uses to itself. `None`: the
    /// other trees that lead to it decide, or an interrupted operation does.
    fn charges_itself(&self, tree: u64, block: &Block<'_>) -> Option<bool> {
        let moved = block.header().flags.get() & header_flag::RELOC != 0;
        let own = block.owner() == tree;
        match tree {
            objectid::TREE_LOG | objectid::TREE_RELOC => None,
            objectid::DATA_RELOC_TREE => (own && !moved).then_some(false),
            id if !objectid::is_fs_tree(id) => Some(false),
            // A deletion and a balance set the flag of blocks that the tree still leads to.
            id if self.roots.in_progress(id) => None,
            id if self.is_root(id, block.bytenr()) => Some(false),
            _ if moved => Some(true),
            _ => own.then_some(false),
        }
    }

    /// Checks that the owners of the recorded blocks are among the refs of their extents.
    fn compare_owners(&mut self) {
        let mut foreign = std::mem::take(&mut self.extents.foreign);
        let root = self.roots.pointer(objectid::EXTENT_TREE);
        let Some(root) = root.filter(|_| !foreign.is_empty()) else {
            return;
        };
        if self.has_hole(objectid::EXTENT_TREE) {
            return;
        }
        foreign.sort_unstable_by_key(|(_, bytenr, _)| *bytenr);
        foreign.retain(|(_, bytenr, _)| self.extents.is_listed(*bytenr));
        let mut confirmed = HashSet::new();
        let tree = objectid::EXTENT_TREE;
        self.range(tree, &root, &Key::MIN, &Key::MAX, &mut |key, data| {
            let at = foreign.binary_search_by_key(&key.objectid, |(_, bytenr, _)| *bytenr);
            let owner = at.ok().and_then(|at| foreign.get(at)).map(|f| f.2);
            let Some(root) = owner else {
                return;
            };
            if listed(&key, data).contains(&InlineRef::TreeBlock { root }) {
                confirmed.insert(key.objectid);
            }
        });
        for (tree, bytenr, owner) in foreign {
            if !confirmed.contains(&bytenr) {
                self.found(Finding::BlockOwner {
                    tree,
                    bytenr,
                    owner,
                });
            }
        }
    }

    /// Compares all extents with their uses, block groups and free space.
    pub(super) fn compare_extents(&mut self) {
        let mut watched = Vec::new();
        let mut odd = Vec::new();
        for (bytenr, extent) in &self.extents.all {
            let wrong = self.compare_extent(*bytenr, extent, &mut odd);
            if wrong {
                watched.push(*bytenr);
            }
        }
        odd.sort_by_key(|(bytenr, _)| *bytenr);
        odd.into_iter().for_each(|(_, finding)| self.found(finding));
        watched.sort_unstable();
        // In a badly damaged image the details of a few extents are enough.
        watched.truncate(self.options.max_findings);
        self.examine_refs(&watched);
        for (bytenr, key) in std::mem::take(&mut self.extents.orphaned) {
            if !self.extents.is_listed(bytenr) && !self.has_hole(objectid::EXTENT_TREE) {
                self.found(Finding::RefNoExtent { bytenr, key });
            }
        }
        self.compare_owners();
        let sorted = self.extents.sorted();
        self.compare_places(&sorted);
        self.compare_free_space(&sorted);
        self.compare_checksums();
    }

    /// Findings for one extent. Returns true if its refs need a closer examination.
    fn compare_extent(&self, bytenr: u64, extent: &Extent, odd: &mut Vec<(u64, Finding)>) -> bool {
        let mut note = |finding| odd.push((bytenr, finding));
        if extent.len == 0 {
            return extent.wanted > 0 && !self.has_hole(objectid::EXTENT_TREE);
        }
        if extent.refs != extent.listed && !self.has_hole(objectid::EXTENT_TREE) {
            let (found, expected) = (extent.refs, extent.listed);
            note(Finding::RefCount {
                bytenr,
                found,
                expected,
            });
        }
        if extent.wanted == 0 {
            if !self.uses_incomplete {
                note(Finding::ExtentUnused {
                    bytenr,
                    len: extent.len,
                });
            }
            return false;
        }
        if (extent.is_data && extent.used_as_block) || (!extent.is_data && extent.used_as_data) {
            note(Finding::ExtentKind { bytenr });
            return false;
        }
        if let Some(wanted) = extent.wanted_full.filter(|_| !extent.is_data)
            && wanted != extent.full_backref
        {
            let (found, tree) = (extent.full_backref, extent.full_tree);
            note(Finding::FullBackref {
                bytenr,
                found,
                tree,
            });
        }
        if !extent.is_data {
            if extent.level != extent.used_level {
                let (found, expected) = (extent.level, extent.used_level);
                note(Finding::ExtentLevel {
                    bytenr,
                    found,
                    expected,
                });
            }
            if extent.generation != extent.used_generation {
                let (found, expected) = (extent.generation, extent.used_generation);
                note(Finding::ExtentGeneration {
                    bytenr,
                    found,
                    expected,
                });
            }
        }
        extent.balance != 0
    }

    /// Checks overlaps, block groups, superblocks and sums.
    fn compare_places(&mut self, sorted: &[(u64, u64)]) {
        let mut before = 0;
        let supers = self.super_places();
        for &(bytenr, len) in sorted {
            let end = bytenr.saturating_add(len);
            if bytenr < before {
                self.found(Finding::ExtentOverlap {
                    bytenr,
                    end: before,
                });
            }
            before = before.max(end);
            for (place, len, offset) in &supers {
                if bytenr < place + len && *place < end {
                    self.found(Finding::ExtentOnSuper {
                        bytenr,
                        offset: *offset,
                    });
                }
            }
            let Some(flags) = self.groups.charge(bytenr, len) else {
                if !self.has_hole(self.group_tree()) {
                    self.found(Finding::ExtentNoGroup { bytenr, len });
                }
                continue;
            };
            let is_data = self.extents.all.get(&bytenr).is_some_and(|e| e.is_data);
            if is_data {
                self.report.stats.data_extents += 1;
                self.report.stats.data_bytes += len;
            }
            if !belongs(is_data, flags) {
                self.found(Finding::ExtentWrongGroup { bytenr, flags });
            }
        }
        if !self.has_hole(objectid::EXTENT_TREE) {
            self.compare_used(sorted);
        }
    }

    fn compare_used(&mut self, sorted: &[(u64, u64)]) {
        for (logical, found, expected) in self.groups.used() {
            if found != expected {
                self.found(Finding::BlockGroupUsed {
                    logical,
                    found,
                    expected,
                });
            }
        }
        let expected = sorted
            .iter()
            .fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
        let found = self.sb.bytes_used.get();
        if found != expected {
            self.found(Finding::SuperBytesUsed { found, expected });
        }
    }

    /// Logical address of each superblock within a chunk, the bytes there that must not contain
    /// extents, and its offset on the device.
    pub(super) fn super_places(&self) -> Vec<(u64, u64, u64)> {
        let mut places = Vec::new();
        for (logical, chunk) in &self.source.chunks {
            for (nth, stripe) in chunk.stripes.iter().enumerate() {
                for offset in SUPER_OFFSETS {
                    let on_stripe = offset.checked_sub(stripe.offset);
                    let place = on_stripe.and_then(|at| byte_of(chunk, nth as u64, at));
                    if let Some((within, len)) = place {
                        places.push((logical.saturating_add(within), len, offset));
                    }
                }
            }
        }
        places
    }
}

/// Whether a block group may contain this kind of extent.
fn belongs(is_data: bool, flags: BlockGroupFlags) -> bool {
    if is_data {
        flags.contains(BlockGroupFlags::DATA)
    } else {
        flags.intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM)
    }
}
