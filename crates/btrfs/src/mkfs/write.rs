//! Writes the planned file system to the device.

use std::collections::BTreeMap;
use std::time::SystemTime;

use sapwood_block::Device;
use sapwood_btrfs_format::{
    BlockGroupFlags, BlockInit, Expect, Key, MAGIC, RootBackup, SUPER_OFFSETS, SUPER_SIZE,
    SuperBlock, SuperFlags, leaf_data_size, objectid, validate_block,
};
use sapwood_vfs::{Ambient, Timestamp};

use super::error::MkfsError;
use super::layout::{PlannedChunk, RESERVED};
use super::options::{MkfsOptions, SECTOR_SIZE};
use super::trees::{GENERATION, Ids, MkfsPlan, Placed};
use crate::tree::bulk::{self, NewBlock};

/// Identities: all random, or derived from the options' UUID.
pub(super) fn new_ids(options: &MkfsOptions, devices: usize) -> Ids {
    let ambient = match &options.uuid {
        Some(uuid) => Ambient::fixed(Timestamp::default(), &[uuid]),
        None => Ambient::machine(),
    };
    Ids {
        fsid: options.uuid.unwrap_or_else(|| ambient.uuid()),
        devices: (0..devices).map(|_| ambient.uuid()).collect(),
        chunk_tree: ambient.uuid(),
        subvolume: ambient.uuid(),
    }
}

/// Builds everything in memory, then writes it. All devices are flushed before a superblock is
/// written. `sizes`: bytes of each device that are used.
pub(super) fn write(
    devices: &[&dyn Device],
    options: &MkfsOptions,
    ids: &Ids,
    chunks: &[PlannedChunk],
    sizes: &[u64],
    now: SystemTime,
) -> Result<(), MkfsError> {
    let plan = MkfsPlan {
        options,
        ids,
        now,
        sizes,
        chunks,
        blocks: Vec::new(),
    };
    let (plan, blocks) = settle(plan)?;
    let sb = superblock(&plan)?;
    let blocks = seal(&plan, &sb, blocks)?;
    for (device, size) in devices.iter().zip(sizes) {
        if options.discard {
            // If the device cannot discard, nothing needs to be discarded.
            let _ = device.discard(0, *size);
        }
        wipe(*device)?;
        device.flush()?;
    }
    for (device, physical, bytes) in &blocks {
        if let Some(device) = devices.get(*device) {
            device.write_at(*physical, bytes)?;
        }
    }
    for device in devices {
        device.flush()?;
    }
    for ((device, size), dev_item) in devices.iter().zip(sizes).zip(plan.dev_items()) {
        let own = SuperBlock { dev_item, ..sb };
        write_supers(*device, &own, *size)?;
    }
    Ok(())
}

/// Finds addresses for all blocks such that the items that depend on them fill exactly these
/// blocks.
fn settle(mut plan: MkfsPlan<'_>) -> Result<(MkfsPlan<'_>, Vec<NewBlock>), MkfsError> {
    let nodesize = plan.options.node_size() as usize;
    let room = leaf_data_size(nodesize);
    loop {
        let trees = plan.items();
        let mut outlines = BTreeMap::new();
        for (id, items) in &trees {
            outlines.insert(*id, bulk::outline(items, nodesize, room));
        }
        let blocks = place(&plan, &outlines)?;
        if blocks != plan.blocks {
            plan.blocks = blocks;
            continue;
        }
        let mut blocks = Vec::new();
        for (owner, items) in &trees {
            let own = plan.blocks.iter().filter(|b| b.owner == *owner);
            let addresses: Vec<u64> = own.map(|b| b.bytenr).collect();
            let init = BlockInit {
                bytenr: 0,
                level: 0,
                generation: GENERATION,
                owner: *owner,
                fsid: plan.ids.fsid,
                chunk_tree_uuid: plan.ids.chunk_tree,
            };
            blocks.extend(bulk::build(items, &addresses, (nodesize, room), &init)?);
        }
        return Ok((plan, blocks));
    }
}

/// Assigns the next address to every block of every tree: in the system chunk for the chunk tree,
/// in the metadata chunk for the others.
fn place(
    plan: &MkfsPlan<'_>,
    outlines: &BTreeMap<u64, Vec<(u8, Key)>>,
) -> Result<Vec<Placed>, MkfsError> {
    let nodesize = plan.options.node_size();
    let addresses = |content| {
        let chunk = plan.chunks.iter().find(move |c| c.flags.contains(content));
        chunk
            .into_iter()
            .flat_map(move |c| c.block_addresses(nodesize))
    };
    let mut system = addresses(BlockGroupFlags::SYSTEM);
    let mut metadata = addresses(BlockGroupFlags::METADATA);
    let mut placed = Vec::new();
    for (&owner, outline) in outlines {
        for &(level, first_key) in outline {
            let next = if owner == objectid::CHUNK_TREE {
                system.next()
            } else {
                metadata.next()
            };
            let Some(bytenr) = next else {
                return Err(MkfsError::ChunkSize {
                    content: "metadata",
                    bytes: plan
                        .chunks
                        .iter()
                        .map(|c| c.length)
                        .max()
                        .unwrap_or_default(),
                    minimum: (outlines.len() as u64 + 1) * u64::from(nodesize),
                });
            };
            placed.push(Placed {
                bytenr,
                level,
                owner,
                first_key,
            });
        }
    }
    Ok(placed)
}

