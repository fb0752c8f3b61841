//! `sapwood diff`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use sapwood::internal::{DiffError, Target};
use sapwood::vfs::FileKind;
use sapwood::{DiffEntry, DiffKind, DiffOptions, DiffParts, FileSystem};
use serde_json::json;

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result};
use super::files::{close, in_image, open_in_order, open_other, same_file, target, within};
use super::output::{self, Array};
use super::{interrupt, session};

/// For `sapwood help diff`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood diff disk.img:monday tuesday",
        "two snapshots of an image",
    ),
    (
        "sapwood diff --itemize old.img new.img",
        "two images, in the form of rsync -i",
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The old directory; IMAGE: is the root of the image
    #[arg(value_name = "IMAGE[:PATH]")]
    pub(super) old: OsString,
    /// The new directory: in another image, or a path in the same one
    #[arg(value_name = "[IMAGE:]PATH")]
    pub(super) new: OsString,
    /// Compare the bytes of files: rewritten files with the same bytes did not change
    #[arg(long)]
    content: bool,
    /// Print each change as `rsync --itemize-changes` does
    #[arg(short, long, conflicts_with = "json")]
    itemize: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (image, old) = in_image(&args.old)?;
    let mut options = DiffOptions::default();
    options.content = args.content;
    options.stop = interrupt::stop();
    let mut found = Vec::new();
    within(open_in_order(&image, &args.choice)?, |fs| {
        let (other, new) = other(fs, &image, &args.new)?;
        let each = &mut |entry| found.push(entry);
        let compared = sapwood::diff((fs, &old), (&other, &new), &options, each);
        let ended = if other.is_same(fs) {
            Ok(())
        } else {
            close(other)
        };
        interrupt::check(|| "the comparison is incomplete".to_owned())?;
        compared.map_err(failed)?;
        ended
    })?;
    found.sort_by(|a, b| a.path.cmp(&b.path).then(a.kind.cmp(&b.kind)));
    print(&found, args)
}

/// The new directory: of another image, or of this one.
fn other(fs: &FileSystem, image: &Path, new: &OsStr) -> Result<(FileSystem, PathBuf)> {
    let (other, path) = match target(new) {
        Ok(Target::Image { image, path }) => (image, OsString::from_vec(path).into()),
        Ok(Target::Local(path)) if path.is_file() => (path, PathBuf::new()),
        _ => {
            let path = session::path(new).map(OsString::from_vec);
            return Ok((fs.clone(), path.unwrap_or_else(|| new.to_owned()).into()));
        }
    };
    if same_file(&other, image) {
        return Ok((fs.clone(), path));
    }
    let opened = open_other(&other)?;
    Ok((opened, path))
}

fn failed(error: sapwood::Error) -> Failure {
    match error.downcast() {
        Ok(DiffError::Path(error)) => super::files::failed(error.into()),
        Ok(error) => Failure::from(sapwood::Error::from(error)),
        Err(error) => error.into(),
    }
}

fn print(found: &[DiffEntry], args: &Args) -> Result<()> {
    if args.json {
        let mut array = Array::begin()?;
        for entry in found {
            array.push(&as_json(entry))?;
        }
        return array.end(Ok(()));
    }
    for entry in found {
        let path = output::name(shown(&entry.path).as_bytes());
        let line = if args.itemize {
            format!("{} {path}", itemized(entry))
        } else {
            let sign = match entry.kind {
                DiffKind::Removed => '-',
                DiffKind::Added => '+',
                DiffKind::Renamed => 'R',
                DiffKind::Changed => 'M',
            };
            format!("{sign} {path}")
        };
        match &entry.from {
            Some(from) => {
                let from = output::name(from.as_os_str().as_bytes());
                output::line(format_args!("{line} (from {from})"))?;
            }
            None => output::line(line)?,
        }
    }
    Ok(())
}

/// A path; `.` is the directory itself.
fn shown(path: &Path) -> &OsStr {
    if path.as_os_str().is_empty() {
        OsStr::new(".")
    } else {
        path.as_os_str()
    }
}

/// The changed attributes by name.
fn names(parts: DiffParts) -> Vec<&'static str> {
    let all = [
        (parts.content, "content"),
        (parts.size, "size"),
        (parts.mtime, "mtime"),
        (parts.mode, "mode"),
        (parts.uid, "uid"),
        (parts.gid, "gid"),
        (parts.xattrs, "xattrs"),
    ];
    let changed = all.into_iter().filter(|(changed, _)| *changed);
    changed.map(|(_, name)| name).collect()
}

fn as_json(entry: &DiffEntry) -> serde_json::Value {
    let kind = match entry.kind {
        DiffKind::Removed => "removed",
        DiffKind::Added => "added",
        DiffKind::Renamed => "renamed",
        DiffKind::Changed => "changed",
    };
    let mut row = json!({
        "change": kind,
        "kind": output::kind(entry.file),
        "attributes": names(entry.parts),
    });
    let paths = [("path", Some(&entry.path)), ("from", entry.from.as_ref())];
    for (name, path) in paths {
        let (Some(path), Some(row)) = (path, row.as_object_mut()) else {
            continue;
        };
        let (text, bytes) = output::json::text(shown(path).as_bytes());
        row.insert(name.to_owned(), text.into());
        if let Some(bytes) = bytes {
            row.insert(format!("{name}_bytes"), bytes.into());
        }
    }
    row
}

/// The eleven characters of rsync for a change.
fn itemized(entry: &DiffEntry) -> String {
    let kind = match entry.file {
        FileKind::Regular => 'f',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'L',
        FileKind::CharDevice | FileKind::BlockDevice => 'D',
        FileKind::Fifo | FileKind::Socket => 'S',
    };
    let update = match (entry.kind, kind) {
        (DiffKind::Removed, _) => return "*deleting  ".to_owned(),
        (DiffKind::Added, 'f') => return format!(">{kind}+++++++++"),
        (DiffKind::Added | DiffKind::Renamed, _) => return format!("c{kind}+++++++++"),
        (DiffKind::Changed, 'f') if entry.parts.content => '>',
        (DiffKind::Changed, _) if entry.parts.content => 'c',
        (DiffKind::Changed, _) => '.',
    };
    let mark = |changed: bool, mark: char| if changed { mark } else { '.' };
    let parts = entry.parts;
    [
        update,
        kind,
        mark(parts.content, 'c'),
        mark(parts.size, 's'),
        mark(parts.mtime, 't'),
        mark(parts.mode, 'p'),
        mark(parts.uid, 'o'),
        mark(parts.gid, 'g'),
        '.',
        '.',
        mark(parts.xattrs, 'x'),
    ]
    .into_iter()
    .collect()
}
