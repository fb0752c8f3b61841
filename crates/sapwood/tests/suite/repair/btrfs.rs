//! Damage of items of a btrfs, with right checksums in all copies: repaired so that `btrfs check`
//! agrees, and undone.

use std::fs;
use std::path::{Path, PathBuf};

use sapwood_btrfs_format::{Block, BlockMut, kind, objectid};
use sapwood_hostile::image::{DEFAULT, GoodImage};
use sapwood_testing::machine::left_out;
use tempfile::TempDir;

use super::{BTRFS_PROGS, assert_repaired, files, judged, lost, repair};

/// A change of a leaf of a tree, at the slot of an item.
struct Damage {
    what: &'static str,
    tree: u64,
    kind: u8,
    /// The item has at least this many bytes, and follows this many others of its kind.
    least: usize,
    skip: usize,
    change: fn(&mut BlockMut<'_>, usize),
}

fn xor(block: &mut BlockMut<'_>, slot: usize, at: usize) {
    block.item_data_mut(slot).unwrap()[at] ^= 1;
}

fn links(block: &mut BlockMut<'_>, slot: usize) {
    block.item_data_mut(slot).unwrap()[40] += 1;
}

fn remove(block: &mut BlockMut<'_>, slot: usize) {
    block.remove_items(slot, 1).unwrap();
}

const fn damage(
    what: &'static str,
    (tree, kind): (u64, u8),
    change: fn(&mut BlockMut<'_>, usize),
) -> Damage {
    Damage {
        what,
        tree,
        kind,
        least: 0,
        skip: 3,
        change,
    }
}

const FS: u64 = objectid::FS_TREE;
const EXTENTS: u64 = objectid::EXTENT_TREE;

const DAMAGES: &[Damage] = &[
    damage("links", (FS, kind::INODE_ITEM), links),
    damage("bytes", (FS, kind::INODE_ITEM), |b, s| xor(b, s, 25)),
    damage("dir item gone", (FS, kind::DIR_ITEM), remove),
    damage("index gone", (FS, kind::DIR_INDEX), remove),
    damage("ref gone", (FS, kind::INODE_REF), remove),
    damage("dir item leads elsewhere", (FS, kind::DIR_ITEM), |b, s| {
        xor(b, s, 0);
    }),
    damage("index leads elsewhere", (FS, kind::DIR_INDEX), |b, s| {
        xor(b, s, 0);
    }),
    damage("name in the index", (FS, kind::DIR_INDEX), |b, s| {
        xor(b, s, 30)
    }),
    damage("name in the ref", (FS, kind::INODE_REF), |b, s| {
        xor(b, s, 10)
    }),
    Damage {
        skip: 0,
        ..damage("block group", (EXTENTS, kind::BLOCK_GROUP_ITEM), |b, s| {
            xor(b, s, 2);
        })
    },
    Damage {
        skip: 0,
        ..damage("device", (objectid::CHUNK_TREE, kind::DEV_ITEM), |b, s| {
            xor(b, s, 18);
        })
    },
    damage("generation", (EXTENTS, kind::METADATA_ITEM), |b, s| {
        xor(b, s, 8);
    }),
    Damage {
        least: 24,
        ..damage("refs", (EXTENTS, kind::METADATA_ITEM), |b, s| xor(b, s, 1))
    },
];

/// Damages the image. Returns false if no leaf has such an item.
fn plant(good: &GoodImage, image: &Path, damage: &Damage) -> bool {
    let device = good.device.snapshot();
    for place in &good.blocks {
        let bytes = good.block(place);
        let block = Block::new(&bytes).unwrap();
        if block.owner() != damage.tree || !block.is_leaf() {
            continue;
        }
        let fits = |slot: &usize| {
            let (key, data) = block.entry(*slot).unwrap();
            let item = key.kind == damage.kind && data.len() >= damage.least;
            // A removal of the first item would change the key in the parent.
            let item = item && (*slot > 0 || damage.tree != FS);
            // The validator refuses a directory with two links.
            let file = key.kind != kind::INODE_ITEM || data[53] & 0xf0 == 0x80;
            // A subvolume has no ref in the tree.
            let entry = matches!(key.kind, kind::DIR_ITEM | kind::DIR_INDEX);
            item && file && (!entry || data[8] == kind::INODE_ITEM)
        };
        let Some(slot) = (0..block.nritems()).filter(fits).nth(damage.skip) else {
            continue;
        };
        good.edit(&device, place, true, |bytes| {
            (damage.change)(&mut BlockMut::new(bytes).unwrap(), slot);
        });
        device.save(image).unwrap();
        return true;
    }
    false
}

#[test]
fn items_of_a_btrfs_are_repaired_and_undone() {
    if left_out(&BTRFS_PROGS) {
        return;
    }
    let good = GoodImage::expand(DEFAULT);
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("image");
    good.device.save(&image).unwrap();
    let whole = files(&image);
    for damage in DAMAGES {
        let _ = fs::remove_file(&image);
        assert!(
            plant(&good, &image, damage),
            "{}: no such item",
            damage.what
        );
        // The tool does not compare generations.
        let seen = judged(&image).is_err() || damage.what == "generation";
        assert!(seen, "{}: no damage", damage.what);
        assert_repaired(&image, damage.what);
        if damage.tree != FS {
            continue;
        }
        let report = repair(&image, false).unwrap();
        let gone = lost(&whole, &files(&image));
        assert_eq!(gone, Vec::<PathBuf>::new(), "{}", damage.what);
        fs::remove_file(report.undo.unwrap()).unwrap();
    }
}

/// A btrfs with several kinds of damage.
pub(super) fn several_kinds(dir: &Path) -> PathBuf {
    let good = GoodImage::expand(DEFAULT);
    let image = dir.join("image");
    assert!(plant(&good, &image, &DAMAGES[2]));
    image
}
