//! Mount options, as `-o` takes them.
//!
//! Three kinds meet in one list: options of the engine (those of btrfs that make sense here),
//! options of the FUSE mount, and options that belong to mount(8) or fstab and mean nothing to us.

use std::time::Duration;

use sapwood_btrfs::{Options, SubvolumeChoice};
use sapwood_fuse::{Access, MountOptions};

use super::failure::{Failure, Result, USAGE};

/// A list of options, read.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) engine: Options,
    pub(super) fuse: MountOptions,
}

/// Options that mount(8), fstab or other drivers know and that change nothing here.
const IGNORED: &[&str] = &[
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "group",
    "owner",
    "_netdev",
    "nofail",
    "suid",
    "dev",
    "exec",
    "async",
    "relatime",
    "nodiratime",
    "ssd",
    "nossd",
    "ssd_spread",
    "nossd_spread",
    "barrier",
    "acl",
    "datacow",
    "datasum",
    "treelog",
    "noautodefrag",
    "space_cache",
    "clear_cache",
    "enospc_debug",
    "loop",
    "silent",
    "loud",
    "iversion",
    "noiversion",
    "lazytime",
    "nolazytime",
];

/// What `compress` without a value means.
const DEFAULT_COMPRESSION: &str = "zlib";

/// Reads the values of `-o`.
///
/// # Errors
/// An unknown option, or a value that makes no sense.
pub(super) fn parse(lists: &[String], source: &str) -> Result<Parsed> {
    let mut parsed = Parsed {
        engine: Options::default(),
        fuse: MountOptions {
            fsname: source.to_owned(),
            ..MountOptions::default()
        },
    };
    for option in lists
        .iter()
        .flat_map(|list| list.split(','))
        .filter(|option| !option.is_empty())
    {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let known = fuse_option(&mut parsed, name, value)?
            || engine_option(&mut parsed.engine, name, value)?;
        let ignored = IGNORED.contains(&name) || name.starts_with("x-") || name == "comment";
        if !known && !ignored {
            return Err(Failure::new(
                USAGE,
                format!("unknown mount option {option}"),
            ));
        }
    }
    Ok(parsed)
}

fn bad(name: &str, value: Option<&str>) -> Failure {
    match value {
        Some(value) => Failure::new(
            USAGE,
            format!("mount option {name}: {value} makes no sense"),
        ),
        None => Failure::new(USAGE, format!("mount option {name} needs a value")),
    }
}

fn number<T: std::str::FromStr>(name: &str, value: Option<&str>) -> Result<T> {
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| bad(name, value))
}

/// Bytes with an optional binary unit: `512`, `64k`, `256M`, `1G`.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let shift = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn bytes(name: &str, value: Option<&str>) -> Result<u64> {
    value.and_then(parse_size).ok_or_else(|| bad(name, value))
}

fn fuse_option(parsed: &mut Parsed, name: &str, value: Option<&str>) -> Result<bool> {
    let fuse = &mut parsed.fuse;
    match name {
        "ro" => {
            fuse.read_only = true;
            parsed.engine.read_only = true;
        }
        "allow_other" => fuse.access = Access::All,
        "allow_root" => fuse.access = Access::OwnerAndRoot,
        "default_permissions" => fuse.default_permissions = true,
        "no_default_permissions" => fuse.default_permissions = false,
        "nosuid" => fuse.nosuid = true,
        "nodev" => fuse.nodev = true,
        "noexec" => fuse.noexec = true,
        "sync" => fuse.sync = true,
        "dirsync" => fuse.dirsync = true,
        "auto_unmount" => fuse.auto_unmount = true,
        "noatime" => {
            fuse.noatime = true;
            parsed.engine.noatime = true;
        }
        "fsname" => fuse.fsname = value.ok_or_else(|| bad(name, value))?.to_owned(),
        "subtype" => {}
        "threads" | "thread_pool" => {
            let threads = number(name, value)?;
            fuse.threads = Some(threads);
            parsed.engine.threads = threads;
        }
        "io_uring" => fuse.io_uring = number(name, value)?,
        "writeback_cache" => fuse.writeback_cache = true,
        "no_writeback_cache" => fuse.writeback_cache = false,
        _ => return Ok(false),
    }
    Ok(true)
}

fn engine_option(engine: &mut Options, name: &str, value: Option<&str>) -> Result<bool> {
    match name {
        "subvol" => {
            let path = value.ok_or_else(|| bad(name, value))?;
            engine.subvolume = SubvolumeChoice::Path(path.as_bytes().to_vec());
        }
        "subvolid" => {
            // The kernel takes 0 for the top level.
            let id: u64 = number(name, value)?;
            engine.subvolume = SubvolumeChoice::Id(if id == 0 { 5 } else { id });
        }
        "commit" => engine.commit_interval = Duration::from_secs(number(name, value)?),
        "compress" | "compress-force" => {
            let compression = match value {
                None => Some(DEFAULT_COMPRESSION.parse().map_err(|_| bad(name, value))?),
                Some("no" | "none") => None,
                Some(value) => Some(value.parse().map_err(|_| bad(name, Some(value)))?),
            };
            engine.compress = compression;
            engine.compress_force = name == "compress-force" && compression.is_some();
        }
        "nodatacow" => {
            engine.nodatacow = true;
            engine.nodatasum = true;
        }
        "nodatasum" => engine.nodatasum = true,
        "discard" => engine.discard = true,
        "nodiscard" => engine.discard = false,
        "max_inline" => {
            engine.max_inline = u32::try_from(bytes(name, value)?).map_err(|_| bad(name, value))?
        }
        "nologreplay" | "norecovery" => engine.no_log_replay = true,
        "rescue" if value == Some("nologreplay") => engine.no_log_replay = true,
        "cache_size" => {
            engine.cache_bytes =
                usize::try_from(bytes(name, value)?).map_err(|_| bad(name, value))?
        }
        "dirty_size" => {
            engine.dirty_bytes =
                usize::try_from(bytes(name, value)?).map_err(|_| bad(name, value))?
        }
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let lists = [
            "ro,subvol=a/b,commit=5".to_owned(),
            "compress=zstd:7,x-systemd.automount,nofail".to_owned(),
        ];
        let parsed = parse(&lists, "img").unwrap();
        assert!(parsed.engine.read_only && parsed.fuse.read_only);
        assert_eq!(
            parsed.engine.subvolume,
            SubvolumeChoice::Path(b"a/b".to_vec())
        );
        assert_eq!(parsed.engine.commit_interval, Duration::from_secs(5));
        assert_eq!(parsed.engine.compress, "zstd:7".parse().ok());
        assert_eq!(parsed.fuse.fsname, "img");
    }

    #[test]
    fn nonsense_is_refused() {
        for list in [
            "subvolid=x",
            "commit",
            "nosuchoption",
            "compress=rot13",
            "max_inline=1q",
            "io_uring=maybe",
        ] {
            assert!(parse(&[list.to_owned()], "img").is_err(), "{list}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("64k"), Some(65536));
        assert_eq!(parse_size("1GiB"), Some(1 << 30));
        assert_eq!(parse_size("16777216t"), None);
        assert_eq!(parse_size("k"), None);
    }
}
