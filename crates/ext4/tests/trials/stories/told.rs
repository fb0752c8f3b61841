//! The scenarios: changes and the kind of each fsync.

use sapwood_vfs::{AllocMode, Credentials, FileSystem, NewInode, RenameMode, SyncKind};

use super::Story;

const KEEP: AllocMode = AllocMode::Allocate { keep_size: true };
const GROW: AllocMode = AllocMode::Allocate { keep_size: false };

/// The name of a scenario, and its changes.
type Told = (&'static str, fn(&Story));

/// All scenarios.
pub const STORIES: &[Told] = &[
    ("overwrite", |s| {
        s.write("a", 4096, 4096, 2);
        s.fast("a");
        s.nothing("a");
        s.write("a", 100, 10, 3);
        s.fast("a");
    }),
    ("append", |s| {
        for seed in 0..20 {
            s.append("b", 1000 * seed as usize + 1, seed);
            s.fast("b");
        }
    }),
    ("create", |s| {
        s.create("e/x");
        s.write("e/x", 0, 70_000, 5);
        s.fast("e/x");
        s.nothing("e");
        s.create("e/y");
        s.fast("e");
        s.nothing("e/y");
    }),
    ("all_kinds", |s| {
        s.make("e/link", NewInode::Symlink(b"../a"));
        s.whole("e", "special_file");
        s.make("e/fifo", NewInode::Fifo);
        s.whole("e", "special_file");
        s.make("e/char", NewInode::CharDevice(0x103));
        s.make("e/block", NewInode::BlockDevice(0x700));
        s.whole("e", "special_file");
        s.chmod("e/fifo", 0o600);
        s.whole("e/fifo", "special_file");
        s.rename("e/link", "d/link");
        s.whole("d", "special_file");
    }),
    ("others_are_carried", |s| {
        s.create("e/x");
        s.append("d/b", 30_000, 3);
        s.fs.fsync(s.find("d/b"), SyncKind::Data).unwrap();
        s.append("a", 1, 3);
        s.fast("a");
        s.nothing("e/x");
    }),
    ("what_comes_afterwards_is_not", |s| {
        s.append("a", 10_000, 3);
        s.fast("a");
        s.create("e/x");
        s.append("d/b", 10_000, 3);
        s.unlink("d/a");
    }),
    ("attributes", |s| {
        s.chmod("a", 0o4711);
        s.fast("a");
        s.set_attribute("a", 5);
        s.whole("a", "xattrs");
        s.append("a", 5000, 1);
        if s.small_inodes {
            s.whole("a", "xattrs")
        } else {
            s.fast("a")
        }
        s.chmod("d", 0o700);
        s.whole("d", "operation");
    }),
    ("attributes_in_a_block", |s| {
        s.set_attribute("a", 600);
        s.whole("a", "xattrs");
        s.append("a", 5000, 1);
        s.whole("a", "xattrs");
        s.append("b", 5000, 1);
        s.fast("b");
        s.append("a", 5000, 2);
        s.whole("a", "xattrs");
        s.fs.removexattr(s.find("a"), b"user.x").unwrap();
        s.whole("a", "xattrs");
        s.append("a", 5000, 3);
        s.fast("a");
    }),
    ("holes", |s| {
        s.write("a", 100_000, 10, 2);
        s.fast("a");
        s.allocate("a", 8192, 4096, AllocMode::PunchHole);
        s.fast("a");
        s.write("a", 9000, 100, 3);
        s.fast("a");
    }),
    ("unwritten", |s| {
        s.allocate("a", 40_960, 40_960, GROW);
        s.fast("a");
        s.write("a", 50_000, 9000, 4);
        s.fast("a");
        s.allocate("b", 4096, 40_960, KEEP);
        s.append("b", 6000, 4);
        s.fast("b");
        s.allocate("a", 8192, 8192, AllocMode::ZeroRange { keep_size: true });
        s.whole("a", "moved");
    }),
    ("moved", |s| {
        s.allocate("d/b", 8192, 8192, AllocMode::CollapseRange);
        s.whole("d/b", "moved");
        s.append("d/b", 8192, 7);
        s.fast("d/b");
        s.allocate("d/b", 8192, 8192, AllocMode::InsertRange);
        s.whole("d/b", "moved");
    }),
    ("truncate", |s| {
        s.truncate("d/b", 10_000);
        s.fast("d/b");
        s.truncate("d/b", 0);
        s.append("d/b", 30_000, 9);
        s.fast("d/b");
        s.truncate("d/b", 100_000);
        s.truncate("d/b", 25_000);
        s.truncate("d/b", 26_000);
        s.fast("d/b");
    }),
    ("link", |s| {
        s.link("a", "e/a");
        s.fast("a");
        s.create("e/x");
        s.link("e/x", "d/x");
        s.link("e/x", "d/y");
        s.fast("e/x");
        s.unlink("e/x");
        s.fast("d/y");
    }),
    ("unlink", |s| {
        s.unlink("a");
        s.fast("");
        s.unlink("d/a");
        s.unlink("d/b");
        s.append("b", 20_000, 6);
        s.fast("b");
    }),
    ("came_and_went", |s| {
        s.create("e/x");
        s.append("e/x", 20_000, 1);
        s.unlink("e/x");
        s.append("b", 10, 1);
        s.fast("b");
        s.create("e/y");
        s.append("e/y", 20_000, 1);
        s.fast("e/y");
        s.unlink("e/y");
        s.fast("e");
    }),
    ("the_same_name_again", |s| {
        s.create("e/x");
        s.append("e/x", 5000, 1);
        s.fast("e/x");
        s.link("e/x", "e/kept");
        s.unlink("e/x");
        s.create("e/x");
        s.append("e/x", 7000, 2);
        s.fast("e/x");
        s.unlink("e/x");
        s.link("a", "e/x");
        s.fast("e");
    }),
    ("the_same_number_again", |s| {
        // Numbers that were freed just now come last.
        for _ in 0..2500 {
            s.create("e/x");
            s.unlink("e/x");
        }
        s.create("e/x");
        s.append("e/x", 5000, 3);
        s.whole("e/x", "inode_reused");
    }),
    ("rename", |s| {
        s.rename("a", "e/a");
        s.fast("e/a");
        s.rename("e/a", "a");
        s.rename("b", "d/c");
        s.fast("");
        s.rename("d/c", "d/a");
        s.fast("d/a");
        s.rename("d", "e/d");
        s.whole("e/d", "operation");
    }),
    ("replace_by_rename", |s| {
        for seed in 0..8 {
            s.create("d/new");
            s.append("d/new", 5000 + 100 * seed as usize, seed);
            s.fs.fsync(s.find("d/new"), SyncKind::All).unwrap();
            s.rename("d/new", "d/a");
            s.sync("d");
        }
    }),
    ("exchange", |s| {
        let (root, d) = (s.fs.root(), s.find("d"));
        s.fs.rename(root, b"a", d, b"a", RenameMode::Exchange)
            .unwrap();
        s.whole("a", "operation");
    }),
    ("whiteout", |s| {
        let leaving = RenameMode::Whiteout {
            who: Credentials::ROOT,
            replace: true,
        };
        let (root, d) = (s.fs.root(), s.find("d"));
        s.fs.rename(root, b"a", d, b"a", leaving).unwrap();
        s.whole("d/a", "operation");
        s.fs.rename(d, b"b", d, b"c", leaving).unwrap();
        s.whole("d", "operation");
    }),
    ("directories", |s| {
        s.mkdir("e/x");
        s.whole("e/x", "directory");
        s.create("e/x/y");
        s.fast("e/x/y");
        s.unlink("e/x/y");
        s.fs.rmdir(s.find("e"), b"x").unwrap();
        s.whole("e", "operation");
    }),
    ("a_directory_grows", |s| {
        for n in 0..60 {
            s.create(&format!("e/{n}{}", "x".repeat(100)));
            s.sync("e");
        }
        assert!(s.counter("fast_commit_whole_directory") > 0);
        assert!(s.counter("fast_commit_commits") > 10);
    }),
    ("the_area_is_full", |s| {
        let blocks = 2 * s.counter("fast_commit_area_blocks");
        for seed in 0..blocks {
            s.write("a", 4096 * (seed % 4), 4096, seed);
            s.sync("a");
        }
        assert!(s.counter("fast_commit_whole_area") > 0);
    }),
    ("many_at_once", |s| {
        for n in 0..25 {
            s.create(&format!("e/{n}"));
        }
        s.append("e/7", 100_000, 7);
        s.fast("e/7");
    }),
    ("after_a_commit", |s| {
        s.append("a", 3000, 2);
        s.fast("a");
        s.append("b", 3000, 2);
        s.fs.sync().unwrap();
        s.append("a", 3000, 3);
        s.fast("a");
        s.nothing("b");
    }),
    ("without_a_name", |s| {
        let made =
            s.fs.tmpfile(&Credentials::ROOT, s.find("e"), 0o600)
                .unwrap();
        s.append("a", 3000, 2);
        s.whole("a", "operation");
        let entry = s.fs.link(made.ino(), s.find("e"), b"x").unwrap();
        s.fs.forget(entry.ino(), 2);
        s.whole("e/x", "orphan");
    }),
    ("unlinked_and_open", |s| {
        let ino = s.find("d/b");
        s.fs.reference(ino).unwrap();
        s.unlink("d/b");
        s.fast("d");
        s.fs.write(ino, 0, &[7; 10_000], Default::default())
            .unwrap();
        s.fs.fsync(ino, SyncKind::All).unwrap();
        s.append("a", 10, 1);
        s.fast("a");
        s.fs.forget(ino, 1);
        s.append("a", 10, 1);
        s.fast("a");
    }),
    ("unlinked_and_open_for_long", |s| {
        let ino = s.find("d/b");
        s.fs.reference(ino).unwrap();
        s.unlink("d/b");
        s.fs.sync().unwrap();
        s.append("a", 10, 1);
        s.fast("a");
        s.fs.forget(ino, 1);
        s.append("a", 10, 1);
        s.fast("a");
    }),
    ("unlinked_in_groups_just_begun", |s| {
        let dirs: Vec<String> = (0..12).map(|n| format!("dir{n}")).collect();
        let mut held = Vec::new();
        for dir in &dirs {
            s.mkdir(dir);
            s.create(&format!("{dir}/f"));
            s.write(&format!("{dir}/f"), 0, 3000, 1);
        }
        s.fs.sync().unwrap();
        for dir in &dirs {
            let ino = s.find(&format!("{dir}/f"));
            s.fs.reference(ino).unwrap();
            held.push(ino);
            s.unlink(&format!("{dir}/f"));
        }
        s.fs.sync().unwrap();
        s.append("a", 10, 1);
        s.fast("a");
        for ino in held {
            s.fs.forget(ino, 1);
        }
    }),
];
