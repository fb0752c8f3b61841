//! The algorithms for new data, and their names.

use std::fmt;
use std::str::FromStr;

use sapwood_btrfs_format::compression as id;

/// Compression of new file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// zlib with a level of 1 to 9.
    Zlib(u8),
    /// LZO; has no levels.
    Lzo,
    /// Zstandard with a level of -15 to 15, but not 0.
    Zstd(i8),
}

impl Compression {
    /// Level of zlib if none is named.
    pub const DEFAULT_ZLIB: u8 = 3;
    /// Level of Zstandard if none is named.
    pub const DEFAULT_ZSTD: i8 = 3;

    /// Number of the algorithm in file extent items.
    pub const fn id(self) -> u8 {
        match self {
            Self::Zlib(_) => id::ZLIB,
            Self::Lzo => id::LZO,
            Self::Zstd(_) => id::ZSTD,
        }
    }

    /// Name of the algorithm, as the property `btrfs.compression` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zlib(_) => "zlib",
            Self::Lzo => "lzo",
            Self::Zstd(_) => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zlib(level) => write!(f, "zlib:{level}"),
            Self::Lzo => f.write_str("lzo"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// A compression that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such compression: {0} (zlib[:1-9], lzo, zstd[:-15..15])")]
pub struct UnknownCompression(String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    /// Parses `zlib`, `zlib:9`, `lzo`, `zstd`, `zstd:-5`; level 0 means the default.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownCompression(text.to_owned());
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level.parse::<i8>().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (name, level.unwrap_or(0)) {
            ("zlib", 0) => Ok(Self::Zlib(Self::DEFAULT_ZLIB)),
            ("zlib", level @ 1..=9) => Ok(Self::Zlib(level as u8)),
            ("lzo", 0) if level.is_none() => Ok(Self::Lzo),
            ("zstd", 0) => Ok(Self::Zstd(Self::DEFAULT_ZSTD)),
            ("zstd", level @ -15..=15) => Ok(Self::Zstd(level)),
            _ => Err(unknown()),
        }
    }
}
