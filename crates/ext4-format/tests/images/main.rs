//! Images made by `mke2fs` with many options, read by this crate and compared with what
//! `dumpe2fs` and `debugfs` say of them. Without those tools every case is skipped by name.

#![allow(clippy::unwrap_used)]

mod checks;
mod image;
mod populate;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed};
use sapwood_testing::machine::{E2FSPROGS, Need, trial};

use image::TempImage;

/// Options of `mke2fs` and the size of the image.
type Variant = (&'static str, &'static str, &'static str);

/// Images whose structure is compared.
const STRUCTURE: &[Variant] = &[
    ("default_1k", "-t ext4 -b 1024", "64M"),
    ("default_4k", "-t ext4 -b 4096", "300M"),
    ("block_2k", "-t ext4 -b 2048", "40M"),
    ("block_64k", "-t ext4 -b 65536", "300M"),
    ("inode_128", "-t ext4 -I 128", "16M"),
    ("inode_512", "-t ext4 -I 512", "16M"),
    ("inode_1024", "-t ext4 -b 4096 -I 1024", "16M"),
    ("not_64bit", "-t ext4 -O ^64bit", "64M"),
    ("desc_128", "-t ext4 -E desc_size=128", "64M"),
    ("no_flex", "-t ext4 -O ^flex_bg", "64M"),
    ("flex_4", "-t ext4 -G 4 -b 1024 -g 512", "16M"),
    (
        "small_groups",
        "-t ext4 -b 1024 -g 256 -O ^resize_inode",
        "16M",
    ),
    (
        "meta_bg",
        "-t ext4 -b 1024 -g 256 -O meta_bg,^resize_inode",
        "16M",
    ),
    (
        "meta_bg_32bit",
        "-t ext4 -b 1024 -g 256 -O meta_bg,^resize_inode,^64bit",
        "20M",
    ),
    (
        "meta_bg_no_flex",
        "-t ext4 -b 1024 -g 512 -O meta_bg,^resize_inode,^flex_bg",
        "17M",
    ),
    (
        "meta_bg_all_super",
        "-t ext4 -b 1024 -g 256 -O meta_bg,^resize_inode,^sparse_super",
        "9M",
    ),
    (
        "no_sparse_super",
        "-t ext4 -b 1024 -O ^sparse_super,^resize_inode",
        "64M",
    ),
    ("sparse_super2", "-t ext4 -b 1024 -O sparse_super2", "64M"),
    (
        "sparse_super2_one",
        "-t ext4 -b 1024 -O sparse_super2 -E num_backup_sb=1",
        "64M",
    ),
    (
        "sparse_super2_none",
        "-t ext4 -b 1024 -O sparse_super2 -E num_backup_sb=0",
        "64M",
    ),
    (
        "uninit_bg",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg",
        "64M",
    ),
    (
        "uninit_bg_32bit",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^64bit",
        "64M",
    ),
    (
        "uninit_bg_desc_128",
        "-t ext4 -O ^metadata_csum,uninit_bg -E desc_size=128",
        "64M",
    ),
    (
        "no_csum",
        "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg",
        "64M",
    ),
    ("csum_seed", "-t ext4 -O metadata_csum_seed", "16M"),
    (
        "bigalloc_4k",
        "-t ext4 -b 4096 -O bigalloc -C 65536",
        "300M",
    ),
    ("bigalloc_1k", "-t ext4 -b 1024 -O bigalloc -C 8192", "128M"),
    ("last_group_short", "-t ext4 -b 1024", "26000"),
    ("reserved_more", "-t ext4 -b 1024 -E resize=4G -m 13", "64M"),
    ("raid", "-t ext4 -E stride=16,stripe_width=64", "64M"),
    ("ext2", "-t ext2 -b 1024", "64M"),
    ("ext3", "-t ext3 -b 4096", "64M"),
    ("revision_0", "-r 0 -b 1024", "17M"),
    ("mmp", "-t ext4 -O mmp", "16M"),
    (
        "quota_project",
        "-t ext4 -O quota,project -I 256 -E quotatype=usrquota:grpquota:prjquota",
        "32M",
    ),
    ("orphan_file", "-t ext4 -O orphan_file,fast_commit", "32M"),
    ("casefold", "-t ext4 -O casefold", "16M"),
    (
        "encrypt_verity",
        "-t ext4 -O encrypt,verity,stable_inodes",
        "16M",
    ),
    ("no_journal", "-t ext4 -O ^has_journal", "16M"),
    (
        "more_than_32_bits",
        "-t ext4 -b 2048 -N 2400000 -G 65536 -E num_backup_sb=0,lazy_itable_init=1 \
         -O sparse_super2,^resize_inode,^has_journal,64bit",
        "9T",
    ),
];

/// Images with inodes of all kinds in them, each compared.
const INODES: &[Variant] = &[
    ("inodes_256", "-t ext4", "16M"),
    ("inodes_128", "-t ext4 -I 128", "16M"),
    (
        "inodes_512_inline",
        "-t ext4 -I 512 -O inline_data,ea_inode,large_dir",
        "16M",
    ),
    ("inodes_no_csum", "-t ext4 -O ^metadata_csum", "16M"),
    ("inodes_ext2", "-t ext2", "16M"),
    ("inodes_ext3", "-t ext3 -I 128", "16M"),
    ("inodes_64k", "-t ext4 -b 65536 -I 4096", "64M"),
    ("inodes_no_huge", "-t ext4 -O ^huge_file,^dir_nlink", "16M"),
];

/// Images that `resize2fs` changes to that size.
const RESIZED: &[(Variant, &str)] = &[
    (("grown", "-t ext4 -b 1024", "20M"), "90M"),
    (("shrunk", "-t ext4 -b 1024", "90M"), "31M"),
    (
        (
            "grown_meta_bg",
            "-t ext4 -b 1024 -g 256 -O meta_bg,^resize_inode",
            "3M",
        ),
        "20M",
    ),
];

fn resized_case(((_, options, size), to): (Variant, &str)) -> Result<(), Failed> {
    let image = TempImage::make(options, size)?;
    image.resize(to)?;
    let image = TempImage::open(image)?;
    checks::superblock(&image)?;
    checks::groups(&image)?;
    checks::copies(&image)?;
    checks::bitmaps(&image)
}

fn structure(variant: Variant) -> Result<(), Failed> {
    let image = TempImage::make(variant.1, variant.2)?;
    checks::superblock(&image)?;
    if image.geometry.group_count() < 10_000 {
        checks::groups(&image)?;
    } else {
        // The tool needs very long to list so many.
        checks::inode_places(&image)?;
    }
    checks::copies(&image)?;
    checks::bitmaps(&image)?;
    checks::mmp(&image)
}

fn inodes(variant: Variant) -> Result<(), Failed> {
    let image = TempImage::make(variant.1, variant.2)?;
    populate::fill(&image)?;
    let image = TempImage::open(image)?;
    checks::groups(&image)?;
    checks::bitmaps(&image)?;
    checks::inodes(&image)
}

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let needs = [&E2FSPROGS[..], &[Need::Program("resize2fs")]].concat();
    let structure = STRUCTURE
        .iter()
        .map(|v| trial(v.0, &needs, move || structure(*v)));
    let inodes = INODES
        .iter()
        .map(|v| trial(v.0, &needs, move || inodes(*v)));
    let resized = RESIZED
        .iter()
        .map(|r| trial(r.0.0, &needs, move || resized_case(*r)));
    let trials = structure.chain(inodes).chain(resized).collect();
    libtest_mimic::run(&args, trials).exit_code()
}
