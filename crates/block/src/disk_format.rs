//! [`DiskFormat`]: how a file holds a disk.

/// The form in which a file holds a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFormat {
    /// The file has the bytes of the disk.
    Raw,
    /// A qcow2 file.
    Qcow2,
}

/// A word that names no format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("formats are raw and qcow2")]
pub struct UnknownFormat;

impl std::str::FromStr for DiskFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "raw" => Ok(Self::Raw),
            "qcow2" => Ok(Self::Qcow2),
            _ => Err(UnknownFormat),
        }
    }
}

impl DiskFormat {
    /// `raw` or `qcow2`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}
