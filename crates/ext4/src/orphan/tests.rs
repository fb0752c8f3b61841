//! Orphans of a mount that was cut off, judged by `e2fsck`.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{SUPER_OFFSET, SUPER_SIZE, SuperBlock};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, WriteMode};

use crate::oracles::{MIB, Need, clean, file, image, left_out, open as mount};
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
    if left_out(Need::Tools) {
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
    if left_out(Need::Tools) {
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
    if left_out(Need::Tools) {
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

#[test]
fn a_ring_of_orphans_is_an_error() {
    if left_out(Need::Tools) {
        return;
    }
    let device = image(16 * MIB, "-O ^has_journal,^metadata_csum,^orphan_file");
    let fs = mount(&device);
    let files = unlinked(&fs, 2, &[5; 5000]);
    fs.sync().unwrap();
    let cut = Arc::new(device.snapshot());
    // The last of the list points back to its first.
    let last = files[0].0 as u32;
    let (buffer, offset) = crate::inode::table_place(&fs.engine, last).unwrap();
    let at = buffer.block() * fs.engine.block_size() + offset as u64 + 0x14;
    cut.write_at(at, &(files[1].0 as u32).to_le_bytes())
        .unwrap();
    let mut bytes = vec![0; SUPER_SIZE];
    cut.read_at(SUPER_OFFSET, &mut bytes).unwrap();
    let first = SuperBlock::parse(&bytes).unwrap().last_orphan.get();
    assert_eq!(u64::from(first), files[1].0);
    let before = cut.snapshot();
    let error = Ext4::open(cut.clone(), Options::default()).err().unwrap();
    assert!(error.to_string().contains("twice"), "{error}");
    assert_eq!(cut.first_difference(&before), None, "written to");
}

/// It is told and stays; the others go, and the mount is there.
#[test]
fn an_orphan_that_is_damaged_does_not_fail_the_mount() {
    if left_out(Need::Tools) {
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
