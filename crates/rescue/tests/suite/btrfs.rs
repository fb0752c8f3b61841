//! btrfs.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::{Btrfs, SubvolumeChoice};
use sapwood_btrfs_format::{Block, Key, kind};
use sapwood_hostile::image::{DEFAULT, GoodImage, MIXED, SUPER_OFFSET};
use sapwood_rescue::btrfs::{Choice, Image, Options};
use sapwood_rescue::{Collected, Error, Rescued, Scanning};
use sapwood_vfs::{Credentials, FileKind, FileSystem, NewInode, WriteMode};

use crate::walk::{Contents, files, wrong};

const WATCH: fn(Scanning) -> bool = |_| true;

fn open(device: &Arc<MemoryDevice>) -> Result<Image, Error> {
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    Image::open(devices, Options::default(), &WATCH)
}

fn rescued(device: &Arc<MemoryDevice>) -> Contents {
    let files_of = |image: Image| image.files(Choice::Newest);
    let opened = open(device).and_then(files_of);
    opened.map_or(Contents::new(), |found| files(&Rescued::new(found)))
}

/// The files that the engine shows from the top level.
fn by_engine(image: &GoodImage) -> Contents {
    let options = sapwood_btrfs::Options {
        subvolume: SubvolumeChoice::Id(5),
        read_only: true,
        no_log_replay: true,
        ..sapwood_btrfs::Options::default()
    };
    let device: Vec<Arc<dyn Device>> = vec![Arc::new(image.device.snapshot())];
    let fs = Btrfs::open(device, options).unwrap();
    let found = files(&fs);
    fs.unmount().unwrap();
    found
}

#[test]
fn an_intact_image_has_the_files_of_the_engine() {
    for packed in [DEFAULT, MIXED] {
        let image = GoodImage::expand(packed);
        let device = Arc::new(image.device.snapshot());
        let expected = by_engine(&image);
        assert!(!expected.is_empty());
        assert_eq!(rescued(&device), expected);
    }
}

/// The files of every state, newest first.
fn versions(device: &Arc<MemoryDevice>) -> Vec<Contents> {
    let image = open(device).unwrap();
    let states = image.states(100).into_iter();
    let choices = states.map(|state| Choice::Generation(state.generation));
    let files_of = |choice| files(&Rescued::new(image.files(choice).unwrap()));
    choices.map(files_of).collect()
}

/// Whether each sector of a file's content was once at its place in the file, or is a hole.
fn was_once(content: &[u8], versions: &[&Vec<u8>]) -> bool {
    content.chunks(4096).enumerate().all(|(number, sector)| {
        let was_there = |old: &&Vec<u8>| {
            let old = old.get(number * 4096..).unwrap_or_default();
            old.get(..sector.len().min(old.len())) == sector.get(..sector.len().min(old.len()))
                && (old.len() >= sector.len() || sector[old.len()..].iter().all(|byte| *byte == 0))
        };
        versions.iter().any(was_there) || sector.iter().all(|byte| *byte == 0)
    })
}

/// An older version of a tree block may replace a lost one. The content of a file may then be of
/// several states.
#[test]
fn without_a_tree_block_each_sector_of_a_file_was_once_there() {
    for packed in [DEFAULT, MIXED] {
        let image = GoodImage::expand(packed);
        let versions = versions(&Arc::new(image.device.snapshot()));
        let expected = by_engine(&image);
        for place in &image.blocks {
            let device = image.device.snapshot();
            for copy in &place.copies {
                device
                    .write_at(*copy, &vec![0xa5; image.nodesize()])
                    .unwrap();
            }
            let found = rescued(&Arc::new(device));
            for path in wrong(&found, &expected) {
                let content = found.get(path).and_then(Option::as_ref).unwrap();
                let once = versions
                    .iter()
                    .filter_map(|version| version.get(path)?.as_ref());
                let known = was_once(content, &once.collect::<Vec<_>>());
                let path = String::from_utf8_lossy(path);
                assert!(known, "block {}: {path}", place.logical);
            }
        }
    }
}

