use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode};

use super::claim::search;
use super::*;
use crate::Ext4;
use crate::Options;
use crate::group::Recent;
use crate::oracles::{self, MIB, TOOLS, clean, dumped, image, image_on_garbage, left_out};

fn mount(device: &Arc<MemoryDevice>) -> Ext4 {
    let options = Options {
        background: false,
        ..Options::default()
    };
    Ext4::open(device.clone(), options).unwrap()
}

fn make(fs: &Ext4, dir: Ino, name: &str, what: NewInode<'_>) -> Ino {
    let entry = fs
        .create(&Credentials::ROOT, dir, name.as_bytes(), what, 0o755)
        .unwrap();
    entry.attr.ino
}

fn counter(fs: &Ext4, name: &str) -> u64 {
    let all = fs.engine.counters.inode_alloc.all();
    all.iter()
        .find(|(known, _)| *known == name)
        .map(|(_, value)| *value)
        .unwrap()
}

fn group_of(fs: &Ext4, ino: Ino) -> u32 {
    let ino = u32::try_from(ino.0).unwrap();
    fs.engine.geometry.inode_location(ino).unwrap().0
}

/// An allocator without an engine's other parts.
fn allocator(fs: &Ext4) -> Allocator<'_> {
    Allocator {
        groups: &fs.engine.groups,
        counters: &fs.engine.counters.inode_alloc,
        avoid_recent: avoids_recent(&fs.engine),
        now: 0,
    }
}

fn wish(parent: u32) -> Wish {
    Wish {
        parent,
        parent_group: 0,
        directory: false,
        dense: false,
        top: false,
    }
}

#[test]
fn threads_with_directories_of_their_own_leave_a_clean_image() {
    if left_out(TOOLS) {
        return;
    }
    for args in [
        "-b 4096",
        "-b 1024 -O ^has_journal -N 3000",
        "-b 1024 -O ^flex_bg",
        "-b 4096 -O ^has_journal",
        "-b 1024 -t ext2",
        "-b 1024 -t ext3",
    ] {
        let device = image(128 * MIB, args);
        let fs = mount(&device);
        let created = |name: String| {
            let dir = make(&fs, fs.root(), &name, NewInode::Directory);
            let mut inodes = Vec::new();
            for file in 0..40 {
                inodes.push(make(&fs, dir, &format!("f{file}"), NewInode::Regular));
                if file % 4 == 3 {
                    fs.unlink(dir, format!("f{}", file - 1).as_bytes()).unwrap();
                    let gone = inodes.remove(inodes.len() - 2);
                    fs.forget(gone, 1);
                }
            }
            inodes
        };
        let all: Vec<Vec<Ino>> = std::thread::scope(|scope| {
            let created = &created;
            let threads: Vec<_> = (0..8)
                .map(|n| scope.spawn(move || created(format!("d{n}"))))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let distinct: BTreeSet<Ino> = all.iter().flatten().copied().collect();
        assert_eq!(distinct.len(), 8 * 30);
        assert_eq!(counter(&fs, "given"), 8 * 41);
        assert_eq!(counter(&fs, "freed"), 8 * 10);
        assert_eq!(counter(&fs, "lost_races"), counter(&fs, "second_searches"));
        let free = fs.engine.groups.free_inodes();
        fs.close().unwrap();
        let says: u32 = dumped(&device).iter().map(|group| group.free_inodes).sum();
        assert_eq!(says, free);
        clean(&device, args);
    }
}

#[test]
fn a_table_that_was_never_zeroed_is_used_without_gaps() {
    if left_out(TOOLS) {
        return;
    }
    for args in ["-b 1024 -O ^has_journal", "-b 1024"] {
        let device = image_on_garbage(64 * MIB, args);
        let fs = mount(&device);
        for dir in 0..6 {
            let dir = make(&fs, fs.root(), &format!("d{dir}"), NewInode::Directory);
            for file in 0..20 {
                make(&fs, dir, &format!("f{file}"), NewInode::Regular);
            }
        }
        fs.close().unwrap();
        clean(&device, "garbage in the tables");
    }
}

#[test]
fn directories_spread_and_files_stay_with_them() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(256 * MIB, "-b 1024 -G 8 -O ^has_journal");
    let fs = mount(&device);
    let mut flexes = BTreeMap::new();
    let mut dirs = Vec::new();
    for name in 0..8 {
        let dir = make(&fs, fs.root(), &format!("d{name}"), NewInode::Directory);
        let flex = fs.engine.geometry.flex_of_group(group_of(&fs, dir));
        *flexes.entry(flex).or_insert(0) += 1;
        dirs.push(dir);
    }
    // Four flex groups; the first has the root and less free space than the others.
    assert!(
        flexes.len() >= 3 && flexes.values().all(|count| *count <= 3),
        "{flexes:?}"
    );
    let groups: BTreeSet<u32> = dirs.iter().map(|dir| group_of(&fs, *dir)).collect();
    assert_eq!(groups.len(), dirs.len());
    for dir in dirs {
        let file = make(&fs, dir, "file", NewInode::Regular);
        assert_eq!(group_of(&fs, file), group_of(&fs, dir));
        let below = make(&fs, dir, "below", NewInode::Directory);
        let flex = |ino| fs.engine.geometry.flex_of_group(group_of(&fs, ino));
        assert_eq!(flex(below), flex(dir));
        // The inodes of a directory are contiguous.
        let next = make(&fs, dir, "next", NewInode::Regular);
        assert_eq!(next.0, file.0 + 1);
    }
    fs.close().unwrap();
    clean(&device, "spread");
}

#[test]
fn directories_begin_their_search_at_places_of_their_own() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(256 * MIB, "-b 4096 -N 65536 -O ^has_journal");
    let fs = mount(&device);
    let group = fs.engine.groups.group(1).unwrap();
    let inodes = fs.engine.geometry.inodes_per_group();
    let places: BTreeSet<u32> = (100..148)
        .map(|parent| policy::start(group, wish(parent), inodes))
        .collect();
    assert_eq!(places.len(), 48);
    assert!(
        places
            .iter()
            .all(|place| *place < inodes && place % crate::group::WORD == 0)
    );
}

