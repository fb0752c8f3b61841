//! `sapwood stat`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sapwood::FileSystem;
use sapwood::vfs::FileKind;
use serde::Serialize;

use super::choice::SubvolumeChoice;
use super::failure::Result;
use super::files::{failed, for_each, shown_path};
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
    for_each(&args.places, &args.choice, true, |fs, path| {
        all.push(look(fs, path, args.json).map_err(failed)?);
        Ok(())
    })?;
    match args.json {
        true => output::json(&all),
        false => all.iter().try_for_each(print),
    }
}

fn look(fs: &FileSystem, path: &Path, as_json: bool) -> sapwood::Result<Shown> {
    let found = fs.symlink_metadata(path)?;
    let shown_time = if as_json { times::json } else { times::local };
    let attr = found.attr();
    let device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
    let mut xattrs = Vec::new();
    for name in fs.xattrs(path)? {
        let value = fs.xattr(path, &name)?.unwrap_or_default();
        xattrs.push((output::name(name.as_bytes()), output::name(&value)));
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
            FileKind::Symlink => Some(output::name(fs.read_link(path)?.as_os_str().as_bytes())),
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
