//! `--offset`, `--length` and the options for formats: the selected part and format of the images
//! of a command.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use sapwood::block::{DiskFormat, Operand};
use sapwood::internal::Target;

use super::choice::PART;
use super::failure::{Failure, Result, USAGE};
use super::sizes::size;
use super::subvolume;

/// The part of its images that a command works on.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Range {
    /// Start of the file system in the image: bytes, or with k, M, G, T
    #[arg(long, value_name = "BYTES", value_parser = size, global = true,
        help_heading = PART, display_order = 1000)]
    offset: Option<u64>,
    /// Length of the file system's part of the image [default: everything after the offset]
    #[arg(long, value_name = "BYTES", value_parser = size, global = true,
        help_heading = PART, display_order = 1001)]
    length: Option<u64>,
    /// Format of the file that holds the image: raw, qcow2 [default: detected]
    #[arg(long, value_name = "FORMAT", global = true,
        help_heading = PART, display_order = 1002)]
    image_format: Option<DiskFormat>,
    /// Open the backing files that a qcow2 file names, wherever they are
    #[arg(long, global = true, help_heading = PART, display_order = 1003)]
    backing_files: bool,
}

impl Range {
    /// Whether any range is given.
    pub(super) fn is_given(self) -> bool {
        let part = self.offset.is_some() || self.length.is_some();
        part || self.image_format.is_some() || self.backing_files
    }

    /// Fails, for a command that works on no image.
    pub(super) fn refuse(self) -> Result<()> {
        Err(Failure::new(
            USAGE,
            "--offset, --length, --image-format and --backing-files are for commands that work on an \
             image",
        ))
    }

    /// Applies the range to every image of `sapwood subvolume`.
    pub(super) fn subvolume(self, command: &mut subvolume::Command) -> Result<()> {
        use subvolume::Command::{
            Create, Delete, GetDefault, List, SetDefault, SetReadOnly, Snapshot,
        };
        match command {
            List { image, .. } | GetDefault { image } => self.image(image),
            Create { place, .. } | SetDefault { place, .. } | SetReadOnly { place, .. } => {
                self.place(place)
            }
            Snapshot { source, place, .. } => {
                self.place(source)?;
                self.place_with_path(place)
            }
            Delete { places, .. } => self.places(places),
        }
    }

    /// Applies the range to an image.
    pub(super) fn image(self, image: &mut PathBuf) -> Result<()> {
        let part = Operand::with_range(image, self.offset, self.length)
            .map_err(|error| Failure::new(USAGE, error))?;
        *image = Operand::with_format(&part, self.image_format, self.backing_files);
        Ok(())
    }

    /// Applies the range to a place that is an image, or a path in one.
    pub(super) fn place(self, place: &mut OsString) -> Result<()> {
        match Target::parse(place)? {
            Target::Local(image) => {
                let mut image = image;
                self.image(&mut image)?;
                *place = image.into_os_string();
                Ok(())
            }
            Target::Image { .. } => self.place_with_path(place),
        }
    }

    /// Applies the range to a place that may be left out.
    pub(super) fn optional(self, place: Option<&mut OsString>) -> Result<()> {
        place.map_or(Ok(()), |place| self.place_with_path(place))
    }

    /// Applies the range to places that are paths of this machine or of an image.
    pub(super) fn places_with_paths(self, places: &mut [OsString]) -> Result<()> {
        places
            .iter_mut()
            .try_for_each(|place| self.place_with_path(place))
    }

    /// Applies the range to places that are images, or paths in images.
    pub(super) fn places(self, places: &mut [OsString]) -> Result<()> {
        places.iter_mut().try_for_each(|place| self.place(place))
    }

    /// Applies the range to a place that is a path of this machine, or one in an image.
    pub(super) fn place_with_path(self, place: &mut OsString) -> Result<()> {
        if let Ok(Target::Image { mut image, path }) = Target::parse(place) {
            self.image(&mut image)?;
            let mut text = image.into_os_string();
            text.push(":/");
            text.push(OsString::from_vec(path));
            *place = text;
        }
        Ok(())
    }
}
