//! Finding inodes, names as byte strings, the file system as a whole.

use super::case::{Case, group};
use super::support::{Fixture, Outcome, check, fails, refused, same};
use sapwood_vfs::{Error, FileKind, Ino, RenameMode};

pub(super) fn cases() -> Vec<Case> {
    group!("lookup":
        root_is_an_empty_directory,
        root_is_its_own_parent,
        root_can_be_referenced,
        missing_name_is_not_found,
        lookup_in_a_file_is_refused,
        name_of_255_bytes_works,
        name_of_256_bytes_is_too_long,
        impossible_names_are_refused,
        names_may_hold_any_other_byte,
        names_are_compared_byte_for_byte,
        names_that_hash_alike_are_told_apart,
        found_inode_is_the_created_one,
        parent_is_the_directory_above,
        parent_follows_a_rename,
        parent_of_a_file_is_refused,
        reference_finds_by_identity,
        reference_to_nothing_is_stale,
        statfs_makes_sense,
        statistics_are_a_json_object,
        deep_paths_work,
    )
}

/// Pairs of names with the same CRC-32C for every seed. Btrfs stores both names of a pair in one
/// item.
pub(super) const ALIKE: [(&str, &str); 4] = [
    ("yokzxonb", "xyphecky"),
    ("unpshjig", "yefsxfzn"),
    ("amtzongt", "sntwspbw"),
    ("tqugmzjt", "mivzdbme"),
];

fn root_is_an_empty_directory(t: &mut Fixture) -> Outcome {
    let attr = t.root().attr()?;
    same(attr.kind, FileKind::Directory)?;
    same(attr.ino, t.fs().root())?;
    same(attr.perm & 0o700, 0o700)?;
    check(attr.nlink >= 1, "the root directory has no link")?;
    same(attr.rdev, 0)?;
    let names = t.root().names()?;
    // ext4's mkfs makes this directory.
    let found = names.iter().filter(|name| *name != "lost+found").count();
    same(found, 0)?;
    check(!t.fs().kind().is_empty(), "kind() is empty")?;
    check(!t.fs().read_only(), "a fresh mount is read-only")
}

fn root_is_its_own_parent(t: &mut Fixture) -> Outcome {
    same(t.root().parent()?.ino(), t.fs().root())
}

fn root_can_be_referenced(t: &mut Fixture) -> Outcome {
    let again = t.root().again()?;
    same(again.attr()?, t.root().attr()?)?;
    drop(again);
    t.root().attr()?;
    Ok(())
}

fn missing_name_is_not_found(t: &mut Fixture) -> Outcome {
    t.root().lacks("a")?;
    let dir = t.root().dir("d")?;
    dir.lacks("a")?;
    t.root().file("a")?;
    dir.lacks("a")?;
    t.root().lacks("aa")
}

fn lookup_in_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    refused(file.find("a"), Error::NotDirectory)?;
    let link = t.root().symlink("s", b".")?;
    refused(link.find("f"), Error::NotDirectory)
}

fn name_of_255_bytes_works(t: &mut Fixture) -> Outcome {
    let name = "n".repeat(255);
    let ino = t.root().file(&name)?.ino();
    same(t.root().find(&name)?.ino(), ino)?;
    same(t.root().names()?.contains(&name), true)?;
    let other = format!("{}m", "n".repeat(254));
    t.root().lacks(&other)?;
    t.root().rename(&name, &other)?;
    same(t.root().find(&other)?.ino(), ino)?;
    t.root().unlink(&other)?;
    t.root().lacks(&other)
}

fn name_of_256_bytes_is_too_long(t: &mut Fixture) -> Outcome {
    let (root, long) = (t.root(), "n".repeat(256));
    let file = root.file("f")?;
    refused(root.find(&long), Error::NameTooLong)?;
    refused(root.file(&long), Error::NameTooLong)?;
    refused(root.dir(&long), Error::NameTooLong)?;
    refused(root.symlink(&long, b"x"), Error::NameTooLong)?;
    refused(root.link(&file, &long), Error::NameTooLong)?;
    refused(root.rename("f", &long), Error::NameTooLong)?;
    refused(root.rename(&long, "g"), Error::NameTooLong)?;
    refused(root.unlink(&long), Error::NameTooLong)?;
    refused(root.rmdir(&long), Error::NameTooLong)
}

fn impossible_names_are_refused(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let file = root.file("f")?;
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
        fails(root.file(name))?;
        fails(root.dir(name))?;
        fails(root.link(&file, name))?;
        fails(root.rename("f", name))?;
        fails(root.unlink(name))?;
        fails(root.rmdir(name))?;
    }
    same(root.find("f")?.ino(), file.ino())
}

