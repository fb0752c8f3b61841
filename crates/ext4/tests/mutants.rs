//! Images whose bytes are wrong and whose checksums are right: what `check` says of them, compared
//! with `e2fsck`. `make mutants` makes many, and other ones.
#![allow(clippy::unwrap_used)]

mod image;

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use fastrand::Rng;
use image::formatted;
use libtest_mimic::Arguments;
use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4::check::{CheckOptions, check};
use sapwood_ext4::{Ext4, Options};
use sapwood_ext4_format::{Geometry, GroupDesc, Inode, SuperBlock, validate_super};
use sapwood_testing::machine::trial;
use sapwood_testing::mutants::{Change, Mutant, MutantPlan, Oracle, Said, compare};
use sapwood_vfs::{AllocMode, Credentials, FileSystem, NewInode, Result, SetXattrMode, WriteMode};

const BLOCK: usize = 1024;
const SUPER: Range<u64> = 1024..2048;
/// Of `mke2fs`. All checksums are made right again in the last only, of the superblock and of
/// inodes.
const FORMS: [&str; 3] = [
    "^metadata_csum,^uninit_bg,ea_inode",
    "^metadata_csum,^uninit_bg,^extent,^64bit",
    "metadata_csum,64bit",
];

struct E2fsck;

impl Oracle for E2fsck {
    fn command(&self, image: &Path) -> Command {
        let mut command = Command::new("e2fsck");
        command.arg("-fn").arg(image);
        command
    }

    fn said(&self, status: i32, output: &str) -> Said {
        if output.contains("skipping journal recovery") {
            // It replays no journal in a check that changes nothing.
            return Said::Nothing("journal".to_owned());
        }
        let asked = |line: &&str| line.contains("? no") && !line.contains("Optimize?");
        let first = output.lines().find(asked);
        match status {
            0 if first.is_none() => Said::Clean,
            // Some questions do not count in the status.
            0 | 4..=12 => {
                let second = output.lines().nth(1);
                let said = first.or(second).unwrap_or_default();
                Said::Broken(said.to_owned())
            }
            _ => Said::Nothing(format!("status {status}")),
        }
    }
}

fn ours(device: MemoryDevice) -> Said {
    let device: Arc<dyn Device> = Arc::new(device);
    let options = CheckOptions::default();
    match check(&device, &options, &mut |_| ControlFlow::Continue(())) {
        Err(error) => Said::Broken(error.to_string()),
        Ok(report) if report.is_clean() => Said::Clean,
        Ok(report) => {
            let text = report.errors().next().map(|found| format!("{found:?}"));
            let text = text.unwrap_or_default();
            let name = text.split([' ', '(', '{']).next();
            Said::Broken(name.unwrap_or_default().to_owned())
        }
    }
}

struct Base {
    device: MemoryDevice,
    geometry: Geometry,
    /// Blocks that hold more than one kind of byte: metadata, as file data here does not.
    blocks: Vec<u64>,
    /// Byte offsets of used inodes, with their numbers.
    inodes: Vec<(u64, u32)>,
}

impl Base {
    fn new(features: &str) -> Self {
        let uuid = "UUID=11111111-2222-3333-4444-555555555555";
        let seed = "hash_seed=11111111-2222-3333-4444-555555555555";
        let options = ["-b", "1024", "-I", "256", "-O", features, "-J", "size=1"];
        let fixed = ["-U", &uuid[5..], "-E", seed];
        let device = formatted(12 << 20, &[&options[..], &fixed].concat());
        let mount = Options {
            background: false,
            ..Options::default()
        };
        let fs = Ext4::open(device.clone(), mount).unwrap();
        fill(&fs).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        Self::of(device.snapshot())
    }

    fn of(device: MemoryDevice) -> Self {
        let read = |at: u64| {
            let mut bytes = vec![0; BLOCK];
            device.read_at(at, &mut bytes).unwrap();
            bytes
        };
        let sb = SuperBlock::parse(&read(SUPER.start)).unwrap();
        let geometry = validate_super(&sb, device.size()).unwrap();
        let mixed = |at: &u64| {
            let bytes = read(*at);
            !SUPER.contains(at) && bytes.iter().any(|byte| *byte != bytes[0])
        };
        let blocks = (0..device.size()).step_by(BLOCK).filter(mixed).collect();
        let size = u64::from(sb.inode_size.get());
        let per_group = sb.inodes_per_group.get();
        let desc = usize::from(sb.desc_size.get()).max(32);
        let mut inodes = Vec::new();
        for (group, bytes) in read(2 * BLOCK as u64).chunks(desc).take(2).enumerate() {
            let table = GroupDesc::read(bytes, &geometry).unwrap().inode_table();
            for index in 0..per_group {
                let at = table * BLOCK as u64 + u64::from(index) * size;
                let used = read(at)[..2] != [0, 0];
                inodes.extend(used.then_some((at, group as u32 * per_group + index + 1)));
            }
        }
        Self {
            device,
            geometry,
            blocks,
            inodes,
        }
    }

