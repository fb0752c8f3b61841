//! Options that only ext4 (and ext2, ext3) has.

use sapwood_ext4::{DataMode, FastCommits, QuotaKind};

use super::table::{Form, MountOption, unsupported};
use super::{OptionError, Options, bad, number};
use crate::Kind::Ext4;

use Form::{Alone, Optional, Value};

type Taken = Result<(), OptionError>;

const QUOTA: &str =
    "quotas of an image with that feature are always kept; quota files of others are not updated";

/// Their declarations.
pub(super) const OPTIONS: &[MountOption] = &[
    MountOption::served(
        &["data"],
        Value("ordered|writeback|journal"),
        data,
        "order of data and metadata: data is written before the change that refers to it, also with writeback; journal: data is journaled",
    )
    .of(Ext4)
    .default("ordered"),
    MountOption::served(
        &["noload"],
        Alone,
        no_load,
        "with ro: do not replay the journal",
    )
    .of(Ext4),
    MountOption::served(
        &["errors"],
        Value("remount-ro|continue|panic"),
        errors,
        "the mount becomes read-only after an error; continue and panic are refused",
    )
    .of(Ext4)
    .default("remount-ro"),
    MountOption::served(
        &["fast_commit"],
        Value("careful|full|off"),
        fast_commit,
        "contents of a fast commit, if the image has that feature; careful: only what e2fsck 1.47 replays correctly; full: as the kernel",
    )
    .of(Ext4)
    .default("careful"),
    MountOption::served(
        &["minixdf"],
        Alone,
        statistics,
        "statfs counts the blocks of metadata as \
        part of the size",
    )
    .of(Ext4),
    MountOption::served(
        &["bsddf"],
        Alone,
        statistics,
        "statfs leaves the blocks of metadata out",
    )
    .of(Ext4)
    .default("bsddf"),
    MountOption::accepted(&["user_xattr"], Alone, "user attributes are always on").of(Ext4),
    MountOption::refused(
        &["nouser_xattr"],
        Alone,
        "user attributes cannot be switched off",
    )
    .of(Ext4),
    MountOption::accepted(
        &["delalloc", "nodelalloc"],
        Alone,
        "blocks are always allocated at writeback",
    )
    .of(Ext4),
    MountOption::accepted(
        &["auto_da_alloc", "noauto_da_alloc"],
        Alone,
        "only fsync and a commit make \
        data durable",
    )
    .of(Ext4),
    MountOption::accepted(
        &["block_validity", "noblock_validity"],
        Alone,
        "images are always validated",
    )
    .of(Ext4),
    MountOption::accepted(
        &["dioread_lock", "dioread_nolock"],
        Alone,
        "data is always \
        written before its extent becomes part of a file",
    )
    .of(Ext4),
    MountOption::accepted(
        &["journal_checksum", "nojournal_checksum"],
        Alone,
        "the image decides",
    )
    .of(Ext4),
    MountOption::accepted(
        &["journal_async_commit"],
        Alone,
        "a commit block is always written last",
    )
    .of(Ext4),
    MountOption::accepted(
        &["init_itable"],
        Optional("N"),
        "inode tables are initialized when they \
        are used",
    )
    .of(Ext4),
    MountOption::accepted(
        &["noinit_itable"],
        Alone,
        "inode tables are initialized when they are \
        used",
    )
    .of(Ext4),
    MountOption::accepted(
        &[
            "mblk_io_submit",
            "nomblk_io_submit",
            "nombcache",
            "no_mbcache",
            "oldalloc",
            "orlov",
        ],
        Alone,
        "a matter of the kernel's driver",
    )
    .of(Ext4),
    MountOption::accepted(
        &[
            "stripe",
            "inode_readahead_blks",
            "max_batch_time",
            "min_batch_time",
            "journal_ioprio",
            "mb_optimize_scan",
        ],
        Value("N"),
        "a matter of the kernel's driver",
    )
    .of(Ext4),
    MountOption::accepted(
        &["i_version"],
        Alone,
        "inode changes are always counted",
    )
    .of(Ext4),
    MountOption::accepted(
        &["data_err"],
        Value("ignore|abort"),
        "a data write error fails the fsync; any error except lack of space makes the mount read-only",
    )
    .of(Ext4),
    MountOption::accepted(
        &["nogrpid", "sysvgroups"],
        Alone,
        "a new file has its creator's group, or its directory's group if that is set-group-id",
    )
    .of(Ext4),
    MountOption::refused(
        &["grpid", "bsdgroups"],
        Alone,
        "a new file has its creator's group; make \
        the directory set-group-id",
    )
    .of(Ext4),
    MountOption::accepted(&["debug"], Alone, "for debugging the kernel").of(Ext4),
    MountOption::refused(&["abort"], Alone, "for debugging the kernel").of(Ext4),
    MountOption::served(
        &["check"],
        Value("none"),
        check,
        "no effect: `sapwood check` checks",
    )
    .of(Ext4),
    MountOption::accepted(&["nocheck"], Alone, "`sapwood check` checks").of(Ext4),
    MountOption::served(
        &["noquota"],
        Alone,
        no_quota,
        "limits of quotas are not enforced; usage is kept",
    )
    .of(Ext4),
    MountOption::served(
        &["quota", "usrquota", "grpquota", "prjquota"],
        Alone,
        wanted_quota,
        "limits of quotas are enforced; the image must have the feature quota and keep quotas of that kind (quota: of users)",
    )
    .of(Ext4),
    MountOption::refused(&["usrjquota", "grpjquota", "jqfmt"], Value("NAME"), QUOTA).of(Ext4),
    MountOption::refused(&["nouid32"], Alone, "owners have 32 bits").of(Ext4),
    MountOption::refused(
        &["resuid", "resgid"],
        Value("ID"),
        "reserved blocks are for root",
    )
    .of(Ext4),
    MountOption::served(
        &["sb"],
        Value("BLOCK"),
        superblock,
        "with ro: the superblock in this block, counted in KiB; the image is read as far as it can \
        be",
    )
    .of(Ext4),
    MountOption::served(
        &["journal_path"],
        Value("DEVICE"),
        journal_path,
        "the journal is on this file or device",
    )
    .of(Ext4),
    MountOption::refused(
        &["journal_dev"],
        Value("NUMBER"),
        "name the device: journal_path=DEVICE",
    )
    .of(Ext4),
    MountOption::refused(
        &["max_dir_size_kb"],
        Value("N"),
        "the size of directories is not bounded",
    )
    .of(Ext4),
];

