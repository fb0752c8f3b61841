//! `sapwood df`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sapwood::FileSystem;
use serde::Serialize;

use super::size;
use crate::failure::{Failure, Result};
use crate::files::within;
use crate::output::{self, Array};
use crate::{choice, session};

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct DfArgs {
    /// Images, or directories of mounts
    #[arg(value_name = "IMAGE|MOUNT_DIR", required = true)]
    pub(crate) images: Vec<PathBuf>,
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

pub(crate) fn df(args: &DfArgs) -> Result<()> {
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
    print(&rows, args)
}

/// Prints rows as df(1) does.
fn print(rows: &[Space], args: &DfArgs) -> Result<()> {
    let size = |bytes| size(bytes, args.human_readable);
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
