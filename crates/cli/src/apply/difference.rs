//! The changes that a script would make: names that are new, gone, or belong to another file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sapwood::{FileSystem, Metadata};

use crate::failure::Result;
use crate::{files, output};

/// All names of an image, with the metadata of their files.
pub(super) struct Names(BTreeMap<PathBuf, Metadata>);

impl Names {
    /// Reads the names of an image.
    pub(super) fn of(fs: &FileSystem) -> Result<Self> {
        let mut names = BTreeMap::new();
        for entry in fs.walk("/").map_err(files::failed)? {
            let entry = entry.map_err(files::failed)?;
            names.insert(entry.path().to_owned(), *entry.metadata());
        }
        Ok(Self(names))
    }

    /// Prints a line for each name that differs: `+` new, `-` gone, `M` changed.
    pub(super) fn print_changes(&self, before: &Self) -> Result<()> {
        let all: BTreeSet<&PathBuf> = self.0.keys().chain(before.0.keys()).collect();
        for path in all {
            match (before.0.get(path), self.0.get(path)) {
                (None, Some(_)) => print('+', path, "")?,
                (Some(_), None) => print('-', path, "")?,
                (Some(old), Some(new)) => {
                    let what = changed(old, new);
                    if !what.is_empty() {
                        print('M', path, &format!("  ({})", what.join(", ")))?;
                    }
                }
                (None, None) => {}
            }
        }
        Ok(())
    }
}

fn print(mark: char, path: &Path, what: &str) -> Result<()> {
    output::line(format_args!("{mark} {}{what}", files::shown_path(path)))
}

/// The differences of two files of one name.
fn changed(old: &Metadata, new: &Metadata) -> Vec<&'static str> {
    let mut what = Vec::new();
    let mut differs = |name, differs: bool| {
        if differs {
            what.push(name);
        }
    };
    differs("kind", old.file_type() != new.file_type());
    differs("mode", old.mode() != new.mode());
    differs("owner", (old.uid(), old.gid()) != (new.uid(), new.gid()));
    if !new.is_dir() {
        differs(
            "content",
            old.ino() != new.ino() || old.len() != new.len() || old.modified() != new.modified(),
        );
        differs("links", old.nlink() != new.nlink());
    }
    // An extended attribute, or a time.
    if what.is_empty() && !new.is_dir() && old.changed() != new.changed() {
        what.push("attributes");
    }
    what
}
