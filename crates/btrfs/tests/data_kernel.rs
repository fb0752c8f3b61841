//! File data against the kernel: what it wrote we read byte for byte.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use sapwood_block::{Device, FileDevice};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{Kind, TempImage, run};
use sapwood_vfs::{FileKind, FileSystem, Ino, SeekFrom};

/// Fills a mount with every kind of extent. `$1`: the compression to ask for.
const FILL: &str = r#"
noise() { head -c "$1" /dev/urandom; }
text() { yes "line of text $RANDOM" | head -c "$1" || true; }
text 100 > inline; noise 2048 > inline-max; : > empty
noise 4096 > sector; noise 4097 > over; noise 5000000 > noise; text 3000000 > text
truncate -s 1000000 hole
text 700 > grown; sync; truncate -s 90000 grown
text 90000 > cut; sync; truncate -s 40001 cut
text 3000 > cut-inline; sync; truncate -s 55 cut-inline
noise 10000 > sparse; truncate -s 3000000 sparse; noise 20000 | dd of=sparse bs=4096 seek=500 conv=notrunc status=none
fallocate -l 1000000 prealloc; noise 50000 | dd of=prealloc bs=10000 seek=20 conv=notrunc status=none
touch keep; fallocate -n -o 0 -l 500000 keep; noise 100 | dd of=keep conv=notrunc status=none
text 1000000 > bookend; sync; noise 33333 | dd of=bookend bs=11111 seek=7 conv=notrunc status=none
sync; text 4096 | dd of=bookend bs=4096 seek=100 conv=notrunc status=none
sync; cp --reflink=always bookend clone; noise 5000 | dd of=clone bs=5000 seek=3 conv=notrunc status=none
text 2000000 > punched; sync; fallocate -p -o 100000 -l 777777 punched
touch nocow; chattr +C nocow; noise 600000 > nocow; sync; text 9999 | dd of=nocow bs=9999 seek=5 conv=notrunc status=none
for how in zlib lzo zstd; do
  for size in 60 3000 4096 130000 131072 700001; do
    f=$how-$size; touch $f; btrfs property set $f compression $how; text $size > $f
  done
  mkdir d-$how; btrfs property set d-$how compression $how
  seq 1 300000 > d-$how/seq; { seq 1 50000; noise 300000; seq 1 50000; } > d-$how/mixed
  sync; noise 20000 | dd of=d-$how/seq bs=20000 seek=11 conv=notrunc status=none
  ln -s "some/where $how" link-$how
done
sync
"#;

/// Variants of file systems and mounts.
const VARIANTS: [(&str, &[&str], &str); 7] = [
    ("default", &[], "rw"),
    ("explicit_holes", &["-O", "^no-holes"], "rw"),
    ("sha256_4k", &["--csum", "sha256", "-n", "4096"], "rw"),
    (
        "xxhash_64k",
        &["--csum", "xxhash", "-n", "65536"],
        "rw,max_inline=4095",
    ),
    (
        "force_zstd",
        &["--csum", "blake2"],
        "rw,compress-force=zstd:9",
    ),
    ("force_lzo", &[], "rw,compress-force=lzo"),
    ("mixed", &["--mixed"], "rw,compress=zlib"),
];

fn open(image: &TempImage) -> Btrfs {
    let device: Arc<dyn Device> =
        Arc::new(FileDevice::open(image.path(), Default::default()).unwrap());
    Btrfs::open(
        vec![device],
        Options {
            read_only: true,
            ..Options::default()
        },
    )
    .unwrap()
}

/// Content of every file below a directory, as the kernel shows it.
fn of_kernel(dir: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}/{}", entry.file_name().to_str().unwrap());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            of_kernel(&entry.path(), &name, found);
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).unwrap();
            found.insert(name, target.to_str().unwrap().into());
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
}

