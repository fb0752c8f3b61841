//! The superblock, as `dumpe2fs -h` prints it.

use std::fmt::{Display, Formatter, Result};

use uuid::Uuid;

use super::Date;
use crate::superblock::text;
use crate::{
    Compat, Geometry, Incompat, MountOpts, RoCompat, SuperBlock, SuperFlags, SuperState,
    errors_behaviour,
};

/// Prints a superblock with one field to a line.
#[derive(Clone, Copy, Debug)]
pub struct DumpSuper<'a>(pub &'a SuperBlock);

fn line(f: &mut Formatter<'_>, key: &str, value: impl Display) -> Result {
    writeln!(f, "{:<25} {value}", format!("{key}:"))
}

/// Prints the line only for a value that is not zero.
fn line_if(f: &mut Formatter<'_>, key: &str, value: impl Into<u64>) -> Result {
    match value.into() {
        0 => Ok(()),
        value => line(f, key, value),
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

fn words(words: &[&str]) -> String {
    if words.is_empty() {
        return "(none)".into();
    }
    words.join(" ")
}

fn flag_names(flags: SuperFlags) -> String {
    let all = [
        (SuperFlags::SIGNED_HASH, "signed_directory_hash"),
        (SuperFlags::UNSIGNED_HASH, "unsigned_directory_hash"),
        (SuperFlags::TEST_FILESYS, "test_filesystem"),
    ];
    let set = all.iter().filter(|(flag, _)| flags.contains(*flag));
    words(&set.map(|(_, name)| *name).collect::<Vec<_>>())
}

fn mount_opt_names(opts: MountOpts) -> String {
    const MODE: MountOpts = MountOpts::JMODE_DATA.union(MountOpts::JMODE_ORDERED);
    // Each option with the bits that decide on it.
    let all = [
        (MountOpts::DEBUG, MountOpts::DEBUG, "debug"),
        (MountOpts::BSDGROUPS, MountOpts::BSDGROUPS, "bsdgroups"),
        (MountOpts::XATTR_USER, MountOpts::XATTR_USER, "user_xattr"),
        (MountOpts::ACL, MountOpts::ACL, "acl"),
        (MountOpts::UID16, MountOpts::UID16, "uid16"),
        (MODE, MountOpts::JMODE_DATA, "journal_data"),
        (MODE, MountOpts::JMODE_ORDERED, "journal_data_ordered"),
        (MODE, MODE, "journal_data_writeback"),
        (MountOpts::NOBARRIER, MountOpts::NOBARRIER, "nobarrier"),
        (
            MountOpts::BLOCK_VALIDITY,
            MountOpts::BLOCK_VALIDITY,
            "block_validity",
        ),
        (MountOpts::DISCARD, MountOpts::DISCARD, "discard"),
        (MountOpts::NODELALLOC, MountOpts::NODELALLOC, "nodelalloc"),
    ];
    let set = all
        .iter()
        .filter(|(mask, bits, _)| opts.intersection(*mask) == *bits);
    words(&set.map(|(.., name)| *name).collect::<Vec<_>>())
}

fn hash_name(version: u8) -> String {
    let names = ["legacy", "half_md4", "tea"];
    match names.get(usize::from(version)) {
        Some(name) => (*name).into(),
        None => format!("unknown ({version})"),
    }
}

impl Display for DumpSuper<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        identity(self.0, f)?;
        counts(self.0, f)?;
        groups(self.0, f)?;
        history(self.0, f)?;
        inodes(self.0, f)?;
        extras(self.0, f)?;
        errors(self.0, f)
    }
}

fn identity(sb: &SuperBlock, f: &mut Formatter<'_>) -> Result {
    line(f, "Filesystem volume name", or_none(&sb.label()))?;
    let mounted = text(&sb.last_mounted);
    let mounted = if mounted.is_empty() {
        "<not available>"
    } else {
        &mounted
    };
    line(f, "Last mounted on", mounted)?;
    line(f, "Filesystem UUID", Uuid::from_bytes(sb.uuid))?;
    let magic = format!("0x{:04X}", sb.magic.get());
    line(f, "Filesystem magic number", magic)?;
    let revision = match sb.rev_level.get() {
        0 => "0 (original)".to_string(),
        1 => "1 (dynamic)".to_string(),
        other => format!("{other} (unknown)"),
    };
    line(f, "Filesystem revision #", revision)?;
    let names = sb.features().names();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    line(f, "Filesystem features", words(&names))?;
    line(f, "Filesystem flags", flag_names(sb.flags()))?;
    line(
        f,
        "Default mount options",
        mount_opt_names(sb.default_mount_opts()),
    )?;
    let options = text(&sb.mount_opts);
    if !options.is_empty() {
        line(f, "Mount options", options)?;
    }
    let clean = if sb.state().contains(SuperState::VALID) {
        "clean"
    } else {
        "not clean"
    };
    let broken = if sb.state().contains(SuperState::ERROR) {
        " with errors"
    } else {
        ""
    };
    line(f, "Filesystem state", format!("{clean}{broken}"))?;
    let behaviour = match sb.errors.get() {
        errors_behaviour::CONTINUE => "Continue",
        errors_behaviour::READ_ONLY => "Remount read-only",
        errors_behaviour::PANIC => "Panic",
        _ => "Unknown (continue)",
    };
    line(f, "Errors behavior", behaviour)?;
    let names = ["Linux", "GNU/Hurd", "Masix", "FreeBSD", "Lites"];
    let os = names.get(sb.creator_os.get() as usize);
    line(f, "Filesystem OS type", os.unwrap_or(&"unknown"))
}

