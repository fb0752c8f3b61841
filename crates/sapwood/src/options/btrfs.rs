//! Options that only btrfs has.

use sapwood_btrfs::SubvolumeChoice;

use super::table::{Form, MountOption, unsupported};
use super::{OptionError, Options, bad, bytes, number};
use crate::Kind::Btrfs;

use Form::{Alone, Optional, Value};

type Taken = Result<(), OptionError>;

/// The meaning of `compress` without a value.
const DEFAULT_COMPRESSION: &str = "zlib";
const COMPRESSIONS: &str = "zstd[:LEVEL]|zlib[:LEVEL]|lzo|no";

/// Their declarations.
pub(super) const OPTIONS: &[MountOption] = &[
    MountOption::served(
        &["subvol"],
        Value("PATH"),
        subvolume,
        "subvolume to mount, as a path from the top level",
    )
    .of(Btrfs)
    .default("the image's default subvolume"),
    MountOption::served(
        &["subvolid"],
        Value("ID"),
        subvolume,
        "subvolume to mount, by id; 0 is the top level",
    )
    .of(Btrfs),
    MountOption::served(
        &["compress"],
        Optional(COMPRESSIONS),
        compress,
        "compress written data; zlib without a value",
    )
    .of(Btrfs)
    .default("no"),
    MountOption::served(
        &["compress-force"],
        Optional(COMPRESSIONS),
        compress,
        "compress also data that does not seem compressible",
    )
    .of(Btrfs)
    .default("no"),
    MountOption::served(
        &["nodatacow"],
        Alone,
        nodata,
        "new files are overwritten in place, without \
        checksums",
    )
    .of(Btrfs),
    MountOption::served(&["datacow"], Alone, nodata, "undoes nodatacow")
        .of(Btrfs)
        .default("datacow"),
    MountOption::served(&["nodatasum"], Alone, nodata, "new files have no checksums").of(Btrfs),
    MountOption::served(
        &["datasum"],
        Alone,
        nodata,
        "undoes nodatasum and nodatacow",
    )
    .of(Btrfs)
    .default("datasum"),
    MountOption::served(
        &["max_inline"],
        Value("BYTES"),
        max_inline,
        "largest file that is stored in the tree",
    )
    .of(Btrfs)
    .default("2048"),
    MountOption::served(
        &["notreelog"],
        Alone,
        tree_log,
        "every fsync commits the whole transaction",
    )
    .of(Btrfs),
    MountOption::served(&["treelog"], Alone, tree_log, "an fsync writes a log tree")
        .of(Btrfs)
        .default("treelog"),
    MountOption::served(
        &["nologreplay"],
        Alone,
        rescue,
        "with ro: do not replay the log",
    )
    .of(Btrfs),
    MountOption::served(
        &["rescue"],
        Value("nologreplay|usebackuproot|all"),
        rescue,
        "with ro: nologreplay; with any other word (also ignorebadroots, ignoredatacsums, \
        ignoremetacsums, ignoresuperflags) a damaged image is read as far as it can be, and files \
        of btrfs are below the top level",
    ),
    MountOption::served(
        &["space_cache"],
        Optional("v1|v2"),
        space_cache,
        "no effect: a free-space tree is kept exact, an old cache is dropped",
    )
    .of(Btrfs),
    MountOption::accepted(
        &["nospace_cache", "clear_cache"],
        Alone,
        "a free-space tree is kept exact, \
        an old cache is dropped",
    )
    .of(Btrfs),
    MountOption::accepted(
        &["ssd", "nossd", "ssd_spread", "nossd_spread"],
        Alone,
        "allocation does not depend on the device",
    )
    .of(Btrfs),
    MountOption::accepted(
        &["autodefrag", "noautodefrag"],
        Alone,
        "nothing is defragmented in the \
        background",
    )
    .of(Btrfs),
    MountOption::refused(
        &["flushoncommit"],
        Alone,
        "a commit does not wait for data; use -o sync, fsync or `sapwood sync`",
    )
    .of(Btrfs),
    MountOption::accepted(&["noflushoncommit"], Alone, "a commit never waits for data").of(Btrfs),
    MountOption::accepted(
        &["user_subvol_rm_allowed"],
        Alone,
        "the user who mounted may always delete subvolumes",
    )
    .of(Btrfs),
    MountOption::accepted(&["skip_balance"], Alone, "a balance is never resumed").of(Btrfs),
    MountOption::accepted(
        &["metadata_ratio"],
        Value("N"),
        "metadata space is allocated on demand",
    )
    .of(Btrfs),
    MountOption::accepted(
        &["enospc_debug", "noenospc_debug"],
        Alone,
        "for debugging the kernel",
    )
    .of(Btrfs),
    MountOption::accepted(
        &["check_int", "check_int_data"],
        Alone,
        "every block is validated before \
        it is written",
    )
    .of(Btrfs),
    MountOption::accepted(
        &["check_int_print_mask"],
        Value("MASK"),
        "for debugging the kernel",
    )
    .of(Btrfs),
    MountOption::accepted(
        &["fragment"],
        Value("data|metadata|all"),
        "for debugging the kernel",
    )
    .of(Btrfs),
    MountOption::accepted(
        &["inode_cache", "noinode_cache"],
        Alone,
        "inode numbers are never reused",
    )
    .of(Btrfs),
    MountOption::served(
        &["fatal_errors"],
        Value("bug|panic"),
        fatal,
        "bug: no effect, the mount becomes read-only after an error; panic is refused",
    )
    .of(Btrfs),
    MountOption::served(
        &["degraded"],
        Alone,
        |options, _, _| {
            options.btrfs.degraded = true;
            Ok(())
        },
        "devices may be missing, as far as the profiles of data and metadata allow",
    )
    .of(Btrfs),
    MountOption::served(
        &["device"],
        Value("PATH"),
        device,
        "a further device of the file system; may be repeated",
    )
    .of(Btrfs),
    MountOption::served(
        &["usebackuproot", "recovery"],
        Alone,
        rescue_alone,
        "with ro: rescue=usebackuproot",
    )
    .of(Btrfs),
    MountOption::refused(
        &["rescan_uuid_tree"],
        Alone,
        "the UUID tree is updated, but never rebuilt",
    )
    .of(Btrfs),
];

