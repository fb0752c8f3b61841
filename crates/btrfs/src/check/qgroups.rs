//! Compares the numbers of quota groups with the extents that their subvolumes refer to.
//!
//! # How it works
//! A group's *referenced* bytes are all extents, including tree blocks, that one of its subvolumes
//! reaches. Its *exclusive* bytes are those that no subvolume outside the group reaches. The check
//! determines, for each extent, the set of subvolumes that reach it, in one descent through all
//! subvolumes at once. It takes blocks by level, highest first, so that all parents of a block are
//! known before the block. Each block is read once, however many snapshots share it. Sets are
//! interned.
//!
//! Nothing is compared if the numbers need not be valid: quotas off, inconsistent, of an earlier
//! generation or being rescanned, a subvolume half deleted. Neither is anything compared if the sets
//! of very many snapshots would take too much memory. Simple quotas have a
//! [count of their own](super::simple_quotas).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use sapwood_btrfs_format::{Block, InlineRef, Key, QgroupInfo, QgroupStatus, kind, objectid};

use super::finding::Finding;
use super::refs::{Use, uses};
use super::state::{Check, Pointer};
use super::walk::{Walk, entries};

/// Quotas are on, and no flag marks the numbers as inconsistent (or of another kind).
const RIGHT: u64 = 1;
/// Simple quotas are on, and no flag marks the numbers as inconsistent.
const SIMPLE: u64 = 9;
/// First bit of the level in a group's id. Subvolumes have level zero.
const LEVEL_SHIFT: u32 = 48;
/// Most ids that all sets of subvolumes together may have.
const MOST_IDS: usize = 8 << 20;

/// Contents of the quota tree.
#[derive(Default)]
pub(super) struct Quotas {
    flags: u64,
    /// Generation of the last commit that kept the numbers.
    generation: u64,
    /// With simple quotas, the first transaction whose extents count.
    simple_since: u64,
    groups: BTreeMap<u64, QgroupInfo>,
    /// Member groups of each group.
    members: BTreeMap<u64, Vec<u64>>,
}

impl Quotas {
    fn take(&mut self, key: Key, data: &[u8]) {
        match key.kind {
            kind::QGROUP_STATUS => {
                let status = QgroupStatus::read(data).unwrap_or_default();
                (self.flags, self.generation) = (status.flags.get(), status.generation.get());
                let since = data
                    .get(QgroupStatus::SIZE..)
                    .and_then(|rest| rest.first_chunk());
                self.simple_since = since.map_or(0, |bytes| u64::from_le_bytes(*bytes));
            }
            kind::QGROUP_INFO => {
                let info = QgroupInfo::read(data);
                self.groups.extend(info.map(|info| (key.offset, info)));
            }
            // There is one item in each direction.
            kind::QGROUP_RELATION if key.objectid < key.offset => {
                let members = self.members.entry(key.offset).or_default();
                members.push(key.objectid);
            }
            _ => {}
        }
    }

    /// All groups.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&u64, &QgroupInfo)> {
        self.groups.iter()
    }

    /// The subvolumes of a group. A member has a lower level, so the recursion ends.
    pub(super) fn subvolumes(&self, group: u64, into: &mut BTreeSet<u64>) {
        if group >> LEVEL_SHIFT == 0 {
            into.insert(group);
            return;
        }
        for member in self.members.get(&group).into_iter().flatten() {
            if member >> LEVEL_SHIFT < group >> LEVEL_SHIFT {
                self.subvolumes(*member, into);
            }
        }
    }
}

/// Sets of subvolumes, by number.
#[derive(Default)]
struct Sets {
    all: Vec<Rc<[u64]>>,
    numbers: HashMap<Rc<[u64]>, usize>,
    unions: HashMap<(usize, usize), usize>,
    ids: usize,
}

impl Sets {
    fn number(&mut self, set: Vec<u64>) -> usize {
        if let Some(number) = self.numbers.get(set.as_slice()) {
            return *number;
        }
        self.ids += set.len();
        let (set, number): (Rc<[u64]>, usize) = (set.into(), self.all.len());
        self.all.push(Rc::clone(&set));
        self.numbers.insert(set, number);
        number
    }

    fn union(&mut self, a: usize, b: usize) -> usize {
        let pair = (a.min(b), a.max(b));
        if a == b {
            return a;
        }
        if let Some(known) = self.unions.get(&pair) {
            return *known;
        }
        let both = [a, b].into_iter().filter_map(|n| self.all.get(n));
        let both: BTreeSet<u64> = both.flat_map(|set| set.iter().copied()).collect();
        let number = self.number(both.into_iter().collect());
        self.unions.insert(pair, number);
        number
    }