fn counts(sb: &SuperBlock, f: &mut Formatter<'_>) -> Result {
    line(f, "Inode count", sb.inodes_count.get())?;
    line(f, "Block count", sb.blocks_count())?;
    line(f, "Reserved block count", sb.reserved_blocks_count())?;
    line_if(f, "Overhead clusters", sb.overhead_clusters.get())?;
    line(f, "Free blocks", sb.free_blocks_count())?;
    line(f, "Free inodes", sb.free_inodes_count.get())?;
    line(f, "First block", sb.first_data_block.get())
}

/// 1024 << `log` as a number, or as this text if it is absurd.
fn shifted(log: u32) -> String {
    match 1024u64.checked_shl(log) {
        Some(size) if log < 50 => size.to_string(),
        _ => format!("1024 << {log}"),
    }
}

fn groups(sb: &SuperBlock, f: &mut Formatter<'_>) -> Result {
    let bigalloc = sb.features().has_ro_compat(RoCompat::BIGALLOC);
    let (size, per_group) = if bigalloc {
        ("Cluster size", "Clusters per group")
    } else {
        ("Fragment size", "Fragments per group")
    };
    line(f, "Block size", shifted(sb.log_block_size.get()))?;
    line(f, size, shifted(sb.log_cluster_size.get()))?;
    if sb.features().has_incompat(Incompat::BIT64) {
        line(f, "Group descriptor size", sb.desc_size.get())?;
    }
    line_if(f, "Reserved GDT blocks", sb.reserved_gdt_blocks.get())?;
    line(f, "Blocks per group", sb.blocks_per_group.get())?;
    line(f, per_group, sb.clusters_per_group.get())?;
    line(f, "Inodes per group", sb.inodes_per_group.get())?;
    if let Ok(geometry) = Geometry::new(sb) {
        line(f, "Inode blocks per group", geometry.inode_table_blocks())?;
    }
    line_if(f, "First meta block group", sb.first_meta_bg.get())?;
    line_if(f, "RAID stride", sb.raid_stride.get())?;
    line_if(f, "RAID stripe width", sb.raid_stripe_width.get())?;
    match sb.log_groups_per_flex {
        0 => Ok(()),
        log @ 1..=31 => line(f, "Flex block group size", 1u64 << log),
        log => line(f, "Flex block group size", format!("1 << {log}")),
    }
}

/// A time of the superblock, in seconds since 1970: 40 bits.
fn date(seconds: u64) -> String {
    match seconds {
        0 => "n/a".to_string(),
        seconds => Date(seconds as i64).to_string(),
    }
}

fn history(sb: &SuperBlock, f: &mut Formatter<'_>) -> Result {
    line(f, "Filesystem created", date(sb.mkfs_time()))?;
    line(f, "Last mount time", date(sb.mtime()))?;
    line(f, "Last write time", date(sb.wtime()))?;
    line(f, "Mount count", sb.mnt_count.get())?;
    line(f, "Maximum mount count", sb.max_mnt_count.get() as i16)?;
    line(f, "Last checked", date(sb.lastcheck()))?;
    let interval = match sb.checkinterval.get() {
        0 => "0 (<none>)".to_string(),
        seconds => format!("{seconds} (seconds)"),
    };
    line(f, "Check interval", interval)?;
    match sb.kbytes_written.get() {
        0 => Ok(()),
        written => line(f, "Lifetime writes", format!("{written} KiB")),
    }
}

