//! Images whose bytes are wrong and whose checksums are right: what `check` says of them, compared
//! with `btrfs check`. `make mutants` makes many, and other ones.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use fastrand::Rng;
use libtest_mimic::Arguments;
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::{CheckOptions, Finding, check};
use sapwood_btrfs_format::{Block, Item, SUPER_SIZE, kind};
use sapwood_hostile::image::{DEFAULT, GoodImage, MIXED, SUPER_OFFSET, TreeBlockPlace};
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::mutants::{Change, Mutant, MutantPlan, Oracle, Said, compare};

/// Bytes of a tree block's header.
const HEADER: usize = 101;
/// Bytes of the superblock with a meaning, after its checksum.
const SUPER_FIELDS: std::ops::Range<usize> = 32..0x32b + 2048 + 4 * 168;

struct BtrfsCheck;

impl Oracle for BtrfsCheck {
    fn command(&self, image: &Path) -> Command {
        let mut command = Command::new("btrfs");
        command.args(["check", "--readonly"]).arg(image);
        command
    }

    fn said(&self, status: i32, output: &str) -> Said {
        let odd = |line: &&str| {
            let quiet = [
                "[",
                "Opening",
                "Checking",
                "UUID",
                "found",
                "total",
                "btree",
                "file data",
                "referenced",
                "WARNING: tree block",
            ];
            !line.trim().is_empty() && !quiet.iter().any(|start| line.trim().starts_with(start))
        };
        match status {
            0 => Said::Clean,
            1 => Said::Broken(output.lines().find(odd).unwrap_or_default().to_owned()),
            _ => Said::Nothing(format!("status {status}")),
        }
    }
}

fn ours(device: MemoryDevice) -> Said {
    match check(&[&device], &CheckOptions::default(), &mut |_| ()) {
        Err(error) => Said::Broken(error.to_string()),
        Ok(report) if report.is_clean() => Said::Clean,
        Ok(report) => {
            let code = report.errors().next().map(Finding::code);
            Said::Broken(code.unwrap_or_default().to_owned())
        }
    }
}

/// A change within a block's header, its keys and pointers, or one of its items.
fn place_in(block: &Block<'_>, rng: &mut Rng) -> (usize, String) {
    let level = block.level();
    if rng.u8(0..8) == 0 {
        let at = rng.usize(32..HEADER);
        return (at, format!("header+{at} level {level}"));
    }
    if !block.is_leaf() {
        let slot = rng.usize(0..block.nritems().max(1));
        let within = rng.usize(0..33);
        return (
            HEADER + slot * 33 + within,
            format!("pointer+{within} slot {slot}"),
        );
    }
    let items = block.items();
    let slot = slot_of_any_kind(items, rng);
    let Some(item) = items.get(slot) else {
        return (HEADER, "empty leaf".to_owned());
    };
    let name = kind::name(item.key.get().kind).unwrap_or("?");
    let len = item.size.get() as usize;
    if len == 0 || rng.u8(0..5) == 0 {
        let within = rng.usize(0..25);
        let what = format!("{name} head+{within} slot {slot} {}", item.key.get());
        return (HEADER + slot * 25 + within, what);
    }
    // Fields are at the beginning; file data and checksums are not.
    let most = if rng.bool() { len.min(48) } else { len };
    let within = rng.usize(0..most);
    let what = format!("{name}+{within} slot {slot} {}", item.key.get());
    (HEADER + item.offset.get() as usize + within, what)
}

/// A slot such that every kind of item has the same chance.
fn slot_of_any_kind(items: &[Item], rng: &mut Rng) -> usize {
    let kinds: std::collections::BTreeSet<u8> = items.iter().map(|i| i.key.get().kind).collect();
    let kinds: Vec<u8> = kinds.into_iter().collect();
    let Some(chosen) = rng.choice(&kinds) else {
        return 0;
    };
    let slots = items.iter().enumerate();
    let slots = slots.filter(|(_, item)| item.key.get().kind == *chosen);
    let slots: Vec<usize> = slots.map(|(slot, _)| slot).collect();
    rng.choice(&slots).copied().unwrap_or(0)
}

fn block_mutant(image: &GoodImage, rng: &mut Rng) -> Option<Mutant> {
    // Every tree has the same chance.
    let owner = |place: &TreeBlockPlace| Block::new(&image.block(place)).map_or(0, |b| b.owner());
    let mut owners: Vec<u64> = image.blocks.iter().map(owner).collect();
    owners.sort_unstable();
    owners.dedup();
    let tree = *rng.choice(&owners)?;
    let places: Vec<&TreeBlockPlace> = image.blocks.iter().filter(|p| owner(p) == tree).collect();
    let place = *rng.choice(&places)?;
    let mut bytes = image.block(place);
    let (at, what) = place_in(&Block::new(&bytes).ok()?, rng);
    let change = Change::any(rng, bytes.len());
    if !change.apply(&mut bytes, at) {
        return None;
    }
    let device = image.device.snapshot();
    image.edit(&device, place, true, |block| block.copy_from_slice(&bytes));
    let touched = place.copies.iter().map(|at| (*at, bytes.len())).collect();
    Some(Mutant {
        what: format!("tree {tree} {what} block {} {change:?}", place.logical),
        device,
        touched,
        base: 0,
    })
}

fn super_mutant(image: &GoodImage, rng: &mut Rng) -> Option<Mutant> {
    let at = rng.usize(SUPER_FIELDS);
    let change = Change::any(rng, SUPER_SIZE);
    let device = image.device.snapshot();
    let mut changed = false;
    image.edit_super(&device, true, |bytes| {
        let checksum: [u8; 32] = bytes[..32].try_into().unwrap();
        changed = change.apply(bytes, at);
        changed &= bytes[..32] == checksum;
    });
    let copies = [SUPER_OFFSET, 64 << 20].into_iter();
    let copies = copies.filter(|at| at + SUPER_SIZE as u64 <= device.size());
    let touched = copies.map(|at| (at, SUPER_SIZE)).collect();
    changed.then(|| Mutant {
        what: format!("superblock+{at:#x} {change:?}"),
        device,
        touched,
        base: 0,
    })
}

fn mutants_are_found_as_btrfs_check_finds_them() {
    let check = include_bytes!("data/check.img.zst");
    let images = [DEFAULT, MIXED, &check[..]].map(GoodImage::expand);
    let bases: Vec<&MemoryDevice> = images.iter().map(|image| &image.device).collect();
    let mutant = |rng: &mut Rng| {
        let base = rng.usize(0..images.len());
        let image = images.get(base)?;
        let made = if rng.u8(0..10) == 0 {
            super_mutant(image, rng)
        } else {
            block_mutant(image, rng)
        };
        made.map(|made| Mutant { base, ..made })
    };
    let tally = compare(MutantPlan::from_env(100), &bases, mutant, ours, &BtrfsCheck);
    let text = tally.text();
    eprintln!("{text}");
    assert!(tally.missed.is_empty() && tally.failed.is_empty(), "{text}");
}

fn main() {
    let test = mutants_are_found_as_btrfs_check_finds_them;
    let name = "mutants_are_found_as_btrfs_check_finds_them";
    let tests = vec![trial(name, &[Need::Program("btrfs")], test)];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
