//! The formats in which a new image is written.
//!
//! # How it works
//! An image is built as a raw file without a name. It is then written in the wanted format into
//! another such file, which gets the name. The output depends only on the bytes of the image, and
//! for VHD on a UUID and a time. The holes of the raw file, the number of threads and the machine
//! have no effect.

mod android;
mod qcow2;
mod source;
mod vhd;
mod zstd;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use crate::new_file::NewFile;
use crate::progress::{OnProgress, Progress};
use source::Source;
pub(crate) use vhd::UNIT as VHD_UNIT;

/// The phase of [`Progress::Done`] in which an image is converted; its unit is the MiB.
pub const CONVERTING: &str = "converting";

/// A format in which a new image is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OutputFormat {
    /// The bytes of the disk, with holes.
    #[default]
    Raw,
    /// qcow2, version 3.
    Qcow2,
    /// VHD of fixed size. The size of the disk is rounded up to whole MiB, as Azure requires.
    Vhd,
    /// Android sparse image, version 1.0, with blocks of 4096 bytes.
    AndroidSparse,
    /// The bytes of the disk, compressed with zstd in the seekable format.
    Zstd,
}

impl OutputFormat {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Raw,
        Self::Qcow2,
        Self::Vhd,
        Self::AndroidSparse,
        Self::Zstd,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vhd => "vhd",
            Self::AndroidSparse => "android-sparse",
            Self::Zstd => "zstd",
        }
    }
}

impl fmt::Display for OutputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No format has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("formats are raw, qcow2, vhd, android-sparse and zstd")]
pub(crate) struct UnknownFormat;

impl FromStr for OutputFormat {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|format| format.name() == text);
        Ok(found.ok_or(UnknownFormat)?)
    }
}

/// Why an image could not be written in its format.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The raw image could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The raw image.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The image could not be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The image.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The qcow2 file could not be written.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The disk is too large for the format.
    #[error("a disk of {size} bytes is too large for {format}: at most {most}")]
    TooLarge {
        /// The format.
        format: OutputFormat,
        /// Bytes of the disk.
        size: u64,
        /// Largest size.
        most: u64,
    },
}

type Result<T> = std::result::Result<T, OutputError>;

/// Fields of a format besides the bytes of the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) uuid: [u8; 16],
    pub(crate) time: SystemTime,
}

/// Writes the raw image `raw` in another format into the empty file `out`.
///
/// # Errors
/// [`OutputError`], with the name of `out`.
pub(crate) fn convert(
    raw: &NewFile,
    out: &NewFile,
    format: OutputFormat,
    identity: Identity,
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    let source = Source::of(raw)?;
    progress(Progress::Total(source.len() >> 20));
    let mut copy = Copy {
        source,
        path: out.path(),
        progress,
    };
    match format {
        OutputFormat::Qcow2 => qcow2::write(&mut copy, out),
        OutputFormat::Vhd => vhd::write(&mut copy, out.file(), identity),
        OutputFormat::AndroidSparse => android::write(&mut copy, out.file()),
        OutputFormat::Zstd => zstd::write(&mut copy, out.file()),
        OutputFormat::Raw => copy.raw(out.file()),
    }
}

/// A conversion.
struct Copy<'c, 'p> {
    source: Source,
    path: &'c Path,
    progress: &'c mut OnProgress<'p>,
}

impl Copy<'_, '_> {
    /// The error of a write.
    fn failed(&self, source: io::Error) -> OutputError {
        OutputError::Write {
            path: self.path.to_owned(),
            source,
        }
    }

    /// Calls `write` for each unit of the disk that is not zero, in order, with its offset. The
    /// last one may be shorter.
    fn each(
        &mut self,
        unit: usize,
        mut write: impl FnMut(u64, &[u8]) -> std::result::Result<(), Failed>,
    ) -> Result<()> {
        let (progress, path) = (&mut *self.progress, self.path);
        let written = self.source.each(unit, &mut |at, bytes| {
            progress(Progress::Done {
                phase: CONVERTING,
                done: at >> 20,
            });
            write(at, bytes)
        });
        written.map_err(|failed| match failed {
            Failed::Done(error) => error,
            Failed::Write(source) => OutputError::Write {
                path: path.to_owned(),
                source,
            },
        })
    }

    /// Writes the bytes of the disk, without zeros.
    fn raw(&mut self, out: &File) -> Result<()> {
        use std::os::unix::fs::FileExt;

        let sized = out.set_len(self.source.len());
        sized.map_err(|error| self.failed(error))?;
        self.each(UNIT, |at, bytes| Ok(out.write_all_at(bytes, at)?))
    }
}

/// Bytes that are left out if they are zero.
const UNIT: usize = 64 << 10;

/// Why a conversion ends.
enum Failed {
    /// The output.
    Write(io::Error),
    /// Anything else.
    Done(OutputError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl From<OutputError> for Failed {
    fn from(error: OutputError) -> Self {
        Self::Done(error)
    }
}

impl From<sapwood_block::Error> for Failed {
    fn from(error: sapwood_block::Error) -> Self {
        Self::Done(error.into())
    }
}
