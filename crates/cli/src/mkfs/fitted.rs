//! A new image that is as large as its files need.

use sapwood::block::Operand;
use sapwood::resize::MOVING;
use sapwood::{BuiltImage, ImageBuilder, MkfsOptions, Progress, Sources};
use serde_json::json;

use super::super::failure::Result;
use super::super::{copy, output, progress};
use super::{Args, complete, failure};

/// Whether the image is new, and gets its size from what fills it.
pub(super) fn is_wanted(args: &Args, options: &MkfsOptions, sources: &Sources) -> bool {
    let new = !Operand::exists(&args.image) && !args.image.is_dir();
    options.size().is_none() && !sources.is_empty() && new
}

pub(super) fn run(args: &Args, options: MkfsOptions, sources: Sources) -> Result<()> {
    copy::lift_file_limit();
    let label = options.label().to_owned();
    let builder = ImageBuilder::with_options(options)
        .free(args.free)
        .free_inodes(args.free_inodes)
        .sources(sources);
    let bar = progress::items(args.quiet || args.json, "files");
    let built = builder.build(&args.image, &mut |step| match step {
        Progress::Done { phase, done } if phase == MOVING => {
            bar.set_message(MOVING);
            bar.set_position(done);
        }
        step => copy::show(&bar, step),
    });
    bar.finish_and_clear();
    let built = built.map_err(|error| failure(args, error))?;
    print(args, &label, &built)?;
    complete(args, built.left_out)
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
