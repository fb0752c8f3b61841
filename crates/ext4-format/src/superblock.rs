//! The superblock: 1024 bytes, at byte 1024 of the device and in some groups.
//!
//! Offsets and meanings: kernel documentation, `filesystems/ext4/super.rst`.

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};

use crate::checksum::{crc32c, uuid_seed};
use crate::layout::{disk_struct, offsets};
use crate::{Compat, Features, FormatError, Incompat, RoCompat};

/// Magic number of an ext2, ext3 or ext4 superblock.
pub const SUPER_MAGIC: u16 = 0xef53;
/// Byte offset of the first superblock on the device.
pub const SUPER_OFFSET: u64 = 1024;
/// Bytes of a superblock.
pub const SUPER_SIZE: usize = 1024;
/// The only value of `checksum_type`.
pub const CHECKSUM_CRC32C: u8 = 1;
/// `creator_os` of an image whose inodes have Hurd fields (for example a translator block) where
/// Linux has the version and high halves.
pub const CREATOR_HURD: u32 = 1;
/// Revision without features and with inodes of 128 bytes.
pub const REV_GOOD_OLD: u32 = 0;
/// Revision with features and inodes of any size.
pub const REV_DYNAMIC: u32 = 1;
/// First inode that is not reserved, in revision 0.
pub const GOOD_OLD_FIRST_INO: u32 = 11;
/// Bytes of an inode in revision 0.
pub const GOOD_OLD_INODE_SIZE: u16 = 128;

bitflags! {
    /// `state`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SuperState: u16 {
        /// Unmounted cleanly.
        const VALID = 1;
        /// Errors were seen.
        const ERROR = 2;
        /// Orphans are being recovered.
        const ORPHAN = 4;
        /// Fast commits are being replayed.
        const FC_REPLAY = 0x20;
        const _ = !0;
    }

    /// `flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SuperFlags: u32 {
        /// Directory hashes take the bytes of a name as signed.
        const SIGNED_HASH = 1;
        /// Directory hashes take the bytes of a name as unsigned.
        const UNSIGNED_HASH = 2;
        /// May be used with code in development.
        const TEST_FILESYS = 4;
        const _ = !0;
    }

    /// `default_mount_opts`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MountOpts: u32 {
        /// Log more.
        const DEBUG = 1;
        /// New files take the directory's group.
        const BSDGROUPS = 2;
        /// `user.` attributes.
        const XATTR_USER = 4;
        /// POSIX ACLs.
        const ACL = 8;
        /// User and group ids of 16 bits.
        const UID16 = 0x10;
        /// `data=journal`; with `JMODE_ORDERED` together: `data=writeback`.
        const JMODE_DATA = 0x20;
        /// `data=ordered`.
        const JMODE_ORDERED = 0x40;
        /// No flushes.
        const NOBARRIER = 0x100;
        /// Metadata blocks are known and refused as data.
        const BLOCK_VALIDITY = 0x200;
        /// Freed blocks are discarded.
        const DISCARD = 0x400;
        /// No delayed allocation.
        const NODELALLOC = 0x800;
        const _ = !0;
    }
}

/// `errors`: the kernel's reaction to damage.
pub mod errors_behaviour {
    /// Continue.
    pub const CONTINUE: u16 = 1;
    /// Read-only from then on.
    pub const READ_ONLY: u16 = 2;
    /// Halt the machine.
    pub const PANIC: u16 = 3;
}

/// `def_hash_version` and the version in a hash tree's root.
pub mod hash_version {
    /// Legacy, signed bytes.
    pub const LEGACY: u8 = 0;
    /// Half MD4, signed bytes.
    pub const HALF_MD4: u8 = 1;
    /// TEA, signed bytes.
    pub const TEA: u8 = 2;
    /// Legacy, unsigned bytes.
    pub const LEGACY_UNSIGNED: u8 = 3;
    /// Half MD4, unsigned bytes.
    pub const HALF_MD4_UNSIGNED: u8 = 4;
    /// TEA, unsigned bytes.
    pub const TEA_UNSIGNED: u8 = 5;
    /// SipHash of encrypted, case-insensitive names.
    pub const SIPHASH: u8 = 6;
}

