//! The options of mkfs.btrfs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ArgAction;
use sapwood::internal::options::parse_size;
use sapwood::{Kind, MkfsOptions, Storage};

use super::{Asked, Error, Request, Result, set, words};

/// Make a btrfs file system, with the options of mkfs.btrfs
#[derive(Debug, clap::Parser)]
#[command(name = "mkfs.btrfs", max_term_width = 100, args_override_self = true)]
#[command(disable_version_flag = true, infer_long_args = true)]
struct Args {
    /// Image files or block devices
    #[arg(value_name = "DEVICE", required_unless_present_any = ["version", "features"])]
    devices: Vec<PathBuf>,
    /// Copies of data: single, dup, raid0, raid1, raid1c3, raid1c4, raid10
    #[arg(short, long, value_name = "PROFILE")]
    data: Option<String>,
    /// Copies of metadata, likewise
    #[arg(short, long, value_name = "PROFILE")]
    metadata: Option<String>,
    /// Keep data and metadata together
    #[arg(short = 'M', long)]
    mixed: bool,
    /// Checksum: crc32c, xxhash, sha256, blake2
    #[arg(long, visible_alias = "csum", value_name = "NAME")]
    checksum: Option<String>,
    /// Bytes of a tree block
    #[arg(short, long, visible_short_alias = 'l', visible_alias = "leafsize")]
    #[arg(value_name = "BYTES")]
    nodesize: Option<String>,
    /// Bytes of a sector: 4096
    #[arg(short, long, value_name = "BYTES")]
    sectorsize: Option<String>,
    /// Features, or list-all
    #[arg(short = 'O', long, value_name = "FEATURE,...", action = ArgAction::Append)]
    features: Vec<String>,
    /// The same as --features
    #[arg(short = 'R', long, value_name = "FEATURE,...", action = ArgAction::Append)]
    runtime_features: Vec<String>,
    /// Label
    #[arg(short = 'L', long, value_name = "LABEL", allow_hyphen_values = true)]
    label: Option<String>,
    /// UUID of the file system
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<String>,
    /// Size of the file system
    #[arg(short, long, value_name = "SIZE")]
    byte_count: Option<String>,
    /// Fill it with what is in this directory
    #[arg(short, long, value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// Make a directory of it a subvolume
    #[arg(short = 'u', long, value_name = "[rw|ro|default|default-ro:]DIR")]
    #[arg(action = ArgAction::Append)]
    subvol: Vec<String>,
    /// Compress what is copied: no, zlib, lzo or zstd
    #[arg(long, value_name = "ALGORITHM[:LEVEL]")]
    compress: Option<String>,
    /// Set flags of a file or directory of it: nodatacow, nodatasum
    #[arg(long, value_name = "FLAG[,FLAG...]:PATH", action = ArgAction::Append)]
    inode_flags: Vec<String>,
    /// Do not discard the device
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Overwrite what is there
    #[arg(short, long)]
    force: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Accepted, and changes nothing
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Accepted, and changes nothing
    #[arg(short = 'A', long, value_name = "BYTES")]
    alloc_start: Option<OsString>,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    #[command(flatten)]
    refused: Refused,
}

/// Options that are refused by name.
#[derive(Debug, clap::Args)]
struct Refused {
    #[arg(long, hide = true)]
    shrink: bool,
    #[arg(long, hide = true)]
    reflink: bool,
    #[arg(long, hide = true)]
    device_uuid: Option<OsString>,
}

impl Refused {
    fn first(&self) -> Option<&'static str> {
        let all = [
            (self.shrink, "--shrink"),
            (self.reflink, "--reflink"),
            (self.device_uuid.is_some(), "--device-uuid"),
        ];
        let first = all.into_iter().find(|(given, _)| *given);
        first.map(|(_, name)| name)
    }
}

const FEATURES: &str = "mixed-bg, extref, skinny-metadata, no-holes, free-space-tree (fst), \
                        block-group-tree (bgt)";

