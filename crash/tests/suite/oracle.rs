//! The oracle accepts all states that are possible, and each of its rules rejects a state that
//! breaks it.

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_crash::engine::Format;
use sapwood_crash::oracle::Oracle;
use sapwood_crash::record::{Lane, Progress, Recording, Setting};
use sapwood_testing::tree::{Tree, TreeInode};
use sapwood_vfs::{FileKind, Ino, Timestamp};

/// The history of a workload on the standard base.
fn lane(ops: &str) -> Lane {
    let workload = format!("std: {ops}").parse().unwrap();
    let recording = Recording::run(&workload, &Setting::default()).unwrap();
    recording.lanes.into_iter().next().unwrap()
}

/// A tree in which something can be broken.
struct Edit(Tree);

impl Edit {
    fn ino(&self, path: &str) -> Ino {
        self.0.paths()[path]
    }

    fn node(&mut self, path: &str) -> &mut TreeInode {
        let ino = self.ino(path);
        self.0.nodes.get_mut(&ino).unwrap()
    }

    fn entries(&mut self, dir: &str) -> &mut BTreeMap<Vec<u8>, Ino> {
        Arc::make_mut(&mut self.node(dir).entries)
    }
}

/// The mistakes that the oracle finds in state `state`, edited, when the first `done` operations
/// had returned.
fn judge(lane: &Lane, done: usize, state: usize, edit: impl FnOnce(&mut Edit)) -> Vec<String> {
    let mut tree = Edit(lane.states[state].clone());
    edit(&mut tree);
    let begun = lane.promises.len();
    Oracle::new(lane).judge(&tree.0, Progress { done, begun })
}

fn refused(wrong: &[String], why: &str) {
    assert!(
        wrong.iter().any(|line| line.contains(why)),
        "{why}: {wrong:?}"
    );
}

#[test]
fn any_state_may_be_there_if_nothing_was_promised() {
    let lane = lane("creat A/x; write A/foo 0 4096 9; rename A/bar B/bar");
    for state in 0..lane.states.len() {
        assert_eq!(judge(&lane, 3, state, |_| ()), [""; 0]);
    }
}

#[test]
fn a_sync_makes_all_older_states_impossible() {
    let lane = lane("creat A/x; sync; unlink B/foo");
    refused(&judge(&lane, 2, 0, |_| ()), "x leads to None");
    assert_eq!(judge(&lane, 1, 0, |_| ()), [""; 0]);
    assert_eq!(judge(&lane, 3, 2, |_| ()), [""; 0]);
}

#[test]
fn strangers_and_changed_kinds_are_refused() {
    let lane = lane("creat A/x");
    let wrong = judge(&lane, 1, 1, |tree| {
        let node = tree.node("A/x").clone();
        tree.0.nodes.insert(Ino(999), node);
        tree.entries("A").insert(b"y".to_vec(), Ino(999));
    });
    refused(&wrong, "a stranger");
    let wrong = judge(&lane, 1, 1, |tree| tree.node("A/x").kind = FileKind::Fifo);
    refused(&wrong, "is Fifo");
}

#[test]
fn content_owner_and_attributes_are_of_a_possible_state() {
    let lane = lane("write A/foo 0 8192 9; setxattr A/foo n 5 1; chmod A/foo 448");
    let mixed = judge(&lane, 3, 0, |tree| {
        let mut content = tree.node("A/foo").content.to_vec();
        content[..4096].copy_from_slice(&lane.states[1].nodes[&tree.ino("A/foo")].content[..4096]);
        tree.node("A/foo").content = content.into();
    });
    assert_eq!(mixed, [""; 0], "unsynced data may have arrived in part");
    let wrong = judge(&lane, 3, 0, |tree| {
        let mut content = tree.node("A/foo").content.to_vec();
        content[100] = 0;
        tree.node("A/foo").content = content.into();
    });
    refused(&wrong, "content at 0");
    let wrong = judge(&lane, 3, 0, |tree| {
        tree.node("A/foo").content = vec![1; 700].into()
    });
    refused(&wrong, "size 700");
    refused(
        &judge(&lane, 3, 0, |tree| tree.node("A/foo").owner.perm = 1),
        "owner and mode",
    );
    refused(
        &judge(&lane, 3, 0, |tree| {
            tree.node("A/foo").xattrs = Arc::default()
        }),
        "attributes",
    );
    refused(
        &judge(&lane, 3, 0, |tree| tree.node("A/foo").nlink = 2),
        "link count 2, 1 names",
    );
}

