//! Commands that read files inside an image: ls, cat, tree.

use std::ffi::OsString;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use sapwood::image::Mounted;
use sapwood::target::Target;
use sapwood::tree;
use sapwood_vfs::{Attr, Error, FileKind, FileSystem};
use serde::Serialize;

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result};
use super::{output, times};

/// Bytes per read.
const CHUNK: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct LsArgs {
    /// What to list
    #[arg(value_name = "IMAGE[:PATH]", required = true)]
    pub(super) places: Vec<OsString>,
    /// Long form: mode, links, owner, size, time
    #[arg(short, long)]
    long: bool,
    /// List a directory itself, not what is in it
    #[arg(short, long)]
    directory: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct CatArgs {
    /// Files to print; - is standard input
    #[arg(value_name = "IMAGE:PATH | -", required = true)]
    pub(super) places: Vec<OsString>,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

#[derive(Debug, clap::Args)]
pub(super) struct TreeArgs {
    /// Directory to show
    #[arg(value_name = "IMAGE[:PATH]")]
    pub(super) place: OsString,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// A file or directory as `--json` shows it.
#[derive(Serialize)]
pub(super) struct Shown {
    path: String,
    kind: &'static str,
    mode: String,
    ino: u64,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Shown {
    fn new(fs: &dyn FileSystem, path: &[u8], attr: &Attr) -> Self {
        let target =
            (attr.kind == FileKind::Symlink).then(|| fs.readlink(attr.ino).unwrap_or_default());
        Self {
            path: output::name(path),
            kind: output::kind(attr.kind),
            mode: format!("{:04o}", attr.perm),
            ino: attr.ino.0,
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            mtime: times::json(attr.mtime),
            target: target.map(|target| output::name(&target)),
        }
    }
}

/// Paths grouped by the image that they are in, each image to be opened once.
pub(super) fn by_image(places: &[OsString]) -> Result<Vec<(PathBuf, Vec<Vec<u8>>)>> {
    let mut images: Vec<(PathBuf, Vec<Vec<u8>>)> = Vec::new();
    for place in places {
        let (image, path) = Target::parse_in_image(place)?;
        match images.iter_mut().find(|(other, _)| *other == image) {
            Some((_, paths)) => paths.push(path),
            None => images.push((image, vec![path])),
        }
    }
    Ok(images)
}

pub(super) fn shown_path(path: &[u8]) -> String {
    format!("/{}", output::name(path))
}

/// Opens images, runs `work` on each path, and unmounts them.
pub(super) fn for_each(
    places: &[OsString],
    choice: &SubvolumeChoice,
    read_only: bool,
    mut work: impl FnMut(&dyn FileSystem, &[u8]) -> Result<()>,
) -> Result<()> {
    for (image, paths) in by_image(places)? {
        with_image(&image, choice, read_only, |fs| {
            paths.iter().try_for_each(|path| work(&**fs, path))
        })?;
    }
    Ok(())
}

/// Opens an image, runs `work` on it, and unmounts it whether that went well or not.
pub(super) fn with_image<T>(
    image: &std::path::Path,
    choice: &SubvolumeChoice,
    read_only: bool,
    work: impl FnOnce(&Mounted) -> Result<T>,
) -> Result<T> {
    let fs = sapwood::image::open(image, &choice.options(read_only)?)?;
    let result = work(&fs);
    let ended = fs.unmount().map_err(|error| Failure::local(image, error));
    let value = result?;
    ended?;
    Ok(value)
}

pub(super) fn ls(args: &LsArgs) -> Result<()> {
    let several = args.places.len() > 1;
    let mut shown = Vec::new();
    for_each(&args.places, &args.choice, true, |fs, path| {
        let node = tree::resolve(fs, path, !args.long)
            .map_err(|error| Failure::on(shown_path(path), error))?;
        let mut found: Vec<(Vec<u8>, Attr)> = Vec::new();
        if node.is_dir() && !args.directory {
            for entry in node.list()? {
                found.push((entry.name.clone(), *node.child(&entry.name)?.attr()));
            }
            found.sort_by(|(one, _), (other, _)| one.cmp(other));
            if several && !args.json {
                output::line(format!("{}:", shown_path(path)))?;
            }
        } else {
            found.push((path.to_vec(), *node.attr()));
        }
        for (name, attr) in found {
            match (args.json, args.long) {
                (true, _) => shown.push(Shown::new(fs, &name, &attr)),
                (false, true) => output::line(long_line(fs, &name, &attr))?,
                (false, false) => output::line(output::name(&name))?,
            }
        }
        Ok(())
    })?;
    match args.json {
        true => output::json(&shown),
        false => Ok(()),
    }
}

fn long_line(fs: &dyn FileSystem, name: &[u8], attr: &Attr) -> String {
    let shown = Shown::new(fs, name, attr);
    let size = match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let (major, minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
            format!("{major}, {minor}")
        }
        _ => attr.size.to_string(),
    };
    let time = times::local_seconds(attr.mtime);
    let target = shown
        .target
        .map(|target| format!(" -> {target}"))
        .unwrap_or_default();
    format!(
        "{} {:>3} {:>5} {:>5} {size:>12} {time} {}{target}",
        output::mode(attr),
        attr.nlink,
        attr.uid,
        attr.gid,
        shown.path
    )
}

pub(super) fn cat(args: &CatArgs) -> Result<()> {
    let standard = |place: &OsString| place == "-";
    for places in args
        .places
        .chunk_by(|one, next| standard(one) == standard(next))
    {
        if !places.iter().any(standard) {
            cat_files(places, &args.choice)?;
            continue;
        }
        cat_input()?;
    }
    Ok(())
}

fn cat_input() -> Result<()> {
    let mut buf = vec![0; CHUNK];
    loop {
        match std::io::stdin().read(&mut buf) {
            Ok(0) => return Ok(()),
            Ok(count) => output::bytes(buf.get(..count).unwrap_or_default())?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::on("standard input", error)),
        }
    }
}

fn cat_files(places: &[OsString], choice: &SubvolumeChoice) -> Result<()> {
    let mut buf = vec![0; CHUNK];
    for_each(places, choice, true, |fs, path| {
        let fail = |error: Error| Failure::on(shown_path(path), error);
        let node = tree::resolve(fs, path, true).map_err(fail)?;
        let mut at = 0;
        loop {
            let count = fs.read(node.ino(), at, &mut buf).map_err(fail)?;
            if count == 0 {
                return Ok(());
            }
            output::bytes(buf.get(..count).unwrap_or_default())?;
            at += count as u64;
        }
    })
}

pub(super) fn tree(args: &TreeArgs) -> Result<()> {
    for_each(
        std::slice::from_ref(&args.place),
        &args.choice,
        true,
        |fs, path| {
            let top = tree::resolve(fs, path, true)
                .map_err(|error| Failure::on(shown_path(path), error))?;
            if !args.json {
                output::line(shown_path(path))?;
            }
            let mut counts = (0_u64, 0_u64);
            tree::walk::<Failure>(&top, &mut |below, entry, attr| {
                match attr.kind {
                    FileKind::Directory => counts.0 += 1,
                    _ => counts.1 += 1,
                }
                if args.json {
                    return output::json_line(&Shown::new(fs, below, attr));
                }
                let depth = below.iter().filter(|byte| **byte == b'/').count() + 1;
                let target = match attr.kind {
                    FileKind::Symlink => format!(" -> {}", output::name(&fs.readlink(attr.ino)?)),
                    FileKind::Directory => "/".to_owned(),
                    _ => String::new(),
                };
                output::line(format!(
                    "{}{}{target}",
                    "  ".repeat(depth),
                    output::name(&entry.name)
                ))
            })?;
            if args.json {
                return Ok(());
            }
            output::line(format!("{} directories, {} files", counts.0, counts.1))
        },
    )
}
