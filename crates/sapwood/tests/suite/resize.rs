//! Resizing and trimming, on both engines: every power cut leaves a file system of the old or the
//! new size with everything in it.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::Btrfs;
use sapwood_ext4::Ext4;
use sapwood_testing::machine::{Need, left_out, step};
use sapwood_testing::{CrashPlan, RecordDevice, Replayer};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, SetXattrMode, TrimRange, WriteMode};

const MIB: u64 = 1 << 20;
const FILES: u32 = 16;
const DIRS: u32 = 3;
/// Cuts that are tried of each change of size.
const CUTS: usize = 8;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Format {
    Btrfs,
    /// ext4 with these features switched.
    Ext4(&'static str),
}

/// Verifies the files that a test wrote.
type Verify = fn(&dyn FileSystem) -> Result<()>;

type Result<T> = std::result::Result<T, String>;

impl Format {
    /// A file system of `size` bytes.
    fn format(self, device: &dyn Device, size: u64) {
        match self {
            Self::Btrfs => {
                let options = sapwood_btrfs::mkfs::MkfsOptions {
                    size: Some(size),
                    ..Default::default()
                };
                sapwood_btrfs::mkfs::mkfs(device, &options).unwrap();
            }
            Self::Ext4(features) => {
                let named = features.split(',').filter(|name| !name.is_empty());
                let switched = named.map(|name| match name.strip_prefix('^') {
                    Some(name) => (name.to_owned(), false),
                    None => (name.to_owned(), true),
                });
                let options = sapwood_ext4::mkfs::MkfsOptions {
                    size: Some(size),
                    features: switched.collect(),
                    ..Default::default()
                };
                sapwood_ext4::mkfs::mkfs(device, &options).unwrap();
            }
        }
    }

    fn mount(self, device: Arc<dyn Device>) -> Result<Box<dyn FileSystem>> {
        Ok(match self {
            Self::Btrfs => {
                let fs = Btrfs::open(vec![device], sapwood_btrfs::Options::default());
                Box::new(fs.map_err(|error| error.to_string())?)
            }
            Self::Ext4(_) => {
                let fs = Ext4::open(device, sapwood_ext4::Options::default());
                Box::new(fs.map_err(|error| error.to_string())?)
            }
        })
    }

    fn size(self, device: &dyn Device) -> u64 {
        match self {
            Self::Btrfs => sapwood_btrfs::resize::size(device).unwrap(),
            Self::Ext4(_) => sapwood_ext4::resize::size(device).unwrap(),
        }
    }

    /// A new size, or the smallest.
    fn resize(self, device: &Arc<dyn Device>, size: Option<u64>) -> Result<u64> {
        let ignore = &mut |_| ();
        match (self, size) {
            (Self::Btrfs, Some(size)) => sapwood_btrfs::resize::resize(device, size, None, ignore)
                .map_err(|error| error.to_string()),
            (Self::Btrfs, None) => sapwood_btrfs::resize::shrink_to_fit(device, None, ignore)
                .map_err(|error| error.to_string()),
            (Self::Ext4(_), Some(size)) => sapwood_ext4::resize::resize(device, size, None, ignore)
                .map_err(|error| error.to_string()),
            (Self::Ext4(_), None) => sapwood_ext4::resize::shrink_to_fit(device, 0, None, ignore)
                .map_err(|error| error.to_string()),
        }
    }

    fn check(self, device: &Arc<dyn Device>) -> Result<()> {
        let findings: Vec<String> = match self {
            Self::Btrfs => {
                let options = sapwood_btrfs::check::CheckOptions {
                    check_data_csum: true,
                    ..Default::default()
                };
                let report = sapwood_btrfs::check::check(&[&**device], &options, &mut |_| ());
                let report = report.map_err(|error| error.to_string())?;
                report.errors().map(ToString::to_string).collect()
            }
            Self::Ext4(_) => {
                let report = sapwood_ext4::check::check(
                    device,
                    &sapwood_ext4::check::CheckOptions::default(),
                    &mut |_| std::ops::ControlFlow::Continue(()),
                );
                let report = report.map_err(|error| error.to_string())?;
                report.errors().map(ToString::to_string).collect()
            }
        };
        if findings.is_empty() {
            Ok(())
        } else {
            Err(findings.join("; "))
        }
    }
}

fn content(number: u32) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number.into());
    let len = match number % 4 {
        0 => 100,
        1 => 5000 + number as usize,
        2 => 70_000,
        _ => 400_000,
    };
    (0..len).map(|_| random.u8(..)).collect()
}

