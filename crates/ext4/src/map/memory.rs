//! A stand-in for tests: nodes in memory, a device without content, a handle that counts its
//! changes.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{Deref, Range};
use std::rc::Rc;

use super::nodes::{Blocks, Changes, NodeKind, World};
use crate::{Error, Result};

/// Blocks that belong to a group.
const SYSTEM: Range<u64> = 300..320;
/// Blocks of a group.
const GROUP: u64 = 8192;
/// Blocks of the map are allocated from here on, content before.
const NODES_FROM: u64 = 1 << 30;

pub(crate) struct MemoryNode {
    block: u64,
    bytes: RefCell<Vec<u8>>,
    judged: Cell<Option<NodeKind>>,
}

/// A node or bitmap that a handle changed.
#[derive(PartialEq, Eq, Hash)]
enum Joined {
    Node(u64),
    Bitmap(u64),
    Descriptor(u64),
}

/// The stand-in for a handle and its device.
pub(crate) struct Memory {
    world: World,
    pub(crate) nodes: RefCell<BTreeMap<u64, Rc<MemoryNode>>>,
    /// Blocks of content in use.
    pub(crate) content: RefCell<BTreeSet<u64>>,
    next_node: Cell<u64>,
    next_content: Cell<u64>,
    /// Blocks of the map that can still be allocated.
    pub(crate) room: Cell<u64>,
    pub(crate) charged: Cell<i64>,
    credits: Cell<u32>,
    joined: RefCell<HashSet<Joined>>,
}

impl Memory {
    pub(crate) fn new(block_size: u32) -> Self {
        Self {
            world: World {
                ino: 12,
                block_size,
                first_block: 1,
                blocks: 1 << 31,
                seed: None,
            },
            nodes: RefCell::default(),
            content: RefCell::default(),
            next_node: Cell::new(NODES_FROM),
            next_content: Cell::new(10_000),
            room: Cell::new(u64::MAX),
            charged: Cell::new(0),
            credits: Cell::new(0),
            joined: RefCell::default(),
        }
    }

    /// Begins a handle. It panics when more changes than it has credits for.
    pub(crate) fn handle(&self, credits: u32) {
        self.credits.set(credits);
        self.joined.borrow_mut().clear();
    }

    fn join(&self, what: Joined) {
        if self.joined.borrow_mut().insert(what) {
            let left = self.credits.get().checked_sub(1);
            self.credits.set(left.expect("overdrawn handle"));
        }
    }

    /// The bitmap that allocating or freeing a block changes.
    fn join_group(&self, block: u64) {
        self.join(Joined::Bitmap(block / GROUP));
        self.join(Joined::Descriptor(block / GROUP));
    }

    /// Blocks for content, side by side; `apart` of them are left unused before.
    pub(crate) fn allocate(&self, len: u64, apart: u64) -> u64 {
        let at = self.next_content.get() + apart;
        self.next_content.set(at + len);
        self.content.borrow_mut().extend(at..at + len);
        at
    }

    /// A node that no tree made.
    pub(crate) fn plant(&self, block: u64, bytes: Vec<u8>) {
        let node = MemoryNode {
            block,
            bytes: RefCell::new(bytes),
            judged: Cell::new(None),
        };
        self.nodes.borrow_mut().insert(block, Rc::new(node));
    }

    /// Changes a byte without a handle, as if the node were loaded like that.
    pub(crate) fn corrupt(&self, block: u64, at: usize, byte: u8) {
        let nodes = self.nodes.borrow();
        let node = &nodes[&block];
        node.bytes.borrow_mut()[at] = byte;
        node.judged.set(None);
    }
}

impl Blocks for Memory {
    type Node = Rc<MemoryNode>;

    fn world(&self) -> &World {
        &self.world
    }

    fn node(
        &self,
        block: u64,
        kind: NodeKind,
        judge: &dyn Fn(&[u8]) -> Result<(), String>,
    ) -> Result<Self::Node> {
        let node = self.nodes.borrow().get(&block).cloned();
        let node = node.ok_or_else(|| self.world.bad_block(block, "no node"))?;
        if node.judged.get() != Some(kind) {
            judge(&node.bytes.borrow()).map_err(|reason| self.world.bad_block(block, reason))?;
            node.judged.set(Some(kind));
        }
        Ok(node)
    }

    fn is_system(&self, physical: u64, len: u64) -> bool {
        physical < SYSTEM.end && SYSTEM.start < physical + len
    }

    fn place(&self, node: &Self::Node) -> u64 {
        node.block
    }

    fn bytes(&self, node: &Self::Node) -> impl Deref<Target = [u8]> {
        node.bytes.borrow().clone().into_boxed_slice()
    }
}

impl Changes for Memory {
    fn change<R>(&self, node: &Self::Node, with: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.join(Joined::Node(node.block));
        Ok(with(&mut node.bytes.borrow_mut()))
    }

    fn create(&self, kind: NodeKind, _goal: u64) -> Result<Self::Node> {
        let left = self.room.get().checked_sub(1).ok_or(Error::NoSpace)?;
        self.room.set(left);
        let block = self.next_node.get();
        // Each in a group of its own: that costs most.
        self.next_node.set(block + GROUP + 1);
        self.join_group(block);
        self.join(Joined::Node(block));
        self.plant(block, vec![0; self.world.block_size as usize]);
        self.charge(1);
        let node = self.nodes.borrow()[&block].clone();
        node.judged.set(Some(kind));
        Ok(node)
    }

    fn discard(&self, node: &Self::Node) -> Result<()> {
        self.join_group(node.block);
        let gone = self.nodes.borrow_mut().remove(&node.block);
        self.charge(-1);
        self.room.set(self.room.get().saturating_add(1));
        gone.map(drop)
            .ok_or_else(|| self.world.bad_block(node.block, "freed twice"))
    }

    fn free(&self, physical: u64, len: u64) -> Result<()> {
        for block in physical..physical + len {
            self.join_group(block);
            if !self.content.borrow_mut().remove(&block) {
                return Err(self.world.bad_block(block, "freed twice"));
            }
        }
        Ok(())
    }

    fn charge(&self, blocks: i64) {
        self.charged.set(self.charged.get() + blocks);
    }

    fn free_cost(&self, physical: u64, len: u64) -> u32 {
        2 * ((physical + len - 1) / GROUP - physical / GROUP + 1) as u32
    }

    fn tail_in_group(&self, physical: u64, len: u64) -> u64 {
        len.min((physical + len - 1) % GROUP + 1)
    }

    fn affords(&self, credits: u32) -> bool {
        self.credits.get() >= credits
    }
}
