//! Damage of every kind, planted with `debugfs`, is reported by its cause.

use std::collections::BTreeSet;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};

use crate::check::Finding;
use crate::oracles::{KERNEL, MIB, TOOLS, image, left_out};

use super::tools::{Saved, fill, lines, report, with_kernel};

/// Images that are damaged: arguments of `mke2fs`.
const PLAIN: &str = "-b 1024 -O ^has_journal,^metadata_csum";
const OLD: &str = "-t ext2 -b 1024";
const SUMS: &str = "-b 1024";
const VALUES: &str = "-b 1024 -O ea_inode,inline_data";

/// Image, commands of `debugfs`, and the finding that they plant.
const TABLE: &[(&str, &str, &str)] = &[
    (PLAIN, "ssv free_blocks_count 1", "SuperFreeBlocks"),
    (PLAIN, "ssv free_inodes_count 1", "SuperFreeInodes"),
    (PLAIN, "ssv state 0", "NotClean"),
    (PLAIN, "ssv state 3", "ErrorsNoted"),
    (PLAIN, "ssv last_orphan 5", "OrphanListBad"),
    (PLAIN, "ssv last_orphan 20", "OrphanOnClean"),
    (SUMS, "feature needs_recovery", "NeedsRecovery"),
    (SUMS, "sif <8> mode 0", "JournalBad"),
    (SUMS, "ssv journal_inum 7777777", "SuperField"),
    (
        SUMS,
        "ssv journal_uuid 11111111-2222-3333-4444-555555555555",
        "SuperField",
    ),
    (PLAIN, "feature meta_bg", "SuperField"),
    (SUMS, "feature uninit_bg", "SuperField"),
    (SUMS, "feature orphan_present", "SuperField"),
    (SUMS, "feature orphan_file", "SuperField"),
    (PLAIN, "feature metadata_csum_seed", "SuperField"),
    (PLAIN, "ssv usr_quota_inum 4", "SuperField"),
    (PLAIN, "ssv grp_quota_inum 3", "SuperField"),
    (PLAIN, "ssv prj_quota_inum 12", "SuperField"),
    (PLAIN, "sif <10> blocks 4", "InodeSectors"),
    (SUMS, "sif /big checksum 7", "InodeChecksum"),
    (
        PLAIN,
        "set_bg 0 free_blocks_count 1\nset_bg 0 checksum calc",
        "GroupFreeBlocks",
    ),
    (
        PLAIN,
        "set_bg 0 free_inodes_count 1\nset_bg 0 checksum calc",
        "GroupFreeInodes",
    ),
    (
        PLAIN,
        "set_bg 0 used_dirs_count 1\nset_bg 0 checksum calc",
        "GroupDirectories",
    ),
    (
        PLAIN,
        "set_bg 0 inode_table 1\nset_bg 0 checksum calc",
        "GroupBad",
    ),
    (
        PLAIN,
        "set_bg 1 block_bitmap 600\nset_bg 1 checksum calc",
        "GroupOverlap",
    ),
    (PLAIN, "setb 7000 3", "BlocksNotUsed"),
    (PLAIN, "freeb 600 1", "BlocksNotMarked"),
    (PLAIN, "seti <600>", "InodesNotUsed"),
    (PLAIN, "freei /big", "InodesNotMarked"),
    (PLAIN, "sif /big mode 0170000", "InodeBad"),
    (PLAIN, "sif /big flags 0x81000", "InodeField"),
    (PLAIN, "sif /short-link flags 0x10", "InodeField"),
    (PLAIN, "sif /big dtime 5", "DeletedInUse"),
    (PLAIN, "sif /one links_count 0", "NotDeleted"),
    (PLAIN, "sif <600> dtime 5", "NotDeleted"),
    (PLAIN, "sif /big blocks 5", "InodeSectors"),
    (PLAIN, "sif /big size 5", "InodeSize"),
    (PLAIN, "sif /one size 4398046511104", "InodeSize"),
    (PLAIN, "sif /big block[0] 0", "ExtentNodeBad"),
    (OLD, "sif /one block[0] 99999", "PointerBad"),
    (OLD, "sif /one block[0] 3", "BlocksOfGroups"),
    (
        OLD,
        "bmap /two 0\nsif /one block[0] 7001\nsif /two block[0] 7001",
        "BlocksShared",
    ),
    (OLD, "sif /many block[1] 0", "DirHole"),
    (PLAIN, "sif /short-link size 3", "SymlinkBad"),
    (VALUES, "sif /one size 200", "InlineSize"),
    (
        PLAIN,
        "sif <6> mode 010644\nsif <6> links_count 1",
        "ReservedInode",
    ),
    (PLAIN, "sif <7> block[DIND] 7000", "ResizeBad"),
    (VALUES, "sif /two file_acl 7000", "XattrBlockBad"),
    (PLAIN, "sif /one file_acl 0", "XattrRefcount"),
    (
        PLAIN,
        "zap_block -f /many -o 0 -l 8 -p 0xff 2",
        "DirBlockBad",
    ),
    (PLAIN, "zap_block -f /d0 -o 8 -l 1 -p 0x41 0", "DirDots"),
    (PLAIN, "zap_block -f /d0 -o 7 -l 1 -p 0x1 0", "EntryType"),
    (
        PLAIN,
        "zap_block -f /many -o 28 -l 1 -p 0x9 0",
        "HtreeVersion",
    ),
    (PLAIN, "zap_block -f /many -o 30 -l 1 -p 0x9 0", "HtreeBad"),
    (
        PLAIN,
        "zap_block -f /many -o 44 -l 1 -p 0x1 0",
        "HtreeTwice",
    ),
    (
        PLAIN,
        "zap_block -f /many -o 44 -l 1 -p 0x1 0",
        "HtreeForgotten",
    ),
    (
        PLAIN,
        "zap_block -f /many -o 40 -l 4 -p 0x02 0",
        "HtreeHash",
    ),
    (PLAIN, "unlink /one", "Unattached"),
    (PLAIN, "clri /one", "EntryDangling"),
    (PLAIN, "ln <6> /reserved", "EntryReserved"),
    (
        PLAIN,
        "feature encrypt\nsif /d0 flags 0x80800",
        "EntryEncryption",
    ),
    (
        PLAIN,
        "ln /big /big-again\nsif /big links_count 9",
        "LinkCount",
    ),
    (PLAIN, "ln /d0 /d-again", "DirectoryNames"),
    (
        PLAIN,
        "mkdir /x\nmkdir /y\nln /x /y/x\nunlink /x",
        "DotDotWrong",
    ),
    (
        PLAIN,
        "mkdir /x\nmkdir /x/y\nln /x /x/y/x\nunlink /x",
        "DirectoryLoop",
    ),
    (
        PLAIN,
        "mkdir /z\nln /big /z/aa\nln /big /z/ab\nzap_block -f /z -o 45 -l 1 -p 0x61 0",
        "NameTwice",
    ),
];

