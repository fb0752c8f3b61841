//! Subvolumes and snapshots, for engines that have them.

use super::case::{Case, group};
use super::support::{Fixture, HeldInode, Outcome, check, pattern, refused, same, same_bytes};
use sapwood_vfs::{AllocMode, CopyMode, Error, InodeFlags, RenameMode, SubvolumeId, SubvolumeInfo};

pub(super) fn cases() -> Vec<Case> {
    group!("subvolumes":
        new_one_is_an_empty_directory if subvolumes,
        it_is_listed if subvolumes,
        names_are_checked if subvolumes,
        snapshot_holds_the_same if subvolumes,
        snapshot_and_source_part if subvolumes,
        snapshot_holds_what_was_written_before if subvolumes,
        snapshot_keeps_hard_links if subvolumes,
        snapshot_of_a_snapshot if subvolumes,
        snapshot_needs_the_root_of_a_subvolume if subvolumes,
        snapshot_knows_where_it_is_from if subvolumes,
        nested_subvolume_is_an_empty_directory_in_a_snapshot if subvolumes,
        read_only_snapshot_refuses_changes if subvolumes,
        read_only_can_be_switched if subvolumes,
        deleted_one_is_gone if subvolumes,
        source_outlives_its_snapshot if subvolumes,
        snapshot_outlives_its_source if subvolumes,
        holder_of_another_is_not_deleted if subvolumes,
        plain_directory_is_not_deleted if subvolumes,
        flags_protect_it if subvolumes,
        one_moved_into_a_snapshot_is_not_its_stub if subvolumes,
        sparse_unstored_files_are_in_a_snapshot if subvolumes,
        default_one_can_be_chosen if subvolumes,
        links_and_renames_do_not_cross if subvolumes,
        its_root_can_be_renamed if subvolumes,
        data_can_be_copied_across if subvolumes,
        identities_differ if subvolumes,
        rmdir_removes_an_empty_one if subvolumes,
        they_survive_a_remount if subvolumes,
        many_snapshots if subvolumes,
        it_tells_which_subvolume_an_inode_is_in if subvolumes,
    )
}

fn subvolume<'a>(t: &'a Fixture, dir: &HeldInode<'_>, name: &str) -> Outcome<HeldInode<'a>> {
    let entry = t
        .subvolumes()?
        .create_subvolume(dir.ino(), name.as_bytes())?;
    Ok(t.node(entry))
}

fn snapshot<'a>(
    t: &'a Fixture,
    source: &HeldInode<'_>,
    name: &str,
    read_only: bool,
) -> Outcome<HeldInode<'a>> {
    let (dir, name) = (t.fs().root(), name.as_bytes());
    let entry = t
        .subvolumes()?
        .snapshot(source.ino(), dir, name, read_only)?;
    Ok(t.node(entry))
}

fn info(t: &Fixture, path: &str) -> Outcome<Option<SubvolumeInfo>> {
    let list = t.subvolumes()?.list()?;
    Ok(list.into_iter().find(|info| info.path == path.as_bytes()))
}

#[track_caller]
fn known(found: Option<SubvolumeInfo>) -> Outcome<SubvolumeInfo> {
    check(found.is_some(), "it is not listed")?;
    found.ok_or_else(|| super::support::Fault::new("it is not listed"))
}

fn new_one_is_an_empty_directory(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    same(s.attr()?.kind, sapwood_vfs::FileKind::Directory)?;
    same(s.list()?.len(), 0)?;
    same(t.root().find("s")?.ino(), s.ino())?;
    same(s.parent()?.ino(), t.fs().root())?;
    s.file_of("f", b"content")?;
    let dir = s.dir("d")?;
    dir.file("g")?;
    same(dir.parent()?.ino(), s.ino())?;
    same(t.root().walk("s/f")?.content()?, b"content")?;
    same(t.root().walk("s/d")?.names()?, ["g"])
}

