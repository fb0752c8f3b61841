//! Errors of the block layer.

use std::io;

/// Why a device request failed.
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
        /// Bytes asked for.
        len: u64,
        /// What the host said.
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
        /// Bytes asked for.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// A write to a device that was opened read-only.
    #[error("{device}: opened read-only")]
    ReadOnly {
        /// Device name.
        device: String,
    },
    /// Somebody else holds the lock of the device.
    #[error("{device}: in use by another mount or program")]
    Busy {
        /// Device name.
        device: String,
    },
    /// The device could not be opened.
    #[error("{device}: {source}")]
    Open {
        /// Device name.
        device: String,
        /// What the host said.
        #[source]
        source: io::Error,
    },
}

/// Result of a device request.
pub type Result<T> = std::result::Result<T, Error>;
