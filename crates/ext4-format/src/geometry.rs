//! What the superblock says about sizes and places, checked once.
//!
//! # How it works
//! [`Geometry::new`] refuses every superblock whose numbers contradict each other. What it
//! returns holds these facts, on which all arithmetic of an engine may rest:
//! - block size 2^10 to 2^16, inode size a power of two from 128 to the block size, descriptor
//!   size a power of two from 32 to the block size;
//! - a group has at most 8 × block size clusters and as many inodes, both divisible by 8;
//! - at least one group; `group_count` × `inodes_per_group` fits `u32` and is the inode count;
//! - `blocks_count` × block size fits `i64`, block numbers fit 48 bits.
//!
//! Where descriptors and superblock copies stand is kernel documentation
//! `filesystems/ext4/blockgroup.rst` ("Meta Block Groups", "sparse_super"). One special case:
//! with blocks of 1 KiB and bigalloc the first data block is 0, while the superblock is still
//! at byte 1024; group 0 then begins with the boot block.

use crate::checksum::inode_seed;
use crate::superblock::{REV_DYNAMIC, REV_GOOD_OLD, SUPER_MAGIC};
use crate::{
    CHECKSUM_CRC32C, Compat, Features, FormatError, Incompat, RoCompat, SuperBlock, SuperFlags,
};

/// First inode that is not reserved, in revision 0.
pub const GOOD_OLD_FIRST_INO: u32 = 11;
/// Bytes of an inode in revision 0.
pub const GOOD_OLD_INODE_SIZE: u16 = 128;
/// Bytes of a descriptor without the 64bit feature.
pub const DESC_SIZE_MIN: u16 = 32;
/// Least bytes of a descriptor with the 64bit feature.
pub const DESC_SIZE_64BIT: u16 = 64;
/// Block numbers have at most so many bits.
pub const BLOCK_NUMBER_BITS: u32 = 48;

