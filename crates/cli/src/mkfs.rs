//! `sapwood mkfs`.

pub(crate) mod content;
mod given;
mod like;
mod new;
mod several;
pub(crate) mod sources;
mod storage;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood::block::{Device, Operand};
use sapwood::internal::{BuildError, MkfsError, MkfsReport, mkfs_table};
use sapwood::verity::RootHash;
use sapwood::{FileSystem, Kind, MkfsOptions, Options, OutputFormat, Place, Sources};
use serde_json::{Value, json};

use super::failure::{FAILED, Failure, Result, USAGE};
use super::files;
use super::progress::{self, Holes};
use super::{choice, copy, interrupt, output, times};
use content::ContentArgs;
use given::Given;

/// For `sapwood help mkfs`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    ("sapwood mkfs --size 10G disk.img", "a new btrfs"),
    (
        "sapwood mkfs --size 10G -d raid1 a.img b.img",
        "a btrfs with two copies on two devices",
    ),
    (
        "sapwood mkfs -t ext4 --size 2G -r tree/ root.img",
        "an ext4 with the files of tree/",
    ),
    (
        "sapwood mkfs --oci debian.tar --at /srv -r site disk.img",
        "site/ in the directory /srv of it",
    ),
    (
        "sapwood mkfs --free 20% -r tree/ small.img",
        "as large as the files need, and a fifth more",
    ),
    (
        "sapwood mkfs -t ext4 --reproducible --tar root.tar root.img",
        "the same bytes for the same archive",
    ),
    (
        "sapwood mkfs --like v1.img -r tree/ v2.img",
        "with the blocks of v1.img, for a small delta",
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image file (created if missing) or block device; IMAGE#N is its partition N,
    /// nbd://HOST/EXPORT an export of an NBD server
    #[arg(value_name = "IMAGE")]
    pub(super) image: PathBuf,
    /// Further devices of a btrfs over several, each named as IMAGE is
    #[arg(value_name = "DEVICE")]
    others: Vec<PathBuf>,
    /// Kind of file system: btrfs, ext4 [default: btrfs, or the kind of --like]
    #[arg(short = 't', long = "type", value_name = "KIND")]
    kind: Option<Kind>,
    #[command(flatten)]
    content: ContentArgs,
    /// Make an image that depends on the sources and the options alone: the UUID derives from them
    /// unless -U is given, and the time is SOURCE_DATE_EPOCH, or the newest time of the sources
    #[arg(long)]
    reproducible: bool,
    /// Keep inode numbers, blocks, UUID and label of this older image, and change only what differs,
    /// so that a delta of the two is small; implies --reproducible. IMAGE is a new file, as large
    /// as OLD unless --size is given
    #[arg(long, value_name = "OLD", conflicts_with = "free")]
    like: Option<PathBuf>,
    /// Format of the image, which is a new file: raw, qcow2, vhd, android-sparse, zstd
    #[arg(long, value_name = "FORMAT", default_value = "raw")]
    output_format: OutputFormat,
    #[command(flatten)]
    given: Given,
    /// Write the hash tree of dm-verity of the image, which is a new file, to this file, and print
    /// its root hash
    #[arg(long, value_name = "HASHES")]
    verity: Option<PathBuf>,
    /// Also write the root hash to a file
    #[arg(long, value_name = "FILE", requires = "verity")]
    root_hash_file: Option<PathBuf>,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn kind(&self) -> Kind {
        self.kind.unwrap_or(Kind::Btrfs)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct OptionsArgs {
    /// Print the page docs/mkfs-options.md
    #[arg(long)]
    markdown: bool,
}

impl OptionsArgs {
    pub(super) fn page(&self) -> String {
        if self.markdown {
            mkfs_table::as_markdown()
        } else {
            mkfs_table::as_text()
        }
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let like = args.like.as_deref().map(|old| like::Older::find(args, old));
    let like = like.transpose()?;
    let kind = like.as_ref().map_or_else(|| args.kind(), |old| old.kind);
    let mut options = MkfsOptions::new(kind);
    if let Some(time) = times::source_date_epoch()? {
        options.set_time(time);
    }
    for (option, value) in &args.given.0 {
        let taken = option.take(&mut options, value.as_deref());
        taken.map_err(|error| Failure::new(USAGE, error))?;
    }
    let mut sources = args.content.sources(kind)?;
    if like.is_some() && sources.is_empty() {
        let why = "--like needs a source, such as --rootdir";
        return Err(Failure::new(USAGE, why));
    }
    let wanted = like.is_some() || new::is_wanted(args, &options, &sources);
    let new = args.others.is_empty() && wanted;
    if !new && args.verity.is_some() {
        let why = "--verity is for a new file; `sapwood verity format` makes the tree of another \
                   image";
        return Err(Failure::new(USAGE, why));
    }
    if !args.others.is_empty() {
        return several::run(args, &options, &sources);
    }
    if new && let Some(dir) = args.image.parent().filter(|dir| *dir != Path::new("")) {
        sources.keep_in(dir);
    }
    if args.reproducible || like.is_some() {
        let made = sapwood::internal::make_reproducible(&mut options, &mut sources);
        made.map_err(|error| failure(args, error))?;
    }
    if let Some(time) = options.time() {
        sources.set_time(time);
    }
    interrupt::abandon_new_files();
    files::refuse_stream(&args.image)?;
    if new {
        return new::run(args, options, sources, like);
    }
    in_place(args, &options, &sources)
}

/// Makes the file system on a device, a partition or an export, or in a file that keeps its size.
fn in_place(args: &Args, options: &MkfsOptions, sources: &Sources) -> Result<()> {
    let image = &args.image;
    if options.is_journal_device() && !sources.is_empty() {
        return Err(Failure::local(image, "a journal device has no files"));
    }
    let device = open(image)?;
    let made = sapwood::internal::mkfs(&*device, image, options, false);
    let made = made.map_err(|error| mkfs_failure(image, &error))?;
    let missing = if !sources.is_empty() {
        fill(args, &device, sources, options)?
    } else {
        if let Some(owner) = root_owner(options).filter(|_| !options.is_journal_device()) {
            set_root_owner(device, image, options, owner)?;
        }
        0
    };
    print(args, options, &made, None)?;
    complete(args, missing)
}

/// Opens a device, partition, export or file that exists.
fn open(image: &Path) -> Result<Arc<dyn Device>> {
    if !Operand::exists(image) && !image.is_dir() {
        let why = "does not exist; --size creates it, and a source such as --rootdir creates it as large as needed";
        return Err(Failure::local(image, why));
    }
    let device = sapwood::internal::image::open_device(image, false)?;
    let key = choice::new_key()?;
    Ok(sapwood::internal::image::decrypted(
        image,
        device,
        key.as_ref(),
    )?)
}

/// A new device with a key among several: only an existing volume has a place for it.
fn not_encrypted(image: &Path) -> Failure {
    Failure::local(
        image,
        "`sapwood luks format` makes an encrypted volume first",
    )
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

fn print(
    args: &Args,
    options: &MkfsOptions,
    made: &MkfsReport,
    root: Option<&RootHash>,
) -> Result<()> {
    let (uuid, size) = (output::uuid(&made.uuid()), made.size());
    if args.json {
        let mut object = json!({
            "kind": args.kind().name(), "uuid": uuid, "label": options.label(), "size": size,
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
        if let Some(root) = root {
            object["root_hash"] = root.to_string().into();
        }
        output::object(&object)?;
    } else if !args.quiet {
        let (image, size) = (args.image.display(), output::size(size));
        output::line(format!("{image}: {}, {size}, uuid {uuid}", args.kind()))?;
        print_root_hash(root)?;
    }
    Ok(())
}

fn print_root_hash(root: Option<&RootHash>) -> Result<()> {
    root.map_or(Ok(()), |root| {
        output::line(format_args!("root hash: {root}"))
    })
}

/// Fills the image on a device; the number of files that could not be copied.
fn fill(
    args: &Args,
    device: &Arc<dyn Device>,
    sources: &Sources,
    options: &MkfsOptions,
) -> Result<u64> {
    copy::lift_file_limit();
    let mut bar = progress::Files::new(args.quiet || args.json, "copied", copy::show);
    if let Some(directory) = args.content.sources.only_directory() {
        bar.measure(&[Place::host(directory)], Holes::AreLeftOut);
    }
    let filled = sapwood::internal::fill(
        device,
        &args.image,
        sources,
        options,
        options.root_owner(),
        &mut |step| bar.show(step),
    );
    bar.end();
    filled
        .map(|report| report.left_out)
        .map_err(|error| failure(args, error))
}

/// The failure of mkfs, with sizes as people write them.
pub(super) fn mkfs_failure(image: &Path, error: &MkfsError) -> Failure {
    use sapwood::internal::btrfs::mkfs::MkfsError as Btrfs;
    use sapwood::internal::ext4::mkfs::MkfsError as Ext4;

    enum Cause {
        Occupied,
        Small(u64),
        Large(u64, u64),
        Other,
    }
    let cause = match error {
        MkfsError::Btrfs { source, .. } => match **source {
            Btrfs::Occupied { .. } => Cause::Occupied,
            Btrfs::TooSmall { minimum, .. } => Cause::Small(minimum),
            Btrfs::PastEnd { size, wanted, .. } => Cause::Large(size, wanted),
            _ => Cause::Other,
        },
        MkfsError::Ext4 { source, .. } => match **source {
            Ext4::Occupied { .. } => Cause::Occupied,
            Ext4::PastEnd { size, wanted, .. } => Cause::Large(size, wanted),
            _ => Cause::Other,
        },
        _ => Cause::Other,
    };
    let human = output::human;
    match cause {
        Cause::Occupied => Failure::new(FAILED, error).advise("that is -f"),
        Cause::Small(least) => {
            let why = format_args!("too small for these options: at least {}", human(least));
            Failure::local(image, why)
        }
        Cause::Large(size, wanted) => {
            let (size, wanted) = (human(size), human(wanted));
            let why = format_args!("has only {size}, and {wanted} was asked for");
            Failure::local(image, why)
        }
        Cause::Other => Failure::new(FAILED, error),
    }
}

fn failure(args: &Args, error: impl Into<sapwood::Error>) -> Failure {
    match error.into().downcast() {
        Ok(BuildError::Copy(error)) => copy::failure(error),
        Ok(BuildError::FileSystem(error)) => files::whole(&args.image, error),
        Ok(BuildError::NewFile(error)) => error.into(),
        Ok(BuildError::Mkfs(error)) => mkfs_failure(&args.image, &error),
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    }
}

/// Owner and group of the root directory of an empty image; `None` for root. An ordinary user could
/// not write to a mount of the image otherwise. A reproducible image belongs to root.
fn root_owner(options: &MkfsOptions) -> Option<(u32, u32)> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let fixed = options.time().is_some();
    let caller = (!uid.is_root() && !fixed).then(|| (uid.as_raw(), gid.as_raw()));
    options.root_owner().or(caller)
}

fn set_root_owner(
    device: Arc<dyn Device>,
    image: &Path,
    options: &MkfsOptions,
    (uid, gid): (u32, u32),
) -> Result<()> {
    let opening = options.opening(choice::fixed(Options::new())?);
    let fs = FileSystem::open_on(device, image, &opening)?;
    set_owner(fs, image, uid, gid)
}

fn set_owner(fs: FileSystem, image: &Path, uid: u32, gid: u32) -> Result<()> {
    let set = fs.set_owner("/", Some(uid), Some(gid));
    let closed = files::close(fs);
    set.map_err(|error| files::whole(image, error)).and(closed)
}
