//! `sapwood du`.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sapwood::{FileSystem, Metadata};
use serde::Serialize;

use super::size;
use crate::choice::SubvolumeChoice;
use crate::entry::ListedFile;
use crate::failure::Result;
use crate::files::{absolute, failed, for_each, shown_path};
use crate::long_paths::{LeftOut, LongPaths};
use crate::output::{self, Array};
use crate::{interrupt, progress};

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "the options of du(1)")]
pub(crate) struct DuArgs {
    /// Directories and files; a name may be a pattern
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    pub(crate) places: Vec<OsString>,
    /// Sizes with units, as 1.5G
    #[arg(short, long)]
    human_readable: bool,
    /// Only the sum of each argument
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    summarize: bool,
    /// Files too, not only directories
    #[arg(short, long)]
    all: bool,
    /// Directories to this depth only; 0 is the argument itself
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Add the sum of all arguments
    #[arg(short = 'c', long)]
    total: bool,
    /// Count lengths of files, not the blocks that they take
    #[arg(long)]
    apparent_size: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    long: LongPaths,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// A row of `du --json`.
#[derive(Serialize)]
struct Used {
    #[serde(flatten)]
    entry: ListedFile,
    /// Bytes of the file and of everything below it.
    usage: u64,
}

/// A directory whose sum is not complete.
struct Open {
    /// Bytes of its path.
    end: usize,
    metadata: Metadata,
    sum: u64,
}

struct Du<'a> {
    args: &'a DuArgs,
    bar: indicatif::ProgressBar,
    array: Option<Array>,
    /// Path of the last directory whose sum is not complete.
    path: Vec<u8>,
    /// Files with several names that were counted, of the image that is open.
    seen: HashSet<u64>,
    total: u64,
}

pub(crate) fn du(args: &DuArgs) -> Result<()> {
    let mut du = Du {
        args,
        bar: progress::items(args.quiet, "counted"),
        array: args.json.then(Array::begin).transpose()?,
        path: Vec::new(),
        seen: HashSet::new(),
        total: 0,
    };
    let mut image = PathBuf::new();
    let counted = for_each(&args.places, &args.choice, true, |fs, path, _| {
        if image != fs.image_path() {
            image = fs.image_path().to_owned();
            du.seen.clear();
        }
        du.place(fs, path)
    });
    du.bar.finish_and_clear();
    if du.array.is_none() && args.total {
        output::line(format!("{}\ttotal", du.size(du.total)))?;
    }
    Array::end_if_any(du.array, counted)
}

impl Du<'_> {
    fn place(&mut self, fs: &FileSystem, path: &Path) -> Result<()> {
        let metadata = fs.symlink_metadata(path).map_err(failed)?;
        let sum = self.count(&metadata);
        self.path = absolute(path).into_os_string().into_vec();
        let (top, end) = (path.as_os_str().len(), self.path.len());
        let mut open = vec![Open { end, metadata, sum }];
        let mut left_out = LeftOut::default();
        if metadata.is_dir() {
            let mut walk = fs.walk(path).map_err(failed)?;
            while let Some(step) = walk.step().map_err(failed)? {
                interrupt::check(|| "the sum is incomplete".to_owned())?;
                while open.len() > step.depth() {
                    self.close(fs, &mut open, &mut left_out)?;
                }
                self.bar.inc(1);
                let sum = self.count(step.metadata());
                let metadata = *step.metadata();
                // The rest of the path: the directory's path is the same.
                let above = open.last().map_or(end, |above| above.end);
                let known = above - end + top;
                let name = step.path().as_os_str().as_bytes().get(known..);
                self.path.truncate(above);
                self.path.extend_from_slice(name.unwrap_or_default());
                let end = self.path.len();
                open.push(Open { end, metadata, sum });
            }
        }
        while open.len() > 1 {
            self.close(fs, &mut open, &mut left_out)?;
        }
        self.total = self
            .total
            .saturating_add(open.first().map_or(0, |top| top.sum));
        self.close(fs, &mut open, &mut left_out)?;
        left_out.end(path)
    }

    /// Bytes of a file itself; of one with several names only the first time.
    fn count(&mut self, metadata: &Metadata) -> u64 {
        let again = !metadata.is_dir() && metadata.nlink() > 1 && !self.seen.insert(metadata.ino());
        match (again, self.args.apparent_size) {
            (true, _) => 0,
            (false, true) if metadata.is_dir() => 0,
            (false, true) => metadata.len(),
            (false, false) => metadata.allocated(),
        }
    }

    /// Adds the last sum to the directory above it, and prints it if it is wanted.
    fn close(
        &mut self,
        fs: &FileSystem,
        open: &mut Vec<Open>,
        left_out: &mut LeftOut,
    ) -> Result<()> {
        let Some(last) = open.pop() else {
            return Ok(());
        };
        let depth = open.len();
        if let Some(above) = open.last_mut() {
            above.sum = above.sum.saturating_add(last.sum);
        }
        let deepest = if self.args.summarize {
            0
        } else {
            self.args.max_depth.unwrap_or(usize::MAX)
        };
        let wanted = depth <= deepest && (depth == 0 || self.args.all || last.metadata.is_dir());
        if !wanted || !self.args.long.has(last.end, left_out) {
            return Ok(());
        }
        let path = self.path.get(..last.end).unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(path));
        if let Some(array) = &mut self.array {
            let entry = ListedFile::new(fs, path, path, &last.metadata)?;
            let usage = last.sum;
            return array.push(&Used { entry, usage });
        }
        let line = format!("{}\t{}", self.size(last.sum), shown_path(path));
        self.bar.suspend(|| output::line(line))
    }

    fn size(&self, bytes: u64) -> String {
        size(bytes, self.args.human_readable)
    }
}
