//! The states of a file system that its tree blocks still show, by generation.

use std::collections::{BTreeMap, HashMap};

use sapwood_btrfs_format::{Block, SuperBlock, objectid};
use sapwood_vfs::Timestamp;

use super::files::{root_item, time};
use super::leaves::{Leaves, RootPtr};
use super::nodes::Nodes;
use super::{Choice, Image};

/// The place at which the root of a state was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The superblock names it.
    Superblock,
    /// The superblock has it as a backup.
    Backup,
    /// The scan found it.
    Scan,
}

/// The completeness of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeState {
    /// Tree.
    pub id: u64,
    /// Blocks that its readable blocks point to, the root included.
    pub blocks: u64,
    /// Pointers among these whose block was not found.
    pub missing: u64,
}

/// A state of the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Generation.
    pub generation: u64,
    /// Logical address of the root of the tree of roots.
    pub root: u64,
    /// The place at which it was found.
    pub origin: Origin,
    /// The last change of a subvolume.
    pub time: Option<Timestamp>,
    /// Blocks of all trees.
    pub blocks: u64,
    /// Blocks among these that were not found.
    pub missing: u64,
    /// Trees with missing blocks.
    pub damaged: Vec<TreeState>,
    /// Subvolumes, the top level included.
    pub subvolumes: u64,
}

/// The root of the tree of roots in a superblock.
pub(super) fn current(sb: &SuperBlock) -> RootPtr {
    RootPtr {
        logical: sb.root.get(),
        generation: sb.generation.get(),
        level: sb.root_level,
    }
}

/// Blocks and missing blocks of a subtree.
type Count = (u64, u64);

/// Counts blocks of trees, each interior block once.
struct Counter<'n> {
    nodes: &'n Nodes,
    known: HashMap<(u64, u64), Count>,
}

impl Counter<'_> {
    fn count(&mut self, ptr: &RootPtr) -> Count {
        let Some(node) = self.nodes.find(ptr) else {
            return (1, 1);
        };
        if node.level == 0 {
            return (1, 0);
        }
        let key = (ptr.logical, ptr.generation);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        // A block that is below itself counts as missing.
        self.known.insert(key, (1, 1));
        let Some(bytes) = self.nodes.bytes(ptr.logical, ptr.generation) else {
            return (1, 1);
        };
        let mut sum: Count = (1, 0);
        let ptrs = Block::new(&bytes).map(|block| block.ptrs().to_vec());
        for child in ptrs.unwrap_or_default() {
            let (blocks, missing) = self.count(&RootPtr {
                logical: child.blockptr.get(),
                generation: child.generation.get(),
                level: node.level - 1,
            });
            sum = (sum.0.saturating_add(blocks), sum.1.saturating_add(missing));
        }
        self.known.insert(key, sum);
        sum
    }
}

impl Image {
    /// The newest states, at most `most`, newest first.
    #[must_use]
    pub fn states(&self, most: usize) -> Vec<State> {
        let mut roots: BTreeMap<u64, (RootPtr, Origin)> = BTreeMap::new();
        let mut add = |ptr: RootPtr, origin| {
            if ptr.generation > 0 {
                roots.entry(ptr.generation).or_insert((ptr, origin));
            }
        };
        if let Some(sb) = self.superblock() {
            add(current(sb), Origin::Superblock);
            for backup in &sb.super_roots {
                let ptr = RootPtr {
                    logical: backup.tree_root.get(),
                    generation: backup.tree_root_gen.get(),
                    level: backup.tree_root_level,
                };
                if ptr.logical > 0 && self.nodes.find(&ptr).is_some() {
                    add(ptr, Origin::Backup);
                }
            }
        }
        for node in self.nodes.index.of_owner(objectid::ROOT_TREE) {
            let ptr = RootPtr {
                logical: node.logical,
                generation: node.generation,
                level: node.level,
            };
            add(ptr, Origin::Scan);
        }
        let mut counter = Counter {
            nodes: &self.nodes,
            known: HashMap::new(),
        };
        let newest = roots.into_values().rev().take(most);
        newest
            .map(|(ptr, origin)| self.state(ptr, origin, &mut counter))
            .collect()
    }

    /// The number of states whose tree of roots was found, and the oldest generation.
    #[must_use]
    pub fn oldest_state(&self) -> (u64, Option<u64>) {
        let all = self.nodes.index.of_owner(objectid::ROOT_TREE);
        let mut generations: Vec<u64> = all.map(|node| node.generation).collect();
        generations.dedup();
        (generations.len() as u64, generations.last().copied())
    }

    fn state(&self, ptr: RootPtr, origin: Origin, counter: &mut Counter<'_>) -> State {
        let roots = Leaves::build(&self.nodes, Some(ptr), &[]);
        let mut state = State {
            generation: ptr.generation,
            root: ptr.logical,
            origin,
            time: None,
            blocks: roots.pointers,
            missing: roots.missing,
            damaged: Vec::new(),
            subvolumes: 0,
        };
        if roots.missing > 0 {
            state.damaged.push(TreeState {
                id: objectid::ROOT_TREE,
                blocks: roots.pointers,
                missing: roots.missing,
            });
        }
        for (id, root) in self.trees(&roots) {
            let (blocks, missing) = counter.count(&root);
            state.blocks = state.blocks.saturating_add(blocks);
            state.missing = state.missing.saturating_add(missing);
            if missing > 0 {
                state.damaged.push(TreeState {
                    id,
                    blocks,
                    missing,
                });
            }
            if !objectid::is_fs_tree(id) {
                continue;
            }
            state.subvolumes += 1;
            if let Some(item) = root_item(&self.nodes, &roots, id) {
                let time = time(&item.ctime);
                let known = (time.sec != 0).then_some(time);
                state.time = state.time.max(known);
            }
        }
        state
    }

    /// The choice of a state by its generation, for the newest one `None`.
    #[must_use]
    pub fn choice(generation: Option<u64>) -> Choice {
        generation.map_or(Choice::Newest, Choice::Generation)
    }
}
