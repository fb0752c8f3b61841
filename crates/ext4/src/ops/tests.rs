//! When inodes go, judged by `e2fsck`.

use sapwood_vfs::rules::CAPABILITY;
use sapwood_vfs::{self as vfs, FileSystem, SetAttr, SetXattrMode, WriteMode};

use crate::Ext4;
use crate::oracles::{MIB, Need, clean, file, image, left_out, open as mount};

/// Handles that `work` takes.
fn handles(fs: &Ext4, work: impl FnOnce()) -> u64 {
    let count = || {
        let list = fs.engine.journal.counters().list();
        let found = list.iter().find(|(name, _)| *name == "handles");
        found.unwrap().1
    };
    let before = count();
    work();
    count() - before
}

#[test]
fn an_empty_file_goes_in_the_handle_that_takes_its_name() {
    if left_out(Need::Tools) {
        return;
    }
    let device = image(16 * MIB, "-b 4096");
    let fs = mount(&device);
    let free = fs.statfs().unwrap().inodes_free;
    let ino = file(&fs, "empty");
    fs.forget(ino, 1);
    assert_eq!(handles(&fs, || fs.unlink(fs.root(), b"empty").unwrap()), 1);
    assert_eq!(fs.getattr(ino), Err(vfs::Error::Stale));
    assert_eq!(fs.statfs().unwrap().inodes_free, free);
    // Its number is free for another.
    assert_eq!(file(&fs, "next"), ino);
    fs.unmount().unwrap();
    clean(&device, "empty");
}

#[test]
fn what_somebody_refers_to_or_has_content_goes_by_the_orphans() {
    if left_out(Need::Tools) {
        return;
    }
    let device = image(16 * MIB, "-b 4096");
    let fs = mount(&device);
    let free = |fs: &Ext4| {
        fs.sync().unwrap();
        let stat = fs.statfs().unwrap();
        (stat.blocks_free, stat.inodes_free)
    };
    let before = free(&fs);
    let held = file(&fs, "held");
    assert_eq!(handles(&fs, || fs.unlink(fs.root(), b"held").unwrap()), 1);
    assert_eq!(fs.getattr(held).unwrap().nlink, 0);
    assert_eq!(handles(&fs, || fs.forget(held, 1)), 1);
    assert_eq!(fs.getattr(held), Err(vfs::Error::Stale));

    let full = file(&fs, "full");
    fs.write(full, 0, &[7; 9000], WriteMode::default()).unwrap();
    fs.sync().unwrap();
    fs.forget(full, 1);
    fs.unlink(fs.root(), b"full").unwrap();
    assert_eq!(fs.getattr(full), Err(vfs::Error::Stale));

    let dirty = file(&fs, "dirty");
    fs.write(dirty, 0, &[7; 9000], WriteMode::default())
        .unwrap();
    fs.forget(dirty, 1);
    fs.unlink(fs.root(), b"dirty").unwrap();
    assert_eq!(fs.getattr(dirty), Err(vfs::Error::Stale));

    let named = file(&fs, "named");
    fs.link(named, fs.root(), b"other").unwrap();
    fs.forget(named, 2);
    fs.unlink(fs.root(), b"named").unwrap();
    assert_eq!(fs.getattr(named).unwrap().nlink, 1);
    fs.unlink(fs.root(), b"other").unwrap();
    assert_eq!(free(&fs), before);
    fs.unmount().unwrap();
    clean(&device, "orphans");
}

#[test]
fn a_value_that_a_change_drops_is_deleted_with_it() {
    if left_out(Need::Tools) {
        return;
    }
    let device = image(16 * MIB, "-b 4096 -O ea_inode");
    let fs = mount(&device);
    let ino = file(&fs, "a");
    let free = fs.statfs().unwrap().inodes_free;
    let give = || {
        let (name, value) = (CAPABILITY, [5; 9000]);
        fs.setxattr(ino, name, &value, SetXattrMode::Any).unwrap();
        assert_eq!(fs.statfs().unwrap().inodes_free, free - 1);
    };
    give();
    let owner = SetAttr {
        uid: Some(7),
        kill_setid: true,
        ..SetAttr::default()
    };
    fs.setattr(ino, &owner).unwrap();
    assert_eq!(fs.getxattr(ino, CAPABILITY), Err(vfs::Error::NoAttribute));
    assert_eq!(fs.statfs().unwrap().inodes_free, free);
    give();
    fs.write(ino, 0, b"new", WriteMode::default()).unwrap();
    assert_eq!(fs.getxattr(ino, CAPABILITY), Err(vfs::Error::NoAttribute));
    assert_eq!(fs.statfs().unwrap().inodes_free, free);
    fs.unmount().unwrap();
    clean(&device, "values");
}
