//! What an fsync logs is there after a power cut: one situation after the other, each judged by
//! a replay, by our own view of the tree and by `btrfs check`.
#![allow(clippy::unwrap_used)]

mod common;
mod image;
mod small;

use sapwood_vfs::{FileSystem, RenameMode};
use small::Small;

#[test]
fn a_new_file_has_name_content_and_attributes() {
    let fs = Small::new();
    fs.write("a", b"hello");
    fs.set_xattr("a", "user.k", b"v");
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(after.content("a"), b"hello");
    assert_eq!(after.xattr("a", "user.k"), b"v");
    assert_eq!(fs.counter("fast_fsyncs"), 1);
    assert_eq!(fs.counter("commits"), 0);
}

#[test]
fn large_files_are_logged_with_their_checksums() {
    let fs = Small::new();
    fs.write("a", &vec![7; 300_000]);
    fs.fsync("a");
    fs.write_at("a", 100_000, &vec![8; 50_000]);
    fs.fsync("a");
    fs.write_at("a", 290_000, &vec![9; 20_000]);
    fs.fsync("a");
    let after = fs.cut();
    let mut expected = vec![7; 310_000];
    expected[100_000..150_000].fill(8);
    expected[290_000..].fill(9);
    assert!(after.content("a") == expected);
    assert_eq!(fs.counter("fast_fsyncs"), 3);
    assert_eq!(fs.counter("log_commits"), 3);
}

#[test]
fn what_was_not_synced_is_not_there() {
    let fs = Small::new();
    fs.write("old", b"1");
    fs.sync();
    fs.write("new", b"2");
    fs.write("old", b"3");
    fs.fsync("old");
    let after = fs.cut();
    assert_eq!(after.content("old"), b"3");
    assert_eq!(after.names(""), ["old"]);
}

#[test]
fn a_renamed_file_has_one_name() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.write("d/a", b"1");
    fs.sync();
    fs.rename("d/a", "d/b", RenameMode::Replace);
    fs.fsync("d/b");
    assert_eq!(fs.cut().names("d"), ["b"]);
    fs.rename("d/b", "c", RenameMode::Replace);
    fs.fsync("c");
    let after = fs.cut();
    assert_eq!(after.names("d"), [""; 0]);
    assert_eq!(after.names(""), ["c", "d"]);
    assert_eq!(fs.counter("commits"), 1);
}

#[test]
fn a_name_that_another_file_had_is_taken_over() {
    let fs = Small::new();
    fs.write("a", b"old");
    fs.sync();
    fs.rename("a", "b", RenameMode::Replace);
    fs.write("a", b"new");
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(after.names(""), ["a", "b"]);
    assert_eq!(after.content("a"), b"new");
    assert_eq!(after.content("b"), b"old");
    assert_eq!(fs.counter("commits"), 1);
}

#[test]
fn a_name_that_a_logged_file_had_is_taken_over() {
    let fs = Small::new();
    fs.write("a", b"first");
    fs.fsync("a");
    fs.rename("a", "b", RenameMode::Replace);
    fs.write("a", b"second");
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(after.names(""), ["a", "b"]);
    assert_eq!(after.content("a"), b"second");
    assert_eq!(after.content("b"), b"first");
}

#[test]
fn new_directories_above_a_file_are_logged() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.mkdir("d/e");
    fs.write("d/e/f", b"x");
    fs.fsync("d/e/f");
    let after = fs.cut();
    assert_eq!(after.content("d/e/f"), b"x");
    assert_eq!(after.names(""), ["d"]);
}

#[test]
fn a_directory_brings_its_entries() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.write("d/gone", b"1");
    fs.write("d/moved", b"2");
    fs.write("d/stays", b"3");
    fs.sync();
    fs.unlink("d/gone");
    fs.rename("d/moved", "d/here", RenameMode::Replace);
    fs.write("d/new", b"4");
    fs.mkdir("d/sub");
    fs.write("d/sub/deep", b"5");
    fs.fsync("d");
    let after = fs.cut();
    assert_eq!(after.names("d"), ["here", "new", "stays", "sub"]);
    assert_eq!(after.names("d/sub"), ["deep"]);
    assert_eq!(after.content("d/here"), b"2");
    assert_eq!(fs.counter("commits"), 1);
}

#[test]
fn a_moved_entry_is_not_lost_with_its_old_directory_synced() {
    let fs = Small::new();
    fs.mkdir("from");
    fs.mkdir("to");
    fs.write("from/a", b"1");
    fs.sync();
    fs.rename("from/a", "to/a", RenameMode::Replace);
    fs.fsync("from");
    let after = fs.cut();
    assert_eq!(after.names("from"), [""; 0]);
    assert_eq!(after.content("to/a"), b"1");
}

