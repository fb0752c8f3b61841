//! Device numbers in the 64-bit encoding of Linux for user space, on every host. `makedev(3)`
//! describes it: the low 12 bits of the major number and the low 8 bits of the minor number are in
//! the low 20 bits, the others above them.

/// The major number.
#[must_use]
pub fn major(device: u64) -> u32 {
    (((device >> 32) & 0xffff_f000) | ((device >> 8) & 0xfff)) as u32
}

/// The minor number.
#[must_use]
pub fn minor(device: u64) -> u32 {
    (((device >> 12) & 0xffff_ff00) | (device & 0xff)) as u32
}

/// The device number of a major and a minor number.
#[must_use]
pub fn make(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    ((major & 0xffff_f000) << 32)
        | ((major & 0xfff) << 8)
        | ((minor & 0xffff_ff00) << 12)
        | (minor & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for (numbers, device) in [
            ((1, 3), 0x103),
            ((8, 1), 0x801),
            ((259, 70_000), 0x1111_0370),
            ((u32::MAX, u32::MAX), u64::MAX),
        ] {
            assert_eq!(make(numbers.0, numbers.1), device);
            assert_eq!((major(device), minor(device)), numbers);
        }
    }
}
