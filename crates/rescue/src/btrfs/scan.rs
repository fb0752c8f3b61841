//! Finds tree blocks on devices by their content.
//!
//! # How it works
//! A tree block names itself: its header has the fsid, its logical address, generation, owner and
//! level, and a checksum covers it. So a scan finds every block that was not overwritten, also of
//! older generations, and its position, without the chunk map. Threads take pieces of the devices
//! in turn, announce each piece to the device, and read it in parts that fit in a processor's
//! cache. Only bytes with a plausible header are summed. The index has one entry of fixed size for
//! each copy of a block. If it grows beyond its bound, the oldest generations are dropped, blocks
//! of the small trees that lead to all others last. `Nodes` reads dropped blocks that are still in
//! use by the chunk map.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use sapwood_block::Device;
use sapwood_btrfs_format::{
    Block, ChecksumKind, DiskKey, Header, Key, SuperBlock, header_flag, objectid,
};

use crate::{Error, Result, Scanning, Watch, parallel};

/// Bytes that a thread takes at once.
const PIECE: u64 = 4 << 20;
/// Bytes of one read.
const PART: u64 = 512 << 10;
/// Bytes that are read at once where a larger read failed.
const RETRY: u64 = 64 << 10;
/// Alignment of tree blocks.
const STEP: u64 = 4096;
/// Largest node size.
const MOST_NODE: u64 = 64 << 10;
/// Blocks that suffice to identify a file system without superblock.
const SAMPLE: usize = 64;
/// Bytes of a block's checksum field.
const CSUM_FIELD: usize = 32;

/// Properties that a tree block must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// fsid that tree blocks carry.
    pub fsid: [u8; 16],
    /// Bytes of a tree block.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Checksum algorithm.
    pub checksum: ChecksumKind,
}

impl Identity {
    /// The identity in a superblock; `None` if its checksum algorithm is unknown.
    pub(super) fn of(sb: &SuperBlock) -> Option<Self> {
        Some(Self {
            fsid: sb.tree_fsid(),
            nodesize: sb.nodesize.get(),
            sectorsize: sb.sectorsize.get(),
            checksum: sb.checksum_kind()?,
        })
    }
}

/// A tree block that was found, with the place of one copy of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub(super) logical: u64,
    pub(super) generation: u64,
    pub(super) owner: u64,
    pub(super) physical: u64,
    first: DiskKey,
    last: DiskKey,
    pub(super) device: u16,
    pub(super) level: u8,
}

// The documentation states the index's memory.
const _: () = assert!(size_of::<Node>() == 72);

impl Node {
    /// The entry of a block at a byte offset of a device.
    pub(super) fn new(block: &Block<'_>, device: usize, physical: u64) -> Self {
        let key = |key: Option<Key>| DiskKey::from(key.unwrap_or(Key::MIN));
        Self {
            logical: block.bytenr(),
            generation: block.generation(),
            owner: block.owner(),
            physical,
            first: key(block.first_key()),
            last: key(block.last_key()),
            device: device as u16,
            level: block.level(),
        }
    }

    /// Its first key.
    pub(super) fn first(&self) -> Key {
        self.first.get()
    }

    /// Its last key.
    pub(super) fn last(&self) -> Key {
        self.last.get()
    }
}

/// A range of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) device: usize,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Whether a tree block with this identity may begin here: its header has the right fsid, and
/// values that are possible.
fn may_begin(bytes: &[u8], identity: &Identity) -> bool {
    let Ok((header, _)) = Header::split(bytes) else {
        return false;
    };
    let address = header.bytenr.get();
    header.fsid == identity.fsid
        && header.level < 8
        && address.is_multiple_of(u64::from(identity.sectorsize.max(1)))
        && address.checked_add(u64::from(identity.nodesize)).is_some()
}

