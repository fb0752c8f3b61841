//! `mkfs`: superblocks, refusals, the state after a device failure. `mkfs_kernel.rs` has the
//! kernel's judgement.

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::mkfs::{MkfsError, MkfsOptions, Profile, mkfs};
use sapwood_btrfs_format::{SUPER_OFFSETS, validate_super};
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds};

const MIB: u64 = 1 << 20;

fn options() -> MkfsOptions {
    MkfsOptions::default()
}

#[test]
fn every_superblock_that_fits_is_written() {
    for (size, count) in [(64 * MIB + 4095, 1), (64 * MIB + 4096, 2), (300 << 30, 3)] {
        let device = MemoryDevice::new(size);
        let uuid = [7; 16];
        let made = MkfsOptions {
            uuid: Some(uuid),
            label: "läbel".into(),
            ..options()
        };
        assert_eq!(mkfs(&device, &made).unwrap().uuid, uuid);
        for at in SUPER_OFFSETS.into_iter().take(count) {
            let mut bytes = vec![0; 4096];
            device.read_at(at, &mut bytes).unwrap();
            let sb = validate_super(&bytes, at).unwrap();
            assert_eq!((sb.fsid, sb.label_bytes()), (uuid, "läbel".as_bytes()));
        }
    }
}

#[test]
fn what_is_there_is_not_overwritten_without_force() {
    let device = MemoryDevice::new(32 * MIB);
    mkfs(&device, &options()).unwrap();
    let before = device.snapshot();
    match mkfs(&device, &options()) {
        Err(MkfsError::Occupied { what, .. }) => assert_eq!(what, "a btrfs file system"),
        other => panic!("{other:?}"),
    }
    assert_eq!(device.first_difference(&before), None);
    let forced = MkfsOptions {
        force: true,
        ..options()
    };
    assert_eq!(
        mkfs(&device, &forced).unwrap().replaced,
        Some("a btrfs file system")
    );

    let device = MemoryDevice::new(32 * MIB);
    device.write_at(1080, &[0x53, 0xef]).unwrap();
    assert!(matches!(
        mkfs(&device, &options()),
        Err(MkfsError::Occupied { .. })
    ));
}

#[test]
fn an_old_file_system_leaves_nothing_behind() {
    let device = MemoryDevice::new(128 * MIB);
    mkfs(&device, &options()).unwrap();
    device.write_at(0, &[1; 512]).unwrap();
    let second = MkfsOptions {
        force: true,
        discard: false,
        size: Some(32 * MIB),
        ..options()
    };
    mkfs(&device, &second).unwrap();
    let mut begin = [1; 512];
    device.read_at(0, &mut begin).unwrap();
    assert_eq!(begin, [0; 512]);
    let mut far = vec![0; 4096];
    device.read_at(SUPER_OFFSETS[1], &mut far).unwrap();
    assert!(
        validate_super(&far, SUPER_OFFSETS[1]).is_err(),
        "a superblock of the old one"
    );
}

#[test]
fn impossible_options_are_refused_before_the_first_write() {
    let device = MemoryDevice::new(64 * MIB);
    let refuse = |options: MkfsOptions| mkfs(&device, &options).unwrap_err();
    for size in [0, 2048, 6000, 131_072] {
        let made = MkfsOptions {
            node_size: Some(size),
            ..options()
        };
        assert!(matches!(refuse(made), MkfsError::NodeSize(n) if n == size));
    }
    let made = MkfsOptions {
        mixed: true,
        node_size: Some(16384),
        ..options()
    };
    assert!(matches!(refuse(made), MkfsError::MixedNodeSize(16384)));
    let (metadata, data) = (Some(Profile::Dup), Some(Profile::Single));
    let made = MkfsOptions {
        mixed: true,
        metadata,
        data,
        ..options()
    };
    assert!(matches!(refuse(made), MkfsError::MixedProfiles));
    let made = MkfsOptions {
        block_group_tree: Some(true),
        no_holes: false,
        ..options()
    };
    assert!(matches!(refuse(made), MkfsError::BlockGroupTree));
    let made = MkfsOptions {
        label: "x".repeat(256),
        ..options()
    };
    assert!(matches!(refuse(made), MkfsError::Label(256)));
    let made = MkfsOptions {
        size: Some(65 * MIB),
        ..options()
    };
    assert!(matches!(refuse(made), MkfsError::PastEnd { .. }));
    let made = MkfsOptions {
        size: Some(23 * MIB),
        ..options()
    };
    assert!(matches!(refuse(made), MkfsError::TooSmall { .. }));
    let made = MkfsOptions {
        data_chunk: Some(MIB + 1),
        ..options()
    };
    assert!(matches!(refuse(made), MkfsError::ChunkSize { .. }));
    assert_eq!(device.resident_bytes(), 0);
}

#[test]
fn a_failing_write_or_flush_leaves_no_half_made_file_system() {
    let old = MemoryDevice::new(24 * MIB);
    mkfs(&old, &options()).unwrap();
    let again = MkfsOptions {
        force: true,
        discard: false,
        ..options()
    };
    let changes = RequestKinds::WRITE | RequestKinds::FUA | RequestKinds::FLUSH;
    for n in 1.. {
        let device = FaultDevice::new(old.snapshot());
        device.arm(FaultRule::new(changes, n, Fault::Fail));
        let made = mkfs(&device, &again);
        let mut bytes = vec![0; 4096];
        device.read_at(SUPER_OFFSETS[0], &mut bytes).unwrap();
        let found = validate_super(&bytes, SUPER_OFFSETS[0]);
        match made {
            Ok(report) => {
                assert_eq!(found.unwrap().fsid, report.uuid);
                assert!(n > 20, "a failure at {n} was not noticed");
                return;
            }
            Err(MkfsError::Device(_)) => {
                // Only the last flush comes after the superblock; only the first write before
                // the old one is wiped.
                let new = found.is_ok_and(|sb| sb.bytes() != superblock(&old));
                assert!(!new || n > 20, "superblock without trees after failure {n}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn superblock(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    device.read_at(SUPER_OFFSETS[0], &mut bytes).unwrap();
    bytes
}
