//! `sapwood mkdisk`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use sapwood::internal::options::parse_size;
use sapwood::internal::{BuildError, DiskError, partition_type, type_names};
use sapwood::{
    DiskBuilder, ImageBuilder, Kind, NewPartition, OutputFormat, PartitionContent, PartitionSize,
};

use super::failure::{FAILED, Failure, Result, USAGE};
use super::mkfs::content::ContentArgs;
use super::mkfs::{mkfs_failure, sources};
use super::{copy, files, interrupt, output, progress, times};

/// For `sapwood help mkdisk`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[(
    "sapwood mkdisk d.img --part esp:file=esp.img --part root:ext4:tar=r.tar",
    "a disk with two partitions",
)];

/// Each --part is NAME, a format or nothing, and fields, with colons between: esp:file=esp.img,
/// root:ext4:tar=root.tar:size=2G, swap:type=swap:size=512M. A colon in a value is written \:.
///
/// Fields: file= (the bytes of a file); rootdir=, tar=, oci=, overlay=, cpio= (the sources of mkfs,
/// applied in their order); all-root, uid-map=, gid-map=, exclude=, clamp-mtime, manifest=,
/// owner-from=, file-contexts=, subvol=, compress=, inode-flags=, dedupe, free=, free-inodes=
/// (options of mkfs); size=SIZE or size=rest; type=NAME or GUID [default: the name of the partition
/// if it names a type, else linux]; uuid= of the partition; label= of the file system; opt=NAME or
/// opt=NAME=VALUE, a further option of mkfs by its name without dashes.
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
    /// Size of the disk [default: as large as necessary]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// UUID of the disk; UUIDs of partitions and file systems derive from it [default: random]
    #[arg(short = 'U', long, value_name = "UUID", value_parser = uuid)]
    uuid: Option<[u8; 16]>,
    /// Make a disk that depends only on its contents: UUIDs derive from them unless -U is given,
    /// and the time is SOURCE_DATE_EPOCH, or the newest time of the sources of a partition
    #[arg(long)]
    reproducible: bool,
    /// Partitions begin at multiples of this
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1M")]
    align: u64,
    /// Format of the image: raw, qcow2, vhd, android-sparse, zstd
    #[arg(long, value_name = "FORMAT", default_value = "raw")]
    output_format: OutputFormat,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "bytes, or a number with k, M, G or T".to_owned())
}

fn uuid(text: &str) -> Result<[u8; 16], String> {
    // A GUID is also a type.
    let known = type_names().any(|name| name == text);
    let parsed = partition_type(text).filter(|_| !known);
    parsed.ok_or_else(|| "no UUID".to_owned())
}

pub(super) fn run(args: &Args) -> Result<()> {
    interrupt::abandon_new_files();
    files::refuse_stream(&args.image)?;
    copy::lift_file_limit();
    let mut builder = DiskBuilder::new()
        .replace(args.force)
        .alignment(args.align)
        .format(args.output_format);
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
    for part in &args.part {
        builder = builder.partition(partition(part)?);
    }
    let bar = progress::items(args.quiet, "files");
    let written = builder.write_with_progress(&args.image, &mut |step| copy::show(&bar, step));
    bar.finish_and_clear();
    written.map_err(failure)?;
    if args.quiet {
        Ok(())
    } else {
        let size = args.image.metadata().map_or(0, |found| found.len());
        let (image, count) = (args.image.display(), args.part.len());
        output::line(format!(
            "{image}: {count} partitions, {}",
            output::size(size)
        ))
    }
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

/// The parts of a text between colons; `\:` is a colon in one.
fn fields(text: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            ':' => fields.push(String::new()),
            other => {
                let escaped = other == '\\' && chars.peek() == Some(&':');
                let char = if escaped { chars.next() } else { Some(other) };
                if let (Some(field), Some(char)) = (fields.last_mut(), char) {
                    field.push(char);
                }
            }
        }
    }
    fields
}

