//! `sapwood stat`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sapwood::FileSystem;
use sapwood::vfs::Attr;
use serde::Serialize;

use super::choice::SubvolumeChoice;
use super::entry::{self, ListedFile};
use super::failure::Result;
use super::files::{absolute, failed, for_each, shown_path};
use super::output::{self, Array};
use super::times;
use super::xattr::{self, Attribute};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to show; a name may be a pattern
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    pub(super) places: Vec<OsString>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// An object of `--json`.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    entry: ListedFile,
    generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    atime: String,
    ctime: String,
    btime: String,
    flags: String,
    xattrs: Vec<Attribute>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut array = args.json.then(Array::begin).transpose()?;
    let shown = for_each(
        &args.places,
        &args.choice,
        true,
        |fs, path, _| match &mut array {
            Some(array) => array.push(&look(fs, path)?),
            None => print(fs, path),
        },
    );
    Array::end_if_any(array, shown)
}

fn flags(attr: &Attr) -> String {
    let names = attr.flags.iter_names().map(|(name, _)| name.to_lowercase());
    names.collect::<Vec<_>>().join(",")
}

fn look(fs: &FileSystem, path: &Path) -> Result<Shown> {
    let found = fs.symlink_metadata(path).map_err(failed)?;
    let attr = found.attr();
    Ok(Shown {
        entry: ListedFile::new(fs, path, &absolute(path), &found)?,
        generation: attr.generation,
        device: entry::device(&found),
        atime: times::json(attr.atime),
        ctime: times::json(attr.ctime),
        btime: times::json(attr.btime),
        flags: flags(attr),
        xattrs: xattr::all(fs, path)?,
    })
}

fn print(fs: &FileSystem, path: &Path) -> Result<()> {
    let found = fs.symlink_metadata(path).map_err(failed)?;
    let attr = found.attr();
    output::line(format!("{}: {}", shown_path(path), output::kind(attr.kind)))?;
    let mut rows = Vec::new();
    if found.is_symlink() {
        let target = fs.read_link(path).map_err(failed)?;
        rows.push(format!(
            "target  {}",
            output::name(target.as_os_str().as_bytes())
        ));
    }
    rows.extend(entry::device(&found).map(|device| format!("device  {device}")));
    rows.push(format!(
        "inode   {} (generation {}), {} links",
        attr.ino, attr.generation, attr.nlink
    ));
    rows.push(format!(
        "mode    {:04o}, uid {}, gid {}",
        attr.perm, attr.uid, attr.gid
    ));
    rows.push(format!(
        "size    {} bytes, {} allocated",
        attr.size, attr.allocated
    ));
    for (name, time) in [
        ("access", attr.atime),
        ("modify", attr.mtime),
        ("change", attr.ctime),
        ("birth ", attr.btime),
    ] {
        rows.push(format!("{name}  {}", times::local(time)));
    }
    if !attr.flags.is_empty() {
        rows.push(format!("flags   {}", flags(attr)));
    }
    let attributes = xattr::all(fs, path)?;
    rows.extend(attributes.iter().map(|one| format!("xattr   {one}")));
    rows.iter()
        .try_for_each(|row| output::line(format_args!("  {row}")))
}
