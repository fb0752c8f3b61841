//! Checksums of journals.

/// CRC-32C continued from `seed`, without inversion at either end.
pub(crate) fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-32 with the most significant bit first (polynomial 0x04c11db7), continued from `seed`.
/// Checksums of version 1 use it.
pub(crate) fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let at = (crc >> 24) as u8 ^ byte;
        (crc << 8) ^ BE_TABLE[usize::from(at)]
    };
    bytes.iter().fold(seed, step)
}

const BE_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut crc = (at as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            let carry = crc >> 31;
            crc = (crc << 1) ^ (carry * 0x04c1_1db7);
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_the_catalogue() {
        // The check values of CRC-32/ISCSI and CRC-32/MPEG-2 in the CRC catalogue.
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
        assert_eq!(
            crc32c(crc32c(!0, b"1234"), b"56789"),
            crc32c(!0, b"123456789")
        );
    }
}
