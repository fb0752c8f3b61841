//! `sapwood mkfs`.

mod btrfs;
mod ext4;
mod new_file;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood::Kind;
use sapwood::block::Operand;
use sapwood::options::parse_size;
use sapwood_block::{Device, FileDevice};
use sapwood_vfs::SetAttr;
use serde_json::Value;

use super::copy;
use super::failure::{Failure, Result, USAGE};
use super::{output, owner};
use new_file::NewFile;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image file (made if it does not exist) or block device; IMAGE#N is its partition N,
    /// nbd://HOST/EXPORT an export of an NBD server
    #[arg(value_name = "IMAGE")]
    pub(super) image: PathBuf,
    /// Kind of file system: btrfs, ext4
    #[arg(
        short = 't',
        long = "type",
        value_name = "KIND",
        default_value = "btrfs"
    )]
    kind: Kind,
    /// Size of a new image, or a new size for an old one: bytes, or with k, M, G, T
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// btrfs: the same as --size; ext4: bytes of a block, 1k, 2k or 4k
    #[arg(short = 'b', value_name = "BYTES", value_parser = size)]
    bytes: Option<u64>,
    /// Label: btrfs up to 255 bytes, ext4 up to 16
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// UUID of the file system [default: random]
    #[arg(short = 'U', long)]
    uuid: Option<uuid::Uuid>,
    /// Features to switch on, or off with ^, separated by commas. btrfs: no-holes, free-space-tree,
    /// block-group-tree, extref, skinny-metadata; ext4: as in mke2fs
    #[arg(short = 'O', long, value_delimiter = ',')]
    features: Vec<String>,
    /// Fill it with what is in this directory
    #[arg(short, long, value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// Owner of the root directory [default: root, or who calls if that is an ordinary user]
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse, visible_alias = "owner")]
    root_owner: Option<(u32, u32)>,
    /// btrfs: copies of metadata, dup or single [default: dup]; ext4: percentage of the blocks
    /// reserved for the superuser [default: 5]
    #[arg(short, long, value_name = "DUP|SINGLE|PERCENT")]
    metadata: Option<String>,
    #[command(flatten)]
    btrfs: btrfs::Args,
    #[command(flatten)]
    ext4: ext4::Args,
    /// Overwrite a file system that is there
    #[arg(short, long, visible_short_alias = 'F')]
    force: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was made.
struct Made {
    uuid: [u8; 16],
    /// Bytes of the device that are used.
    size: u64,
    /// What else there is to say of it, as JSON.
    more: Vec<(&'static str, Value)>,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
        .ok_or_else(|| format!("{text} is not a size: bytes, or a number with k, M, G or T"))
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (made, new) = match args.kind {
        Kind::Btrfs => {
            refuse_foreign(args.ext4.given(), args.kind)?;
            let options = btrfs::options(args)?;
            let (device, new) = device(args, args.size.or(args.bytes))?;
            (btrfs::make(&*device, &options, args)?, new)
        }
        Kind::Ext4 => {
            refuse_foreign(args.btrfs.given(), args.kind)?;
            let options = ext4::options(args)?;
            let (device, new) = device(args, args.size)?;
            (ext4::make(&*device, &options, args)?, new)
        }
    };
    let missing = match &args.rootdir {
        Some(source) => fill(&args.image, source, args.quiet || args.json)?,
        None => 0,
    };
    if let Some((uid, gid)) = root_owner(args) {
        set_root_owner(&args.image, uid, gid)?;
    }
    if let Some(new) = new {
        new.keep();
    }
    print(args, made)?;
    match missing {
        0 => Ok(()),
        _ => Err(Failure::local(
            &args.image,
            format_args!("made, but without {missing} that could not be copied"),
        )),
    }
}

fn refuse_foreign(option: Option<&str>, kind: Kind) -> Result<()> {
    match option {
        None => Ok(()),
        Some(option) => Err(Failure::new(
            USAGE,
            format!("{option} means nothing for {kind}"),
        )),
    }
}

fn print(args: &Args, made: Made) -> Result<()> {
    if args.json {
        let mut object = serde_json::json!({
            "kind": args.kind.name(), "uuid": output::uuid(&made.uuid), "label": args.label, "size": made.size,
        });
        if let Value::Object(map) = &mut object {
            map.extend(
                made.more
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value)),
            );
        }
        output::json(&object)?;
    } else if !args.quiet {
        output::line(format!(
            "{}: {}, {}, uuid {}",
            args.image.display(),
            args.kind,
            output::size(made.size),
            output::uuid(&made.uuid)
        ))?;
    }
    Ok(())
}

/// The device to make it on; a file is made anew if a size is given. A file that did not exist before is removed again
/// unless it is kept.
fn device(args: &Args, size: Option<u64>) -> Result<(Arc<dyn Device>, Option<NewFile>)> {
    match size {
        Some(size) if !is_device(&args.image) && !Operand::is_fixed(&args.image) => {
            let exists = args.image.exists();
            if exists && !args.force {
                return Err(Failure::local(
                    &args.image,
                    "exists; --force makes it anew with that size",
                ));
            }
            let new = match exists {
                true => None,
                false => Some(
                    NewFile::create(&args.image)
                        .map_err(|error| Failure::local(&args.image, error))?,
                ),
            };
            let made = FileDevice::create(&args.image, size);
            let made = made.map_err(|error| Failure::new(super::failure::IMAGE, error))?;
            Ok((Arc::new(made), new))
        }
        None if !Operand::exists(&args.image) && !args.image.is_dir() => Err(Failure::local(
            &args.image,
            "does not exist; --size makes it",
        )),
        _ => Ok((sapwood::image::open_device(&args.image, false)?, None)),
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// How an image is open while it is filled: nothing has to be durable before the end, and what waits in memory to be written
/// only takes memory.
const FILLING: [(&str, &str); 3] = [
    ("cache_size", "64M"),
    ("dirty_size", "32M"),
    ("commit", "4"),
];

/// Fills the image; the number of files that could not be copied.
fn fill(image: &Path, source: &Path, quiet: bool) -> Result<u64> {
    let mut options = sapwood::Options::default();
    for (name, value) in FILLING {
        options
            .set(name, Some(value))
            .map_err(|error| Failure::new(USAGE, error))?;
    }
    let fs = sapwood::image::open(image, &options)?;
    let filled = copy::fill(&fs, image, source, quiet);
    let ended = fs.unmount().map_err(|error| Failure::local(image, error));
    let missing = filled?;
    ended.map(|()| missing)
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
    let fs = sapwood::image::open(image, &sapwood::Options::default())?;
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
