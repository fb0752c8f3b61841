//! Detection of the file system on a device, by magic numbers.

use std::fmt;
use std::str::FromStr;

use sapwood_block::Device;

/// A format that an engine implements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// btrfs.
    Btrfs,
    /// ext4, and ext2 and ext3, which have the same magic number.
    Ext4,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Btrfs, Self::Ext4];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Ext4 => "ext4",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name of no [`Kind`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no kind of file system named {0:?}: btrfs, ext4")]
pub(crate) struct UnknownKind(String);

impl FromStr for Kind {
    type Err = crate::Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        Ok(found.ok_or_else(|| UnknownKind(text.to_owned()))?)
    }
}

/// Errors of the detection.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// The device cannot be read.
    #[error("{0}")]
    Device(#[from] sapwood_block::Error),
    /// No known magic number.
    #[error("no file system that we know: neither btrfs nor ext4 (nor ext2, ext3)")]
    Neither,
    /// The device is encrypted.
    #[error("a LUKS volume: a key opens it")]
    Encrypted,
    /// Superblocks of both formats.
    #[error(
        "superblocks of both btrfs and ext4: remove what is left of the older one (wipefs(8)) first"
    )]
    Both,
}

/// Bytes from a btrfs superblock's start to its magic number (kernel, `struct btrfs_super_block`).
const BTRFS_MAGIC_AT: u64 = 0x40;
const BTRFS_MAGIC: &[u8; 8] = b"_BHRfS_M";
/// Where btrfs keeps its superblock and the copies of it, in bytes.
const BTRFS_SUPERS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// The offset of ext4's magic number: 56 bytes into the superblock, which begins at 1024 (kernel
/// documentation, `ext4/super.rst`).
const EXT4_MAGIC_AT: u64 = 1024 + 56;
const EXT4_MAGIC: u16 = 0xEF53;

/// Detects the format of the file system on a device.
///
/// The copies of the btrfs superblock count only if neither format has its first one: in an ext4
/// image, any data may be at their offsets.
///
/// # Errors
/// [`DetectError`]: no known format, or more than one; a LUKS volume.
pub fn detect(device: &dyn Device) -> Result<Kind, DetectError> {
    let [first, copies @ ..] = BTRFS_SUPERS;
    // The area of its key slots may have any bytes at the places of superblocks.
    if sapwood_luks::is_luks(device)? {
        return Err(DetectError::Encrypted);
    }
    match (has_btrfs(device, first)?, has_ext4(device)?) {
        (true, true) => return Err(DetectError::Both),
        (true, _) => return Ok(Kind::Btrfs),
        (false, true) => return Ok(Kind::Ext4),
        (false, _) => {}
    }
    for copy in copies {
        if has_btrfs(device, copy)? {
            return Ok(Kind::Btrfs);
        }
    }
    Err(DetectError::Neither)
}

fn has_btrfs(device: &dyn Device, super_block: u64) -> Result<bool, DetectError> {
    let magic: Option<[u8; 8]> = bytes(device, super_block + BTRFS_MAGIC_AT)?;
    Ok(magic.is_some_and(|magic| magic == *BTRFS_MAGIC))
}

fn has_ext4(device: &dyn Device) -> Result<bool, DetectError> {
    let magic: Option<[u8; 2]> = bytes(device, EXT4_MAGIC_AT)?;
    Ok(magic.is_some_and(|magic| u16::from_le_bytes(magic) == EXT4_MAGIC))
}

/// The bytes at a place; `None` if the device ends before.
fn bytes<const N: usize>(device: &dyn Device, at: u64) -> Result<Option<[u8; N]>, DetectError> {
    if device.size().saturating_sub(N as u64) < at {
        return Ok(None);
    }
    let mut buf = [0; N];
    device.read_at(at, &mut buf)?;
    Ok(Some(buf))
}

#[cfg(test)]
mod tests {
    use sapwood_block::MemoryDevice;

    use super::*;

    fn image(size: u64, parts: &[(u64, &[u8])]) -> MemoryDevice {
        let device = MemoryDevice::new(size);
        for (at, bytes) in parts {
            device.write_at(*at, bytes).unwrap();
        }
        device
    }

    const EXT4: (u64, &[u8]) = (1080, &[0x53, 0xEF]);
    const BTRFS: (u64, &[u8]) = (65_600, b"_BHRfS_M");
    const BTRFS_COPY: (u64, &[u8]) = ((64 << 20) + 64, b"_BHRfS_M");

    #[test]
    fn kinds_are_told_apart() {
        let size = 65 << 20;
        assert_eq!(detect(&image(size, &[BTRFS])).unwrap(), Kind::Btrfs);
        assert_eq!(detect(&image(size, &[EXT4])).unwrap(), Kind::Ext4);
        assert_eq!(detect(&image(size, &[BTRFS_COPY])).unwrap(), Kind::Btrfs);
        let data_in_the_way = image(size, &[EXT4, BTRFS_COPY]);
        assert_eq!(detect(&data_in_the_way).unwrap(), Kind::Ext4);
    }

    #[test]
    fn what_cannot_be_told_is_an_error() {
        let both = detect(&image(1 << 20, &[EXT4, BTRFS]));
        assert!(matches!(both, Err(DetectError::Both)), "{both:?}");
        for size in [0, 512, 1081, 4096, 65_607, 1 << 20] {
            let found = detect(&image(size, &[]));
            assert!(matches!(found, Err(DetectError::Neither)), "{found:?}");
        }
        // The magic number is the last thing in the image.
        assert_eq!(detect(&image(1082, &[EXT4])).unwrap(), Kind::Ext4);
    }

    #[test]
    fn names_lead_back_to_kinds() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse::<Kind>().unwrap(), kind);
        }
        assert!("ext9".parse::<Kind>().is_err());
    }
}