#[test]
fn names_of_a_logged_directory_change_one_by_one() {
    let fs = Small::new();
    fs.mkdir("d");
    for nth in 0..50 {
        fs.write(&format!("d/{nth}"), b"x");
    }
    fs.sync();
    fs.write("d/one", b"1");
    fs.fsync("d");
    for nth in 0..50 {
        let name = format!("d/{nth}");
        fs.rename(&name, &format!("{name}-gone"), RenameMode::Replace);
        if nth % 10 == 0 {
            fs.fsync("d");
        }
    }
    fs.write("other", b"2");
    fs.fsync("other");
    let mut expected: Vec<String> = (0..50).map(|nth| format!("{nth}-gone")).collect();
    expected.push("one".to_owned());
    expected.sort();
    assert_eq!(fs.cut().names("d"), expected);
    assert_eq!(fs.counter("commits"), 1);
}

#[test]
fn exchanged_names_stay_exchanged() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.write("b", b"2");
    fs.sync();
    fs.rename("a", "b", RenameMode::Exchange);
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(after.content("a"), b"2");
    assert_eq!(after.content("b"), b"1");
}

#[test]
fn hard_links_come_and_go() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.write("a", b"1");
    fs.link("a", "b");
    fs.sync();
    fs.link("a", "d/c");
    fs.unlink("b");
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(after.names(""), ["a", "d"]);
    assert_eq!(after.names("d"), ["c"]);
    assert_eq!(after.links("a"), 2);
}

#[test]
fn truncation_and_holes_are_logged() {
    let fs = Small::new();
    fs.write("a", &vec![1; 200_000]);
    fs.sync();
    fs.truncate("a", 50_000);
    fs.fsync("a");
    assert!(fs.cut().content("a") == vec![1; 50_000]);
    fs.truncate("a", 150_000);
    fs.punch("a", 8192, 8192);
    fs.fsync("a");
    let mut expected = vec![0; 150_000];
    expected[..50_000].fill(1);
    expected[8192..16384].fill(0);
    assert!(fs.cut().content("a") == expected);
    assert_eq!(fs.counter("commits"), 1);
}

#[test]
fn preallocated_extents_behind_the_end_stay() {
    let fs = Small::new();
    fs.write("a", &vec![1; 10_000]);
    fs.allocate("a", 0, 1 << 20);
    fs.sync();
    fs.write_at("a", 5000, b"x");
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(after.allocated("a"), fs.allocated("a"));
}

#[test]
fn attributes_are_logged_again_only_if_they_changed() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.set_xattr("a", "user.x", b"1");
    fs.fsync("a");
    assert_eq!(fs.counter("log_xattrs"), 1);
    fs.write("a", b"2");
    fs.fsync("a");
    assert_eq!(fs.counter("log_xattrs"), 1);
    fs.set_xattr("a", "user.x", b"2");
    fs.set_xattr("a", "user.y", b"3");
    fs.fsync("a");
    assert_eq!(fs.counter("log_xattrs"), 3);
    fs.remove_xattr("a", "user.x");
    fs.fsync("a");
    assert_eq!(fs.counter("log_xattrs"), 4);
    let after = fs.cut();
    assert_eq!(after.xattrs("a"), ["user.y"]);
}

#[test]
fn an_unchanged_inode_costs_nothing() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.fsync("a");
    let bytes = fs.counter("fsync_bytes");
    fs.fsync("a");
    assert_eq!(fs.counter("fsync_bytes"), bytes);
    fs.sync();
    fs.fsync("a");
    assert_eq!(fs.counter("fsync_bytes"), bytes);
    assert_eq!(fs.counter("empty_fsyncs"), 1);
    assert_eq!(fs.counter("commits"), 1);
}

#[test]
fn a_link_target_and_special_files_survive() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.symlink("d/s", b"target");
    fs.fifo("d/p");
    fs.fsync("d");
    let after = fs.cut();
    assert_eq!(after.names("d"), ["p", "s"]);
    assert_eq!(after.target("d/s"), b"target");
}

#[test]
fn a_directory_moved_into_another_that_moved_makes_no_loop() {
    let fs = Small::new();
    fs.mkdir("a");
    fs.mkdir("a/b");
    fs.mkdir("a/b/c");
    fs.sync();
    fs.rename("a/b", "b", RenameMode::Replace);
    fs.rename("a", "b/a", RenameMode::Replace);
    fs.write("b/a/f", b"1");
    fs.fsync("b/a/f");
    let after = fs.cut();
    assert_eq!(after.names(""), ["b"]);
    assert_eq!(after.names("b"), ["a", "c"]);
    assert_eq!(after.content("b/a/f"), b"1");
}

#[test]
fn a_logged_file_that_is_removed_frees_its_name() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.fsync("a");
    fs.unlink("a");
    fs.write("a", b"2");
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(after.names(""), ["a"]);
    assert_eq!(after.content("a"), b"2");
}

#[test]
fn a_commit_ends_the_log() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.fsync("a");
    fs.write("b", b"2");
    fs.sync();
    fs.write("c", b"3");
    fs.fsync("c");
    assert_eq!(fs.cut().names(""), ["a", "b", "c"]);
    fs.fs.unmount().unwrap();
    image::judge(&fs.device).unwrap();
}
