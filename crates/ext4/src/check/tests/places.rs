//! Damage at locations that must be looked up first: bitmaps, attribute blocks, nodes, the orphan
//! file.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::{Geometry, Inode, InodeFlags, SUPER_OFFSET, SUPER_SIZE, SuperBlock};
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds};

use crate::check::state::View;
use crate::check::walk::{Piece, walk};
use crate::check::{CheckOptions, check};
use crate::oracles::{KERNEL, MIB, TOOLS, image, left_out};

use super::tools::{Saved, fill, lines, report, with_kernel};

fn view(device: &Arc<MemoryDevice>) -> View {
    let mut bytes = vec![0; SUPER_SIZE];
    device.read_at(SUPER_OFFSET, &mut bytes).unwrap();
    let sb = SuperBlock::parse(&bytes).unwrap();
    let geometry = Geometry::new(&sb).unwrap();
    View {
        device: Arc::clone(device) as Arc<dyn Device>,
        sb,
        geometry,
        journal: None,
    }
}

fn inode(view: &View, ino: u32) -> Inode {
    let (group, _) = view.geometry.inode_location(ino).unwrap();
    let table = view.descriptor(group).unwrap().inode_table();
    view.inode(table, ino).unwrap()
}

/// The first inode for which `wanted` is true.
fn find(view: &View, wanted: impl Fn(&Inode) -> bool) -> (u32, Inode) {
    let inodes = 11..view.geometry.inodes_count();
    let mut inodes = inodes.map(|ino| (ino, inode(view, ino)));
    inodes
        .find(|(_, inode)| inode.links() > 0 && wanted(inode))
        .unwrap()
}

/// Asserts that the check reports this kind of damage.
fn assert_found(device: &Arc<MemoryDevice>, code: &str) {
    let report = report(device).unwrap();
    let found = report.findings.iter().any(|finding| finding.code() == code);
    assert!(found, "no {code} in:\n{}", lines(&report));
}

/// Writes bytes into a block of a copy, and asserts that this is reported.
fn plant(device: &Arc<MemoryDevice>, at: (u64, u64), bytes: &[u8], code: &str) {
    let copy = Saved::new(device).load();
    let size = u64::from(view(&copy).geometry.block_size());
    copy.write_at(at.0 * size + at.1, bytes).unwrap();
    assert_found(&copy, code);
}

fn filled(args: &str) -> Arc<MemoryDevice> {
    with_kernel(&image(16 * MIB, args), fill).unwrap()
}

#[test]
fn bitmaps() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 1024");
    let desc = view(&device).descriptor(0).unwrap();
    plant(&device, (desc.block_bitmap(), 5), &[0xf7], "BitmapChecksum");
    // Group 0 has 1792 to 2048 inodes, and the block 8192 bits.
    plant(&device, (desc.inode_bitmap(), 1020), &[0], "BitmapPadding");
    let saved = Saved::new(&device);
    saved.debugfs("mkdir /d\nset_bg 0 itable_unused 2038\nset_bg 0 checksum calc\n");
    let count = view(&device).geometry.inodes_per_group();
    let commands = format!(
        "set_bg 0 itable_unused {}\nset_bg 0 checksum calc\n",
        count - 11
    );
    saved.debugfs(&commands);
    assert_found(&saved.load(), "InodeInUnused");
}

#[test]
fn attributes() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let device = filled("-b 1024 -O ^has_journal,^metadata_csum");
    let known = view(&device);
    let (_, shares) = find(&known, |inode| inode.file_acl() != 0);
    let block = shares.file_acl();
    plant(&device, (block, 12), &[1, 2, 3, 4], "XattrBlockHash");
    // Another name index turns the value into an access control list.
    plant(&device, (block, 33), &[2], "AclBad");
    let magic = 0xea02_0000_u32.to_le_bytes();
    let small = |inode: &Inode| inode.attr_area().starts_with(&magic);
    let (ino, holder) = find(&known, small);
    let (group, index) = known.geometry.inode_location(ino).unwrap();
    let table = known.descriptor(group).unwrap().inode_table();
    let (block, offset) = known.geometry.inode_in_table(table, index);
    let entry = 128 + holder.extra_isize() as u64 + 4;
    plant(
        &device,
        (block, u64::from(offset) + entry + 2),
        &[0xff; 2],
        "XattrBad",
    );
}

#[test]
fn values_in_inodes() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let device = filled("-O ea_inode");
    let value = |inode: &Inode| inode.flags().contains(InodeFlags::EA_INODE);
    let (ino, _) = find(&view(&device), value);
    for (command, code) in [
        (format!("sif <{ino}> version 7"), "XattrValueRefcount"),
        (format!("sif <{ino}> size 5"), "XattrValueBad"),
        (format!("sif <{ino}> atime @7"), "XattrValueBad"),
    ] {
        let saved = Saved::new(&device);
        saved.debugfs(&command);
        assert_found(&saved.load(), code);
    }
}