fn it_is_listed(t: &mut Fixture) -> Outcome {
    same(t.subvolumes()?.list()?.len(), 0)?;
    let dir = t.root().dir("d")?;
    let one = subvolume(t, &t.root(), "one")?;
    subvolume(t, &dir, "two")?;
    subvolume(t, &one, "three")?;
    let list = t.subvolumes()?.list()?;
    let mut paths: Vec<_> = list.iter().map(|info| info.path.clone()).collect();
    paths.sort();
    same(paths, [&b"d/two"[..], b"one", b"one/three"])?;
    let ids: Vec<SubvolumeId> = list.iter().map(|info| info.id).collect();
    check(ids.is_sorted(), "the list is not by id")?;
    let (one, three) = (known(info(t, "one")?)?, known(info(t, "one/three")?)?);
    same(three.parent, Some(one.id))?;
    check(!one.read_only, "a new subvolume is read-only")?;
    check(
        one.uuid != three.uuid && one.uuid != [0; 16],
        "no UUID of its own",
    )?;
    same(one.parent_uuid, [0; 16])
}

fn names_are_checked(t: &mut Fixture) -> Outcome {
    let (subvolumes, root) = (t.subvolumes()?, t.fs().root());
    t.root().file("f")?;
    refused(subvolumes.create_subvolume(root, b"f"), Error::Exists)?;
    let long = vec![b'n'; 256];
    refused(subvolumes.create_subvolume(root, &long), Error::NameTooLong)?;
    let file = t.root().find("f")?;
    refused(
        subvolumes.create_subvolume(file.ino(), b"s"),
        Error::NotDirectory,
    )?;
    refused(subvolumes.snapshot(root, root, b"f", false), Error::Exists)?;
    refused(subvolumes.delete_subvolume(root, b"none"), Error::NotFound)?;
    same(subvolumes.list()?.len(), 0)
}

/// Fills a subvolume with a file of every kind.
fn furnish(s: &HeldInode<'_>) -> Outcome {
    let file = s.file_of("file", &pattern(1, 100_000))?;
    file.set_xattr("user.a", b"x")?;
    s.file_of("small", b"small")?;
    s.symlink("symlink", b"target")?;
    let dir = s.dir("dir")?;
    dir.file_of("inside", &pattern(2, 5000))?;
    dir.chmod(0o700)?;
    Ok(())
}

fn check_furnished(s: &HeldInode<'_>) -> Outcome {
    same(s.names()?, ["dir", "file", "small", "symlink"])?;
    let file = s.find("file")?;
    same_bytes(&file.content()?, &pattern(1, 100_000))?;
    same(file.xattr("user.a")?, b"x")?;
    same(s.find("small")?.content()?, b"small")?;
    let link = s.find("symlink")?;
    same(s.fs().readlink(link.ino())?, b"target")?;
    let dir = s.find("dir")?;
    same(dir.attr()?.perm, 0o700)?;
    same_bytes(&dir.find("inside")?.content()?, &pattern(2, 5000))?;
    same(dir.parent()?.ino(), s.ino())
}

fn snapshot_holds_the_same(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    check_furnished(&snapshot(t, &s, "snap", false)?)?;
    check_furnished(&s)?;
    t.fs().sync()?;
    check_furnished(&t.root().find("snap")?)
}

fn snapshot_and_source_part(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    let snap = snapshot(t, &s, "snap", false)?;
    s.find("file")?.write(50_000, b"changed in the source")?;
    s.unlink("small")?;
    s.find("dir")?.file("new")?;
    s.find("dir")?.rename("inside", "moved")?;
    check_furnished(&snap)?;
    t.fs().sync()?;
    check_furnished(&snap)?;
    snap.find("file")?.write(0, b"changed in the snapshot")?;
    snap.find("file")?.set_xattr("user.a", b"y")?;
    snap.find("dir")?.chmod(0o711)?;
    snap.file("only_there")?;
    s.lacks("only_there")?;
    let file = s.find("file")?;
    same_bytes(&file.read(0, 100)?, &pattern(1, 100_000)[..100])?;
    same(file.xattr("user.a")?, b"x")?;
    same(s.find("dir")?.attr()?.perm, 0o700)
}

