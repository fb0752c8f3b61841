//! Journals both ways: what our journal writes is recovered alike by us, by e2fsck and by the
//! kernel; what debugfs writes is recovered by us as by e2fsck.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use sapwood_block::{Device, MemoryDevice};
use sapwood_jbd2::{Cache, Incompat, Journal, LayoutMap, LayoutRun, Log, Options};
use sapwood_testing::oracle::KernelMount;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::{Need, Outcome, machine, process, trial};

/// Blocks at the end of the device that no file system structure uses.
const FREE: u64 = 60;

#[derive(Debug, Clone, Copy)]
struct Form {
    name: &'static str,
    features: Incompat,
    block_size: u32,
}

const fn form(name: &'static str, features: Incompat, block_size: u32) -> Form {
    Form {
        name,
        features,
        block_size,
    }
}

const WIDE: Incompat = Incompat::WIDE;
const FORMS: [Form; 8] = [
    form("plain", Incompat::empty(), 1024),
    form("plain_wide", WIDE, 2048),
    form("csum2", Incompat::CSUM_V2, 1024),
    form("csum2_wide", Incompat::CSUM_V2.union(WIDE), 4096),
    form("csum3", Incompat::CSUM_V3, 1024),
    form("csum3_wide", Incompat::CSUM_V3.union(WIDE), 1024),
    form("csum3_wide_4k", Incompat::CSUM_V3.union(WIDE), 4096),
    form("plain_4k", Incompat::empty(), 4096),
];

impl Form {
    fn checksums(self) -> bool {
        self.features
            .intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3)
    }

    /// A file system with a journal of 1024 blocks that may have this form.
    fn image(self) -> Result<TempImage, String> {
        let sum = if self.checksums() { "" } else { "^" };
        let wide = if self.features.contains(WIDE) {
            ""
        } else {
            "^"
        };
        let size = self.block_size;
        let megabytes = size / 1024;
        let args = format!("-b {size} -J size={megabytes} -O {sum}metadata_csum,{wide}64bit");
        TempImage::new(&Mkfs::ext4(&args).sized(32 << 20))
    }
}

fn trials() -> Vec<Trial> {
    let tools = [
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs"),
    ];
    let kernel = [tools[0], tools[1], tools[2], machine::KERNEL_EXT4];
    let mut trials = Vec::new();
    for form in FORMS {
        let name = format!("journals::ours_elsewhere::{}", form.name);
        trials.push(trial(name, &kernel, move || ours_elsewhere(form)));
        let name = format!("journals::debugfs_here::{}", form.name);
        trials.push(trial(name, &tools, move || debugfs_here(form)));
    }
    trials
}

fn debugfs(image: &Path, request: &str) -> Result<String, String> {
    process::run(
        "debugfs",
        &[
            "-w".as_ref(),
            "-R".as_ref(),
            request.as_ref(),
            image.as_os_str(),
        ],
    )
}

/// The journal's blocks, as debugfs lists them.
fn layout(image: &Path, device_blocks: u64) -> Result<LayoutMap, String> {
    let said = debugfs(image, "blocks <8>")?;
    let mut runs: Vec<LayoutRun> = Vec::new();
    for (logical, word) in (0..).zip(said.split_whitespace().filter(|w| w.parse::<u64>().is_ok())) {
        let physical = word.parse().map_err(|err| format!("{word}: {err}"))?;
        match runs.last_mut() {
            Some(run) if run.physical + run.len == physical => run.len += 1,
            _ => runs.push(LayoutRun {
                logical,
                physical,
                len: 1,
            }),
        }
    }
    LayoutMap::new(runs, device_blocks).map_err(|err| err.to_string())
}

fn load(image: &Path, form: Form) -> Result<(Arc<MemoryDevice>, Log), String> {
    let device = Arc::new(MemoryDevice::load(image).map_err(|err| err.to_string())?);
    let layout = layout(image, device.size() / u64::from(form.block_size))?;
    let log = Log::load(device.clone(), layout, form.block_size);
    Ok((device, log.map_err(|err| err.to_string())?))
}

/// The blocks that the tests write.
fn free_blocks(device: &dyn Device, form: Form) -> BTreeMap<u64, Vec<u8>> {
    let size = u64::from(form.block_size);
    let end = device.size() / size;
    let read = |block| {
        let mut bytes = vec![0; size as usize];
        device.read_at(block * size, &mut bytes).unwrap();
        (block, bytes)
    };
    (end - FREE..end).map(read).collect()
}

/// Blocks changed, freed, used for data, with the journal's magic in some; the log goes round.
fn write(device: &Arc<MemoryDevice>, mut log: Log, form: Form) -> Result<(), sapwood_jbd2::Error> {
    log.set_form(form.features)?;
    let size = u64::from(form.block_size);
    let first = device.size() / size - FREE;
    let cache = Arc::new(Cache::new(device.clone(), form.block_size, 1 << 20));
    let journal = Journal::with_log(cache.clone(), log, Options::default())?;
    let mut random = fastrand::Rng::with_seed(4);
    for round in 0..60u8 {
        let handle = journal.start(60)?;
        for block in first..first + FREE {
            if random.bool() {
                continue;
            }
            let buffer = cache.get(block)?;
            let mut content = handle.modify(&buffer)?;
            content.fill(round);
            if random.u8(..5) == 0 {
                let words = [0xC03B_3998, random.u32(1..6), handle.tid() as u32 + 1];
                content[..12].copy_from_slice(words.map(u32::to_be_bytes).as_flattened());
            }
        }
        drop(handle);
        journal.commit_all()?;
        let freed = first + random.u64(..FREE);
        let handle = journal.start(1)?;
        handle.forget(freed)?;
        drop(handle);
        journal.commit_and_settle()?;
        device.write_at(freed * size, &vec![!round; size as usize])?;
    }
    let counters = journal.counters();
    assert!(counters.checkpoints > 0 && counters.escaped > 0 && counters.revokes > 0);
    assert_eq!(counters.overdrafts, 0);
    Ok(())
}

