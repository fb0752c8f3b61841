//! Errors of the block layer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::holder::Holder;

mod nbd;
mod qcow2;

pub use nbd::{NbdError, Violation};
pub use qcow2::Qcow2Error;

/// Errors of a device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The medium or the host refused the request.
    #[error("{device}: {op} of {len} bytes at {offset}: {source}")]
    Io {
        /// Device name.
        device: String,
        /// `read`, `write`, `flush`, ...
        op: &'static str,
        /// Byte offset.
        offset: u64,
        /// Requested bytes.
        len: u64,
        /// The host's error.
        #[source]
        source: io::Error,
    },
    /// The request reaches past the end of the device.
    #[error("{device}: {len} bytes at {offset} reach past the end at {size}")]
    OutOfRange {
        /// Device name.
        device: String,
        /// Byte offset.
        offset: u64,
        /// Requested bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// The image ends before the device's size: another program truncated it while it was open.
    #[error("{device}: the image shrank while in use: {len} bytes at {offset} end early at {end}")]
    Shrunk {
        /// Device name.
        device: String,
        /// Byte offset of the request.
        offset: u64,
        /// Requested bytes.
        len: u64,
        /// The current end of the image, in bytes.
        end: u64,
    },
    /// A write to a device that was opened read-only.
    #[error("{device}: opened read-only")]
    ReadOnly {
        /// Device name.
        device: String,
    },
    /// Another machine took the file system over, or may have done so; nothing is written any
    /// more.
    #[error("{device}: {reason}")]
    TakenOver {
        /// Device name.
        device: String,
        /// The other machine, or the reason to assume that there is one.
        reason: Arc<str>,
    },
    /// The device is in use by another mount or program.
    #[error("{}", busy(device, through.as_deref(), holder))]
    Busy {
        /// Device name.
        device: String,
        /// The loop device over it, or the file below it, that is in use.
        through: Option<PathBuf>,
        /// The user of the device.
        holder: Box<Holder>,
    },
    /// A network block device: its address, its server, or the connection.
    #[error("{device}: {source}")]
    Nbd {
        /// Device name.
        device: String,
        /// The cause.
        #[source]
        source: Arc<NbdError>,
    },
    /// A qcow2 file.
    #[error("{device}: {source}")]
    Qcow2 {
        /// Device name.
        device: String,
        /// The cause.
        #[source]
        source: Qcow2Error,
    },
    /// The changes of one transaction overwrite more than can be applied at once.
    #[error("{device}: one transaction can overwrite at most {limit} bytes of what is stored")]
    StagedTooMuch {
        /// Device name.
        device: String,
        /// Bytes that it can overwrite.
        limit: u64,
    },
    /// The device could not be opened.
    #[error("{device}: {source}")]
    Open {
        /// Device name.
        device: String,
        /// The host's error.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Creates an [`Error::Io`]; takes the errors of `rustix` and `std`.
    pub fn io(
        device: &str,
        op: &'static str,
        offset: u64,
        len: u64,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io {
            device: device.to_owned(),
            op,
            offset,
            len,
            source: source.into(),
        }
    }

    /// Whether the host had no space for the write: the image is sparse and its file system full,
    /// or the device is thin. The device is otherwise healthy.
    #[must_use]
    pub fn is_host_full(&self) -> bool {
        let full = |source: &io::Error| {
            let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
            kinds.contains(&source.kind())
        };
        matches!(self, Self::Io { source, .. } if full(source))
    }

    /// Creates an [`Error::Nbd`].
    pub(crate) fn nbd(device: &str, source: Arc<NbdError>) -> Self {
        Self::Nbd {
            device: device.to_owned(),
            source,
        }
    }

    /// Creates an [`Error::Qcow2`].
    pub(crate) fn qcow2(device: &str, source: Qcow2Error) -> Self {
        Self::Qcow2 {
            device: device.to_owned(),
            source,
        }
    }

    /// Creates an [`Error::Open`].
    pub fn open(device: &str, source: impl Into<io::Error>) -> Self {
        Self::Open {
            device: device.to_owned(),
            source: source.into(),
        }
    }

    /// Creates an [`Error::Busy`]: `holder` uses the device, through `other` if that is given.
    #[must_use]
    pub(crate) fn busy(device: &str, other: Option<&Path>, holder: Holder) -> Self {
        Self::Busy {
            device: device.to_owned(),
            through: other.map(Path::to_owned),
            holder: Box::new(holder),
        }
    }
}

fn busy(device: &str, through: Option<&Path>, holder: &Holder) -> String {
    match through {
        None => format!("{device}: in use{holder}"),
        Some(other) => format!("{device}: in use through {}{holder}", other.display()),
    }
}

/// Checks that `len` bytes at `offset` are on a device of `size` bytes.
///
/// # Errors
/// [`Error::OutOfRange`].
pub fn check_range(device: &str, size: u64, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfRange {
            device: device.to_owned(),
            offset,
            len,
            size,
        }),
    }
}

/// Refuses a write to a read-only device.
///
/// # Errors
/// [`Error::ReadOnly`].
pub fn check_writable(device: &str, read_only: bool) -> Result<()> {
    if read_only {
        return Err(Error::ReadOnly {
            device: device.to_owned(),
        });
    }
    Ok(())
}

/// Result of a device request.
pub type Result<T> = std::result::Result<T, Error>;
