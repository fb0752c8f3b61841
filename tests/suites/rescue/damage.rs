//! The disasters, and the positions of their victims on disk, from the format's tools.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use sapwood::Kind;
use sapwood_tests::image::TempImage;
use sapwood_tests::process;
use sapwood_tests::random::Random;

use super::Disaster;

const NODE: usize = 16 << 10;
const BLOCK: usize = 4096;

/// A row: name, damage, least percentages of paths and of contents, and whether it always runs.
macro_rules! rows {
    ($($kind:ident $name:literal $damage:expr, $paths:literal $contents:literal $short:literal;)*) => {
        &[$(Disaster {
            name: $name,
            kind: Kind::$kind,
            damage: $damage,
            paths: $paths,
            contents: $contents,
            short: $short,
        }),*]
    };
}

pub(super) const ALL: &[Disaster] = rows! {
    Btrfs "intact" |_| {}, 100 100 true;
    Btrfs "first_mib_zeroed" |image| zero(image, 0, 1 << 20), 100 100 true;
    Btrfs "all_superblocks_gone" supers, 100 100 true;
    Btrfs "chunk_root_destroyed" |image| tree(image, "chunk tree"), 100 100 true;
    Btrfs "superblocks_and_chunk_root" |image| { tree(image, "chunk tree"); supers(image) },
        100 100 false;
    Btrfs "tree_of_roots_destroyed" |image| tree(image, "root tree"), 100 100 false;
    Btrfs "extent_root_destroyed" |image| tree(image, "extent tree"), 100 100 false;
    Btrfs "fs_root_destroyed" |image| tree(image, "fs tree"), 100 100 true;
    Btrfs "checksum_root_destroyed" |image| tree(image, "checksum tree"), 100 100 false;
    Btrfs "one_percent_of_tree_blocks" |image| tree_blocks(image, 100), 90 90 true;
    Btrfs "five_percent_of_tree_blocks" |image| tree_blocks(image, 20), 80 80 false;
    Btrfs "both_copies_of_a_leaf" one_leaf, 90 90 false;
    Btrfs "superblocks_and_fs_root" |image| { tree(image, "fs tree"); supers(image) },
        100 100 false;
    Btrfs "chunk_and_device_roots_destroyed"
        |image| trees(image, &["device tree", "chunk tree"]), 100 100 false;
    Btrfs "roots_of_all_trees_destroyed" |image| trees(image, ROOTS), 90 90 false;
    Btrfs "one_copy_of_each_tree_block" |image| copies(image, 0), 100 100 false;
    Btrfs "inner_nodes_of_the_fs_tree" inner_nodes, 100 100 false;
    Btrfs "superblock_leads_nowhere" leads_nowhere, 100 100 false;
    Btrfs "first_30_mib_zeroed" |image| zero(image, 0, 30 << 20), 0 0 false;
    Btrfs "last_half_cut_off" half, 0 0 false;
    Btrfs "random_pieces_overwritten" |image| pieces(image, 60), 0 50 false;
    Btrfs "other_mkfs_over_it" |image| mkfs(image, "mkfs.ext4", &["-q", "-F", "-E", "nodiscard"]), 90 90 false;
    Ext4 "intact" |_| {}, 100 100 true;
    Ext4 "first_mib_zeroed" |image| zero(image, 0, 1 << 20), 100 100 true;
    Ext4 "superblock_zeroed" |image| zero(image, 1024, 1024), 100 100 false;
    Ext4 "descriptor_table_zeroed" |image| zero(image, 4096, BLOCK), 100 100 true;
    Ext4 "all_descriptor_tables_zeroed" descriptors, 100 100 false;
    Ext4 "inode_table_blocks_zeroed" |image| inode_table(image, 4), 90 90 true;
    Ext4 "root_directory_zeroed" |image| directories(image, &["/"]), 0 100 true;
    Ext4 "three_directories_zeroed" |image| directories(image, &["/dir0", "/dir1/sub1", "/many"]),
        40 100 false;
    Ext4 "journal_destroyed" |image| directories(image, &["<8>"]), 100 100 true;
    Ext4 "root_inode_zeroed" |image| inode_table(image, 1), 0 90 false;
    Ext4 "all_superblocks_zeroed" all_supers, 0 0 false;
    Ext4 "superblock_and_descriptors" |image| zero(image, 1024, 2 * BLOCK), 100 100 false;
    Ext4 "bitmaps_zeroed" bitmaps, 100 100 false;
    Ext4 "journal_inode_and_bad_superblock" |image| {
        zero(image, 1024, 1024);
        directories(image, &["<8>"]);
    }, 100 100 false;
    Ext4 "index_of_a_directory" first_block_of_many, 40 100 false;
    Ext4 "inode_table_of_a_group" |image| inode_table(image, 512), 0 0 false;
    Ext4 "one_percent_of_metadata" metadata, 60 80 false;
    Ext4 "first_16_mib_zeroed" |image| zero(image, 0, 16 << 20), 0 0 false;
    Ext4 "last_half_cut_off" half, 0 0 false;
    Ext4 "random_pieces_overwritten" |image| pieces(image, 60), 0 50 false;
    Ext4 "other_mkfs_over_it" |image| mkfs(image, "mkfs.btrfs", &["-q", "-f"]), 0 0 false;
};

