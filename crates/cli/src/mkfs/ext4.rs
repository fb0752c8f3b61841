//! `sapwood mkfs -t ext4`: options are those of mke2fs.

use sapwood_block::Device;
use sapwood_ext4::mkfs::{DirHash, MkfsOptions, mkfs};
use serde_json::json;

use super::super::failure::{Failure, Result, USAGE};
use super::{Made, is_device, size};

/// What only ext4 has.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// ext4: bytes of an inode [default: 256]
    #[arg(short = 'I', long, value_name = "BYTES")]
    inode_size: Option<u32>,
    /// ext4: number of inodes
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u64>,
    /// ext4: an inode for every so many bytes [default: 16k]
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = size, conflicts_with = "inodes")]
    bytes_per_inode: Option<u64>,
    /// ext4: extended options, separated by commas: lazy_itable_init[=0|1], lazy_journal_init[=0|1],
    /// root_owner[=UID:GID], hash_seed=UUID, hash_alg=half_md4|tea|legacy, stride=BLOCKS, stripe_width=BLOCKS, nodiscard
    #[arg(short = 'E', long, value_delimiter = ',')]
    extended: Vec<String>,
    /// ext4: blocks of a group [default: as many as a bitmap can hold]
    #[arg(short = 'g', long, value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,
    /// ext4: groups whose metadata stand together, a power of two [default: 16]
    #[arg(short = 'G', long, value_name = "GROUPS")]
    flex_groups: Option<u32>,
    /// ext4: the journal, as size=MEGABYTES
    #[arg(short = 'J', long, value_delimiter = ',')]
    journal: Vec<String>,
}

