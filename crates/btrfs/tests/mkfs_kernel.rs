//! `mkfs` makes what `btrfs check` accepts and what the kernel mounts and writes.

#![allow(clippy::unwrap_used)]

use libtest_mimic::Arguments;
use sapwood_block::MemoryDevice;
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs};
use sapwood_btrfs_format::ChecksumKind;
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{Kind, TempImage};

const MIB: u64 = 1 << 20;

fn options() -> MkfsOptions {
    MkfsOptions::default()
}

/// Every option at least once, on sizes from the smallest up.
fn matrix() -> Vec<(&'static str, u64, MkfsOptions)> {
    let single = Some(Profile::Single);
    let dup = Some(Profile::Dup);
    vec![
        ("defaults", 1024 * MIB, options()),
        ("smallest", 24 * MIB, options()),
        ("small", 64 * MIB, options()),
        ("second superblock", 128 * MIB, options()),
        ("third superblock", 300 << 30, options()),
        ("odd size", 64 * MIB + 5 * 4096 + 17, options()),
        (
            "nodes of 4 KiB",
            9 * MIB,
            MkfsOptions {
                node_size: Some(4096),
                ..options()
            },
        ),
        (
            "nodes of 8 KiB",
            32 * MIB,
            MkfsOptions {
                node_size: Some(8192),
                ..options()
            },
        ),
        (
            "nodes of 32 KiB",
            64 * MIB,
            MkfsOptions {
                node_size: Some(32768),
                ..options()
            },
        ),
        (
            "nodes of 64 KiB",
            90 * MIB,
            MkfsOptions {
                node_size: Some(65536),
                ..options()
            },
        ),
        (
            "xxhash",
            32 * MIB,
            MkfsOptions {
                checksum: ChecksumKind::XxHash64,
                ..options()
            },
        ),
        (
            "sha256",
            32 * MIB,
            MkfsOptions {
                checksum: ChecksumKind::Sha256,
                ..options()
            },
        ),
        (
            "blake2",
            32 * MIB,
            MkfsOptions {
                checksum: ChecksumKind::Blake2b,
                ..options()
            },
        ),
        (
            "metadata single",
            16 * MIB,
            MkfsOptions {
                metadata: single,
                ..options()
            },
        ),
        (
            "data dup",
            64 * MIB,
            MkfsOptions {
                data: dup,
                ..options()
            },
        ),
        (
            "mixed",
            16 * MIB,
            MkfsOptions {
                mixed: true,
                ..options()
            },
        ),
        (
            "mixed dup",
            32 * MIB,
            MkfsOptions {
                mixed: true,
                metadata: dup,
                data: dup,
                ..options()
            },
        ),
        (
            "holes",
            32 * MIB,
            MkfsOptions {
                no_holes: false,
                ..options()
            },
        ),
        (
            "no free-space tree",
            32 * MIB,
            MkfsOptions {
                free_space_tree: false,
                ..options()
            },
        ),
        (
            "no block-group tree",
            32 * MIB,
            MkfsOptions {
                block_group_tree: Some(false),
                ..options()
            },
        ),
        (
            "no extended refs",
            32 * MIB,
            MkfsOptions {
                extended_refs: false,
                ..options()
            },
        ),
        (
            "fat extent items",
            32 * MIB,
            MkfsOptions {
                skinny_metadata: false,
                ..options()
            },
        ),
        (
            "as in 2012",
            32 * MIB,
            MkfsOptions {
                node_size: Some(4096),
                skinny_metadata: false,
                extended_refs: false,
                no_holes: false,
                free_space_tree: false,
                ..options()
            },
        ),
        (
            "own chunk sizes",
            64 * MIB,
            MkfsOptions {
                system_chunk: Some(2 * MIB),
                metadata_chunk: Some(16 * MIB),
                data_chunk: Some(3 * MIB),
                ..options()
            },
        ),
    ]
}

/// Made, checked, filled by the kernel, checked, read by the kernel.
fn proved(name: &str, size: u64, options: &MkfsOptions) {
    let device = MemoryDevice::new(size);
    let options = MkfsOptions {
        label: name.into(),
        ..options.clone()
    };
    assert_eq!(mkfs(&device, &options).unwrap().size, size / 4096 * 4096);
    clean(&device);
    let image = TempImage::blank(0);
    device.save(image.path()).unwrap();
    image.check();
    let mount = image.mount();
    mount.shell(
        "mkdir d; for n in $(seq 200); do echo $n > d/$n; done
        head -c 300000 /dev/urandom > big; sync
        rm d/1?; truncate -s 100000 big; ln big hard; setfattr -n user.a -v b big",
    );
    drop(mount);
    image.check();
    clean(&MemoryDevice::load(image.path()).unwrap());
    let mount = image.mount_with("ro");
    assert_eq!(mount.shell("ls d | wc -l; cat d/200"), "190\n200\n");
}

/// Our own check finds nothing at all.
fn clean(device: &MemoryDevice) {
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let report = check(&[device], &options, &mut |_| ()).unwrap();
    assert_eq!(report.findings, []);
}

fn main() {
    let needs = &[Need::Program("btrfs"), Need::Kernel(Kind::Btrfs)];
    let tests = matrix()
        .into_iter()
        .map(|(name, size, options)| trial(name, needs, move || proved(name, size, &options)))
        .collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