    fn has_checksums(&self) -> bool {
        self.geometry.metadata_csum()
    }

    fn mutant(&self, rng: &mut Rng) -> Option<Mutant> {
        let (at, len, ino, name) = match rng.u8(0..10) {
            0 => (SUPER.start, BLOCK, 0, "superblock"),
            kind @ 1..=9 if kind < 5 || self.has_checksums() => {
                let (at, ino) = *rng.choice(&self.inodes)?;
                (at, 256, ino, "inode")
            }
            _ => (*rng.choice(&self.blocks)?, BLOCK, 0, "block"),
        };
        let mut bytes = vec![0; len];
        self.device.read_at(at, &mut bytes).unwrap();
        let within = rng.usize(0..if ino == 0 { len } else { 160 });
        let change = Change::any(rng, len);
        if !change.apply(&mut bytes, within) {
            return None;
        }
        if self.has_checksums() {
            self.seal(&mut bytes, ino)?;
        }
        let device = self.device.snapshot();
        device.write_at(at, &bytes).unwrap();
        let number = if ino == 0 {
            at / BLOCK as u64
        } else {
            ino.into()
        };
        Some(Mutant {
            what: format!("{name} {number}+{within:#x} {change:?}"),
            device,
            touched: vec![(at, len)],
            base: 0,
        })
    }

    /// Makes the checksum of the superblock or an inode right again.
    fn seal(&self, bytes: &mut [u8], ino: u32) -> Option<()> {
        if ino == 0 {
            let mut sb = SuperBlock::parse(bytes).ok()?;
            sb.set_checksum();
            bytes.copy_from_slice(sb.bytes());
        } else {
            let mut inode = Inode::parse(ino, bytes, &self.geometry).ok()?;
            inode.set_checksum(ino, &self.geometry);
            inode.write(bytes).ok()?;
        }
        Some(())
    }
}

/// Every kind of inode and of block that a few hundred blocks can hold.
fn fill(fs: &Ext4) -> Result<()> {
    let root = &Credentials::ROOT;
    let file = |dir, name: &str, ranges: &[(u64, usize)]| -> Result<_> {
        let ino = fs.create(root, dir, name.as_bytes(), NewInode::Regular, 0o644)?;
        for (offset, len) in ranges {
            let bytes = vec![0x55; *len];
            let _ = fs.write(ino.ino(), *offset, &bytes, WriteMode::default())?;
        }
        Ok(ino.ino())
    };
    let top = fs.root();
    let tree = fs
        .create(root, top, b"tree", NewInode::Directory, 0o755)?
        .ino();
    for number in 0..60 {
        let name = format!("{number}-a-name-that-fills-the-blocks-of-a-directory-soon");
        fs.forget(file(tree, &name, &[])?, 1);
    }
    let holes: Vec<_> = (0..12).map(|n| (n * 40_000, 3000)).collect();
    let holes = file(top, "holes", &holes)?;
    let small = file(top, "small", &[(0, 70)])?;
    // Block maps have no blocks that are allocated and not written.
    let _ = fs.fallocate(small, 20_000, 9000, AllocMode::Allocate { keep_size: true });
    for (name, len) in [("user.short", 5), ("user.block", 300), ("user.long", 900)] {
        // The longest fits only where values may be inodes.
        let _ = fs.setxattr(small, name.as_bytes(), &vec![b'v'; len], SetXattrMode::Any);
    }
    fs.setxattr(holes, b"user.short", b"v", SetXattrMode::Any)?;
    for (name, what) in [
        ("short", NewInode::Symlink(b"small")),
        ("long", NewInode::Symlink(&[b'x'; 200])),
        ("device", NewInode::CharDevice(0x103)),
        ("pipe", NewInode::Fifo),
    ] {
        fs.create(root, top, name.as_bytes(), what, 0o644)?;
    }
    fs.link(small, tree, b"second")?;
    Ok(())
}

fn mutants_are_found_as_e2fsck_finds_them() {
    let bases = FORMS.map(Base::new);
    let devices: Vec<&MemoryDevice> = bases.iter().map(|base| &base.device).collect();
    let mutant = |rng: &mut Rng| {
        let base = rng.usize(0..bases.len());
        let made = bases.get(base)?.mutant(rng)?;
        Some(Mutant { base, ..made })
    };
    let tally = compare(MutantPlan::from_env(60), &devices, mutant, ours, &E2fsck);
    let text = tally.text();
    eprintln!("{text}");
    assert!(tally.missed.is_empty() && tally.failed.is_empty(), "{text}");
}

fn main() {
    let name = "mutants_are_found_as_e2fsck_finds_them";
    let test = trial(name, image::TOOLS, mutants_are_found_as_e2fsck_finds_them);
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit();
}
