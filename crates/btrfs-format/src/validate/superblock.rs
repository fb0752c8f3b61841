//! Checks of a superblock.

use thiserror::Error;

use super::item::{ItemProblem, aligned};
use super::space::check_chunk;
use crate::block::MAX_LEVEL;
use crate::{
    BlockGroupFlags, Checksum, ChunkItem, DiskKey, Incompat, ItemError, MAGIC, SUPER_SIZE,
    SYS_CHUNK_ARRAY_SIZE, SuperBlock,
};

/// Reasons to refuse a superblock.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SuperError {
    /// Not 4096 bytes.
    #[error("superblock of {found} bytes")]
    Length {
        /// Bytes given.
        found: usize,
    },
    /// Not a btrfs superblock.
    #[error("no btrfs superblock at {offset}: magic {found:02x?}")]
    Magic {
        /// Offset that it was read from.
        offset: u64,
        /// Found.
        found: [u8; 8],
    },
    /// An unknown checksum algorithm.
    #[error("unknown checksum algorithm {found}")]
    ChecksumKind {
        /// Number.
        found: u16,
    },
    /// Checksum mismatch.
    #[error("superblock at {offset}: checksum {found}, expected {expected}")]
    Checksum {
        /// Offset that it was read from.
        offset: u64,
        /// Computed.
        expected: Checksum,
        /// Stored.
        found: Checksum,
    },
    /// A copy with another offset.
    #[error("superblock at {offset} has offset {found} in its header")]
    Bytenr {
        /// Offset that it was read from.
        offset: u64,
        /// Value in the superblock.
        found: u64,
    },
    /// The sector size is not a power of two from 4 KiB to 64 KiB.
    #[error("sector size {found}")]
    SectorSize {
        /// Found.
        found: u32,
    },
    /// The node size is not a power of two from the sector size to 64 KiB.
    #[error("node size {found}, leaf size {leafsize}")]
    NodeSize {
        /// Found.
        found: u32,
        /// `leafsize`, which must be equal.
        leafsize: u32,
    },
    /// A level above 7.
    #[error("{field} {found}")]
    Level {
        /// Field.
        field: &'static str,
        /// Found.
        found: u8,
    },
    /// A root's address that is zero or not aligned.
    #[error("{field} at {found}")]
    RootAddress {
        /// Field.
        field: &'static str,
        /// Found.
        found: u64,
    },
    /// Generations that contradict each other.
    #[error("{field} {found} with generation {generation}")]
    Generation {
        /// Field.
        field: &'static str,
        /// Found.
        found: u64,
        /// Generation of the superblock.
        generation: u64,
    },
    /// A size or count that is not possible.
    #[error("{field} {found}")]
    Count {
        /// Field.
        field: &'static str,
        /// Found.
        found: u64,
    },
    /// Mixed block groups with nodes larger than sectors.
    #[error("mixed block groups with node size {nodesize} and sector size {sectorsize}")]
    MixedNodeSize {
        /// Node size.
        nodesize: u32,
        /// Sector size.
        sectorsize: u32,
    },
    /// A label without its terminating zero.
    #[error("label without terminating zero")]
    Label,
    /// The device item belongs to another file system.
    #[error("device item has fsid {found:02x?}, expected {expected:02x?}")]
    DeviceFsid {
        /// Fsid of this file system.
        expected: [u8; 16],
        /// Fsid in the device item.
        found: [u8; 16],
    },
    /// The system chunk array does not parse.
    #[error("system chunk array: {0}")]
    SysChunkArray(ItemError),
    /// A bad chunk in the system chunk array.
    #[error("system chunk at {logical}: {problem}")]
    SysChunk {
        /// Logical address.
        logical: u64,
        /// The defect.
        problem: ItemProblem,
    },
    /// A chunk in the system chunk array that is not a system chunk.
    #[error("system chunk at {logical} has flags {flags}")]
    SysChunkType {
        /// Logical address.
        logical: u64,
        /// Flags.
        flags: BlockGroupFlags,
    },
}