/// Seals and validates all blocks, and resolves them to every device and offset that they go to.
fn seal(
    plan: &MkfsPlan<'_>,
    sb: &SuperBlock,
    blocks: Vec<NewBlock>,
) -> Result<Vec<(usize, u64, Vec<u8>)>, MkfsError> {
    let mut out = Vec::new();
    for mut block in blocks {
        plan.options.checksum.seal_block(&mut block.bytes);
        if let Some(expect) = Expect::new(sb, block.bytenr) {
            validate_block(&block.bytes, &expect.with_generation(GENERATION))?;
        }
        let holds = |c: &&PlannedChunk| (c.logical..c.logical + c.length).contains(&block.bytenr);
        for chunk in plan.chunks.iter().filter(holds) {
            let places = chunk.places(block.bytenr, block.bytes.len() as u64);
            for (device, physical) in places {
                out.push((device, physical, block.bytes.clone()));
            }
        }
    }
    Ok(out)
}

/// The superblock, without the fields that differ between devices and copies: `dev_item`, `bytenr`,
/// checksum.
fn superblock(plan: &MkfsPlan<'_>) -> Result<SuperBlock, MkfsError> {
    let options = plan.options;
    let root = |id| {
        plan.root(id)
            .map_or((0, 0), |root| (root.bytenr, root.level))
    };
    let (tree_root, root_level) = root(objectid::ROOT_TREE);
    let (chunk_root, chunk_root_level) = root(objectid::CHUNK_TREE);
    let used = plan.blocks.len() as u64 * u64::from(options.node_size());
    let mut sb = SuperBlock {
        fsid: plan.ids.fsid,
        flags: SuperFlags::WRITTEN.bits().into(),
        magic: MAGIC,
        generation: GENERATION.into(),
        root: tree_root.into(),
        chunk_root: chunk_root.into(),
        total_bytes: plan.size().into(),
        bytes_used: used.into(),
        root_dir_objectid: objectid::ROOT_TREE_DIR.into(),
        num_devices: (plan.sizes.len() as u64).into(),
        sectorsize: SECTOR_SIZE.into(),
        nodesize: options.node_size().into(),
        leafsize: options.node_size().into(),
        stripesize: SECTOR_SIZE.into(),
        chunk_root_generation: GENERATION.into(),
        compat_ro_flags: options.compat_ro().bits().into(),
        incompat_flags: options.incompat().bits().into(),
        csum_type: options.checksum.to_u16().into(),
        root_level,
        chunk_root_level,
        // Without a free-space tree there is no v1 cache, either.
        cache_generation: if options.free_space_tree { 0 } else { u64::MAX }.into(),
        uuid_tree_generation: GENERATION.into(),
        metadata_uuid: [0; 16],
        ..SuperBlock::default()
    };
    sb.set_label(options.label.as_bytes());
    let system = |c: &&PlannedChunk| c.flags.contains(BlockGroupFlags::SYSTEM);
    let items: Vec<_> = plan
        .chunks
        .iter()
        .filter(system)
        .map(|c| (c.logical, c.item(&plan.ids.devices)))
        .collect();
    sb.set_sys_chunks(items.iter().map(|(logical, item)| (*logical, item)))?;
    let [first, ..] = &mut sb.super_roots;
    *first = backup(plan, used);
    Ok(sb)
}

fn backup(plan: &MkfsPlan<'_>, used: u64) -> RootBackup {
    let mut backup = RootBackup {
        total_bytes: plan.size().into(),
        bytes_used: used.into(),
        num_devices: (plan.sizes.len() as u64).into(),
        ..RootBackup::default()
    };
    macro_rules! root {
        ($tree:ident, $root:ident, $gen:ident, $level:ident) => {
            if let Some(root) = plan.root(objectid::$tree) {
                backup.$root = root.bytenr.into();
                backup.$gen = GENERATION.into();
                backup.$level = root.level;
            }
        };
    }
    root!(ROOT_TREE, tree_root, tree_root_gen, tree_root_level);
    root!(CHUNK_TREE, chunk_root, chunk_root_gen, chunk_root_level);
    root!(EXTENT_TREE, extent_root, extent_root_gen, extent_root_level);
    root!(FS_TREE, fs_root, fs_root_gen, fs_root_level);
    root!(DEV_TREE, dev_root, dev_root_gen, dev_root_level);
    root!(CSUM_TREE, csum_root, csum_root_gen, csum_root_level);
    backup
}

/// Offsets of superblocks on a device of that size.
fn mirrors(size: u64) -> impl DoubleEndedIterator<Item = u64> {
    let fits = move |at: &u64| at + SUPER_SIZE as u64 <= size;
    SUPER_OFFSETS.into_iter().filter(fits)
}

/// Zeroes the reserved start and the locations of superblocks, except parts that are zero already.
fn wipe(device: &dyn Device) -> Result<(), MkfsError> {
    const STEP: usize = 64 << 10;
    // Also those past the end of the new file system, because tools look for all of them.
    let reserved = (0..RESERVED).step_by(STEP).map(|at| (at, STEP));
    let far = mirrors(device.size()).filter(|at| *at >= RESERVED);
    let mut buf = vec![0; STEP];
    for (at, len) in reserved.chain(far.map(|at| (at, SUPER_SIZE))) {
        let part = buf.get_mut(..len).unwrap_or_default();
        device.read_at(at, part)?;
        if part.iter().any(|b| *b != 0) {
            part.fill(0);
            device.write_at(at, part)?;
        }
    }
    Ok(())
}

/// Writes all superblocks, the first one last.
fn write_supers(device: &dyn Device, sb: &SuperBlock, size: u64) -> Result<(), MkfsError> {
    for at in mirrors(size).rev() {
        let copy = SuperBlock {
            bytenr: at.into(),
            ..*sb
        };
        let mut bytes = copy.bytes().to_vec();
        if let Some(kind) = sb.checksum_kind() {
            kind.seal_block(&mut bytes);
        }
        device.write_fua(at, &bytes)?;
    }
    device.flush()?;
    Ok(())
}