fn snapshot_holds_what_was_written_before(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let file = s.file("f")?;
    for round in 0..10u64 {
        let bytes = pattern(round, 200_000);
        file.write(round * 200_000, &bytes)?;
        let name = format!("snap{round}");
        let snap = snapshot(t, &s, &name, round % 2 == 0)?;
        let copy = snap.find("f")?;
        same(copy.size()?, (round + 1) * 200_000)?;
        same_bytes(&copy.read(round * 200_000, 300_000)?, &bytes)?;
    }
    file.write(0, &[0; 100])?;
    for round in 0..10u64 {
        let copy = t.root().walk(&format!("snap{round}/f"))?;
        same(copy.size()?, (round + 1) * 200_000)?;
        same_bytes(&copy.read(0, 200_000)?, &pattern(0, 200_000))?;
    }
    Ok(())
}

fn snapshot_keeps_hard_links(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let file = s.file_of("a", b"content")?;
    s.dir("d")?.link(&file, "b")?;
    let snap = snapshot(t, &s, "snap", false)?;
    let (a, b) = (snap.find("a")?, snap.walk("d/b")?);
    same((a.ino(), a.nlink()?), (b.ino(), 2))?;
    a.write(0, b"CONTENT")?;
    same(b.content()?, b"CONTENT")?;
    same(file.content()?, b"content")
}

fn snapshot_of_a_snapshot(t: &mut Fixture) -> Outcome {
    let mut from = subvolume(t, &t.root(), "s")?;
    furnish(&from)?;
    for depth in 0..8 {
        from.file(format!("extra{depth}"))?;
        from.unlink(format!("extra{depth}"))?;
        from = snapshot(t, &from, &format!("snap{depth}"), false)?;
        check_furnished(&from)?;
    }
    t.root().walk("snap3/file")?.truncate(0)?;
    check_furnished(&t.root().find("snap7")?)?;
    check_furnished(&t.root().find("s")?)
}

fn snapshot_needs_the_root_of_a_subvolume(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let (dir, file) = (s.dir("d")?, s.file("f")?);
    for source in [&dir, &file] {
        let result = t
            .subvolumes()?
            .snapshot(source.ino(), t.fs().root(), b"x", false);
        refused(result, Error::Invalid)?;
    }
    t.root().lacks("x")
}

fn snapshot_knows_where_it_is_from(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    snapshot(t, &s, "snap", true)?;
    let (source, snap) = (known(info(t, "s")?)?, known(info(t, "snap")?)?);
    same(snap.parent_uuid, source.uuid)?;
    check(snap.uuid != source.uuid, "both have the same UUID")?;
    check(snap.read_only, "it is writable")?;
    same(source.read_only, false)
}

fn nested_subvolume_is_an_empty_directory_in_a_snapshot(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let dir = s.dir("d")?;
    let nested = subvolume(t, &dir, "nested")?;
    nested.file("inside")?;
    let snap = snapshot(t, &s, "snap", false)?;
    let above = snap.find("d")?;
    let result = t.subvolumes()?.delete_subvolume(above.ino(), b"nested");
    refused(result, Error::Invalid)?;
    let stub = snap.walk("d/nested")?;
    same(stub.attr()?.kind, sapwood_vfs::FileKind::Directory)?;
    same(stub.list()?.len(), 0)?;
    refused(stub.set_xattr("user.x", b"x"), Error::NotSupported)?;
    same(nested.names()?, ["inside"])?;
    same(t.subvolumes()?.list()?.len(), 3)
}

