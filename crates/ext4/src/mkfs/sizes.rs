//! Computes the numbers of blocks, groups, inodes, blocks for growth, and journal blocks.
//!
//! All rules follow `mke2fs`.

use sapwood_block::Device;
use sapwood_ext4_format::{
    BLOCK_NUMBER_BITS, CHECKSUM_CRC32C, Compat, DESC_SIZE_64BIT, DESC_SIZE_MIN, EXTRA_ISIZE_FULL,
    Features, GOOD_OLD_FIRST_INO, GOOD_OLD_INODE_SIZE, Geometry, Incompat, MMP_MAX_CHECK_INTERVAL,
    MMP_UPDATE_INTERVAL, MountOpts, REV_DYNAMIC, RoCompat, SUPER_MAGIC, SuperBlock, SuperFlags,
    SuperState, errors_behaviour, uuid_seed,
};
use sapwood_vfs::{Ambient, Timestamp};

use super::error::MkfsError;
use super::features;
use super::options::{MkfsOptions, OnError};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// File systems end at a multiple of a memory page.
const PAGE: u64 = 4096;
/// Fewest blocks for data in the last group.
const LAST_GROUP_ROOM: u64 = 50;
/// A file system may grow to this many times its size without moving a block.
const GROWTH: u64 = 1024;
/// Fewest and most blocks of a journal.
const JOURNAL_BLOCKS: std::ops::RangeInclusive<u64> = 1024..=10_240_000;
/// Journal blocks per fast-commit block.
const BLOCKS_PER_FAST_COMMIT: u64 = 64;

/// Blocks of the journal by the blocks of the file system: below the first number the second.
const JOURNAL_SIZES: &[(u64, u64)] = &[
    (2048, 0),
    (32_768, 1024),
    (256 << 10, 4096),
    (512 << 10, 8192),
    (4 << 20, 16_384),
    (8 << 20, 32_768),
    (16 << 20, 65_536),
    (32 << 20, 131_072),
    (u64::MAX, 262_144),
];

/// Size of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalSize {
    /// All blocks.
    pub(super) blocks: u32,
    /// Blocks at its end for fast commits.
    pub(super) fast_commit: u32,
}

/// The planned file system.
pub(super) struct MkfsPlan {
    /// The superblock, except for the checksum and the fields that depend on locations.
    pub(super) super_block: SuperBlock,
    pub(super) geometry: Geometry,
    pub(super) journal: Option<JournalSize>,
}

/// Defaults by the size of the device: block size, bytes per inode.
fn usage(bytes: u64) -> (u32, u64) {
    if bytes < 3 * MIB {
        (1024, 8192)
    } else if bytes < 512 * MIB {
        (1024, 4096)
    } else if bytes < 4 * TIB {
        (4096, 16 << 10)
    } else if bytes < 16 * TIB {
        (4096, 32 << 10)
    } else {
        (4096, 64 << 10)
    }
}

/// Interdependent numbers of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Groups {
    blocks: u64,
    blocks_per_group: u32,
    inodes_per_group: u32,
    count: u64,
    reserved_gdt: u16,
}

/// Inputs of [`Groups`].
struct Wanted {
    features: Features,
    block_size: u32,
    inode_size: u16,
    blocks: u64,
    inodes: u64,
}

impl Wanted {
    fn first_data_block(&self) -> u64 {
        u64::from(self.block_size == 1024)
    }

    fn desc_size(&self) -> u16 {
        if self.features.has_incompat(Incompat::BIT64) {
            DESC_SIZE_64BIT
        } else {
            DESC_SIZE_MIN
        }
    }

    fn descs_per_block(&self) -> u64 {
        u64::from(self.block_size) / u64::from(self.desc_size())
    }

    /// Table blocks and inodes of a group that needs at least this many inodes: whole blocks, and
    /// whole bytes of the bitmap.
    fn table(&self, inodes: u64) -> (u64, u64) {
        let per_block = u64::from(self.block_size) / u64::from(self.inode_size);
        let inodes = (inodes.div_ceil(per_block) * per_block / 8 * 8).max(8);
        (inodes.div_ceil(per_block), inodes)
    }

