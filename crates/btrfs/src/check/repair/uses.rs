//! The uses of all extents, collected from the trees alone: which extents must exist, and with
//! which refs.
//!
//! # How it works
//! Every tree is walked from its root, each block once. A block charges its children and its data
//! to its owner, as long as the owner's tree leads to the block through blocks of its own. A block
//! that only other trees lead to (snapshots of a tree that changed or was deleted), and one that a
//! balance moved, charges them to itself. Its extent item then has the `FULL_BACKREF` flag.
//!
//! Memory: about 200 bytes for each ref.
//!
//! Facts: btrfs documentation, "Btrees" and "Resolving extent backrefs".

use std::collections::{HashMap, HashSet};

use sapwood_btrfs_format::{
    Block, BlockGroupFlags, Incompat, InlineRef, Key, header_flag, objectid,
};
use thiserror::Error;

use super::super::refs::identity;
use super::super::state::{Check, Pointer, children};
use super::super::walk::{Dropped, disk_extents};

/// Why the uses of extents are not known, or a tree is not written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum Obstacle {
    /// Extents below the block would be taken for unused.
    #[error("block {logical} of tree {tree} cannot be read")]
    Unreadable { tree: u64, logical: u64 },
    /// The rules for shared blocks differ meanwhile.
    #[error("a balance was interrupted")]
    Relocation,
    /// Extent items name the subvolume that pays, which no tree has.
    #[error("simple quotas are on")]
    SimpleQuota,
    /// Two users contradict each other.
    #[error("the uses of extent {bytenr} contradict each other")]
    Contradiction { bytenr: u64 },
    /// Data without a user may belong to a file whose items are damaged.
    #[error("other damage may hide extents in use")]
    Doubt,
    /// The space of chunks may overlap.
    #[error("the map of chunks is damaged")]
    Chunks,
    /// No place for the root item of a tree.
    #[error("the root item of tree {tree} cannot be written")]
    NoRoot { tree: u64 },
    /// No room for a new tree.
    #[error("there is no free space for {blocks} tree blocks")]
    NoSpace { blocks: usize },
    /// The log uses space that no extent item has.
    #[error("the log cannot be read (--drop-log drops it)")]
    Log,
}

/// The part of an extent that only a tree block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfBlock {
    pub(super) level: u8,
    pub(super) first_key: Key,
    /// It charges its children to itself.
    pub(super) full: bool,
}

/// An extent as the trees use it.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) bytenr: u64,
    pub(super) len: u64,
    pub(super) generation: u64,
    /// `None` for data.
    pub(super) block: Option<OfBlock>,
    /// In the order of inline refs, with their counts.
    pub(super) refs: Vec<InlineRef>,
    /// Its uses contradict each other, or the uses of a neighbour.
    pub(super) odd: bool,
}

struct BlockFact {
    owner: u64,
    generation: u64,
    level: u8,
    first_key: Key,
    relocated: bool,
    /// Its owner's tree leads to it.
    reached: bool,
}

#[derive(Clone, Copy)]
struct DataFact {
    len: u64,
    generation: u64,
    odd: bool,
}

/// A pointer of a block.
struct RawRef {
    bytenr: u64,
    parent: u64,
    /// Inode and file offset, of data.
    data: Option<(u64, u64)>,
}

/// A tree to walk.
type Root = (u64, Pointer, Option<Dropped>);

struct Collector<'c, 'd> {
    check: &'c Check<'d>,
    blocks: HashMap<u64, BlockFact>,
    data: HashMap<u64, DataFact>,
    raw: Vec<RawRef>,
}

/// Collects the uses of all extents, ascending, without the blocks of the trees `skip`. Expects a
/// check that has read the root tree.
pub(super) fn collect(check: &Check<'_>, skip: &[u64]) -> Result<Vec<Used>, Obstacle> {
    if check.sb.incompat().contains(Incompat::SIMPLE_QUOTA) {
        return Err(Obstacle::SimpleQuota);
    }
    let mut roots = check.all_roots();
    if roots.iter().any(|(tree, ..)| *tree == objectid::TREE_RELOC) {
        return Err(Obstacle::Relocation);
    }
    roots.retain(|(tree, ..)| !skip.contains(tree));
    // A block that another tree has too is then entered with all its slots.
    roots.sort_by_key(|(.., dropped)| dropped.is_some());
    let mut collector = Collector {
        check,
        blocks: HashMap::new(),
        data: HashMap::new(),
        raw: Vec::new(),
    };
    for root in &roots {
        collector.walk(root)?;
    }
    for root in roots
        .iter()
        .filter(|(tree, ..)| objectid::is_fs_tree(*tree))
    {
        collector.reach(root)?;
    }
    Ok(collector.finish(&roots))
}

