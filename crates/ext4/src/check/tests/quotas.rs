//! Quota files: damage is found where `e2fsck` finds it, and a repair satisfies `e2fsck`.

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::{QUOTA_BLOCK, QuotaEntry, QuotaKind};
use sapwood_testing::oracle::ext4::debugfs_only;
use sapwood_vfs::{Credentials, FileSystem, NewInode, WriteMode};

use super::tools::{Saved, assert_clean, lines, report};
use crate::check::{CheckOptions, Finding, QuotaSum, repair};
use crate::oracles::{MIB, TOOLS, clean, image, left_out, open};

const FEATURES: &str = "-O quota,project,^ea_inode -E quotatype=usrquota:grpquota:prjquota,hash_seed=01234567-89ab-cdef-0123-456789abcdef";
/// Owners of files, from 1000 on.
const OWNERS: u32 = 40;
/// An owner with a limit, in KiB.
const LIMITED: (u32, u64) = (1005, 54_321);

/// An image with a file of each owner, and a limit.
fn filled(args: &str) -> Arc<MemoryDevice> {
    let device = image(32 * MIB, &format!("{FEATURES} {args}"));
    let fs = open(&device);
    for number in 0..OWNERS {
        let who = Credentials {
            uid: 1000 + number,
            gid: 2000 + number,
            ..Credentials::ROOT
        };
        let name = format!("file{number}");
        let made = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Regular, 0o644);
        let bytes = vec![7; 700 * number as usize];
        let ino = made.unwrap().ino();
        fs.write(ino, 0, &bytes, WriteMode::default()).unwrap();
    }
    fs.unmount().unwrap();
    let at = entry_at(&device, LIMITED.0);
    change(&device, at, |entry| entry.space_hard = LIMITED.1.into());
    device
}

/// Byte of the entry of a user.
fn entry_at(device: &Arc<MemoryDevice>, id: u32) -> u64 {
    let fs = open(&Arc::new(device.snapshot()));
    let entries = fs.engine.quota.kinds()[0].entries.lock();
    let entry = &entries[&id];
    entry.block * fs.engine.block_size() + entry.offset as u64
}

/// Byte of a block of the quota file of users.
fn block_at(device: &Arc<MemoryDevice>, number: u64) -> u64 {
    let fs = open(&Arc::new(device.snapshot()));
    let engine = &fs.engine;
    let inode = engine.inodes.get(engine, engine.quota.kinds()[0].ino);
    let (at, size) = (number * QUOTA_BLOCK as u64, engine.block_size());
    let block = crate::map::block_of(engine, &inode.unwrap(), at / size).unwrap();
    block.block() * size + at % size
}

fn change(device: &MemoryDevice, at: u64, with: impl FnOnce(&mut QuotaEntry)) {
    let mut bytes = [0; QuotaEntry::SIZE];
    device.read_at(at, &mut bytes).unwrap();
    let mut entry = QuotaEntry::read(&bytes).unwrap();
    with(&mut entry);
    device.write_at(at, entry.bytes()).unwrap();
}

/// The image after `e2fsck -fy`.
fn repaired_by_tool(device: &MemoryDevice) -> Arc<MemoryDevice> {
    let saved = Saved::new(device);
    let run = Command::new("e2fsck").arg("-fy").arg(saved.path()).output();
    let code = run.unwrap().status.code();
    assert_eq!(code, Some(1), "e2fsck -fy repairs");
    saved.load()
}

/// Asserts that the check has a finding of each of these kinds.
fn found(device: &Arc<MemoryDevice>, codes: &[&str], what: &str) {
    let found = report(device).unwrap();
    for code in codes {
        let found_it = found.findings.iter().any(|one| one.code() == *code);
        assert!(found_it, "{what}: no {code} in\n{}", lines(&found));
    }
}

/// Both checks find the damage, and are satisfied after a repair by either.
fn judged(device: &Arc<MemoryDevice>, codes: &[&str], what: &str) {
    found(device, codes, what);
    let judged = sapwood_testing::oracle::ext4::check(device);
    assert!(judged.is_err(), "{what}: e2fsck finds nothing");
    assert_clean(
        &repaired_by_tool(device),
        &format!("{what}, repaired by e2fsck"),
    );
    repaired(device, what);
}