fn create(fs: &dyn FileSystem, dir: Ino, name: &str, what: NewInode<'_>) -> Ino {
    let made = fs.create(&Credentials::ROOT, dir, name.as_bytes(), what, 0o755);
    made.unwrap().ino()
}

/// Directories with files, written one after another and then partly removed, so that the rest has
/// gaps.
fn fill(fs: &dyn FileSystem) {
    for dir in 0..DIRS {
        let dir = create(fs, fs.root(), &format!("d{dir}"), NewInode::Directory);
        for number in 0..FILES {
            for (prefix, write) in [("gap", 300_000), ("f", 0)] {
                let file = create(fs, dir, &format!("{prefix}{number}"), NewInode::Regular);
                let bytes = match write {
                    0 => content(number),
                    len => vec![7; len],
                };
                fs.write(file, 0, &bytes, WriteMode::default()).unwrap();
                if number % 8 == 0 {
                    let value = [number as u8; 300];
                    let mode = SetXattrMode::Any;
                    fs.setxattr(file, b"user.x", &value, mode).unwrap();
                }
            }
        }
        fs.sync().unwrap();
        for number in 0..FILES {
            fs.unlink(dir, format!("gap{number}").as_bytes()).unwrap();
        }
    }
    fs.sync().unwrap();
}

/// Everything that [`fill`] made is there.
fn verify(fs: &dyn FileSystem) -> Result<()> {
    let lookup = |dir: Ino, name: String| {
        let found = fs.lookup(dir, name.as_bytes());
        found.map_err(|error| format!("{name}: {error}"))
    };
    for dir in 0..DIRS {
        let dir = lookup(fs.root(), format!("d{dir}"))?.ino();
        for number in 0..FILES {
            let file = lookup(dir, format!("f{number}"))?;
            let expected = content(number);
            let mut found = vec![0; expected.len() + 1];
            let read = fs.read(file.ino(), 0, &mut found);
            let read = read.map_err(|error| format!("f{number}: {error}"))?;
            if read != expected.len() || found[..read] != expected {
                return Err(format!("f{number} has other content"));
            }
            if number % 8 == 0 {
                let value = fs.getxattr(file.ino(), b"user.x");
                if value.ok() != Some(vec![number as u8; 300]) {
                    return Err(format!("f{number} lost its attribute"));
                }
            }
        }
    }
    Ok(())
}

/// The image is complete: mounted, unmounted, and checked.
fn whole(engine: Format, device: &Arc<dyn Device>) -> Result<()> {
    whole_by(engine, device, verify)
}

fn whole_by(engine: Format, device: &Arc<dyn Device>, verify: Verify) -> Result<()> {
    let fs = engine.mount(Arc::clone(device))?;
    verify(&*fs)?;
    fs.unmount().map_err(|error| error.to_string())?;
    drop(fs);
    engine.check(device)
}

/// A filled file system of `size` bytes on a device of `room` bytes.
fn filled(engine: Format, size: u64, room: u64) -> Arc<MemoryDevice> {
    let memory = Arc::new(MemoryDevice::new(room));
    engine.format(&*memory, size);
    let fs = engine.mount(memory.clone()).unwrap();
    fill(&*fs);
    fs.unmount().unwrap();
    memory
}

