//! Finds and wipes the magic bytes of file systems and other formats on a device.
//!
//! For tools that create a file system. They refuse to overwrite an existing one without consent.
//! When they do overwrite it, nothing may remain by which it could still be detected.

use crate::{Device, Result};

/// Byte offset, magic, name.
const SIGNATURES: &[(u64, &[u8], &str)] = &[
    (65_600, b"_BHRfS_M", "a btrfs file system"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32   ", "a FAT file system"),
    (54, b"FAT16   ", "a FAT file system"),
    (54, b"FAT12   ", "a FAT file system"),
    (32_769, b"CD001", "an ISO 9660 file system"),
    (65_588, b"ReIsEr", "a ReiserFS file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (536, b"LVM2 001", "an LVM physical volume"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a RAID member"),
    (512, b"EFI PART", "a GPT partition table"),
    (510, &[0x55, 0xaa], "a partition table or boot sector"),
];

/// Copies of superblocks, which tools search for when the first is missing.
const COPIES: &[(u64, &[u8])] = &[
    ((64 << 20) + 64, b"_BHRfS_M"),
    ((256 << 30) + 64, b"_BHRfS_M"),
];

/// Name of the format on the device; `None` if no known one is found.
///
/// # Errors
/// [`Error::Io`](crate::Error::Io) from the medium.
pub fn find(device: &dyn Device) -> Result<Option<&'static str>> {
    for (offset, magic, what) in SIGNATURES {
        if has(device, *offset, magic)? {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

/// Zeroes the magic bytes of all known formats. Does not flush.
///
/// # Errors
/// [`Error::ReadOnly`](crate::Error::ReadOnly), [`Error::Io`](crate::Error::Io).
pub fn wipe(device: &dyn Device) -> Result<()> {
    let first = SIGNATURES.iter().map(|(offset, magic, _)| (offset, magic));
    let copies = COPIES.iter().map(|(offset, magic)| (offset, magic));
    for (offset, magic) in first.chain(copies) {
        if has(device, *offset, magic)? {
            device.write_at(*offset, &vec![0; magic.len()])?;
        }
    }
    Ok(())
}

fn has(device: &dyn Device, offset: u64, magic: &[u8]) -> Result<bool> {
    if device.size() < offset + magic.len() as u64 {
        return Ok(false);
    }
    let mut found = vec![0; magic.len()];
    device.read_at(offset, &mut found)?;
    Ok(found == magic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn every_detected_signature_is_wiped() {
        for (offset, magic, what) in SIGNATURES {
            let device = MemoryDevice::new(128 << 10);
            device.write_at(*offset, magic).unwrap();
            assert_eq!(find(&device).unwrap(), Some(*what));
            wipe(&device).unwrap();
            assert_eq!(find(&device).unwrap(), None);
        }
    }

    #[test]
    fn copies_are_wiped_too() {
        let device = MemoryDevice::new(65 << 20);
        let (offset, magic) = COPIES[0];
        device.write_at(offset, magic).unwrap();
        wipe(&device).unwrap();
        assert!(!has(&device, offset, magic).unwrap());
    }

    #[test]
    fn small_devices_have_no_far_signatures() {
        for size in [0, 1, 511, 1081] {
            assert_eq!(find(&MemoryDevice::new(size)).unwrap(), None);
        }
    }
}
