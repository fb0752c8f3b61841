//! Reading the descriptors of all groups when a file system is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use sapwood_ext4_format::{Geometry, GroupDesc, validate_group};
use sapwood_jbd2::{Buffer, Cache};

use super::inode_map::Recent;
use super::layout::{Layout, Layouts};
use super::streams::Streams;
use super::{Group, GroupState, Groups, UNKNOWN};
use crate::lock::{Rank, RankedMutex};
use crate::{Error, Result};

/// A run of a group's metadata.
struct Part {
    start: u64,
    end: u64,
    /// `None`: superblock and descriptors at a group's front.
    owner: Option<u32>,
}

impl Groups {
    /// Reads all descriptors. One that is wrong puts its group out of use.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn open(cache: &Arc<Cache>, geometry: &Geometry, discard: bool) -> Result<Self> {
        let desc_blocks = (0..geometry.desc_blocks())
            .map(|index| cache.get(geometry.desc_table_block(index)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut descs = Vec::new();
        let mut wrong = BTreeMap::new();
        for number in 0..geometry.group_count() {
            let desc = read_desc(&desc_blocks, geometry, number)?;
            if let Err(error) = validate_group(number, &desc, geometry) {
                wrong.insert(number, error.to_string());
            }
            descs.push(desc);
        }
        let parts = parts(geometry, &descs, &wrong);
        for (one, other) in overlaps(&parts) {
            for (number, beside) in [(one, other), (other, one)] {
                if let Some(number) = number {
                    let beside =
                        beside.map_or("a descriptor table".into(), |b| format!("group {b}"));
                    wrong
                        .entry(number)
                        .or_insert_with(|| format!("its metadata overlap those of {beside}"));
                }
            }
        }
        let all = (0..).zip(descs);
        let all = all.map(|(n, desc)| Ok(Arc::new(group(geometry, n, desc, true)?)));
        let layout = Layout {
            geometry: geometry.clone(),
            all: all.collect::<Result<_>>()?,
            desc_blocks,
            system: merged(&parts),
        };
        let groups = Self {
            layouts: Arc::new(Layouts::new(layout)),
            cache: Arc::clone(cache),
            discard,
            streams: Streams::new(),
            rotor: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            free: AtomicI64::new(0),
            freed: AtomicI64::new(0),
            dirty: RankedMutex::new(Rank::Leaf, BTreeSet::new()),
            waiting: RankedMutex::new(Rank::Leaf, BTreeMap::new()),
        };
        for group in &groups.layout().all {
            let mut state = group.lock();
            groups.count_blocks(state.desc.free_clusters(), true);
            match wrong.remove(&group.number) {
                Some(reason) => {
                    let _: Error = groups.put_out_of_use(group, &mut state, reason);
                }
                None => group.publish(&state),
            }
        }
        Ok(groups)
    }
}

fn read_desc(blocks: &[Arc<Buffer>], geometry: &Geometry, number: u32) -> Result<GroupDesc> {
    let (_, offset) = geometry.descriptor_block(number)?;
    let index = (number / geometry.descs_per_block()) as usize;
    let content = blocks.get(index).map(|buffer| buffer.read());
    let bytes = content
        .as_deref()
        .and_then(|content| content.get(offset as usize..));
    Ok(GroupDesc::read(bytes.unwrap_or_default(), geometry)?)
}

pub(super) fn group(
    geometry: &Geometry,
    number: u32,
    desc: GroupDesc,
    open: bool,
) -> Result<Group> {
    let table = desc.inode_table();
    let blocks = u64::from(geometry.inode_table_blocks());
    let bitmaps = [desc.block_bitmap(), desc.inode_bitmap()];
    let state = GroupState {
        desc,
        buddy: None,
        freed: Vec::new(),
        recent: Recent::default(),
        out_of_use: None,
        unwritten: [None, None],
        dirty: false,
        dirty_bitmaps: [false; 2],
    };
    Ok(Group {
        number,
        first_block: geometry.group_first_block(number)?,
        blocks: AtomicU32::new(geometry.group_clusters(number)),
        open: AtomicBool::new(open),
        table: geometry
            .check_blocks(table, blocks)
            .is_ok()
            .then_some(table),
        bitmaps,
        inode_count: geometry.inodes_per_group(),
        knows_unused: geometry.features().group_csum(),
        state: RankedMutex::with_key(Rank::Group, (u64::from(number), 0), state),
        inodes: OnceLock::new(),
        free_blocks: AtomicU32::new(0),
        largest: AtomicU8::new(UNKNOWN),
        free_inodes: AtomicU32::new(0),
        used_dirs: AtomicU32::new(0),
        search_limit: AtomicU32::new(0),
        small_goal: AtomicU64::new(geometry.group_first_block(number)?),
    })
}

/// Runs of metadata of groups from `first` on.
pub(super) fn runs(geometry: &Geometry, first: u32, descs: &[GroupDesc]) -> Vec<(u64, u64)> {
    merged(&parts_from(geometry, first, descs, &BTreeMap::new()))
}

/// All runs of metadata of groups whose descriptors are right, by their first block.
fn parts(geometry: &Geometry, descs: &[GroupDesc], wrong: &BTreeMap<u32, String>) -> Vec<Part> {
    parts_from(geometry, 0, descs, wrong)
}

fn parts_from(
    geometry: &Geometry,
    first: u32,
    descs: &[GroupDesc],
    wrong: &BTreeMap<u32, String>,
) -> Vec<Part> {
    let mut parts = Vec::new();
    for (number, desc) in (first..).zip(descs) {
        let mut add = |owner, start: u64, len: u32| {
            let end = start.saturating_add(len.into());
            if len > 0 {
                parts.push(Part { start, end, owner });
            }
        };
        if let Ok(first) = geometry.group_first_block(number) {
            add(None, first, geometry.fixed_blocks(number));
        }
        if !wrong.contains_key(&number) {
            add(Some(number), desc.block_bitmap(), 1);
            add(Some(number), desc.inode_bitmap(), 1);
            add(
                Some(number),
                desc.inode_table(),
                geometry.inode_table_blocks(),
            );
        }
    }
    parts.sort_by_key(|part| (part.start, part.end));
    parts
}

/// Owners of parts that overlap.
fn overlaps(parts: &[Part]) -> Vec<(Option<u32>, Option<u32>)> {
    let mut found = Vec::new();
    let mut longest: Option<&Part> = None;
    for part in parts {
        match longest {
            Some(before) if part.start < before.end => {
                found.push((before.owner, part.owner));
                if part.end > before.end {
                    longest = Some(part);
                }
            }
            _ => longest = Some(part),
        }
    }
    found
}

/// The runs of blocks that the parts make up.
fn merged(parts: &[Part]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for part in parts {
        match runs.last_mut() {
            Some((_, end)) if part.start <= *end => *end = part.end.max(*end),
            _ => runs.push((part.start, part.end)),
        }
    }
    runs
}