fn inodes(sb: &SuperBlock, f: &mut Formatter<'_>) -> Result {
    line(f, "Reserved blocks uid", sb.def_resuid())?;
    line(f, "Reserved blocks gid", sb.def_resgid())?;
    if sb.rev_level.get() > 0 {
        line(f, "First inode", sb.first_ino.get())?;
        line(f, "Inode size", sb.inode_size.get())?;
    }
    line_if(f, "Required extra isize", sb.min_extra_isize.get())?;
    line_if(f, "Desired extra isize", sb.want_extra_isize.get())?;
    if sb.journal_uuid != [0; 16] {
        line(f, "Journal UUID", Uuid::from_bytes(sb.journal_uuid))?;
    }
    line_if(f, "Journal inode", sb.journal_inum.get())?;
    line_if(f, "Journal device", sb.journal_dev.get())?;
    line_if(f, "First orphan inode", sb.last_orphan.get())?;
    if !sb.features().has_compat(Compat::DIR_INDEX) && sb.hash_seed() == [0; 4] {
        return Ok(());
    }
    let hash = hash_name(sb.def_hash_version);
    line(f, "Default directory hash", hash)?;
    let mut seed = [0; 16];
    for (bytes, word) in seed.as_chunks_mut::<4>().0.iter_mut().zip(sb.hash_seed()) {
        *bytes = word.to_le_bytes();
    }
    line(f, "Directory Hash Seed", Uuid::from_bytes(seed))
}

fn extras(sb: &SuperBlock, f: &mut Formatter<'_>) -> Result {
    let features = sb.features();
    match sb.jnl_backup_type {
        0 => {}
        1 => line(f, "Journal backup", "inode blocks")?,
        other => line(f, "Journal backup", format!("type {other}"))?,
    }
    if features.has_compat(Compat::SPARSE_SUPER2) {
        let groups = sb.backup_bgs.map(|g| g.get());
        let groups = groups.iter().filter(|group| **group != 0);
        let groups: Vec<_> = groups.map(ToString::to_string).collect();
        line(f, "Backup block groups", groups.join(" "))?;
    }
    if features.has_incompat(Incompat::MMP) {
        line(f, "MMP block number", sb.mmp_block.get())?;
        line(f, "MMP update interval", sb.mmp_interval.get())?;
    }
    line_if(f, "User quota inode", sb.usr_quota_inum.get())?;
    line_if(f, "Group quota inode", sb.grp_quota_inum.get())?;
    line_if(f, "Project quota inode", sb.prj_quota_inum.get())?;
    if features.metadata_csum() {
        let kind = match sb.checksum_type {
            crate::CHECKSUM_CRC32C => "crc32c".to_string(),
            other => format!("unknown ({other})"),
        };
        line(f, "Checksum type", kind)?;
        line(f, "Checksum", format!("{:#010x}", sb.checksum.get()))?;
    }
    if features.has_incompat(Incompat::CSUM_SEED) {
        let seed = format!("{:#010x}", sb.checksum_seed.get());
        line(f, "Checksum seed", seed)?;
    }
    if features.has_incompat(Incompat::CASEFOLD) {
        let name = match sb.encoding.get() {
            1 => "utf8-12.1".to_string(),
            other => format!("unknown ({other})"),
        };
        line(f, "Character encoding", name)?;
    }
    line_if(f, "Orphan file inode", sb.orphan_file_inum.get())
}

/// One of the two errors that a superblock describes.
struct StoredError<'a> {
    /// `First` or `Last`.
    which: &'static str,
    /// Seconds since 1970; 0 if there is none.
    time: u64,
    function: &'a [u8],
    line: u32,
    inode: u32,
    block: u64,
    errno: u8,
}

fn errors(sb: &SuperBlock, f: &mut Formatter<'_>) -> Result {
    if sb.error_count.get() == 0 {
        return Ok(());
    }
    line(f, "FS Error count", sb.error_count.get())?;
    let first = StoredError {
        which: "First",
        time: sb.first_error_time(),
        function: &sb.first_error_func,
        line: sb.first_error_line.get(),
        inode: sb.first_error_ino.get(),
        block: sb.first_error_block.get(),
        errno: sb.first_error_errcode,
    };
    let last = StoredError {
        which: "Last",
        time: sb.last_error_time(),
        function: &sb.last_error_func,
        line: sb.last_error_line.get(),
        inode: sb.last_error_ino.get(),
        block: sb.last_error_block.get(),
        errno: sb.last_error_errcode,
    };
    for error in [first, last].iter().filter(|error| error.time != 0) {
        let key = |what| format!("{} error {what}", error.which);
        line(f, &key("time"), date(error.time))?;
        line(f, &key("function"), text(error.function))?;
        line(f, &key("line #"), error.line)?;
        line_if(f, &key("inode #"), error.inode)?;
        line_if(f, &key("block #"), error.block)?;
        line_if(f, &key("err"), error.errno)?;
    }
    Ok(())
}
