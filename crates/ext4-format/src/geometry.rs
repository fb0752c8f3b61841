//! Sizes and locations from the superblock, validated once.
//!
//! # How it works
//! [`Geometry::new`] refuses every superblock with contradicting numbers. Its result guarantees
//! these facts, on which all arithmetic of an engine relies:
//! - block size 2^10 to 2^16, inode size a power of two from 128 to the block size, descriptor
//!   size a power of two from 32 to the block size;
//! - a group has at most 8 × block size clusters and as many inodes, both divisible by 8;
//! - at least one group; `group_count` × `inodes_per_group` fits `u32` and is the inode count;
//! - `blocks_count` × block size fits `i64`, block numbers fit 48 bits.

use crate::checksum::{inode_seed, same_seed_generation};
use crate::superblock::{
    GOOD_OLD_FIRST_INO, GOOD_OLD_INODE_SIZE, REV_DYNAMIC, REV_GOOD_OLD, SUPER_MAGIC,
};
use crate::{CHECKSUM_CRC32C, Features, FormatError, Incompat, RoCompat, SuperBlock, SuperFlags};

mod limits;
mod places;

/// Bytes of a descriptor without the 64bit feature.
pub const DESC_SIZE_MIN: u16 = 32;
/// Least bytes of a descriptor with the 64bit feature.
pub const DESC_SIZE_64BIT: u16 = 64;
/// Most bits of a block number.
pub const BLOCK_NUMBER_BITS: u32 = 48;

/// Validated summary of a superblock. It does not change while a file system is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    features: Features,
    block_bits: u32,
    cluster_bits: u32,
    blocks_count: u64,
    first_data_block: u32,
    blocks_per_group: u32,
    clusters_per_group: u32,
    group_count: u32,
    inodes_count: u32,
    inodes_per_group: u32,
    inode_size: u16,
    first_ino: u32,
    want_extra_isize: u16,
    desc_size: u16,
    reserved_gdt_blocks: u16,
    first_meta_bg: u32,
    backup_bgs: [u32; 2],
    log_flex: u8,
    csum_seed: u32,
    uuid: [u8; 16],
    hash_seed: [u32; 4],
    unsigned_hash: bool,
}

fn bad<T>(field: &'static str, value: impl Into<u64>, why: &'static str) -> Result<T, FormatError> {
    Err(FormatError::Super {
        field,
        value: value.into(),
        why,
    })
}

/// Block and cluster size as powers of two.
fn sizes(sb: &SuperBlock, features: Features) -> Result<(u32, u32), FormatError> {
    let log_block = sb.log_block_size.get();
    if log_block > 6 {
        return bad("log_block_size", log_block, "blocks have 1 KiB to 64 KiB");
    }
    let log_cluster = sb.log_cluster_size.get();
    if features.has_ro_compat(RoCompat::BIGALLOC) {
        if log_cluster < log_block || log_cluster > 20 {
            return bad(
                "log_cluster_size",
                log_cluster,
                "clusters have one block to 1 GiB",
            );
        }
    } else if log_cluster != log_block {
        return bad(
            "log_cluster_size",
            log_cluster,
            "without bigalloc a cluster is a block",
        );
    }
    Ok((log_block + 10, log_cluster + 10))
}

fn check_group_size(sb: &SuperBlock, block_bits: u32, ratio_bits: u32) -> Result<(), FormatError> {
    let bits = 8u32 << block_bits;
    let clusters = sb.clusters_per_group.get();
    let blocks = sb.blocks_per_group.get();
    // Old images have zero or "fragments" here; without bigalloc only blocks_per_group counts.
    let clusters = if ratio_bits == 0 { blocks } else { clusters };
    if clusters == 0 || clusters > bits || !clusters.is_multiple_of(8) {
        return bad(
            "clusters_per_group",
            clusters,
            "must be a multiple of 8 that one bitmap block can hold",
        );
    }
    if u64::from(clusters) << ratio_bits != u64::from(blocks) {
        return bad(
            "blocks_per_group",
            blocks,
            "is not what the clusters of a group have",
        );
    }
    Ok(())
}

