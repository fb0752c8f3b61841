//! An image in a new file.

use sapwood::block::{DiskFormat, Operand};
use sapwood::internal::{ADAPTING, ARRANGING, CONVERTING, ENCRYPTING, HASHING, MOVING};
use sapwood::luks::FormatOptions;
use sapwood::{BuiltImage, ImageBuilder, Kind, MkfsOptions, OutputFormat, Progress, Sources};
use serde_json::json;

use super::super::failure::{Failure, Result, USAGE};
use super::super::{choice, copy, output, progress, verity};
use super::like::Older;
use super::{Args, complete, failure};

/// Phases that are named while they run.
const OWN_PHASES: [&str; 6] = [ADAPTING, ARRANGING, MOVING, ENCRYPTING, HASHING, CONVERTING];

/// Whether the image goes into a new file: it has a size or a format of its own, or its size
/// depends on its sources. Devices, partitions and exports are used in place.
pub(super) fn is_wanted(args: &Args, options: &MkfsOptions, sources: &Sources) -> bool {
    if args.output_format != OutputFormat::Raw {
        return true;
    }
    let exists = Operand::exists(&args.image) || args.image.is_dir();
    match options.size() {
        Some(_) => !Operand::is_fixed(&args.image) && (!exists || args.image.is_file()),
        None => !sources.is_empty() && !exists,
    }
}

pub(super) fn run(
    args: &Args,
    options: MkfsOptions,
    sources: Sources,
    like: Option<Older>,
) -> Result<()> {
    check(args, &options)?;
    copy::lift_file_limit();
    let mut builder = ImageBuilder::with_options(options.clone())
        .replace(options.forced())
        .free(args.content.free)
        .free_inodes(args.content.free_inodes)
        .format(args.output_format)
        .sources(sources);
    if let Some(older) = &like {
        builder = builder.like(&older.path);
    }
    if let Some(key) = choice::new_key()? {
        if args.reproducible {
            let why = "an encrypted image differs each time, so it is not --reproducible";
            return Err(Failure::new(USAGE, why));
        }
        if args.verity.is_some() {
            let why = "--verity and a key exclude each other";
            return Err(Failure::new(USAGE, why));
        }
        builder = builder.encrypted(key, FormatOptions::default());
    }
    if let Some(hashes) = &args.verity {
        builder = builder.verity(hashes, verity::params(options.time().is_some()));
    }
    let bar = progress::items(args.quiet || args.json, "files");
    let built = builder.build(&args.image, &mut |step| match step {
        Progress::Done { phase, done } if OWN_PHASES.contains(&phase) => {
            bar.set_message(phase);
            bar.set_position(done);
        }
        step => copy::show(&bar, step),
    });
    bar.finish_and_clear();
    let built = built.map_err(|error| failure(args, error))?;
    if let (Some(file), Some(root)) = (&args.root_hash_file, &built.root_hash) {
        verity::write_root_hash(file, root)?;
    }
    let shown = like
        .as_ref()
        .map(|older| (older.kind, older.label.as_str()));
    match (shown, options.size()) {
        (Some(shown), _) => print(args, shown, &built)?,
        (None, Some(_)) => super::print(args, &options, &built.report, built.root_hash.as_ref())?,
        (None, None) => print(args, (args.kind(), options.label()), &built)?,
    }
    complete(args, built.left_out)
}

/// Refuses operands that are not new files, and a disk in a qcow2 file that `--size` would replace.
fn check(args: &Args, options: &MkfsOptions) -> Result<()> {
    let (image, format) = (&args.image, args.output_format);
    if Operand::is_fixed(image) || (image.exists() && !image.is_file()) {
        let why = match args.like {
            Some(_) => "--like is for a new file".to_owned(),
            None => format!("{format} is for a new file"),
        };
        return Err(Failure::local(image, why));
    }
    if format != OutputFormat::Raw || !options.forced() || !image.exists() {
        return Ok(());
    }
    let old = sapwood::internal::image::open_device(image, false)?;
    match old.format() {
        DiskFormat::Qcow2 => {
            let why = "is a qcow2 file; without --size its disk is used, and --output-format \
                       qcow2 makes it anew";
            Err(Failure::local(image, why))
        }
        _ => Ok(()),
    }
}

fn print(args: &Args, (kind, label): (Kind, &str), built: &BuiltImage) -> Result<()> {
    let uuid = output::uuid(&built.report.uuid());
    if args.json {
        let mut object = json!({
            "kind": kind.name(), "uuid": uuid, "label": label, "size": built.size,
        });
        if let Some(root) = &built.root_hash {
            object["root_hash"] = root.to_string().into();
        }
        return output::object(&object);
    }
    if args.quiet {
        return Ok(());
    }
    let (image, size) = (args.image.display(), output::size(built.size));
    output::line(format!("{image}: {kind}, {size}, uuid {uuid}"))?;
    super::print_root_hash(built.root_hash.as_ref())
}