/// A directory has each name by its hash and by its number. Lookups need one of both.
#[test]
fn names_of_a_directory_without_hashes_are_found() {
    const FILES: usize = 3000;
    let device = Arc::new(MemoryDevice::new(200 << 20));
    sapwood_btrfs::mkfs::mkfs(&*device, &sapwood_btrfs::mkfs::MkfsOptions::default()).unwrap();
    let fs = Btrfs::open(vec![device.clone()], sapwood_btrfs::Options::default()).unwrap();
    for number in 0..FILES {
        let (who, name) = (Credentials::ROOT, format!("file {number}"));
        let made = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Regular, 0o644);
        fs.forget(made.unwrap().ino(), 1);
    }
    fs.unmount().unwrap();
    let image = GoodImage::of(device.snapshot());
    let damaged = image.device.snapshot();
    let mut lost = 0;
    for place in &image.blocks {
        let bytes = image.block(place);
        let block = Block::new(&bytes).unwrap();
        let hashes = |key: Option<Key>| key.is_some_and(|key| key.kind == kind::DIR_ITEM);
        if block.level() == 0 && hashes(block.first_key()) && hashes(block.last_key()) {
            lost += block.nritems();
            for copy in &place.copies {
                damaged.write_at(*copy, &[0xa5; 4096]).unwrap();
            }
        }
    }
    assert!(lost > FILES / 2, "{lost}");
    let opened = open(&Arc::new(damaged)).unwrap();
    let found = Rescued::new(opened.files(Choice::Newest).unwrap());
    assert_eq!(files(&found).len(), FILES);
    for number in (0..FILES).rev() {
        let name = format!("file {number}");
        let entry = found.lookup(found.root(), name.as_bytes()).unwrap();
        assert_eq!(entry.attr.kind, FileKind::Regular);
        assert_eq!(entry.attr.ino.0, 257 + number as u64);
    }
    let absent = found.lookup(found.root(), b"file 3000");
    assert!(
        matches!(absent, Err(sapwood_vfs::Error::NotFound)),
        "{absent:?}"
    );
}

#[test]
fn superblocks_are_not_needed() {
    for packed in [DEFAULT, MIXED] {
        let image = GoodImage::expand(packed);
        let device = Arc::new(image.device.snapshot());
        for offset in [SUPER_OFFSET, 64 << 20] {
            if offset < device.size() {
                device.write_at(offset, &[0; 4096]).unwrap();
            }
        }
        assert_eq!(rescued(&device), by_engine(&image));
    }
}

/// An image whose scan has an index of at most `most` tree blocks.
fn bounded(device: &Arc<MemoryDevice>, whole: bool, most: usize) -> Image {
    let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
    let mut options = Options::default();
    (options.whole, options.most_blocks) = (whole, most);
    Image::open(devices, options, &WATCH).unwrap()
}

#[test]
fn blocks_in_use_are_found_without_room_in_the_index() {
    for (packed, whole) in [(DEFAULT, false), (DEFAULT, true), (MIXED, false)] {
        let image = GoodImage::expand(packed);
        let device = Arc::new(image.device.snapshot());
        for most in [0, 1, 10, image.blocks.len()] {
            let found = bounded(&device, whole, most);
            assert!(found.scanned().0 <= most as u64, "{most}");
            assert!(found.omitted().1 > 0, "{most}");
            let newest = found.states(1).remove(0);
            assert_eq!(newest.missing, 0, "{newest:?}");
            let found = Rescued::new(found.files(Choice::Newest).unwrap());
            assert_eq!(files(&found), by_engine(&image), "{most}");
        }
    }
}

#[test]
fn a_lost_chunk_tree_is_found_in_a_full_index() {
    let image = GoodImage::expand(DEFAULT);
    let device = Arc::new(image.device.snapshot());
    let root = image.super_block.chunk_root.get();
    let place = image.blocks.iter().find(|place| place.logical == root);
    for copy in &place.unwrap().copies {
        device.write_at(*copy, &[0; 4096]).unwrap();
    }
    let complete = open(&device).unwrap();
    assert_eq!(complete.omitted().1, 0);
    let expected = files(&Rescued::new(complete.files(Choice::Newest).unwrap()));
    assert_eq!(expected, by_engine(&image));
    let found = bounded(&device, false, 2 * image.blocks.len());
    assert!(found.omitted().1 > 0);
    let found = Rescued::new(found.files(Choice::Newest).unwrap());
    assert_eq!(files(&found), expected);
}

/// Bytes of a tree block's header, and offsets in an extent item of the kind and the address.
const HEADER: usize = 101;
const EXTENT_KIND: usize = 20;
const EXTENT_ADDRESS: usize = 21;