/// Records a change of size, and tries power cuts of it.
fn cuts(engine: Format, memory: &Arc<MemoryDevice>, size: Option<u64>) -> u64 {
    cuts_by(engine, memory, size, verify)
}

fn cuts_by(engine: Format, memory: &Arc<MemoryDevice>, size: Option<u64>, verify: Verify) -> u64 {
    some_cuts(engine, memory, size, verify, CUTS)
}

/// Tries [`cuts`]: about `most` of them, or every cut with `SAPWOOD_FULL=1`.
fn some_cuts(
    engine: Format,
    memory: &Arc<MemoryDevice>,
    size: Option<u64>,
    verify: Verify,
    most: usize,
) -> u64 {
    let base = memory.snapshot();
    let record = Arc::new(RecordDevice::new(Arc::clone(memory)));
    let device: Arc<dyn Device> = record.clone();
    let before = engine.size(&*device);
    let after = engine.resize(&device, size).unwrap();
    assert_eq!(engine.size(&*device), after);
    let log = record.log();
    drop((device, record));
    let mut replayer = Replayer::new(&log, &base);
    let points = log.crash_points();
    assert!(
        points.len() > 5,
        "only {} cuts, {before} to {after}",
        points.len()
    );
    // ext4 becomes as small as possible in several steps.
    let steps = size.is_none() && matches!(engine, Format::Ext4(_));
    let distance = step(points.len().div_ceil(most).max(1));
    for at in points.into_iter().step_by(distance) {
        let try_image = |image: MemoryDevice, plan: &CrashPlan| {
            let image: Arc<dyn Device> = Arc::new(image);
            let result = whole_by(engine, &image, verify);
            let size = engine.size(&*image);
            let between = steps && (after..before).contains(&size);
            let known = [before, after].contains(&size) || between;
            assert!(
                result.is_ok() && known,
                "{engine:?}, {before} to {after}, {plan:?}: {size} bytes, {result:?}"
            );
        };
        let plan = CrashPlan::at(at);
        try_image(replayer.image(&plan), &plan);
        let mut plan = log.random_plan(at, at as u64);
        // ext4 has one copy of its superblock that is read: it is written whole or not at all.
        plan.torn.retain(|entry, _| {
            let entry = log.entries().get(*entry);
            let range = entry.and_then(|entry| entry.action.range());
            range.is_none_or(|(offset, _)| offset > 64 << 10)
        });
        try_image(log.image(&base, &plan), &plan);
    }
    after
}

/// Grows, shrinks, and shrinks to the least.
fn every_change(engine: Format, size: u64, room: u64) {
    let memory = filled(engine, size, room);
    assert_eq!(cuts(engine, &memory, Some(room)), room);
    let smaller = cuts(engine, &memory, Some(size));
    assert!(smaller <= size && smaller > size - size / 8, "{smaller}");
    let least = cuts(engine, &memory, None);
    assert!(least <= smaller);
    let device: Arc<dyn Device> = memory;
    whole(engine, &device).unwrap();
    let refused = engine.resize(&device, Some(4 * MIB)).unwrap_err();
    assert!(
        refused.contains("fit") || refused.contains("inodes"),
        "{refused}"
    );
    assert!(engine.resize(&device, Some(room + MIB)).is_err());
    whole(engine, &device).unwrap();
}

#[test]
fn a_cut_leaves_the_old_or_the_new_size_of_btrfs() {
    every_change(Format::Btrfs, 128 * MIB, 192 * MIB);
}

#[test]
fn a_cut_leaves_the_old_or_the_new_size_of_ext4() {
    every_change(Format::Ext4(""), 48 * MIB, 96 * MIB);
}

#[test]
fn a_cut_leaves_the_old_or_the_new_size_of_other_forms_of_ext4() {
    every_change(
        Format::Ext4("meta_bg,^resize_inode,^flex_bg"),
        48 * MIB,
        96 * MIB,
    );
    every_change(
        Format::Ext4("^64bit,^metadata_csum,^extent"),
        48 * MIB,
        80 * MIB,
    );
}

