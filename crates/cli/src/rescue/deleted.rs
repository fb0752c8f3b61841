//! `sapwood rescue deleted`: files of older states of a btrfs.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::SystemTime;

use sapwood::internal::rescue::Deleted;
use sapwood::vfs::Timestamp;
use serde_json::json;

use super::{Reading, failure, percent, scan, size};
use crate::failure::Result;
use crate::output::json::{Array, text};
use crate::{output, times};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Image
    pub(super) image: PathBuf,
    /// Only files that were changed at this time or later
    #[arg(long, value_name = "TIME", value_parser = times::parse)]
    since: Option<SystemTime>,
    /// Look at this many older states, the newest first
    #[arg(long, value_name = "N", default_value_t = 100)]
    states: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    reading: Reading,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let options = args.reading.options(None);
    let since = args.since.map(Timestamp::from);
    let mut array = args.json.then(Array::begin).transpose()?;
    let mut printed = Ok(());
    let listed = scan(args.quiet || args.json, |on_scan| {
        let each = &mut |file: Deleted| {
            if since.is_some_and(|since| file.mtime < since) {
                return ControlFlow::Continue(());
            }
            printed = print(args, &file, array.as_mut());
            match printed {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        };
        let image = &args.image;
        sapwood::internal::image::deleted(image, &options, args.states, on_scan, each)
            .map_err(failure)
    });
    Array::end_if_any(array, listed.and(printed))
}

fn print(args: &Args, file: &Deleted, array: Option<&mut Array>) -> Result<()> {
    let missing = file.size.saturating_sub(file.readable);
    let percent = percent(file.size, missing);
    // Nothing of an empty file is lost.
    let percent = if file.size == 0 { 100 } else { percent };
    if let Some(array) = array {
        let (path, path_bytes) = text(&file.path);
        return array.push(&json!({
            "generation": file.generation,
            "path": path,
            "path_bytes": path_bytes,
            "size": file.size,
            "mtime": times::json(file.mtime),
            "readable": file.readable,
            "percent": percent,
        }));
    }
    output::line(format!(
        "{}@{}:{}  {}, {}, {percent}% readable",
        args.image.display(),
        file.generation,
        output::name(&file.path),
        size(file.size),
        times::local_seconds(file.mtime),
    ))
}