#[test]
fn a_symbolic_link_says_what_it_said() {
    let lane = lane("symlink there A/sl");
    let wrong = judge(&lane, 1, 1, |tree| {
        tree.node("A/sl").content = b"th\0\0\0".as_slice().into()
    });
    refused(&wrong, "target");
}

#[test]
fn an_fsync_makes_older_content_impossible_and_an_fdatasync_only_that() {
    let ops = "write A/foo 0 8192 9; setxattr A/foo n 5 1";
    let synced = lane(&format!("{ops}; fsync A/foo"));
    refused(&judge(&synced, 3, 0, |_| ()), "content at 0");
    refused(&judge(&synced, 3, 1, |_| ()), "attributes");
    assert_eq!(judge(&synced, 2, 0, |_| ()), [""; 0], "it had not returned");
    let synced = lane(&format!("{ops}; fdatasync A/foo"));
    refused(&judge(&synced, 3, 0, |_| ()), "content at 0");
    assert_eq!(judge(&synced, 3, 1, |_| ()), [""; 0]);
}

#[test]
fn what_had_a_name_all_the_time_is_not_lost() {
    let lane = lane("rename A/foo B/moved; append A/bar 10 9; fsync A/bar");
    let wrong = judge(&lane, 3, 3, |tree| {
        let ino = tree.ino("B/moved");
        tree.0.nodes.remove(&ino);
        tree.entries("B").remove(b"moved".as_slice());
    });
    refused(&wrong, "lost");
}

#[test]
fn a_rename_does_not_leave_both_names() {
    let lane = lane("rename A/foo B/moved");
    let wrong = judge(&lane, 1, 1, |tree| {
        let ino = tree.ino("B/moved");
        tree.entries("A").insert(b"foo".to_vec(), ino);
        tree.node("B/moved").nlink = 2;
    });
    refused(&wrong, "both");
}

#[test]
fn names_of_what_was_fsynced_are_there_and_old_ones_are_not() {
    let lane = lane("link A/foo B/ln; unlink A/foo; fsync B/ln");
    refused(&judge(&lane, 3, 0, |_| ()), "ln leads to None");
    refused(&judge(&lane, 3, 1, |_| ()), "had lost it before its fsync");
    assert_eq!(judge(&lane, 3, 3, |_| ()), [""; 0]);
}

#[test]
fn an_fsync_of_a_directory_is_about_the_names_in_it() {
    let lane = lane("creat A/x; unlink A/bar; creat B/y; fsync A");
    refused(&judge(&lane, 4, 0, |_| ()), "x leads to None");
    refused(&judge(&lane, 4, 1, |_| ()), "bar leads to Some");
    assert_eq!(judge(&lane, 4, 2, |_| ()), [""; 0], "B/y was not promised");
}

#[test]
fn a_new_file_has_a_name_after_an_fdatasync() {
    let lane = lane("creat A/x; fdatasync A/x; rename A/x A/y");
    refused(&judge(&lane, 3, 0, |_| ()), "no name after fdatasync");
    assert_eq!(judge(&lane, 3, 1, |_| ()), [""; 0]);
}

#[test]
fn later_changes_may_be_there_too() {
    let lane = lane("append A/foo 100 9; fsync A/foo; truncate A/foo 10; unlink A/foo");
    for state in 2..=4 {
        assert_eq!(judge(&lane, 4, state, |_| ()), [""; 0]);
    }
    refused(&judge(&lane, 4, 0, |_| ()), "size 20000");
}

#[test]
fn a_size_between_two_is_possible_only_where_others_are_at_work() {
    let mut lane = lane("write A/foo 40960 4096 9");
    let middle = |tree: &mut Edit| {
        let mut content = tree.node("A/foo").content.to_vec();
        content.resize(30000, 0);
        tree.node("A/foo").content = content.into();
    };
    refused(&judge(&lane, 1, 0, middle), "size 30000");
    lane.shared = true;
    assert_eq!(judge(&lane, 1, 0, middle), [""; 0]);
}

