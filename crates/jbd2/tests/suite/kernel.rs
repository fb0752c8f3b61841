//! Journals that the kernel wrote: a scan finds the transactions that debugfs shows.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice, OverlayDevice};
use sapwood_jbd2::{FastCommits, Incompat, LayoutMap, LayoutRun, Log};

const BLOCK: u64 = 1024;

/// Name of an image; sequence number, blocks and revokes of each transaction in its journal.
type Journal = (&'static str, &'static [(u32, u64, u64)]);

const JOURNALS: [Journal; 5] = [
    (
        "newfile",
        &[
            (2, 7, 0),
            (3, 6, 0),
            (4, 6, 0),
            (5, 1, 0),
            (6, 7, 0),
            (7, 3, 0),
        ],
    ),
    (
        "truncate",
        &[
            (2, 7, 0),
            (3, 6, 0),
            (4, 6, 0),
            (5, 1, 0),
            (6, 4, 0),
            (7, 4, 0),
        ],
    ),
    (
        "rename_after_dirfsync",
        &[
            (2, 7, 0),
            (3, 6, 0),
            (4, 11, 0),
            (5, 1, 0),
            (6, 5, 0),
            (7, 4, 0),
            (8, 7, 0),
        ],
    ),
    (
        "unlinked_fsync",
        &[
            (2, 7, 0),
            (3, 6, 0),
            (4, 6, 0),
            (5, 1, 0),
            (6, 4, 0),
            (7, 1, 0),
        ],
    ),
    ("fast_commit-truncate", &[(2, 7, 0), (3, 6, 0), (4, 1, 0)]),
];

fn image(name: &str) -> MemoryDevice {
    let path = format!("{}/tests/data/{name}.img.zst", env!("CARGO_MANIFEST_DIR"));
    let packed = std::fs::read(path).unwrap();
    MemoryDevice::from_bytes(&zstd::decode_all(&packed[..]).unwrap())
}

fn number(device: &dyn Device, offset: u64, bytes: usize) -> u64 {
    let mut raw = [0; 8];
    device.read_at(offset, &mut raw[..bytes]).unwrap();
    u64::from_le_bytes(raw)
}

/// Layout of the journal in such an image, from the extents in inode 8.
fn layout(device: &dyn Device) -> LayoutMap {
    assert_eq!(number(device, 1024 + 0x18, 4), 0, "blocks of 1 KiB");
    let inode_size = number(device, 1024 + 0x58, 2);
    let table = number(device, 2 * BLOCK + 8, 4);
    let tree = table * BLOCK + 7 * inode_size + 0x28;
    assert_eq!(number(device, tree, 2), 0xf30a);
    assert_eq!(number(device, tree + 6, 2), 0, "depth");
    let run = |n: u64| {
        let at = tree + 12 + 12 * n;
        LayoutRun {
            logical: number(device, at, 4),
            physical: number(device, at + 8, 4),
            len: number(device, at + 4, 2),
        }
    };
    let runs = (0..number(device, tree + 2, 2)).map(run).collect();
    LayoutMap::new(runs, device.size() / BLOCK).unwrap()
}

fn load(device: Arc<dyn Device>) -> Log {
    let layout = layout(&*device);
    Log::load(device, layout, BLOCK as u32).unwrap()
}

#[test]
fn a_scan_finds_what_the_kernel_committed() {
    for (name, expected) in JOURNALS {
        let log = load(Arc::new(image(name)));
        assert!(log.needs_recovery());
        assert!(log.features().contains(Incompat::CSUM_V3 | Incompat::WIDE));
        let plan = log.scan(&|_| true).unwrap();
        let found: Vec<_> = plan
            .transactions()
            .iter()
            .map(|one| (one.sequence, one.blocks, one.revokes))
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn recovery_twice_and_in_an_overlay_gives_the_same() {
    for (name, expected) in JOURNALS {
        let device = Arc::new(image(name));
        let before = device.snapshot();
        let log = load(device.clone());
        let overlay = OverlayDevice::new(device.clone());
        let seen = log.scan(&|_| true).unwrap().replay(&overlay).unwrap();
        assert_eq!(device.first_difference(&before), None, "{name}");

        let plan = log.scan(&|_| true).unwrap();
        let targets: Vec<u64> = plan.targets().collect();
        assert_eq!(plan.replay(&*device).unwrap(), seen);
        assert_eq!(seen.last, expected.last().map(|one| one.0));
        for target in &targets {
            let mut pair = [[0; BLOCK as usize]; 2];
            device.read_at(target * BLOCK, &mut pair[0]).unwrap();
            overlay.read_at(target * BLOCK, &mut pair[1]).unwrap();
            assert_eq!(pair[0], pair[1], "{name}: block {target}");
        }
        // A crash before the reset: the recovery gives the same result again.
        let after = device.snapshot();
        let again = load(device.clone());
        let plan = again.scan(&|_| true).unwrap();
        let recovery = plan.replay(&*device).unwrap();
        assert_eq!(device.first_difference(&after), None, "{name}");
        again.reset(&recovery).unwrap();
        let clean = load(device);
        assert!(!clean.needs_recovery());
        assert_eq!(clean.scan(&|_| true).unwrap().transactions().len(), 0);
    }
}

#[test]
fn the_fast_commit_area_follows_the_log() {
    let device = Arc::new(image("fast_commit-truncate"));
    let log = load(device.clone());
    assert_eq!((log.size(), log.fast_commit_blocks()), (4095, 63));
    let recovery = log.scan(&|_| true).unwrap().replay(&*device).unwrap();
    let expected = FastCommits {
        blocks: 63,
        expected: 5,
    };
    assert_eq!(recovery.fast_commit, Some(expected));
    let mut block = vec![0; BLOCK as usize];
    log.read_fast_commit(0, &mut block).unwrap();
    // A head tag (9, of 8 bytes): features 0, transaction 5.
    assert_eq!(block[..12], [9, 0, 8, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
    assert!(log.read_fast_commit(63, &mut block).is_err());
}
