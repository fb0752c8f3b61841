//! The contents of a new file system: the options of `sapwood mkfs` that are also fields of a
//! partition of `sapwood mkdisk`.

use clap::Parser as _;
use clap::error::{ContextKind, ErrorKind};
use sapwood::{FatImage, FreeRoom, ImageBuilder, Kind, Sources};

use super::sources::{self, ChangeArgs};
use super::storage::StorageArgs;
use crate::failure::{Failure, Result, USAGE};

#[derive(Debug, clap::Args)]
pub(crate) struct ContentArgs {
    #[command(flatten)]
    pub(super) sources: sources::Given,
    #[command(flatten)]
    changes: ChangeArgs,
    #[command(flatten)]
    storage: StorageArgs,
    /// Without --size, leave at least this much available to users, as df shows it: bytes, or with
    /// k, M, G, T, or a percentage of the smallest size that holds the files
    #[arg(long, value_name = "SIZE|PERCENT%", default_value = "0")]
    pub(super) free: FreeRoom,
    /// Without --size, leave this many inodes free at least (ext4)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) free_inodes: u64,
}

/// A command line of these options only.
#[derive(Debug, clap::Parser)]
#[command(no_binary_name = true, disable_help_flag = true, name = "fields")]
struct Fields {
    #[command(flatten)]
    content: ContentArgs,
}

impl ContentArgs {
    /// Reads the fields of a partition: names of options without dashes, with their values.
    ///
    /// # Errors
    /// An unknown field or a bad value. The error is the message.
    pub(crate) fn of_fields(fields: &[String]) -> Result<Self, String> {
        let words = fields.iter().map(|field| format!("--{field}"));
        match Fields::try_parse_from(words) {
            Ok(read) => Ok(read.content),
            Err(error) => Err(why(&error)),
        }
    }

    /// The sources with their changes, and how they are stored in a file system of a kind.
    ///
    /// # Errors
    /// An option that makes no sense, or not for this kind; a file that cannot be read; no
    /// `SOURCE_DATE_EPOCH` for `--clamp-mtime`.
    pub(super) fn sources(&self, kind: Kind) -> Result<Sources> {
        let mut sources = self.sources.sources(&self.changes)?;
        self.storage.apply(sources.storage_mut())?;
        let fits = sources.storage().check(kind);
        fits.map_err(|error| Failure::new(USAGE, error))?;
        Ok(sources)
    }

    /// Gives them to a builder of a kind.
    ///
    /// # Errors
    /// The errors of the sources.
    pub(crate) fn fill(&self, builder: ImageBuilder, kind: Kind) -> Result<ImageBuilder> {
        let sources = self.sources(kind)?;
        let builder = builder.free(self.free).free_inodes(self.free_inodes);
        Ok(builder.sources(sources))
    }

    /// Gives them to a FAT volume.
    ///
    /// # Errors
    /// The errors of the sources; options that FAT does not support.
    pub(crate) fn fill_fat(&self, image: FatImage) -> Result<FatImage> {
        let usage = |why: &dyn std::fmt::Display| Failure::new(USAGE, why);
        let FreeRoom::Bytes(free) = self.free else {
            return Err(usage(&"free= of a FAT volume is a size"));
        };
        if self.free_inodes > 0 {
            return Err(usage(&"FAT has no inodes"));
        }
        let mut sources = self.sources.sources(&self.changes)?;
        self.storage.apply(sources.storage_mut())?;
        let filled = image.free(free).sources(sources);
        filled.map_err(|error| usage(&error))
    }
}

/// The error of a field, without the words of a command line.
fn why(error: &clap::Error) -> String {
    let named = |kind| error.get(kind).map(ToString::to_string);
    let field = named(ContextKind::InvalidArg).unwrap_or_default();
    // `--NAME <VALUE>`, or as it was given.
    let name = field.trim_start_matches('-').split([' ', '=']).next();
    let name = name.unwrap_or_default();
    match error.kind() {
        ErrorKind::UnknownArgument => format!("unknown field {name}"),
        ErrorKind::TooManyValues => format!("{name} has no value"),
        ErrorKind::ArgumentConflict => format!("{name} twice"),
        ErrorKind::InvalidValue
            if named(ContextKind::InvalidValue).is_none_or(|it| it.is_empty()) =>
        {
            format!("{name} needs a value")
        }
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            first.replace("'--", "'")
        }
    }
}