    /// Blocks reserved after the descriptors, for the descriptors of a file system 1024 times as
    /// large.
    fn reserved_gdt(&self, blocks: u64, blocks_per_group: u64, desc_blocks: u64) -> u64 {
        if !self.features.has_compat(Compat::RESIZE_INODE) {
            return 0;
        }
        let most = blocks.saturating_mul(GROWTH).min(u64::from(u32::MAX));
        let groups = (most - self.first_data_block()).div_ceil(blocks_per_group);
        let all = groups.div_ceil(self.descs_per_block());
        // At most as many as their inode can name.
        let names = u64::from(self.block_size) / 4;
        all.saturating_sub(desc_blocks).min(names)
    }

    fn too_small(&self) -> MkfsError {
        MkfsError::TooSmall {
            blocks: self.blocks,
            block_size: self.block_size,
        }
    }

    /// Groups with this many blocks; `None` if a bitmap cannot hold a group's inodes then.
    fn groups_of(&self, blocks_per_group: u32) -> Result<Option<Groups>, MkfsError> {
        let size = u64::from(blocks_per_group);
        let mut blocks = self.blocks;
        loop {
            let in_groups = blocks.saturating_sub(self.first_data_block());
            let count = in_groups.div_ceil(size);
            if count == 0 {
                return Err(self.too_small());
            }
            let inodes = self.inodes.max(u64::from(GOOD_OLD_FIRST_INO) + 1);
            let least = inodes.div_ceil(count);
            let most = u64::from(self.block_size) * 8;
            let (table, inodes_per_group) = self.table(least);
            if least > most || inodes_per_group > most {
                return Ok(None);
            }
            let desc_blocks = count.div_ceil(self.descs_per_block());
            let reserved = self.reserved_gdt(blocks, size, desc_blocks);
            let gdt = if self.features.has_incompat(Incompat::META_BG) {
                1
            } else {
                desc_blocks + reserved
            };
            if gdt > size * 3 / 4 {
                return Err(MkfsError::Descriptors {
                    blocks: gdt,
                    group: blocks_per_group,
                });
            }
            let front = if self.last_has_super(count) {
                1 + gdt
            } else {
                0
            };
            let overhead = 2 + table + front;
            let rest = in_groups % size;
            if rest != 0 && count == 1 && rest < overhead {
                return Err(self.too_small());
            }
            if rest != 0 && rest < overhead + LAST_GROUP_ROOM && count > 1 {
                blocks -= rest;
                continue;
            }
            return Ok(Some(Groups {
                blocks,
                blocks_per_group,
                inodes_per_group: u32::try_from(inodes_per_group).unwrap_or(u32::MAX),
                count,
                reserved_gdt: u16::try_from(reserved).unwrap_or(u16::MAX),
            }));
        }
    }

    fn last_has_super(&self, count: u64) -> bool {
        let last = count - 1;
        if last <= 1
            || self.features.has_compat(Compat::SPARSE_SUPER2)
            || !self.features.has_ro_compat(RoCompat::SPARSE_SUPER)
        {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| {
            let mut power = base;
            while power < last {
                power *= base;
            }
            power == last
        })
    }

    /// Groups as large as a bitmap allows, but not so large that a bitmap of inodes is too small.
    /// `size`, if given, is the largest to try.
    fn groups(&self, size: Option<u32>) -> Result<Groups, MkfsError> {
        let largest = self.block_size * 8;
        let mut size = size.unwrap_or(largest);
        if !(256..=largest).contains(&size) || !size.is_multiple_of(8) {
            return Err(MkfsError::GroupSize(size));
        }
        while size >= 256 {
            if let Some(groups) = self.groups_of(size)? {
                return Ok(groups);
            }
            size -= 8;
        }
        Err(self.too_many_inodes())
    }

