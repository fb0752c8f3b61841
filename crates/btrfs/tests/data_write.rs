//! File data against a model: random operations, written back, read from the image again, checked
//! by `btrfs check` and read by the kernel. Without root or the tools those last steps are left
//! out.
#![allow(clippy::unwrap_used)]

mod data_files;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use data_files::{After, FILES, Files, LIMIT, Random};
use libtest_mimic::{Arguments, Trial};
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_btrfs_format::ChecksumKind;
use sapwood_testing::machine::{Need, part_left_out};
use sapwood_testing::oracle::{Kind, TempImage, run};
use sapwood_vfs::FileSystem;

const SIZE: u64 = 300 << 20;
fn make_device(make: &MkfsOptions) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    mkfs(&*device, make).unwrap();
    device
}

fn mount(device: &Arc<MemoryDevice>, options: &Options) -> Btrfs {
    let device: Arc<dyn Device> = device.clone();
    Btrfs::open(vec![device], options.clone()).unwrap()
}

/// Prints where files have data, as `Files::stretches` does.
const STRETCHES: &str = r#"
import os, sys
for name in sys.argv[1:]:
    f = os.open(name, 0)
    end, at = os.fstat(f).st_size, 0
    while at < end:
        try: data = os.lseek(f, at, os.SEEK_DATA)
        except OSError: break
        at = os.lseek(f, data, os.SEEK_HOLE)
        print(data, at)
    print("-")
"#;

/// The image, judged by the tools and the kernel.
fn judge(device: &MemoryDevice, files: &[&Files], stretches: &[String]) {
    let image = TempImage::blank(0);
    device.save(image.path()).unwrap();
    if !part_left_out("btrfs check", &[Need::Program("btrfs")])
        && let Err(why) = image.try_check()
    {
        files[0].fail(&why);
    }
    if !part_left_out("the kernel", &[Need::Kernel(Kind::Btrfs)]) {
        let mount = image.mount_with("ro");
        for (files, own) in files.iter().zip(stretches) {
            files.compare_with_kernel(mount.path());
            let paths = (0..FILES).map(|i| mount.join(files.name(i)).into_os_string());
            let args: Vec<_> = ["-c".into(), STRETCHES.into()]
                .into_iter()
                .chain(paths)
                .collect();
            let kernel = run("python3", &args);
            if kernel != *own {
                files.fail(&format!("data by the kernel:\n{kernel}by us:\n{own}"));
            }
        }
    }
}

fn random_operations(seed: u64, steps: usize, make: &MkfsOptions, options: &Options, nocow: bool) {
    let mut random = Random(seed);
    let device = make_device(make);
    let mut fs = mount(&device, options);
    let mut files = Files::create(&fs, "f", nocow);
    for _ in 0..steps {
        if files.step(&fs, &mut random) == After::Remount {
            fs.unmount().unwrap();
            fs = mount(&device, options);
            files.look_up(&fs);
            files.compare_all(&fs);
        }
    }
    files.compare_all(&fs);
    fs.unmount().unwrap();
    let fs = mount(&device, options);
    files.look_up(&fs);
    files.compare_all(&fs);
    let stretches = files.stretches(&fs);
    fs.unmount().unwrap();
    judge(&device, &[&files], &[stretches]);
}

/// Several threads, each with files of its own, and one that reads them all.
fn threads(seed: u64, steps: usize, options: &Options, nocow: bool) {
    const THREADS: u64 = 4;
    let device = make_device(&MkfsOptions::default());
    let fs = mount(&device, options);
    let done = AtomicU64::new(0);
    let mut all: Vec<Files> = thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                let (fs, done) = (&fs, &done);
                scope.spawn(move || {
                    let mut random = Random(seed ^ (t << 32));
                    let mut files = Files::create(fs, &format!("t{t}-"), nocow);
                    for _ in 0..steps {
                        files.step(fs, &mut random);
                    }
                    files.compare_all(fs);
                    done.fetch_add(1, Ordering::SeqCst);
                    files
                })
            })
            .collect();
        let mut random = Random(seed ^ 99);
        let mut buf = vec![0; 100_000];
        while done.load(Ordering::SeqCst) < THREADS && workers.iter().any(|w| !w.is_finished()) {
            let name = format!("t{}-{}", random.below(THREADS), random.below(FILES as u64));
            if let Ok(entry) = fs.lookup(fs.root(), name.as_bytes()) {
                fs.read(entry.attr.ino, random.place(LIMIT), &mut buf)
                    .unwrap();
                fs.forget(entry.attr.ino, 1);
            }
            thread::yield_now();
        }
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    fs.unmount().unwrap();
    let fs = mount(&device, options);
    for files in &mut all {
        files.look_up(&fs);
        files.compare_all(&fs);
    }
    let stretches: Vec<_> = all.iter().map(|files| files.stretches(&fs)).collect();
    fs.unmount().unwrap();
    judge(&device, &all.iter().collect::<Vec<_>>(), &stretches);
}

fn main() {
    let seed = std::env::var("SAPWOOD_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let steps = std::env::var("SAPWOOD_STEPS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(300);
    let plain = MkfsOptions::default();
    let holes = MkfsOptions {
        no_holes: false,
        ..plain.clone()
    };
    let sha = MkfsOptions {
        checksum: ChecksumKind::Sha256,
        node_size: Some(4096),
        ..plain.clone()
    };
    let mixed = MkfsOptions {
        mixed: true,
        ..plain.clone()
    };
    let with = |compress: &str, force: bool| Options {
        compress: compress.parse().ok(),
        compress_force: force,
        dirty_bytes: 1 << 20,
        ..Options::default()
    };
    let variants: BTreeMap<&str, (MkfsOptions, Options, bool)> = [
        ("plain", (plain.clone(), Options::default(), false)),
        ("little_memory", (plain.clone(), with("", false), false)),
        ("explicit_holes", (holes.clone(), Options::default(), false)),
        ("nodatacow", (plain.clone(), with("", false), true)),
        ("nodatacow_holes", (holes, Options::default(), true)),
        ("zstd", (plain.clone(), with("zstd", false), false)),
        ("zlib_forced", (plain.clone(), with("zlib", true), false)),
        ("lzo_forced", (plain, with("lzo", true), false)),
        ("sha256_4k", (sha, with("", false), false)),
        ("mixed", (mixed, Options::default(), false)),
    ]
    .into();
    let in_threads = [
        ("plain", "", false),
        ("zstd", "zstd", false),
        ("nodatacow", "", true),
    ]
    .map(|(name, compress, nocow)| {
        let options = with(compress, false);
        Trial::test(format!("threads_{name}"), move || {
            threads(seed, steps / 2, &options, nocow);
            Ok(())
        })
    });
    let tests: Vec<Trial> = variants
        .into_iter()
        .map(|(name, (make, options, nocow))| {
            Trial::test(format!("random_operations_{name}"), move || {
                random_operations(seed, steps, &make, &options, nocow);
                Ok(())
            })
        })
        .chain(in_threads)
        .collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