fn partition(text: &str) -> Result<NewPartition> {
    let bad = |why: &str| Failure::new(USAGE, format_args!("--part {text}: {why}"));
    let mut parts = fields(text).into_iter();
    let mut made = NewPartition::default();
    made.name = parts.next().unwrap_or_default();
    made.kind = type_names()
        .find(|name| *name == made.name)
        .and_then(partition_type);
    let mut builder: Option<(ImageBuilder, Kind)> = None;
    let mut content = Vec::new();
    for field in parts {
        if let Ok(kind) = field.parse::<Kind>() {
            if builder.replace((ImageBuilder::new(kind), kind)).is_some() {
                return Err(bad("one format"));
            }
            continue;
        }
        let (name, value) = field.split_once('=').unwrap_or((&field, ""));
        let image = builder.take();
        let needs = || {
            if field.contains('=') {
                bad(&format!("{name}= needs a format before it"))
            } else {
                bad("formats are btrfs and ext4")
            }
        };
        match name {
            "size" if value == "rest" => made.size = PartitionSize::Rest,
            "size" => {
                let size = parse_size(value).ok_or_else(|| bad("size= is not a size"))?;
                made.size = PartitionSize::Bytes(size);
            }
            "type" => {
                let kind = partition_type(value);
                made.kind = Some(kind.ok_or_else(|| bad(&unknown_type(value)))?);
            }
            "uuid" => made.uuid = Some(uuid(value).map_err(|why| bad(&why))?),
            "file" => made.content = PartitionContent::File(value.into()),
            "label" => {
                let (image, kind) = image.ok_or_else(needs)?;
                builder = Some((image.label(value), kind));
                continue;
            }
            "opt" => {
                let (image, kind) = image.ok_or_else(needs)?;
                builder = Some((with_option(image, value)?, kind));
                continue;
            }
            _ => {
                builder = Some(image.ok_or_else(needs)?);
                content.push(field);
                continue;
            }
        }
        builder = image;
    }
    match (builder, &made.content) {
        (Some(_), PartitionContent::File(_)) => Err(bad("a file, or a format")),
        (Some((builder, kind)), _) => {
            let content = ContentArgs::of_fields(&content).map_err(|why| bad(&why))?;
            let filled = content.fill(builder, kind);
            let builder = filled.map_err(|failure| failure.about(format_args!("--part {text}")))?;
            made.content = PartitionContent::Image(Box::new(builder));
            Ok(made)
        }
        (None, _) => Ok(made),
    }
}

fn unknown_type(value: &str) -> String {
    let names: Vec<&str> = type_names().collect();
    format!(
        "unknown type {value}; a GUID, or one of {}",
        names.join(", ")
    )
}

/// The builder with an option of mkfs, `NAME` or `NAME=VALUE`.
fn with_option(builder: ImageBuilder, text: &str) -> Result<ImageBuilder> {
    let (option, value) = match text.split_once('=') {
        Some((option, value)) => (option, Some(value)),
        None => (text, None),
    };
    let set = builder.option(option, value);
    set.map_err(|error| Failure::new(USAGE, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_between_colons() {
        assert_eq!(fields("a:b=c"), ["a", "b=c"]);
        assert_eq!(fields(r"a:file=x\:y\z"), ["a", r"file=x:y\z"]);
        assert_eq!(fields(""), [""]);
    }

    #[test]
    fn a_partition_is_read() {
        let made = partition("esp:size=3M:uuid=11111111-2222-3333-4444-555555555555").unwrap();
        assert_eq!(
            made.kind,
            partition_type("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
        );
        assert_eq!(
            (made.size, made.uuid.unwrap()[0]),
            (PartitionSize::Bytes(3 << 20), 0x11)
        );
        assert!(matches!(made.content, PartitionContent::Empty));
        let made = partition("x:ext4:label=l:opt=inode-size=512:type=home:size=rest").unwrap();
        assert_eq!(made.kind, partition_type("home"));
        assert!(matches!(made.content, PartitionContent::Image(_)));
        let sources = ["rootdir", "tar", "oci", "layer", "overlay", "cpio"];
        for source in sources.map(|name| format!("x:btrfs:{name}=y")) {
            let made = partition(&source).unwrap();
            assert!(
                matches!(made.content, PartitionContent::Image(_)),
                "{source}"
            );
        }
        let stored =
            "x:btrfs:rootdir=y:subvol=ro\\:a:compress=zstd\\:3=*.c:dedupe:all-root:free=5%";
        assert!(partition(stored).is_ok());
        for wrong in [
            "x:xfs",
            "x:ext4:dedupe",
            "x:btrfs:dedupe=yes",
            "x:btrfs:free=much",
            "x:btrfs:compress",
            "x:all-root:ext4",
            "x:size=y",
            "x:type=y",
            "x:uuid=esp",
            "x:label=y",
            "x:turbo=1",
            "x:ext4:btrfs",
            "x:ext4:file=y",
            "x:ext4:opt=turbo",
            "x:tar=y",
            "x:ext4:turbo=1",
        ] {
            assert!(partition(wrong).is_err(), "{wrong}");
        }
    }
}