/// The check compares the usage after each cut.
#[test]
fn a_cut_leaves_the_old_or_the_new_size_and_the_usage_of_quotas() {
    every_change(Format::Ext4("quota,project"), 48 * MIB, 96 * MIB);
}

/// Grows past the limit of the classic descriptor table, and shrinks below it.
fn across_the_border(engine: Format, memory: &Arc<MemoryDevice>, size: u64, room: u64) {
    let first_meta_group = |memory: &MemoryDevice| {
        let image = sapwood_ext4::inspect::Image::open(Arc::new(memory.snapshot())).unwrap();
        let sb = image.super_block();
        let incompat = sb.features().incompat;
        let meta_bg = incompat.contains(sapwood_ext4_format::Incompat::META_BG);
        meta_bg.then(|| sb.first_meta_bg.get())
    };
    assert_eq!(first_meta_group(memory), None);
    assert_eq!(some_cuts(engine, memory, Some(room), verify, 20), room);
    let border = first_meta_group(memory).unwrap();
    assert!(border > 0);
    some_cuts(engine, memory, Some(size), verify, 20);
    assert!(first_meta_group(memory).unwrap() < border + 1);
    some_cuts(engine, memory, Some(room), verify, 6);
    cuts(engine, memory, None);
    let device: Arc<dyn Device> = memory.clone();
    whole(engine, &device).unwrap();
}

#[test]
fn a_cut_of_a_growth_past_the_blocks_for_descriptors_leaves_the_old_or_the_new_size() {
    // A block of 1 KiB has the descriptors of 16 groups of 8 MiB, or of 32 without 64bit.
    for (features, size, room) in [
        ("^resize_inode", 100, 160),
        ("^resize_inode,^64bit,^metadata_csum,^extent", 200, 300),
    ] {
        let engine = Format::Ext4(features);
        let memory = filled(engine, size * MIB, room * MIB);
        across_the_border(engine, &memory, size * MIB, room * MIB);
    }
}

/// The step to meta groups removes the resize inode.
#[test]
fn a_cut_of_the_removal_of_the_resize_inode_leaves_it_whole_or_gone() {
    if left_out(&[Need::Program("mke2fs")]) {
        return;
    }
    // Groups of 1 MiB; two blocks are reserved, each for 16 or 32 groups.
    for (args, size, room) in [
        ("-b 1024 -g 1024 -E resize=60M", 31, 80),
        ("-b 1024 -g 1024 -O ^64bit -E resize=60M", 31, 120),
        ("-b 1024 -g 1024 -O sparse_super2 -E resize=60M", 31, 80),
    ] {
        let engine = Format::Ext4(args);
        let image = sapwood_testing::oracle::ext4::image(size * MIB, args);
        let memory = Arc::new(image.resized(room * MIB));
        let fs = engine.mount(memory.clone()).unwrap();
        fill(&*fs);
        fs.unmount().unwrap();
        drop(fs);
        across_the_border(engine, &memory, size * MIB, room * MIB);
    }
}

/// Files of [`scatter`].
const SCATTERED: u32 = 1000;

fn scattered(number: u32) -> Vec<u8> {
    vec![number as u8; 20_000]
}

/// Small files in the root, with a gap of the same size before each.
fn scatter(fs: &dyn FileSystem) {
    for number in 0..SCATTERED {
        let file = create(fs, fs.root(), &format!("s{number}"), NewInode::Regular);
        let bytes = scattered(number);
        fs.write(file, 0, &bytes, WriteMode::default()).unwrap();
    }
    fs.sync().unwrap();
    for number in (0..SCATTERED).step_by(2) {
        fs.unlink(fs.root(), format!("s{number}").as_bytes())
            .unwrap();
    }
}

