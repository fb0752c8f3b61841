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
};

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

/// The number that follows a word in a text.
fn after<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let rest = text.split_once(word)?.1.trim_start();
    rest.split(|byte: char| !byte.is_ascii_digit()).next()
}

/// Overwrites every copy of a tree block.
fn destroy(image: &TempImage, logical: u64, random: &mut Random) {
    let text = run("btrfs-map-logical", &["-l", &logical.to_string()], image);
    for line in text.lines().filter(|line| line.starts_with("mirror")) {
        let at: u64 = after(line, "physical").unwrap().parse().unwrap();
        file(image).write_all_at(&random.bytes(NODE), at).unwrap();
    }
}

/// Destroys the root of a tree.
fn tree(image: &TempImage, name: &str) {
    let text = inspect(image, &["dump-tree", "-r"]);
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    let line = line.rsplit_once(" level").unwrap().0;
    let root = line.rsplit(' ').next().unwrap().parse().unwrap();
    destroy(image, root, &mut Random::new(1));
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
    for _ in 0..all.len().div_ceil(of) {
        let victim = all.swap_remove(random.below(all.len() as u64) as usize);
        destroy(image, victim, &mut random);
    }
}

/// Destroys a leaf in the middle of the top-level subvolume.
fn one_leaf(image: &TempImage) {
    let all = nodes(image, &["-t", "5"]);
    destroy(image, all[all.len() / 2], &mut Random::new(5));
}

fn descriptors(image: &TempImage) {
    for line in run("dumpe2fs", &[], image).lines() {
        if let Some(block) = after(line, "Group descriptors at") {
            zero(image, block.parse::<u64>().unwrap() * BLOCK as u64, BLOCK);
        }
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