/// Inode size and first inode that is not reserved.
fn inode_shape(sb: &SuperBlock, block_size: u32) -> Result<(u16, u32), FormatError> {
    let (size, first) = match sb.rev_level.get() {
        REV_GOOD_OLD => (GOOD_OLD_INODE_SIZE, GOOD_OLD_FIRST_INO),
        REV_DYNAMIC => (sb.inode_size.get(), sb.first_ino.get()),
        other => return bad("rev_level", other, "unknown revision"),
    };
    if size < GOOD_OLD_INODE_SIZE || u32::from(size) > block_size || !size.is_power_of_two() {
        return bad(
            "inode_size",
            size,
            "must be a power of two from 128 to the block size",
        );
    }
    if first < GOOD_OLD_FIRST_INO || first >= sb.inodes_count.get() {
        return bad("first_ino", first, "outside the inodes");
    }
    let per_group = sb.inodes_per_group.get();
    let per_block = block_size / u32::from(size);
    if per_group < per_block || per_group > block_size * 8 || !per_group.is_multiple_of(8) {
        return bad(
            "inodes_per_group",
            per_group,
            "must be a multiple of 8 that one bitmap block can hold, and fill a table block",
        );
    }
    Ok((size, first))
}

fn desc_size(sb: &SuperBlock, features: Features, block_size: u32) -> Result<u16, FormatError> {
    if !features.has_incompat(Incompat::BIT64) {
        return Ok(DESC_SIZE_MIN);
    }
    let size = sb.desc_size.get();
    if size < DESC_SIZE_64BIT || u32::from(size) > block_size || !size.is_power_of_two() {
        return bad(
            "desc_size",
            size,
            "with 64bit it is a power of two from 64 to the block size",
        );
    }
    Ok(size)
}

/// Bytes beyond 128 that a new inode claims for fields.
fn want_extra_isize(sb: &SuperBlock, features: Features, inode_size: u16) -> u16 {
    let room = inode_size - GOOD_OLD_INODE_SIZE;
    let default = room.min(32);
    if !features.has_ro_compat(RoCompat::EXTRA_ISIZE) {
        return default;
    }
    let want = default
        .max(sb.want_extra_isize.get())
        .max(sb.min_extra_isize.get());
    if want > room || !want.is_multiple_of(4) {
        default
    } else {
        want
    }
}

fn group_count(sb: &SuperBlock, block_bits: u32, boot_block: bool) -> Result<u32, FormatError> {
    let blocks = sb.blocks_count();
    if blocks >> BLOCK_NUMBER_BITS != 0 || blocks > (i64::MAX as u64) >> block_bits {
        return bad("blocks_count", blocks, "more than block numbers can name");
    }
    let first = sb.first_data_block.get();
    let expected = u32::from(block_bits == 10 && !boot_block);
    if first != expected {
        return bad("first_data_block", first, "does not fit the block size");
    }
    if u64::from(first) + 1 >= blocks {
        return bad("blocks_count", blocks, "there is no room for a group");
    }
    let groups = (blocks - u64::from(first)).div_ceil(u64::from(sb.blocks_per_group.get()));
    let inodes = groups.checked_mul(u64::from(sb.inodes_per_group.get()));
    match (u32::try_from(groups), inodes) {
        (Ok(groups), Some(inodes)) if inodes == u64::from(sb.inodes_count.get()) => Ok(groups),
        _ => bad(
            "inodes_count",
            sb.inodes_count.get(),
            "is not that of all groups",
        ),
    }
}