impl Args {
    /// The first that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        [
            (self.inode_size.is_some(), "-I"),
            (self.inodes.is_some(), "-N"),
            (self.bytes_per_inode.is_some(), "-i"),
            (self.blocks_per_group.is_some(), "-g"),
            (self.flex_groups.is_some(), "-G"),
            (!self.extended.is_empty(), "-E"),
            (!self.journal.is_empty(), "-J"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

fn bad(what: &str, value: &str) -> Failure {
    Failure::new(USAGE, format!("{what}: {value} makes no sense"))
}

/// Reads the options.
///
/// # Errors
/// One that makes no sense.
pub(super) fn options(args: &super::Args) -> Result<MkfsOptions> {
    let own = &args.ext4;
    let mut format = MkfsOptions {
        label: args.label.clone(),
        uuid: args.uuid.map(uuid::Uuid::into_bytes),
        inode_size: own.inode_size,
        inodes: own.inodes,
        bytes_per_inode: own.bytes_per_inode,
        blocks_per_group: own.blocks_per_group,
        force: args.force,
        ..MkfsOptions::default()
    };
    if is_device(&args.image) {
        format.size = args.size;
    }
    if let Some(groups) = own.flex_groups {
        format.flex_groups = groups;
    }
    if let Some(bytes) = args.bytes {
        format.block_size = Some(u32::try_from(bytes).map_err(|_| bad("-b", &bytes.to_string()))?);
    }
    if let Some(percent) = &args.metadata {
        let number = percent.parse().ok();
        let number = number.filter(|number| (0.0..=50.0).contains(number));
        format.reserved_percent = number.ok_or_else(|| bad("-m", percent))?;
    }
    for feature in &args.features {
        format.features.push(match feature.strip_prefix('^') {
            Some(name) => (name.to_owned(), false),
            None => (feature.clone(), true),
        });
    }
    for option in &own.journal {
        let megabytes: Option<u64> = option
            .strip_prefix("size=")
            .and_then(|value| value.trim_end_matches(['M', 'm']).parse().ok());
        let bytes = megabytes.and_then(|megabytes| megabytes.checked_mul(1 << 20));
        format.journal_size = Some(bytes.ok_or_else(|| bad("-J", option))?);
    }
    for option in &own.extended {
        set_extended(&mut format, option)?;
    }
    Ok(format)
}

fn set_extended(format: &mut MkfsOptions, option: &str) -> Result<()> {
    let bad = || bad("-E", option);
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let switch = || match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(_) => Err(bad()),
    };
    let number = || -> Result<u32> { value.and_then(|value| value.parse().ok()).ok_or_else(bad) };
    match name {
        "lazy_itable_init" => format.lazy_itable_init = switch()?,
        // Ours is always written out: the log is zeroed or discarded.
        "lazy_journal_init" => drop(switch()?),
        "discard" => format.discard = switch()?,
        "nodiscard" => format.discard = false,
        "stride" => format.stride = u16::try_from(number()?).map_err(|_| bad())?,
        "stripe_width" | "stripe-width" => format.stripe_width = number()?,
        "hash_seed" => {
            let uuid = value.and_then(|value| uuid::Uuid::parse_str(value).ok());
            format.hash_seed = Some(uuid.ok_or_else(bad)?.into_bytes());
        }
        "root_owner" => {
            let caller = (
                rustix::process::getuid().as_raw(),
                rustix::process::getgid().as_raw(),
            );
            format.root_owner = match value {
                None => caller,
                Some(value) => {
                    super::owner::parse(value).map_err(|why| Failure::new(USAGE, why))?
                }
            };
        }
        "hash_alg" => {
            format.dir_hash = match value {
                Some("half_md4") => DirHash::HalfMd4,
                Some("tea") => DirHash::Tea,
                Some("legacy") => DirHash::Legacy,
                _ => return Err(bad()),
            };
        }
        _ => {
            return Err(Failure::new(
                USAGE,
                format!("unknown extended option {name}"),
            ));
        }
    }
    Ok(())
}

/// Makes it.
///
/// # Errors
/// What is wrong with the device or the options.
pub(super) fn make(device: &dyn Device, options: &MkfsOptions, args: &super::Args) -> Result<Made> {
    let report = mkfs(device, options).map_err(|error| Failure::local(&args.image, error))?;
    Ok(Made {
        uuid: report.uuid,
        size: report.size,
        more: vec![
            ("blocksize", json!(report.block_size)),
            ("blocks", json!(report.blocks)),
            ("inodesize", json!(report.inode_size)),
            ("inodes", json!(report.inodes)),
            ("journalblocks", json!(report.journal_blocks)),
            ("features", json!(report.features)),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::{Cli, Command};
    use clap::Parser;

    use super::*;

    fn format(words: &str) -> Result<MkfsOptions> {
        let words = words.split_whitespace();
        let cli = Cli::try_parse_from(["sapwood", "mkfs", "-t", "ext4"].into_iter().chain(words));
        match cli.unwrap().command {
            Command::Mkfs(args) => options(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_of_mke2fs_are_read() {
        let found = format(
            "img -b 1k -I 512 -N 100 -O ^has_journal,extent -m 0 -J size=8 -G 4 -L name \
             -E lazy_itable_init=1,stride=4,stripe_width=8,nodiscard,root_owner=1:2,hash_alg=tea",
        );
        let found = found.unwrap();
        assert_eq!(found.block_size, Some(1024));
        assert_eq!(found.inode_size, Some(512));
        assert_eq!(found.inodes, Some(100));
        let features = [
            ("has_journal".to_owned(), false),
            ("extent".to_owned(), true),
        ];
        assert_eq!(found.features, features);
        assert_eq!(found.reserved_percent, 0.0);
        assert_eq!(found.journal_size, Some(8 << 20));
        assert_eq!(found.flex_groups, 4);
        assert_eq!(found.label, "name");
        assert!(found.lazy_itable_init && !found.discard && !found.force);
        assert_eq!((found.stride, found.stripe_width), (4, 8));
        assert_eq!(found.root_owner, (1, 2));
        assert_eq!(found.dir_hash, DirHash::Tea);
        assert_eq!(format("img -i 8k").unwrap().bytes_per_inode, Some(8192));
    }

    #[test]
    fn nonsense_is_refused() {
        for words in [
            "-m 60",
            "-m x",
            "-J size=x",
            "-J device=/dev/x",
            "-E turbo",
            "-E stride",
        ] {
            assert!(format(&format!("img {words}")).is_err(), "{words}");
        }
    }
}
