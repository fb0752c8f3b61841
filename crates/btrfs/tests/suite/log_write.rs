//! Logged changes are there after a power cut: one situation after the other, each judged by a
//! replay, by our own view of the tree and by `btrfs check`.

use crate::image;
use crate::small::Small;
use sapwood_vfs::{FileSystem, InodeFlags, RenameMode};

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
    fs.crowd("d");
    fs.crowd("");
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

#[test]
fn a_fallocate_over_allocated_blocks_raises_the_size() {
    let fs = Small::new();
    fs.mkdir("A");
    fs.write("A/foo", b"");
    fs.sync();
    fs.allocate("A/foo", 20480, 16384);
    fs.allocate_and_grow("A/foo", 20480, 16384);
    fs.fsync("A/foo");
    assert_eq!(fs.attr("A/foo").size, 36864);
    let after = fs.cut();
    assert_eq!(after.attr("A/foo").size, 36864);
    assert_eq!(after.allocated("A/foo"), 16384);
}

#[test]
fn an_fsync_after_a_chunk_was_allocated_is_a_commit() {
    let fs = Small::new();
    fs.write("a", &vec![3; 40 << 20]);
    fs.fsync("a");
    assert_eq!(fs.counter("full_fsyncs_new_chunk"), 1);
    assert!(fs.cut().content("a") == vec![3; 40 << 20]);
}

#[test]
fn a_file_in_place_of_a_directory_with_entries_is_a_commit() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.write("d/f", b"moved");
    fs.sync();
    fs.rename("d/f", "g", RenameMode::Replace);
    fs.rmdir("d");
    fs.write("d", b"file");
    fs.fsync("d");
    assert_eq!(fs.counter("full_fsyncs_replaced_directory"), 1);
    let after = fs.cut();
    assert_eq!(after.content("d"), b"file");
    assert_eq!(after.content("g"), b"moved");
}

#[test]
fn a_name_that_a_rename_took_is_never_missing() {
    let fs = Small::new();
    fs.write("a", b"A");
    fs.link("a", "other");
    fs.write("b", b"B");
    fs.sync();
    fs.crowd("");
    fs.rename("b", "a", RenameMode::Replace);
    fs.fsync("other");
    let after = fs.cut();
    assert_eq!(after.names(""), ["a", "other"]);
    assert_eq!(after.content("a"), b"B");
    assert_eq!(after.content("other"), b"A");
}

#[test]
fn an_inode_that_is_only_said_to_exist_shows_no_length() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.write("d/x", &vec![1; 20_000]);
    // Writes the data back without a commit.
    fs.allocate("d/x", 0, 20_000);
    fs.fsync("d");
    let after = fs.cut();
    assert_eq!(after.names("d"), ["x"]);
    let found = after.content("d/x");
    assert!(found.is_empty() || found == vec![1; 20_000]);
}

#[test]
fn a_name_that_leaves_the_log_does_not_bring_the_one_before_back() {
    let fs = Small::new();
    fs.write("a", b"old");
    fs.sync();
    fs.unlink("a");
    fs.write("a", b"new");
    fs.fsync("a");
    fs.rename("a", "b", RenameMode::Replace);
    fs.fsync("b");
    let after = fs.cut();
    assert_eq!(after.names(""), ["b"]);
    assert_eq!(after.content("b"), b"new");
}

#[test]
fn an_attribute_of_the_last_commit_that_was_removed_is_gone() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.set_xattr("a", "user.gone", b"1");
    fs.set_xattr("a", "user.kept", b"2");
    fs.sync();
    fs.remove_xattr("a", "user.gone");
    fs.fsync("a");
    assert_eq!(fs.cut().xattrs("a"), ["user.kept"]);
}