impl Geometry {
    /// Validates the superblock's numbers. Does not check features (see
    /// [`Features::read_blockers`]), except that it refuses an external journal.
    pub fn new(sb: &SuperBlock) -> Result<Self, FormatError> {
        if sb.magic.get() != SUPER_MAGIC {
            return Err(FormatError::Magic {
                what: "superblock",
                found: u32::from(sb.magic.get()),
                expected: u32::from(SUPER_MAGIC),
            });
        }
        let features = sb.features();
        if features.has_incompat(Incompat::JOURNAL_DEV) {
            return Err(FormatError::JournalDevice);
        }
        if features.metadata_csum() && sb.checksum_type != CHECKSUM_CRC32C {
            return bad("checksum_type", sb.checksum_type, "only 1 is known");
        }
        let (block_bits, cluster_bits) = sizes(sb, features)?;
        let ratio_bits = cluster_bits - block_bits;
        check_group_size(sb, block_bits, ratio_bits)?;
        let block_size = 1u32 << block_bits;
        let (inode_size, first_ino) = inode_shape(sb, block_size)?;
        let geometry = Self {
            features,
            block_bits,
            cluster_bits,
            blocks_count: sb.blocks_count(),
            first_data_block: sb.first_data_block.get(),
            blocks_per_group: sb.blocks_per_group.get(),
            clusters_per_group: sb.blocks_per_group.get() >> ratio_bits,
            group_count: group_count(sb, block_bits, ratio_bits > 0)?,
            inodes_count: sb.inodes_count.get(),
            inodes_per_group: sb.inodes_per_group.get(),
            inode_size,
            first_ino,
            want_extra_isize: want_extra_isize(sb, features, inode_size),
            desc_size: desc_size(sb, features, block_size)?,
            reserved_gdt_blocks: sb.reserved_gdt_blocks.get(),
            first_meta_bg: sb.first_meta_bg.get(),
            backup_bgs: sb.backup_bgs.map(|group| group.get()),
            // A value out of range means no flex groups, as in the kernel.
            log_flex: match sb.log_groups_per_flex {
                log @ 1..=31 if features.has_incompat(Incompat::FLEX_BG) => log,
                _ => 0,
            },
            csum_seed: sb.csum_seed(),
            uuid: sb.uuid,
            hash_seed: sb.hash_seed(),
            unsigned_hash: sb.flags().contains(SuperFlags::UNSIGNED_HASH),
        };
        geometry.check_descriptors()?;
        Ok(geometry)
    }

    /// Checks that need the counts of groups and descriptors.
    fn check_descriptors(&self) -> Result<(), FormatError> {
        if u32::from(self.reserved_gdt_blocks) > self.block_size() / 4 {
            return bad(
                "reserved_gdt_blocks",
                self.reserved_gdt_blocks,
                "more than a quarter of the block size",
            );
        }
        if self.meta_bg() && self.first_meta_bg > self.desc_blocks() {
            return bad(
                "first_meta_bg",
                self.first_meta_bg,
                "more than there are descriptor blocks",
            );
        }
        // Superblock, descriptors and reserved blocks of group 0 must fit in it.
        if u64::from(self.fixed_blocks(0)) > u64::from(self.group_blocks(0)) {
            return bad(
                "blocks_count",
                self.blocks_count,
                "group 0 has no room for the descriptors",
            );
        }
        Ok(())
    }

    /// Error if the device has fewer bytes than the file system.
    pub fn check_device(&self, device_bytes: u64) -> Result<(), FormatError> {
        let need = self.blocks_count << self.block_bits;
        if need > device_bytes {
            return Err(FormatError::DeviceTooSmall {
                need,
                device: device_bytes,
            });
        }
        Ok(())
    }

    /// Feature words.
    pub const fn features(&self) -> Features {
        self.features
    }

    /// Bytes of a block.
    pub const fn block_size(&self) -> u32 {
        1 << self.block_bits
    }

    /// Base-2 logarithm of the block size.
    pub const fn block_bits(&self) -> u32 {
        self.block_bits
    }

    /// Bytes of a cluster.
    pub const fn cluster_size(&self) -> u32 {
        1 << self.cluster_bits
    }

    /// Base-2 logarithm of the blocks of a cluster; 0 without bigalloc.
    pub const fn cluster_ratio_bits(&self) -> u32 {
        self.cluster_bits - self.block_bits
    }