fn read_only_snapshot_refuses_changes(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    let snap = snapshot(t, &s, "snap", true)?;
    let (file, dir) = (snap.find("file")?, snap.find("dir")?);
    let results = [
        snap.file("x").map(drop),
        snap.unlink("file"),
        dir.unlink("inside"),
        snap.rename("file", "x"),
        t.root().rename_to("snap", &snap, "x", RenameMode::Replace),
        snap.rename_to("dir", &t.root(), "x", RenameMode::Replace),
        file.write(0, b"x").map(drop),
        file.truncate(0),
        file.chmod(0).map(drop),
        file.set_xattr("user.b", b"x"),
        snap.link(&file, "x"),
    ];
    for (number, result) in results.into_iter().enumerate() {
        // The fifth operation also moves a directory into itself.
        let invalid = number == 4 && result == Err(Error::Invalid);
        let text = format_args!("number {number}: {result:?}");
        check(invalid || result == Err(Error::ReadOnly), text)?;
    }
    check_furnished(&snap)?;
    s.file("writable")?;
    Ok(())
}

fn read_only_can_be_switched(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let file = s.file("f")?;
    t.subvolumes()?.set_read_only(s.ino(), true)?;
    refused(file.write(0, b"x"), Error::ReadOnly)?;
    same(known(info(t, "s")?)?.read_only, true)?;
    t.root().file("elsewhere")?;
    t.subvolumes()?.set_read_only(s.ino(), false)?;
    file.write(0, b"x")?;
    same(known(info(t, "s")?)?.read_only, false)?;
    let dir = t.root().dir("d")?;
    refused(
        t.subvolumes()?.set_read_only(dir.ino(), true),
        Error::Invalid,
    )
}

fn deleted_one_is_gone(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    let inside = s.find("file")?.ino();
    drop(s);
    t.subvolumes()?.delete_subvolume(t.fs().root(), b"s")?;
    t.root().lacks("s")?;
    refused(t.fs().reference(inside), Error::Stale)?;
    same(t.subvolumes()?.list()?.len(), 0)?;
    t.fs().sync()?;
    subvolume(t, &t.root(), "s")?;
    same(t.root().find("s")?.list()?.len(), 0)
}

fn source_outlives_its_snapshot(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    for round in 0..5 {
        let snap = snapshot(t, &s, "snap", round % 2 == 0)?;
        drop(snap);
        t.subvolumes()?.delete_subvolume(t.fs().root(), b"snap")?;
        t.fs().sync()?;
        check_furnished(&s)?;
    }
    Ok(())
}

fn snapshot_outlives_its_source(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    let snap = snapshot(t, &s, "snap", false)?;
    drop(s);
    t.subvolumes()?.delete_subvolume(t.fs().root(), b"s")?;
    t.fs().sync()?;
    // These files would get blocks that were freed by mistake.
    for number in 0..20 {
        t.root()
            .file_of(format!("n{number}"), &pattern(90 + number, 100_000))?;
    }
    t.fs().sync()?;
    check_furnished(&snap)?;
    if t.capabilities.persistent {
        drop(snap);
        t.remount(false)?;
    }
    check_furnished(&t.root().find("snap")?)
}

fn holder_of_another_is_not_deleted(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let dir = s.dir("d")?;
    subvolume(t, &dir, "nested")?;
    let root = t.fs().root();
    refused(
        t.subvolumes()?.delete_subvolume(root, b"s"),
        Error::NotEmpty,
    )?;
    t.subvolumes()?.delete_subvolume(dir.ino(), b"nested")?;
    drop((s, dir));
    t.subvolumes()?.delete_subvolume(root, b"s")?;
    t.root().lacks("s")
}

fn plain_directory_is_not_deleted(t: &mut Fixture) -> Outcome {
    t.root().dir("d")?;
    let root = t.fs().root();
    refused(t.subvolumes()?.delete_subvolume(root, b"d"), Error::Invalid)?;
    t.root().find("d").map(drop).map_err(Into::into)
}

fn flags_protect_it(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let root = t.fs().root();
    for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        s.set_flags(flag)?;
        let result = t.subvolumes()?.delete_subvolume(root, b"s");
        refused(result, Error::NotPermitted)?;
        s.set_flags(InodeFlags::empty())?;
    }
    drop(s);
    t.subvolumes()?.delete_subvolume(root, b"s")?;
    t.root().lacks("s")
}

