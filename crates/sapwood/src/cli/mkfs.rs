//! `sapwood mkfs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, FileDevice};
use sapwood_btrfs::mkfs::{self, MkfsOptions, Profile};
use sapwood_btrfs_format::ChecksumKind;
use sapwood_vfs::{FileSystem, SetAttr};

use super::copy;
use super::failure::{Failure, Result, USAGE};
use super::mount_options::parse_size;
use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image file (made if it does not exist) or block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Size of a new image, or a new size for an old one: bytes, or with k, M, G, T
    #[arg(short = 'b', long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Label, up to 255 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// UUID of the file system [default: random]
    #[arg(short = 'U', long)]
    uuid: Option<uuid::Uuid>,
    /// Bytes of a tree block: 4k to 64k [default: 16k]
    #[arg(short, long, value_parser = size)]
    nodesize: Option<u64>,
    /// Checksum: crc32c, xxhash, sha256, blake2
    #[arg(long, default_value = "crc32c")]
    checksum: String,
    /// Copies of metadata: dup or single [default: dup]
    #[arg(short, long)]
    metadata: Option<String>,
    /// Copies of data: single or dup [default: single]
    #[arg(short, long)]
    data: Option<String>,
    /// Keep data and metadata together (small images)
    #[arg(short = 'M', long)]
    mixed: bool,
    /// Features to switch on, or off with ^, separated by commas: no-holes, free-space-tree,
    /// block-group-tree, extref, skinny-metadata
    #[arg(short = 'O', long, value_delimiter = ',')]
    features: Vec<String>,
    /// Fill it with what is in this directory
    #[arg(short, long, value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// Owner of the root directory [default: root, or who calls if that is an ordinary user]
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    root_owner: Option<(u32, u32)>,
    /// Overwrite a file system that is there
    #[arg(short, long)]
    force: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("{text} is no size"))
}

pub(super) fn run(args: &Args) -> Result<()> {
    let options = options(args)?;
    let device = device(args)?;
    let report =
        mkfs::mkfs(&*device, &options).map_err(|error| Failure::local(&args.image, error))?;
    drop(device);
    if let Some(source) = &args.rootdir {
        fill(&args.image, source, args.quiet || args.json)?;
    }
    if let Some((uid, gid)) = root_owner(args) {
        set_root_owner(&args.image, uid, gid)?;
    }
    if args.json {
        output::json(&serde_json::json!({
            "uuid": output::uuid(&report.uuid), "label": args.label, "size": report.size, "nodesize": report.node_size,
            "checksum": args.checksum,
        }));
    } else if !args.quiet {
        output::line(format!(
            "{}: btrfs, {}, uuid {}",
            args.image.display(),
            output::size(report.size),
            output::uuid(&report.uuid)
        ));
    }
    Ok(())
}

fn options(args: &Args) -> Result<MkfsOptions> {
    let mut options = MkfsOptions {
        label: args.label.clone(),
        uuid: args.uuid.map(uuid::Uuid::into_bytes),
        metadata: args.metadata.as_deref().map(profile).transpose()?,
        data: args.data.as_deref().map(profile).transpose()?,
        mixed: args.mixed,
        force: args.force,
        ..MkfsOptions::default()
    };
    if let Some(bytes) = args.nodesize {
        options.node_size = Some(u32::try_from(bytes).map_err(|error| Failure::new(USAGE, error))?);
    }
    if is_device(&args.image) {
        options.size = args.size;
    }
    options.checksum = ChecksumKind::from_name(&args.checksum)
        .ok_or_else(|| Failure::new(USAGE, format!("unknown checksum {}", args.checksum)))?;
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

fn device(args: &Args) -> Result<Arc<dyn Device>> {
    match args.size {
        Some(size) if !is_device(&args.image) => {
            if args.image.exists() && !args.force {
                return Err(Failure::local(
                    &args.image,
                    "exists; --force makes it anew with that size",
                ));
            }
            let made = FileDevice::create(&args.image, size);
            Ok(Arc::new(made.map_err(|error| {
                Failure::new(super::failure::IMAGE, error)
            })?))
        }
        None if !args.image.exists() => Err(Failure::local(
            &args.image,
            "does not exist; --size makes it",
        )),
        _ => Ok(sapwood::image::open_device(&args.image, false)?),
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

fn fill(image: &Path, source: &Path, quiet: bool) -> Result<()> {
    let fs = sapwood::image::open(image, sapwood_btrfs::Options::default())?;
    let filled = copy::fill(&fs, source, quiet);
    fs.unmount().map_err(|error| Failure::local(image, error))?;
    filled
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    parsed.ok_or_else(|| format!("{text} is not UID:GID"))
}

/// Whom the root directory is to belong to, if not to the superuser. An ordinary user could not
/// write to a mount of the image otherwise. What comes from a directory keeps its owners.
fn root_owner(args: &Args) -> Option<(u32, u32)> {
    let caller = (rustix::process::geteuid(), rustix::process::getegid());
    let ordinary = !caller.0.is_root() && args.rootdir.is_none();
    args.root_owner
        .or_else(|| ordinary.then(|| (caller.0.as_raw(), caller.1.as_raw())))
}

fn set_root_owner(image: &Path, uid: u32, gid: u32) -> Result<()> {
    let fs = sapwood::image::open(image, sapwood_btrfs::Options::default())?;
    let changes = SetAttr {
        uid: Some(uid),
        gid: Some(gid),
        ..SetAttr::default()
    };
    let set = fs.setattr(fs.root(), &changes);
    fs.unmount()
        .and(set)
        .map(drop)
        .map_err(|error| Failure::local(image, error))
}
