//! Mutants, repaired by Sapwood and by the format's tool: no repair loses a file, every undo is
//! exact. `make repairs` makes many, and prints a table.
//!
//! The number of a mutant determines it: `SAPWOOD_REPAIR_MUTANTS=2000` sets how many there are,
//! `SAPWOOD_REPAIR_SEED=7` makes others, and `SAPWOOD_REPAIR_MUTANT=12` makes only one and prints
//! what was repaired and what is left. `SAPWOOD_REPAIR_RESULTS=FILE` keeps a line for each mutant,
//! and makes only those that have none: with `SAPWOOD_REPAIR_SECONDS=240`, after which no further
//! mutant begins, a long run is made in parts. `SAPWOOD_REPAIR_ONLY=btrfs` chooses one image
//! (`ext4`, `plain` without checksums, `btrfs`). The good images are kept next to FILE: the bytes of
//! a new ext4 depend on the time, and so do its mutants.

mod results;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use fastrand::Rng;
use sapwood_hostile::image::{DEFAULT, GoodImage};
use sapwood_testing::machine::{E2FSPROGS, left_out};
use sapwood_testing::mutants::Change;
use sapwood_testing::oracle::Kind;
use tempfile::TempDir;

use results::{Outcome, Results, Side};

use super::{BTRFS_PROGS, EXT4, Files, PLAIN, files, filled, judged, lost, number, repair};

const PAGE: usize = 1024;
/// Longest run of a tool, in seconds. A repair that ends takes less than one.
const LIMIT: &str = "15";

/// A good image that is damaged again and again.
struct Base {
    name: &'static str,
    _dir: TempDir,
    image: PathBuf,
    good: Content,
    whole: Files,
    /// Pages with more than file data.
    pages: Vec<u64>,
    /// The tree blocks of a btrfs.
    trees: Option<GoodImage>,
}

/// The parts of a file that are not zero: pages by their offset.
type Content = BTreeMap<u64, Vec<u8>>;

fn content(path: &Path) -> Content {
    const CHUNK: usize = 1 << 20;
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut found = Content::new();
    let mut chunk = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let next = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at));
        let Ok(next) = next else {
            break;
        };
        at = next - next % PAGE as u64;
        let len = file.read_at(&mut chunk, at).unwrap();
        for (number, page) in chunk[..len].chunks(PAGE).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                found.insert(at + (number * PAGE) as u64, page.to_vec());
            }
        }
        at += len as u64;
    }
    found
}

/// Makes a file have this content. `size` bytes.
fn restore(path: &Path, size: u64, content: &Content) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (at, page) in content {
        file.write_all_at(page, *at).unwrap();
    }
}

impl Base {
    /// `results`: the file of the results.
    fn ext4(name: &'static str, options: &[(&str, &str)], results: Option<&Path>) -> Self {
        let dir = TempDir::new().unwrap();
        let mut image = dir.path().join("image");
        let kept = results.map(|path| path.with_extension(name));
        match &kept {
            Some(kept) if kept.exists() => _ = fs::copy(kept, &image).unwrap(),
            _ => image = filled(dir.path(), "ext4", options),
        }
        if let Some(kept) = kept.filter(|kept| !kept.exists()) {
            fs::copy(&image, kept).unwrap();
        }
        Self::of(name, dir, image, None)
    }

    fn btrfs(_: Option<&Path>) -> Self {
        let dir = TempDir::new().unwrap();
        let image = dir.path().join("image");
        let good = GoodImage::expand(DEFAULT);
        good.device.save(&image).unwrap();
        Self::of("btrfs", dir, image, Some(good))
    }

    fn of(name: &'static str, dir: TempDir, image: PathBuf, trees: Option<GoodImage>) -> Self {
        let good = content(&image);
        // A page of a file has one value, and zeros.
        let kinds = |page: &[u8]| page.iter().collect::<BTreeSet<_>>().len();
        let pages = good.iter().filter(|(_, page)| kinds(page) > 2);
        Self {
            name,
            whole: files(&image),
            pages: pages.map(|(at, _)| *at).collect(),
            image,
            good,
            trees,
            _dir: dir,
        }
    }

    /// Damages the image.
    fn mutate(&self, rng: &mut Rng) -> String {
        let size = fs::metadata(&self.image).unwrap().len();
        restore(&self.image, size, &self.good);
        match &self.trees {
            Some(trees) if rng.bool() => loop {
                if let Some(what) = self.mutate_block(trees, rng) {
                    return what;
                }
            },
            _ => self.mutate_page(rng),
        }
    }

    /// Changes bytes of one page, in the place that they have on the device.
    fn mutate_page(&self, rng: &mut Rng) -> String {
        let offset = *rng.choice(&self.pages).unwrap();
        let mut page = self.good[&offset].clone();
        let mut what = format!("page at {offset}:");
        for _ in 0..rng.usize(1..4) {
            let (at, change) = (rng.usize(..page.len()), Change::any(rng, page.len()));
            change.apply(&mut page, at);
            what += &format!(" {at} {change:?}");
        }
        let file = File::options().write(true).open(&self.image).unwrap();
        file.write_all_at(&page, offset).unwrap();
        what
    }

    /// Changes a tree block in all its copies, and makes its checksum right again.
    fn mutate_block(&self, trees: &GoodImage, rng: &mut Rng) -> Option<String> {
        let place = rng.choice(&trees.blocks)?;
        let good = trees.block(place);
        let range = rng.choice(&place.used)?.clone();
        if range.is_empty() {
            return None;
        }
        let mut block = good.clone();
        let at = rng.usize(range).max(32);
        let change = Change::any(rng, block.len());
        if !change.apply(&mut block, at) {
            return None;
        }
        trees.checksum().seal_block(&mut block);
        let file = File::options().write(true).open(&self.image).unwrap();
        for copy in &place.copies {
            file.write_all_at(&block, *copy).unwrap();
        }
        Some(format!("block {} byte {at} {change:?}", place.logical))
    }

