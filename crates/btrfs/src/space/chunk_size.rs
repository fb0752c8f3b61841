//! How large a new chunk is.

use sapwood_btrfs_format::BlockGroupFlags;

use super::devices::STRIPE_LEN;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Number of copies on one device that a profile makes, `None` for profiles over several.
pub(crate) fn copies_on_device(flags: BlockGroupFlags) -> Option<u64> {
    match flags.profile() {
        p if p.is_empty() => Some(1),
        BlockGroupFlags::DUP => Some(2),
        _ => None,
    }
}

/// Bytes that a chunk of this content should have on a file system of `total` bytes: data 1 GiB,
/// metadata 256 MiB (1 GiB from 50 GiB on), system 32 MiB, never more than a tenth of it all.
pub(crate) fn wanted(content: BlockGroupFlags, total: u64) -> u64 {
    let usual = if content.contains(BlockGroupFlags::DATA) {
        GIB
    } else if content.contains(BlockGroupFlags::SYSTEM) {
        32 * MIB
    } else if total > 50 * GIB {
        GIB
    } else {
        256 * MIB
    };
    let tenth = (total / 10).next_multiple_of(STRIPE_LEN);
    usual.min(tenth).max(STRIPE_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_content_and_total() {
        let (data, system) = (BlockGroupFlags::DATA, BlockGroupFlags::SYSTEM);
        let metadata = BlockGroupFlags::METADATA;
        assert_eq!(wanted(data, 100 * GIB), GIB);
        assert_eq!(wanted(data | metadata, 100 * GIB), GIB);
        assert_eq!(wanted(metadata, 10 * GIB), 256 * MIB);
        assert_eq!(wanted(metadata, 51 * GIB), GIB);
        assert_eq!(wanted(system, 10 * GIB), 32 * MIB);
        assert_eq!(wanted(data, 100 * MIB), 10 * MIB);
        assert_eq!(wanted(data, 0), STRIPE_LEN);
    }
}
