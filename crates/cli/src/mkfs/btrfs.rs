//! `sapwood mkfs -t btrfs`.

use sapwood_block::Device;
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs};
use sapwood_btrfs_format::ChecksumKind;
use serde_json::json;

use super::super::failure::{Failure, Result, USAGE};
use super::{Made, is_device, size};

/// What only btrfs has.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// btrfs: bytes of a tree block, 4k to 64k [default: 16k]
    #[arg(short, long, value_parser = size)]
    nodesize: Option<u64>,
    /// btrfs: checksum, one of crc32c, xxhash, sha256, blake2 [default: crc32c]
    #[arg(long)]
    checksum: Option<String>,
    /// btrfs: copies of data, single or dup [default: single]
    #[arg(short, long)]
    data: Option<String>,
    /// btrfs: keep data and metadata together (small images)
    #[arg(short = 'M', long)]
    mixed: bool,
}

impl Args {
    /// The first that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        [
            (self.nodesize.is_some(), "--nodesize"),
            (self.checksum.is_some(), "--checksum"),
            (self.data.is_some(), "--data"),
            (self.mixed, "--mixed"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

pub(super) fn options(args: &super::Args) -> Result<MkfsOptions> {
    let own = &args.btrfs;
    let mut options = MkfsOptions {
        label: args.label.clone(),
        uuid: args.uuid.map(uuid::Uuid::into_bytes),
        metadata: args.metadata.as_deref().map(profile).transpose()?,
        data: own.data.as_deref().map(profile).transpose()?,
        mixed: own.mixed,
        force: args.force,
        ..MkfsOptions::default()
    };
    if let Some(bytes) = own.nodesize {
        options.node_size = Some(u32::try_from(bytes).map_err(|error| Failure::new(USAGE, error))?);
    }
    if is_device(&args.image) {
        options.size = args.size.or(args.bytes);
    }
    if let Some(checksum) = &own.checksum {
        options.checksum = ChecksumKind::from_name(checksum)
            .ok_or_else(|| Failure::new(USAGE, format!("unknown checksum {checksum}")))?;
    }
    for feature in &args.features {
        set_feature(&mut options, feature)?;
    }
    Ok(options)
}

fn profile(name: &str) -> Result<Profile> {
    match name {
        "single" => Ok(Profile::Single),
        "dup" | "DUP" => Ok(Profile::Dup),
        _ => Err(Failure::new(USAGE, format!("unknown profile {name}"))),
    }
}

fn set_feature(options: &mut MkfsOptions, feature: &str) -> Result<()> {
    let (name, on) = match feature.strip_prefix('^') {
        Some(name) => (name, false),
        None => (feature, true),
    };
    match name {
        "no-holes" => options.no_holes = on,
        "free-space-tree" | "fst" => options.free_space_tree = on,
        "block-group-tree" | "bgt" => options.block_group_tree = Some(on),
        "extref" => options.extended_refs = on,
        "skinny-metadata" => options.skinny_metadata = on,
        "mixed-bg" => options.mixed = on,
        _ => return Err(Failure::new(USAGE, format!("unknown feature {name}"))),
    }
    Ok(())
}

pub(super) fn make(device: &dyn Device, options: &MkfsOptions, args: &super::Args) -> Result<Made> {
    let report = mkfs(device, options).map_err(|error| Failure::local(&args.image, error))?;
    Ok(Made {
        uuid: report.uuid,
        size: report.size,
        more: vec![
            ("nodesize", json!(report.node_size)),
            ("checksum", json!(report.checksum.to_string())),
        ],
    })
}