    fn too_many_inodes(&self) -> MkfsError {
        MkfsError::Inodes {
            inodes: self.inodes,
            size: u32::from(self.inode_size),
            blocks: self.blocks,
        }
    }
}

/// Bytes of the device to use.
///
/// # Errors
/// [`MkfsError::PastEnd`].
pub(super) fn bytes_of(device: &dyn Device, options: &MkfsOptions) -> Result<u64, MkfsError> {
    let bytes = options.size.unwrap_or(device.size());
    if bytes > device.size() {
        return Err(MkfsError::PastEnd {
            device: device.name().to_owned(),
            size: device.size(),
            wanted: bytes,
        });
    }
    Ok(bytes)
}

/// Checks a size of blocks.
///
/// # Errors
/// [`MkfsError::BlockSize`].
pub(super) fn check_block_size(block_size: u32) -> Result<(), MkfsError> {
    if ![1024, 2048, 4096].contains(&block_size) {
        return Err(MkfsError::BlockSize(block_size));
    }
    Ok(())
}

/// Checks the label.
///
/// # Errors
/// [`MkfsError::Label`].
pub(super) fn check_label(options: &MkfsOptions) -> Result<(), MkfsError> {
    if options.label.len() > 16 || options.label.contains('\0') {
        return Err(MkfsError::Label(options.label.len()));
    }
    Ok(())
}

/// Collects and checks the inputs.
fn wanted(device: &dyn Device, options: &MkfsOptions) -> Result<Wanted, MkfsError> {
    let bytes = bytes_of(device, options)?;
    let (block_size, ratio) = usage(bytes);
    let block_size = options.block_size.unwrap_or(block_size);
    check_block_size(block_size)?;
    let size = options.inode_size.unwrap_or(256);
    let inode_size = u16::try_from(size)
        .ok()
        .filter(|size| size.is_power_of_two() && *size >= GOOD_OLD_INODE_SIZE)
        .filter(|size| u32::from(*size) <= block_size);
    let inode_size = inode_size.ok_or(MkfsError::InodeSize { size, block_size })?;
    let ratio = options.bytes_per_inode.unwrap_or(ratio);
    if !(1024..=64 * MIB).contains(&ratio) {
        return Err(MkfsError::InodeRatio(ratio));
    }
    let mut features = features::resolve(&options.features)?;
    if inode_size == GOOD_OLD_INODE_SIZE && features.has_incompat(Incompat::INLINE_DATA) {
        return Err(MkfsError::Needs {
            feature: "inline_data",
            needs: "inodes of 256 bytes",
        });
    }
    if features.has_compat(Compat::RESIZE_INODE) && block_size == 4096 {
        // The size of that inode is the range of its blocks of pointers: over 2 GiB.
        features.ro_compat |= RoCompat::LARGE_FILE;
    }
    let end = bytes / PAGE * PAGE;
    let blocks = end / u64::from(block_size);
    let wide = features.has_incompat(Incompat::BIT64);
    if blocks >> BLOCK_NUMBER_BITS != 0 || !wide && blocks > u64::from(u32::MAX) {
        return Err(MkfsError::TooLarge(blocks));
    }
    if blocks < 2048 && options.journal_size.is_none() && options.journal.is_none() {
        // Too few blocks for a journal and the features that need one.
        features.compat -= Compat::HAS_JOURNAL | Compat::FAST_COMMIT | Compat::ORPHAN_FILE;
    }
    let wanted = Wanted {
        features,
        block_size,
        inode_size,
        blocks,
        inodes: options.inodes.unwrap_or(end / ratio),
    };
    let bytes = wanted.inodes.checked_mul(u64::from(inode_size));
    if wanted.inodes > u64::from(u32::MAX) || bytes.is_none_or(|bytes| bytes > end) {
        return Err(wanted.too_many_inodes());
    }
    Ok(wanted)
}

/// Bytes of the journal in a file system with this many blocks.
pub fn usual_journal(blocks: u64, block_size: u32) -> u64 {
    let found = JOURNAL_SIZES.iter().find(|(below, _)| blocks < *below);
    let blocks = found
        .map_or(0, |(_, size)| *size)
        .max(*JOURNAL_BLOCKS.start());
    blocks * u64::from(block_size)
}

