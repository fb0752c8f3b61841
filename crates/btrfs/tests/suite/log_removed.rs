//! An fsync of an inode without names makes the removal durable. Additions to the log by a link of
//! a logged inode.

use crate::small::Small;
use sapwood_vfs::{Credentials, FileSystem, Ino, RenameMode, SyncKind};

/// Removes the last name of an inode that a caller has open.
fn unlink_open(fs: &Small, path: &str) -> Ino {
    let ino = fs.ino(path);
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    fs.fs.unlink(fs.ino(dir), name.as_bytes()).unwrap();
    ino
}

fn fsync(fs: &Small, ino: Ino) {
    fs.fs.fsync(ino, SyncKind::All).unwrap();
}

/// No fsync needed a commit: only the test committed.
fn only_logged(fs: &Small, commits: u64) {
    assert_eq!(fs.counter("commits"), commits);
}

#[test]
fn a_removed_file_of_the_last_commit_does_not_come_back() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.sync();
    let ino = unlink_open(&fs, "a");
    assert_eq!(fs.cut().names(""), ["a"]);
    fsync(&fs, ino);
    assert_eq!(fs.cut().names(""), [""; 0]);
    only_logged(&fs, 1);
}

#[test]
fn a_removed_file_of_the_log_does_not_come_back() {
    for committed in [false, true] {
        let fs = Small::new();
        fs.write("a", b"1");
        if committed {
            fs.sync();
            fs.write("a", b"22");
        }
        fs.fsync("a");
        let ino = unlink_open(&fs, "a");
        assert_eq!(fs.cut().names(""), ["a"]);
        fsync(&fs, ino);
        assert_eq!(fs.cut().names(""), [""; 0]);
        only_logged(&fs, committed.into());
    }
}

#[test]
fn all_names_of_a_removed_file_stay_away() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.write("a", b"1");
    fs.link("a", "b");
    fs.link("a", "d/c");
    fs.sync();
    fs.fsync("a");
    for name in ["a", "d/c"] {
        unlink_open(&fs, name);
    }
    let ino = unlink_open(&fs, "b");
    fsync(&fs, ino);
    let after = fs.cut();
    assert_eq!(after.names(""), ["d"]);
    assert_eq!(after.names("d"), [""; 0]);
    only_logged(&fs, 1);
}

#[test]
fn a_replaced_file_brings_what_replaced_it() {
    let fs = Small::new();
    fs.write("a", b"old");
    fs.sync();
    let ino = fs.ino("a");
    fs.write("b", b"");
    fs.rename("b", "a", RenameMode::Replace);
    fsync(&fs, ino);
    let after = fs.cut();
    assert_eq!(after.names(""), ["a"]);
    assert_ne!(after.content("a"), b"old");
    only_logged(&fs, 1);
}

#[test]
fn a_removed_directory_does_not_come_back() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.mkdir("e");
    fs.write("e/f", b"moved");
    fs.sync();
    let ino = fs.ino("d");
    fs.fs.rmdir(fs.fs.root(), b"d").unwrap();
    fsync(&fs, ino);
    assert_eq!(fs.cut().names(""), ["e"]);
    only_logged(&fs, 1);
    let ino = fs.ino("e");
    fs.rename("e/f", "f", RenameMode::Replace);
    fs.fs.rmdir(fs.fs.root(), b"e").unwrap();
    fsync(&fs, ino);
    let after = fs.cut();
    assert_eq!(after.names(""), ["f"]);
    assert_eq!(after.content("f"), b"moved");
    assert_eq!(fs.counter("full_fsyncs_replaced_directory"), 1);
}

#[test]
fn an_fsync_without_a_name_costs_nothing_if_none_can_come_back() {
    let fs = Small::new();
    fs.write("kept", b"1");
    fs.sync();
    let empty = || (fs.counter("empty_fsyncs"), fs.counter("fsync_bytes"));
    let born = fs.fs.tmpfile(&Credentials::ROOT, fs.fs.root(), 0o600);
    let born = born.unwrap().ino();
    fsync(&fs, born);
    fs.write("a", b"1");
    let new = unlink_open(&fs, "a");
    fsync(&fs, new);
    assert_eq!(empty(), (2, 0));
    let old = unlink_open(&fs, "kept");
    fsync(&fs, old);
    let bytes = fs.counter("fsync_bytes");
    assert!(bytes > 0);
    fsync(&fs, old);
    assert_eq!(empty(), (2, bytes));
    fs.sync();
    fsync(&fs, old);
    assert_eq!(empty(), (3, bytes));
}

#[test]
fn a_link_of_a_logged_file_is_durable_with_the_next_fsync() {
    for committed in [false, true] {
        let fs = Small::new();
        fs.write("a", b"1");
        fs.set_xattr("a", "user.x", b"1");
        fs.set_xattr("a", "user.y", b"1");
        if committed {
            fs.sync();
            fs.write("a", b"2");
        }
        fs.fsync("a");
        fs.remove_xattr("a", "user.x");
        fs.link("a", "b");
        fs.write("q", b"");
        assert_eq!(fs.cut().names(""), ["a"]);
        fs.fsync("q");
        let after = fs.cut();
        assert_eq!(after.names(""), ["a", "b", "q"]);
        assert_eq!(after.xattrs("b"), ["user.y"]);
        assert_eq!(after.content("b"), fs.content("a"));
        only_logged(&fs, committed.into());
    }
}

#[test]
fn a_link_does_not_bring_content_that_was_not_synced() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.fsync("a");
    fs.write("a", b"longer");
    fs.set_xattr("a", "user.x", b"1");
    fs.link("a", "b");
    fs.write("q", b"");
    fs.fsync("q");
    let after = fs.cut();
    assert_eq!(after.content("b"), b"1");
    assert_eq!(after.xattrs("b"), ["user.x"]);
}