disk_struct! {
    /// The superblock. Fields are public and raw; a value that is split over two fields has a
    /// getter and a setter.
    pub struct SuperBlock = 1024 {
        /// Inodes in all groups.
        pub inodes_count: U32,
        /// Blocks, low half.
        pub blocks_count_lo: U32,
        /// Blocks that only the superuser may take, low half.
        pub r_blocks_count_lo: U32,
        /// Free blocks, low half.
        pub free_blocks_count_lo: U32,
        /// Free inodes.
        pub free_inodes_count: U32,
        /// First block of group 0.
        pub first_data_block: U32,
        /// Block size: 1024 << this.
        pub log_block_size: U32,
        /// Cluster size: 1024 << this.
        pub log_cluster_size: U32,
        /// Blocks of a group.
        pub blocks_per_group: U32,
        /// Clusters of a group.
        pub clusters_per_group: U32,
        /// Inodes of a group.
        pub inodes_per_group: U32,
        /// Last mount, seconds since 1970, low half.
        pub mtime_lo: U32,
        /// Last write, seconds since 1970, low half.
        pub wtime_lo: U32,
        /// Mounts since the last check.
        pub mnt_count: U16,
        /// Mounts after which a check is due; -1: never.
        pub max_mnt_count: U16,
        /// [`SUPER_MAGIC`].
        pub magic: U16,
        /// [`SuperState`].
        pub state: U16,
        /// [`errors_behaviour`].
        pub errors: U16,
        /// Minor revision.
        pub minor_rev_level: U16,
        /// Last check, seconds since 1970, low half.
        pub lastcheck_lo: U32,
        /// Seconds between checks.
        pub checkinterval: U32,
        /// Operating system that made it; 0 is Linux.
        pub creator_os: U32,
        /// [`REV_GOOD_OLD`] or [`REV_DYNAMIC`].
        pub rev_level: U32,
        /// User that may take reserved blocks, low half.
        pub def_resuid_lo: U16,
        /// Group that may take reserved blocks, low half.
        pub def_resgid_lo: U16,
        /// First inode that is not reserved.
        pub first_ino: U32,
        /// Bytes of an inode.
        pub inode_size: U16,
        /// Group of this copy.
        pub block_group_nr: U16,
        /// [`Compat`].
        pub feature_compat: U32,
        /// [`Incompat`].
        pub feature_incompat: U32,
        /// [`RoCompat`].
        pub feature_ro_compat: U32,
        /// Identity.
        pub uuid: [u8; 16],
        /// Label, padded with zeros.
        pub volume_name: [u8; 16],
        /// Last mount point, padded with zeros.
        pub last_mounted: [u8; 64],
        /// Unused.
        pub algorithm_usage_bitmap: U32,
        /// Unused.
        pub prealloc_blocks: u8,
        /// Unused.
        pub prealloc_dir_blocks: u8,
        /// Blocks after the descriptors that are kept for growth.
        pub reserved_gdt_blocks: U16,
        /// UUID of an external journal.
        pub journal_uuid: [u8; 16],
        /// Inode of the journal, 0: none or external.
        pub journal_inum: U32,
        /// Device number of an external journal.
        pub journal_dev: U32,
        /// First inode of the orphan list.
        pub last_orphan: U32,
        /// Seed of directory hashes.
        pub hash_seed: [U32; 4],
        /// [`hash_version`] of new directories.
        pub def_hash_version: u8,
        /// 1: `jnl_blocks` is a copy of the journal inode's map.
        pub jnl_backup_type: u8,
        /// Bytes of a group descriptor with the 64bit feature.
        pub desc_size: U16,
        /// [`MountOpts`].
        pub default_mount_opts: U32,
        /// First meta group with its descriptors in itself.
        pub first_meta_bg: U32,
        /// Time of its creation, seconds since 1970, low half.
        pub mkfs_time_lo: U32,
        /// The journal inode's map (15 words), size high, size low.
        pub jnl_blocks: [U32; 17],
        /// Blocks, high half.
        pub blocks_count_hi: U32,
        /// Reserved blocks, high half.
        pub r_blocks_count_hi: U32,
        /// Free blocks, high half.
        pub free_blocks_count_hi: U32,
        /// Bytes beyond 128 that all inodes have.
        pub min_extra_isize: U16,
        /// Bytes beyond 128 that new inodes get.
        pub want_extra_isize: U16,
        /// [`SuperFlags`].
        pub flags: U32,
        /// Blocks of a RAID chunk.
        pub raid_stride: U16,
        /// Seconds between updates of the MMP block.
        pub mmp_interval: U16,
        /// MMP block.
        pub mmp_block: U64,
        /// Blocks of a RAID stripe.
        pub raid_stripe_width: U32,
        /// Groups of a flex group: 1 << this.
        pub log_groups_per_flex: u8,
        /// [`CHECKSUM_CRC32C`].
        pub checksum_type: u8,
        /// Versioning level of encryption.
        pub encryption_level: u8,
        /// Zero.
        pub reserved_pad: u8,
        /// KiB written over the file system's life.
        pub kbytes_written: U64,
        /// Unused (snapshots).
        pub snapshot_inum: U32,
        /// Unused (snapshots).
        pub snapshot_id: U32,
        /// Unused (snapshots).
        pub snapshot_r_blocks_count: U64,
        /// Unused (snapshots).
        pub snapshot_list: U32,
        /// Errors seen.
        pub error_count: U32,
        /// First error, seconds since 1970, low half.
        pub first_error_time_lo: U32,
        /// Inode of the first error.
        pub first_error_ino: U32,
        /// Block of the first error.
        pub first_error_block: U64,
        /// Function that saw the first error.
        pub first_error_func: [u8; 32],
        /// Line of the first error.
        pub first_error_line: U32,
        /// Last error, seconds since 1970, low half.
        pub last_error_time_lo: U32,
        /// Inode of the last error.
        pub last_error_ino: U32,
        /// Line of the last error.
        pub last_error_line: U32,
        /// Block of the last error.
        pub last_error_block: U64,
        /// Function that saw the last error.
        pub last_error_func: [u8; 32],
        /// Mount options as text, padded with zeros.
        pub mount_opts: [u8; 64],
        /// Inode of the user quota.
        pub usr_quota_inum: U32,
        /// Inode of the group quota.
        pub grp_quota_inum: U32,
        /// Clusters taken by metadata; 0: to be counted.
        pub overhead_clusters: U32,
        /// Groups with superblock copies (sparse_super2).
        pub backup_bgs: [U32; 2],
        /// Encryption algorithms in use.
        pub encrypt_algos: [u8; 4],
        /// Salt of encryption passwords.
        pub encrypt_pw_salt: [u8; 16],
        /// Inode of lost+found.
        pub lpf_ino: U32,
        /// Inode of the project quota.
        pub prj_quota_inum: U32,
        /// Seed of metadata checksums (metadata_csum_seed).
        pub checksum_seed: U32,
        /// Bits 32 to 39 of `wtime`.
        pub wtime_hi: u8,
        /// Bits 32 to 39 of `mtime`.
        pub mtime_hi: u8,
        /// Bits 32 to 39 of `mkfs_time`.
        pub mkfs_time_hi: u8,
        /// Bits 32 to 39 of `lastcheck`.
        pub lastcheck_hi: u8,
        /// Bits 32 to 39 of `first_error_time`.
        pub first_error_time_hi: u8,
        /// Bits 32 to 39 of `last_error_time`.
        pub last_error_time_hi: u8,
        /// Kind of the first error.
        pub first_error_errcode: u8,
        /// Kind of the last error.
        pub last_error_errcode: u8,
        /// Character encoding of names (casefold).
        pub encoding: U16,
        /// 1: names that are not of the encoding are refused.
        pub encoding_flags: U16,
        /// Inode of the orphan file.
        pub orphan_file_inum: U32,
        /// User that may take reserved blocks, high half.
        pub def_resuid_hi: U16,
        /// Group that may take reserved blocks, high half.
        pub def_resgid_hi: U16,
        /// Zero.
        pub reserved: [U32; 93],
        /// Checksum of the 1020 bytes before.
        pub checksum: U32,
    }
}

