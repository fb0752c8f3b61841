//! Finds the subvolumes that reach an extent, from its backrefs.
//!
//! # How it works
//! A backref names a parent block, or a tree and a position in it. In the second case the tree is
//! searched for the block that holds the reference. The subvolumes of an extent are those of all
//! blocks that refer to it; the subvolumes of a top block are its own tree. So the search climbs
//! from parent to parent, and each block's result is kept.
//!
//! A tree does not share anything that is newer than its last snapshot. So a reference by tree from
//! such an extent needs no search. A block that a balance of the kernel moved is an exception: it
//! is new, and may be shared.
//!
//! Facts: btrfs documentation, "Tree block and extent sharing", and "Btrees" for the kinds of refs.

use std::collections::HashMap;
use std::rc::Rc;

use sapwood_btrfs_format::{
    Block, FileExtent, InlineRef, Key, RegularExtent, RootItem, block::header_flag, kind, objectid,
};

use crate::error::bad_item;
use crate::space::{Extent, Space};
use crate::tree::{BlockBytes, BlockCache, Expect, Roots, view};
use crate::{Error, Result};

/// Ids of subvolumes, ascending.
pub(super) type Owners = Rc<[u64]>;

/// Blocks whose owners are kept.
const MOST_KNOWN: usize = 1 << 16;
/// Bytes of a file that one extent can cover at most, with room to spare.
const MOST_EXTENT: u64 = 1 << 30;

/// The trees of a file system, as a transaction sees them.
#[derive(Clone, Copy)]
pub(crate) struct Trees<'a> {
    /// Extent tree.
    pub(crate) space: &'a Space,
    /// All trees.
    pub(crate) roots: &'a Roots,
    /// Their blocks.
    pub(crate) blocks: &'a BlockCache,
}

/// The top of a tree.
#[derive(Clone, Copy)]
struct Top {
    bytenr: u64,
    level: u8,
    last_snapshot: u64,
}

/// Finds owners as of the last commit, or as of now. Nothing may change meanwhile.
pub(super) struct Finder<'a> {
    trees: Trees<'a>,
    committed: bool,
    tops: HashMap<u64, Option<Top>>,
    known: HashMap<u64, Owners>,
    sets: HashMap<Owners, ()>,
}

/// A data ref by tree.
#[derive(Clone, Copy)]
struct Place {
    root: u64,
    objectid: u64,
    /// File offset of the extent's begin; wraps below zero.
    offset: u64,
    count: u64,
}

impl<'a> Finder<'a> {
    /// For the trees of the last commit, or the current ones.
    pub(super) fn new(trees: Trees<'a>, committed: bool) -> Self {
        Self {
            trees,
            committed,
            tops: HashMap::new(),
            known: HashMap::new(),
            sets: HashMap::new(),
        }
    }

    /// The subvolumes that reach an extent; none if it does not exist.
    ///
    /// # Errors
    /// [`Error::RefMissing`] for a backref that leads nowhere; unreadable blocks.
    pub(super) fn owners(&mut self, extent: &Extent) -> Result<Owners> {
        let found = self.trees.space.extent_refs(extent, self.committed)?;
        let Some((state, refs)) = found else {
            return Ok(self.intern(Vec::new()));
        };
        if let Some(level) = extent.level {
            return self.of_block(extent.bytenr, level, Some(refs));
        }
        let mut all = Vec::new();
        for found in refs {
            match found {
                InlineRef::ExtentData {
                    root,
                    objectid,
                    offset,
                    count,
                } if objectid::is_fs_tree(root) => {
                    let place = Place {
                        root,
                        objectid,
                        offset,
                        count: count.into(),
                    };
                    let top = self.top_of(extent.bytenr, root)?;
                    if state.generation > top.last_snapshot {
                        all.push(root);
                    } else {
                        self.scan(extent, &top, place, &mut all)?;
                    }
                }
                InlineRef::SharedData { parent, .. } => {
                    all.extend_from_slice(&self.of_block(parent, 0, None)?);
                }
                _ => {}
            }
        }
        Ok(self.intern(all))
    }