fn subvolume(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.btrfs.subvolume = if name == "subvol" {
        let path = value.ok_or_else(|| bad(name, value))?;
        SubvolumeChoice::Path(path.as_bytes().to_vec())
    } else {
        // The kernel takes 0 for the top level.
        let id: u64 = number(name, value)?;
        SubvolumeChoice::Id(if id == 0 { 5 } else { id })
    };
    Ok(())
}

fn device(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let path = value.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| bad(name, value))?;
    options.devices.push(path.into());
    Ok(())
}

fn compress(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    let text = value.unwrap_or(DEFAULT_COMPRESSION);
    let compression = match text {
        "no" | "none" => None,
        text => Some(text.parse().map_err(|_| bad(name, value))?),
    };
    options.btrfs.compress = compression;
    options.btrfs.compress_force = name == "compress-force" && compression.is_some();
    Ok(())
}

fn nodata(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    let options = &mut options.btrfs;
    (options.nodatacow, options.nodatasum) = match name {
        "nodatacow" => (true, true),
        "datacow" => (false, options.nodatasum),
        "nodatasum" => (options.nodatacow, true),
        _ => (false, false),
    };
    Ok(())
}

fn max_inline(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    options.btrfs.max_inline = bytes(name, value)?;
    Ok(())
}

fn tree_log(options: &mut Options, name: &str, _: Option<&str>) -> Taken {
    options.btrfs.tree_log = name == "treelog";
    Ok(())
}

fn rescue(options: &mut Options, name: &str, value: Option<&str>) -> Taken {
    for word in value.unwrap_or("nologreplay").split(':') {
        match word {
            "nologreplay" => {
                options.btrfs.no_log_replay = true;
                options.ext4.no_load = true;
            }
            "usebackuproot" | "ignorebadroots" | "ibadroots" | "ignoremetacsums" | "imetacsums"
            | "ignoresuperflags" | "isuperflags" => {
                options.rescue.get_or_insert_default();
            }
            "ignoredatacsums" | "idatacsums" => {
                options.rescue.get_or_insert_default().ignore_data_checksums = true;
            }
            "all" => {
                let rescue = options.rescue.get_or_insert_default();
                (rescue.ignore_data_checksums, rescue.ignore_journal) = (true, true);
            }
            _ => return Err(bad(name, value)),
        }
    }
    Ok(())
}

fn rescue_alone(options: &mut Options, _: &str, _: Option<&str>) -> Taken {
    options.rescue.get_or_insert_default();
    Ok(())
}

fn space_cache(_: &mut Options, name: &str, value: Option<&str>) -> Taken {
    match value {
        None | Some("v1" | "v2") => Ok(()),
        Some(_) => Err(bad(name, value)),
    }
}

fn fatal(_: &mut Options, name: &str, value: Option<&str>) -> Taken {
    match value {
        Some("bug") => Ok(()),
        Some("panic") => Err(unsupported(
            name,
            value,
            "an error ends changes, not the machine",
        )),
        _ => Err(bad(name, value)),
    }
}
