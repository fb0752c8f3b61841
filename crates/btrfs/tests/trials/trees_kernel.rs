//! Every block of every tree that the kernel wrote, read by us and by `btrfs inspect-internal`,
//! for every feature that shapes trees; and a bad copy repaired from the good one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::inspect::{TreeChoice, super_block, walk};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Error, Options};
use sapwood_btrfs_format::Block;
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{Kind, TempImage, run};

const NEEDS: &[Need] = &[Need::Program("mkfs.btrfs"), Need::Kernel(Kind::Btrfs)];

fn matrix() -> Vec<(&'static str, &'static [&'static str], &'static str)> {
    vec![
        ("defaults", &[], "rw"),
        ("nodes_4k", &["-n", "4096"], "rw"),
        ("nodes_8k", &["-n", "8192"], "rw"),
        ("nodes_32k", &["-n", "32768"], "rw"),
        ("nodes_64k", &["-n", "65536"], "rw"),
        ("xxhash", &["--csum", "xxhash"], "rw"),
        ("sha256", &["--csum", "sha256"], "rw"),
        ("blake2", &["--csum", "blake2"], "rw"),
        ("single", &["-m", "single"], "rw"),
        ("data_dup", &["-d", "dup"], "rw"),
        ("mixed", &["-M"], "rw"),
        ("no_free_space_tree", &["-R", "^free-space-tree"], "rw"),
        (
            "space_cache_v1",
            &["-R", "^free-space-tree"],
            "rw,space_cache=v1",
        ),
        ("explicit_holes", &["-O", "^no-holes"], "rw"),
        (
            "fat_extent_items",
            &["-O", "^skinny-metadata", "-n", "4096"],
            "rw",
        ),
        ("no_extref", &["-O", "^extref"], "rw"),
    ]
}

/// Enough for trees of two levels with every node size, subvolumes and shared blocks.
const FILL: &str = "
    mkdir many
    for i in $(seq 1500); do echo $i > many/a-name-of-some-length-for-file-$i; done
    btrfs -q subvolume create sub
    cp -r many sub/
    for i in $(seq 300); do setfattr -n user.$i -v value-$i sub/many 2>/dev/null || true; done
    sync
    btrfs -q subvolume snapshot sub snap
    rm snap/many/*7
    dd if=/dev/zero of=holes bs=4096 count=1 seek=1000 status=none
    sync
";

fn device(path: &Path) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::load(path).unwrap())
}

/// (address, items, generation) of each block as `dump-tree` lists them.
fn dumped(text: &str) -> Vec<(u64, u64, u64)> {
    let mut blocks = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word: &str| {
            let at = words.iter().position(|w| *w == word)?;
            words.get(at + 1)?.parse().ok()
        };
        if !matches!(words.first(), Some(&"leaf" | &"node")) {
            continue;
        }
        let address = words.get(1).and_then(|w| w.parse().ok());
        if let (Some(address), Some(items), Some(generation)) =
            (address, after("items"), after("generation"))
        {
            blocks.push((address, items, generation));
        }
    }
    blocks.sort_unstable();
    blocks
}

fn walked(device: Arc<dyn Device>) -> Vec<(u64, u64, u64)> {
    let mut blocks = Vec::new();
    walk(&[device], TreeChoice::All, &mut |bytes| {
        let block = Block::new(bytes).unwrap();
        blocks.push((block.bytenr(), block.nritems() as u64, block.generation()));
    })
    .unwrap();
    blocks.sort_unstable();
    blocks
}

fn all_blocks_are_read(args: &[&str], options: &str) {
    let image = TempImage::new(512 << 20, args);
    image.mount_with(options).shell(FILL);
    compare(&image);
}

/// Not every `mkfs.btrfs` can make one.
fn all_blocks_block_group_tree() {
    let device = MemoryDevice::new(512 << 20);
    let options = MkfsOptions {
        block_group_tree: Some(true),
        ..MkfsOptions::default()
    };
    mkfs(&device, &options).unwrap();
    let image = TempImage::blank(0);
    device.save(image.path()).unwrap();
    image.mount().shell(FILL);
    compare(&image);
}

fn compare(image: &TempImage) {
    let expected = dumped(&image.dump(None));
    assert!(expected.len() > 30, "{} blocks", expected.len());
    assert_eq!(walked(device(image.path())), expected);
}

/// Turns one byte over in every copy `nth` (from 0) of the metadata.
fn damage(image: &Path, nth: usize) -> usize {
    let device: Arc<dyn Device> = device(image);
    let sb = super_block(std::slice::from_ref(&device)).unwrap();
    let (mut blocks, mut chunks) = (Vec::new(), Vec::new());
    walk(&[device], TreeChoice::All, &mut |bytes| {
        let block = Block::new(bytes).unwrap();
        blocks.push(block.bytenr());
        for slot in 0..block.items().len() {
            let (key, data) = block.entry(slot).unwrap();
            if key.kind == sapwood_btrfs_format::kind::CHUNK_ITEM {
                let chunk = sapwood_btrfs_format::ChunkItem::parse(data).unwrap();
                chunks.push((key.offset, chunk));
            }
        }
    })
    .unwrap();
    let file = OpenOptions::new().write(true).open(image).unwrap();
    let within = u64::from(sb.nodesize.get()) / 2;
    blocks.sort_unstable();
    blocks.dedup();
    for at in &blocks {
        let chunk = chunks
            .iter()
            .find(|(start, c)| (*start..start + c.length).contains(at));
        let (start, chunk) = chunk.unwrap();
        let offset = chunk.stripes[nth].offset + (at - start) + within;
        file.write_all_at(&[0xa5; 7], offset).unwrap();
    }
    blocks.len()
}

fn a_bad_copy_is_repaired_from_the_good_one() {
    for nth in [0, 1] {
        let image = TempImage::new(256 << 20, &["-m", "dup"]);
        image.mount().shell(FILL);
        let good = walked(device(image.path()));
        let count = damage(image.path(), nth);
        let damaged = device(image.path());
        assert_eq!(walked(damaged.clone()), good);
        // A walk only reads; a writable mount repairs bad copies that it reads.
        let before = damaged.snapshot();
        let options = Options {
            background: false,
            ..Options::default()
        };
        let fs = Btrfs::open(vec![damaged.clone()], options).unwrap();
        drop(fs);
        let changed = damaged.first_difference(&before).is_some();
        assert_eq!(changed, nth == 0, "of {count} blocks");
    }
}

fn both_copies_bad_is_an_error_that_names_the_block() {
    let image = TempImage::new(256 << 20, &["-m", "dup"]);
    damage(image.path(), 0);
    // The list of blocks comes from the readable ones.
    damage(image.path(), 1);
    let device: Arc<dyn Device> = device(image.path());
    let err = walk(&[device], TreeChoice::All, &mut |_| {}).unwrap_err();
    assert!(matches!(err, Error::BadBlock { .. }), "{err}");
    assert!(err.to_string().contains("checksum"), "{err}");
}

fn any(path: &Path) -> Arc<dyn Device> {
    device(path)
}

fn mkfs_on_two(profiles: &[&str], one: &TempImage, two: &TempImage) {
    let paths = [one.path(), two.path()].map(|p| p.to_str().unwrap());
    run("mkfs.btrfs", &[&["-q", "-f"], profiles, &paths].concat());
}

fn a_missing_device_is_named() {
    let one = TempImage::blank(256 << 20);
    let two = TempImage::blank(256 << 20);
    mkfs_on_two(&["-d", "single", "-m", "single"], &one, &two);
    let missing_of = |image: &TempImage| {
        let err = walk(&[any(image.path())], TreeChoice::All, &mut |_| {}).unwrap_err();
        match err {
            Error::MissingDevice { devid, uuid } => (devid, uuid),
            err => panic!("{err}"),
        }
    };
    let own = |image: &TempImage| {
        let sb = super_block(&[any(image.path())]).unwrap();
        (sb.dev_item.devid.get(), sb.dev_item.uuid)
    };
    assert_eq!(missing_of(&one), own(&two));
    assert_eq!(missing_of(&two), own(&one));
    let both = [any(two.path()), any(one.path())];
    let mut blocks = 0;
    walk(&both, TreeChoice::All, &mut |_| blocks += 1).unwrap();
    assert!(blocks > 8, "{blocks}");
}

fn mirrored_and_striped_profiles_are_read() {
    for (metadata, data) in [("raid1", "raid0"), ("raid0", "single"), ("raid1", "raid1")] {
        let one = TempImage::blank(256 << 20);
        let two = TempImage::blank(256 << 20);
        mkfs_on_two(&["-m", metadata, "-d", data], &one, &two);
        let both = [any(one.path()), any(two.path())];
        let mut blocks = 0;
        walk(&both, TreeChoice::All, &mut |_| blocks += 1).unwrap();
        assert!(blocks > 8, "{metadata} {data}: {blocks}");
    }
}

fn a_truncated_image_is_refused() {
    let image = TempImage::new(256 << 20, &[]);
    File::options()
        .write(true)
        .open(image.path())
        .unwrap()
        .set_len(100 << 20)
        .unwrap();
    let device: Arc<dyn Device> = device(image.path());
    let err = walk(&[device], TreeChoice::All, &mut |_| {}).unwrap_err();
    assert!(matches!(err, Error::Superblock { .. }), "{err}");
}

fn the_second_superblock_serves_when_the_first_is_bad() {
    let image = TempImage::new(256 << 20, &[]);
    image.mount().shell(FILL);
    let good = walked(device(image.path()));
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0xa5; 100], (64 << 10) + 300).unwrap();
    assert_eq!(walked(device(image.path())), good);
    file.write_all_at(&[0xa5; 100], (64 << 20) + 300).unwrap();
    let device: Arc<dyn Device> = device(image.path());
    let err = walk(&[device], TreeChoice::All, &mut |_| {}).unwrap_err();
    assert!(matches!(err, Error::Superblock { .. }), "{err}");
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut tests: Vec<Trial> = matrix()
        .into_iter()
        .map(|(name, args, options)| {
            trial(format!("all_blocks_{name}"), NEEDS, move || {
                all_blocks_are_read(args, options);
            })
        })
        .collect();
    macro_rules! add {
        ($($test:ident),* $(,)?) => { $(tests.push(trial(stringify!($test), NEEDS, $test));)* };
    }
    add!(
        all_blocks_block_group_tree,
        a_bad_copy_is_repaired_from_the_good_one,
        both_copies_bad_is_an_error_that_names_the_block,
        a_missing_device_is_named,
        mirrored_and_striped_profiles_are_read,
        a_truncated_image_is_refused,
        the_second_superblock_serves_when_the_first_is_bad,
    );
    tests
}