#[test]
fn all_inodes_can_be_had_and_no_more() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(64 * MIB, "-b 1024 -N 200 -O ^has_journal");
    let fs = mount(&device);
    let free = fs.engine.groups.free_inodes();
    let allocator = allocator(&fs);
    let mut all = BTreeSet::new();
    for turn in 0..free {
        let h = fs.engine.start(CREDITS).unwrap();
        let ino = allocator.allocate(&h, wish(turn % 7 + 20)).unwrap();
        assert!(ino >= fs.engine.geometry.first_ino());
        assert!(all.insert(ino), "{ino} twice");
    }
    let h = fs.engine.start(CREDITS).unwrap();
    assert!(matches!(
        allocator.allocate(&h, wish(12)),
        Err(Error::NoSpace)
    ));
    drop(h);
    assert_eq!(fs.engine.groups.free_inodes(), 0);
    for ino in all {
        let h = fs.engine.start(CREDITS).unwrap();
        allocator.free(&h, ino, false).unwrap();
    }
    let overdrafts = fs.engine.journal.counters().list();
    assert!(
        overdrafts
            .iter()
            .all(|(name, count)| *name != "overdrafts" || *count == 0)
    );
    fs.close().unwrap();
    clean(&device, "all freed again");
}

#[test]
fn without_a_journal_a_deleted_inode_waits_and_with_one_it_does_not() {
    if left_out(TOOLS) {
        return;
    }
    for (args, waits) in [("-O ^has_journal", true), ("", false)] {
        let device = image(64 * MIB, args);
        let fs = mount(&device);
        let allocator = allocator(&fs);
        let h = fs.engine.start(CREDITS * 4).unwrap();
        let first = allocator.allocate(&h, wish(12)).unwrap();
        allocator.free(&h, first, false).unwrap();
        let second = allocator.allocate(&h, wish(12)).unwrap();
        assert_eq!(second != first, waits);
        allocator.free(&h, second, false).unwrap();
    }
}

