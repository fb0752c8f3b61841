//! Images of `mke2fs` and of the kernel have no findings.

use sapwood_testing::machine::note;

use crate::oracles::{KERNEL, MIB, TOOLS, image, left_out};

use super::tools::{Saved, assert_clean, fill, lines, report, with_kernel};

/// Arguments of `mke2fs`, size of the image in MiB, and whether the kernel fills it.
const VARIANTS: &[(&str, u64, bool)] = &[
    ("", 32, true),
    ("-b 1024", 24, true),
    ("-b 2048", 24, true),
    ("-b 4096 -I 128", 32, true),
    ("-I 512", 32, true),
    ("-I 1024", 32, true),
    ("-t ext2", 24, true),
    ("-t ext3", 24, true),
    ("-t ext3 -b 4096", 32, true),
    ("-O ^has_journal", 32, true),
    ("-O ^64bit", 32, true),
    ("-O ^metadata_csum,uninit_bg", 32, true),
    ("-O ^metadata_csum,^uninit_bg", 32, true),
    ("-O metadata_csum_seed", 32, true),
    ("-O ^flex_bg", 64, true),
    ("-O meta_bg,^resize_inode", 64, true),
    ("-O sparse_super2,^resize_inode", 64, true),
    ("-O ^sparse_super,^resize_inode -b 1024", 40, true),
    ("-O inline_data", 32, true),
    ("-O ea_inode", 32, true),
    ("-O ea_inode,inline_data -b 1024", 32, true),
    ("-O orphan_file", 32, true),
    ("-O ^orphan_file", 32, true),
    ("-O large_dir", 32, true),
    ("-O quota", 32, true),
    ("-O quota,project", 32, true),
    ("-O casefold", 32, true),
    ("-O mmp", 32, false),
    ("-O bigalloc", 64, true),
    ("-O ^dir_index", 32, true),
    ("-O ^extent,^64bit", 32, true),
    ("-O ^resize_inode", 32, true),
    ("-O fast_commit", 40, true),
    ("-O ^filetype", 24, true),
    ("-O verity,encrypt", 32, true),
    ("-b 1024 -g 1024 -N 2000", 24, true),
    ("-E lazy_itable_init=0 -G 4", 64, true),
    ("-b 65536", 128, false),
];

#[test]
fn images_of_mke2fs_are_clean() {
    if left_out(TOOLS) {
        return;
    }
    for (args, size, _) in VARIANTS {
        let device = image(size * MIB, args);
        assert_clean(&device, args);
    }
}

#[test]
fn images_filled_by_the_kernel_are_clean() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let mut filled = 0;
    for (args, size, _) in VARIANTS.iter().filter(|(_, _, kernel)| *kernel) {
        let device = match with_kernel(&image(size * MIB, args), fill) {
            Ok(device) => device,
            Err(why) => {
                note(Some(&format!("kernel-filled image of mke2fs {args}")), &why);
                continue;
            }
        };
        let (clean, text) = Saved::new(&device).e2fsck();
        assert!(clean, "{args}: {text}");
        let report = assert_clean(&device, args);
        assert!(report.stats.names > 200, "{args}: {:?}", report.stats);
        filled += 1;
    }
    assert!(filled >= 20, "only {filled} variants were filled");
}

/// The kernel leaves such an inode when it grows past the blocks that it reserved.
#[test]
fn a_resize_inode_without_blocks_and_without_its_feature_is_clean() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(32 * MIB, "-O ^resize_inode");
    let saved = Saved::new(&device);
    let fields = ["mode 0100600", "links_count 1", "size 67383296"];
    for field in fields {
        saved.debugfs(&format!("set_inode_field <7> {field}"));
    }
    let (clean, text) = saved.e2fsck();
    assert!(clean, "{text}");
    assert_clean(&saved.load(), "an empty resize inode");
    saved.debugfs("set_inode_field <7> block[DIND] 3000");
    let (clean, _) = saved.e2fsck();
    assert!(!clean);
    let found = report(&saved.load()).unwrap();
    assert!(found.errors().next().is_some(), "{}", lines(&found));
}
