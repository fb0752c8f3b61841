//! Makes the fixture of the `check` tests: an image of ours, populated by the kernel with every
//! kind of item, copied while mounted. Ignored: run it to make the fixture anew (as root).

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use sapwood_block::MemoryDevice;
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_testing::oracle::TempImage;

const SCRIPT: &str = r#"
btrfs -q subvolume create sub
# A subvolume without snapshots: what is planted in it is in no other.
btrfs -q subvolume create lone
for top in . lone; do
    cd $top
    mkdir dir dir/inner
    for n in $(seq 60); do echo content $n > dir/file-with-a-longer-name-$n; done
    touch empty
    echo -n inline > inline
    touch zstd; btrfs property set zstd compression zstd; yes compressed | head -c 100000 > zstd
    for n in $(seq 12); do yes $n | head -c 8192; done > regular
    truncate -s 1M sparse
    yes end | head -c 4096 >> sparse
    fallocate -l 256K prealloc
    yes p | dd of=prealloc bs=4k count=2 seek=3 conv=notrunc iflag=fullblock status=none
    echo kept > keep; fallocate -n -o 8192 -l 64K keep
    touch nocow; chattr +C nocow; yes n | head -c 20000 >> nocow
    ln -s target symlink; mkfifo fifo; mknod chr c 5 7; mknod blk b 8 9
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
    echo hard > hard; ln hard hard2; ln hard dir/hard3
    setfattr -n user.one -v 1 regular; setfattr -n user.two -v 22 regular
    cp --reflink=always regular reflink
    cd - > /dev/null
done
# So many names in one directory that they need extended refs.
mkdir lone/many; touch lone/many/0
for n in $(seq 100); do
    ln lone/many/0 lone/many/$(printf 'n%.0s' $(seq 230))$n
done
sync
btrfs -q subvolume snapshot . snap
btrfs -q subvolume snapshot -r sub sub-ro
btrfs -q subvolume create sub/nested
echo changed > dir/file-with-a-longer-name-7; rm snap/dir/file-with-a-longer-name-9
sync
btrfs -q balance start -m . > /dev/null
btrfs -q subvolume set-default $(btrfs inspect-internal rootid sub) .
# Fragments, so that free space needs bitmaps.
mkdir lone/frag
for n in $(seq 400); do echo x | dd of=lone/frag/$((n % 2)) bs=4k count=1 seek=$n conv=notrunc,sync status=none oflag=dsync 2>/dev/null; done
rm lone/frag/1
# So many extents that they need two leaves.
for n in $(seq 500); do echo x | dd of=lone/frag/many bs=4k count=1 seek=$((n * 2)) conv=notrunc,sync status=none; done
mkdir -p lone/deep/deeper
btrfs -q subvolume create dead; echo open > dead/file
sync
"#;

/// `O_TMPFILE` with `O_RDWR` of Linux on x86-64 and arm64.
const O_TMPFILE: i32 = 0o20_200_000;

#[test]
#[ignore = "makes the fixture anew; needs root"]
fn make() {
    let device = MemoryDevice::new(96 << 20);
    let options = MkfsOptions {
        label: "fixture".into(),
        uuid: Some([0x5a; 16]),
        ..MkfsOptions::default()
    };
    mkfs(&device, &options).unwrap();
    let image = TempImage::blank(0);
    device.save(image.path()).unwrap();
    let mount = image.mount_with("noatime,commit=300,discard=sync");
    mount.shell(SCRIPT);
    // An orphan inode, a deleted subvolume that is not cleaned up, and a log.
    let open = File::open(mount.join("dead/file")).unwrap();
    let mut unnamed = File::options();
    let unnamed = unnamed.read(true).write(true).custom_flags(O_TMPFILE);
    let unnamed = unnamed.open(mount.join("lone")).unwrap();
    mount
        .shell("btrfs -q subvolume delete dead; sync; echo logged > lone/logged; sync lone/logged");
    let bytes = std::fs::read(image.path()).unwrap();
    drop((open, unnamed));
    // A window over the whole image: the second copy of metadata then costs nothing.
    let mut packer = zstd::Encoder::new(Vec::new(), 19).unwrap();
    packer.window_log(27).unwrap();
    packer.long_distance_matching(true).unwrap();
    packer.write_all(&bytes).unwrap();
    let packed = packer.finish().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/check.img.zst");
    std::fs::write(path, packed).unwrap();
}
