//! Images that the kernel fills: each extent node, pointer block, directory block, hash tree node
//! and xattr list must parse with a good checksum and agree with the kernel. Then the other way:
//! `e2fsck` and the kernel must accept the structures that the crate writes in their place.
//!
//! Needs root, loop devices and e2fsprogs; left out by name without them.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::trees;
use crate::trees::fill::{Seen, fill, look};
use crate::trees::mount::{clean, make};
use crate::trees::reader::{EXTENTS, INDEX, INLINE, Reader};
use libtest_mimic::{Failed, Trial};
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{KernelMount, Kind};

use sapwood_ext4_format::{
    ExtentBounds, QuotaKind, XattrSet, acl_from_disk, acl_to_disk, orphan_check, orphan_verify,
    xattr_block_seal,
};

/// Name, arguments of mke2fs, names in the largest directory.
const VARIANTS: &[(&str, &str, usize)] = &[
    ("default", "-t ext4", 3000),
    ("blocks1k", "-t ext4 -b 1024", 3000),
    ("blocks2k", "-t ext4 -b 2048", 3000),
    ("no_checksums", "-t ext4 -b 1024 -O ^metadata_csum", 3000),
    ("ext3", "-t ext3 -b 1024", 1000),
    ("ext2", "-t ext2 -b 2048 -I 128", 1000),
    (
        "block_map_4k",
        "-t ext4 -O ^extents,^64bit,^uninit_bg",
        1000,
    ),
    ("inline_data", "-t ext4 -O inline_data -I 512", 1000),
    ("ea_inode", "-t ext4 -O ea_inode,metadata_csum_seed", 500),
    ("large_dir", "-t ext4 -b 1024 -O large_dir -N 2000", 60_000),
];

/// Trees that the test builds: name, arguments of mke2fs, hash, unsigned, names, resulting inner
/// levels.
const OWN: &[(&str, &str, u8, bool, usize, u8)] = &[
    ("legacy", "-t ext4 -b 1024", 0, false, 300, 0),
    ("half_md4", "-t ext4 -b 4096", 1, false, 3000, 0),
    ("tea", "-t ext4 -b 2048", 2, false, 3000, 1),
    ("legacy_unsigned", "-t ext4 -b 1024", 0, true, 3000, 1),
    (
        "half_md4_unsigned",
        "-t ext4 -b 1024 -O ^metadata_csum",
        1,
        true,
        3000,
        1,
    ),
    (
        "tea_unsigned",
        "-t ext4 -b 2048 -O ^metadata_csum",
        2,
        true,
        20_000,
        1,
    ),
    (
        "large_dir",
        "-t ext4 -b 1024 -O large_dir",
        1,
        false,
        60_000,
        2,
    ),
    // With this seed the names of two leaves share one hash, so no name's search begins at the
    // second of them.
    (
        "equal_hashes",
        "-t ext4 -b 1024 -O large_dir -E hash_seed=67452301-efcd-ab89-3c2d-1e0f1a000000",
        1,
        false,
        60_000,
        2,
    ),
    ("blocks64k", "-t ext4 -b 65536", 1, false, 20_000, 0),
];

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [Need::Kernel(Kind::Ext4)];
    let mut tests: Vec<Trial> = Vec::new();
    for &(name, mkfs, names) in VARIANTS {
        let title = format!("kernel_made_{name}_reads_back");
        tests.push(trial(title, &needs, move || reads_back(name, mkfs, names)));
    }
    for &(name, mkfs, hash, unsigned, names, levels) in OWN {
        let title = format!("own_hash_tree_{name}");
        let test = move || trees::own::build(mkfs, hash, unsigned, names, levels);
        tests.push(trial(title, &needs, test));
    }
    tests.push(trial("orphan_file_of_the_kernel", &needs, orphans));
    tests.push(trial("quota_files_are_recognised", &needs, quota_files));
    tests
}

