//! Items of extents and back references of a btrfs: written from the trees that use the extents, up
//! to a whole extent tree.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sapwood::{CheckOptions, FileSystem, Options};
use sapwood_block::MemoryDevice;
use sapwood_btrfs_format::{Block, BlockMut, Key, kind, objectid};
use sapwood_hostile::image::{DEFAULT, GoodImage, MIXED, TreeBlockPlace};
use sapwood_testing::machine::left_out;
use tempfile::TempDir;

use super::{
    BTRFS_PROGS, assert_repaired, files, filled, judged, lines, lost, repair, repaired_and_undone,
};

/// The blocks of a tree.
fn blocks(good: &GoodImage, tree: u64) -> Vec<&TreeBlockPlace> {
    let of_tree = |place: &&TreeBlockPlace| {
        let bytes = good.block(place);
        Block::new(&bytes).unwrap().owner() == tree
    };
    good.blocks.iter().filter(of_tree).collect()
}

/// Overwrites all copies of blocks.
fn destroy(good: &GoodImage, image: &Path, places: &[&TreeBlockPlace]) {
    let file = File::options().write(true).open(image).unwrap();
    for copy in places.iter().flat_map(|place| &place.copies) {
        file.write_all_at(&vec![0xaa; good.nodesize()], *copy)
            .unwrap();
    }
}

/// Every file of a volume with snapshots and files that share extents, one of them more often than
/// inline refs have room for.
fn with_snapshots(dir: &Path, options: &[(&str, &str)]) -> GoodImage {
    let image = filled(dir, "btrfs", options);
    let fs = sapwood::open(&image).unwrap();
    fs.create_subvolume("v").unwrap();
    for number in 0..40 {
        fs.write(format!("v/{number}"), vec![number; 9000]).unwrap();
    }
    for copy in 0..60 {
        fs.copy("v/7", format!("v/copy-of-7-{copy}")).unwrap();
    }
    for number in 0..3 {
        fs.snapshot("v", format!("s{number}")).unwrap();
        fs.write(format!("v/{number}"), vec![0xee; 20_000]).unwrap();
        fs.remove_file(format!("s{number}/{}", number + 20))
            .unwrap();
        fs.write(format!("s{number}/new"), vec![number; 5000])
            .unwrap();
    }
    // Shared blocks lose their owner.
    fs.delete_subvolume("v").unwrap();
    fs.close().unwrap();
    let bytes = fs::read(&image).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    sapwood_block::Device::write_at(&device, 0, &bytes).unwrap();
    GoodImage::of(device)
}

/// An image with snapshots whose extent tree is destroyed.
pub(super) fn without_extent_tree(dir: &Path) -> PathBuf {
    let good = with_snapshots(dir, &[("nodesize", "4096")]);
    let image = dir.join("lost");
    good.device.save(&image).unwrap();
    destroy(&good, &image, &blocks(&good, objectid::EXTENT_TREE));
    image
}

