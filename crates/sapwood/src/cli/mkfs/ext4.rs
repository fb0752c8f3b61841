//! `sapwood mkfs -t ext4`: options are those of mke2fs.

use super::super::failure::{Failure, Result, USAGE};
use super::{Made, size};

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
    /// root_owner[=UID:GID], hash_seed=UUID, stride=BLOCKS, stripe_width=BLOCKS, nodiscard
    #[arg(short = 'E', long, value_delimiter = ',')]
    extended: Vec<String>,
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
            (!self.extended.is_empty(), "-E"),
            (!self.journal.is_empty(), "-J"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

/// What is to be made.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Format {
    /// Bytes.
    block_size: Option<u32>,
    /// Bytes.
    inode_size: Option<u32>,
    inodes: Option<u64>,
    bytes_per_inode: Option<u64>,
    /// Names, and whether they are switched on.
    features: Vec<(String, bool)>,
    /// Percentage of the blocks.
    reserved: Option<f64>,
    /// Bytes of the journal.
    journal: Option<u64>,
    /// Whether inode tables are left to be zeroed later.
    lazy_itable: Option<bool>,
    /// Seed of the hash of directories.
    hash_seed: Option<[u8; 16]>,
    /// Owner of the root directory.
    root_owner: Option<(u32, u32)>,
    /// Blocks of a RAID's chunk, which the superblock notes.
    stride: Option<u32>,
    /// Blocks of a RAID's stripe, which the superblock notes.
    stripe_width: Option<u32>,
    /// Blocks are not discarded first.
    no_discard: bool,
}

fn bad(what: &str, value: &str) -> Failure {
    Failure::new(USAGE, format!("{what}: {value} makes no sense"))
}

/// Reads the options.
///
/// # Errors
/// One that makes no sense.
pub(super) fn options(args: &super::Args) -> Result<Format> {
    let own = &args.ext4;
    let mut format = Format {
        inode_size: own.inode_size,
        inodes: own.inodes,
        bytes_per_inode: own.bytes_per_inode,
        ..Format::default()
    };
    if let Some(bytes) = args.bytes {
        format.block_size = Some(u32::try_from(bytes).map_err(|_| bad("-b", &bytes.to_string()))?);
    }
    if let Some(percent) = &args.metadata {
        let number = percent.parse().ok();
        let number = number.filter(|number| (0.0..=50.0).contains(number));
        format.reserved = Some(number.ok_or_else(|| bad("-m", percent))?);
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
        format.journal = Some(bytes.ok_or_else(|| bad("-J", option))?);
    }
    for option in &own.extended {
        set_extended(&mut format, option)?;
    }
    Ok(format)
}

fn set_extended(format: &mut Format, option: &str) -> Result<()> {
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
        "lazy_itable_init" => format.lazy_itable = Some(switch()?),
        // Ours is always written out: the log is zeroed or discarded.
        "lazy_journal_init" | "discard" => drop(switch()?),
        "nodiscard" => format.no_discard = true,
        "stride" => format.stride = Some(number()?),
        "stripe_width" | "stripe-width" => format.stripe_width = Some(number()?),
        "hash_seed" => {
            let uuid = value.and_then(|value| uuid::Uuid::parse_str(value).ok());
            format.hash_seed = Some(uuid.ok_or_else(bad)?.into_bytes());
        }
        "root_owner" => {
            let caller = (
                rustix::process::getuid().as_raw(),
                rustix::process::getgid().as_raw(),
            );
            format.root_owner = Some(match value {
                None => caller,
                Some(value) => super::owner(value).map_err(|why| Failure::new(USAGE, why))?,
            });
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
pub(super) fn make(args: &super::Args, _format: &Format) -> Result<Made> {
    Err(Failure::local(
        &args.image,
        "making an ext4 is not built in yet",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::super::{Cli, Command};
    use super::*;
    use clap::Parser;

    fn format(words: &str) -> Result<Format> {
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
            "img -b 1k -I 512 -N 100 -O ^has_journal,extent -m 0 -J size=8 \
             -E lazy_itable_init=0,stride=4,nodiscard,root_owner=1:2",
        );
        let expected = Format {
            block_size: Some(1024),
            inode_size: Some(512),
            inodes: Some(100),
            features: vec![
                ("has_journal".to_owned(), false),
                ("extent".to_owned(), true),
            ],
            reserved: Some(0.0),
            journal: Some(8 << 20),
            lazy_itable: Some(false),
            stride: Some(4),
            no_discard: true,
            root_owner: Some((1, 2)),
            ..Format::default()
        };
        assert_eq!(found.unwrap(), expected);
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