fn reads_back(name: &str, mkfs: &str, names: usize) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
    make(&image, 256 << 20, mkfs);
    let block_size = Reader::open(&image).block_size;
    let mut seen = Vec::new();
    {
        let mounted = KernelMount::at(&image, "rw", &at)?;
        fill(mounted.path(), block_size, names);
        if name == "ea_inode" {
            let value = vec![b'v'; 20_000];
            rustix::fs::setxattr(
                at.join("x0"),
                "user.large",
                &value,
                rustix::fs::XattrFlags::empty(),
            )?;
        }
        look(mounted.path(), &mut seen);
    }
    let reader = Reader::open(&image);
    let mut kinds = Kinds::default();
    for seen in &seen {
        compare(&reader, seen, &mut kinds);
    }
    kinds.judge(name);
    rewrite(&reader, &seen);
    clean(&image);
    let mut again = Vec::new();
    look(KernelMount::at(&image, "ro", &at)?.path(), &mut again);
    for (before, after) in seen.iter().zip(&again) {
        assert!(
            before.path == after.path
                && before.names == after.names
                && before.xattrs == after.xattrs
        );
    }
    assert_eq!(seen.len(), again.len());
    Ok(())
}

/// The kinds of structures in an image. A variant that no longer makes its kind fails.
#[derive(Default)]
struct Kinds {
    extent_depth: u16,
    indexed: usize,
    levels: u8,
    inline: usize,
    xattr_blocks: usize,
    linear: usize,
}

impl Kinds {
    fn judge(&self, name: &str) {
        let extents = !matches!(name, "ext2" | "ext3" | "block_map_4k");
        assert!(
            !extents || self.extent_depth >= 1,
            "depth {}",
            self.extent_depth
        );
        assert!(self.indexed >= 1 || name == "ext2", "no hash tree");
        assert!(self.xattr_blocks >= 1, "no xattr block");
        assert!(
            self.linear >= 1 || name == "inline_data",
            "no linear directory"
        );
        let levels = match name {
            "large_dir" => 2,
            "blocks1k" | "no_checksums" => 1,
            _ => 0,
        };
        assert!(self.levels >= levels, "{} levels", self.levels);
        assert!(
            name != "inline_data" || self.inline >= 2,
            "{} inline",
            self.inline
        );
    }
}

fn compare(reader: &Reader, seen: &Seen, kinds: &mut Kinds) {
    let inode = reader.inode(seen.inode);
    let path = String::from_utf8_lossy(&seen.path);
    if inode.flags & EXTENTS != 0 {
        let bounds = ExtentBounds::root(reader.first_block(), reader.block_count());
        let depth = reader.map_extents(&inode, &inode.blocks, &bounds, &mut |_| {});
        kinds.extent_depth = kinds.extent_depth.max(depth);
    }
    if let Some(content) = &seen.content {
        assert!(reader.content(&inode) == *content, "content of {path}");
    }
    if let Some(names) = &seen.names {
        assert!(reader.names(&inode) == *names, "names of {path}");
        if inode.flags & INDEX != 0 {
            kinds.indexed += 1;
            kinds.levels = kinds
                .levels
                .max(reader.check_htree(&inode, &reader.map(&inode)));
        } else {
            kinds.linear += usize::from(inode.flags & INLINE == 0);
        }
    }
    kinds.inline += usize::from(inode.flags & INLINE != 0);
    kinds.xattr_blocks += usize::from(inode.acl != 0);
    let mut xattrs = reader.xattrs(&inode);
    for (name, value) in &mut xattrs {
        if name.starts_with(b"system.posix_acl") {
            let wire = acl_from_disk(value).unwrap();
            assert_eq!(acl_to_disk(&wire).unwrap(), *value);
            *value = wire;
        }
    }
    assert_eq!(xattrs, seen.xattrs, "xattrs of {path}");
}