fn read_all(fs: &Btrfs, ino: Ino, size: u64) -> Vec<u8> {
    let mut all = vec![0xaa; size as usize];
    // Odd sizes, so that pieces begin anywhere.
    for (i, piece) in all.chunks_mut(99_991).enumerate() {
        let len = fs.read(ino, i as u64 * 99_991, piece).unwrap();
        assert_eq!(len, piece.len());
    }
    all
}

/// The same as we show it.
fn of_ours(fs: &Btrfs, dir: Ino, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    let mut entries = Vec::new();
    let mut sink = |entry: sapwood_vfs::DirEntry| {
        entries.push(entry);
        ControlFlow::Continue(())
    };
    fs.readdir(dir, 0, &mut sink).unwrap();
    for entry in entries {
        let name = format!(
            "{prefix}/{}",
            String::from_utf8(entry.name.to_vec()).unwrap()
        );
        let found_entry = fs.lookup(dir, &entry.name).unwrap();
        let attr = found_entry.attr;
        match attr.kind {
            FileKind::Directory => of_ours(fs, attr.ino, &name, found),
            FileKind::Symlink => {
                found.insert(name, fs.readlink(attr.ino).unwrap());
            }
            _ => {
                found.insert(name, read_all(fs, attr.ino, attr.size));
            }
        }
        fs.forget(attr.ino, 1);
    }
}

fn assert_same(kernel: &BTreeMap<String, Vec<u8>>, ours: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(
        kernel.keys().collect::<Vec<_>>(),
        ours.keys().collect::<Vec<_>>()
    );
    for (name, bytes) in kernel {
        let own = &ours[name];
        let first = bytes.iter().zip(own).position(|(a, b)| a != b);
        assert_eq!((bytes.len(), None), (own.len(), first), "{name} differs");
    }
}

/// Offsets where data begins and ends, by the kernel.
fn stretches_of_kernel(path: &Path) -> String {
    let script = "import os,sys\nf=os.open(sys.argv[1],0);e=os.fstat(f).st_size;a=0\nwhile a<e:\n try: d=os.lseek(f,a,3)\n except OSError: break\n a=os.lseek(f,d,4);print(d,a)";
    run(
        "python3",
        &["-c".as_ref(), script.as_ref(), path.as_os_str()],
    )
}

fn stretches_of_ours(fs: &Btrfs, name: &str) -> String {
    let entry = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    let mut found = String::new();
    let mut at = 0;
    while let Ok(data) = fs.seek(entry.attr.ino, SeekFrom::Data(at)) {
        at = fs.seek(entry.attr.ino, SeekFrom::Hole(data)).unwrap();
        found += &format!("{data} {at}\n");
    }
    fs.forget(entry.attr.ino, 1);
    found
}

fn kernel_writes_we_read(args: &[&str], options: &str) {
    let image = TempImage::new(512 << 20, args);
    let mut kernel = BTreeMap::new();
    let mut stretches = BTreeMap::new();
    {
        let mount = image.mount_with(options);
        mount.shell(FILL);
    }
    {
        let mount = image.mount_with("ro");
        of_kernel(mount.path(), "", &mut kernel);
        for name in ["hole", "sparse", "prealloc", "punched", "text", "grown"] {
            stretches.insert(name, stretches_of_kernel(&mount.join(name)));
        }
    }
    let fs = open(&image);
    let mut ours = BTreeMap::new();
    of_ours(&fs, fs.root(), "", &mut ours);
    assert_same(&kernel, &ours);
    for (name, found) in stretches {
        assert_eq!(found, stretches_of_ours(&fs, name), "data in {name}");
    }
}

fn main() {
    let reads = VARIANTS.map(|(name, args, options)| {
        trial(
            format!("kernel_writes_we_read_{name}"),
            &[Need::Program("mkfs.btrfs"), Need::Kernel(Kind::Btrfs)],
            move || {
                kernel_writes_we_read(args, options);
            },
        )
    });
    let tests: Vec<Trial> = reads.into_iter().collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
