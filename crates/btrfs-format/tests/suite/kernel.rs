//! File systems that the kernel fills, in many formats: every reachable block must validate and
//! dump, and every structure must round-trip through decode and encode.
//!
//! Needs root, loop devices, `mkfs.btrfs` and `mount`; skipped by name without them. With
//! `SAPWOOD_WRITE_FIXTURES=1` the metadata of some variants is written to `tests/data`.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::common;
use crate::common::{Pages, Source, Walker};
use sapwood_btrfs_format::{DumpBlock, DumpSuper, SUPER_SIZE};
use sapwood_testing::machine::{Need, left_out, note};
use sapwood_testing::oracle::{KernelMount, Kind};
use sapwood_testing::process;

/// Name, arguments of mkfs, mount options, whether its metadata is a fixture.
const VARIANTS: &[(&str, &str, &str, bool)] = &[
    ("default", "", "", true),
    (
        "nodes4k-sha256-old",
        "-n 4096 --csum sha256 -O ^no-holes,^skinny-metadata",
        "",
        true,
    ),
    (
        "mixed-xxhash-v1",
        "--mixed --csum xxhash -R ^free-space-tree",
        "space_cache=v1",
        true,
    ),
    (
        "nodes64k-blake2",
        "-n 65536 --csum blake2",
        "compress-force=zstd",
        false,
    ),
    (
        "block-group-tree",
        "-R block-group-tree",
        "compress-force=lzo",
        true,
    ),
    (
        "single-nocache",
        "-m single -R ^free-space-tree",
        "nospace_cache,compress-force=zlib",
        false,
    ),
    ("lzo", "-M -n 4096", "compress-force=lzo", false),
    ("quota", "-R quota -O ^extref", "max_inline=0", false),
    (
        "nodes8k",
        "-n 8192 -U 11111111-2222-3333-4444-555555555555 -L label",
        "",
        false,
    ),
];

const FILL: &str = r#"
set -e
cd "$1"
# Of this mount only.
sync() { if [ $# = 0 ]; then command sync -f .; else command sync "$@"; fi; }
mkdir d d/sub; ln -s target d/link; mkfifo d/fifo; mknod d/dev c 1 3; mknod d/blk b 7 1
echo inline > d/inline; head -c 300000 /dev/urandom > d/data; yes text | head -c 500000 > d/text
ln d/data d/hard; truncate -s 1M d/hole; echo x | dd of=d/hole bs=1 seek=600000 conv=notrunc
fallocate -l 1M d/prealloc; echo y | dd of=d/prealloc bs=1 seek=500000 conv=notrunc
setfattr -n user.one -v 1 d/data; setfattr -n user.two -v 22 d/data; chattr +C d/sub
cp --reflink=always d/data d/clone; cp --reflink=always d/text d/clone2
for n in $(seq 400); do echo $n > "d/sub/file-with-a-rather-long-name-$n"; done
touch many; for n in $(seq 90); do ln many "d/hardlink-with-a-name-of-its-own-number-$n" || break; done
btrfs -q subvolume create s >/dev/null; cp -a d/text s/; cp --reflink=always d/data s/
btrfs subvolume snapshot . snap >/dev/null; btrfs subvolume snapshot -r s ro >/dev/null
echo more >> snap/d/data; for n in $(seq 50); do rm "snap/d/sub/file-with-a-rather-long-name-$n"; done
sync
btrfs balance start -m . >/dev/null 2>&1 || true
for n in $(seq 20); do cp --reflink=always d/data "d/clone-$n"; done
sync
echo late > d/late; mv d/text d/renamed; sync d/late
echo later >> d/inline; rm d/clone2; sync d/inline; rm d/clone; sync d
"#;

/// Creates, mounts and fills an image, and copies it before the unmount, so that it has a log.
fn make(dir: &Path, mkfs: &str, options: &str) -> Result<PathBuf, String> {
    let (image, mnt, copy) = (dir.join("image"), dir.join("mnt"), dir.join("copy"));
    let _ = std::fs::remove_file(&image);
    File::create(&image)
        .and_then(|f| f.set_len(300 << 20))
        .map_err(|e| e.to_string())?;
    std::fs::create_dir_all(&mnt).map_err(|e| e.to_string())?;
    Kind::Btrfs.format(&image, &mkfs.split_whitespace().collect::<Vec<_>>())?;
    let options = format!("noatime,commit=300,{options}");
    let mount = KernelMount::at(&image, options.trim_end_matches(','), &mnt)?;
    let fill = ["-c", FILL, "fill"].map(OsStr::new);
    process::run("sh", &[&fill[..], &[mount.path().as_os_str()]].concat())?;
    let sparse = OsStr::new("--sparse=always");
    process::run("cp", &[sparse, image.as_os_str(), copy.as_os_str()])?;
    Ok(copy)
}

/// The metadata of an image: its first superblock and every reachable block.
fn metadata(source: &dyn Source, walk: &Walker<'_>) -> Pages {
    let mut pages = Pages::default();
    pages.put(64 << 10, &source.read(64 << 10, SUPER_SIZE));
    for found in &walk.blocks {
        pages.put(found.physical, &found.bytes);
    }
    pages
}

#[test]
fn kernel_made_images_validate() {
    if left_out(&[Need::Kernel(Kind::Btrfs)]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, mkfs, options, fixture) in VARIANTS {
        let image = match make(dir.path(), mkfs, options) {
            Ok(image) => image,
            Err(why) if why.contains("mount") || why.contains("unrecognized") => {
                note(Some(name), &why);
                continue;
            }
            Err(why) => panic!("{name}: {why}"),
        };
        let file = File::open(image).unwrap();
        let walk = Walker::run(&file);
        println!(
            "{name}: {} blocks, log {}",
            walk.blocks.len(),
            walk.sb.log_root
        );
        assert!(walk.refused.is_empty(), "{name}: {:#?}", walk.refused);
        assert!(DumpSuper(&walk.sb).to_string().contains("(right)"));
        for found in &walk.blocks {
            let text = DumpBlock(&found.bytes).to_string();
            assert!(
                !text.contains("BAD") && !text.contains("UNKNOWN"),
                "{name}: {text}"
            );
            common::assert_round_trip(&found.bytes);
        }
        if *fixture && std::env::var_os("SAPWOOD_WRITE_FIXTURES").is_some() {
            let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
            std::fs::create_dir_all(&data).unwrap();
            metadata(&file, &walk).save(&data.join(format!("{name}.zst")));
        }
    }
}
