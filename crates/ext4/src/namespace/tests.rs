//! The deletion of inodes, judged by `e2fsck`.

use std::sync::Arc;

use sapwood_ext4_format::InodeFlags;
use sapwood_testing::{CountDevice, GateDevice, RequestKind};
use sapwood_vfs::front::InodeTable as _;
use sapwood_vfs::rules::CAPABILITY;
use sapwood_vfs::{self as vfs, FileSystem, SetAttr, SetXattrMode, WriteMode};

use crate::Ext4;
use crate::inode::Inode;
use crate::oracles::{MIB, TOOLS, clean, file, image, left_out, open as mount};

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
    if left_out(TOOLS) {
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
    // The number is free for another inode.
    assert_eq!(file(&fs, "next"), ino);
    fs.unmount().unwrap();
    clean(&device, "empty");
}

#[test]
fn a_held_or_filled_inode_is_deleted_as_an_orphan() {
    if left_out(TOOLS) {
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
    if left_out(TOOLS) {
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

/// No operation reaches an inode that only the file system itself uses through a directory entry.
#[test]
fn inodes_of_the_file_systems_own_have_no_name() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096 -O ea_inode,orphan_file");
    let fs = mount(&device);
    let ino = file(&fs, "owner");
    let value = [5; 9000];
    fs.setxattr(ino, b"user.large", &value, SetXattrMode::Any)
        .unwrap();
    let mut all = fs.engine.inodes.all().into_iter();
    let holds = |inode: &Arc<Inode>| inode.flags().contains(InodeFlags::EA_INODE);
    let held = all.find(holds).unwrap().ino;
    let orphans = fs.engine.super_block.lock().orphan_file_inum.get();
    fs.unmount().unwrap();
    let cases = [held, orphans, 7, 8, 1];
    let plant = cases.map(|ino| format!("ln <{ino}> /n{ino}")).join("\n");
    let device = crate::oracles::debugfs_only(&device, &plant);
    let fs = mount(&device);
    let root = fs.root();
    let corrupt = |what: &str, result: vfs::Result<()>| {
        assert!(
            matches!(result, Err(vfs::Error::Corrupt(_))),
            "{what}: {result:?}"
        );
    };
    for number in cases {
        let (name, ino) = (format!("n{number}"), vfs::Ino(number.into()));
        let name = name.as_bytes();
        corrupt("lookup", fs.lookup(root, name).map(drop));
        corrupt("unlink", fs.unlink(root, name));
        corrupt(
            "rename",
            fs.rename(root, name, root, b"x", vfs::RenameMode::Replace),
        );
        let over = fs.rename(root, b"owner", root, name, vfs::RenameMode::Replace);
        corrupt("rename over", over);
        let by_number = fs.reference(ino).map(drop);
        if number == held {
            corrupt("reference", by_number);
            corrupt(
                "write",
                fs.write(ino, 0, b"x", WriteMode::default()).map(drop),
            );
        } else {
            assert_eq!(by_number, Err(vfs::Error::Stale), "{number}");
        }
    }
    let owner = fs.lookup(root, b"owner").unwrap().ino();
    assert_eq!(fs.getxattr(owner, b"user.large").unwrap(), value);
    fs.unmount().unwrap();
}

#[test]
fn a_dead_inode_of_the_same_number_is_not_what_the_name_leads_to() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096");
    let fs = mount(&device);
    let root = fs.inode(fs.root()).unwrap();
    let first = file(&fs, "a");
    // Like a rename that looked the name up before it takes the locks.
    let dead = fs.inode(first).unwrap();
    fs.forget(first, 1);
    fs.unlink(fs.root(), b"a").unwrap();
    let second = file(&fs, "a");
    assert_eq!(first, second, "the number is used again");
    let alive = fs.inode(second).unwrap();
    let leads_to = |inode| super::remove::leads_to(&fs.engine, &root, b"a", inode).unwrap();
    assert!(!leads_to(&dead));
    assert!(leads_to(&alive));
}

#[test]
fn an_fsync_stores_the_access_time() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096");
    let fs = mount(&device);
    let ino = file(&fs, "a");
    fs.write(ino, 0, &[7; 10], WriteMode::default()).unwrap();
    let old = vfs::SetTime::To(vfs::Timestamp { sec: 1000, nsec: 0 });
    let changes = SetAttr {
        atime: Some(old),
        ..SetAttr::default()
    };
    fs.setattr(ino, &changes).unwrap();
    fs.sync().unwrap();
    fs.read(ino, 0, &mut [0; 10]).unwrap();
    let seen = fs.getattr(ino).unwrap().atime;
    assert!(seen.sec > 1000);
    fs.fsync(ino, vfs::SyncKind::All).unwrap();
    let after = mount(&Arc::new(device.snapshot()));
    assert_eq!(after.getattr(ino).unwrap().atime, seen);
}

