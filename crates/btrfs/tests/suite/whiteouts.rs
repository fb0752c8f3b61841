//! A rename that leaves a whiteout is in a log as a whole or not at all.

use crate::small::Small;
use sapwood_vfs::{Credentials, FileKind, RenameMode};

const LEAVING: RenameMode = RenameMode::Whiteout {
    who: Credentials::ROOT,
    replace: true,
};

fn is_whiteout(fs: &Small, path: &str) -> bool {
    let attr = fs.attr(path);
    (attr.kind, attr.rdev, attr.perm) == (FileKind::CharDevice, 0, 0)
}

/// Two directories, a file `from/a` and a file `to/b`, which are committed.
fn begin() -> Small {
    let fs = Small::new();
    fs.mkdir("from");
    fs.mkdir("to");
    fs.write("from/a", b"1");
    fs.write("to/b", b"2");
    fs.sync();
    fs
}

#[test]
fn a_committed_name_and_its_whiteout_are_logged_together() {
    for (to, fsynced) in [
        ("from/b", "from/b"),
        ("from/b", "from"),
        ("to/a", "to/a"),
        ("to/a", "from"),
        ("to/a", "to"),
        ("to/b", "to/b"),
    ] {
        let fs = begin();
        fs.rename("from/a", to, LEAVING);
        fs.fsync(fsynced);
        let after = fs.cut();
        assert!(is_whiteout(&after, "from/a"), "{to}, {fsynced}");
        assert_eq!(after.content(to), b"1", "{to}, {fsynced}");
        assert_eq!(fs.counter("commits"), 1, "{to}, {fsynced}: not logged");
    }
}

#[test]
fn a_directory_and_its_whiteout_are_logged_together() {
    let fs = begin();
    fs.mkdir("from/d");
    fs.write("from/d/old", b"3");
    fs.sync();
    fs.rename("from/d", "to/d", LEAVING);
    fs.write("to/d/new", b"4");
    fs.fsync("to/d/new");
    let after = fs.cut();
    assert!(is_whiteout(&after, "from/d"));
    assert_eq!(after.names("to/d"), ["new", "old"]);
}

/// The name was never durable, so a log could not record that another inode took it over.
#[test]
fn a_new_name_and_its_whiteout_are_committed_together() {
    for (to, fsynced) in [("to/a", "to/a"), ("from/y", "from/y"), ("to/a", "from")] {
        let fs = begin();
        fs.write("from/x", b"3");
        fs.rename("from/x", to, LEAVING);
        fs.fsync(fsynced);
        let after = fs.cut();
        assert!(is_whiteout(&after, "from/x"), "{to}, {fsynced}");
        assert_eq!(after.attr(to).kind, FileKind::Regular, "{to}, {fsynced}");
        assert_eq!(fs.counter("full_fsyncs_whiteout"), 1, "{to}, {fsynced}");
    }
}

#[test]
fn a_logged_name_and_its_whiteout_become_durable_together() {
    let fs = begin();
    fs.write("from/x", b"3");
    fs.fsync("from/x");
    fs.rename("from/x", "to/x", LEAVING);
    fs.write("to/b", b"4");
    fs.fsync("to/b");
    let after = fs.cut();
    let moved = after.names("to").contains(&"x".to_owned());
    assert_eq!(moved, is_whiteout(&after, "from/x"));
}

#[test]
fn a_whiteout_that_was_removed_does_not_come_back() {
    let fs = begin();
    fs.rename("from/a", "to/a", LEAVING);
    fs.fsync("to/a");
    fs.unlink("from/a");
    fs.fsync("from");
    let after = fs.cut();
    assert_eq!(after.names("from"), [""; 0]);
    assert_eq!(after.content("to/a"), b"1");
}
