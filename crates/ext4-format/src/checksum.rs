//! The two checksums of ext4 and their seeds.
//!
//! Both are *raw*: the register starts with the seed and is not inverted at the end. A sum can be
//! continued over further bytes by passing it as the next seed.

/// CRC-32C (Castagnoli) over `bytes`, the register starting as `seed`.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // The crate inverts the register before and after.
    !::crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 (polynomial 0x8005, reflected) over `bytes`, the register starting as `seed`.
pub(crate) fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, byte| {
        (crc >> 8) ^ CRC16_TABLE[usize::from((crc as u8) ^ byte)]
    })
}

/// Seed of all metadata checksums of a file system with that UUID.
pub fn uuid_seed(uuid: &[u8; 16]) -> u32 {
    crc32c(!0, uuid)
}

/// Seed of the checksums of everything that belongs to one inode: directory blocks, extent blocks,
/// the inode.
pub fn inode_seed(fs_seed: u32, ino: u32, generation: u32) -> u32 {
    crc32c(
        crc32c(fs_seed, &ino.to_le_bytes()),
        &generation.to_le_bytes(),
    )
}

/// The generation that gives inode `to` the seed of inode `from` with `generation`, so that the
/// inode's structures keep their checksums under the new number.
pub fn same_seed_generation(fs_seed: u32, from: u32, to: u32, generation: u32) -> u32 {
    // The register takes four bytes in by xor, before it is permuted.
    let register = |ino: u32| crc32c(fs_seed, &ino.to_le_bytes());
    generation ^ register(from) ^ register(to)
}

static CRC16_TABLE: [u16; 256] = crc16_table();

const fn crc16_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0xa001 } else { 0 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums_of_the_check_string() {
        // CRC-32C's published check value is inverted at the end; this one is not.
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        // CRC-16/MODBUS: seed all ones, no inversion at the end.
        assert_eq!(crc16(!0, b"123456789"), 0x4b37);
        // CRC-16/ARC: seed zero.
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
    }

    #[test]
    fn a_sum_continues_over_pieces() {
        let bytes = b"some bytes of a descriptor";
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(crc32c(crc32c(7, a), b), crc32c(7, bytes));
            assert_eq!(crc16(crc16(7, a), b), crc16(7, bytes));
        }
        let seed = uuid_seed(&[9; 16]);
        assert_ne!(inode_seed(seed, 12, 0), inode_seed(seed, 13, 0));
        assert_ne!(inode_seed(seed, 12, 0), inode_seed(seed, 12, 1));
    }

    #[test]
    fn another_generation_keeps_the_seed_of_another_number() {
        let seed = uuid_seed(&[9; 16]);
        for (from, to, generation) in [(12, 13, 0), (u32::MAX, 11, 0xdead_beef), (70_001, 500, 7)] {
            let other = same_seed_generation(seed, from, to, generation);
            assert_ne!(other, generation);
            assert_eq!(
                inode_seed(seed, from, generation),
                inode_seed(seed, to, other)
            );
        }
        assert_eq!(same_seed_generation(seed, 12, 12, 5), 5);
    }
}
