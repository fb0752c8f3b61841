//! Errors of encrypted volumes. None of them holds a part of a key.

/// Errors of encrypted volumes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device that holds the volume.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The device does not begin with a LUKS header.
    #[error("{device}: no LUKS volume")]
    NoHeader {
        /// Device.
        device: String,
    },
    /// A version that does not exist yet.
    #[error("{device}: LUKS version {version}; Sapwood has 1 and 2")]
    Version {
        /// Device.
        device: String,
        /// Version of the header.
        version: u16,
    },
    /// Both copies of a LUKS2 header are damaged.
    #[error("{device}: both copies of the LUKS2 header are damaged")]
    Damaged {
        /// Device.
        device: String,
    },
    /// The metadata of LUKS2 is no JSON of its form.
    #[error("LUKS2 metadata: {0}")]
    Metadata(#[from] serde_json::Error),
    /// A field of a header makes no sense.
    #[error("LUKS header: {field} is {value}")]
    Field {
        /// Field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The volume needs what Sapwood does not have.
    #[error("LUKS volume with {0}, which Sapwood does not support")]
    Unsupported(String),
    /// The derivation of a key would take very long or very much memory.
    #[error("LUKS header: {what} {value} is more than the limit of {limit}")]
    Cost {
        /// Iterations, passes or KiB.
        what: &'static str,
        /// The value of the header.
        value: u64,
        /// Most that is accepted.
        limit: u64,
    },
    /// There is not enough memory to derive a key.
    #[error("no memory to derive a key: it takes {0} KiB")]
    NoMemory(u64),
    /// No key slot opens with the key.
    #[error("{device}: the key opens none of the {slots} key slots")]
    WrongKey {
        /// Device.
        device: String,
        /// Key slots that were tried.
        slots: usize,
    },
    /// The device is too small for the header or the volume.
    #[error("{device}: {size} bytes, but the LUKS volume needs {needed}")]
    TooSmall {
        /// Device.
        device: String,
        /// Bytes.
        size: u64,
        /// Needed bytes.
        needed: u64,
    },
    /// The system has no random numbers.
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The volume of a header is on another device: its data begins at byte 0.
pub(crate) fn detached() -> Error {
    Error::Unsupported("a detached header".to_owned())
}

/// A field that makes no sense.
pub(crate) fn field(field: &'static str, value: impl ToString) -> Error {
    Error::Field {
        field,
        value: value.to_string(),
    }
}