#[test]
fn an_fsync_makes_the_size_durable_and_the_time_with_it() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096");
    let fs = mount(&device);
    let ino = file(&fs, "a");
    let old = vfs::SetTime::To(vfs::Timestamp { sec: 1000, nsec: 0 });
    let changes = SetAttr {
        mtime: Some(old),
        ..SetAttr::default()
    };
    fs.setattr(ino, &changes).unwrap();
    fs.sync().unwrap();
    fs.write(ino, 0, &[7; 5000], WriteMode::default()).unwrap();
    fs.fsync(ino, vfs::SyncKind::All).unwrap();
    let seen = fs.getattr(ino).unwrap();
    assert!(seen.mtime.sec > 1000);
    let after = mount(&Arc::new(device.snapshot()));
    let found = after.getattr(ino).unwrap();
    assert_eq!((found.size, found.mtime), (5000, seen.mtime));
}

#[test]
fn an_fsync_of_what_was_overwritten_in_place_flushes_the_device() {
    if left_out(TOOLS) {
        return;
    }
    let device = Arc::new(CountDevice::new(image(16 * MIB, "-b 4096").snapshot()));
    let options = crate::Options {
        background: false,
        ..crate::Options::default()
    };
    let fs = Ext4::open(device.clone(), options).unwrap();
    let ino = file(&fs, "a");
    fs.write(ino, 0, &[7; 4096], WriteMode::default()).unwrap();
    fs.fsync(ino, vfs::SyncKind::All).unwrap();
    fs.write(ino, 0, &[8; 4096], WriteMode::default()).unwrap();
    // The times are durable: only the data is left.
    fs.fsync(ino, vfs::SyncKind::All).unwrap();
    let inode = fs.inode(ino).unwrap();
    {
        let _io = inode.io.write();
        crate::data::write(&fs.engine, &inode, 0, [9; 4096][..].into(), false).unwrap();
    }
    let before = device.counts().flushes;
    fs.fsync(ino, vfs::SyncKind::Data).unwrap();
    assert_eq!(device.counts().flushes, before + 1);
}

#[test]
fn an_fsync_that_waits_for_a_commit_flushes_what_was_overwritten_meanwhile() {
    if left_out(TOOLS) {
        return;
    }
    let memory = CountDevice::new(image(16 * MIB, "-b 4096").snapshot());
    let gate = Arc::new(GateDevice::new(memory));
    let options = crate::Options {
        background: false,
        ..crate::Options::default()
    };
    let fs = Ext4::open(gate.clone(), options).unwrap();
    let (a, b) = (file(&fs, "a"), file(&fs, "b"));
    fs.write(a, 0, &[7; 4096], WriteMode::default()).unwrap();
    fs.sync().unwrap();
    let longer = vfs::SetAttr {
        size: Some(9000),
        ..vfs::SetAttr::default()
    };
    fs.setattr(a, &longer).unwrap();
    fs.setattr(b, &longer).unwrap();
    fs.write(a, 0, &[8; 4096], WriteMode::default()).unwrap();
    gate.hold_if(|request| request.kind == RequestKind::Fua);
    std::thread::scope(|scope| {
        scope.spawn(|| fs.fsync(b, vfs::SyncKind::All).unwrap());
        // The commit block: the flush of the commit is over.
        gate.wait_held(1);
        let before = gate.inner().counts().flushes;
        let waits = scope.spawn(|| fs.fsync(a, vfs::SyncKind::Data).unwrap());
        while fs.engine.journal.waiting() < 1 {
            std::thread::yield_now();
        }
        gate.open();
        waits.join().unwrap();
        assert!(gate.inner().counts().flushes > before);
    });
}

/// The text of the panic that `work` ends with.
#[cfg(debug_assertions)]
fn panic_of(work: impl FnOnce() + Send) -> String {
    let ended = std::thread::scope(|scope| scope.spawn(work).join());
    let text = ended.unwrap_err();
    text.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
#[cfg(debug_assertions)]
fn locks_of_the_engine_and_the_journal_have_one_order() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 4096");
    let fs = mount(&device);
    let root = fs.inode(fs.root()).unwrap();
    let start = panic_of(|| {
        let _map = root.map.read();
        let _ = fs.engine.start(1);
    });
    assert!(start.contains("may wait here"), "{start}");
    let inversion = panic_of(|| {
        let buffer = fs.engine.block(fs.engine.geometry.super_block()).unwrap();
        let h = fs.engine.start(1).unwrap();
        let _content = h.modify(&buffer).unwrap();
        let _state = root.state.lock();
    });
    assert!(inversion.contains("lock order"), "{inversion}");
}