/// The slot from which on a block is in use, and whether the deletion continues below it.
fn first_slot(block: &Block<'_>, dropped: Option<Dropped>) -> (usize, Option<Dropped>) {
    let dropped = dropped.filter(|(_, level)| block.level() >= (*level).max(1));
    let from = dropped.map_or(0, |(key, _)| block.child_slot(&key).unwrap_or(0));
    (from, dropped.filter(|(_, level)| block.level() > *level))
}

impl Collector<'_, '_> {
    fn read(&self, tree: u64, at: &Pointer) -> Result<Vec<u8>, Obstacle> {
        let logical = at.logical;
        let bytes = self.check.quiet_block(tree, at);
        bytes.ok_or(Obstacle::Unreadable { tree, logical })
    }

    /// Enters the blocks of a tree that no tree before had.
    fn walk(&mut self, (tree, root, dropped): &Root) -> Result<(), Obstacle> {
        let mut stack = vec![(*root, *dropped, true)];
        while let Some((at, dropped, below_own)) = stack.pop() {
            if self.blocks.contains_key(&at.logical) {
                continue;
            }
            let bytes = self.read(*tree, &at)?;
            let logical = at.logical;
            let block = Block::new(&bytes).map_err(|_| Obstacle::Unreadable {
                tree: *tree,
                logical,
            })?;
            let is_fs = objectid::is_fs_tree(*tree);
            let own = block.owner() == *tree;
            // A tree changes a block together with all blocks above it.
            if is_fs && own && !below_own {
                return Err(Obstacle::Contradiction { bytenr: logical });
            }
            let fact = BlockFact {
                owner: block.owner(),
                generation: block.generation(),
                level: block.level(),
                first_key: block.first_key().unwrap_or(Key::MIN),
                relocated: is_fs && block.header().flags.get() & header_flag::RELOC != 0,
                reached: !is_fs,
            };
            self.blocks.insert(logical, fact);
            let (from, below) = first_slot(&block, dropped);
            for (slot, child) in children(&block).into_iter().enumerate().skip(from) {
                self.raw.push(RawRef {
                    bytenr: child.logical,
                    parent: logical,
                    data: None,
                });
                stack.push((child, below.filter(|_| slot == from), own));
            }
            self.file_extents(&block);
        }
        Ok(())
    }

    fn file_extents(&mut self, block: &Block<'_>) {
        for (key, extent) in disk_extents(block) {
            let new = DataFact {
                len: extent.disk_num_bytes,
                generation: extent.generation,
                odd: false,
            };
            let known = self.data.entry(extent.disk_bytenr).or_insert(new);
            known.odd |= known.len != new.len;
            known.generation = known.generation.min(new.generation);
            self.raw.push(RawRef {
                bytenr: extent.disk_bytenr,
                parent: block.bytenr(),
                data: Some((key.objectid, key.offset.wrapping_sub(extent.offset))),
            });
        }
    }

    /// Marks the blocks that their owner's tree leads to.
    fn reach(&mut self, (tree, root, dropped): &Root) -> Result<(), Obstacle> {
        let mut stack = vec![(*root, *dropped)];
        let mut seen = HashSet::new();
        while let Some((at, dropped)) = stack.pop() {
            let Some(fact) = self.blocks.get_mut(&at.logical) else {
                continue;
            };
            if fact.owner != *tree || !seen.insert(at.logical) {
                continue;
            }
            fact.reached = true;
            if at.level == 0 {
                continue;
            }
            let bytes = self.read(*tree, &at)?;
            let Ok(block) = Block::new(&bytes) else {
                continue;
            };
            let (from, below) = first_slot(&block, dropped);
            for (slot, child) in children(&block).into_iter().enumerate().skip(from) {
                stack.push((child, below.filter(|_| slot == from)));
            }
        }
        Ok(())
    }