#[test]
fn nodes_of_extents() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let device = filled("-b 1024 -O ^has_journal,^metadata_csum");
    let known = view(&device);
    let deep = |inode: &Inode| {
        inode.is_regular() && inode.flags().contains(InodeFlags::EXTENTS) && inode.block()[6] > 0
    };
    let (ino, file) = find(&known, deep);
    let mut node = None;
    walk(&known, ino, &file, &mut |piece| {
        if let Piece::Node { block } = piece {
            node = node.or(Some(block));
        }
        true
    });
    // The first extent's logical block: 1, where the parent has 0.
    plant(&device, (node.unwrap(), 12), &[1], "ExtentNodeStart");
    let clustered = Saved::new(&image(64 * MIB, "-O bigalloc -b 4096"));
    let source = clustered.beside("source");
    std::fs::write(&source, vec![3; 9000]).unwrap();
    clustered.debugfs(&format!("write {} /f\n", source.display()));
    clustered.debugfs("sif /f block[5] 8001\n");
    assert_found(&clustered.load(), "ExtentCluster");
}

#[test]
fn files_of_the_file_system() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 1024 -O orphan_file");
    let known = view(&device);
    let ino = known.sb.orphan_file_inum.get();
    let mut first = None;
    walk(&known, ino, &inode(&known, ino), &mut |piece| {
        if let Piece::Data { physical, .. } = piece {
            first = first.or(Some(physical));
        }
        true
    });
    plant(&device, (first.unwrap(), 1020), &[9], "OrphanFileBad");
    let quota = Saved::new(&image(16 * MIB, "-b 1024 -O quota"));
    quota.debugfs("zap_block -f <3> -p 0x11 0\n");
    assert_found(&quota.load(), "QuotaBad");
    let mounts = image(16 * MIB, "-b 1024 -O mmp");
    let block = view(&mounts).sb.mmp_block.get();
    plant(&mounts, (block, 0), &[9], "MmpBad");
    let mounts = image(16 * MIB, "-b 1024 -O mmp,^metadata_csum");
    let block = view(&mounts).sb.mmp_block.get();
    plant(&mounts, (block, 4), &[1, 0, 0, 0], "MmpInUse");
}

#[test]
fn blocks_that_cannot_be_read() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 1024");
    let bitmap = view(&device).descriptor(0).unwrap().block_bitmap() * 1024;
    let faulty = FaultDevice::new(device);
    let rule = FaultRule::new(RequestKinds::READ, 1, Fault::Fail);
    faulty.arm(rule.from_then_on().within(bitmap..bitmap + 1024));
    let faulty: Arc<dyn Device> = Arc::new(faulty);
    let go_on = &mut |_| ControlFlow::Continue(());
    let report = check(&faulty, &CheckOptions::default(), go_on).unwrap();
    let codes: Vec<_> = report
        .findings
        .iter()
        .map(|finding| finding.code())
        .collect();
    assert_eq!(codes, ["Unreadable"], "{}", lines(&report));
}

#[test]
fn the_caller_can_cancel_and_bound_a_check() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 1024");
    device.write_at(2048, &[0xff; 300]).unwrap();
    let device: Arc<dyn Device> = device;
    let options = CheckOptions {
        max_findings: 1,
        ..CheckOptions::default()
    };
    let report = check(&device, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.findings.len(), 1);
    assert!(report.suppressed > 0 && !report.is_clean());
    let mut calls = 0;
    let ended = check(&device, &options, &mut |_| {
        calls += 1;
        if calls == 3 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(matches!(ended, Err(crate::check::CheckError::Cancelled)));
    assert_eq!(calls, 3);
}

#[test]
fn deep_hash_trees() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let device = image(16 * MIB, "-b 1024 -O ^has_journal,^metadata_csum");
    let many = |at: &std::path::Path| {
        std::fs::create_dir(at.join("deep")).unwrap();
        for number in 0..700 {
            let name = format!("{number:04}{}", "n".repeat(236));
            std::fs::write(at.join("deep").join(name), "").unwrap();
        }
    };
    let saved = Saved::new(&with_kernel(&device, many).unwrap());
    super::tools::assert_clean(&saved.load(), "a tree of two levels");
    // The root's second entry begins before the end of the first one's contents.
    saved.debugfs("zap_block -f /deep -o 40 -l 4 -p 0x02 0\n");
    assert_found(&saved.load(), "HtreeRange");
}