fn one_moved_into_a_snapshot_is_not_its_stub(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let nested = subvolume(t, &s, "nested")?;
    nested.file("inside")?;
    let snap = snapshot(t, &s, "snap", false)?;
    s.rename_to("nested", &snap, "moved", RenameMode::Replace)?;
    same(snap.find("nested")?.list()?.len(), 0)?;
    same(snap.find("moved")?.ino(), nested.ino())?;
    same(nested.parent()?.ino(), snap.ino())?;
    let entries = snap.list()?;
    let shown = entries.iter().filter(|entry| entry.ino == nested.ino());
    same(shown.count(), 1)?;
    same(snap.find("moved")?.names()?, ["inside"])
}

fn sparse_unstored_files_are_in_a_snapshot(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    for (name, tail) in [("all", 20_000), ("end", 30_000), ("none", 4096)] {
        let file = s.file_of(name, &[1; 20_000])?;
        file.fallocate(0, tail, AllocMode::PunchHole)?;
    }
    s.file("extended")?.truncate(1 << 30)?;
    s.file_of("cut", &[1; 20_000])?.truncate(10)?;
    let snap = snapshot(t, &s, "snap", true)?;
    for (name, size) in [
        ("all", 20_000),
        ("end", 20_000),
        ("none", 20_000),
        ("extended", 1 << 30),
        ("cut", 10),
    ] {
        same((name, snap.find(name)?.size()?), (name, size))?;
    }
    same(snap.find("cut")?.content()?, [1; 10])?;
    same(snap.find("all")?.content()?, [0; 20_000])
}

fn default_one_can_be_chosen(t: &mut Fixture) -> Outcome {
    let subvolumes = t.subvolumes()?;
    let first = subvolumes.default_subvolume()?;
    same(first, SubvolumeId(5))?;
    let s = subvolume(t, &t.root(), "s")?;
    let id = subvolumes.subvolume_of(s.ino())?;
    drop(s);
    subvolumes.set_default_subvolume(id)?;
    same(subvolumes.default_subvolume()?, id)?;
    let root = t.fs().root();
    refused(subvolumes.delete_subvolume(root, b"s"), Error::NotPermitted)?;
    let missing = subvolumes.set_default_subvolume(SubvolumeId(9_999_999));
    refused(missing, Error::NotFound)?;
    subvolumes.set_default_subvolume(first)?;
    subvolumes.delete_subvolume(root, b"s")?;
    Ok(())
}

fn links_and_renames_do_not_cross(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let (file, inside) = (t.root().file("f")?, s.file("inside")?);
    refused(s.link(&file, "inside"), Error::Exists)?;
    t.root().dir("d")?;
    refused(s.link(&file, "g"), Error::CrossDevice)?;
    refused(t.root().link(&inside, "g"), Error::CrossDevice)?;
    for name in ["f", "d"] {
        let result = t.root().rename_to(name, &s, "g", RenameMode::Replace);
        refused(result, Error::CrossDevice)?;
    }
    let result = s.rename_to("inside", &t.root(), "f", RenameMode::Exchange);
    refused(result, Error::CrossDevice)?;
    // The content of a directory that would be replaced does not matter either.
    let full = s.dir("full")?;
    full.file("x")?;
    let onto = t.root().rename_to("d", &s, "full", RenameMode::Replace);
    refused(onto, Error::CrossDevice)?;
    same(s.names()?, ["full", "inside"])
}

fn its_root_can_be_renamed(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    let other = subvolume(t, &t.root(), "other")?;
    let dir = t.root().dir("d")?;
    t.root().rename("s", "renamed")?;
    t.root()
        .rename_to("renamed", &dir, "s", RenameMode::Replace)?;
    same(s.parent()?.ino(), dir.ino())?;
    dir.rename_to("s", &other, "s", RenameMode::Replace)?;
    same(s.parent()?.ino(), other.ino())?;
    check_furnished(&t.root().walk("other/s")?)?;
    known(info(t, "other/s")?)?;
    let into_itself = t.root().rename_to("other", &s, "x", RenameMode::Replace);
    refused(into_itself, Error::Invalid)
}

