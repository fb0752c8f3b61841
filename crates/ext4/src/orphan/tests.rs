//! Orphans of an interrupted mount, judged by `e2fsck`.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::{SUPER_OFFSET, SUPER_SIZE, SuperBlock, SuperState};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, WriteMode};

use crate::oracles::{MIB, TOOLS, clean, file, image, left_out, open as mount};
use crate::{Ext4, Options};

const FORMS: [&str; 3] = ["-O ^orphan_file", "-O orphan_file", "-O ^has_journal"];

/// Files with content, open and without a name.
fn unlinked(fs: &Ext4, count: usize, bytes: &[u8]) -> Vec<Ino> {
    let root = fs.root();
    let make = |number: usize| {
        let name = format!("file-{number}");
        let name = name.as_bytes();
        let made = fs.create(&Credentials::ROOT, root, name, NewInode::Regular, 0o644);
        let ino = made.unwrap().ino();
        fs.write(ino, 0, bytes, WriteMode::default()).unwrap();
        fs.unlink(root, name).unwrap();
        ino
    };
    (0..count).map(make).collect()
}

fn free(fs: &Ext4) -> (u64, u64) {
    fs.sync().unwrap();
    let stat = fs.statfs().unwrap();
    (stat.blocks_free, stat.inodes_free)
}

#[test]
fn orphans_leave_the_list_in_any_order() {
    if left_out(TOOLS) {
        return;
    }
    for form in FORMS {
        let device = image(16 * MIB, form);
        let fs = mount(&device);
        let before = free(&fs);
        let files = unlinked(&fs, 5, &[5; 5000]);
        for at in [2, 0, 4, 3, 1] {
            fs.forget(files[at], 1);
        }
        assert_eq!(free(&fs), before, "{form}");
        fs.unmount().unwrap();
        clean(&device, form);
    }
}

#[test]
fn the_next_mount_deletes_what_was_left() {
    if left_out(TOOLS) {
        return;
    }
    for form in FORMS {
        let device = image(16 * MIB, form);
        let fs = mount(&device);
        let before = free(&fs);
        unlinked(&fs, 7, &[5; 5000]);
        fs.sync().unwrap();
        let cut = Arc::new(device.snapshot());
        let fs = mount(&cut);
        assert_eq!(free(&fs), before, "{form}");
        fs.unmount().unwrap();
        clean(&cut, form);
    }
}

#[test]
fn what_the_file_cannot_hold_goes_to_the_list() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(32 * MIB, "-b 1024 -N 12000 -O orphan_file");
    let fs = mount(&device);
    let before = free(&fs);
    let blocks = {
        let ino = fs.engine.super_block.lock().orphan_file_inum.get();
        let inode = fs.engine.inodes.get(&fs.engine, ino).unwrap();
        inode.size() / fs.engine.block_size()
    };
    let slots = blocks as usize * sapwood_ext4_format::orphan_slots(1024);
    unlinked(&fs, slots + 3, b"");
    fs.sync().unwrap();
    assert_ne!(fs.engine.super_block.lock().last_orphan.get(), 0);
    let cut = Arc::new(device.snapshot());
    let fs = mount(&cut);
    assert_eq!(free(&fs), before);
    fs.unmount().unwrap();
    clean(&cut, "full orphan file");
}

/// Every case mounts, as with the kernel; the orphans before the damage are finished, and the
/// superblock asks for a check.
#[test]
fn a_damaged_list_ends_where_it_is() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-O ^has_journal,^metadata_csum,^orphan_file");
    let fs = mount(&device);
    let kept = file(&fs, "kept");
    fs.sync().unwrap();
    let spare = fs.statfs().unwrap().inodes_free as u32;
    let free = u32::try_from(kept.0).unwrap() + 9;
    let files = unlinked(&fs, 2, &[5; 5000]);
    fs.sync().unwrap();
    let (first, last) = (files[1].0 as u32, files[0].0 as u32);
    // The superblock's first orphan, the last entry's next one, finished orphans.
    let reserved = 5;
    let cases = [
        ("the first is reserved", Some(reserved), None, 0),
        ("the first is the journal's number", Some(8), None, 0),
        ("the first is none", Some(9_999_999), None, 0),
        ("the first is free", Some(free), None, 0),
        ("the second is reserved", None, Some(reserved), 2),
        ("a ring", None, Some(first), 2),
        ("an inode that names itself", Some(last), Some(last), 1),
    ];
    for (what, head, next, finished) in cases {
        let cut = Arc::new(device.snapshot());
        if let Some(head) = head {
            put(&cut, SUPER_OFFSET + 0xe8, head);
        }
        if let Some(next) = next {
            put(&cut, dtime(&fs, last), next);
        }
        assert_eq!(super_block(&cut).last_orphan.get(), head.unwrap_or(first));
        let read_only = Options {
            read_only: true,
            ..Options::default()
        };
        let shown = Ext4::open(Arc::new(cut.snapshot()), read_only).unwrap();
        shown.lookup(shown.root(), b"kept").unwrap();
        shown.unmount().unwrap();
        let fs = mount(&cut);
        assert_eq!(
            fs.statfs().unwrap().inodes_free as u32,
            spare - 2 + finished,
            "{what}"
        );
        file(&fs, "new");
        fs.unmount().unwrap();
        let after = super_block(&cut);
        assert_eq!(after.last_orphan.get(), 0, "{what}");
        assert!(after.state().contains(SuperState::ERROR), "{what}");
    }
}