#[test]
fn a_lost_extent_tree_is_written_from_the_other_trees() {
    if left_out(&BTRFS_PROGS) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("lost");
    let plain: &[(&str, &str)] = &[];
    let small: &[(&str, &str)] = &[("nodesize", "4096")];
    let made = [
        ("default", GoodImage::expand(DEFAULT)),
        ("mixed", GoodImage::expand(MIXED)),
        ("snapshots", with_snapshots(dir.path(), plain)),
        ("small nodes", with_snapshots(dir.path(), small)),
    ];
    for (what, good) in made {
        good.device.save(&image).unwrap();
        let whole = files(&image);
        let places = blocks(&good, objectid::EXTENT_TREE);
        for places in [&places[..], &places[..1]] {
            destroy(&good, &image, places);
            assert!(judged(&image).is_err(), "{what}");
            assert_repaired(&image, what);
            let report = repair(&image, false).unwrap();
            let gone = lost(&whole, &files(&image));
            assert_eq!(gone, Vec::<PathBuf>::new(), "{what}");
            // The repaired image takes changes.
            let fs = sapwood::open(&image).unwrap();
            fs.write("after", vec![1; 100_000]).unwrap();
            fs.close().unwrap();
            judged(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
            fs::remove_file(report.undo.unwrap()).unwrap();
            good.device.save(&image).unwrap();
        }
    }
}

/// Changes an item of the extent tree: its number, and the change.
type Change = fn(&mut BlockMut<'_>, usize);

fn flip(block: &mut BlockMut<'_>, slot: usize, at: usize) {
    if let Some(byte) = block.item_data_mut(slot).unwrap().get_mut(at) {
        *byte ^= 1;
    }
}

/// An item for an extent that nothing uses, in a gap behind this item.
fn surplus(block: &mut BlockMut<'_>, slot: usize) {
    let (key, data) = block.view().entry(slot).unwrap();
    let (key, data) = (
        Key::new(key.objectid + 4096, key.kind, key.offset),
        data.to_vec(),
    );
    let free = block.view().search(&key);
    if let Err(slot) = free {
        let _ = block.insert(slot, &key, &data);
    }
}

const CHANGES: &[(&str, Change)] = &[
    ("gone", |b, s| b.remove_items(s, 1).unwrap()),
    ("refs", |b, s| flip(b, s, 1)),
    ("by itself", |b, s| flip(b, s, 17)),
    ("root", |b, s| flip(b, s, 26)),
    ("inode", |b, s| flip(b, s, 34)),
    ("count", |b, s| flip(b, s, 49)),
    ("surplus", surplus),
];

#[test]
fn wrong_items_of_extents_are_written_from_the_trees() {
    if left_out(&BTRFS_PROGS) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let good = with_snapshots(dir.path(), &[]);
    let image = dir.path().join("changed");
    let mut tried = 0;
    for (what, change) in CHANGES {
        for place in blocks(&good, objectid::EXTENT_TREE) {
            let bytes = good.block(place);
            let block = Block::new(&bytes).unwrap();
            if !block.is_leaf() {
                continue;
            }
            let kinds = [
                kind::EXTENT_ITEM,
                kind::METADATA_ITEM,
                kind::EXTENT_DATA_REF,
                kind::SHARED_DATA_REF,
            ];
            let slots: Vec<usize> = kinds
                .iter()
                .flat_map(|kind| {
                    let of_kind = |slot: &usize| block.item_key(*slot).unwrap().kind == *kind;
                    let all: Vec<usize> = (1..block.nritems()).filter(of_kind).collect();
                    [all.get(all.len() / 2).copied()]
                })
                .flatten()
                .collect();
            for slot in slots {
                let device = good.device.snapshot();
                good.edit(&device, place, true, |bytes| {
                    change(&mut BlockMut::new(bytes).unwrap(), slot);
                });
                device.save(&image).unwrap();
                let what = format!("{what} {}", block.item_key(slot).unwrap());
                // The flag of a block that uses nothing means nothing; the tool compares it.
                let by_us = sapwood::check(&image, &CheckOptions::default(), &mut |_| {});
                if judged(&image).is_ok() || by_us.unwrap().clean {
                    continue;
                }
                let report = repaired_and_undone(&image, &what);
                let report = report.unwrap_or_else(|| panic!("{what}: not repaired"));
                assert!(
                    report.after.clean,
                    "{what}: {:#?} {:#?}",
                    lines(&report),
                    report.left
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn no_extent_is_freed_while_its_user_may_be_unreadable() {
    let good = GoodImage::expand(DEFAULT);
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("image");
    good.device.save(&image).unwrap();
    let leaf = |place: &&&TreeBlockPlace| Block::new(&good.block(place)).unwrap().is_leaf();
    let files = blocks(&good, objectid::FS_TREE);
    let leaf = *files.iter().find(leaf).unwrap();
    destroy(&good, &image, &blocks(&good, objectid::EXTENT_TREE));
    destroy(&good, &image, &[leaf]);
    let report = repair(&image, false).unwrap();
    let written = |code: &str| report.repairs.iter().any(|repair| repair.code == code);
    assert!(!written("ExtentTree"), "{:#?}", lines(&report));
    let why = format!("block {} of tree 5 cannot be read", leaf.logical);
    assert!(
        report.left.iter().any(|left| left.contains(&why)),
        "{:#?}",
        report.left
    );
}

/// A volume with a file of `LONG` bytes without checksums.
fn without_sums(dir: &Path) -> GoodImage {
    let image = filled(dir, "btrfs", &[]);
    let options = Options::new().option("nodatasum", None).unwrap();
    let fs = FileSystem::open_with_options(&image, &options).unwrap();
    fs.write("long", vec![7; LONG as usize]).unwrap();
    fs.write("longer", vec![8; 9000]).unwrap();
    fs.close().unwrap();
    let bytes = fs::read(&image).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    sapwood_block::Device::write_at(&device, 0, &bytes).unwrap();
    GoodImage::of(device)
}

const LONG: u64 = 77 * 4096;

#[test]
fn data_whose_file_extent_is_lost_is_kept() {
    let dir = TempDir::new().unwrap();
    let summed = with_snapshots(dir.path(), &[]);
    keeps_lost_data(dir.path(), &summed, None);
    let unsummed = without_sums(dir.path());
    keeps_lost_data(dir.path(), &unsummed, Some(LONG));
}

/// Removes the only file extent of some data, of this length.
fn keeps_lost_data(dir: &Path, good: &GoodImage, len: Option<u64>) {
    let image = dir.join("image");
    let device = good.device.snapshot();
    let mut users: BTreeMap<u64, Vec<(&TreeBlockPlace, usize)>> = BTreeMap::new();
    for place in &good.blocks {
        let bytes = good.block(place);
        let block = Block::new(&bytes).unwrap();
        let items = if block.is_leaf() { block.nritems() } else { 0 };
        for slot in 0..items {
            let (key, data) = block.entry(slot).unwrap();
            if key.kind == kind::EXTENT_DATA && data.len() == 53 {
                let bytenr = u64::from_le_bytes(data[21..29].try_into().unwrap());
                let own = u64::from_le_bytes(data[29..37].try_into().unwrap());
                if len.is_none_or(|len| len == own) {
                    users.entry(bytenr).or_default().push((place, slot));
                }
            }
        }
    }
    let only = users.iter().find_map(|(bytenr, users)| match **users {
        // The first key of a leaf is in its parent, too.
        [(place, slot)] if *bytenr != 0 && slot > 0 => Some((*bytenr, place, slot)),
        _ => None,
    });
    let (bytenr, place, slot) = only.unwrap();
    good.edit(&device, place, true, |bytes| {
        BlockMut::new(bytes).unwrap().remove_items(slot, 1).unwrap();
    });
    device.save(&image).unwrap();
    let report = repaired_and_undone(&image, "file extent").unwrap();

    let kept = format!("extent {bytenr}: nothing uses it");
    assert!(
        report.left.iter().any(|left| left.starts_with(&kept)),
        "{:#?}",
        report.left
    );
    let is_kept = |report: &sapwood::RepairReport| {
        let unused = report.after.findings.iter();
        unused.filter(|left| left.code == "ExtentUnused").count() == 1
    };
    assert!(is_kept(&report));
    // Once the sums of the inode are right, nothing else tells of the loss.
    repair(&image, false).unwrap();
    assert!(is_kept(&repair(&image, false).unwrap()));
}
