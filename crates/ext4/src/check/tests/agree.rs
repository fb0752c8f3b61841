//! Random damage: the check finds the same as `e2fsck -fn`, and neither panics nor hangs.
//!
//! [`ALLOWED`] lists causes that only `e2fsck` reports.

use std::sync::Arc;

use fastrand::Rng;
use sapwood_block::{Device, MemoryDevice};

use crate::oracles::{KERNEL, MIB, TOOLS, image, left_out};

use super::tools::{Saved, fill, lines, report, with_kernel};

/// Words of `e2fsck` that the check need not report, and the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("in the future", "times are the user's"),
    (
        "could be narrower",
        "an extent tree that is larger than it must be works",
    ),
    (
        "could be shorter",
        "an extent tree that is larger than it must be works",
    ),
];

const KINDS: &[&str] = &[
    "-b 1024 -O ^has_journal,^resize_inode",
    "-b 1024 -O ^has_journal,^resize_inode,^metadata_csum",
    "-b 1024 -O ^has_journal,^resize_inode,^metadata_csum,inline_data,ea_inode",
    "-t ext2 -b 1024 -O ^resize_inode",
];

/// Filled images of all kinds.
fn filled() -> Vec<Arc<MemoryDevice>> {
    let made = KINDS.iter().map(|args| {
        let device = image(16 * MIB, args);
        with_kernel(&device, fill).unwrap()
    });
    made.collect()
}

/// Offsets of blocks with more than zeros and one other byte value, which the files' data has.
fn interesting(device: &MemoryDevice) -> Vec<u64> {
    let mut buf = vec![0; 1024];
    let offsets = (0..device.size() / 1024).map(|block| block * 1024);
    offsets
        .filter(|offset| {
            device.read_at(*offset, &mut buf).unwrap();
            let mut kinds: Vec<u8> = buf.iter().copied().filter(|byte| *byte != 0).collect();
            kinds.sort_unstable();
            kinds.dedup();
            kinds.len() > 1
        })
        .collect()
}

/// The image with a few bytes changed, and a description of the changes.
fn damaged(device: &MemoryDevice, places: &[u64], rng: &mut Rng) -> (Arc<MemoryDevice>, String) {
    let copy = Saved::new(device).load();
    let mut told = String::new();
    for _ in 0..rng.usize(1..6) {
        let block = places[rng.usize(..places.len())];
        let mut bytes = vec![0; 1024];
        copy.read_at(block, &mut bytes).unwrap();
        let set: Vec<usize> = (0..1024).filter(|at| bytes[*at] != 0).collect();
        let at = set[rng.usize(..set.len())];
        bytes[at] = match rng.u8(..3) {
            0 => bytes[at] ^ (1 << rng.u8(..8)),
            1 => 0,
            _ => rng.u8(..),
        };
        told.push_str(&format!(" byte {} -> {:#x}", block + at as u64, bytes[at]));
        copy.write_at(block, &bytes).unwrap();
    }
    (copy, told)
}

#[test]
fn every_finding_of_e2fsck_is_found() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let images = filled();
    let places: Vec<_> = images.iter().map(|device| interesting(device)).collect();
    let (mut missed, mut broken) = (Vec::new(), 0);
    for seed in 0..200_u64 {
        let mut rng = Rng::with_seed(seed);
        let which = seed as usize % images.len();
        let (device, told) = damaged(&images[which], &places[which], &mut rng);
        let ours = report(&device).map(|report| (report.is_clean(), lines(&report)));
        let (clean, text) = Saved::new(&device).e2fsck();
        broken += usize::from(!clean);
        let allowed = ALLOWED.iter().any(|(words, _)| text.contains(words));
        if let Ok((true, lines)) = ours
            && !clean
            && !allowed
        {
            missed.push(format!(
                "seed {seed}, {}:{told}\n{text}ours: {lines}\n",
                KINDS[which]
            ));
        }
    }
    assert!(broken > 100, "only {broken} images were broken");
    assert!(
        missed.is_empty(),
        "{} missed:\n{}",
        missed.len(),
        missed.join("\n")
    );
}

#[test]
fn few_findings_are_unknown_to_e2fsck() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let images = filled();
    let places: Vec<_> = images.iter().map(|device| interesting(device)).collect();
    let mut invented = Vec::new();
    for seed in 1000..1100_u64 {
        let mut rng = Rng::with_seed(seed);
        let which = seed as usize % images.len();
        let (device, told) = damaged(&images[which], &places[which], &mut rng);
        let Ok(report) = report(&device) else {
            continue;
        };
        let (clean, text) = Saved::new(&device).e2fsck();
        if clean && !report.is_clean() {
            let lines = lines(&report);
            invented.push(format!(
                "seed {seed}, {}:{told}\n{text}ours: {lines}\n",
                KINDS[which]
            ));
        }
    }
    assert!(
        invented.len() <= 5,
        "{} invented:\n{}",
        invented.len(),
        invented.join("\n")
    );
}
