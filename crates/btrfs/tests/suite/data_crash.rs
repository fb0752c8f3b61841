//! File data after a power cut: whichever of the last writes arrived, the image is sound, every
//! visible byte has the right checksum, and durable data is there.

use std::sync::Arc;

use crate::data_files::{After, FILES, Files, LIMIT, Random};
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::{CheckOptions, Finding, check};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_testing::RecordDevice;
use sapwood_vfs::FileSystem;

/// A state that was promised to be durable, or a change that ends the promise.
struct Event {
    /// Position in the record from which on it counts.
    at: usize,
    file: usize,
    /// The durable content; `None` for a change.
    durable: Option<Vec<u8>>,
}

fn run(seed: u64, make: &MkfsOptions, options: &Options) {
    const STEPS: usize = 120;
    const CRASHES: u64 = 40;
    let device = MemoryDevice::new(300 << 20);
    mkfs(&device, make).unwrap();
    let base = device.snapshot();
    let device = Arc::new(RecordDevice::new(device));
    let fs = Btrfs::open(vec![device.clone() as Arc<dyn Device>], options.clone()).unwrap();
    let mut random = Random(seed);
    let mut files = Files::create(&fs, "f", false);
    let mut events = Vec::new();
    let durable = |files: &Files, file: usize, at: usize| Event {
        at,
        file,
        durable: Some(files.files[file].1.clone()),
    };
    for _ in 0..STEPS {
        let before = device.position();
        let models: Vec<Vec<u8>> = files.files.iter().map(|(_, model)| model.clone()).collect();
        let after = files.step(&fs, &mut random);
        let now = device.position();
        let changed = (0..FILES).filter(|file| models[*file] != files.files[*file].1);
        events.extend(changed.map(|file| Event {
            at: before,
            file,
            durable: None,
        }));
        match after {
            After::Fsync(file) => events.push(durable(&files, file, now)),
            After::Sync => events.extend((0..FILES).map(|file| durable(&files, file, now))),
            After::Nothing | After::Remount => {}
        }
    }
    drop(fs);
    let log = device.log();
    for crash in 0..CRASHES {
        let at = random.below(log.end() as u64 + 1) as usize;
        let image = log.image(&base, &log.random_plan(at, seed ^ crash));
        let what = format!("seed {seed} crash {crash} at {at} of {}", log.end());
        judge(&image, &what, &files, |file| {
            let last = events
                .iter()
                .rfind(|event| event.file == file && event.at < at)?;
            last.durable.as_ref()
        });
    }
}

/// `expected` is the content of a file, where that is known.
fn judge<'a>(
    image: &MemoryDevice,
    what: &str,
    files: &Files,
    expected: impl Fn(usize) -> Option<&'a Vec<u8>>,
) {
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let report = check(&[image], &options, &mut |_| {})
        .unwrap_or_else(|e| files.fail(&format!("{what}: {e}")));
    // The copies of the superblock are written one after another. And data may be in the tree that
    // the size does not reach yet, because data before it was still in flight.
    let allowed = |f: &&Finding| {
        matches!(
            f,
            Finding::SuperBad { .. }
                | Finding::SuperStale { .. }
                | Finding::FileExtentPastEnd { .. }
        )
    };
    if let Some(finding) = report.findings.iter().find(|f| !allowed(f)) {
        files.fail(&format!("{what}: {finding:?}"));
    }
    let device = Arc::new(image.snapshot());
    let fs = Btrfs::open(vec![device as Arc<dyn Device>], Options::default()).unwrap();
    for file in 0..FILES {
        let Ok(entry) = fs.lookup(fs.root(), files.name(file).as_bytes()) else {
            assert!(expected(file).is_none(), "{what}: file {file} is gone");
            continue;
        };
        let mut buf = vec![0; LIMIT as usize + 1];
        let len = match fs.read(entry.attr.ino, 0, &mut buf) {
            Ok(len) => len,
            Err(e) => files.fail(&format!("{what}: file {file}: {e}")),
        };
        buf.truncate(len);
        if let Some(expected) = expected(file)
            && *expected != buf
        {
            let first = expected.iter().zip(&buf).position(|(a, b)| a != b);
            let lens = (expected.len(), len);
            files.fail(&format!(
                "{what}: file {file}: {lens:?} bytes, differs at {first:?}"
            ));
        }
    }
    fs.unmount().unwrap();
}

fn options(compress: &str) -> Options {
    Options {
        compress: compress.parse().ok(),
        dirty_bytes: 2 << 20,
        background: false,
        ..Options::default()
    }
}

/// The first seed; `SAPWOOD_SEED` replays another.
fn seed() -> u64 {
    let given = std::env::var("SAPWOOD_SEED").ok();
    given.and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn plain() {
    run(seed(), &MkfsOptions::default(), &options(""));
    run(seed() + 1000, &MkfsOptions::default(), &options(""));
}

#[test]
fn explicit_holes() {
    let make = MkfsOptions {
        no_holes: false,
        ..MkfsOptions::default()
    };
    run(seed(), &make, &options(""));
}

#[test]
fn compressed() {
    run(seed(), &MkfsOptions::default(), &options("zstd"));
}