fn names_may_hold_any_other_byte(t: &mut Fixture) -> Outcome {
    let root = t.root().dir("d")?;
    let mut names: Vec<Vec<u8>> = (1..=255u8)
        .filter(|&byte| byte != b'/' && byte != b'.')
        .map(|byte| vec![byte])
        .collect();
    names.extend([
        b"...".to_vec(),
        b" ".repeat(3),
        b"a\nb".to_vec(),
        "ä€😀".as_bytes().to_vec(),
        vec![0xff; 255],
        vec![0xc3, 0x28],
    ]);
    for (number, name) in names.iter().enumerate() {
        root.file_of(name, &[number as u8])?;
    }
    let mut listed: Vec<_> = root.list()?.into_iter().map(|entry| entry.name).collect();
    listed.sort();
    let mut sorted = names.clone();
    sorted.sort();
    same(listed, sorted)?;
    for (number, name) in names.iter().enumerate() {
        same(root.find(name)?.content()?, vec![number as u8])?;
        root.unlink(name)?;
    }
    same(root.list()?.len(), 0)
}

fn names_are_compared_byte_for_byte(t: &mut Fixture) -> Outcome {
    let root = t.root().dir("d")?;
    // The last two are the same letter, composed and decomposed.
    for name in ["a", "A", "a ", " a", "a.", "\u{e4}", "a\u{308}"] {
        root.lacks(name)?;
        root.file(name)?;
    }
    same(root.list()?.len(), 7)
}

fn names_that_hash_alike_are_told_apart(t: &mut Fixture) -> Outcome {
    for (one, other) in ALIKE {
        let first = t.root().file(one)?;
        t.root().lacks(other)?;
        let second = t.root().file(other)?;
        check(first.ino() != second.ino(), "two names, one inode")?;
        refused(t.root().file(one), Error::Exists)?;
        same(t.root().find(one)?.ino(), first.ino())?;
        same(t.root().find(other)?.ino(), second.ino())?;
        t.root().unlink(one)?;
        t.root().lacks(one)?;
        same(t.root().find(other)?.ino(), second.ino())?;
        t.root().rename(other, one)?;
        t.root().lacks(other)?;
        same(t.root().find(one)?.ino(), second.ino())?;
    }
    Ok(())
}

fn found_inode_is_the_created_one(t: &mut Fixture) -> Outcome {
    let made = t.root().file("f")?;
    let found = t.root().find("f")?;
    same(found.ino(), made.ino())?;
    same(found.attr()?, made.attr()?)?;
    let entry = t.fs().lookup(t.fs().root(), b"f")?;
    let held = t.node(entry);
    same(entry.attr, held.attr()?)?;
    same(entry.ino(), entry.attr.ino)
}

fn parent_is_the_directory_above(t: &mut Fixture) -> Outcome {
    let outer = t.root().dir("outer")?;
    let inner = outer.dir("inner")?;
    same(inner.parent()?.ino(), outer.ino())?;
    same(outer.parent()?.ino(), t.fs().root())
}

fn parent_follows_a_rename(t: &mut Fixture) -> Outcome {
    let (a, b) = (t.root().dir("a")?, t.root().dir("b")?);
    let moved = a.dir("m")?;
    a.rename_to("m", &b, "n", RenameMode::Replace)?;
    same(moved.parent()?.ino(), b.ino())
}

fn parent_of_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    refused(file.parent(), Error::NotDirectory)
}

fn reference_finds_by_identity(t: &mut Fixture) -> Outcome {
    let ino = t.root().dir("d")?.file_of("f", b"content")?.ino();
    let listed = t.root().find("d")?.list()?;
    same(listed.len(), 1)?;
    same(listed[0].ino, ino)?;
    let found = t.fs().reference(ino)?;
    let found = t.node(found);
    same(found.content()?, b"content")
}

fn reference_to_nothing_is_stale(t: &mut Fixture) -> Outcome {
    refused(t.fs().reference(Ino(0x00de_adbe_ef00)), Error::Stale)?;
    refused(t.fs().reference(Ino(u64::MAX)), Error::Stale)?;
    refused(t.fs().reference(Ino(0)), Error::Stale)
}

fn statfs_makes_sense(t: &mut Fixture) -> Outcome {
    let stat = t.fs().statfs()?;
    check(stat.block_size.is_power_of_two(), "odd block size")?;
    check(stat.block_size >= 512, "tiny blocks")?;
    check(stat.blocks > 0, "no blocks")?;
    check(stat.blocks_free <= stat.blocks, "more free than there is")?;
    check(
        stat.blocks_available <= stat.blocks_free,
        "more available than free",
    )?;
    check(
        stat.inodes_free <= stat.inodes,
        "more inodes free than there are",
    )?;
    same(stat.name_max, 255)?;
    same(t.fs().statfs()?.fsid, stat.fsid)
}

fn statistics_are_a_json_object(t: &mut Fixture) -> Outcome {
    let json = t.fs().stats_json();
    let text = json.trim();
    check(text.starts_with('{') && text.ends_with('}'), text)
}

fn deep_paths_work(t: &mut Fixture) -> Outcome {
    let mut at = t.root();
    for depth in 0..200 {
        at = at.dir(format!("d{depth}"))?;
    }
    at.file_of("f", b"bottom")?;
    let path: Vec<_> = (0..200).map(|depth| format!("d{depth}")).collect();
    let found = t.root().walk(&format!("{}/f", path.join("/")))?;
    same(found.content()?, b"bottom")?;
    let mut up = at;
    for _ in 0..200 {
        up = up.parent()?;
    }
    same(up.ino(), t.fs().root())
}
