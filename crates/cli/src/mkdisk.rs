//! `sapwood mkdisk`.

mod part;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sapwood::block::partition::Scheme;
use sapwood::internal::{BuildError, DiskError};
use sapwood::{BuiltDisk, DiskBuilder, OutputFormat};
use serde_json::{Value, json};

use super::failure::{FAILED, Failure, Result};
use super::mkfs::{mkfs_failure, sources};
use super::sizes::size;
use super::{copy, files, interrupt, output, progress, times, verity};
use part::{fields, partition, uuid};

/// For `sapwood help mkdisk`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood mkdisk d.img --part esp:fat:rootdir=esp --part root:ext4:tar=r.tar",
        "an EFI system partition and a root file system",
    ),
    (
        "sapwood mkdisk d.img --part esp:file=esp.img --part swap:swap:size=512M",
        "the bytes of a file, and swap space",
    ),
    (
        "sapwood mkdisk d.img --part root:ext4:tar=r.tar:verity",
        "with its hash tree in the partition root-verity",
    ),
    (
        "sapwood mkdisk d.img --part root:btrfs:rootdir=r:luks=root.key",
        "an encrypted partition",
    ),
    (
        "sapwood mkdisk --from d1.img d2.img --part root:ext4:tar=r.tar",
        "a copy of d1.img with another root file system",
    ),
    (
        "sapwood mkdisk --table mbr d.img --part boot:fat:rootdir=boot:boot",
        "a partition table of the BIOS",
    ),
];

/// Each --part is NAME, a format or nothing, and fields, with colons between: esp:fat:rootdir=esp,
/// root:ext4:tar=root.tar:size=2G, swap:swap:size=512M. A colon in a value is written \:. Formats:
/// btrfs, ext4, fat (fat12, fat16, fat32), swap.
///
/// Fields: file= (the bytes of a file); rootdir=, tar=, oci=, overlay=, cpio=, at= (the sources of
/// mkfs, applied in their order); all-root, uid-map=, gid-map=, exclude=, clamp-mtime, manifest=,
/// owner-from=, file-contexts=, subvol=, compress=, inode-flags=, dedupe, free=, free-inodes=
/// (options of mkfs); size=SIZE or size=rest; type=NAME or GUID, in an MBR also two hexadecimal
/// digits [default: the name of the partition if it names a type, else what its format says]; uuid=
/// of the partition; label= of the file system; boot (for a BIOS); opt=NAME or opt=NAME=VALUE, a
/// further option of mkfs by its name without dashes; luks=KEYFILE, to encrypt the partition;
/// verity or verity=NAME, a hash tree in the partition NAME; root-hash-file=FILE; verity-key=FILE and
/// verity-cert=FILE (PEM), to sign the root hash with the program openssl, in the partition
/// NAME-verity-sig; verity-sig=FILE and fingerprint=SHA256, a signature (PKCS#7) that was made
/// elsewhere, and its certificate.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Disk image, a new file
    #[arg(value_name = "FILE")]
    image: PathBuf,
    /// Replace a file of that name, if it is not in use
    #[arg(short, long)]
    force: bool,
    /// NAME[:FORMAT][:FIELD=VALUE...], in the order of the disk; can be given several times
    #[arg(short, long, value_name = "PARTITION", required = true)]
    part: Vec<String>,
    /// Copy this disk, an image or device, and replace the contents of the partitions, which are
    /// named by their names or numbers there and keep their places, sizes and types
    #[arg(long, value_name = "DISK", conflicts_with_all = ["size", "table", "align"])]
    from: Option<PathBuf>,
    /// Size of the disk [default: as large as necessary]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// UUID of the disk; UUIDs of partitions and file systems derive from it [default: random]. With
    /// --from, only UUIDs of new file systems derive from it
    #[arg(short = 'U', long, value_name = "UUID", value_parser = uuid)]
    uuid: Option<[u8; 16]>,
    /// Make a disk that depends only on its contents: UUIDs derive from them unless -U is given,
    /// and the time is SOURCE_DATE_EPOCH, or the newest time of the sources of a partition
    #[arg(long)]
    reproducible: bool,
    /// Partition table: gpt, or mbr with at most four partitions, which have no names in it
    #[arg(long, value_name = "KIND", value_parser = scheme, default_value = "gpt")]
    table: Scheme,
    /// Partitions begin at multiples of this
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1M")]
    align: u64,
    /// Format of the image: raw, qcow2, vhd, android-sparse, zstd
    #[arg(long, value_name = "FORMAT", default_value = "raw")]
    output_format: OutputFormat,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON: the partitions with their places, UUIDs and root hashes
    #[arg(long)]
    json: bool,
}