const ROOTS: &[&str] = &[
    "fs tree",
    "root tree",
    "extent tree",
    "checksum tree",
    "device tree",
];

fn file(image: &TempImage) -> File {
    File::options().write(true).open(image.path()).unwrap()
}

fn zero(image: &TempImage, at: u64, len: usize) {
    file(image).write_all_at(&vec![0; len], at).unwrap();
}

fn run(program: &str, args: &[&str], image: &TempImage) -> String {
    let mut command = process::command(program, args);
    process::succeed(command.arg(image.path()), process::ORDINARY).unwrap()
}

fn inspect(image: &TempImage, args: &[&str]) -> String {
    run("btrfs", &[&["inspect-internal"], args].concat(), image)
}

/// The generation of the superblock.
pub(super) fn generation(image: &TempImage) -> u64 {
    let text = inspect(image, &["dump-super"]);
    let line = text.lines().find(|line| line.starts_with("generation"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

fn supers(image: &TempImage) {
    zero(image, 64 << 10, BLOCK);
    zero(image, 64 << 20, BLOCK);
}

/// Destroys one copy of each tree block.
fn copies(image: &TempImage, copy: usize) {
    let nodes = nodes(image, &[]).into_iter();
    let all: Vec<u64> = nodes.map(|logical| places(image, logical)[copy]).collect();
    overwrite(image, &all, 4);
}

/// Destroys the blocks of the top-level subvolume that are no leaves.
fn inner_nodes(image: &TempImage) {
    let text = inspect(image, &["dump-tree", "-t", "5"]);
    let inner = text.lines().filter_map(|line| line.strip_prefix("node "));
    let inner = inner.map(|line| line.split(' ').next().unwrap().parse().unwrap());
    let all: Vec<u64> = inner.flat_map(|logical| places(image, logical)).collect();
    assert!(!all.is_empty());
    overwrite(image, &all, 6);
}

/// Superblocks with right checksums, and a wrong address of the tree of roots, backups included.
fn leads_nowhere(image: &TempImage) {
    for offset in [64 << 10, 64 << 20] {
        let mut bytes = vec![0; BLOCK];
        let whole = File::open(image.path()).unwrap();
        whole.read_exact_at(&mut bytes, offset).unwrap();
        bytes[80..88].copy_from_slice(&(1_u64 << 30).to_le_bytes());
        bytes[0xb2b..0xb2b + 4 * 168].fill(0);
        let sum = crc32c::crc32c(&bytes[32..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        file(image).write_all_at(&bytes, offset).unwrap();
    }
}

/// Cuts the last half off.
fn half(image: &TempImage) {
    let file = file(image);
    let size = file.metadata().unwrap().len();
    file.set_len(size / 2).unwrap();
}

/// Overwrites pieces of 64 KiB in places where the image has data.
fn pieces(image: &TempImage, count: usize) {
    const PIECE: usize = 64 << 10;
    let mut random = Random::new(8);
    let all = std::fs::read(image.path()).unwrap();
    let used = all.chunks(PIECE).enumerate();
    let used = used.filter(|(_, piece)| piece.iter().any(|byte| *byte != 0));
    let mut used: Vec<usize> = used.map(|(number, _)| number).collect();
    for _ in 0..count.min(used.len() / 10) {
        let victim = used.swap_remove(random.below(used.len() as u64) as usize);
        let at = (victim * PIECE) as u64;
        file(image).write_all_at(&random.bytes(PIECE), at).unwrap();
    }
}

/// Makes another file system in the image.
fn mkfs(image: &TempImage, program: &str, args: &[&str]) {
    run(program, args, image);
}

/// The number that follows a word in a text.
fn after<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let rest = text.split_once(word)?.1.trim_start();
    rest.split(|byte: char| !byte.is_ascii_digit()).next()
}

/// Byte offsets of the copies of a tree block. The image must still open.
fn places(image: &TempImage, logical: u64) -> Vec<u64> {
    let text = run("btrfs-map-logical", &["-l", &logical.to_string()], image);
    let lines = text.lines().filter(|line| line.starts_with("mirror"));
    let places = lines.map(|line| after(line, "physical").unwrap().parse().unwrap());
    places.collect()
}

/// Overwrites tree blocks.
fn overwrite(image: &TempImage, places: &[u64], seed: u64) {
    let mut random = Random::new(seed);
    for at in places {
        file(image).write_all_at(&random.bytes(NODE), *at).unwrap();
    }
}

/// Overwrites every copy of a tree block.
fn destroy(image: &TempImage, logical: u64, seed: u64) {
    overwrite(image, &places(image, logical), seed);
}

/// Destroys the roots of trees.
fn trees(image: &TempImage, names: &[&str]) {
    let text = inspect(image, &["dump-tree", "-r"]);
    let mut all = Vec::new();
    for name in names {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let line = line.rsplit_once(" level").unwrap().0;
        let root = line.rsplit(' ').next().unwrap().parse().unwrap();
        all.extend(places(image, root));
    }
    overwrite(image, &all, 1);
}

fn tree(image: &TempImage, name: &str) {
    trees(image, &[name]);
}

/// Addresses of tree blocks.
fn nodes(image: &TempImage, args: &[&str]) -> Vec<u64> {
    let text = inspect(image, &[&["dump-tree"], args].concat());
    let lines = text.lines().filter_map(|line| {
        let kind = line.strip_prefix("leaf ").or(line.strip_prefix("node "))?;
        kind.split(' ').next()?.parse().ok()
    });
    lines.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Destroys one of `of` tree blocks.
fn tree_blocks(image: &TempImage, of: usize) {
    let (mut random, mut all) = (Random::new(3), nodes(image, &[]));
    let mut victims = Vec::new();
    for _ in 0..all.len().div_ceil(of) {
        let victim = all.swap_remove(random.below(all.len() as u64) as usize);
        victims.extend(places(image, victim));
    }
    overwrite(image, &victims, 3);
}

/// Destroys a leaf in the middle of the top-level subvolume.
fn one_leaf(image: &TempImage) {
    let all = nodes(image, &["-t", "5"]);
    destroy(image, all[all.len() / 2], 5);
}

fn descriptors(image: &TempImage) {
    for line in run("dumpe2fs", &[], image).lines() {
        if let Some(block) = after(line, "Group descriptors at") {
            zero(image, block.parse::<u64>().unwrap() * BLOCK as u64, BLOCK);
        }
    }
}

/// Block numbers after a word, in all lines of a listing of groups.
fn listed(image: &TempImage, word: &str) -> Vec<u64> {
    let text = run("dumpe2fs", &[], image);
    let blocks = text.lines().filter_map(|line| after(line, word));
    blocks.filter_map(|block| block.parse().ok()).collect()
}

fn all_supers(image: &TempImage) {
    let backups = listed(image, "Backup superblock at");
    zero(image, 1024, 1024);
    for block in backups {
        zero(image, block * BLOCK as u64, BLOCK);
    }
}

fn bitmaps(image: &TempImage) {
    let words = ["Block bitmap at", "Inode bitmap at"];
    let blocks: Vec<u64> = words.iter().flat_map(|word| listed(image, word)).collect();
    for block in blocks {
        zero(image, block * BLOCK as u64, BLOCK);
    }
}

fn first_block_of_many(image: &TempImage) {
    let first = blocks(image, "/many")[0];
    zero(image, first * BLOCK as u64, BLOCK);
}

/// Overwrites blocks of directories and inode tables that hold something.
fn metadata(image: &TempImage) {
    let all = std::fs::read(image.path()).unwrap();
    let mut places: Vec<u64> = Vec::new();
    for table in listed(image, "Inode table at") {
        places.extend(table..table + 128);
    }
    for dir in ["/", "/dir0", "/dir1/sub1", "/dir3", "/many", "/big"] {
        places.extend(blocks(image, dir));
    }
    let holds = |block: &u64| {
        let at = *block as usize * BLOCK;
        all[at..at + BLOCK].iter().any(|byte| *byte != 0)
    };
    places.retain(holds);
    let mut random = Random::new(9);
    for _ in 0..places.len().div_ceil(100) {
        let victim = places.swap_remove(random.below(places.len() as u64) as usize);
        let at = victim * BLOCK as u64;
        file(image).write_all_at(&random.bytes(BLOCK), at).unwrap();
    }
}

/// Zeroes the first blocks of the first inode table.
fn inode_table(image: &TempImage, blocks: usize) {
    let text = run("dumpe2fs", &[], image);
    let table: u64 = after(&text, "Inode table at").unwrap().parse().unwrap();
    zero(image, table * BLOCK as u64, blocks * BLOCK);
}

/// Blocks of a file.
fn blocks(image: &TempImage, path: &str) -> Vec<u64> {
    let request = format!("blocks {path}");
    let text = run("debugfs", &["-R", &request], image);
    text.split_whitespace()
        .map(|block| block.parse().unwrap())
        .collect()
}

fn directories(image: &TempImage, paths: &[&str]) {
    for block in paths.iter().flat_map(|path| blocks(image, path)) {
        zero(image, block * BLOCK as u64, BLOCK);
    }
}

/// Destroys blocks that no older state or copy replaces: in btrfs a block with the given content of
/// a file, in ext4 the inodes of the group of the directory `dir2/sub1`.
pub(super) fn destroy_for_good(image: &TempImage, content: &[u8]) {
    match image.kind() {
        Kind::Btrfs => {
            let all = std::fs::read(image.path()).unwrap();
            let mut blocks = all.chunks(BLOCK);
            let number = blocks.position(|block| block == content).unwrap();
            zero(image, (number * BLOCK) as u64, BLOCK);
        }
        Kind::Ext4 => {
            // The journal has copies of the inode table.
            let text = run("debugfs", &["-R", "imap dir2/sub1"], image);
            let block: u64 = after(&text, "located at block").unwrap().parse().unwrap();
            directories(image, &["<8>"]);
            zero(image, block * BLOCK as u64, BLOCK);
        }
    }
}
