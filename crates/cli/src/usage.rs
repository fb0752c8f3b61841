//! `sapwood df` and `sapwood du`.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sapwood::{FileSystem, Metadata};
use serde::Serialize;

use super::choice::{self, SubvolumeChoice};
use super::entry::ListedFile;
use super::failure::{Failure, Result};
use super::files::{absolute, failed, for_each, shown_path, within};
use super::long_paths::{LeftOut, LongPaths};
use super::output::{self, Array};
use super::{interrupt, progress, session};

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct DfArgs {
    /// Images, or directories of mounts
    #[arg(value_name = "IMAGE|MOUNT_DIR", required = true)]
    pub(super) images: Vec<PathBuf>,
    /// Sizes with units, as 1.5G
    #[arg(short, long)]
    human_readable: bool,
    /// Show inodes, not space
    #[arg(short, long)]
    inodes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// A row of `df`. Sizes are bytes.
#[derive(Serialize)]
struct Space {
    image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_bytes: Option<String>,
    kind: String,
    size: u64,
    used: u64,
    available: u64,
    inodes: u64,
    inodes_used: u64,
    inodes_free: u64,
}

pub(super) fn df(args: &DfArgs) -> Result<()> {
    let mut rows = Vec::new();
    for image in &args.images {
        rows.push(if let Some(open) = of_session(image) {
            space(open.image_path(), &open)?
        } else if image.is_dir() {
            of_mount(image)?
        } else {
            of_image(image)?
        });
    }
    if args.json {
        let mut array = Array::begin()?;
        let listed = rows.iter().try_for_each(|row| array.push(row));
        return array.end(listed);
    }
    let size = |bytes: u64| {
        if args.human_readable {
            output::human(bytes)
        } else {
            bytes.div_ceil(1024).to_string()
        }
    };
    let count = |number: u64| number.to_string();
    let unit = if args.human_readable {
        "Size"
    } else {
        "1K-blocks"
    };
    let mut table = vec![if args.inodes {
        ["Image", "Type", "Inodes", "IUsed", "IFree", "IUse%"].map(String::from)
    } else {
        ["Image", "Type", unit, "Used", "Avail", "Use%"].map(String::from)
    }];
    table.extend(rows.iter().map(|row| {
        let name = output::name(row.image.as_bytes());
        let kind = row.kind.clone();
        if args.inodes {
            [
                name,
                kind,
                count(row.inodes),
                count(row.inodes_used),
                count(row.inodes_free),
                percent(row.inodes_used, row.inodes_free),
            ]
        } else {
            [
                name,
                kind,
                size(row.size),
                size(row.used),
                size(row.available),
                percent(row.used, row.available),
            ]
        }
    }));
    let width = |nth: usize| table.iter().map(|row| row[nth].chars().count()).max();
    let widths = [0, 1, 2, 3, 4, 5].map(|nth| width(nth).unwrap_or(0));
    table.iter().try_for_each(|row| {
        let mut line = String::new();
        for (nth, (field, width)) in row.iter().zip(widths).enumerate() {
            line.push_str(&match nth {
                0 => format!("{field:<width$}"),
                1 => format!("  {field:<width$}"),
                _ => format!("  {field:>width$}"),
            });
        }
        output::line(line)
    })
}

/// Used share of the usable space, rounded up, as in df(1).
fn percent(used: u64, free: u64) -> String {
    let whole = u128::from(used) + u128::from(free);
    match (u128::from(used) * 100).checked_div(whole) {
        None => "-".to_owned(),
        Some(_) => format!("{}%", (u128::from(used) * 100).div_ceil(whole)),
    }
}

/// The open image of a shell, where `:` names it.
fn of_session(image: &Path) -> Option<FileSystem> {
    session::fs().filter(|_| image == Path::new(":"))
}

fn of_image(image: &Path) -> Result<Space> {
    let options = choice::opening(true);
    let fs = FileSystem::open_with_options(image, &options)?;
    within(fs, |fs| space(image, fs))
}

fn space(image: &Path, fs: &FileSystem) -> Result<Space> {
    let found = fs.statfs()?;
    let unit = u64::from(found.block_size);
    let (name, image_bytes) = output::json::text(image.as_os_str().as_bytes());
    Ok(Space {
        image: name,
        image_bytes,
        kind: fs.kind().to_string(),
        size: found.blocks.saturating_mul(unit),
        used: found
            .blocks
            .saturating_sub(found.blocks_free)
            .saturating_mul(unit),
        available: found.blocks_available.saturating_mul(unit),
        inodes: found.inodes,
        inodes_used: found.inodes.saturating_sub(found.inodes_free),
        inodes_free: found.inodes_free,
    })
}

fn of_mount(dir: &Path) -> Result<Space> {
    let local = |error: std::io::Error| Failure::local(dir, error);
    let real = dir.canonicalize().map_err(local)?;
    let mut above = real.ancestors();
    let entry = above.find_map(crate::host::mount::mounted_on);
    let entry = entry
        .filter(crate::host::mount::MountEntry::is_ours)
        .ok_or_else(|| Failure::local(dir, "not in a Sapwood mount; name an image or a mount"))?;
    let found = rustix::fs::statvfs(dir).map_err(|error| local(error.into()))?;
    let unit = found.f_frsize;
    let (image, image_bytes) = output::json::text(entry.source.as_bytes());
    Ok(Space {
        image,
        image_bytes,
        kind: entry.kind.to_string_lossy().into_owned(),
        size: found.f_blocks.saturating_mul(unit),
        used: found
            .f_blocks
            .saturating_sub(found.f_bfree)
            .saturating_mul(unit),
        available: found.f_bavail.saturating_mul(unit),
        inodes: found.f_files,
        inodes_used: found.f_files.saturating_sub(found.f_ffree),
        inodes_free: found.f_ffree,
    })
}

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "the options of du(1)")]
pub(super) struct DuArgs {
    /// Directories and files; a name may be a pattern
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    pub(super) places: Vec<OsString>,
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

pub(super) fn du(args: &DuArgs) -> Result<()> {
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
        if self.args.human_readable {
            output::human(bytes)
        } else {
            bytes.div_ceil(1024).to_string()
        }
    }
}