#[test]
fn an_fsync_of_an_inode_without_a_name_keeps_its_names_away() {
    let lane = lane("hold A/foo 0; unlink A/foo; write @0 0 4096 9; fsync @0");
    assert_eq!(judge(&lane, 3, 0, |_| ()), [""; 0]);
    assert_eq!(judge(&lane, 4, 4, |_| ()), [""; 0]);
    refused(&judge(&lane, 4, 0, |_| ()), "had lost it before its fsync");
}

/// A time after all operations of a lane.
fn later(tree: &mut Edit) -> Timestamp {
    let times = tree.0.nodes.values().filter_map(|node| node.times);
    let last = times.map(|times| times.ctime).max().unwrap();
    tree.0.recovered = Some(Timestamp {
        sec: last.sec + 1000,
        ..last
    });
    Timestamp {
        sec: last.sec + 1001,
        ..last
    }
}

#[test]
fn times_are_of_a_possible_state() {
    let lane = lane("utimes A/foo 1000; append A/foo 100 9; setxattr A n 5 1");
    for state in 0..=3 {
        assert_eq!(judge(&lane, 3, state, |_| ()), [""; 0]);
    }
    for what in ["atime", "mtime", "ctime", "btime"] {
        let wrong = judge(&lane, 3, 3, |tree| {
            let times = tree.node("A/foo").times.as_mut().unwrap();
            let time = match what {
                "atime" => &mut times.atime,
                "mtime" => &mut times.mtime,
                "ctime" => &mut times.ctime,
                _ => times.btime.as_mut().unwrap(),
            };
            time.nsec ^= 1;
        });
        refused(&wrong, &format!("{what} "));
    }
}

#[test]
fn an_fsync_makes_older_times_impossible_and_an_fdatasync_does_not() {
    let synced = lane("utimes A/foo 1000; fsync A/foo");
    refused(&judge(&synced, 2, 0, |_| ()), "time");
    assert_eq!(judge(&synced, 1, 0, |_| ()), [""; 0], "it had not returned");
    let synced = lane("utimes A/foo 1000; fdatasync A/foo");
    assert_eq!(judge(&synced, 2, 0, |_| ()), [""; 0]);
}

#[test]
fn a_recovery_sets_ctime_only_where_a_name_was_lost() {
    let renamed = lane("rename A/foo A/moved; chmod A/bar 448");
    let set = |path: &'static str, what: &'static str| {
        move |tree: &mut Edit| {
            let now = later(tree);
            let times = tree.node(path).times.as_mut().unwrap();
            match what {
                "ctime" => times.ctime = now,
                _ => times.mtime = now,
            }
        }
    };
    assert_eq!(judge(&renamed, 2, 2, set("A/moved", "ctime")), [""; 0]);
    refused(&judge(&renamed, 2, 2, set("A/moved", "mtime")), "mtime");
    refused(&judge(&renamed, 2, 2, set("A/bar", "ctime")), "ctime");
    refused(&judge(&renamed, 2, 2, set("A", "mtime")), "mtime");
}

#[test]
fn a_recovery_of_ext4_sets_times_of_directories_whose_names_changed() {
    let mut created = lane("creat A/new; chmod B 448");
    created.engine = Format::Ext4;
    let set = |path: &'static str| {
        move |tree: &mut Edit| {
            let now = later(tree);
            tree.node(path).times.as_mut().unwrap().mtime = now;
        }
    };
    assert_eq!(judge(&created, 2, 2, set("A")), [""; 0]);
    refused(&judge(&created, 2, 2, set("B")), "mtime");
    refused(&judge(&created, 2, 2, set("A/foo")), "mtime");
}

#[test]
fn what_a_recovery_set_is_set_again_by_the_next() {
    let mut second = lane("chmod A/bar 448");
    let set = |tree: &mut Edit| {
        let now = later(tree);
        tree.node("A/foo").times.as_mut().unwrap().ctime = now;
    };
    refused(&judge(&second, 1, 1, set), "ctime");
    let ino = second.states[0].paths()["A/foo"];
    let ctime = second.states[0].nodes[&ino].times.unwrap().ctime;
    second.recovery = Some((ctime, ctime));
    assert_eq!(judge(&second, 1, 1, set), [""; 0]);
}
