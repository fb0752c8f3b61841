//! A check of any image ends, and without a panic.

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs_format::objectid;

use super::editor::Editor;

/// SplitMix64: small, and determined by its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

const TREES: [u64; 14] = [
    objectid::ROOT_TREE,
    objectid::EXTENT_TREE,
    objectid::CHUNK_TREE,
    objectid::DEV_TREE,
    objectid::FS_TREE,
    objectid::CSUM_TREE,
    objectid::UUID_TREE,
    objectid::FREE_SPACE_TREE,
    objectid::BLOCK_GROUP_TREE,
    256,
    257,
    258,
    259,
    260,
];

/// Values that are more often trouble than random ones.
fn nasty(random: &mut Random) -> [u8; 8] {
    let values = [
        0,
        1,
        4096,
        u64::MAX,
        u64::MAX - 4095,
        1 << 63,
        1 << 40,
        16384,
    ];
    match random.below(2) {
        0 => values[random.below(values.len() as u64) as usize].to_le_bytes(),
        _ => random.next().to_le_bytes(),
    }
}

fn survives(device: &MemoryDevice) {
    let options = CheckOptions {
        check_data_csum: true,
        max_findings: 100,
    };
    // Refused or full of findings: both will do.
    let _ = check(&[device], &options, &mut |_| ());
}

#[test]
fn blocks_with_changed_bytes_and_good_checksums() {
    for seed in 0..400 {
        eprintln!("seed {seed}");
        let mut random = Random(seed);
        let editor = Editor::fixture();
        for _ in 0..=random.below(3) {
            let blocks = editor.blocks(TREES[random.below(TREES.len() as u64) as usize]);
            let at = blocks[random.below(blocks.len() as u64) as usize];
            let mut bytes = editor.block(at);
            let header = if random.below(4) == 0 { 32 } else { 101 };
            // The front has the keys, the back the data.
            let span = [1500, bytes.len() as u64 - 200][random.below(2) as usize];
            let place = header + random.below(span) as usize;
            let value = nasty(&mut random);
            let len = [1, 2, 4, 8][random.below(4) as usize];
            bytes[place..place + len].copy_from_slice(&value[..len]);
            editor.write(at, &mut bytes);
            if at == editor.root(objectid::ROOT_TREE) || at == editor.root(objectid::CHUNK_TREE) {
                break;
            }
        }
        survives(&editor.device);
    }
}

#[test]
fn superblocks_with_changed_bytes_and_good_checksums() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut editor = Editor::fixture();
        let at = 32 + random.below(3500) as usize;
        let value = nasty(&mut random);
        editor.superblock(|sb| {
            let mut bytes = sb.bytes().to_vec();
            bytes[at..at + 8].copy_from_slice(&value);
            *sb = sapwood_btrfs_format::SuperBlock::read(&bytes).unwrap();
        });
        survives(&editor.device);
    }
}

#[test]
fn raw_damage_in_all_metadata() {
    for seed in 0..50 {
        let mut random = Random(seed);
        let editor = Editor::fixture();
        for tree in TREES.into_iter().skip(1) {
            for at in editor.blocks(tree) {
                if random.below(5) == 0 {
                    let place = editor.places(at)[0] + random.below(16384);
                    editor.device.write_at(place, &nasty(&mut random)).unwrap();
                }
            }
        }
        survives(&editor.device);
    }
}