    /// One shared copy of each set.
    fn intern(&mut self, mut all: Vec<u64>) -> Owners {
        all.sort_unstable();
        all.dedup();
        if let Some((known, ())) = self.sets.get_key_value(all.as_slice()) {
            return Rc::clone(known);
        }
        let set: Owners = all.into();
        self.sets.insert(Rc::clone(&set), ());
        set
    }

    fn read(&self, bytenr: u64, level: u8) -> Result<BlockBytes> {
        let expect = Expect {
            level: Some(level),
            ..Expect::default()
        };
        Ok(self.trees.blocks.get(bytenr, &expect)?.snapshot())
    }

    /// The subvolumes that reach a tree block. `refs`: its backrefs, if they are known.
    fn of_block(&mut self, bytenr: u64, level: u8, refs: Option<Vec<InlineRef>>) -> Result<Owners> {
        if let Some(known) = self.known.get(&bytenr) {
            return Ok(Rc::clone(known));
        }
        let bytes = self.read(bytenr, level)?;
        let block = view(&bytes)?;
        let refs = match refs {
            Some(refs) => refs,
            None => {
                let extent = self.trees.space.block(bytenr, level);
                let found = self.trees.space.extent_refs(&extent, self.committed)?;
                found.ok_or(Error::ExtentMissing { bytenr })?.1
            }
        };
        let mut all = Vec::new();
        for found in refs {
            match found {
                InlineRef::TreeBlock { root } if objectid::is_fs_tree(root) => {
                    let top = self.top_of(bytenr, root)?;
                    if top.bytenr == bytenr || is_own(&block, &top) {
                        all.push(root);
                    } else {
                        let parent = self.parent_of(root, &top, &block)?;
                        all.extend_from_slice(&self.of_block(parent, level + 1, None)?);
                    }
                }
                // The top block of a tree of a balance names itself.
                InlineRef::SharedBlock { parent } if parent != bytenr => {
                    all.extend_from_slice(&self.of_block(parent, level + 1, None)?);
                }
                _ => {}
            }
        }
        let set = self.intern(all);
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(bytenr, Rc::clone(&set));
        Ok(set)
    }

    /// The top of the tree that a backref of `bytenr` names.
    fn top_of(&mut self, bytenr: u64, root: u64) -> Result<Top> {
        let top = match self.tops.get(&root) {
            Some(top) => *top,
            None => {
                let top = self.find_top(root)?;
                self.tops.insert(root, top);
                top
            }
        };
        top.ok_or_else(|| missing(bytenr, format!("of tree {root}, which does not exist")))
    }

    fn find_top(&self, id: u64) -> Result<Option<Top>> {
        let roots = self.trees.roots;
        if !self.committed {
            return match roots.get(id) {
                Ok(root) => {
                    let node = root.node();
                    Ok(Some(Top {
                        bytenr: node.bytenr(),
                        level: node.level(),
                        last_snapshot: root.last_snapshot(),
                    }))
                }
                Err(Error::NoSuchRoot(_)) => Ok(None),
                Err(error) => Err(error),
            };
        }
        let mut top = None;
        let first = Key::new(id, kind::ROOT_ITEM, 0);
        roots
            .root_tree
            .walk_committed(self.trees.blocks, &first, &mut |key, data| {
                if key.objectid != id || key.kind != kind::ROOT_ITEM {
                    return Ok(false);
                }
                let item = RootItem::parse(data)
                    .map_err(|source| bad_item(objectid::ROOT_TREE, key, source))?;
                top = Some(Top {
                    bytenr: item.bytenr.get(),
                    level: item.level,
                    last_snapshot: item.last_snapshot.get(),
                });
                Ok(true)
            })?;
        Ok(top)
    }

    /// The block that points at `block` in a tree.
    fn parent_of(&self, root: u64, top: &Top, block: &Block<'_>) -> Result<u64> {
        let (bytenr, level) = (block.bytenr(), block.level());
        let lost = || missing(bytenr, format!("from tree {root}"));
        let key = block.first_key().ok_or_else(lost)?;
        let (mut at, mut height) = (top.bytenr, top.level);
        while height > level {
            let bytes = self.read(at, height)?;
            let node = view(&bytes)?;
            let slot = node.child_slot(&key).ok_or_else(lost)?;
            let child = node.ptrs().get(slot).ok_or_else(lost)?.blockptr.get();
            if height == level + 1 {
                return if child == bytenr { Ok(at) } else { Err(lost()) };
            }
            (at, height) = (child, height - 1);
        }
        Err(lost())
    }