/// The tree block at the start of `bytes`, if there is one with this identity.
pub(super) fn block<'b>(bytes: &'b [u8], identity: &Identity) -> Option<Block<'b>> {
    let bytes = bytes.get(..identity.nodesize as usize)?;
    let (head, body) = bytes.split_at_checked(CSUM_FIELD)?;
    if !may_begin(bytes, identity)
        || identity.checksum.read(head)? != identity.checksum.compute(body)
    {
        return None;
    }
    let block = Block::new(bytes).ok()?;
    has_rising_keys(&block).then_some(block)
}

/// Whether every item has a key that is larger than the key before it.
fn has_rising_keys(block: &Block<'_>) -> bool {
    let mut last = None;
    (0..block.nritems()).all(|slot| match block.key(slot) {
        Ok(key) => last.replace(key).is_none_or(|last| last < key),
        Err(_) => false,
    })
}

/// The blocks of a scan.
#[derive(Debug, Default)]
pub(super) struct NodeIndex {
    /// By address, then newest first.
    nodes: Vec<Node>,
    /// Indexes of one copy of each block, by owner, then newest first, then highest level first.
    by_owner: Vec<u32>,
    newest: u64,
    /// Copies of blocks that did not fit.
    pub(super) dropped: u64,
    /// Bytes that could not be read.
    pub(super) unreadable: u64,
}

impl NodeIndex {
    fn new(mut nodes: Vec<Node>, dropped: u64, unreadable: u64) -> Self {
        let by_place = |n: &Node| (n.logical, u64::MAX - n.generation, n.device, n.physical);
        nodes.sort_unstable_by_key(by_place);
        let same = |a: &Node, b: &Node| a.logical == b.logical && a.generation == b.generation;
        let firsts = (0..nodes.len()).filter(|at| match at.checked_sub(1) {
            Some(before) => !same(&nodes[before], &nodes[*at]),
            None => true,
        });
        let mut by_owner: Vec<u32> = firsts.map(|at| at as u32).collect();
        by_owner.sort_by_key(|at| {
            let node = &nodes[*at as usize];
            (node.owner, u64::MAX - node.generation, u8::MAX - node.level)
        });
        let newest = nodes.iter().map(|node| node.generation).max();
        Self {
            nodes,
            by_owner,
            newest: newest.unwrap_or(0),
            dropped,
            unreadable,
        }
    }

    /// Copies of the block at an address with a generation.
    pub(super) fn copies(&self, logical: u64, generation: u64) -> &[Node] {
        let key = |n: &Node| (n.logical, u64::MAX - n.generation);
        let wanted = (logical, u64::MAX - generation);
        let start = self.nodes.partition_point(|node| key(node) < wanted);
        let end = self.nodes.partition_point(|node| key(node) <= wanted);
        self.nodes.get(start..end).unwrap_or_default()
    }

    /// The newest block at an address.
    pub(super) fn newest_at(&self, logical: u64) -> Option<&Node> {
        let start = self.nodes.partition_point(|node| node.logical < logical);
        self.nodes.get(start).filter(|node| node.logical == logical)
    }

    /// Blocks of a tree: newest first, within a generation the highest level first.
    pub(super) fn of_owner(&self, owner: u64) -> impl Iterator<Item = &Node> {
        let owner_at = |at: &u32| self.nodes[*at as usize].owner;
        let start = self.by_owner.partition_point(|at| owner_at(at) < owner);
        let end = self.by_owner.partition_point(|at| owner_at(at) <= owner);
        let range = self.by_owner.get(start..end).unwrap_or_default();
        range.iter().map(|at| &self.nodes[*at as usize])
    }

    /// Owner, address and generation of all leaves.
    pub(super) fn leaves(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let all = self.by_owner.iter().map(|at| &self.nodes[*at as usize]);
        let leaves = all.filter(|node| node.level == 0);
        leaves.map(|node| (node.owner, node.logical, node.generation))
    }

    /// Device, address and byte offset of all copies.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let all = self.nodes.iter();
        all.map(|node| (usize::from(node.device), node.logical, node.physical))
    }

    /// The newest generation of all blocks.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Number of different blocks.
    pub(super) fn len(&self) -> usize {
        self.by_owner.len()
    }
}