    /// Adds a set to the known set of an extent.
    fn join<T>(&mut self, known: &mut (T, Option<usize>), set: usize) {
        known.1 = Some(known.1.map_or(set, |old| self.union(old, set)));
    }
}

/// Blocks of one level that are still to be read, by address, with the set of subvolumes that reach
/// them.
type Level = HashMap<u64, (Pointer, Option<usize>)>;

impl Check<'_> {
    /// Walks the quota tree and compares its numbers, if they should be valid.
    pub(super) fn quota_tree(&mut self, root: &Pointer) {
        let tree = objectid::QUOTA_TREE;
        let mut quotas = Quotas::default();
        let holes = std::mem::take(&mut self.uses_incomplete);
        self.walk(&Walk::own(tree), root, &mut |_, block| {
            entries(block).for_each(|(key, data)| quotas.take(key, data));
        });
        self.uses_incomplete |= holes;
        if quotas.flags == SIMPLE && !self.uses_incomplete {
            self.compare_simple_quotas(&quotas, quotas.simple_since);
        }
        // Another generation: a program wrote that does not keep the numbers.
        let current = quotas.generation == self.sb.generation.get();
        if quotas.flags == RIGHT && current && !self.uses_incomplete && !self.roots.any_dead() {
            self.compare_groups_of_quotas(&quotas);
        }
    }

    fn compare_groups_of_quotas(&mut self, quotas: &Quotas) {
        let Some(bytes) = self.bytes_by_set() else {
            return;
        };
        for (group, info) in &quotas.groups {
            let mut members = BTreeSet::new();
            quotas.subvolumes(*group, &mut members);
            let (mut referenced, mut exclusive) = (0u64, 0u64);
            for (set, bytes) in &bytes {
                if set.iter().any(|id| members.contains(id)) {
                    referenced = referenced.saturating_add(*bytes);
                    if set.iter().all(|id| members.contains(id)) {
                        exclusive = exclusive.saturating_add(*bytes);
                    }
                }
            }
            self.compare_group(*group, info, (referenced, exclusive));
        }
    }

    /// Compares the numbers of a group with the referenced and exclusive bytes that were counted.
    pub(super) fn compare_group(
        &mut self,
        group: u64,
        info: &QgroupInfo,
        (referenced, exclusive): (u64, u64),
    ) {
        for (field, found, expected) in [
            ("referenced", info.referenced.get(), referenced),
            ("exclusive", info.exclusive.get(), exclusive),
        ] {
            if found != expected {
                self.found(Finding::QuotaGroup {
                    level: group >> LEVEL_SHIFT,
                    id: group & ((1 << LEVEL_SHIFT) - 1),
                    field,
                    found,
                    expected,
                });
            }
        }
    }

    /// Bytes of extents by the set of subvolumes that reach them. `None` if that takes too much
    /// memory.
    fn bytes_by_set(&self) -> Option<Vec<(Rc<[u64]>, u64)>> {
        let mut sets = Sets::default();
        let mut levels: BTreeMap<u8, Level> = BTreeMap::new();
        let mut data: HashMap<u64, (u64, Option<usize>)> = HashMap::new();
        let mut bytes: HashMap<usize, u64> = HashMap::new();
        for tree in self.roots.subvolumes() {
            let root = self.roots.pointer(tree)?;
            let set = sets.number(vec![tree]);
            let level = levels.entry(root.level).or_default();
            sets.join(level.entry(root.logical).or_insert((root, None)), set);
        }
        while let Some((level, blocks)) = levels.pop_last() {
            for (_, (at, set)) in blocks {
                let set = set?;
                let all = bytes.entry(set).or_default();
                *all = all.saturating_add(self.nodesize());
                // The subvolume that a block was created for does not matter here.
                let block = self.quiet_block(objectid::FS_TREE, &at)?;
                let block = Block::new(&block).ok()?;
                uses(&block, false, 0, &mut |what, _: &InlineRef| match what {
                    Use::Block(child) if child.level < level => {
                        let below = levels.entry(child.level).or_default();
                        let known = below.entry(child.logical).or_insert((child, None));
                        sets.join(known, set);
                    }
                    Use::Block(_) => {}
                    Use::Data { bytenr, len } => {
                        sets.join(data.entry(bytenr).or_insert((len, None)), set);
                    }
                });
            }
            if sets.ids > MOST_IDS {
                return None;
            }
        }
        for (len, set) in data.into_values() {
            let all = bytes.entry(set?).or_default();
            *all = all.saturating_add(len);
        }
        let of_number = |(number, bytes)| Some((Rc::clone(sets.all.get(number)?), bytes));
        Some(bytes.into_iter().filter_map(of_number).collect())
    }
}