/// Writes each xattr block and directory leaf anew, compares checksums of hash tree nodes; lists in
/// inodes only where inodes have no checksum.
fn rewrite(reader: &Reader, seen: &[Seen]) {
    let format = reader.dir_format();
    for seen in seen {
        let inode = reader.inode(seen.inode);
        if inode.acl != 0 {
            let old = reader.block(inode.acl);
            let (header, set) = XattrSet::parse_block(&old, reader.inodes()).unwrap();
            let mut new = vec![0xff; reader.block_size];
            set.write_block(&mut new, header.refcount.get()).unwrap();
            assert_eq!(
                header.hash,
                XattrSet::parse_block(&new, reader.inodes()).unwrap().0.hash
            );
            if reader.checksums() {
                xattr_block_seal(&mut new, reader.seed(), inode.acl).unwrap();
            }
            reader.write(inode.acl, &new);
        }
        let mut list = XattrSet::parse_ibody(&inode.xattr_region, reader.inodes()).unwrap();
        if !reader.checksums() && !list.entries.is_empty() {
            list.entries.reverse();
            let mut region = vec![0xff; inode.xattr_region.len()];
            list.write_ibody(&mut region).unwrap();
            reader.file.write_all_at(&region, inode.xattr_at).unwrap();
        }
        if seen.names.is_none() || inode.flags & INLINE != 0 {
            continue;
        }
        for (logical, physical) in reader.map(&inode) {
            let mut block = reader.block(physical);
            if inode.flags & INDEX != 0
                && (logical == 0 || format.dx_node(&block, u32::MAX).is_ok())
            {
                let sealed = block.clone();
                format.dx_seal(&mut block, inode.seed).unwrap();
                assert_eq!(block, sealed, "checksum of a node");
                continue;
            }
            format.compact(&mut block).unwrap();
            format.seal(&mut block, inode.seed).unwrap();
            reader.write(physical, &block);
        }
    }
}

/// Orphans of files that are open while the image is frozen.
fn orphans() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let (image, at, copy) = (
        dir.path().join("image"),
        dir.path().join("mnt"),
        dir.path().join("copy"),
    );
    make(&image, 64 << 20, "-t ext4 -b 1024 -O orphan_file");
    let mounted = KernelMount::at(&image, "rw", &at)?;
    let mut open = Vec::new();
    for number in 0..20 {
        let path = at.join(format!("{number}"));
        open.push(std::fs::File::create(&path)?);
        std::fs::remove_file(&path)?;
    }
    freeze_and_copy(&at, &image, &copy)?;
    let mut inodes: Vec<u32> = open.iter().map(inode_of).collect();
    drop((open, mounted));
    let reader = Reader::open(&copy);
    let orphan_file = reader.inode(reader.sb32(0x280));
    let mut found = Vec::new();
    for physical in reader.map(&orphan_file).into_values() {
        let block = reader.block(physical);
        orphan_verify(&block, orphan_file.seed, physical)?;
        found.extend(
            orphan_check(&block, reader.inodes())?
                .iter()
                .map(|slot| slot.get())
                .filter(|&slot| slot != 0),
        );
    }
    found.sort_unstable();
    inodes.sort_unstable();
    assert_eq!(found, inodes);
    Ok(())
}

fn inode_of(file: &std::fs::File) -> u32 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().unwrap().ino() as u32
}

fn freeze_and_copy(at: &Path, image: &Path, copy: &Path) -> std::io::Result<()> {
    trees::mount::run("fsfreeze", &["-f"], at);
    let copied = std::fs::copy(image, copy);
    trees::mount::run("fsfreeze", &["-u"], at);
    copied.map(drop)
}

/// The quota files that mke2fs makes, by the inodes that the superblock names.
fn quota_files() -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    make(&image, 64 << 20, "-t ext4 -O quota,project");
    let reader = Reader::open(&image);
    for (field, kind) in [
        (0x240, QuotaKind::User),
        (0x244, QuotaKind::Group),
        (0x26c, QuotaKind::Project),
    ] {
        let content = reader.content(&reader.inode(reader.sb32(field)));
        assert_eq!(QuotaKind::recognise(&content), Some((kind, 1)));
    }
    assert_eq!(
        QuotaKind::recognise(&reader.block(reader.first_block() + 1)),
        None
    );
    Ok(())
}
