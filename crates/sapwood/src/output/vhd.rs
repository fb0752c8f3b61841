//! VHD of fixed size: the bytes of the disk, and a footer of 512 bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use super::{Copy, Identity, OutputError, OutputFormat, Result, UNIT as PIECE};

/// The size of a disk is a multiple of this. Azure accepts no other.
pub(crate) const UNIT: u64 = 1 << 20;
/// Largest disk.
const MOST: u64 = 2040 << 30;
const FOOTER: usize = 512;
/// 2000-01-01 00:00 UTC, from which times are counted, in seconds of Unix time.
const EPOCH: u64 = 946_684_800;
/// Place of the checksum in the footer.
const CHECKSUM: usize = 64;

pub(super) fn write(copy: &mut Copy<'_, '_>, out: &File, identity: Identity) -> Result<()> {
    let size = copy.source.len().next_multiple_of(UNIT);
    if size > MOST {
        return Err(OutputError::TooLarge {
            format: OutputFormat::Vhd,
            size,
            most: MOST,
        });
    }
    copy.each(PIECE, |at, bytes| Ok(out.write_all_at(bytes, at)?))?;
    let written = out.write_all_at(&footer(size, identity), size);
    written.map_err(|error| copy.failed(error))
}

fn footer(size: u64, Identity { uuid, time }: Identity) -> [u8; FOOTER] {
    let since = time.duration_since(SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH));
    let seconds = since.map_or(0, |since| since.as_secs());
    let (cylinders, heads, sectors) = geometry(size / 512);
    let mut footer = [0; FOOTER];
    let fields: [(usize, &[u8]); 12] = [
        (0, b"conectix"),
        // No features, but a bit that is always set.
        (8, &2_u32.to_be_bytes()),
        (12, &0x0001_0000_u32.to_be_bytes()),
        // No header follows, as the size is fixed.
        (16, &u64::MAX.to_be_bytes()),
        (
            24,
            &u32::try_from(seconds).unwrap_or(u32::MAX).to_be_bytes(),
        ),
        // Readers take the size from the geometry, unless the creator is one that they know.
        (28, b"win \x00\x0a\x00\x00Wi2k"),
        (40, &size.to_be_bytes()),
        (48, &size.to_be_bytes()),
        (56, &cylinders.to_be_bytes()),
        (58, &[heads, sectors]),
        // A disk of fixed size.
        (60, &2_u32.to_be_bytes()),
        (68, &uuid),
    ];
    for (at, bytes) in fields {
        for (place, byte) in footer.iter_mut().skip(at).zip(bytes) {
            *place = *byte;
        }
    }
    let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
    for (place, byte) in footer.iter_mut().skip(CHECKSUM).zip((!sum).to_be_bytes()) {
        *place = byte;
    }
    footer
}

/// Cylinders, heads and sectors of a track: the largest geometry of at most this many sectors, by
/// the rule of the format.
fn geometry(sectors: u64) -> (u16, u8, u8) {
    let sectors = sectors.min(65_535 * 16 * 255);
    let (tracks, heads, per_track) = if sectors >= 65_535 * 16 * 63 {
        (sectors / 255, 16, 255)
    } else {
        let tracks = sectors / 17;
        let heads = tracks.div_ceil(1024).max(4);
        if tracks < heads * 1024 && heads <= 16 {
            (tracks, heads, 17)
        } else if sectors / 31 < 16 * 1024 {
            (sectors / 31, 16, 31)
        } else {
            (sectors / 63, 16, 63)
        }
    };
    let cylinders = u16::try_from(tracks / heads).unwrap_or(u16::MAX);
    (cylinders, heads as u8, per_track)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometry_is_no_larger_than_the_disk() {
        for mib in [1, 3, 64, 500, 504, 4096, 130_000, 1 << 20] {
            let sectors = mib << 11_u64;
            let (cylinders, heads, per_track) = geometry(sectors);
            let all = u64::from(cylinders) * u64::from(heads) * u64::from(per_track);
            assert!(all <= sectors && heads <= 16, "{mib} MiB");
            // All except a cylinder, as far as the format can express it.
            let most = 65_535 * 16 * 255;
            assert!(all + 16 * 255 >= sectors.min(most), "{mib} MiB: {all}");
        }
    }

    #[test]
    fn the_sum_of_a_footer_is_its_checksum() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH + 5);
        let uuid = [7; 16];
        let footer = footer(UNIT, Identity { uuid, time });
        let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
        let stored: [u8; 4] = footer[CHECKSUM..CHECKSUM + 4].try_into().unwrap();
        let own: u32 = stored.iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(!(sum - own), u32::from_be_bytes(stored));
        assert_eq!(footer[24..28], 5_u32.to_be_bytes());
    }
}