#[test]
fn the_smallest_free_inode_is_searched_behind_full_words() {
    let map = InodeMap::new(&[0; 16], 128);
    let smallest = || search(&map, &(0..128), map.lowest());
    for index in 0..100 {
        assert_eq!(smallest(), Some(index));
        map.set(index, true);
    }
    assert_eq!(map.lowest(), 64);
    map.set(5, false);
    assert_eq!((map.lowest(), smallest()), (0, Some(5)));
    map.set(5, true);
    assert_eq!((map.lowest(), smallest()), (64, Some(100)));
    (100..128).for_each(|index| map.set(index, true));
    assert_eq!((map.lowest(), smallest()), (128, None));
}

#[test]
fn a_deletion_is_forgotten_after_some_seconds() {
    let map = InodeMap::new(&[0; 16], 128);
    let mut recent = Recent::default();
    map.deleted(&mut recent, 3, 100);
    map.deleted(&mut recent, 70, 102);
    map.deleted(&mut recent, 3, 104);
    assert_eq!((map.recent(0), map.recent(1)), (1 << 3, 1 << 6));
    map.forget_older(&mut recent, 105, 5);
    // Deleted again since.
    assert_eq!((map.recent(0), map.recent(1)), (1 << 3, 1 << 6));
    map.forget_older(&mut recent, 107, 5);
    assert_eq!((map.recent(0), map.recent(1)), (1 << 3, 0));
    // A clock that was set back forgets nothing too early.
    map.forget_older(&mut recent, 20, 5);
    map.forget_older(&mut recent, 109, 5);
    assert_eq!(map.recent(0), 0);
}

#[test]
fn what_contradicts_the_bitmap_is_an_error_and_puts_the_group_out_of_use() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(64 * MIB, "-b 1024 -O ^has_journal");
    let fs = mount(&device);
    let allocator = allocator(&fs);
    let h = fs.engine.start(40).unwrap();
    assert!(allocator.free(&h, 2, true).is_err());
    assert!(allocator.free(&h, 0, false).is_err());
    assert!(allocator.free(&h, u32::MAX, false).is_err());
    let ino = allocator.allocate(&h, wish(12)).unwrap();
    assert_eq!(group_of(&fs, Ino(ino.into())), 0);
    allocator.free(&h, ino, false).unwrap();
    assert!(matches!(
        allocator.free(&h, ino, false),
        Err(Error::BadGroup { group: 0, .. })
    ));
    // The next one comes from another group; nothing is freed in this one any more.
    let other = allocator.allocate(&h, wish(12)).unwrap();
    assert_ne!(group_of(&fs, Ino(other.into())), 0);
    allocator.free(&h, ino, false).unwrap();
}

#[test]
fn the_bit_of_a_claim_is_set_in_the_block_that_is_committed() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(64 * MIB, "-b 1024 -O ^has_journal");
    let fs = mount(&device);
    let allocator = allocator(&fs);
    let far = Wish {
        parent_group: 3,
        ..wish(77)
    };
    let h = fs.engine.start(CREDITS).unwrap();
    let ino = allocator.allocate(&h, far).unwrap();
    drop(h);
    fs.engine.journal.commit_and_settle().unwrap();
    let (number, index) = fs.engine.geometry.inode_location(ino).unwrap();
    assert_eq!(number, 3);
    // The group had no inode bitmap: read again, it has its checksum and the bit.
    let engine = oracles::engine(
        &device,
        Options {
            read_only: true,
            ..Options::default()
        },
    );
    let map = engine
        .groups
        .inodes(engine.groups.group(3).unwrap())
        .unwrap();
    assert!(map.is_used(index));
    assert_eq!(map.free(), engine.geometry.inodes_per_group() - 1);
    let says = dumped(&device)[3];
    assert_eq!(says.free_inodes, map.free());
    assert_eq!(
        says.unused_inodes,
        engine.geometry.inodes_per_group() - index - 1
    );
}
