//! Options that only btrfs has.

use sapwood_btrfs::{Options, SubvolumeChoice};

use super::{OptionError, bad, bytes, number};

/// Options of the kernel's btrfs that change nothing here.
const WITHOUT_EFFECT: &[&str] = &[
    "ssd",
    "nossd",
    "ssd_spread",
    "nossd_spread",
    "datacow",
    "datasum",
    "treelog",
    "noautodefrag",
    "space_cache",
    "clear_cache",
    "enospc_debug",
];

/// What `compress` without a value means.
const DEFAULT_COMPRESSION: &str = "zlib";

/// Takes an option. False if btrfs has none of that name.
///
/// # Errors
/// The value makes no sense.
pub(super) fn set(
    options: &mut Options,
    name: &str,
    value: Option<&str>,
) -> Result<bool, OptionError> {
    match name {
        "subvol" => {
            let path = value.ok_or_else(|| bad(name, value))?;
            options.subvolume = SubvolumeChoice::Path(path.as_bytes().to_vec());
        }
        "subvolid" => {
            // The kernel takes 0 for the top level.
            let id: u64 = number(name, value)?;
            options.subvolume = SubvolumeChoice::Id(if id == 0 { 5 } else { id });
        }
        "compress" | "compress-force" => {
            let compression = match value {
                None => Some(DEFAULT_COMPRESSION.parse().map_err(|_| bad(name, value))?),
                Some("no" | "none") => None,
                Some(value) => Some(value.parse().map_err(|_| bad(name, Some(value)))?),
            };
            options.compress = compression;
            options.compress_force = name == "compress-force" && compression.is_some();
        }
        "nodatacow" => {
            options.nodatacow = true;
            options.nodatasum = true;
        }
        "nodatasum" => options.nodatasum = true,
        "max_inline" => options.max_inline = bytes(name, value)?,
        "nologreplay" => options.no_log_replay = true,
        "rescue" if value == Some("nologreplay") => options.no_log_replay = true,
        _ => return Ok(WITHOUT_EFFECT.contains(&name)),
    }
    Ok(true)
}