#[test]
fn extents_behind_a_shorter_end_are_freed_by_replay() {
    let fs = Small::new();
    fs.write("a", &vec![1; 200_000]);
    fs.sync();
    fs.truncate("a", 4096);
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(after.allocated("a"), 4096);
    after.truncate("a", 8192);
    assert!(after.content("a")[4096..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_second_name_is_logged() {
    let fs = Small::new();
    fs.mkdir("d");
    fs.write("a", b"1");
    fs.sync();
    fs.link("a", "d/b");
    fs.fsync("a");
    let after = fs.cut();
    assert_eq!(
        (after.names("d"), after.links("a")),
        (vec!["b".to_owned()], 2)
    );
}

#[test]
fn a_rename_out_of_a_synchronous_directory_is_durable() {
    let fs = Small::new();
    fs.mkdir("from");
    fs.mkdir("to");
    fs.write("from/a", b"1");
    fs.set_flags("from", InodeFlags::DIRSYNC);
    fs.sync();
    fs.rename("from/a", "to/b", RenameMode::Replace);
    let after = fs.cut();
    assert_eq!(after.names("from"), [""; 0]);
    assert_eq!(after.content("to/b"), b"1");
}

#[test]
fn an_fsync_brings_what_the_directory_lost_that_the_inode_left() {
    let fs = Small::new();
    fs.fs.count_endless_fsync();
    fs.mkdir("from");
    fs.mkdir("to");
    fs.write("from/gone", b"1");
    fs.sync();
    fs.write("from/new", b"2");
    fs.fsync("from");
    // Neither the last commit nor the log has it in this directory: only the tie leads there.
    fs.write("from/x", b"3");
    fs.rename("from/x", "from/gone", RenameMode::Replace);
    fs.rename("from/gone", "to/x", RenameMode::Replace);
    fs.fsync("to/x");
    let after = fs.cut();
    assert_eq!(after.names("from"), ["new"]);
    assert_eq!(after.content("to/x"), b"3");
}

#[test]
fn an_unlink_of_a_logged_file_is_durable_with_the_next_fsync() {
    let fs = Small::new();
    fs.write("a", b"1");
    fs.write("b", b"1");
    fs.sync();
    fs.write("a", b"2");
    fs.fsync("a");
    fs.unlink("a");
    fs.write("b", b"2");
    fs.fsync("b");
    assert_eq!(fs.cut().names(""), ["b"]);
}

/// Files `a` and `b` in two directories, committed.
fn neighbours() -> Small {
    let fs = Small::new();
    for dir in ["d", "e"] {
        fs.mkdir(dir);
        fs.write(&format!("{dir}/a"), b"1");
        fs.write(&format!("{dir}/b"), b"1");
    }
    fs.sync();
    fs
}

#[test]
fn an_fsync_after_a_rename_brings_what_else_changed_in_both_directories() {
    let fs = neighbours();
    fs.unlink("d/a");
    fs.rename("e/a", "e/a2", RenameMode::Replace);
    fs.write("e/new", b"1");
    fs.rename("d/b", "e/moved", RenameMode::Replace);
    fs.fsync("e/moved");
    let after = fs.cut();
    assert_eq!(after.names("d"), [""; 0]);
    assert_eq!(after.names("e"), ["a2", "b", "moved", "new"]);
    assert_eq!(fs.counter("commits"), 1, "more than that of `sync`");
    // Not so for the fsync of a directory that was renamed.
    let fs = neighbours();
    fs.unlink("d/a");
    fs.rename("e", "d/e", RenameMode::Replace);
    fs.fsync("d/e");
    assert_eq!(fs.cut().names("d"), ["a", "b", "e"]);
}

#[test]
fn an_fsync_after_a_link_or_unlink_brings_what_else_changed_in_the_directory() {
    let fs = neighbours();
    fs.unlink("d/a");
    fs.link("d/b", "d/c");
    fs.fsync("d/c");
    assert_eq!(fs.cut().names("d"), ["b", "c"]);
    fs.sync();
    fs.rename("d/b", "d/b2", RenameMode::Replace);
    fs.unlink("e/b");
    fs.link("e/a", "d/a");
    fs.unlink("d/c");
    fs.fsync("d/b2");
    assert_eq!(fs.cut().names("d"), ["a", "b2"]);
    // The other directory of a file that is not the target is not logged.
    assert_eq!(fs.cut().names("e"), ["a", "b"]);
}

#[test]
fn an_fsync_of_an_inode_with_its_old_names_logs_nothing_of_others() {
    let fs = neighbours();
    fs.unlink("d/a");
    fs.rename("e/a", "e/a2", RenameMode::Replace);
    fs.write("d/b", b"2");
    fs.fsync("d/b");
    let before = fs.counter("log_dir_items");
    assert_eq!(before, 0);
    // A new file has its own entry and no more.
    fs.write("d/new", b"1");
    fs.fsync("d/new");
    let after = fs.cut();
    assert_eq!(after.names("d"), ["a", "b", "new"]);
    assert_eq!(after.names("e"), ["a", "b"]);
}

#[test]
fn a_directory_with_very_many_changes_is_not_logged_for_a_rename_in_it() {
    let fs = neighbours();
    for number in 0..100 {
        fs.write(&format!("d/{number}"), b"1");
    }
    fs.rename("d/b", "d/b2", RenameMode::Replace);
    fs.fsync("d/b2");
    assert_eq!(fs.cut().names("d"), ["a", "b2"]);
}