/// The state that the threads of a scan share.
struct Scan<'s> {
    devices: &'s [Arc<dyn Device>],
    areas: &'s [Area],
    identity: &'s Identity,
    watch: &'s dyn Watch,
    most: usize,
    total: u64,
    done: AtomicU64,
    ended: AtomicBool,
    unreadable: AtomicU64,
    found: Mutex<(Vec<Node>, u64)>,
}

/// Scans areas of devices for tree blocks. `most`: most entries of the index.
///
/// # Errors
/// [`Error::Interrupted`]. Unreadable ranges are skipped and counted.
pub(super) fn scan(
    devices: &[Arc<dyn Device>],
    areas: &[Area],
    identity: &Identity,
    watch: &dyn Watch,
    most: usize,
) -> Result<NodeIndex> {
    let scan = Scan {
        devices,
        areas,
        identity,
        watch,
        most,
        total: areas.iter().map(|area| area.end - area.start).sum(),
        done: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        unreadable: AtomicU64::new(0),
        found: Mutex::default(),
    };
    let pieces = areas
        .iter()
        .map(|area| (area.end - area.start).div_ceil(PIECE));
    let buffer = || vec![0; PART as usize];
    parallel::each(pieces.sum(), buffer, |buf, number| scan.take(number, buf));
    if scan.ended.into_inner() {
        return Err(Error::Interrupted);
    }
    let (nodes, dropped) = scan.found.into_inner();
    Ok(NodeIndex::new(nodes, dropped, scan.unreadable.into_inner()))
}

