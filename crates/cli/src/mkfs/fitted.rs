//! A new image that is as large as its files need, or is in a format of its own.

use std::sync::Arc;

use sapwood::block::{Device, FileDevice, OpenOptions, Operand};
use sapwood::output::CONVERTING;
use sapwood::resize::MOVING;
use sapwood::storage::ARRANGING;
use sapwood::{BuiltImage, ImageBuilder, MkfsOptions, OutputFormat, Progress, Sources};
use serde_json::json;

use super::super::failure::{Failure, IMAGE, Result};
use super::super::{copy, output, progress};
use super::{Args, complete, failure};

/// Phases that are named while they run.
const OWN_PHASES: [&str; 3] = [ARRANGING, MOVING, CONVERTING];

/// Whether the image is new, and gets its size from what fills it.
pub(super) fn is_wanted(args: &Args, options: &MkfsOptions, sources: &Sources) -> bool {
    if args.output_format != OutputFormat::Raw {
        return true;
    }
    let new = !Operand::exists(&args.image) && !args.image.is_dir();
    options.size().is_none() && !sources.is_empty() && new
}

pub(super) fn run(args: &Args, options: MkfsOptions, sources: Sources) -> Result<()> {
    let old = replaced(args, &options)?;
    copy::lift_file_limit();
    let label = options.label().to_owned();
    let builder = ImageBuilder::with_options(options)
        .free(args.content.free)
        .free_inodes(args.content.free_inodes)
        .format(args.output_format)
        .sources(sources);
    let bar = progress::items(args.quiet || args.json, "files");
    let built = builder.build(&args.image, &mut |step| match step {
        Progress::Done { phase, done } if OWN_PHASES.contains(&phase) => {
            bar.set_message(phase);
            bar.set_position(done);
        }
        step => copy::show(&bar, step),
    });
    bar.finish_and_clear();
    drop(old);
    let built = built.map_err(|error| failure(args, error))?;
    print(args, &label, &built)?;
    complete(args, built.left_out)
}

/// The file that the image replaces, locked. Only `--force` replaces one.
fn replaced(args: &Args, options: &MkfsOptions) -> Result<Option<Arc<dyn Device>>> {
    let image = &args.image;
    if Operand::is_fixed(image) || (image.exists() && !image.is_file()) {
        let format = args.output_format;
        return Err(Failure::local(
            image,
            format_args!("{format} is for a new file"),
        ));
    }
    if !image.exists() {
        return Ok(None);
    }
    if !options.forced() {
        return Err(Failure::local(image, "exists; --force makes it anew"));
    }
    let old = FileDevice::open(image, OpenOptions::default());
    let old = old.map_err(|error| Failure::new(IMAGE, error))?;
    Ok(Some(Arc::new(old)))
}

fn print(args: &Args, label: &str, built: &BuiltImage) -> Result<()> {
    let (kind, uuid) = (args.kind, output::uuid(&built.report.uuid()));
    if args.json {
        return output::object(&json!({
            "kind": kind.name(), "uuid": uuid, "label": label, "size": built.size,
        }));
    }
    if args.quiet {
        return Ok(());
    }
    let (image, size) = (args.image.display(), output::size(built.size));
    output::line(format!("{image}: {kind}, {size}, uuid {uuid}"))
}