    /// Repairs a copy of the image with the format's tool. Returns whether it is clean afterwards,
    /// and its files.
    fn by_tool(&self, damaged: &Content) -> (bool, Files) {
        let copy = self.image.with_extension("tool");
        restore(&copy, fs::metadata(&self.image).unwrap().len(), damaged);
        let repair: &[&str] = if self.trees.is_some() {
            &["btrfs", "check", "--repair", "--force"]
        } else {
            &["e2fsck", "-fy"]
        };
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LIMIT]).args(repair).arg(&copy);
        let _ = command.stdin(Stdio::null()).output().unwrap();
        let clean = match self.trees {
            Some(_) => judged(&copy).is_ok(),
            None => Kind::Ext4.check(&copy).is_ok(),
        };
        let left = files(&copy);
        fs::remove_file(&copy).unwrap();
        (clean, left)
    }
}

/// The result of a side, and the files that it lost.
fn side(clean: bool, before: &Files, after: &Files, whole: &Files) -> (Side, Vec<PathBuf>) {
    let gone = lost(before, after);
    let side = Side {
        clean,
        lost: gone.len(),
        kept: whole.len() - lost(whole, after).len(),
    };
    (side, gone)
}

fn one(base: &Base, number: u64, rng: &mut Rng, alone: bool) -> Outcome {
    let what = format!("{} {number}: {}", base.name, base.mutate(rng));
    let (damaged, before) = (content(&base.image), files(&base.image));
    let (clean, left) = base.by_tool(&damaged);
    let (tool, gone) = side(clean, &before, &left, &base.whole);
    let mut outcome = Outcome {
        number,
        tool,
        ..Outcome::default()
    };
    if alone {
        println!("{what}\nthe tool: clean {clean}, lost {gone:?}");
    }
    let report = match repair(&base.image, false) {
        Ok(report) => report,
        Err(error) => {
            if alone {
                println!("{error}");
            }
            if content(&base.image) != damaged {
                outcome.failed.push(format!("{what}: changed by an error"));
            }
            outcome.ours = side(false, &before, &before, &base.whole).0;
            outcome.left = "not repaired".to_owned();
            return outcome;
        }
    };
    let clean = report.after.clean;
    let after = files(&base.image);
    let gone;
    (outcome.ours, gone) = side(clean, &before, &after, &base.whole);
    if alone {
        println!("{:#?}\n{:#?}", super::lines(&report), report.left);
    }
    if !gone.is_empty() {
        outcome.failed.push(format!("{what}: lost {gone:?}"));
    }
    // Linux rebuilds a free-space tree that is marked invalid; the tool checks it all the same.
    let rebuilt = |repair: &sapwood::ImageRepair| repair.code == "FreeSpaceTreeInvalid";
    let agrees = !report.repairs.iter().any(rebuilt);
    if clean
        && agrees
        && let Err(error) = judged(&base.image)
    {
        outcome.failed.push(format!("{what}: clean, but: {error}"));
    }
    outcome.sound = clean && report.repairs.is_empty();
    if !clean && let Some(first) = report.after.findings.first() {
        outcome.left = first.code.to_owned();
    }
    if let Some(undo) = report.undo {
        sapwood::undo(&undo, &sapwood::UndoOptions::default()).unwrap();
        fs::remove_file(undo).unwrap();
    }
    if content(&base.image) != damaged {
        outcome
            .failed
            .push(format!("{what}: the undo is not exact"));
    }
    outcome
}

#[test]
fn no_repair_of_a_mutant_loses_a_file() {
    type Make = fn(Option<&Path>) -> Base;

    if left_out(&E2FSPROGS) || left_out(&BTRFS_PROGS) {
        return;
    }
    let seed = number("SAPWOOD_REPAIR_SEED", 38);
    let numbers = match number("SAPWOOD_REPAIR_MUTANT", u64::MAX) {
        u64::MAX => 0..number("SAPWOOD_REPAIR_MUTANTS", 10),
        one => one..one + 1,
    };
    let alone = std::env::var_os("SAPWOOD_REPAIR_MUTANT").is_some();
    let seconds = number("SAPWOOD_REPAIR_SECONDS", u64::MAX);
    let started = Instant::now();
    let results = std::env::var_os("SAPWOOD_REPAIR_RESULTS").map(PathBuf::from);
    let only = std::env::var("SAPWOOD_REPAIR_ONLY").ok();
    let mut failed = Vec::new();
    let bases: [(&str, Make); 3] = [
        ("ext4", |kept| Base::ext4("ext4", EXT4, kept)),
        ("plain", |kept| Base::ext4("plain", PLAIN, kept)),
        ("btrfs", Base::btrfs),
    ];
    for (name, make) in bases {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let base = make(results.as_deref());
        let mut results = Results::open(base.name, seed, results.as_ref().filter(|_| !alone));
        let known = results.known();
        for number in numbers.clone().filter(|number| !known.contains(number)) {
            if started.elapsed().as_secs() >= seconds {
                break;
            }
            let mut rng = Rng::with_seed(seed << 40 ^ number);
            results.add(one(&base, number, &mut rng, alone));
        }
        failed.extend(results.print(base.whole.len()));
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
