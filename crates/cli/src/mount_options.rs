//! Mount options, as `-o` takes them.
//!
//! Three kinds meet in one list: options of the file system ([`sapwood::options`]), options of the
//! FUSE mount, and options that belong to mount(8) or fstab and mean nothing to us.

use sapwood::options::{OptionError, Options};
use sapwood_fuse::{Access, MountOptions};

use super::failure::{Failure, Result, USAGE};

/// A list of options, read.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) engine: Options,
    pub(super) fuse: MountOptions,
    /// The interval of commits was chosen.
    pub(super) commit: bool,
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
    "loop",
    "silent",
    "loud",
    "iversion",
    "noiversion",
    "lazytime",
    "nolazytime",
];

/// Reads the values of `-o`.
///
/// # Errors
/// An unknown option, or a value that makes no sense.
pub(super) fn parse(lists: &[String], source: &str) -> Result<Parsed> {
    let mut parsed = Parsed {
        engine: Options::default(),
        fuse: MountOptions {
            fsname: source.to_owned(),
            // Beside the caches, which take a quarter at most.
            buffer_bytes: Some(sapwood_base::memory::available() / 8),
            ..MountOptions::default()
        },
        commit: false,
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
        let of_mount = fuse_option(&mut parsed.fuse, name, value)?;
        parsed.commit |= name == "commit";
        let known = parsed.engine.set(name, value)? || of_mount;
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

impl From<OptionError> for Failure {
    fn from(error: OptionError) -> Self {
        Self::new(USAGE, error)
    }
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

/// Takes an option of the mount; some of them mean something to the engine too.
fn fuse_option(fuse: &mut MountOptions, name: &str, value: Option<&str>) -> Result<bool> {
    match name {
        "ro" => fuse.read_only = true,
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
        "noatime" => fuse.noatime = true,
        "fsname" => fuse.fsname = value.ok_or_else(|| bad(name, value))?.to_owned(),
        "subtype" => {}
        "threads" | "thread_pool" => fuse.threads = Some(number(name, value)?),
        "io_uring" => fuse.io_uring = number(name, value)?,
        "fuseblk" => fuse.fuseblk = number(name, value)?,
        "writeback_cache" => fuse.writeback_cache = true,
        "no_writeback_cache" => fuse.writeback_cache = false,
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sapwood::btrfs::SubvolumeChoice;

    use super::*;

    #[test]
    fn lists_are_read() {
        let lists = [
            "ro,subvol=a/b,commit=5".to_owned(),
            "compress=zstd:7,x-systemd.automount,nofail".to_owned(),
        ];
        let parsed = parse(&lists, "img").unwrap();
        let btrfs = parsed.engine.for_btrfs().unwrap();
        assert!(btrfs.read_only && parsed.fuse.read_only);
        assert_eq!(btrfs.subvolume, SubvolumeChoice::Path(b"a/b".to_vec()));
        assert_eq!(btrfs.commit_interval, Duration::from_secs(5));
        assert_eq!(btrfs.compress, "zstd:7".parse().ok());
        assert_eq!(parsed.fuse.fsname, "img");
        assert!(parsed.engine.for_ext4().is_err());
    }

    #[test]
    fn options_for_mount_and_engine_reach_both() {
        let parsed = parse(&["ro,noatime,threads=5,data=journal".to_owned()], "img").unwrap();
        let ext4 = parsed.engine.for_ext4().unwrap();
        assert!(ext4.read_only && parsed.fuse.read_only);
        assert!(ext4.noatime && parsed.fuse.noatime);
        assert_eq!((ext4.threads, parsed.fuse.threads), (5, Some(5)));
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
            "data=sometimes",
            "nobarrier",
        ] {
            assert!(parse(&[list.to_owned()], "img").is_err(), "{list}");
        }
    }
}