    /// Blocks of the file system.
    pub const fn blocks_count(&self) -> u64 {
        self.blocks_count
    }

    /// First block of group 0: 1 with blocks of 1 KiB, else 0.
    pub const fn first_data_block(&self) -> u32 {
        self.first_data_block
    }

    /// Blocks of every group but the last.
    pub const fn blocks_per_group(&self) -> u32 {
        self.blocks_per_group
    }

    /// Clusters of every group but the last: bits of a block bitmap.
    pub const fn clusters_per_group(&self) -> u32 {
        self.clusters_per_group
    }

    /// Number of groups, at least 1.
    pub const fn group_count(&self) -> u32 {
        self.group_count
    }

    /// Inodes of all groups.
    pub const fn inodes_count(&self) -> u32 {
        self.inodes_count
    }

    /// Inodes of every group, the last included.
    pub const fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// Bytes of an inode.
    pub const fn inode_size(&self) -> u16 {
        self.inode_size
    }

    /// First inode that is not reserved.
    pub const fn first_ino(&self) -> u32 {
        self.first_ino
    }

    /// Bytes beyond 128 that a new inode claims for fields; never more than there are.
    pub const fn want_extra_isize(&self) -> u16 {
        self.want_extra_isize
    }

    /// Bytes of a group descriptor.
    pub const fn desc_size(&self) -> u16 {
        self.desc_size
    }

    /// Blocks kept after the descriptors for growth.
    pub const fn reserved_gdt_blocks(&self) -> u16 {
        self.reserved_gdt_blocks
    }

    /// First meta group that has its descriptors in itself; only with meta_bg.
    pub const fn first_meta_bg(&self) -> u32 {
        self.first_meta_bg
    }

    /// Groups of a flex group; 1 without flex_bg.
    pub const fn flex_size(&self) -> u32 {
        1 << self.log_flex
    }

    /// Flex group of a group.
    pub const fn flex_of_group(&self, group: u32) -> u32 {
        group >> self.log_flex
    }

    /// Number of flex groups.
    pub const fn flex_count(&self) -> u32 {
        self.flex_of_group(self.group_count - 1) + 1
    }

    /// Seed of metadata checksums.
    pub const fn csum_seed(&self) -> u32 {
        self.csum_seed
    }

    /// Seed of the checksums of one inode's structures.
    pub fn inode_seed(&self, ino: u32, generation: u32) -> u32 {
        inode_seed(self.csum_seed, ino, generation)
    }

    /// The generation with which inode `to` has the checksums of inode `from`. Without
    /// metadata_csum it stays.
    pub fn same_seed_generation(&self, from: u32, to: u32, generation: u32) -> u32 {
        if self.metadata_csum() {
            same_seed_generation(self.csum_seed, from, to, generation)
        } else {
            generation
        }
    }

    /// Identity; part of descriptor checksums without metadata_csum.
    pub const fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// Seed of directory hashes.
    pub const fn hash_seed(&self) -> [u32; 4] {
        self.hash_seed
    }

    /// Whether directory hashes take the bytes of names as unsigned.
    pub const fn unsigned_hash(&self) -> bool {
        self.unsigned_hash
    }

    /// Whether metadata carry a CRC-32C.
    pub const fn metadata_csum(&self) -> bool {
        self.features.metadata_csum()
    }

    fn meta_bg(&self) -> bool {
        self.features.has_incompat(Incompat::META_BG)
    }

    /// Descriptors in a block.
    pub const fn descs_per_block(&self) -> u32 {
        self.block_size() / self.desc_size as u32
    }

    /// Blocks of the descriptor table, wherever they are.
    pub const fn desc_blocks(&self) -> u32 {
        self.group_count.div_ceil(self.descs_per_block())
    }

    /// Inodes in a block of an inode table.
    pub const fn inodes_per_block(&self) -> u32 {
        self.block_size() / self.inode_size as u32
    }

    /// Blocks of a group's inode table.
    pub const fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }
}