/// Bytes to change: image, byte offset, new bytes, finding.
const BYTES: &[(&str, u64, &[u8], &str)] = &[
    (SUMS, 1024 + 0x78, b"label", "SuperChecksum"),
    (SUMS, 8193 * 1024 + 0x78, b"label", "SuperBackupBad"),
    (PLAIN, 8193 * 1024 + 0x28, &[1], "SuperBackupDiffers"),
    (PLAIN, 8194 * 1024, &[1], "DescriptorBackupDiffers"),
    (PLAIN, 1024 + 0x24, &[1], "SuperField"),
    (OLD, 1024 + 0xff, &[0xff], "SuperField"),
    (PLAIN, 1024 + 0x5c, &[0x80, 0, 0, 0x80], "UnknownFeatures"),
];

/// Planted by the tests in `places`.
const ELSEWHERE: &[&str] = &[
    "AclBad",
    "BitmapChecksum",
    "BitmapPadding",
    "ExtentCluster",
    "ExtentNodeStart",
    "HtreeRange",
    "InodeInUnused",
    "MmpBad",
    "MmpInUse",
    "OrphanFileBad",
    "QuotaBad",
    "QuotaMissing",
    "QuotaTree",
    "QuotaUsage",
    "Unreadable",
    "XattrBad",
    "XattrBlockHash",
    "XattrValueBad",
    "XattrValueRefcount",
];

/// The names of an indexed directory are where this seed puts them, so that each change of an index
/// separates a name from its hash.
const HASH_SEED: &str = "-E hash_seed=01234567-89ab-cdef-0123-456789abcdef";

fn filled(args: &str) -> Arc<MemoryDevice> {
    with_kernel(&image(16 * MIB, &format!("{args} {HASH_SEED}")), fill).unwrap()
}

#[test]
fn planted_damage_is_found() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let kinds = [PLAIN, OLD, SUMS, VALUES];
    let images = kinds.map(|args| Saved::new(&filled(args)));
    let of = |args: &str| &images[kinds.iter().position(|kind| *kind == args).unwrap()];
    let (mut wrong, mut planted) = (Vec::new(), BTreeSet::new());
    let mut judge = |device: &Arc<MemoryDevice>, what: &str, code: &'static str| {
        assert!(Finding::CODES.contains(&code), "{code}");
        let found = report(device).map(|report| {
            let found = report.findings.iter().any(|finding| finding.code() == code);
            (found, lines(&report))
        });
        match found {
            Ok((true, _)) => {
                planted.insert(code);
            }
            other => wrong.push(format!("{code}: {what}: {other:?}")),
        }
    };
    for (args, commands, code) in TABLE {
        let damaged = Saved::new(&of(args).load());
        let output = damaged.debugfs(commands);
        judge(&damaged.load(), &format!("{commands}\n{output}"), code);
    }
    for (args, offset, bytes, code) in BYTES {
        let device = of(args).load();
        device.write_at(*offset, bytes).unwrap();
        judge(&device, &format!("byte {offset}"), code);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    planted.extend(ELSEWHERE);
    let not = Finding::CODES
        .iter()
        .filter(|code| !planted.contains(*code));
    assert_eq!(not.count(), 0, "not all findings are planted");
}