/// Block size of a file system with this many bytes.
pub fn usual_block_size(bytes: u64) -> u32 {
    usage(bytes).0
}

fn journal(
    features: &Features,
    options: &MkfsOptions,
    blocks: u64,
    block_size: u32,
) -> Result<Option<JournalSize>, MkfsError> {
    if !features.has_compat(Compat::HAS_JOURNAL) {
        if options.journal.is_some() {
            let (feature, needs) = ("a journal on another device", "has_journal");
            return Err(MkfsError::Needs { feature, needs });
        }
        return Ok(None);
    }
    if options.journal.is_some() {
        return Ok(None);
    }
    let size = match options.journal_size {
        Some(bytes) => bytes / u64::from(block_size),
        None => JOURNAL_SIZES
            .iter()
            .find(|(below, _)| blocks < *below)
            .map_or(0, |(_, size)| *size),
    };
    let (least, most) = JOURNAL_BLOCKS.into_inner();
    let most = most.min(blocks / 2);
    let fast = if features.has_compat(Compat::FAST_COMMIT) {
        size / BLOCKS_PER_FAST_COMMIT
    } else {
        0
    };
    let (all, fast_commit) = (u32::try_from(size + fast), u32::try_from(fast));
    match (all, fast_commit) {
        (Ok(blocks), Ok(fast_commit)) if (least..=most).contains(&size) => Ok(Some(JournalSize {
            blocks,
            fast_commit,
        })),
        _ => Err(MkfsError::JournalSize {
            blocks: size,
            least,
            most,
        }),
    }
}

/// Computes all numbers.
///
/// # Errors
/// The [`MkfsError`] of the first option that cannot be met on this device.
pub(super) fn plan(
    device: &dyn Device,
    options: &MkfsOptions,
    now: u64,
) -> Result<MkfsPlan, MkfsError> {
    if !(0.0..=50.0).contains(&options.reserved_percent) {
        return Err(MkfsError::Reserved(options.reserved_percent));
    }
    check_label(options)?;
    let seconds = options.mmp_update_interval;
    if let Some(seconds) = seconds.filter(|s| !(1..=MMP_MAX_CHECK_INTERVAL).contains(s)) {
        return Err(MkfsError::MmpInterval(seconds));
    }
    let flex = options.flex_groups;
    if !flex.is_power_of_two() {
        return Err(MkfsError::FlexGroups(flex));
    }
    let wanted = wanted(device, options)?;
    let groups = wanted.groups(options.blocks_per_group)?;
    let journal = journal(&wanted.features, options, groups.blocks, wanted.block_size)?;
    let mut super_block = numbers(&wanted, &groups, options)?;
    identity(&mut super_block, options, now)?;
    let geometry = Geometry::new(&super_block)?;
    Ok(MkfsPlan {
        super_block,
        geometry,
        journal,
    })
}