/// Validates the 4096 bytes read at `offset` of a device, and returns them as a superblock. Unknown
/// features are not errors here; see [`SuperBlock::incompat`].
///
/// # Errors
/// The first problem found.
pub fn validate_super(bytes: &[u8], offset: u64) -> Result<SuperBlock, SuperError> {
    let found = bytes.len();
    if found != SUPER_SIZE {
        return Err(SuperError::Length { found });
    }
    let sb = SuperBlock::read(bytes).map_err(|_| SuperError::Length { found })?;
    if sb.magic != MAGIC {
        return Err(SuperError::Magic {
            offset,
            found: sb.magic,
        });
    }
    let Some(kind) = sb.checksum_kind() else {
        return Err(SuperError::ChecksumKind {
            found: sb.csum_type.get(),
        });
    };
    kind.verify_block(bytes)
        .map_err(|bad| SuperError::Checksum {
            offset,
            expected: bad.expected,
            found: bad.found,
        })?;
    if sb.bytenr.get() != offset {
        return Err(SuperError::Bytenr {
            offset,
            found: sb.bytenr.get(),
        });
    }
    check_sizes(&sb)?;
    check_roots(&sb)?;
    check_rest(&sb)?;
    check_sys_chunks(&sb)?;
    Ok(sb)
}

fn check_sizes(sb: &SuperBlock) -> Result<(), SuperError> {
    const MIN: u32 = 4 << 10;
    const MAX: u32 = 64 << 10;
    let (sectorsize, nodesize) = (sb.sectorsize.get(), sb.nodesize.get());
    if !sectorsize.is_power_of_two() || !(MIN..=MAX).contains(&sectorsize) {
        return Err(SuperError::SectorSize { found: sectorsize });
    }
    let leafsize = sb.leafsize.get();
    let range = sectorsize..=MAX;
    if !nodesize.is_power_of_two() || !range.contains(&nodesize) || leafsize != nodesize {
        return Err(SuperError::NodeSize {
            found: nodesize,
            leafsize,
        });
    }
    if sb.incompat().contains(Incompat::MIXED_GROUPS) && nodesize != sectorsize {
        return Err(SuperError::MixedNodeSize {
            nodesize,
            sectorsize,
        });
    }
    Ok(())
}

fn check_roots(sb: &SuperBlock) -> Result<(), SuperError> {
    for (field, found) in [
        ("root level", sb.root_level),
        ("chunk root level", sb.chunk_root_level),
        ("log root level", sb.log_root_level),
    ] {
        if found > MAX_LEVEL {
            return Err(SuperError::Level { field, found });
        }
    }
    let unit = sb.sectorsize.get().into();
    for (field, found, may_be_zero) in [
        ("root tree", sb.root.get(), false),
        ("chunk tree", sb.chunk_root.get(), false),
        ("log root tree", sb.log_root.get(), true),
    ] {
        if !aligned(found, unit) || (found == 0 && !may_be_zero) {
            return Err(SuperError::RootAddress { field, found });
        }
    }
    let generation = sb.generation.get();
    let chunk = sb.chunk_root_generation.get();
    if chunk > generation {
        let field = "chunk root generation";
        return Err(SuperError::Generation {
            field,
            found: chunk,
            generation,
        });
    }
    let cache = sb.cache_generation.get();
    if cache > generation && cache != u64::MAX {
        let field = "cache generation";
        return Err(SuperError::Generation {
            field,
            found: cache,
            generation,
        });
    }
    Ok(())
}

fn check_rest(sb: &SuperBlock) -> Result<(), SuperError> {
    if sb.num_devices.get() == 0 {
        return Err(SuperError::Count {
            field: "number of devices",
            found: 0,
        });
    }
    let (total, used) = (sb.total_bytes.get(), sb.bytes_used.get());
    if total == 0 {
        return Err(SuperError::Count {
            field: "total bytes",
            found: 0,
        });
    }
    if used > total {
        return Err(SuperError::Count {
            field: "bytes used",
            found: used,
        });
    }
    if !sb.label.contains(&0) {
        return Err(SuperError::Label);
    }
    let (expected, found) = (sb.tree_fsid(), sb.dev_item.fsid);
    if expected != found {
        return Err(SuperError::DeviceFsid { expected, found });
    }
    let size = sb.sys_chunk_array_size.get() as usize;
    let least = DiskKey::SIZE + crate::Chunk::SIZE + crate::Stripe::SIZE;
    if size < least || size > SYS_CHUNK_ARRAY_SIZE {
        return Err(SuperError::Count {
            field: "system chunk array size",
            found: size as u64,
        });
    }
    Ok(())
}

fn check_sys_chunks(sb: &SuperBlock) -> Result<(), SuperError> {
    for entry in sb.sys_chunks() {
        let (logical, chunk): (u64, ChunkItem) = entry.map_err(SuperError::SysChunkArray)?;
        check_chunk(logical, &chunk, sb.sectorsize.get())
            .map_err(|problem| SuperError::SysChunk { logical, problem })?;
        if !chunk.flags.contains(BlockGroupFlags::SYSTEM) {
            return Err(SuperError::SysChunkType {
                logical,
                flags: chunk.flags,
            });
        }
    }
    Ok(())
}