/// Everything that [`scatter`] left is there.
fn verify_scattered(fs: &dyn FileSystem) -> Result<()> {
    for number in (1..SCATTERED).step_by(2) {
        let failed = |error: &dyn std::fmt::Display| format!("s{number}: {error}");
        let name = format!("s{number}");
        let file = fs.lookup(fs.root(), name.as_bytes());
        let file = file.map_err(|error| failed(&error))?.ino();
        let mut found = scattered(0);
        let read = fs.read(file, 0, &mut found);
        read.map_err(|error| failed(&error))?;
        if found != scattered(number) {
            return Err(failed(&"it has other content"));
        }
    }
    Ok(())
}

#[test]
fn a_journal_in_many_pieces_moves_again() {
    for features in ["", "^64bit,^metadata_csum,^extent"] {
        let engine = Format::Ext4(features);
        let memory = Arc::new(MemoryDevice::new(64 * MIB));
        engine.format(&*memory, 64 * MIB);
        let fs = engine.mount(memory.clone()).unwrap();
        scatter(&*fs);
        fs.unmount().unwrap();
        drop(fs);
        // The block of its map moves down before the last of its pieces do.
        for step in 0..12_u64 {
            let size = 20 * MIB - step * MIB / 4;
            cuts_by(engine, &memory, Some(size), verify_scattered);
        }
    }
}

/// Directories of [`spread`].
const SPREAD: u32 = 40;

/// Directories in all groups, each with another one, a file, and a second name of the file before.
fn spread(fs: &dyn FileSystem) {
    let mut before = None;
    for number in 0..SPREAD {
        let dir = create(fs, fs.root(), &format!("d{number}"), NewInode::Directory);
        let below = create(fs, dir, "below", NewInode::Directory);
        let file = create(fs, below, "file", NewInode::Regular);
        let bytes = content(number);
        fs.write(file, 0, &bytes, WriteMode::default()).unwrap();
        if let Some(before) = before.replace(file) {
            fs.link(before, dir, b"before").unwrap();
        }
    }
}

/// Everything that [`spread`] made is there.
fn verify_spread(fs: &dyn FileSystem) -> Result<()> {
    let lookup = |dir: Ino, name: &str| {
        let found = fs.lookup(dir, name.as_bytes());
        found.map_err(|error| format!("{name}: {error}"))
    };
    let mut before = None;
    for number in 0..SPREAD {
        let dir = lookup(fs.root(), &format!("d{number}"))?.ino();
        let below = lookup(dir, "below")?.ino();
        let parent = fs.parent(below).map_err(|error| error.to_string())?;
        if parent.ino() != dir {
            return Err(format!("d{number}/below has another parent"));
        }
        let file = lookup(below, "file")?.ino();
        let mut found = vec![0; content(number).len()];
        let read = fs.read(file, 0, &mut found);
        read.map_err(|error| format!("d{number}: {error}"))?;
        if found != content(number) {
            return Err(format!("the file of d{number} has other content"));
        }
        if let Some(before) = before.replace(file)
            && lookup(dir, "before")?.ino() != before
        {
            return Err(format!("d{number}/before is another file"));
        }
    }
    Ok(())
}

#[test]
fn a_cut_leaves_an_ext4_that_shrinks_below_its_inodes_whole() {
    for features in ["", "^has_journal", "^64bit,^metadata_csum,^extent"] {
        let engine = Format::Ext4(features);
        let memory = Arc::new(MemoryDevice::new(128 * MIB));
        engine.format(&*memory, 128 * MIB);
        let fs = engine.mount(memory.clone()).unwrap();
        spread(&*fs);
        let ino = |number: u32| {
            let found = fs.lookup(fs.root(), format!("d{number}").as_bytes());
            found.unwrap().ino().0
        };
        let last = (0..SPREAD).map(ino).max().unwrap();
        fs.unmount().unwrap();
        drop(fs);
        let after = match features {
            // A power cut may leave blocks that e2fsck frees.
            "^has_journal" => {
                let device: Arc<dyn Device> = memory.clone();
                engine.resize(&device, Some(30 * MIB)).unwrap()
            }
            _ => cuts_by(engine, &memory, Some(30 * MIB), verify_spread),
        };
        // Groups have 8 MiB, and equally many inodes.
        let image = sapwood_ext4::inspect::Image::open(memory.clone()).unwrap();
        let per_group = image.super_block().inodes_per_group.get();
        let left = u64::from(per_group) * after.div_ceil(8 * MIB);
        assert!(last > left, "{features}: {last} {left}");
        let device: Arc<dyn Device> = memory;
        whole_by(engine, &device, verify_spread).unwrap();
    }
}

