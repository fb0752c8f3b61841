//! Records of a check about every block and inode: sets and counts, kept only for groups in use;
//! facts about directories and attributes.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use sapwood_ext4_format::{DirFormat, Geometry, casefold, dir_type};

/// Clusters, by their number from the first cluster of group 0.
#[derive(Debug)]
pub(super) struct ClusterSet {
    per_group: u32,
    first_block: u64,
    ratio_bits: u32,
    groups: HashMap<u64, Box<[u64]>>,
}

impl ClusterSet {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            per_group: geometry.clusters_per_group().max(1),
            first_block: geometry.first_data_block().into(),
            ratio_bits: geometry.cluster_ratio_bits(),
            groups: HashMap::new(),
        }
    }

    /// The cluster of a block.
    pub(super) fn cluster(&self, block: u64) -> u64 {
        block.saturating_sub(self.first_block) >> self.ratio_bits
    }

    fn place(&self, cluster: u64) -> (u64, usize, u64) {
        let at = cluster % u64::from(self.per_group);
        let group = cluster / u64::from(self.per_group);
        (group, (at / 64) as usize, 1 << (at % 64))
    }

    /// Adds the cluster of a block. Returns whether it was in the set already.
    pub(super) fn insert(&mut self, block: u64) -> bool {
        let (group, word, bit) = self.place(self.cluster(block));
        let words = self.per_group.div_ceil(64) as usize;
        let bits = self.groups.entry(group);
        let bits = bits.or_insert_with(|| vec![0; words].into());
        let Some(word) = bits.get_mut(word) else {
            return true;
        };
        let was = *word & bit != 0;
        *word |= bit;
        was
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        let (group, word, bit) = self.place(self.cluster(block));
        let bits = self.groups.get(&group);
        bits.and_then(|bits| bits.get(word))
            .is_some_and(|word| word & bit != 0)
    }

    /// Bits of a group, in the form of its bitmap; `None` if all are zero.
    pub(super) fn group(&self, group: u32) -> Option<&[u64]> {
        self.groups.get(&u64::from(group)).map(|bits| &**bits)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

/// The known facts about an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// Type as in a directory entry; 0 if unknown.
    pub(super) kind: u8,
    pub(super) in_use: bool,
    /// The validator refused it.
    pub(super) bad: bool,
    /// It contains an attribute's value.
    pub(super) is_value: bool,
    pub(super) encrypted: bool,
    pub(super) orphan: bool,
    pub(super) links: u16,
    /// Number of its names, including `.` and `..`.
    pub(super) names: u32,
}

/// Facts about all inodes in use.
#[derive(Debug, Default)]
pub(super) struct Notes {
    per_group: u32,
    groups: HashMap<u32, Vec<Note>>,
}

impl Notes {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self {
            per_group: geometry.inodes_per_group().max(1),
            groups: HashMap::new(),
        }
    }

    fn place(&self, ino: u32) -> (u32, usize) {
        let index = ino.saturating_sub(1);
        (index / self.per_group, (index % self.per_group) as usize)
    }

    pub(super) fn get(&self, ino: u32) -> Note {
        let (group, at) = self.place(ino);
        let notes = self.groups.get(&group);
        notes
            .and_then(|notes| notes.get(at))
            .copied()
            .unwrap_or_default()
    }

    /// The facts about an inode, to change. `None` for inode 0.
    pub(super) fn get_mut(&mut self, ino: u32) -> Option<&mut Note> {
        let (group, at) = self.place(ino);
        let notes = self.groups.entry(group).or_default();
        if at >= notes.len() {
            notes.resize(at + 1, Note::default());
        }
        notes.get_mut(at)
    }

    /// Facts about a group's inodes, possibly only the first ones.
    pub(super) fn group(&self, group: u32) -> &[Note] {
        self.groups.get(&group).map_or(&[], |notes| notes)
    }
}

/// The known facts about a directory's position.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parents {
    /// Directory that contains its first name; 0 if none was seen.
    pub(super) named_in: u32,
    /// Inode of its `..`; 0 if none was seen.
    pub(super) dotdot: u32,
    /// Number of its names, without `.` and `..`.
    pub(super) names: u32,
}

/// A block of attributes that several inodes may use.
#[derive(Debug)]
pub(super) struct BlockUse {
    /// Reference count in its header.
    pub(super) refcount: u32,
    /// Inodes that use it.
    pub(super) seen: u64,
    /// The contents are unknown.
    pub(super) bad: bool,
    /// Inodes with values that it names, and their clusters.
    pub(super) values: Vec<u32>,
    pub(super) clusters: u64,
}

/// An inode that contains an attribute's value.
#[derive(Debug, Default)]
pub(super) struct ValueUse {
    pub(super) seen: u64,
    pub(super) clusters: u64,
}

/// A directory that is being read.
pub(super) struct Directory<'a> {
    pub(super) ino: u32,
    pub(super) format: DirFormat,
    pub(super) seed: u32,
    pub(super) encrypted: bool,
    pub(super) folds: bool,
    /// Entries may lack the file type despite the feature: the Hurd writes none.
    pub(super) untyped: bool,
    /// Runs of blocks: logical, physical, length; in order.
    pub(super) runs: Vec<(u64, u64, u64)>,
    /// Number of blocks, from its size.
    pub(super) blocks: u32,
    pub(super) names: HashSet<u64>,
    pub(super) hasher: &'a RandomState,
}

impl Directory<'_> {
    /// Location of a block.
    pub(super) fn physical(&self, logical: u32) -> Option<u64> {
        let logical = u64::from(logical);
        let at = self.runs.partition_point(|run| run.0 <= logical);
        let (first, physical, len) = *self.runs.get(at.checked_sub(1)?)?;
        let within = logical - first;
        (within < len).then(|| physical + within)
    }

    /// Whether an entry with this type must match its inode's type.
    pub(super) fn typed(&self, found: u8) -> bool {
        self.format.file_type && !(self.untyped && found == dir_type::UNKNOWN)
    }

    /// Enters a name. Returns whether it is new.
    pub(super) fn enter(&mut self, name: &[u8]) -> bool {
        let folded = self.folds.then(|| casefold(name)).flatten();
        let name = folded.as_deref().unwrap_or(name);
        self.names.insert(self.hasher.hash_one(name))
    }
}
