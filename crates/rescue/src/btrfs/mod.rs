//! btrfs: superblock copies, a scan for tree blocks, states by generation, and files.

mod chunks;
mod content;
mod data;
mod deleted;
mod evidence;
mod files;
mod items;
mod leaves;
mod lookup;
mod nodes;
mod orphans;
mod scan;
mod states;
mod supers;
mod taken;
mod volume;

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use sapwood_block::Device;
use sapwood_btrfs_format::{Key, SuperBlock, kind, objectid};

pub use files::Files;
pub use scan::Identity;
pub use states::{Origin, State, TreeState};
pub use supers::{CopyState, SuperCopy};

use crate::{Error, Result, Watch};
use data::Data;
use leaves::{Leaves, Orphans, RootPtr};
use nodes::Nodes;
use scan::Area;
use taken::Taken;
use volume::{ChunkMap, Member, Volume};

/// Options for reading a damaged image.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Options {
    /// Use this superblock copy alone: 0, 1 or 2.
    pub super_copy: Option<u64>,
    /// Scan whole devices, even if the chunk map locates the metadata.
    pub whole: bool,
    /// Read data also if its checksum is wrong.
    pub ignore_data_checksums: bool,
    /// Most copies of tree blocks in the index of the scan, at 72 bytes each. Without room for all,
    /// it lacks the copies of the oldest generations; [`Image::omitted`] counts them. Blocks in use
    /// are still found by the chunk map.
    pub most_blocks: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            super_copy: None,
            whole: false,
            ignore_data_checksums: false,
            most_blocks: 2_000_000,
        }
    }
}

/// The state of the file system to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Choice {
    /// The newest one. Gaps in it are filled from older blocks.
    #[default]
    Newest,
    /// The state of this generation, as far as its blocks still exist.
    Generation(u64),
    /// The state whose tree of roots has its root at this logical address.
    Root(u64),
}

/// A scanned file system.
pub struct Image {
    volume: Arc<Volume>,
    nodes: Arc<Nodes>,
    copies: Vec<SuperCopy>,
    sb: Option<Box<SuperBlock>>,
    /// Bytes that the scan covered.
    scanned: u64,
    options: Options,
    taken: Arc<OnceLock<Taken>>,
}

impl Image {
    /// Reads the superblocks, and scans for tree blocks: the metadata chunks if the chunk tree is
    /// whole, else all devices.
    ///
    /// # Errors
    /// [`Error::NoBtrfs`], [`Error::Superblock`], [`Error::NoSuchCopy`], [`Error::Interrupted`].
    pub fn open(
        devices: Vec<Arc<dyn Device>>,
        options: Options,
        watch: &dyn Watch,
    ) -> Result<Self> {
        let only = match options.super_copy {
            Some(number @ 0..=2) => Some(number as usize),
            Some(number) => return Err(Error::NoSuchCopy { number }),
            None => None,
        };
        let (members, copies, sb) = superblocks(devices, only);
        if let (Some(only), None) = (only, &sb) {
            let offset = sapwood_btrfs_format::SUPER_OFFSETS[only];
            let why = "no superblock with the right checksum".to_owned();
            return Err(Error::Superblock { offset, why });
        }
        let mut volume = Volume {
            members,
            chunks: ChunkMap::default(),
        };
        let identity = match sb.as_deref().and_then(Identity::of) {
            Some(identity) => identity,
            None => scan::identify(&volume.devices(), watch)?,
        };
        let whole_tree = sb.as_ref().is_some_and(|sb| {
            volume.chunks = chunks::system(sb);
            chunks::read_tree(&mut volume, &identity, chunks::root(sb))
        });
        let areas = if whole_tree && !options.whole {
            let mut areas = volume.metadata_areas();
            areas.extend(volume.unknown_areas());
            areas
        } else {
            everything(&volume)
        };
        let devices = volume.devices();
        let index = scan::scan(&devices, &areas, &identity, watch, options.most_blocks)?;
        let nodes = Arc::new(Nodes::new(identity, index, devices));
        if !whole_tree {
            let newest = newest(sb.as_deref(), &nodes);
            let root = sb.as_deref().map(chunks::root);
            chunks::from_scan(&nodes, &mut volume.chunks, root, newest);
            chunks::from_extents(&nodes, &mut volume.chunks, newest);
        }
        volume.identify(nodes.index.places());
        let mut image = Self {
            volume: Arc::new(volume),
            nodes,
            copies,
            sb,
            scanned: areas.iter().map(|area| area.end - area.start).sum(),
            options,
            taken: Arc::default(),
        };
        image.identify_last();
        image.nodes.map(&image.volume);
        Ok(image)
    }

    /// Takes the last unknown device for the last missing one, if its data show it.
    fn identify_last(&mut self) {
        let (Some(last), Ok(root)) = (self.volume.last(), self.root(Choice::Newest)) else {
            return;
        };
        let checksums = self.checksums(&self.roots(root, Choice::Newest), root.1);
        if evidence::has_data(&self.volume, &self.nodes, &checksums, last)
            && let Some(volume) = Arc::get_mut(&mut self.volume)
        {
            let (device, devid) = last;
            volume.members[device].devid = Some(devid);
        }
    }

    /// The tree of roots of a state, from its root and generation.
    fn roots(&self, (root, newest): (Option<RootPtr>, u64), choice: Choice) -> Leaves {
        let orphans = match choice {
            Choice::Newest => vec![Orphans {
                owner: objectid::ROOT_TREE,
                newest,
            }],
            _ => Vec::new(),
        };
        Leaves::build(&self.nodes, root, &orphans)
    }

    fn checksums(&self, roots: &Leaves, newest: u64) -> Leaves {
        files::tree(&self.nodes, roots, objectid::CSUM_TREE, newest)
    }