/// A kernel that recovers the journal of a shrink continues with the groups of before, and refuses
/// metadata that overlaps.
#[test]
fn metadata_of_removed_groups_overlaps_nothing() {
    let engine = Format::Ext4("");
    let memory = Arc::new(MemoryDevice::new(64 * MIB));
    engine.format(&*memory, 64 * MIB);
    let device: Arc<dyn Device> = memory;
    let end = engine.resize(&device, Some(34 * MIB)).unwrap() >> 10;
    let mut table = [0; 1024];
    // Descriptors of 64 bytes begin after the superblock, in blocks of 1 KiB.
    device.read_at(2048, &mut table).unwrap();
    let word = |at: usize| u32::from_le_bytes(*table[at..].first_chunk().unwrap());
    let mut places = Vec::new();
    for group in 5..8 {
        let at = group * 64;
        places.extend([(word(at), 1), (word(at + 4), 1), (word(at + 8), 512)]);
        let free = word(at + 12);
        assert_eq!(free, 0, "group {group} has free blocks or inodes");
    }
    places.sort_unstable();
    assert!(u64::from(places[0].0) >= end, "{places:?} {end}");
    assert!(u64::from(places[8].0) < 64 << 10, "{places:?}");
    for pair in places.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{places:?}");
    }
}

#[test]
fn a_trim_discards_free_space_and_nothing_else() {
    for engine in [Format::Btrfs, Format::Ext4("")] {
        let memory = filled(engine, 200 * MIB, 200 * MIB);
        let device: Arc<dyn Device> = memory.clone();
        let fs = engine.mount(Arc::clone(&device)).unwrap();
        let bytes = fs.trim(&TrimRange::default()).unwrap();
        assert!(bytes > 80 * MIB, "{engine:?}: {bytes}");
        // Operations continue afterwards.
        fs.sync().unwrap();
        fs.unmount().unwrap();
        drop(fs);
        whole(engine, &device).unwrap();
    }
}

#[test]
fn a_trim_refuses_the_ranges_that_the_kernel_refuses() {
    let range = |start, len, least| TrimRange { start, len, least };
    let all = u64::MAX;
    // With the results of btrfs and of ext4.
    for (range, btrfs, ext4) in [
        (range(0, 0, 0), false, false),
        (range(0, 100, 0), false, false),
        (range(MIB, 0, 0), false, false),
        (range(0, 4096, 0), true, true),
        (range(1, 4096, 0), true, true),
        (range(1 << 40, all, 0), true, false),
        (range(1 << 40, MIB, 0), true, false),
        (range(all, all, 0), false, false),
        (range(all, MIB, 0), false, false),
        (range(4096, all - 1, 0), false, true),
        (range(0, all, MIB), true, true),
        (range(0, all, 1 << 40), true, false),
    ] {
        for (engine, allowed) in [(Format::Btrfs, btrfs), (Format::Ext4(""), ext4)] {
            let memory = Arc::new(MemoryDevice::new(200 * MIB));
            engine.format(&*memory, 200 * MIB);
            let fs = engine.mount(memory).unwrap();
            let found = fs.trim(&range);
            let wanted = match &found {
                Ok(_) => allowed,
                Err(error) => !allowed && *error == sapwood_vfs::Error::Invalid,
            };
            assert!(wanted, "{engine:?}: {range:?}: {found:?}");
            fs.unmount().unwrap();
        }
    }
}
