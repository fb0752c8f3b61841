//! Tree blocks by their address and generation.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sapwood_block::Device;
use sapwood_btrfs_format::{Block, Key};

use super::leaves::{RootPtr, Span};
use super::scan::{Identity, Node, NodeIndex, block};
use super::volume::Volume;

/// Blocks that are kept in memory.
const CACHED: usize = 512;

/// Bytes of blocks, by address and generation.
type Cache = HashMap<(u64, u64), Arc<[u8]>>;

/// The scan's index with the devices, to read the blocks again.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) identity: Identity,
    pub(super) index: NodeIndex,
    devices: Vec<Arc<dyn Device>>,
    cache: Mutex<Cache>,
    /// Reads blocks that the index does not have.
    mapped: OnceLock<Arc<Volume>>,
}

impl Nodes {
    pub(super) fn new(identity: Identity, index: NodeIndex, devices: Vec<Arc<dyn Device>>) -> Self {
        Self {
            identity,
            index,
            devices,
            cache: Mutex::default(),
            mapped: OnceLock::new(),
        }
    }

    /// Takes the chunk map, to read blocks that the index had no room for. Without such blocks it
    /// is not used: the scan read the same places.
    pub(super) fn map(&self, volume: &Arc<Volume>) {
        if self.index.dropped > 0 {
            self.mapped.get_or_init(|| Arc::clone(volume));
        }
    }

    /// The block that a pointer leads to: as the scan found it, or by the chunk map.
    pub(super) fn find(&self, ptr: &RootPtr) -> Option<Node> {
        let copies = self.index.copies(ptr.logical, ptr.generation);
        let found = copies.iter().find(|node| node.level == ptr.level).copied();
        found.or_else(|| self.find_mapped(ptr))
    }

    /// The block that a pointer leads to by the chunk map. Its place on a device is not known.
    fn find_mapped(&self, ptr: &RootPtr) -> Option<Node> {
        self.mapped.get()?;
        let bytes = self.bytes(ptr.logical, ptr.generation)?;
        let block = Block::new(&bytes).ok()?;
        (block.level() == ptr.level).then(|| Node::new(&block, 0, 0))
    }

    /// The bytes of a block, from the first copy that is still readable.
    pub(super) fn bytes(&self, logical: u64, generation: u64) -> Option<Arc<[u8]>> {
        let key = (logical, generation);
        if let Some(bytes) = self.cache.lock().get(&key) {
            return Some(Arc::clone(bytes));
        }
        let copies = self.index.copies(logical, generation);
        let bytes = copies.iter().find_map(|node| self.read(node));
        let bytes = bytes.or_else(|| {
            let volume = self.mapped.get()?;
            let bytes = volume.tree_block(logical, generation, &self.identity)?;
            Some(bytes.into())
        })?;
        let mut cache = self.cache.lock();
        if cache.len() >= CACHED {
            cache.clear();
        }
        cache.insert(key, Arc::clone(&bytes));
        Some(bytes)
    }

    fn read(&self, node: &Node) -> Option<Arc<[u8]>> {
        let device = self.devices.get(usize::from(node.device))?;
        let mut bytes = vec![0; self.identity.nodesize as usize];
        device.read_at(node.physical, &mut bytes).ok()?;
        let found = block(&bytes, &self.identity)?;
        let same = found.bytenr() == node.logical && found.generation() == node.generation;
        same.then(|| bytes.into())
    }

    /// The children of an interior block, each with its part of `span`. `outer`: the first child
    /// also has the keys of the span before its own first key.
    pub(super) fn children(&self, node: &Node, span: &Span, outer: bool) -> Vec<(RootPtr, Span)> {
        let Some(bytes) = self.bytes(node.logical, node.generation) else {
            return Vec::new();
        };
        let Ok(block) = Block::new(&bytes) else {
            return Vec::new();
        };
        let Some(level) = block.level().checked_sub(1) else {
            return Vec::new();
        };
        let ptrs = block.ptrs();
        let each = ptrs.iter().enumerate().map(|(slot, ptr)| {
            let start = match slot {
                0 if outer => span.start,
                _ => ptr.key.get().max(span.start),
            };
            let next = ptrs.get(slot + 1).map(|next| next.key.get());
            let end = match (next, span.end) {
                (Some(next), Some(end)) => Some(next.min(end)),
                (next, end) => next.or(end),
            };
            let ptr = RootPtr {
                logical: ptr.blockptr.get(),
                generation: ptr.generation.get(),
                level,
            };
            (ptr, Span { start, end })
        });
        each.collect()
    }

    /// The key after the last one below an interior block, as far as its last children were found.
    pub(super) fn end(&self, node: &Node) -> Option<Key> {
        let mut at = *node;
        while at.level > 0 {
            let bytes = self.bytes(at.logical, at.generation);
            let child = bytes.and_then(|bytes| {
                let block = Block::new(&bytes).ok()?;
                let ptr = *block.ptrs().last()?;
                self.find(&RootPtr {
                    logical: ptr.blockptr.get(),
                    generation: ptr.generation.get(),
                    level: at.level - 1,
                })
            });
            match child {
                Some(child) => at = child,
                None => break,
            }
        }
        at.last().successor()
    }
}