    /// The ref of a pointer.
    fn resolve(&self, raw: &RawRef) -> InlineRef {
        let parent = raw.parent;
        let fact = self.blocks.get(&parent);
        let root = fact.map_or(0, |fact| fact.owner);
        match (raw.data, fact.is_some_and(BlockFact::full)) {
            (None, true) => InlineRef::SharedBlock { parent },
            (None, false) => InlineRef::TreeBlock { root },
            (Some(_), true) => InlineRef::SharedData { parent, count: 1 },
            (Some((objectid, offset)), false) => InlineRef::ExtentData {
                root,
                objectid,
                offset,
                count: 1,
            },
        }
    }

    fn finish(mut self, roots: &[Root]) -> Vec<Used> {
        let mut refs: Vec<(u64, InlineRef)> = roots
            .iter()
            .map(|(tree, at, _)| (at.logical, InlineRef::TreeBlock { root: *tree }))
            .collect();
        let raw = std::mem::take(&mut self.raw);
        refs.extend(raw.iter().map(|raw| (raw.bytenr, self.resolve(raw))));
        drop(raw);
        refs.sort_by_cached_key(|(bytenr, by)| (*bytenr, by.inline_order(), exact(by)));
        let mut all: Vec<Used> = Vec::new();
        for (bytenr, by) in refs {
            if all.last().is_none_or(|last| last.bytenr != bytenr) {
                all.extend(self.extent(bytenr));
            }
            if let Some(last) = all.last_mut() {
                last.add(by);
            }
        }
        self.mark_odd(&mut all);
        all
    }

    fn extent(&self, bytenr: u64) -> Option<Used> {
        let (block, data) = (self.blocks.get(&bytenr), self.data.get(&bytenr));
        let (len, generation) = match (block, data) {
            (Some(fact), _) => (self.check.nodesize(), fact.generation),
            (None, Some(fact)) => (fact.len, fact.generation),
            (None, None) => return None,
        };
        Some(Used {
            bytenr,
            len,
            generation,
            block: block.map(|fact| OfBlock {
                level: fact.level,
                first_key: fact.first_key,
                full: fact.full(),
            }),
            refs: Vec::new(),
            odd: block.is_some() == data.is_some() || data.is_some_and(|fact| fact.odd),
        })
    }

    /// Marks extents that overlap, or that are in no chunk of their kind.
    fn mark_odd(&self, all: &mut [Used]) {
        let (mut end, mut last) = (0, None);
        for at in 0..all.len() {
            let Some(used) = all.get_mut(at) else {
                break;
            };
            let chunk = self.check.source.chunk(used.bytenr, used.len);
            let wanted = match used.block {
                Some(_) => BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM,
                None => BlockGroupFlags::DATA,
            };
            let fits = chunk.is_some_and(|(_, chunk)| chunk.flags.intersects(wanted));
            let sector = self.check.sectorsize();
            let aligned = used.bytenr % sector == 0 && used.len % sector == 0 && used.len > 0;
            used.odd |= !fits || !aligned;
            let overlaps = used.bytenr < end;
            used.odd |= overlaps;
            let own = used.bytenr.saturating_add(used.len);
            if overlaps && let Some(before) = last.and_then(|last: usize| all.get_mut(last)) {
                before.odd = true;
            }
            if own > end {
                (end, last) = (own, Some(at));
            }
        }
    }
}

impl BlockFact {
    fn full(&self) -> bool {
        self.relocated || !self.reached
    }
}

impl Used {
    /// Adds a ref; equal ones follow each other.
    fn add(&mut self, by: InlineRef) {
        match (self.refs.last_mut(), by) {
            (Some(last), _) if identity(last) != identity(&by) => self.refs.push(by),
            (None, _) => self.refs.push(by),
            (
                Some(InlineRef::ExtentData { count, .. } | InlineRef::SharedData { count, .. }),
                _,
            ) => *count = count.saturating_add(1),
            // Two pointers of one tree to one block.
            (Some(_), _) => self.odd = true,
        }
    }

    /// Sum of the refs.
    pub(super) fn count(&self) -> u64 {
        self.refs.iter().map(InlineRef::count).sum()
    }

    /// End of the extent.
    pub(super) fn end(&self) -> u64 {
        self.bytenr.saturating_add(self.len)
    }
}

/// Tells refs with equal hashes apart.
fn exact(by: &InlineRef) -> (u64, u64, u64) {
    match *by {
        InlineRef::ExtentData {
            root,
            objectid,
            offset,
            ..
        } => (root, objectid, offset),
        _ => (0, 0, 0),
    }
}