offsets!(SuperBlock {
    magic = 0x38,
    first_ino = 0x54,
    uuid = 0x68,
    algorithm_usage_bitmap = 0xc8,
    journal_uuid = 0xd0,
    hash_seed = 0xec,
    default_mount_opts = 0x100,
    blocks_count_hi = 0x150,
    mmp_block = 0x168,
    log_groups_per_flex = 0x174,
    kbytes_written = 0x178,
    error_count = 0x194,
    first_error_func = 0x1a8,
    last_error_block = 0x1d8,
    mount_opts = 0x200,
    usr_quota_inum = 0x240,
    backup_bgs = 0x24c,
    lpf_ino = 0x268,
    checksum_seed = 0x270,
    encoding = 0x27c,
    orphan_file_inum = 0x280,
    checksum = 0x3fc,
});

const fn join(lo: u32, hi: u32) -> u64 {
    (hi as u64) << 32 | lo as u64
}

/// Text of a field padded with zeros; bytes that are no UTF-8 are replaced.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A getter and a setter of a time of 40 bits.
macro_rules! time40 {
    ($($(#[$meta:meta])* $get:ident, $set:ident, $lo:ident, $hi:ident;)*) => {$(
        $(#[$meta])*
        pub const fn $get(&self) -> u64 { join(self.$lo.get(), self.$hi as u32) }

        $(#[$meta])*
        /// A larger value is stored as the largest of 40 bits.
        pub const fn $set(&mut self, seconds: u64) {
            let seconds = if seconds >> 40 == 0 { seconds } else { (1 << 40) - 1 };
            self.$lo = U32::new(seconds as u32);
            self.$hi = (seconds >> 32) as u8;
        }
    )*};
}

/// Groups that have a backup in every format with backups.
const BACKUP_GROUPS: [u64; 8] = [1, 3, 5, 7, 9, 25, 27, 49];

/// Byte offsets at which mke2fs puts backups of the superblock, for each block size, the most usual
/// first.
pub fn usual_backups() -> impl Iterator<Item = u64> {
    [4096_u64, 1024, 2048, 65536].into_iter().flat_map(|size| {
        let (per_group, first) = (size * 8, u64::from(size == 1024));
        BACKUP_GROUPS.map(|group| (group * per_group + first) * size)
    })
}

impl SuperBlock {
    /// The three feature words.
    pub const fn features(&self) -> Features {
        Features {
            compat: Compat::from_bits_retain(self.feature_compat.get()),
            incompat: Incompat::from_bits_retain(self.feature_incompat.get()),
            ro_compat: RoCompat::from_bits_retain(self.feature_ro_compat.get()),
        }
    }

    /// Names of everything that forbids writing: features, and an operating system whose inodes
    /// have other fields. Empty if the image can be written.
    pub fn write_blockers(&self) -> Vec<String> {
        let mut names = self.features().write_blockers();
        if self.creator_os.get() == CREATOR_HURD {
            names.push("creator OS GNU/Hurd".into());
        }
        names
    }

    /// Stores the three feature words.
    pub const fn set_features(&mut self, features: Features) {
        self.feature_compat = U32::new(features.compat.bits());
        self.feature_incompat = U32::new(features.incompat.bits());
        self.feature_ro_compat = U32::new(features.ro_compat.bits());
    }

    /// Adds features. Revision 0 has none, so it becomes revision 1 with the sizes that revision 0
    /// implies.
    pub const fn add_features(&mut self, more: Features) {
        if self.rev_level.get() == REV_GOOD_OLD {
            self.rev_level = U32::new(REV_DYNAMIC);
            self.first_ino = U32::new(GOOD_OLD_FIRST_INO);
            self.inode_size = U16::new(GOOD_OLD_INODE_SIZE);
        }
        let now = self.features();
        self.set_features(Features {
            compat: now.compat.union(more.compat),
            incompat: now.incompat.union(more.incompat),
            ro_compat: now.ro_compat.union(more.ro_compat),
        });
    }

    /// The high half counts only with the 64bit feature.
    const fn wide(&self, lo: U32, hi: U32) -> u64 {
        if self.features().has_incompat(Incompat::BIT64) {
            join(lo.get(), hi.get())
        } else {
            lo.get() as u64
        }
    }

    /// The halves of `value`; error if it does not fit the image.
    fn halves(&self, field: &'static str, value: u64) -> Result<(U32, U32), FormatError> {
        let wide = self.features().has_incompat(Incompat::BIT64);
        let max = if wide { u64::MAX } else { u64::from(u32::MAX) };
        if value > max {
            return Err(FormatError::DoesNotFit { field, value, max });
        }
        Ok((U32::new(value as u32), U32::new((value >> 32) as u32)))
    }

    /// Blocks of the file system.
    pub const fn blocks_count(&self) -> u64 {
        self.wide(self.blocks_count_lo, self.blocks_count_hi)
    }

    /// Stores the number of blocks; error without 64bit if it does not fit 32 bits.
    pub fn set_blocks_count(&mut self, blocks: u64) -> Result<(), FormatError> {
        (self.blocks_count_lo, self.blocks_count_hi) = self.halves("blocks_count", blocks)?;
        Ok(())
    }

    /// Blocks that only the superuser may take.
    pub const fn reserved_blocks_count(&self) -> u64 {
        self.wide(self.r_blocks_count_lo, self.r_blocks_count_hi)
    }

    /// Stores the number of reserved blocks; error without 64bit if it does not fit 32 bits.
    pub fn set_reserved_blocks_count(&mut self, blocks: u64) -> Result<(), FormatError> {
        (self.r_blocks_count_lo, self.r_blocks_count_hi) =
            self.halves("reserved_blocks_count", blocks)?;
        Ok(())
    }

    /// Free blocks, as of the last clean unmount.
    pub const fn free_blocks_count(&self) -> u64 {
        self.wide(self.free_blocks_count_lo, self.free_blocks_count_hi)
    }

    /// Stores the number of free blocks; error without 64bit if it does not fit 32 bits.
    pub fn set_free_blocks_count(&mut self, blocks: u64) -> Result<(), FormatError> {
        (self.free_blocks_count_lo, self.free_blocks_count_hi) =
            self.halves("free_blocks_count", blocks)?;
        Ok(())
    }

    time40! {
        /// Last mount, seconds since 1970.
        mtime, set_mtime, mtime_lo, mtime_hi;
        /// Last write, seconds since 1970.
        wtime, set_wtime, wtime_lo, wtime_hi;
        /// Last check, seconds since 1970.
        lastcheck, set_lastcheck, lastcheck_lo, lastcheck_hi;
        /// Time of its creation, seconds since 1970.
        mkfs_time, set_mkfs_time, mkfs_time_lo, mkfs_time_hi;
        /// First error, seconds since 1970.
        first_error_time, set_first_error_time, first_error_time_lo, first_error_time_hi;
        /// Last error, seconds since 1970.
        last_error_time, set_last_error_time, last_error_time_lo, last_error_time_hi;
    }

    /// User that may take reserved blocks.
    pub(crate) const fn def_resuid(&self) -> u32 {
        (self.def_resuid_hi.get() as u32) << 16 | self.def_resuid_lo.get() as u32
    }

    /// Group that may take reserved blocks.
    pub(crate) const fn def_resgid(&self) -> u32 {
        (self.def_resgid_hi.get() as u32) << 16 | self.def_resgid_lo.get() as u32
    }

    /// `state` as flags.
    pub const fn state(&self) -> SuperState {
        SuperState::from_bits_retain(self.state.get())
    }

    /// Stores `state`.
    pub const fn set_state(&mut self, state: SuperState) {
        self.state = U16::new(state.bits());
    }

    /// `flags` as flags.
    pub const fn flags(&self) -> SuperFlags {
        SuperFlags::from_bits_retain(self.flags.get())
    }

    /// `default_mount_opts` as flags.
    pub const fn default_mount_opts(&self) -> MountOpts {
        MountOpts::from_bits_retain(self.default_mount_opts.get())
    }

    /// Label.
    pub fn label(&self) -> String {
        text(&self.volume_name)
    }

    /// Seed of all metadata checksums: stored (metadata_csum_seed), or derived from the UUID.
    pub fn csum_seed(&self) -> u32 {
        if self.features().has_incompat(Incompat::CSUM_SEED) {
            self.checksum_seed.get()
        } else {
            uuid_seed(&self.uuid)
        }
    }

    /// Seed of directory hashes.
    pub fn hash_seed(&self) -> [u32; 4] {
        self.hash_seed.map(U32::get)
    }

    /// Checksum of the bytes before the checksum field.
    pub(crate) fn compute_checksum(&self) -> u32 {
        crc32c(!0, &self.bytes()[..SUPER_SIZE - 4])
    }

    /// Compares the checksum if the image has metadata_csum.
    pub fn verify_checksum(&self) -> Result<(), FormatError> {
        let (stored, computed) = (self.checksum.get(), self.compute_checksum());
        if self.features().metadata_csum() && stored != computed {
            return Err(FormatError::SuperChecksum { stored, computed });
        }
        Ok(())
    }

    /// Stores the checksum if the image has metadata_csum. To be called after the last change.
    pub fn set_checksum(&mut self) {
        if self.features().metadata_csum() {
            self.checksum = U32::new(self.compute_checksum());
        }
    }

    /// Parses a superblock from its 1024 bytes and checks magic and checksum.
    /// [`crate::Geometry::new`] validates its values.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let sb = Self::read(bytes)?;
        if sb.magic.get() != SUPER_MAGIC {
            return Err(FormatError::Magic {
                what: "superblock",
                found: u32::from(sb.magic.get()),
                expected: u32::from(SUPER_MAGIC),
            });
        }
        sb.verify_checksum()?;
        Ok(sb)
    }
}
