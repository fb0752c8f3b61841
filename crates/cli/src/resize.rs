//! `sapwood resize`.

use std::path::PathBuf;

use sapwood::internal::ResizeError;
use sapwood::{NewSize, Progress};
use serde_json::json;

use super::failure::{FAILED, Failure, Result};
use super::{output, progress, times};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Image that nothing has mounted; the end of a partition (IMAGE#PART) moves if there is room
    pub(super) image: PathBuf,
    /// New size: bytes, or with k, M, G, T; +SIZE or -SIZE for a change; min for the smallest size
    #[arg(allow_hyphen_values = true)]
    size: NewSize,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let bar = progress::moved(args.quiet || args.json);
    let mut show = |step: Progress<'_>| {
        if let Progress::Done { done, .. } = step {
            bar.set_position(done);
        }
    };
    let resized = match times::source_date_epoch()? {
        Some(time) => sapwood::resize_reproducibly(&args.image, args.size, time, &mut show),
        None => sapwood::resize(&args.image, args.size, &mut show),
    };
    bar.finish_and_clear();
    let report = resized.map_err(|error| match error.downcast() {
        Ok(ResizeError::Open(error)) => error.into(),
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    })?;
    if args.json {
        return output::object(&json!({ "before": report.before, "after": report.after }));
    }
    if args.quiet {
        return Ok(());
    }
    let (image, size) = (args.image.display(), output::size(report.after));
    output::line(format!("{image}: {size} ({report})"))
}
