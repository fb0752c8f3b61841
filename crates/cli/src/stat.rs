//! `sapwood stat`.

use std::ffi::OsString;

use sapwood::tree;
use sapwood_vfs::{Attr, FileKind, FileSystem};
use serde::Serialize;

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result};
use super::files::{by_image, shown_path, with_image};
use super::{output, times};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to show
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    pub(super) places: Vec<OsString>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Serialize)]
struct Shown {
    path: String,
    kind: &'static str,
    ino: u64,
    generation: u64,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    allocated: u64,
    device: Option<String>,
    target: Option<String>,
    atime: String,
    mtime: String,
    ctime: String,
    btime: String,
    flags: String,
    xattrs: Vec<(String, String)>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut all = Vec::new();
    for (image, paths) in by_image(&args.places)? {
        with_image(&image, &args.choice, true, |fs| {
            for path in &paths {
                all.push(
                    look(&**fs, path, args.json)
                        .map_err(|error| Failure::on(shown_path(path), error))?,
                );
            }
            Ok(())
        })?;
    }
    match args.json {
        true => output::json(&all),
        false => all.iter().try_for_each(print),
    }
}

fn look(fs: &dyn FileSystem, path: &[u8], as_json: bool) -> sapwood_vfs::Result<Shown> {
    let node = tree::resolve(fs, path, false)?;
    let shown_time = if as_json { times::json } else { times::local };
    let attr: &Attr = node.attr();
    let device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
    let mut xattrs = Vec::new();
    for name in fs.listxattr(node.ino())? {
        xattrs.push((
            output::name(&name),
            output::name(&fs.getxattr(node.ino(), &name)?),
        ));
    }
    xattrs.sort();
    Ok(Shown {
        path: shown_path(path),
        kind: output::kind(attr.kind),
        ino: attr.ino.0,
        generation: attr.generation,
        mode: format!("{:04o}", attr.perm),
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        allocated: attr.allocated,
        device: device.then(|| format!("{}, {}", libc::major(attr.rdev), libc::minor(attr.rdev))),
        target: match attr.kind {
            FileKind::Symlink => Some(output::name(&fs.readlink(node.ino())?)),
            _ => None,
        },
        atime: shown_time(attr.atime),
        mtime: shown_time(attr.mtime),
        ctime: shown_time(attr.ctime),
        btime: shown_time(attr.btime),
        flags: attr
            .flags
            .iter_names()
            .map(|(name, _)| name.to_lowercase())
            .collect::<Vec<_>>()
            .join(","),
        xattrs,
    })
}

fn print(shown: &Shown) -> Result<()> {
    output::line(format!("{}: {}", shown.path, shown.kind))?;
    if let Some(target) = &shown.target {
        output::line(format!("  target  {target}"))?;
    }
    if let Some(device) = &shown.device {
        output::line(format!("  device  {device}"))?;
    }
    output::line(format!(
        "  inode   {} (generation {}), {} links",
        shown.ino, shown.generation, shown.links
    ))?;
    output::line(format!(
        "  mode    {}, uid {}, gid {}",
        shown.mode, shown.uid, shown.gid
    ))?;
    output::line(format!(
        "  size    {} bytes, {} allocated",
        shown.size, shown.allocated
    ))?;
    for (name, time) in [
        ("access", &shown.atime),
        ("modify", &shown.mtime),
        ("change", &shown.ctime),
        ("birth ", &shown.btime),
    ] {
        output::line(format!("  {name}  {time}"))?;
    }
    if !shown.flags.is_empty() {
        output::line(format!("  flags   {}", shown.flags))?;
    }
    for (name, value) in &shown.xattrs {
        output::line(format!("  xattr   {name} = {value}"))?;
    }
    Ok(())
}