    /// The leaf of a tree that `key` is or would be in: address, bytes, and the smallest key to the
    /// right of it.
    fn leaf(&self, top: &Top, key: &Key) -> Result<(u64, BlockBytes, Option<Key>)> {
        let (mut at, mut height, mut upper) = (top.bytenr, top.level, None);
        loop {
            let bytes = self.read(at, height)?;
            if height == 0 {
                return Ok((at, bytes, upper));
            }
            let node = view(&bytes)?;
            let empty = || Error::StaleBlock {
                root: 0,
                logical: at,
                reason: "node without pointers".to_owned(),
            };
            let slot = node.child_slot(key).ok_or_else(empty)?;
            upper = node.key(slot + 1).ok().or(upper);
            let child = node.ptrs().get(slot).ok_or_else(empty)?.blockptr.get();
            (at, height) = (child, height - 1);
        }
    }

    /// Adds the owners of all leaves in which a file of a tree refers to a data extent.
    fn scan(&mut self, extent: &Extent, top: &Top, place: Place, all: &mut Vec<u64>) -> Result<()> {
        let start = if place.offset > i64::MAX as u64 {
            0
        } else {
            place.offset
        };
        let mut from = Key::new(place.objectid, kind::EXTENT_DATA, start);
        let mut search = Search::new(extent.bytenr, place);
        loop {
            let (bytenr, bytes, upper) = self.leaf(top, &from)?;
            let leaf = view(&bytes)?;
            let before = search.found;
            let more = search.take(&leaf, &from)?;
            if search.found > before {
                all.extend_from_slice(&self.of_block(bytenr, 0, None)?);
            }
            match upper {
                Some(upper) if more => from = upper,
                _ if search.found == 0 => {
                    let Place { root, objectid, .. } = place;
                    return Err(missing(
                        extent.bytenr,
                        format!("from tree {root} inode {objectid}"),
                    ));
                }
                _ => return Ok(()),
            }
        }
    }
}

/// A search for the items of one data ref.
struct Search {
    bytenr: u64,
    place: Place,
    /// Bytes of a file that the extent covers at most.
    reach: u64,
    /// Items found.
    found: u64,
    /// Items found that the ref counts.
    counted: u64,
}

impl Search {
    fn new(bytenr: u64, place: Place) -> Self {
        Self {
            bytenr,
            place,
            reach: MOST_EXTENT,
            found: 0,
            counted: 0,
        }
    }

    /// Looks through a leaf from a key on. False if no item can follow in the next leaf.
    fn take(&mut self, leaf: &Block<'_>, from: &Key) -> Result<bool> {
        // Leaves that a balance moved count their refs by parent.
        let counts = leaf.owner() == self.place.root && !is_moved(leaf);
        let first = leaf.search(from).unwrap_or_else(|slot| slot);
        for slot in first..leaf.nritems() {
            let root = self.place.root;
            let (key, data) = leaf
                .entry(slot)
                .map_err(|source| Error::Block { root, source })?;
            let distance = key.offset.wrapping_sub(self.place.offset);
            if key.objectid != self.place.objectid
                || key.kind != kind::EXTENT_DATA
                || distance >= self.reach
            {
                return Ok(false);
            }
            let item = FileExtent::parse(data).map_err(|source| bad_item(root, key, source))?;
            let (FileExtent::Regular(item) | FileExtent::Prealloc(item)) = item else {
                continue;
            };
            let RegularExtent {
                disk_bytenr,
                offset,
                ram_bytes,
                ..
            } = item;
            if disk_bytenr == self.bytenr && offset == distance {
                self.reach = self.reach.min(ram_bytes);
                self.found += 1;
                self.counted += u64::from(counts);
                if self.counted >= self.place.count {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Whether only one tree can reach a block that it refers to by tree.
fn is_own(block: &Block<'_>, top: &Top) -> bool {
    block.generation() > top.last_snapshot && !is_moved(block)
}

fn is_moved(block: &Block<'_>) -> bool {
    block.header().flags.get() & header_flag::RELOC != 0
}

fn missing(bytenr: u64, backref: String) -> Error {
    Error::RefMissing { bytenr, backref }
}