fn no_quota(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.ext4.quota_limits = false;
    options.ext4.quotas.clear();
    Ok(())
}

fn wanted_quota(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    let kind = match name {
        "grpquota" => QuotaKind::Group,
        "prjquota" => QuotaKind::Project,
        _ => QuotaKind::User,
    };
    options.ext4.quota_limits = true;
    options.ext4.quotas.push(kind);
    Ok(())
}

fn journal_path(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let path = value.ok_or_else(|| bad(name, value))?;
    options.mount.journal_path = Some(path.into());
    Ok(())
}

fn data(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.ext4.data = match value {
        Some("ordered") => DataMode::Ordered,
        Some("writeback") => DataMode::Writeback,
        Some("journal") => DataMode::Journal,
        _ => return Err(bad(name, value)),
    };
    Ok(())
}

fn no_load(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.ext4.no_load = true;
    Ok(())
}

fn errors(_: &mut Options, name: &str, value: Option<&str>) -> Taken {
    match value {
        Some("remount-ro") => Ok(()),
        Some("continue" | "panic") => {
            let why = "after an error a mount takes no more changes, and nothing else";
            Err(unsupported(name, value, why))
        }
        _ => Err(bad(name, value)),
    }
}

fn fast_commit(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.ext4.fast_commit = match value {
        Some("careful") => FastCommits::Careful,
        Some("full") => FastCommits::Full,
        Some("off") => FastCommits::Off,
        _ => return Err(bad(name, value)),
    };
    Ok(())
}

fn statistics(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    options.ext4.minix_df = name == "minixdf";
    Ok(())
}

fn superblock(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let block = number(name, value)?;
    options.rescue.get_or_insert_default().super_block = Some(block);
    Ok(())
}

fn check(_: &mut Options, name: &str, value: Option<&str>) -> Taken {
    match value {
        Some("none") => Ok(()),
        _ => Err(bad(name, value)),
    }
}