fn save(device: &MemoryDevice, path: &Path) -> Result<(), String> {
    device.save(path).map_err(|err| err.to_string())
}

/// Recovers with e2fsck; 1 is "errors corrected".
fn by_e2fsck(path: &Path) -> Result<(), String> {
    let args = [
        "-fy".as_ref(),
        "-E".as_ref(),
        "journal_only".as_ref(),
        path.as_os_str(),
    ];
    let said = process::finish(&mut process::command("e2fsck", &args), process::ORDINARY)?;
    match said.status.code() {
        Some(0 | 1) => Ok(()),
        _ => Err(said.all()),
    }
}

/// Recovers with us, and tells the file system that there is nothing to recover.
fn by_us(path: &Path, form: Form) -> Result<MemoryDevice, String> {
    let (device, log) = load(path, form)?;
    log.recover(&|_| true).map_err(|err| err.to_string())?;
    save(&device, path)?;
    debugfs(path, "feature -needs_recovery")?;
    process::run("e2fsck", &["-fn".as_ref(), path.as_os_str()])?;
    Ok(device.snapshot())
}

fn compare(left: &dyn Device, right: &dyn Device, form: Form, who: &str) -> Result<(), String> {
    let (left, right) = (free_blocks(left, form), free_blocks(right, form));
    for (block, bytes) in &left {
        if right.get(block) != Some(bytes) {
            return Err(format!("block {block} differs: {who}"));
        }
    }
    Ok(())
}

fn ours_elsewhere(form: Form) -> Outcome {
    let image = form.image()?;
    debugfs(image.path(), "feature needs_recovery")?;
    let (device, log) = load(image.path(), form)?;
    write(&device, log, form)?;
    let [ours, e2fsck, kernel] = ["ours", "e2fsck", "kernel"].map(|name| image.beside(name));
    for path in [&ours, &e2fsck, &kernel] {
        save(&device, path)?;
    }
    let ours = by_us(&ours, form)?;
    by_e2fsck(&e2fsck)?;
    compare(&ours, &MemoryDevice::load(&e2fsck)?, form, "e2fsck")?;
    drop(KernelMount::new(&kernel, "rw")?);
    compare(&ours, &MemoryDevice::load(&kernel)?, form, "the kernel")?;
    process::run("e2fsck", &["-fn".as_ref(), kernel.as_os_str()])?;
    Ok(())
}

/// Up to two transactions as debugfs is told to write them.
fn request(
    form: Form,
    random: &mut fastrand::Rng,
    first: u64,
    dir: &Path,
    with_revokes: bool,
) -> String {
    let mut pick = |most: usize| {
        let count = random.usize(..most);
        let mut all: Vec<_> = (0..count).map(|_| first + random.u64(..FREE)).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (blocks, mut revokes) = (pick(40), pick(6));
    if !with_revokes {
        revokes.clear();
    }
    let list = |all: &[u64]| {
        let words: Vec<String> = all.iter().map(u64::to_string).collect();
        words.join(",")
    };
    // Not both at once: debugfs forgets the commit block then.
    let mut lines = String::new();
    if !revokes.is_empty() {
        lines += &format!("jw -r {}\n", list(&revokes));
    }
    if !blocks.is_empty() {
        let path = dir.join(format!("blocks{}", random.u64(..)));
        let mut bytes = Vec::new();
        for _ in &blocks {
            let at = bytes.len();
            bytes.resize(at + form.block_size as usize, random.u8(..));
            if random.u8(..4) == 0 {
                bytes[at..at + 4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
            }
        }
        fs::write(&path, bytes).unwrap();
        lines += &format!("jw -b {} {}\n", list(&blocks), path.display());
    }
    lines
}

fn debugfs_here(form: Form) -> Outcome {
    for seed in 0..4 {
        let image = form.image()?;
        let size = MemoryDevice::load(image.path())?.size();
        let first = size / u64::from(form.block_size) - FREE;
        let mut random = fastrand::Rng::with_seed(seed);
        // Without checksums of the file system's own, `-c` means version 1.
        let open = match form {
            _ if form.features.contains(Incompat::CSUM_V3) => "jo -c -v 3\n",
            _ if form.features.contains(Incompat::CSUM_V2) => "jo -c -v 2\n",
            _ if seed % 2 == 0 => "jo -c\n",
            _ => "jo\n",
        };
        // debugfs counts revoke blocks into checksums of version 1, which neither e2fsck nor the
        // kernel does.
        let with_revokes = open != "jo -c\n";
        let dir = image.path().parent().unwrap();
        let mut script = open.to_owned();
        for _ in 0..15 {
            script += &request(form, &mut random, first, dir, with_revokes);
        }
        let path = image.beside("script");
        fs::write(&path, script + "jc\n")?;
        let args = [
            "-w".as_ref(),
            "-f".as_ref(),
            path.as_os_str(),
            image.path().as_os_str(),
        ];
        process::run("debugfs", &args)?;
        let e2fsck = image.beside("e2fsck");
        fs::copy(image.path(), &e2fsck)?;
        let (_, log) = load(image.path(), form)?;
        let found = log.scan(&|_| true)?.transactions().len();
        if found < 10 {
            return Err(format!("only {found} transactions").into());
        }
        let ours = by_us(image.path(), form)?;
        by_e2fsck(&e2fsck)?;
        compare(&ours, &MemoryDevice::load(&e2fsck)?, form, "e2fsck")?;
    }
    Ok(())
}

fn main() {
    machine::run(2, trials);
}