impl Scan<'_> {
    /// Scans the piece with this number.
    fn take(&self, number: u64, buf: &mut [u8]) -> ControlFlow<()> {
        let Some(piece) = self.piece(number) else {
            return ControlFlow::Break(());
        };
        let device = &*self.devices[piece.device];
        let len = piece.end - piece.start;
        let mut nodes = Vec::new();
        if !device.has_no_data(piece.start, len) {
            device.will_read(piece.start, len);
            self.piece_nodes(&piece, buf, &mut nodes);
        }
        let mut found = self.found.lock();
        found.0.append(&mut nodes);
        bound(&mut found, self.most);
        let done = self.done.fetch_add(len, Ordering::Relaxed) + len;
        let total = self.total;
        if self.watch.step(Scanning { done, total }) {
            return ControlFlow::Continue(());
        }
        self.ended.store(true, Ordering::Relaxed);
        ControlFlow::Break(())
    }

    /// The piece with this number.
    fn piece(&self, mut number: u64) -> Option<Area> {
        for area in self.areas {
            let pieces = (area.end - area.start).div_ceil(PIECE);
            if number < pieces {
                let start = area.start + number * PIECE;
                let end = area.end.min(start.saturating_add(PIECE));
                return Some(Area {
                    start,
                    end,
                    ..*area
                });
            }
            number -= pieces;
        }
        None
    }

    /// Adds the blocks that begin in a piece.
    fn piece_nodes(&self, piece: &Area, buf: &mut [u8], nodes: &mut Vec<Node>) {
        let device = &*self.devices[piece.device];
        let nodesize = u64::from(self.identity.nodesize);
        let mut whole = Vec::new();
        let mut at = piece.start;
        while at < piece.end {
            let start = at;
            let len = (piece.end - start).min(PART);
            if device.has_no_data(start, len) {
                at += len;
                continue;
            }
            let bytes = &mut buf[..len as usize];
            self.read(device, start, bytes);
            while at < start + len {
                let mut here = bytes.get((at - start) as usize..).unwrap_or_default();
                if at + nodesize > start + len && may_begin(here, self.identity) {
                    // Its end is in the next part.
                    let rest = nodesize.min(device.size().saturating_sub(at));
                    whole.resize(rest.min(MOST_NODE) as usize, 0);
                    self.read(device, at, &mut whole);
                    here = &whole;
                }
                let found = block(here, self.identity);
                let step = found.as_ref().map_or(STEP, |_| nodesize.max(STEP));
                nodes.extend(found.map(|block| Node::new(&block, piece.device, at)));
                at += step;
            }
        }
    }

    /// Reads as much as can be read; the rest becomes zeros.
    fn read(&self, device: &dyn Device, start: u64, bytes: &mut [u8]) {
        if device.read_at(start, bytes).is_ok() {
            return;
        }
        for (number, part) in bytes.chunks_mut(RETRY as usize).enumerate() {
            if device.read_at(start + number as u64 * RETRY, part).is_err() {
                part.fill(0);
                let lost = part.len() as u64;
                self.unreadable.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }
}

/// Drops the oldest blocks if there are more than `most`.
fn bound((nodes, dropped): &mut (Vec<Node>, u64), most: usize) {
    if nodes.len() <= most {
        return;
    }
    let keep = most - most / 4;
    nodes.select_nth_unstable_by_key(keep, |node| {
        (!leads_to_others(node.owner), u64::MAX - node.generation)
    });
    *dropped += (nodes.len() - keep) as u64;
    nodes.truncate(keep);
}

/// Whether a tree is needed to find the blocks of other trees. Such trees are small.
fn leads_to_others(owner: u64) -> bool {
    matches!(
        owner,
        objectid::ROOT_TREE
            | objectid::CHUNK_TREE
            | objectid::DEV_TREE
            | objectid::BLOCK_GROUP_TREE
    )
}

/// Identifies a file system without superblock by its tree blocks: the identity that most of the
/// first ones have.
///
/// # Errors
/// [`Error::NoBtrfs`], [`Error::Interrupted`].
pub(super) fn identify(devices: &[Arc<dyn Device>], watch: &dyn Watch) -> Result<Identity> {
    let mut votes: HashMap<Identity, usize> = HashMap::new();
    let total: u64 = devices.iter().map(|device| device.size()).sum();
    let mut done = 0;
    let mut buf = vec![0; (PIECE + MOST_NODE) as usize];
    'devices: for device in devices {
        let mut start = 0;
        while start < device.size() {
            let len = (device.size() - start).min(PIECE);
            let with_tail = (device.size() - start).min(buf.len() as u64) as usize;
            let bytes = &mut buf[..with_tail];
            if !device.has_no_data(start, len) && device.read_at(start, bytes).is_ok() {
                let blocks = (0..len).step_by(STEP as usize);
                let found = blocks.filter_map(|at| guess(bytes.get(at as usize..)?));
                for identity in found {
                    *votes.entry(identity).or_default() += 1;
                }
            }
            (start, done) = (start + len, done + len);
            if !watch.step(Scanning { done, total }) {
                return Err(Error::Interrupted);
            }
            if votes.values().sum::<usize>() >= SAMPLE {
                break 'devices;
            }
        }
    }
    let best = votes.into_iter().max_by_key(|(_, count)| *count);
    best.map(|(identity, _)| identity)
        .ok_or(Error::NoBtrfs { bytes: done })
}

/// The identity of a tree block at the start of `bytes`: the node size and the algorithm whose
/// checksum is right.
fn guess(bytes: &[u8]) -> Option<Identity> {
    let (header, _) = Header::split(bytes).ok()?;
    let flags = header.flags.get();
    let revision = flags >> header_flag::BACKREF_REV_SHIFT;
    let plausible = header.level < 8
        && header.fsid != [0; 16]
        && header.bytenr.get() != 0
        && header.bytenr.get().is_multiple_of(STEP)
        && flags & header_flag::WRITTEN != 0
        && revision <= header_flag::MIXED_BACKREF_REV
        && u64::from(header.nritems.get()) <= MOST_NODE / 25;
    if !plausible {
        return None;
    }
    let sizes = [16, 4, 8, 32, 64].map(|kib: u32| kib << 10);
    let all = sizes.iter().flat_map(|size| {
        let kinds = ChecksumKind::ALL.into_iter();
        kinds.map(move |kind| (*size, kind))
    });
    let mut identities = all.map(|(nodesize, checksum)| Identity {
        fsid: header.fsid,
        nodesize,
        sectorsize: STEP as u32,
        checksum,
    });
    identities.find(|identity| block(bytes, identity).is_some())
}
