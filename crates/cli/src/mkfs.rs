//! `sapwood mkfs`.

pub(crate) mod content;
mod fitted;
mod given;
mod new_file;
pub(crate) mod sources;
mod storage;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood::block::{Device, DiskFormat, FileDevice, OpenOptions, Operand};
use sapwood::copy::Place;
use sapwood::mkfs::{MkfsReport, table};
use sapwood::{BuildError, FileSystem, Kind, MkfsOptions, Options, OutputFormat, Sources};
use serde_json::{Value, json};

use super::failure::{FAILED, Failure, Result, USAGE};
use super::files;
use super::progress::{self, Holes};
use super::{choice, copy, output, times};
use content::ContentArgs;
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
    #[command(flatten)]
    content: ContentArgs,
    /// Make an image that depends on the sources and the options alone: the UUID derives from them
    /// unless -U is given, and the time is SOURCE_DATE_EPOCH, or the newest time of the sources
    #[arg(long)]
    reproducible: bool,
    /// Format of the image, which is a new file: raw, qcow2, vhd, android-sparse, zstd
    #[arg(long, value_name = "FORMAT", default_value = "raw")]
    output_format: OutputFormat,
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
    if let Some(time) = times::source_date_epoch()? {
        options.set_time(time);
    }
    for (option, value) in &args.given.0 {
        let taken = option.take(&mut options, value.as_deref());
        taken.map_err(|error| Failure::new(USAGE, error))?;
    }
    let mut sources = args.content.sources(args.kind)?;
    if args.reproducible {
        let made = sapwood::build::make_reproducible(&mut options, &mut sources);
        made.map_err(|error| failure(args, error))?;
    }
    if let Some(time) = options.time() {
        sources.set_time(time);
    }
    if fitted::is_wanted(args, &options, &sources) {
        return fitted::run(args, options, sources);
    }
    let (device, new) = device(&args.image, &options)?;
    let whole = !is_device(&args.image);
    let made = sapwood::mkfs::mkfs(&*device, &args.image, &options, whole);
    let made = made.map_err(|error| Failure::new(FAILED, error))?;
    drop(device);
    let file = new.as_ref().map_or(args.image.as_path(), NewFile::path);
    let missing = match sources.is_empty() {
        false => fill(args, file, &sources, &options)?,
        true => {
            if let Some((uid, gid)) = root_owner(&options) {
                set_root_owner(file, uid, gid)?;
            }
            0
        }
    };
    if let Some(new) = new {
        let kept = new.keep();
        kept.map_err(|error| Failure::local(&args.image, error))?;
    }
    print(args, &options, &made)?;
    complete(args, missing)
}

/// Fails if something could not be copied.
fn complete(args: &Args, missing: u64) -> Result<()> {
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

/// The device to make it on. A file is made anew if a size is given; it gets its name when it is
/// complete.
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
            // A file that is in use is not replaced.
            let old = match exists {
                true => Some(sapwood::image::open_device(image, false)?),
                false => None,
            };
            if old
                .as_ref()
                .is_some_and(|old| old.format() != DiskFormat::Raw)
            {
                let why = "is a qcow2 file; without --size its disk is used, and --output-format \
                           qcow2 makes it anew";
                return Err(Failure::local(image, why));
            }
            let new = NewFile::beside(image, old).map_err(|error| Failure::local(image, error))?;
            // Not created once more: a signal may have removed it.
            let opened = FileDevice::open(new.path(), OpenOptions::default());
            let made = opened.and_then(|device| device.grow(size).map(|()| device));
            let made = made.map_err(|error| Failure::new(super::failure::IMAGE, error))?;
            Ok((Arc::new(made), Some(new)))
        }
        None if !Operand::exists(image) && !image.is_dir() => {
            let why = "does not exist; --size makes it, and files make it as large as needed";
            Err(Failure::local(image, why))
        }
        _ => Ok((sapwood::image::open_device(image, false)?, None)),
    }
}

fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Fills the image in `file`; the number of files that could not be copied.
fn fill(args: &Args, file: &Path, sources: &Sources, options: &MkfsOptions) -> Result<u64> {
    copy::lift_file_limit();
    let mut bar = progress::Files::new(args.quiet || args.json, "copied");
    if let Some(directory) = args.content.sources.only_directory() {
        bar.measure(&[Place::host(directory)], Holes::AreLeftOut);
    }
    let filled = sapwood::build::fill(
        file,
        &args.image,
        sources,
        options.root_owner(),
        &mut |step| bar.show(step),
    );
    bar.end();
    filled
        .map(|report| report.left_out)
        .map_err(|error| failure(args, error))
}

fn failure(args: &Args, error: BuildError) -> Failure {
    match error {
        BuildError::Copy(error) => copy::failure(error),
        BuildError::FileSystem(error) => files::whole(&args.image, error),
        error => Failure::new(FAILED, error),
    }
}

/// Owner and group of the root directory of an empty image, unless it belongs to the superuser. An
/// ordinary user could not write to a mount of the image otherwise. An image that does not depend
/// on who makes it belongs to the superuser.
fn root_owner(options: &MkfsOptions) -> Option<(u32, u32)> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let fixed = options.time().is_some();
    let caller = (!uid.is_root() && !fixed).then(|| (uid.as_raw(), gid.as_raw()));
    options.root_owner().or(caller)
}

fn set_root_owner(image: &Path, uid: u32, gid: u32) -> Result<()> {
    let fs = FileSystem::open_with_options(image, &choice::fixed(Options::new())?)?;
    let set = fs.set_owner("/", Some(uid), Some(gid));
    let closed = files::close(fs);
    set.map_err(|error| files::whole(image, error)).and(closed)
}
