//! `sapwood mkfs --like`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sapwood::{Details, Kind};

use super::Args;
use crate::choice;
use crate::failure::{Failure, Result, USAGE};

/// Options of mkfs that a new image like an older one may have.
const ALLOWED: [&str; 3] = ["--size", "--force", "--root-owner"];

/// The older image.
#[derive(Debug)]
pub(super) struct Older {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    pub(super) label: String,
}

impl Older {
    /// Reads the kind and the label of the older image, and refuses what does not go with it.
    ///
    /// # Errors
    /// A usage error; the image cannot be read.
    pub(super) fn find(args: &Args, path: &Path) -> Result<Self> {
        let other = (args.given.0.iter()).find(|(option, _)| {
            let long = option.long.map(|name| format!("--{name}"));
            !long.is_some_and(|name| ALLOWED.contains(&name.as_str()))
        });
        let usage = |why: String| Err(Failure::new(USAGE, why));
        if let Some((option, _)) = other {
            return usage(format!("--like and {} exclude each other", option.name()));
        }
        if same_file(path, &args.image) {
            return usage("OLD and IMAGE are one file".to_owned());
        }
        if !args.others.is_empty() {
            return usage("--like makes an image on one device".to_owned());
        }
        if choice::new_key()?.is_some() {
            return usage("an encrypted image shares no bytes with an older one".to_owned());
        }
        let info = sapwood::info(path)?;
        let kind = match info.details {
            Details::Ext4 { .. } => Kind::Ext4,
            _ => Kind::Btrfs,
        };
        if let Some(wanted) = args.kind
            && wanted != kind
        {
            let why = format!("{}: is {kind}, and -t is {wanted}", path.display());
            return usage(why);
        }
        Ok(Self {
            path: path.to_owned(),
            kind,
            label: info.label,
        })
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    id(one).is_some_and(|found| id(other) == Some(found))
}