fn scheme(text: &str) -> Result<Scheme, String> {
    match text {
        "gpt" => Ok(Scheme::Gpt),
        "mbr" => Ok(Scheme::Mbr),
        _ => Err("tables are gpt and mbr".to_owned()),
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    interrupt::abandon_new_files();
    files::refuse_stream(&args.image)?;
    copy::lift_file_limit();
    let mut builder = DiskBuilder::new()
        .replace(args.force)
        .alignment(args.align)
        .scheme(args.table)
        .format(args.output_format);
    if let Some(from) = &args.from {
        if files::same_file(from, &args.image) {
            return Err(Failure::local(from, "the new disk needs another name"));
        }
        builder = builder.from(from);
    }
    if let Some(size) = args.size {
        builder = builder.size(size);
    }
    if let Some(uuid) = args.uuid {
        builder = builder.uuid(uuid);
    }
    if let Some(time) = times::source_date_epoch()? {
        builder = builder.time(time);
    }
    if args.reproducible {
        builder = builder.reproducible();
    }
    let all = args.part.iter().map(|part| fields(part));
    let stdin = all.flatten().filter(|field| {
        let field = field.split_once('=');
        field.is_some_and(|(name, value)| sources::is_stdin(name, OsStr::new(value)))
    });
    sources::check_stdin(stdin.count())?;
    let mut root_hash_files = Vec::new();
    for text in &args.part {
        let part = partition(text)?;
        let name = part.made.name.clone();
        root_hash_files.extend(part.root_hash_file.map(|file| (name, file)));
        let mut made = part.made;
        if args.from.is_some() && !part.has_type {
            made.kind = None;
        }
        builder = builder.partition(made);
    }
    let bar = progress::items(args.quiet || args.json, "files");
    let built = builder.build(&args.image, &mut |step| copy::show(&bar, step));
    bar.finish_and_clear();
    let built = built.map_err(failure)?;
    for (name, file) in root_hash_files {
        let part = built.partitions.iter().find(|part| part.name == name);
        if let Some(root) = part.and_then(|part| part.root_hash.as_ref()) {
            verity::write_root_hash(&file, root)?;
        }
    }
    if args.json {
        output::object(&described(&built))
    } else if args.quiet {
        Ok(())
    } else {
        print(args, &built)
    }
}

fn print(args: &Args, built: &BuiltDisk) -> Result<()> {
    let size = args.image.metadata().map_or(0, |found| found.len());
    let (image, count) = (args.image.display(), built.partitions.len());
    let what = match (&args.from, count) {
        (None, _) => format!("{count} partitions"),
        (Some(from), 1) => format!("{} with 1 partition replaced", from.display()),
        (Some(from), _) => format!("{} with {count} partitions replaced", from.display()),
    };
    output::line(format!("{image}: {what}, {}", output::size(size)))?;
    for part in &built.partitions {
        if let Some(root) = &part.root_hash {
            output::line(format_args!("root hash of {}: {root}", part.name))?;
        }
    }
    Ok(())
}

/// The disk as JSON.
fn described(built: &BuiltDisk) -> Value {
    let partitions = built.partitions.iter().map(|part| {
        let mut object = json!({
            "name": part.name, "offset": part.start, "length": part.len,
            "type": output::uuid(&part.kind), "uuid": output::uuid(&part.uuid),
        });
        if let Some(root) = &part.root_hash {
            object["root_hash"] = root.to_string().into();
        }
        object
    });
    json!({
        "table": built.scheme.to_string().to_lowercase(),
        "uuid": output::uuid(&built.uuid),
        "size": built.size,
        "partitions": partitions.collect::<Vec<_>>(),
    })
}

/// The failure of a disk image, with sizes as people write them.
fn failure(error: sapwood::Error) -> Failure {
    let human = output::human;
    let error = match error.downcast() {
        Ok(error) => error,
        Err(error) => return error.into(),
    };
    match error {
        DiskError::NewFile(error) => error.into(),
        DiskError::TooLarge {
            name,
            content,
            size,
        } => {
            let (content, size) = (human(content), human(size));
            let why = format_args!("{content} do not fit into {size}");
            Failure::on(format_args!("partition {name}"), why)
        }
        DiskError::Full { needed, size } => {
            let (needed, size) = (human(needed), human(size));
            let line = format_args!("{needed} are needed, and the disk has {size}");
            Failure::new(FAILED, line)
        }
        DiskError::Build { name, source } => match *source {
            BuildError::Mkfs(error) => {
                let failure = mkfs_failure(Path::new("file system"), &error);
                failure.about(format_args!("partition {name}"))
            }
            source => Failure::on(format_args!("partition {name}"), source),
        },
        error => Failure::new(FAILED, error),
    }
}