/// Checked summary of a superblock. It does not change while a file system is open.
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
    /// Checks the superblock's numbers. Features are not judged here: see
    /// [`Features::read_blockers`], but an external journal is refused.
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

    /// What can only be said once group and descriptor counts are known.
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

    /// Seed of the checksums of what belongs to one inode.
    pub fn inode_seed(&self, ino: u32, generation: u32) -> u32 {
        inode_seed(self.csum_seed, ino, generation)
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

    /// Blocks of the descriptor table, wherever they stand.
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

    /// Whether the group holds a copy of the superblock (group 0: the superblock itself).
    pub fn has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.has_compat(Compat::SPARSE_SUPER2) {
            return self.backup_bgs.contains(&group);
        }
        if group == 1 || !self.features.has_ro_compat(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3u32, 5, 7].iter().any(|base| is_power_of(group, *base))
    }

    /// First block of the group.
    ///
    /// # Errors
    /// `NoGroup`.
    pub fn group_first_block(&self, group: u32) -> Result<u64, FormatError> {
        self.check_group(group)?;
        Ok(self.first_block(group))
    }

    /// As [`Self::group_first_block`], for a group number known to be one; others saturate.
    fn first_block(&self, group: u32) -> u64 {
        let start = u64::from(group).saturating_mul(u64::from(self.blocks_per_group));
        start.saturating_add(u64::from(self.first_data_block))
    }

    /// Blocks of the group: the last one may be shorter. 0 for a group that is not there.
    pub fn group_blocks(&self, group: u32) -> u32 {
        if group >= self.group_count {
            return 0;
        }
        let left = self.blocks_count.saturating_sub(self.first_block(group));
        // At most blocks_per_group, so it fits.
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Clusters of the group: used bits of its block bitmap. 0 for a group that is not there.
    pub fn group_clusters(&self, group: u32) -> u32 {
        self.group_blocks(group)
            .div_ceil(1 << self.cluster_ratio_bits())
    }

    /// Error if there is no such group.
    pub const fn check_group(&self, group: u32) -> Result<(), FormatError> {
        if group < self.group_count {
            return Ok(());
        }
        Err(FormatError::NoGroup {
            group,
            count: self.group_count,
        })
    }

    /// Group of a block, and the block's number in it.
    ///
    /// # Errors
    /// `NoBlock`.
    pub fn group_of_block(&self, block: u64) -> Result<(u32, u32), FormatError> {
        self.check_blocks(block, 1)?;
        let offset = block - u64::from(self.first_data_block);
        let size = u64::from(self.blocks_per_group);
        // group_count fits u32 and covers every block below blocks_count.
        Ok(((offset / size) as u32, (offset % size) as u32))
    }

    /// Error unless all `count` blocks from `block` on lie in the groups. `count` 0 is one block.
    pub fn check_blocks(&self, block: u64, count: u64) -> Result<(), FormatError> {
        let end = block.saturating_add(count.max(1));
        if block < u64::from(self.first_data_block) || end > self.blocks_count {
            return Err(FormatError::NoBlock {
                block,
                count: self.blocks_count,
            });
        }
        Ok(())
    }

    /// Byte offset of a block on the device.
    ///
    /// # Errors
    /// `NoBlock`.
    pub fn block_offset(&self, block: u64) -> Result<u64, FormatError> {
        if block >= self.blocks_count {
            return Err(FormatError::NoBlock {
                block,
                count: self.blocks_count,
            });
        }
        Ok(block << self.block_bits)
    }

    /// Group of an inode, and its index in that group's table.
    ///
    /// # Errors
    /// `NoInode`.
    pub const fn inode_location(&self, ino: u32) -> Result<(u32, u32), FormatError> {
        if ino == 0 || ino > self.inodes_count {
            return Err(FormatError::NoInode {
                ino,
                count: self.inodes_count,
            });
        }
        let index = ino - 1;
        Ok((index / self.inodes_per_group, index % self.inodes_per_group))
    }

    /// Number of the inode with that index in the group's table; `None` if there is none.
    pub fn ino(&self, group: u32, index: u32) -> Option<u32> {
        if group >= self.group_count || index >= self.inodes_per_group {
            return None;
        }
        // group_count * inodes_per_group fits u32.
        Some(group * self.inodes_per_group + index + 1)
    }

    /// Block of the table that holds the inode with that index, and its byte offset in it.
    /// `table` is the table's first block.
    pub fn inode_in_table(&self, table: u64, index: u32) -> (u64, u32) {
        let per_block = self.inodes_per_block();
        (
            table.saturating_add(u64::from(index / per_block)),
            index % per_block * u32::from(self.inode_size),
        )
    }

    /// Block that holds the superblock.
    pub const fn super_block(&self) -> u64 {
        (self.block_bits == 10) as u64
    }

    /// Block of the superblock copy in a group that has one ([`Self::has_super`]); `None` if not.
    /// In all groups but 0 the copy is at the front of its block.
    pub fn backup_super_block(&self, group: u32) -> Option<u64> {
        if group >= self.group_count || !self.has_super(group) {
            return None;
        }
        Some(if group == 0 {
            self.super_block()
        } else {
            self.first_block(group)
        })
    }

    /// Whether that block of the descriptor table stands in the meta group that it describes.
    fn in_meta_group(&self, index: u32) -> bool {
        self.meta_bg() && index >= self.first_meta_bg
    }

    /// Block, in `group`, of the descriptor block that describes this group's meta group.
    fn meta_desc_block(&self, group: u32) -> u64 {
        let first = if group == 0 {
            self.super_block()
        } else {
            self.first_block(group)
        };
        first.saturating_add(u64::from(self.has_super(group)))
    }

    /// Where block `index` of the descriptor table stands: the copy that is read.
    /// `index` is below [`Self::desc_blocks`]; others give a block that may not exist.
    pub fn desc_table_block(&self, index: u32) -> u64 {
        if self.in_meta_group(index) {
            self.meta_desc_block(index.saturating_mul(self.descs_per_block()))
        } else {
            self.super_block() + 1 + u64::from(index)
        }
    }

    /// Block that holds the group's descriptor, and its byte offset in it.
    ///
    /// # Errors
    /// `NoGroup`.
    pub fn descriptor_block(&self, group: u32) -> Result<(u64, u32), FormatError> {
        self.check_group(group)?;
        let per_block = self.descs_per_block();
        let offset = group % per_block * u32::from(self.desc_size);
        Ok((self.desc_table_block(group / per_block), offset))
    }

    /// Where copies of block `index` of the descriptor table stand, without the one that is
    /// read.
    pub fn desc_table_backups(&self, index: u32) -> Vec<u64> {
        if self.in_meta_group(index) {
            let first = index.saturating_mul(self.descs_per_block());
            let last = first.saturating_add(self.descs_per_block() - 1);
            let mut groups = vec![first.saturating_add(1), last];
            groups.dedup();
            groups.retain(|group| *group != first && *group < self.group_count);
            return groups.iter().map(|g| self.meta_desc_block(*g)).collect();
        }
        (1..self.group_count)
            .filter(|group| self.has_super(*group))
            .map(|group| self.first_block(group) + 1 + u64::from(index))
            .collect()
    }

    /// Blocks at the front of the group that superblock, descriptors and blocks reserved for
    /// descriptors take; in group 0 of an image with 1 KiB blocks and bigalloc also the boot
    /// block.
    pub fn fixed_blocks(&self, group: u32) -> u32 {
        let mut blocks = u32::from(self.has_super(group));
        if self.in_meta_group(group / self.descs_per_block()) {
            let place = group % self.descs_per_block();
            blocks += u32::from(place < 2 || place == self.descs_per_block() - 1);
        } else if blocks > 0 {
            let table = if self.meta_bg() {
                self.first_meta_bg
            } else {
                self.desc_blocks()
            };
            blocks = blocks
                .saturating_add(table)
                .saturating_add(u32::from(self.reserved_gdt_blocks));
        }
        let boot_block = group == 0 && self.super_block() > u64::from(self.first_data_block);
        blocks.saturating_add(u32::from(boot_block))
    }

    /// Largest size of a file with extents, in bytes: logical blocks are below 2^32 - 1; without
    /// huge_file the inode counts 32 bits of sectors.
    pub fn max_extent_file_size(&self) -> u64 {
        let logical = u64::from(u32::MAX) << self.block_bits;
        let counted = if self.features.has_ro_compat(RoCompat::HUGE_FILE) {
            u64::MAX
        } else {
            u64::from(u32::MAX) >> (self.block_bits - 9) << self.block_bits
        };
        logical.min(counted).min(i64::MAX as u64)
    }

    /// Largest size of a file with indirect blocks, in bytes: what three levels reach and the
    /// inode can count, the indirect blocks included.
    pub fn max_indirect_file_size(&self) -> u64 {
        let sector_bits = self.block_bits - 9;
        let counted = if self.features.has_ro_compat(RoCompat::HUGE_FILE) {
            (1u64 << 48) - 1
        } else {
            u64::from(u32::MAX) >> sector_bits
        };
        let pointers = u64::from(self.block_size() / 4);
        let reach = 12 + pointers + pointers.pow(2) + pointers.pow(3);
        let (mut low, mut high) = (12, reach.min(u64::from(u32::MAX)));
        // Largest number of data blocks that, with its maps, can be counted.
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if middle + indirect_blocks(middle, pointers) <= counted {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low << self.block_bits
    }
}

/// Indirect blocks that a file of `blocks` blocks without holes has.
fn indirect_blocks(blocks: u64, pointers: u64) -> u64 {
    let mut left = blocks.saturating_sub(12);
    let mut maps = u64::from(left > 0);
    left = left.saturating_sub(pointers);
    let double = left.min(pointers.pow(2));
    maps += u64::from(double > 0) + double.div_ceil(pointers);
    left -= double;
    maps + u64::from(left > 0) + left.div_ceil(pointers.pow(2)) + left.div_ceil(pointers)
}

fn is_power_of(mut number: u32, base: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}