/// Repairs a copy, which has the limit then and satisfies `e2fsck`.
fn repaired(device: &Arc<MemoryDevice>, what: &str) {
    let copy: Arc<MemoryDevice> = Arc::new(device.snapshot());
    let repairing: Arc<dyn Device> = copy.clone();
    let mut progress = |_| ControlFlow::Continue(());
    let done = repair::repair(&repairing, &CheckOptions::default(), &mut progress).unwrap();
    assert!(
        done.left.is_empty() && done.report.findings.is_empty(),
        "{what}: {done:?}"
    );
    clean(&copy, what);
    assert_clean(&copy, what);
    let (id, limit) = LIMITED;
    let at = entry_at(&copy, id);
    change(&copy, at, |entry| {
        assert_eq!(entry.space_hard.get(), limit, "{what}: limit");
        entry.inodes = 5.into();
    });
    // `e2fsck` reads the repaired file.
    let judged = sapwood_testing::oracle::ext4::check(&copy);
    assert!(judged.is_err(), "{what}: e2fsck finds no wrong usage");
}

#[test]
fn wrong_usage_is_named_by_owner_and_counted_again() {
    if left_out(TOOLS) {
        return;
    }
    for args in ["-b 1024", "-b 4096 -O fast_commit"] {
        let good = filled(args);
        assert_clean(&good, args);
        let bad = Arc::new(good.snapshot());
        change(&bad, entry_at(&good, 1007), |entry| {
            entry.inodes = 9.into();
            entry.space = (1 << 40).into();
        });
        let found = report(&bad).unwrap().findings;
        let [
            Finding::QuotaUsage {
                kind,
                id,
                found,
                expected,
                ..
            },
        ] = &found[..]
        else {
            panic!("{found:?}");
        };
        assert_eq!((*kind, *id), (QuotaKind::User, 1007));
        assert_eq!(
            *found,
            QuotaSum {
                space: 1 << 40,
                inodes: 9
            }
        );
        assert_eq!(expected.inodes, 1);
        judged(&bad, &["QuotaUsage"], args);
    }
}

#[test]
fn owners_without_an_entry_get_one() {
    if left_out(TOOLS) {
        return;
    }
    let good = filled("-b 1024");
    let commands = "sif file3 uid 4242\nsif file4 gid 70000\nsif file5 projid 7";
    let bad = debugfs_only(&good, commands);
    let found = report(&bad).unwrap();
    let missing = |id: u32, kind: QuotaKind| {
        let wanted = (id, kind);
        let same = |one: &Finding| matches!(one, Finding::QuotaMissing { id, kind, .. } if (*id, *kind) == wanted);
        found.findings.iter().any(same)
    };
    assert!(missing(4242, QuotaKind::User), "{}", lines(&found));
    assert!(missing(70_000, QuotaKind::Group), "{}", lines(&found));
    assert!(missing(7, QuotaKind::Project), "{}", lines(&found));
    judged(&bad, &["QuotaMissing", "QuotaUsage"], "missing");
}

#[test]
fn a_damaged_file_is_written_anew_with_its_limits() {
    if left_out(TOOLS) {
        return;
    }
    for args in ["-b 1024", "-b 4096"] {
        let good = filled(args);
        let (first, root) = (block_at(&good, 0), block_at(&good, 1));
        let leaf = entry_at(&good, 1030);
        let cases: [(&str, u64, &[u8], &str); 6] = [
            ("no header", first, &[0; 4], "QuotaBad"),
            ("blocks", first + 8 + 12, &[0xff; 4], "QuotaTree"),
            (
                "reference past the end",
                root + 400,
                &[0xff, 0xff],
                "QuotaTree",
            ),
            ("reference to the root", root + 400, &[1, 0], "QuotaTree"),
            (
                "root without references",
                root,
                &[0; QUOTA_BLOCK],
                "QuotaTree",
            ),
            ("another owner", leaf, &[0x77, 0x77], "QuotaTree"),
        ];
        for (what, at, bytes, code) in cases {
            let bad = Arc::new(good.snapshot());
            bad.write_at(at, bytes).unwrap();
            let what = format!("{args}: {what}");
            // `e2fsck -fn` is silent about some of them.
            found(&bad, &[code], &what);
            repaired(&bad, &what);
        }
    }
}

#[test]
fn other_damage_is_repaired_before_usage_is_counted() {
    if left_out(TOOLS) {
        return;
    }
    let good = filled("-b 1024");
    let bad = debugfs_only(&good, "clri file20");
    let root = block_at(&bad, 1);
    bad.write_at(root + 400, &[1, 0]).unwrap();
    found(&bad, &["EntryDangling", "QuotaTree"], "both");
    repaired(&bad, "both");
}