    /// The identity of its tree blocks.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.nodes.identity
    }

    /// The superblock that is used.
    #[must_use]
    pub fn superblock(&self) -> Option<&SuperBlock> {
        self.sb.as_deref()
    }

    /// The places of superblocks.
    #[must_use]
    pub fn copies(&self) -> &[SuperCopy] {
        &self.copies
    }

    /// Different tree blocks that were found, and bytes that were scanned.
    #[must_use]
    pub fn scanned(&self) -> (u64, u64) {
        (self.nodes.index.len() as u64, self.scanned)
    }

    /// Bytes that could not be read, and copies of blocks that the index had no room for.
    #[must_use]
    pub fn omitted(&self) -> (u64, u64) {
        (self.nodes.index.unreadable, self.nodes.index.dropped)
    }

    /// The files of a state.
    ///
    /// # Errors
    /// [`Error::NoGeneration`], [`Error::NoRootAt`], [`Error::NoRoots`].
    pub fn files(&self, choice: Choice) -> Result<Files> {
        let (root, newest) = self.root(choice)?;
        let roots = self.roots((root, newest), choice);
        if roots.leaves.is_empty() && self.nodes.index.len() == 0 {
            return Err(Error::NoRoots);
        }
        let checksums = self.checksums(&roots, newest);
        let size = self.volume.members.iter().map(|m| m.device.size()).sum();
        let size = self.sb.as_ref().map_or(size, |sb| sb.total_bytes.get());
        let verify = !self.options.ignore_data_checksums;
        let nodes = Arc::clone(&self.nodes);
        let volume = Arc::clone(&self.volume);
        let later = (newest, Arc::clone(&self.taken));
        let data = Data::new(volume, Arc::clone(&nodes), checksums, verify, later);
        Ok(Files::new(nodes, data, roots, newest, size))
    }

    /// The root of the tree of roots of a state, and its generation.
    fn root(&self, choice: Choice) -> Result<(Option<RootPtr>, u64)> {
        let ptr = |node: &scan::Node| RootPtr {
            logical: node.logical,
            generation: node.generation,
            level: node.level,
        };
        match choice {
            Choice::Newest => {
                let newest = newest(self.superblock(), &self.nodes);
                let sb = self.sb.as_deref().map(states::current);
                let found = self.top_of(newest).as_ref().map(ptr);
                let sb = sb.filter(|sb| self.nodes.find(sb).is_some());
                Ok((sb.or(found), newest))
            }
            Choice::Generation(generation) => {
                let sb = self.sb.as_deref().map(states::current);
                if let Some(sb) = sb.filter(|sb| sb.generation == generation) {
                    return Ok((Some(sb), generation));
                }
                let top = self.top_of(generation);
                let top = top.ok_or(Error::NoGeneration { generation })?;
                Ok((Some(ptr(&top)), generation))
            }
            Choice::Root(logical) => {
                let node = self.nodes.index.newest_at(logical);
                let node = node.filter(|node| node.owner == objectid::ROOT_TREE);
                let node = node.ok_or(Error::NoRootAt { logical })?;
                Ok((Some(ptr(node)), node.generation))
            }
        }
    }

    /// The highest block of the tree of roots of a generation.
    fn top_of(&self, generation: u64) -> Option<scan::Node> {
        let mut roots = self.nodes.index.of_owner(objectid::ROOT_TREE);
        roots.find(|node| node.generation == generation).copied()
    }

    /// The trees that a tree of roots names, with their roots.
    fn trees(&self, roots: &Leaves) -> Vec<(u64, RootPtr)> {
        let mut trees = Vec::new();
        items::items(&self.nodes, roots, Key::MIN, Key::MAX, &mut |key, data| {
            if key.kind == kind::ROOT_ITEM
                && let Ok(item) = sapwood_btrfs_format::RootItem::parse(data)
            {
                trees.push((key.objectid, files::root_of(&item)));
            }
            ControlFlow::Continue(())
        });
        trees
    }
}

/// The devices, all places of superblocks, and the newest superblock.
fn superblocks(
    devices: Vec<Arc<dyn Device>>,
    only: Option<usize>,
) -> (Vec<Member>, Vec<SuperCopy>, Option<Box<SuperBlock>>) {
    let mut copies = Vec::new();
    let mut members = Vec::new();
    let mut sb: Option<Box<SuperBlock>> = None;
    for (number, device) in devices.into_iter().enumerate() {
        let (found, newest) = supers::of_device(number, &device, only);
        copies.extend(found);
        let devid = newest.as_ref().map(|sb| sb.dev_item.devid.get());
        let generation = newest.as_ref().map_or(0, |sb| sb.generation.get());
        members.push(Member {
            device,
            devid,
            generation,
        });
        let is_newer = |new: &SuperBlock| {
            sb.as_ref()
                .is_none_or(|old| old.generation.get() < new.generation.get())
        };
        if let Some(new) = newest.filter(|new| is_newer(new)) {
            sb = Some(new);
        }
    }
    (members, copies, sb)
}

/// The newest generation that counts: the superblock's, or of all roots that were found.
fn newest(sb: Option<&SuperBlock>, nodes: &Nodes) -> u64 {
    if let Some(sb) = sb {
        return sb.generation.get();
    }
    let mut roots = nodes.index.of_owner(objectid::ROOT_TREE);
    roots.next().map_or(u64::MAX, |node| node.generation)
}

/// All bytes of all devices.
fn everything(volume: &Volume) -> Vec<Area> {
    let devices = volume.members.iter().enumerate();
    let areas = devices.map(|(device, member)| Area {
        device,
        start: 0,
        end: member.device.size(),
    });
    areas.collect()
}