fn data_can_be_copied_across(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let bytes = pattern(1, 200_000);
    let (from, to) = (t.root().file_of("f", &bytes)?, s.file("g")?);
    same(from.copy_to(0, &to, 0, 0, CopyMode::Any)?, 200_000)?;
    from.write(0, b"changed")?;
    t.fs().sync()?;
    same_bytes(&to.content()?, &bytes)
}

fn identities_differ(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    t.root().file("f")?;
    let snap = snapshot(t, &s, "snap", false)?;
    let mut inos = vec![
        t.fs().root(),
        s.ino(),
        snap.ino(),
        t.root().find("f")?.ino(),
    ];
    for path in ["file", "small", "symlink", "dir", "dir/inside"] {
        inos.push(s.walk(path)?.ino());
        inos.push(snap.walk(path)?.ino());
    }
    for ino in &inos {
        same(t.fs().reference(*ino)?.attr.ino, *ino)?;
        t.fs().forget(*ino, 1);
    }
    let count = inos.len();
    inos.sort();
    inos.dedup();
    same(inos.len(), count)
}

fn rmdir_removes_an_empty_one(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    s.file("f")?;
    refused(t.root().rmdir("s"), Error::NotEmpty)?;
    s.unlink("f")?;
    drop(s);
    t.root().rmdir("s")?;
    t.root().lacks("s")?;
    same(t.subvolumes()?.list()?.len(), 0)
}

fn they_survive_a_remount(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    furnish(&s)?;
    snapshot(t, &s, "snap", true)?;
    s.file("later")?;
    let id = t.subvolumes()?.subvolume_of(s.ino())?;
    drop(s);
    if t.capabilities.persistent {
        t.remount(false)?;
    }
    let snap = t.root().find("snap")?;
    check_furnished(&snap)?;
    refused(snap.file("x"), Error::ReadOnly)?;
    let s = t.root().find("s")?;
    same(t.subvolumes()?.subvolume_of(s.ino())?, id)?;
    s.find("later")?;
    same(t.subvolumes()?.list()?.len(), 2)?;
    t.subvolumes()?.delete_subvolume(t.fs().root(), b"snap")?;
    if t.capabilities.persistent {
        drop((s, snap));
        t.remount(false)?;
    }
    same(t.subvolumes()?.list()?.len(), 1)?;
    t.root().lacks("snap")
}

fn many_snapshots(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let file = s.file("f")?;
    for number in 0..60u32 {
        file.write(0, &number.to_le_bytes())?;
        snapshot(t, &s, &format!("snap{number}"), false)?;
    }
    for number in (0..60u32).step_by(2) {
        let name = format!("snap{number}");
        t.subvolumes()?
            .delete_subvolume(t.fs().root(), name.as_bytes())?;
    }
    t.fs().sync()?;
    same(t.subvolumes()?.list()?.len(), 31)?;
    for number in (1..60u32).step_by(2) {
        let copy = t.root().walk(&format!("snap{number}/f"))?;
        same(copy.content()?, number.to_le_bytes())?;
    }
    Ok(())
}

fn it_tells_which_subvolume_an_inode_is_in(t: &mut Fixture) -> Outcome {
    let s = subvolume(t, &t.root(), "s")?;
    let (inside, outside) = (s.dir("d")?.file("f")?, t.root().file("f")?);
    let subvolumes = t.subvolumes()?;
    let top = subvolumes.subvolume_of(t.fs().root())?;
    let id = subvolumes.subvolume_of(s.ino())?;
    check(top != id, "both are the same")?;
    same(subvolumes.subvolume_of(inside.ino())?, id)?;
    same(subvolumes.subvolume_at(s.ino())?, id)?;
    refused(subvolumes.subvolume_at(inside.ino()), Error::Invalid)?;
    same(subvolumes.subvolume_of(outside.ino())?, top)?;
    same(known(info(t, "s")?)?.id, id)
}
