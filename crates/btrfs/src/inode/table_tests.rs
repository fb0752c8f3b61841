//! Inodes are evicted while a caller refers to them, without a visible effect.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sapwood_block::{Device, MemoryDevice};
use sapwood_vfs::front::InodeTable as _;
use sapwood_vfs::{self as vfs, Credentials, FileSystem, Ino, NewInode, Subvolumes, WriteMode};

use crate::mkfs::{MkfsOptions, mkfs};
use crate::{Btrfs, Options};

/// Size of the table's objects, in bytes.
const BOUND: usize = 4 << 20;
/// Several times the number that the table keeps: eviction spares a recently used inode once.
const MANY: usize = 20_000;

fn mount() -> Btrfs {
    let device = Arc::new(MemoryDevice::new(2 << 30));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let options = Options {
        background: false,
        inode_bytes: BOUND,
        ..Options::default()
    };
    let devices: Vec<Arc<dyn Device>> = vec![device];
    Btrfs::open(devices, options).unwrap()
}

fn file(fs: &Btrfs, dir: Ino, name: &str) -> Ino {
    let made = fs.create(
        &Credentials::ROOT,
        dir,
        name.as_bytes(),
        NewInode::Regular,
        0o644,
    );
    made.unwrap().ino()
}

/// Makes enough files in `dir` that others are evicted; no caller refers to these.
fn crowd_out(fs: &Btrfs, dir: Ino) {
    for i in 0..MANY {
        let ino = file(fs, dir, &format!("crowd-{i}"));
        fs.forget(ino, 1);
        if i % 2000 == 0 {
            fs.sync().unwrap();
        }
    }
}

fn in_memory(fs: &Btrfs, ino: Ino) -> bool {
    let inodes = &fs.engine.inodes;
    let (tree, objectid) = inodes.numbers().key(ino).unwrap();
    inodes
        .all()
        .iter()
        .any(|i| i.lock_key() == (tree, objectid))
}

#[test]
fn a_transaction_with_very_many_inodes_is_committed_by_the_next_operation() {
    let fs = mount();
    let before = fs.engine.last_committed();
    for i in 0..8 * BOUND / 2048 {
        let ino = file(&fs, fs.root(), &i.to_string());
        // Its item is in the tree already, and changes again with the commit.
        let changes = vfs::SetAttr {
            perm: Some(0o600),
            ..vfs::SetAttr::default()
        };
        fs.setattr(ino, &changes).unwrap();
        fs.forget(ino, 1);
    }
    assert!(fs.engine.last_committed() >= before + 4);
    fs.sync().unwrap();
    fs.engine.inodes.trim();
    let bytes = fs.engine.inodes.bytes();
    assert!(bytes <= BOUND, "{bytes}");
    fs.unmount().unwrap();
}

#[test]
fn a_referenced_inode_leaves_memory_and_comes_back() {
    let fs = mount();
    let kept = file(&fs, fs.root(), "kept");
    fs.write(kept, 0, b"content", WriteMode::default()).unwrap();
    let nameless = file(&fs, fs.root(), "nameless");
    fs.unlink(fs.root(), b"nameless").unwrap();
    crowd_out(&fs, fs.root());
    assert!(fs.engine.inodes.all().len() < MANY);
    assert!(!in_memory(&fs, kept));
    assert!(in_memory(&fs, nameless));

    // It loses its last name while it is evicted: its deletion waits for the reference.
    fs.unlink(fs.root(), b"kept").unwrap();
    let mut bytes = [0; 7];
    assert_eq!(fs.read(kept, 0, &mut bytes), Ok(7));
    assert_eq!(&bytes, b"content");
    fs.forget(kept, 1);
    assert_eq!(fs.getattr(kept).unwrap_err(), vfs::Error::Stale);
    fs.forget(nameless, 1);
    assert_eq!(fs.getattr(nameless).unwrap_err(), vfs::Error::Stale);
    fs.unmount().unwrap();
}

#[test]
fn references_are_given_back_to_one_that_is_away() {
    let fs = mount();
    let kept = file(&fs, fs.root(), "kept");
    fs.reference(kept).unwrap();
    crowd_out(&fs, fs.root());
    assert!(!in_memory(&fs, kept));
    fs.forget(kept, 1);
    fs.unlink(fs.root(), b"kept").unwrap();
    assert!(fs.getattr(kept).is_ok());
    fs.forget(kept, 1);
    assert_eq!(fs.getattr(kept).unwrap_err(), vfs::Error::Stale);
    fs.unmount().unwrap();
}

#[test]
fn a_deleted_subvolume_stays_while_somebody_refers_to_what_is_away() {
    let fs = mount();
    let top = fs.create_subvolume(fs.root(), b"sub").unwrap().ino();
    let kept = file(&fs, top, "kept");
    fs.write(kept, 0, b"content", WriteMode::default()).unwrap();
    fs.forget(top, 1);
    crowd_out(&fs, fs.root());
    assert!(!in_memory(&fs, kept));
    fs.delete_subvolume(fs.root(), b"sub").unwrap();
    assert!(!fs.finish_cleaning());
    let mut bytes = [0; 7];
    assert_eq!(fs.read(kept, 0, &mut bytes), Ok(7));
    assert!(!fs.finish_cleaning());
    fs.forget(kept, 1);
    assert!(fs.finish_cleaning());
    assert_eq!(fs.getattr(kept).unwrap_err(), vfs::Error::Stale);
    fs.unmount().unwrap();
}

/// Without an object, a thread that found the items would load a second one, and the state of one
/// of the two would be lost.
#[test]
fn a_new_inode_is_in_memory_before_its_items_are_in_the_tree() {
    let fs = Arc::new(mount());
    let before = file(&fs, fs.root(), "before");
    let (tree, objectid) = fs.engine.inodes.numbers().key(before).unwrap();
    let root = fs.engine.roots.get(tree).unwrap();
    // After a commit the top block must be copied. So nothing gets into the tree, but everything
    // can be read.
    fs.sync().unwrap();
    let held = root.hold_node();
    let creator = {
        let fs = Arc::clone(&fs);
        thread::spawn(move || file(&fs, fs.root(), "new"))
    };
    let end = Instant::now() + Duration::from_secs(60);
    while fs.engine.inodes.peek(tree, objectid + 1).is_none() {
        assert!(Instant::now() < end, "it is written before it is in memory");
        thread::yield_now();
    }
    assert!(!creator.is_finished());
    drop(held);
    let made = creator.join().unwrap();
    assert_eq!(
        fs.engine.inodes.numbers().key(made),
        Some((tree, objectid + 1))
    );
    assert_eq!(fs.lookup(fs.root(), b"new").unwrap().ino(), made);
    fs.unmount().unwrap();
}