/// Parses a call of the tool.
pub(crate) fn parse(args: &[OsString]) -> Result<Asked> {
    let args: Args = match words(args)? {
        Ok(args) => args,
        Err(text) => return Ok(Asked::Print(text)),
    };
    if args.version {
        let version = env!("CARGO_PKG_VERSION");
        return Ok(Asked::Print(format!(
            "mkfs.btrfs, part of sapwood {version}"
        )));
    }
    let lists = || args.features.iter().chain(&args.runtime_features);
    if lists().any(|list| list == "list-all") {
        return Ok(Asked::Print(FEATURES.to_owned()));
    }
    if let Some(what) = args.refused.first() {
        return Err(Error::unsupported(what));
    }
    let [file, others @ ..] = &*args.devices else {
        return Err(Error::new("no device"));
    };
    if !others.is_empty() && args.rootdir.is_some() {
        return Err(Error::unsupported("--rootdir on several devices"));
    }
    let size = args.byte_count.as_deref().map(size_of).transpose()?;
    Ok(Asked::Make(Box::new(Request {
        options: args.options(size)?,
        file: file.clone(),
        others: others.to_vec(),
        offset: 0,
        size,
        creates: args.rootdir.is_some(),
        storage: args.storage()?,
        rootdir: args.rootdir,
        root: None,
        quiet: args.quiet,
        warnings: Vec::new(),
    })))
}

fn size_of(text: &str) -> Result<u64> {
    let bad = || Error::new(format_args!("{text:?} is no size"));
    parse_size(text).filter(|size| *size > 0).ok_or_else(bad)
}

/// A profile that can be written.
fn profile(letter: char, name: &str) -> Result<&str> {
    let parity = ["raid5", "raid6"];
    if parity
        .iter()
        .any(|parity| name.eq_ignore_ascii_case(parity))
    {
        return Err(Error::unsupported(format_args!("-{letter} {name}")));
    }
    Ok(name)
}

impl Args {
    fn options(&self, size: Option<u64>) -> Result<MkfsOptions> {
        let mut options = MkfsOptions::new(Kind::Btrfs);
        let mut set = |name: &str, value: Option<&str>| set(&mut options, name, value);
        if let Some(bytes) = &self.sectorsize
            && size_of(bytes)? != 4096
        {
            return Err(Error::unsupported(format_args!("--sectorsize {bytes}")));
        }
        if let Some(name) = &self.data {
            set("data", Some(profile('d', name)?))?;
        }
        if let Some(name) = &self.metadata {
            set("metadata", Some(profile('m', name)?))?;
        }
        for list in self.features.iter().chain(&self.runtime_features) {
            set("O", Some(list))?;
        }
        let given = [
            ("checksum", &self.checksum),
            ("nodesize", &self.nodesize),
            ("label", &self.label),
            ("uuid", &self.uuid),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                set(name, Some(value))?;
            }
        }
        if let Some(size) = size {
            set("size", Some(&size.to_string()))?;
        }
        for (name, given) in [("mixed", self.mixed), ("force", self.force)] {
            if given {
                set(name, None)?;
            }
        }
        if self.nodiscard {
            options.set_discard(false);
        }
        Ok(options)
    }

    fn storage(&self) -> Result<Storage> {
        let given = [
            (!self.subvol.is_empty(), "--subvol"),
            (self.compress.is_some(), "--compress"),
            (!self.inode_flags.is_empty(), "--inode-flags"),
        ];
        if let Some((_, name)) = given.into_iter().find(|(given, _)| *given)
            && self.rootdir.is_none()
        {
            return Err(Error::new(format_args!("{name} needs --rootdir")));
        }
        let mut storage = Storage::default();
        if let Some(how) = &self.compress {
            storage.compress(how).map_err(Error::new)?;
        }
        for one in &self.subvol {
            storage.subvolume(one.parse().map_err(Error::new)?);
        }
        for one in &self.inode_flags {
            storage.inode_flags(one.parse().map_err(Error::new)?);
        }
        Ok(storage)
    }
}