#[test]
fn an_extent_at_the_end_of_the_address_space_is_lost() {
    let image = GoodImage::expand(DEFAULT);
    let device = Arc::new(image.device.snapshot());
    let mut extents = 0;
    for place in &image.blocks {
        image.edit(&device, place, true, |bytes| {
            let block = Block::new(bytes).unwrap();
            let slots = 0..if block.is_leaf() { block.nritems() } else { 0 };
            let data = slots.filter_map(|slot| {
                let (key, item) = block.entry(slot).unwrap();
                let has_address = key.kind == kind::EXTENT_DATA && item[EXTENT_KIND] == 1;
                has_address.then(|| HEADER + block.item_offset(slot).unwrap() + EXTENT_ADDRESS)
            });
            for at in data.collect::<Vec<_>>() {
                bytes[at..at + 8].copy_from_slice(&(u64::MAX - 4095).to_le_bytes());
                extents += 1;
            }
        });
    }
    assert!(extents > 10, "{extents}");
    let (found, good) = (rescued(&device), by_engine(&image));
    assert_eq!(found.len(), good.len());
    let lost = found.values().filter(|content| content.is_none()).count();
    assert!(lost > 5, "{lost}");
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    assert!(matches!(open(&device), Err(Error::NoBtrfs { .. })));
    let mut random = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(1 << 20)
        .collect();
    device.write_at(0, &noise).unwrap();
    assert!(matches!(open(&device), Err(Error::NoBtrfs { .. })));
}

#[test]
fn a_watcher_ends_the_scan() {
    let image = GoodImage::expand(DEFAULT);
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(image.device.snapshot())];
    let opened = Image::open(devices, Options::default(), &|_: Scanning| false);
    assert!(matches!(opened, Err(Error::Interrupted)));
}

#[test]
fn every_state_is_named_by_its_generation() {
    let image = GoodImage::expand(DEFAULT);
    let device = Arc::new(image.device.snapshot());
    let states = open(&device).unwrap().states(100);
    let newest = states.first().unwrap();
    assert_eq!(newest.generation, image.super_block.generation.get());
    assert_eq!(newest.missing, 0);
    for state in &states {
        let found = open(&device).unwrap();
        assert!(found.files(Choice::Generation(state.generation)).is_ok());
    }
    let found = open(&device).unwrap().files(Choice::Generation(u64::MAX));
    assert!(matches!(found, Err(Error::NoGeneration { .. })));
}

/// Files without checksums: `old` is removed, `new` takes all space and is removed, too.
fn taken(device: &Arc<MemoryDevice>) {
    let options = sapwood_btrfs::Options {
        subvolume: SubvolumeChoice::Id(5),
        nodatasum: true,
        ..sapwood_btrfs::Options::default()
    };
    let shared: Vec<Arc<dyn Device>> = vec![device.clone()];
    let fs = Btrfs::open(shared, options).unwrap();
    let who = Credentials::ROOT;
    for (name, byte, pieces) in [("old", b'o', 3), ("new", b'n', usize::MAX)] {
        let made = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Regular, 0o644);
        let made = made.unwrap().ino();
        for size in [1 << 20, 4096] {
            let piece = vec![byte; size];
            let mut at = fs.getattr(made).unwrap().size;
            let mut left = pieces;
            while left > 0 && fs.write(made, at, &piece, WriteMode::default()).is_ok() {
                (at, left) = (at + size as u64, left - 1);
            }
        }
        fs.sync().unwrap();
        fs.forget(made, 1);
        fs.unlink(fs.root(), name.as_bytes()).unwrap();
        fs.sync().unwrap();
    }
    fs.unmount().unwrap();
}

#[test]
fn space_that_a_deleted_file_had_later_is_missing() {
    let device = Arc::new(GoodImage::expand(DEFAULT).device.snapshot());
    taken(&device);
    let mut found = Vec::new();
    let (mut listed, mut tree) = (Vec::new(), Collected::new("btrfs"));
    open(&device)
        .unwrap()
        .deleted(20, &mut |file| {
            file.collect(&mut tree);
            listed.push(file.counted());
            ControlFlow::Continue(())
        })
        .unwrap();
    let contents = files(&Rescued::new(tree));
    for file in listed {
        let content = contents[&file.path].as_ref();
        let whole = content.is_some();
        assert_eq!(whole, file.readable == file.size, "{file:?}");
        let wanted = match &file.path[..] {
            b"/old" => b'o',
            b"/new" => b'n',
            _ => continue,
        };
        assert!(content.is_none_or(|all| all.iter().all(|byte| *byte == wanted)));
        found.push((wanted, whole));
        // Later commits may have taken tree blocks of the state with the new file.
        assert!(wanted == b'o' || file.readable > 0, "{file:?}");
    }
    assert!(found.contains(&(b'o', false)), "{found:?}");
    assert!(found.iter().any(|(byte, _)| *byte == b'n'), "{found:?}");
}
