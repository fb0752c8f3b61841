//! Inodes are evicted, and promises about them are kept.

use std::sync::Arc;

use sapwood_base::Resident as _;
use sapwood_block::{Device, MemoryDevice};
use sapwood_vfs::front::InodeTable as _;
use sapwood_vfs::{FileSystem, Ino, SyncKind, WriteMode};

use crate::oracles::{MIB, file};
use crate::{Ext4, Options, data};

/// Size of the table's objects, in bytes.
const BOUND: usize = 1 << 20;
/// Files that take more than the table keeps, several times.
const MANY: usize = 6000;

fn mount() -> Ext4 {
    let device = Arc::new(MemoryDevice::new(256 * MIB));
    crate::mkfs::mkfs(&*device, &crate::mkfs::MkfsOptions::default()).unwrap();
    let options = Options {
        background: false,
        inode_bytes: BOUND,
        ..Options::default()
    };
    let device: Arc<dyn Device> = device;
    Ext4::open(device, options).unwrap()
}

/// Makes files that no caller refers to.
fn crowd_out(fs: &Ext4) {
    for nth in 0..MANY {
        let ino = file(fs, &format!("crowd-{nth}"));
        fs.forget(ino, 1);
    }
}

fn in_memory(fs: &Ext4, ino: Ino) -> bool {
    let all = fs.engine.inodes.all();
    all.iter().any(|inode| inode.number() == ino)
}

#[test]
fn an_fsync_of_an_inode_that_left_memory_waits_for_its_last_change() {
    let fs = mount();
    let ino = file(&fs, "changed");
    let tid = fs.inode(ino).unwrap().sync_tid();
    crowd_out(&fs);
    assert!(!in_memory(&fs, ino), "it is to leave");
    assert!(fs.engine.journal.durable_tid() < tid);
    fs.fsync(ino, SyncKind::All).unwrap();
    assert!(fs.engine.journal.durable_tid() >= tid);
    fs.unmount().unwrap();
}

#[test]
fn an_inode_whose_overwrites_wait_for_a_flush_stays() {
    let fs = mount();
    let ino = file(&fs, "overwritten");
    for byte in [7, 8] {
        fs.write(ino, 0, &[byte; 4096], WriteMode::default())
            .unwrap();
        fs.fsync(ino, SyncKind::All).unwrap();
    }
    let inode = fs.inode(ino).unwrap();
    {
        let _io = inode.io.write();
        data::write(&fs.engine, &inode, 0, [9; 4096][..].into(), false).unwrap();
    }
    data::flush(&fs.engine, &inode).unwrap();
    assert!(!inode.may_leave());
    fs.fsync(ino, SyncKind::Data).unwrap();
    fs.sync().unwrap();
    assert!(inode.may_leave());
    drop(inode);
    fs.unmount().unwrap();
}

#[test]
fn inodes_take_no_more_than_their_bound_though_all_were_read() {
    let fs = mount();
    let inos: Vec<Ino> = (0..MANY)
        .map(|nth| {
            let ino = file(&fs, &nth.to_string());
            fs.write(ino, 0, b"content", WriteMode::default()).unwrap();
            ino
        })
        .collect();
    fs.sync().unwrap();
    for ino in &inos {
        // The access time changes without a handle.
        fs.read(*ino, 0, &mut [0]).unwrap();
    }
    assert!(fs.engine.inodes.bytes() > BOUND);
    fs.engine.inodes.relieve(&fs.engine).unwrap();
    let bytes = fs.engine.inodes.bytes();
    assert!(bytes <= BOUND / 8 * 9, "{bytes}");
    // All are referred to, and the kernel is asked to give most of them back.
    let crowd = fs.engine.inodes.crowd();
    assert!(inos.iter().all(|ino| fs.getattr(*ino).is_ok()));
    for ino in &crowd {
        fs.forget(*ino, 1);
    }
    fs.unmount().unwrap();
}
