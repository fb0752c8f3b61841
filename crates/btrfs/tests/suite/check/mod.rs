//! Plants every finding of `check` in an image that the kernel made, and checks that exactly its
//! consequences are found.

#![allow(unreachable_pub)]

mod blocks;
mod editor;
mod extents;
mod fields;
mod garbage;
mod names;
mod roots;
mod space;

use std::collections::BTreeSet;

use editor::Editor;
use sapwood_block::Device;
use sapwood_btrfs::check::{CheckOptions, CheckReport, Finding, check};

/// A planted defect: its name, the function that plants it, and the codes of all findings that it
/// causes. The first code is the subject of the case.
pub type Case = (fn(&mut Editor), &'static [&'static str]);

/// All cases.
fn cases() -> Vec<Case> {
    [
        blocks::CASES,
        space::CASES,
        extents::CASES,
        roots::CASES,
        names::CASES,
        fields::CASES,
    ]
    .concat()
}

/// Findings that need a failing device or another fixture; tests of their own show them.
const ELSEWHERE: [&str; 5] = [
    "SuperUnreadable",
    "DataUnreadable",
    "DataOfDump",
    "SuperOfDump",
    "QuotaGroup",
];

/// Checks with data; there has to be a report.
pub fn run(device: &dyn Device) -> CheckReport {
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    check(&[device], &options, &mut |_| ()).unwrap()
}

/// Codes of all findings.
pub fn codes(report: &CheckReport) -> BTreeSet<&'static str> {
    report.findings.iter().map(Finding::code).collect()
}

#[test]
fn the_fixture_is_clean_and_has_every_kind_of_item() {
    use sapwood_btrfs_format::{kind, objectid as id};
    let editor = Editor::fixture();
    let report = run(&editor.device);
    assert_eq!(report.findings, []);
    assert_eq!(report.stats.subvolumes, 6);
    assert!(report.stats.inodes > 200 && report.stats.verified_bytes > 1 << 20);
    let trees = [
        id::ROOT_TREE,
        2,
        3,
        4,
        5,
        id::CSUM_TREE,
        9,
        10,
        11,
        256,
        257,
        258,
        259,
        260,
    ];
    let kinds: BTreeSet<u8> = trees
        .iter()
        .flat_map(|t| editor.items(*t))
        .map(|(key, _)| key.kind)
        .collect();
    for kind in [
        kind::INODE_ITEM,
        kind::INODE_REF,
        kind::INODE_EXTREF,
        kind::XATTR_ITEM,
        kind::ORPHAN_ITEM,
        kind::DIR_ITEM,
        kind::DIR_INDEX,
        kind::EXTENT_DATA,
        kind::EXTENT_CSUM,
        kind::ROOT_ITEM,
        kind::ROOT_REF,
        kind::ROOT_BACKREF,
        kind::EXTENT_ITEM,
        kind::METADATA_ITEM,
        kind::BLOCK_GROUP_ITEM,
        kind::FREE_SPACE_INFO,
        kind::FREE_SPACE_EXTENT,
        kind::FREE_SPACE_BITMAP,
        kind::DEV_EXTENT,
        kind::DEV_ITEM,
        kind::CHUNK_ITEM,
        kind::UUID_KEY_SUBVOL,
    ] {
        assert!(kinds.contains(&kind), "no {:?}", kind::name(kind));
    }
    assert_ne!(editor.sb.log_root.get(), 0, "no log");
}

#[test]
fn each_plant_is_found_with_its_consequences_and_nothing_else() {
    let mut wrong = Vec::new();
    for (plant, expected) in cases() {
        let mut editor = Editor::fixture();
        plant(&mut editor);
        let report = run(&editor.device);
        let found = codes(&report);
        let expected_set: BTreeSet<_> = expected.iter().copied().collect();
        if found != expected_set {
            let lines = report.findings.iter().take(9);
            let lines: Vec<String> = lines.map(|f| format!("{}: {f}", f.code())).collect();
            wrong.push(format!("{expected:?}: found\n    {}", lines.join("\n    ")));
        }
        for finding in &report.findings {
            assert!(!finding.to_string().contains('\n'), "{finding:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_finding_has_a_case() {
    let planted: BTreeSet<&str> = cases()
        .iter()
        .filter_map(|(_, e)| e.first().copied())
        .collect();
    let missing: Vec<&&str> = Finding::CODES
        .iter()
        .filter(|code| !planted.contains(*code) && !ELSEWHERE.contains(code))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
