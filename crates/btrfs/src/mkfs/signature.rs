//! What a device holds already, by its magic bytes.

use sapwood_block::Device;
use sapwood_btrfs_format::{MAGIC, SUPER_OFFSETS};

use super::MkfsError;

/// Byte offset, magic, what it is.
const SIGNATURES: &[(u64, &[u8], &str)] = &[
    (SUPER_OFFSETS[0] + 64, &MAGIC, "a btrfs file system"),
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

/// Names what is on the device, `None` if nothing known is.
pub(super) fn find(device: &dyn Device) -> Result<Option<&'static str>, MkfsError> {
    for (offset, magic, what) in SIGNATURES {
        let mut found = [0; 16];
        let Some(found) = found.get_mut(..magic.len()) else {
            continue;
        };
        if offset + magic.len() as u64 > device.size() {
            continue;
        }
        device.read_at(*offset, found)?;
        if found == *magic {
            return Ok(Some(what));
        }
    }
    Ok(None)
}
