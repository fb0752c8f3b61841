//! Renames that leave a whiteout at the old name.

use super::case::{Case, group};
use super::support::{
    Fixture, HeldInode, Outcome, check, pattern, refused, same, same_bytes, user,
};
use sapwood_vfs::{Credentials, Error, FileKind, NewInode, RenameMode, Result, SetAttr};

pub(super) fn cases() -> Vec<Case> {
    group!("whiteouts":
        every_kind_leaves_one,
        target_is_replaced,
        existing_target_can_be_spared,
        owner_is_the_caller,
        names_of_one_inode_leave_none,
        refused_renames_leave_none,
        moved_directory_counts_for_its_new_parent,
        can_be_renamed_and_removed,
        many_survive_a_remount if persistent,
    )
}

fn leaving(replace: bool) -> RenameMode {
    RenameMode::Whiteout {
        who: Credentials::ROOT,
        replace,
    }
}

/// Checks that a name leads to a whiteout.
fn is_whiteout(dir: &HeldInode<'_>, name: &str) -> Outcome {
    let attr = dir.find(name)?.attr()?;
    same((attr.kind, attr.rdev), (FileKind::CharDevice, 0))?;
    same((attr.perm, attr.nlink, attr.size), (0, 1, 0))
}

/// One inode of each kind, under these names.
fn one_of_each<'a>(dir: &HeldInode<'a>) -> Result<Vec<(&'static str, HeldInode<'a>)>> {
    Ok(vec![
        ("file", dir.file_of("file", b"content")?),
        ("dir", dir.dir("dir")?),
        ("link", dir.symlink("link", b"target")?),
        ("fifo", dir.make("fifo", NewInode::Fifo, 0o600)?),
        ("dev", dir.make("dev", NewInode::CharDevice(0x103), 0o600)?),
    ])
}

fn every_kind_leaves_one(t: &mut Fixture) -> Outcome {
    let (from, to) = (t.root().dir("from")?, t.root().dir("to")?);
    for (name, node) in one_of_each(&from)? {
        let moved = format!("{name}-moved");
        from.rename_to(name, &from, &moved, leaving(true))?;
        is_whiteout(&from, name)?;
        same(from.find(&moved)?.ino(), node.ino())?;
        from.rename_to(&moved, &to, name, leaving(false))?;
        is_whiteout(&from, &moved)?;
        same(to.find(name)?.ino(), node.ino())?;
    }
    same((from.list()?.len(), to.list()?.len()), (10, 5))?;
    let mut kinds = from.list()?.into_iter().map(|entry| entry.kind);
    check(
        kinds.all(|kind| kind == FileKind::CharDevice),
        "an entry does not say what it leads to",
    )
}

fn target_is_replaced(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let old = dir.file_of("b", b"old")?;
    dir.file_of("a", b"new")?;
    dir.rename_to("a", &dir, "b", leaving(true))?;
    is_whiteout(&dir, "a")?;
    same(dir.find("b")?.content()?, b"new")?;
    same(old.nlink()?, 0)?;
    // A whiteout is replaced like any other target.
    dir.rename_to("b", &dir, "a", leaving(true))?;
    is_whiteout(&dir, "b")?;
    same(dir.find("a")?.content()?, b"new")?;
    same(dir.names()?, ["a", "b"])
}

fn existing_target_can_be_spared(t: &mut Fixture) -> Outcome {
    let (from, to) = (t.root().dir("from")?, t.root().dir("to")?);
    let (one, other) = (from.file("a")?, to.file("b")?);
    refused(from.rename_to("a", &to, "b", leaving(false)), Error::Exists)?;
    same(from.find("a")?.ino(), one.ino())?;
    same(to.find("b")?.ino(), other.ino())
}

fn owner_is_the_caller(t: &mut Fixture) -> Outcome {
    let (plain, sticky) = (t.root().dir("plain")?, t.root().dir("setgid")?);
    sticky.set(&SetAttr {
        perm: Some(0o2777),
        gid: Some(7),
        ..SetAttr::default()
    })?;
    for (dir, gid) in [(&plain, 20), (&sticky, 7)] {
        dir.file("a")?;
        let mode = RenameMode::Whiteout {
            who: user(10, 20),
            replace: true,
        };
        dir.rename_to("a", dir, "b", mode)?;
        is_whiteout(dir, "a")?;
        let attr = dir.find("a")?.attr()?;
        same((attr.uid, attr.gid), (10, gid))?;
    }
    Ok(())
}

fn names_of_one_inode_leave_none(t: &mut Fixture) -> Outcome {
    let file = t.root().file("a")?;
    t.root().link(&file, "b")?;
    for name in ["a", "b"] {
        t.root().rename_to("a", &t.root(), name, leaving(true))?;
        same(t.root().find("a")?.ino(), file.ino())?;
    }
    same(file.nlink()?, 2)
}

fn refused_renames_leave_none(t: &mut Fixture) -> Outcome {
    let top = t.root().dir("top")?;
    let (a, full) = (top.dir("a")?, top.dir("full")?);
    full.file("inside")?;
    refused(
        top.rename_to("a", &top, "full", leaving(true)),
        Error::NotEmpty,
    )?;
    refused(top.rename_to("a", &a, "x", leaving(true)), Error::Invalid)?;
    refused(
        top.rename_to("none", &a, "x", leaving(true)),
        Error::NotFound,
    )?;
    same(top.names()?, ["a", "full"])
}

fn moved_directory_counts_for_its_new_parent(t: &mut Fixture) -> Outcome {
    let (from, to) = (t.root().dir("from")?, t.root().dir("to")?);
    let moved = from.dir("d")?;
    moved.file("inside")?;
    from.rename_to("d", &to, "d", leaving(true))?;
    is_whiteout(&from, "d")?;
    same(moved.parent()?.ino(), to.ino())?;
    same(to.find("d")?.names()?, ["inside"])?;
    let links = if t.capabilities.directory_links {
        (2, 3)
    } else {
        (1, 1)
    };
    same((from.nlink()?, to.nlink()?), links)
}

fn can_be_renamed_and_removed(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.file("a")?;
    dir.rename_to("a", &dir, "b", leaving(true))?;
    dir.rename("a", "c")?;
    is_whiteout(&dir, "c")?;
    dir.unlink("c")?;
    dir.unlink("b")?;
    same(dir.list()?.len(), 0)?;
    Ok(t.root().rmdir("d")?)
}

fn many_survive_a_remount(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    for number in 0..200 {
        dir.file_of(format!("a{number}"), &pattern(number, 500))?;
    }
    t.fs().sync()?;
    for number in 0..200 {
        let (from, to) = (format!("a{number}"), format!("b{number}"));
        dir.rename_to(from, &dir, to, leaving(false))?;
    }
    drop(dir);
    t.remount(false)?;
    let dir = t.root().find("d")?;
    for number in 0..200 {
        is_whiteout(&dir, &format!("a{number}"))?;
        let moved = dir.find(format!("b{number}"))?;
        same_bytes(&moved.content()?, &pattern(number, 500))?;
    }
    same(dir.list()?.len(), 400)
}
