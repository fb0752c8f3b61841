//! The subvolume that a command looks into.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::failure::Result;
use super::times;

/// The heading of options that name a part of an image.
pub(super) const PART: &str = "Part of the image";

/// The subvolume that a command looks into.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct SubvolumeChoice {
    /// Subvolume to look into, by path from the top level [default: the default subvolume]
    #[arg(long, value_name = "PATH", conflicts_with = "subvolid", help_heading = PART)]
    subvol: Option<PathBuf>,
    /// Subvolume to look into, by id
    #[arg(long, value_name = "ID", help_heading = PART)]
    subvolid: Option<u64>,
}

impl SubvolumeChoice {
    /// Whether one was chosen.
    pub(super) fn is_made(&self) -> bool {
        self.subvol.is_some() || self.subvolid.is_some()
    }

    /// Options with that choice.
    pub(super) fn options(&self, read_only: bool) -> Result<sapwood::Options> {
        let mut options = sapwood::Options::new().read_only(read_only);
        if let Some(path) = &self.subvol {
            options.set_subvolume(path.as_os_str().as_bytes());
        } else if let Some(id) = self.subvolid {
            options.set("subvolid", Some(&id.to_string()))?;
        }
        Ok(match read_only {
            true => options,
            false => fixed(options)?,
        })
    }
}

/// The options with which an image is changed: reproducible ones if `SOURCE_DATE_EPOCH` is set.
///
/// # Errors
/// It is no time.
pub(super) fn fixed(options: sapwood::Options) -> Result<sapwood::Options> {
    Ok(match times::source_date_epoch()? {
        Some(time) => options.reproducible(time),
        None => options,
    })
}