fn put(device: &MemoryDevice, at: u64, number: u32) {
    device.write_at(at, &number.to_le_bytes()).unwrap();
}

/// Offset of the inode's time of deletion, in which an orphan names the next one.
fn dtime(fs: &Ext4, ino: u32) -> u64 {
    let (buffer, offset) = crate::inode::table_place(&fs.engine, ino).unwrap();
    buffer.block() * fs.engine.block_size() + offset as u64 + 0x14
}

fn super_block(device: &MemoryDevice) -> SuperBlock {
    let mut bytes = vec![0; SUPER_SIZE];
    device.read_at(SUPER_OFFSET, &mut bytes).unwrap();
    SuperBlock::parse(&bytes).unwrap()
}

/// Slots of the orphan file that name no orphan stay; the others are finished.
#[test]
fn a_damaged_slot_does_not_spoil_the_others() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-O orphan_file,^metadata_csum");
    let fs = mount(&device);
    let cut = file(&fs, "cut").0 as u32;
    let block = {
        let ino = fs.engine.super_block.lock().orphan_file_inum.get();
        let inode = fs.engine.inodes.get(&fs.engine, ino).unwrap();
        let block = crate::map::block_of(&fs.engine, &inode, 0).unwrap();
        block.block() * fs.engine.block_size()
    };
    fs.unmount().unwrap();
    // A reserved inode, one that does not exist, and a file.
    for (slot, ino) in [5, 0xff_ffff, cut].into_iter().enumerate() {
        put(&device, block + 4 * slot as u64, ino);
    }
    let fs = mount(&device);
    assert!(!fs.engine.orphans.knows(cut));
    fs.unmount().unwrap();
    let mut slots = [0; 12];
    device.read_at(block, &mut slots).unwrap();
    assert_eq!(slots, [5, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0]);
    assert!(super_block(&device).state().contains(SuperState::ERROR));
}

/// It is reported and stays; the others are deleted, and the mount succeeds.
#[test]
fn an_orphan_that_is_damaged_does_not_fail_the_mount() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-O ^has_journal,^metadata_csum,^orphan_file");
    let fs = mount(&device);
    let kept = file(&fs, "kept");
    fs.write(kept, 0, &[7; 3000], WriteMode::default()).unwrap();
    let [bad, other] = unlinked(&fs, 2, b"")[..] else {
        panic!("two were made");
    };
    // More extents than an inode holds.
    for nth in 0..12 {
        fs.write(bad, nth * 40_000, &[5; 3000], WriteMode::default())
            .unwrap();
    }
    fs.sync().unwrap();
    let leaf = {
        let inode = fs.engine.inodes.get(&fs.engine, bad.0 as u32).unwrap();
        // Behind the header the first index: its file block, then where the leaf is.
        u64::from(inode.state.lock().raw.block_word(4))
    };
    let cut = Arc::new(device.snapshot());
    let at = leaf * fs.engine.block_size();
    cut.write_at(at, &vec![0xee; fs.engine.block_size() as usize])
        .unwrap();
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    for (how, options) in [
        ("ro", options),
        ("rw", Options::default()),
        ("again", Options::default()),
    ] {
        let fs = Ext4::open(cut.clone(), options).unwrap();
        let found = fs.lookup(fs.root(), b"kept").unwrap().ino();
        let mut content = [0; 3000];
        assert_eq!(fs.read(found, 0, &mut content).unwrap(), 3000, "{how}");
        assert_eq!(content, [7; 3000], "{how}");
        if how != "ro" {
            assert!(fs.engine.orphans.knows(bad.0 as u32), "{how}");
            assert!(!fs.engine.orphans.knows(other.0 as u32), "{how}");
            file(&fs, how);
        }
        fs.unmount().unwrap();
    }
}
