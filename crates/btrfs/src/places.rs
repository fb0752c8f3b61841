//! Returns tree blocks to the addresses that they have in an older image of the same file system,
//! so that the two images differ in few bytes.
//!
//! # How it works
//! Copy-on-write moves a changed block and all blocks above it. Once that is committed, the old
//! addresses are free. So a further transaction copies the moved blocks again, to the addresses of
//! their predecessors: the blocks of the older image that have the same tree and level, and the
//! same first key or the range with that key.
//!
//! That transaction also changes trees, which record the space. Their blocks are among the moved
//! ones, as a rule, since the changes before it were recorded in the same blocks. If a block left
//! its old address nevertheless, a transaction that copies it anywhere comes first: then all blocks
//! that such a transaction changes are away from their old addresses, and the next one returns all.
//!
//! Blocks that several subvolumes share stay where they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{Key, objectid};

use crate::relocate::{STEP_ITEMS, open_to_read};
use crate::transaction::Store;
use crate::tree::{NodePlace, Root};
use crate::{Btrfs, Error, Result};

/// Most transactions that return blocks.
const ROUNDS: usize = 4;
/// Most blocks that one transaction returns. They are in memory until it is committed.
const BATCH: usize = 4096;

/// Addresses of the blocks of one tree, by level and first key.
type Blocks = BTreeMap<(u8, Key), u64>;

/// A block that is not at its old address.
struct Moved {
    root: Arc<Root>,
    place: NodePlace,
    /// The old address.
    home: u64,
}

/// The older image.
struct Older {
    fs: Btrfs,
    generation: u64,
    /// Blocks of the trees that were looked at.
    trees: BTreeMap<u64, Blocks>,
}

impl Older {
    fn open(device: &Arc<dyn Device>) -> Result<Self> {
        let fs = open_to_read(std::slice::from_ref(device), false)?;
        let generation = fs.engine.last_committed();
        Ok(Self {
            fs,
            generation,
            trees: BTreeMap::new(),
        })
    }

    /// The blocks of a tree; none if it does not exist.
    fn blocks(&mut self, id: u64) -> Result<&Blocks> {
        let store: &Store = &self.fs.engine;
        let blocks = match self.trees.remove(&id) {
            Some(known) => known,
            None => {
                let mut found = Blocks::new();
                match tree(store, id) {
                    Ok(root) => root.list_blocks(store, 0, &mut |place| {
                        found.insert((place.level, place.key), place.bytenr);
                    })?,
                    Err(Error::NoSuchRoot(_)) => {}
                    Err(error) => return Err(error),
                }
                found
            }
        };
        Ok(self.trees.entry(id).or_insert(blocks))
    }
}

/// Moves the tree blocks of an open file system that changed since the image on `older`, its
/// earlier state, to their addresses there. No other thread changes the file system.
///
/// # Errors
/// Unreadable blocks; errors of the devices. The file system is as it was or has failed then.
pub fn restore(fs: &Btrfs, older: &Arc<dyn Device>) -> Result<()> {
    let store: &Arc<Store> = &fs.engine;
    store.commit_and_unpin(None)?;
    let mut older = Older::open(older)?;
    for round in 0..ROUNDS {
        let mut moved = moved(store, &mut older)?;
        if round > 0 && !moved.is_empty() {
            copy(store, &moved)?;
            moved = self::moved(store, &mut older)?;
        }
        if moved.is_empty() {
            break;
        }
        for batch in moved.chunks(BATCH) {
            give_back(store, batch)?;
        }
    }
    Ok(())
}

/// A tree by id.
fn tree(store: &Store, id: u64) -> Result<Arc<Root>> {
    match id {
        objectid::ROOT_TREE => Ok(store.roots.root_tree.clone()),
        objectid::CHUNK_TREE => Ok(store.roots.chunk_tree.clone()),
        id => store.roots.get(id),
    }
}

/// The blocks that changed and are not at their old addresses, by tree, level and first key.
fn moved(store: &Store, older: &mut Older) -> Result<Vec<Moved>> {
    let mut seen = BTreeSet::new();
    let mut shared = BTreeSet::new();
    let mut all = Vec::new();
    let fixed = [objectid::ROOT_TREE, objectid::CHUNK_TREE];
    for id in fixed.into_iter().chain(store.roots.ids()?) {
        let root = tree(store, id)?;
        let mut blocks = Blocks::new();
        root.list_blocks(store, older.generation, &mut |place| {
            blocks.insert((place.level, place.key), place.bytenr);
            if !seen.insert(place.bytenr) {
                shared.insert(place.bytenr);
            }
        })?;
        if !blocks.is_empty() && !root.is_dead() {
            all.extend(of_tree(&root, &blocks, older.blocks(id)?));
        }
    }
    all.retain(|moved| !shared.contains(&moved.place.bytenr));
    Ok(all)
}

/// The moved blocks of one tree, with the addresses of their predecessors.
fn of_tree(root: &Arc<Root>, new: &Blocks, old: &Blocks) -> Vec<Moved> {
    let mut taken: BTreeSet<u64> = BTreeSet::new();
    let exact = new.keys().filter_map(|at| old.get(at));
    taken.extend(exact);
    let mut found = Vec::new();
    for (at, bytenr) in new {
        let home = match old.get(at) {
            Some(home) => *home,
            None => {
                let before = old.range(..at).next_back();
                let before = before.filter(|((level, _), _)| *level == at.0);
                match before {
                    Some((_, home)) if taken.insert(*home) => *home,
                    _ => continue,
                }
            }
        };
        if home != *bytenr {
            found.push(Moved {
                root: root.clone(),
                place: NodePlace {
                    level: at.0,
                    key: at.1,
                    bytenr: *bytenr,
                },
                home,
            });
        }
    }
    found
}

/// Commits copies of blocks at their old addresses, as far as these are free.
fn give_back(store: &Arc<Store>, batch: &[Moved]) -> Result<()> {
    let space = &store.space;
    let mut held = Vec::new();
    for moved in batch {
        if space.hold_place(moved.place.bytenr, moved.home)? {
            held.push(moved);
        }
    }
    copy(store, held)?;
    space.release_places()
}

/// Commits copies of blocks, and of the blocks above them.
fn copy<'m>(store: &Arc<Store>, blocks: impl IntoIterator<Item = &'m Moved>) -> Result<()> {
    let mut h = store.start_urgent(STEP_ITEMS)?;
    let copied = (blocks.into_iter())
        .try_for_each(|Moved { root, place, .. }| root.copy_path(&mut h, &place.key, place.level));
    h.finish(copied)?;
    store.commit_and_unpin(None)
}
