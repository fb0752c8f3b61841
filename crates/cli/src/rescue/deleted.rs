//! `sapwood rescue deleted`: files of older states of a btrfs, and of the journal of an ext4.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::SystemTime;

use sapwood::DeletedFiles;
use sapwood::internal::rescue::{Deleted, NameSource};
use serde_json::json;

use super::{Reading, failure, percent, scan, size};
use crate::failure::Result;
use crate::output::json::{Array, text};
use crate::{output, times};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Image
    pub(super) image: PathBuf,
    #[command(flatten)]
    wanted: Wanted,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    reading: Reading,
}

/// The files to look for.
#[derive(Debug, clap::Args)]
pub(super) struct Wanted {
    /// Only deleted files that were changed at this time or later
    #[arg(long, value_name = "TIME", value_parser = times::parse)]
    since: Option<SystemTime>,
    /// Look for deleted files in this many older states of a btrfs, the newest first
    #[arg(long, value_name = "N", default_value_t = DeletedFiles::default().states)]
    states: usize,
}

impl Wanted {
    /// Whether only some deleted files are wanted.
    pub(super) fn is_limited(&self) -> bool {
        self.since.is_some()
    }

    pub(super) fn files(&self) -> DeletedFiles {
        let mut files = DeletedFiles::default();
        files.since = self.since;
        files.states = self.states;
        files
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let options = args.reading.options(None);
    let mut array = args.json.then(Array::begin).transpose()?;
    let mut printed = Ok(());
    let listed = scan(args.quiet || args.json, |on_scan| {
        let each = &mut |file: Deleted| {
            printed = print(args, &file, array.as_mut());
            match printed {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        };
        let image = &args.image;
        sapwood::internal::image::deleted(image, &options, &args.wanted.files(), on_scan, each)
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
            "name": file.name.name(),
            "size": file.size,
            "mtime": times::json(file.mtime),
            "readable": file.readable,
            "percent": percent,
        }));
    }
    // A place that other commands take, if there is one.
    let place = match file.generation {
        Some(generation) => format!("{}@{generation}:", args.image.display()),
        None => String::new(),
    };
    let guessed = match file.name {
        NameSource::FreeSpace => ", name perhaps of another file",
        _ => "",
    };
    output::line(format!(
        "{place}{}  {}, {}, {percent}% readable{guessed}",
        output::name(&file.path),
        size(file.size),
        times::local_seconds(file.mtime),
    ))
}