/// Sets the fields of the superblock for sizes.
fn numbers(
    wanted: &Wanted,
    groups: &Groups,
    options: &MkfsOptions,
) -> Result<SuperBlock, MkfsError> {
    let log_block = wanted.block_size.trailing_zeros() - 10;
    let inodes = groups.count * u64::from(groups.inodes_per_group);
    let inodes = u32::try_from(inodes).map_err(|_| wanted.too_many_inodes())?;
    let first_data_block = u32::from(wanted.block_size == 1024);
    let mut sb = SuperBlock {
        inodes_count: inodes.into(),
        first_data_block: first_data_block.into(),
        log_block_size: log_block.into(),
        log_cluster_size: log_block.into(),
        blocks_per_group: groups.blocks_per_group.into(),
        clusters_per_group: groups.blocks_per_group.into(),
        inodes_per_group: groups.inodes_per_group.into(),
        magic: SUPER_MAGIC.into(),
        rev_level: REV_DYNAMIC.into(),
        first_ino: GOOD_OLD_FIRST_INO.into(),
        inode_size: wanted.inode_size.into(),
        reserved_gdt_blocks: groups.reserved_gdt.into(),
        ..SuperBlock::default()
    };
    sb.set_features(wanted.features);
    sb.set_blocks_count(groups.blocks)?;
    // At most half of 2^48, which a float represents exactly; the fraction is dropped.
    let reserved = groups.blocks as f64 * options.reserved_percent / 100.0;
    sb.set_reserved_blocks_count(reserved as u64)?;
    if wanted.inode_size > GOOD_OLD_INODE_SIZE {
        sb.min_extra_isize = EXTRA_ISIZE_FULL.into();
        sb.want_extra_isize = EXTRA_ISIZE_FULL.into();
    }
    if wanted.features.has_incompat(Incompat::BIT64) {
        sb.desc_size = DESC_SIZE_64BIT.into();
    }
    if wanted.features.has_incompat(Incompat::FLEX_BG) {
        sb.log_groups_per_flex = options.flex_groups.trailing_zeros() as u8;
    }
    if wanted.features.metadata_csum() {
        sb.checksum_type = CHECKSUM_CRC32C;
    }
    if wanted.features.has_compat(Compat::SPARSE_SUPER2) {
        let last = u32::try_from(groups.count - 1).unwrap_or(0);
        let first = u32::from(last > 1);
        sb.backup_bgs = [first, last].map(Into::into);
    }
    Ok(sb)
}

/// Sets the fields for the identity that a file system and a journal device have. Returns the
/// source of further random numbers.
pub(super) fn common_identity(sb: &mut SuperBlock, options: &MkfsOptions, now: u64) -> Ambient {
    let ambient = match &options.uuid {
        Some(uuid) => Ambient::fixed(Timestamp::default(), &[uuid]),
        None => Ambient::machine(),
    };
    sb.uuid = options.uuid.unwrap_or_else(|| ambient.uuid());
    for (to, from) in sb.volume_name.iter_mut().zip(options.label.bytes()) {
        *to = from;
    }
    sb.def_hash_version = options.dir_hash.on_disk();
    sb.max_mnt_count = u16::MAX.into();
    sb.default_mount_opts = (MountOpts::XATTR_USER | MountOpts::ACL).bits().into();
    sb.set_state(SuperState::VALID);
    sb.set_mkfs_time(now);
    sb.set_wtime(now);
    sb.set_lastcheck(now);
    ambient
}

/// Sets the fields for the identity and the first mount.
///
/// # Errors
/// [`MkfsError::JournalDevice`].
fn identity(sb: &mut SuperBlock, options: &MkfsOptions, now: u64) -> Result<(), MkfsError> {
    let ambient = common_identity(sb, options, now);
    let seed = options.hash_seed.unwrap_or_else(|| ambient.uuid());
    for (word, bytes) in sb.hash_seed.iter_mut().zip(seed.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into();
    }
    sb.flags = SuperFlags::SIGNED_HASH.bits().into();
    if sb.features().has_incompat(Incompat::CSUM_SEED) {
        sb.checksum_seed = uuid_seed(&sb.uuid).into();
    }
    let errors = match options.on_error {
        OnError::Continue => errors_behaviour::CONTINUE,
        OnError::ReadOnly => errors_behaviour::READ_ONLY,
        OnError::Panic => errors_behaviour::PANIC,
    };
    sb.errors = errors.into();
    sb.raid_stride = options.stride.into();
    sb.raid_stripe_width = options.stripe_width.into();
    let mmp = sb.features().has_incompat(Incompat::MMP);
    let default = if mmp { MMP_UPDATE_INTERVAL } else { 0 };
    sb.mmp_interval = options.mmp_update_interval.unwrap_or(default).into();
    if let Some(journal) = &options.journal {
        let own = journal.super_block();
        sb.journal_uuid = own.map_err(MkfsError::journal_device)?.uuid;
    }
    Ok(())
}
