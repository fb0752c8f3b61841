//! `sapwood mkfs`.

mod given;
mod new_file;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood::block::{Device, FileDevice, Operand};
use sapwood::mkfs::{MkfsReport, table};
use sapwood::{BuildError, FileSystem, Kind, MkfsOptions};
use serde_json::{Value, json};

use super::failure::{FAILED, Failure, Result, USAGE};
use super::files::{self, within};
use super::{copy, output, owner, progress, untar};
use given::Given;
pub(super) use new_file::NewFile;

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
    /// Fill it with what is in this directory
    #[arg(short, long, value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// Fill it with the files of this tar archive, plain or compressed with gzip or zstd; - for
    /// standard input
    #[arg(long, value_name = "FILE", conflicts_with = "rootdir")]
    tar: Option<PathBuf>,
    #[command(flatten)]
    given: Given,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct OptionsArgs {
    /// Print the page docs/mkfs-options.md
    #[arg(long)]
    markdown: bool,
}

impl OptionsArgs {
    pub(super) fn page(&self) -> String {
        match self.markdown {
            true => table::as_markdown(),
            false => table::as_text(),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut options = MkfsOptions::new(args.kind);
    for (option, value) in &args.given.0 {
        let taken = option.take(&mut options, value.as_deref());
        taken.map_err(|error| Failure::new(USAGE, error))?;
    }
    let (device, new) = device(&args.image, &options)?;
    let whole = !is_device(&args.image);
    let made = sapwood::mkfs::mkfs(&*device, &args.image, &options, whole);
    let made = made.map_err(|error| Failure::new(FAILED, error))?;
    drop(device);
    let missing = match &args.rootdir {
        Some(source) => fill(&args.image, source, args.quiet || args.json)?,
        None => 0,
    };
    if let Some(archive) = &args.tar {
        extract(args, &options, archive)?;
    } else if let Some((uid, gid)) = root_owner(args, &options) {
        set_root_owner(&args.image, uid, gid)?;
    }
    if let Some(new) = new {
        new.keep();
    }
    print(args, &options, &made)?;
    match missing {
        0 => Ok(()),
        _ => Err(Failure::local(
            &args.image,
            format_args!("made, but without {missing} that could not be copied"),
        )),
    }
}

fn print(args: &Args, options: &MkfsOptions, made: &MkfsReport) -> Result<()> {
    let (uuid, size) = (output::uuid(&made.uuid()), made.size());
    if args.json {
        let mut object = json!({
            "kind": args.kind.name(), "uuid": uuid, "label": options.label(), "size": size,
        });
        let more = match made {
            MkfsReport::Btrfs(made) => json!({
                "nodesize": made.node_size, "checksum": made.checksum.to_string(),
            }),
            MkfsReport::Ext4(made) => json!({
                "blocksize": made.block_size, "blocks": made.blocks,
                "inodesize": made.inode_size, "inodes": made.inodes,
                "journalblocks": made.journal_blocks, "features": made.features,
            }),
        };
        if let (Value::Object(map), Value::Object(more)) = (&mut object, more) {
            map.extend(more);
        }
        output::object(&object)?;
    } else if !args.quiet {
        let (image, size) = (args.image.display(), output::size(size));
        output::line(format!("{image}: {}, {size}, uuid {uuid}", args.kind))?;
    }
    Ok(())
}

/// The device to make it on; a file is made anew if a size is given. A file that did not exist
/// before is removed again unless it is kept.
fn device(image: &Path, options: &MkfsOptions) -> Result<(Arc<dyn Device>, Option<NewFile>)> {
    match options.size() {
        Some(size) if !is_device(image) && !Operand::is_fixed(image) => {
            let exists = image.exists();
            if exists && !options.forced() {
                return Err(Failure::local(
                    image,
                    "exists; --force makes it anew with that size",
                ));
            }
            let new = match exists {
                true => None,
                false => {
                    Some(NewFile::create(image).map_err(|error| Failure::local(image, error))?)
                }
            };
            let made = FileDevice::create(image, size);
            let made = made.map_err(|error| Failure::new(super::failure::IMAGE, error))?;
            Ok((Arc::new(made), new))
        }
        None if !Operand::exists(image) && !image.is_dir() => {
            Err(Failure::local(image, "does not exist; --size makes it"))
        }
        _ => Ok((sapwood::image::open_device(image, false)?, None)),
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Fills the image; the number of files that could not be copied.
fn fill(image: &Path, source: &Path, quiet: bool) -> Result<u64> {
    copy::lift_file_limit();
    let bar = progress::items(quiet, "copied");
    let filled = sapwood::build::fill(image, source, &mut |step| copy::show(&bar, step));
    bar.finish_and_clear();
    filled
        .map(|report| report.left_out)
        .map_err(|error| match error {
            BuildError::Copy(error) => copy::failure(error),
            BuildError::FileSystem(error) => files::whole(image, error),
            error => Failure::new(FAILED, error),
        })
}

/// Owner and group of the root directory, unless it belongs to the superuser. An ordinary user
/// could not write to a mount of the image otherwise. What comes from a directory keeps its owners.
fn root_owner(args: &Args, options: &MkfsOptions) -> Option<(u32, u32)> {
    let caller = (rustix::process::geteuid(), rustix::process::getegid());
    let ordinary = !caller.0.is_root() && args.rootdir.is_none();
    options
        .root_owner()
        .or_else(|| ordinary.then(|| (caller.0.as_raw(), caller.1.as_raw())))
}

/// Fills the image from an archive. The root belongs to the owner given, else to the caller, unless
/// the archive has an entry for it.
fn extract(args: &Args, options: &MkfsOptions, archive: &Path) -> Result<()> {
    let reader = untar::open(archive)?;
    let (uid, gid, _) = owner::chosen(options.root_owner());
    within(FileSystem::open(&args.image)?, |fs| {
        fs.set_owner("/", Some(uid), Some(gid))?;
        fs.set_creator(uid, gid);
        untar::extract(fs, Path::new("/"), reader, archive, args.quiet || args.json)
    })
}

fn set_root_owner(image: &Path, uid: u32, gid: u32) -> Result<()> {
    let fs = FileSystem::open(image)?;
    let set = fs.set_owner("/", Some(uid), Some(gid));
    let closed = files::close(fs);
    set.map_err(|error| files::whole(image, error)).and(closed)
}
