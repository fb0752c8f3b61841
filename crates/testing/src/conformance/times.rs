//! The times that each operation changes. A case first sets the times of every inode to the past,
//! so no case depends on the granularity of the clock.

use super::case::{Case, group};
use super::support::{Fixture, HeldInode, LONG_AGO, Outcome, check, same};
use sapwood_vfs::{AllocMode, CopyMode, RenameMode, SetAttr, SetXattrMode, SyncKind, WriteMode};

pub(super) fn cases() -> Vec<Case> {
    group!("times":
        create_moves_the_directory,
        unlink_moves_directory_and_inode,
        rmdir_moves_the_directory_above,
        link_moves_directory_and_inode,
        rename_moves_both_directories_and_the_inode,
        rename_within_a_directory_moves_it,
        replaced_inode_changes,
        exchange_moves_everybody,
        write_moves_content_times,
        writeback_leaves_times_alone,
        empty_write_moves_nothing,
        truncate_moves_content_times,
        truncate_to_the_same_size_moves_times,
        fallocate_moves_content_times,
        copy_moves_the_target_only,
        attribute_changes_move_ctime_only,
        xattr_changes_move_ctime_only,
        flag_changes_move_ctime_only,
        reading_moves_no_content_times,
        failed_operations_move_nothing,
        birth_time_never_moves,
    )
}

/// The times that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Nothing,
    /// ctime
    Inode,
    /// mtime and ctime
    Content,
}
use Moved::{Content, Inode, Nothing};

/// Checks which times of `node` changed since they were last set to the past, and sets them again.
#[track_caller]
fn moved(node: &HeldInode<'_>, want: Moved) -> Outcome {
    let attr = node.attr()?;
    let got = match (attr.mtime != LONG_AGO, attr.ctime != LONG_AGO) {
        (false, false) => Nothing,
        (false, true) => Inode,
        (true, true) => Content,
        (true, false) => return check(false, "mtime moved without ctime"),
    };
    same(got, want)?;
    Ok(node.age()?)
}

fn aged<'a>(nodes: impl IntoIterator<Item = &'a HeldInode<'a>>) -> Outcome {
    for node in nodes {
        node.age()?;
    }
    Ok(())
}

fn create_moves_the_directory(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.age()?;
    dir.file("f")?;
    moved(&dir, Content)?;
    dir.dir("e")?;
    moved(&dir, Content)?;
    dir.symlink("s", b"f")?;
    moved(&dir, Content)
}

fn unlink_moves_directory_and_inode(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let file = dir.file("f")?;
    dir.link(&file, "g")?;
    aged([&dir, &file])?;
    dir.unlink("f")?;
    moved(&dir, Content)?;
    moved(&file, Inode)?;
    dir.unlink("g")?;
    moved(&dir, Content)?;
    moved(&file, Inode)
}

fn rmdir_moves_the_directory_above(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.dir("e")?;
    dir.age()?;
    dir.rmdir("e")?;
    moved(&dir, Content)
}

fn link_moves_directory_and_inode(t: &mut Fixture) -> Outcome {
    let (dir, file) = (t.root().dir("d")?, t.root().file("f")?);
    aged([&dir, &file])?;
    dir.link(&file, "g")?;
    moved(&dir, Content)?;
    moved(&file, Inode)
}

fn rename_moves_both_directories_and_the_inode(t: &mut Fixture) -> Outcome {
    let (from, to) = (t.root().dir("from")?, t.root().dir("to")?);
    let (file, dir) = (from.file("f")?, from.dir("d")?);
    for (node, name) in [(&file, "f"), (&dir, "d")] {
        aged([&from, &to, node])?;
        from.rename_to(name, &to, name, RenameMode::Replace)?;
        moved(&from, Content)?;
        moved(&to, Content)?;
        moved(node, Inode)?;
    }
    Ok(())
}

fn rename_within_a_directory_moves_it(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let file = dir.file("f")?;
    aged([&dir, &file])?;
    dir.rename("f", "g")?;
    moved(&dir, Content)?;
    moved(&file, Inode)
}

fn replaced_inode_changes(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let (new, old) = (dir.file("new")?, dir.file("old")?);
    dir.link(&old, "other")?;
    aged([&dir, &new, &old])?;
    dir.rename("new", "old")?;
    moved(&dir, Content)?;
    moved(&new, Inode)?;
    moved(&old, Inode)
}

fn exchange_moves_everybody(t: &mut Fixture) -> Outcome {
    let (one, two) = (t.root().dir("one")?, t.root().dir("two")?);
    let (a, b) = (one.file("a")?, two.dir("b")?);
    aged([&one, &two, &a, &b])?;
    one.rename_to("a", &two, "b", RenameMode::Exchange)?;
    moved(&one, Content)?;
    moved(&two, Content)?;
    moved(&a, Inode)?;
    moved(&b, Inode)
}

fn write_moves_content_times(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.age()?;
    file.write(0, b"abc")?;
    moved(&file, Content)?;
    file.write(0, b"abc")?;
    moved(&file, Content)?;
    file.append(b"d")?;
    moved(&file, Content)?;
    t.fs().fsync(file.ino(), SyncKind::All)?;
    moved(&file, Nothing)
}

fn writeback_leaves_times_alone(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.age()?;
    let mode = WriteMode {
        writeback: true,
        ..WriteMode::default()
    };
    file.write_mode(0, &[1; 10_000], mode)?;
    moved(&file, Nothing)?;
    t.fs().sync()?;
    moved(&file, Nothing)?;
    same(file.size()?, 10_000)
}

fn empty_write_moves_nothing(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    file.age()?;
    file.write(1, b"")?;
    moved(&file, Nothing)
}

fn truncate_moves_content_times(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", &[1; 10_000])?;
    file.age()?;
    for size in [5000, 20_000, 0] {
        file.truncate(size)?;
        moved(&file, Content)?;
    }
    Ok(())
}

fn truncate_to_the_same_size_moves_times(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    file.age()?;
    file.truncate(3)?;
    moved(&file, Content)
}

fn fallocate_moves_content_times(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", &[1; 20_000])?;
    let mut modes = Vec::new();
    if t.capabilities.preallocate {
        modes.extend([false, true].map(|keep_size| AllocMode::Allocate { keep_size }));
    }
    if t.capabilities.punch_hole {
        modes.push(AllocMode::PunchHole);
    }
    if t.capabilities.zero_range {
        modes.push(AllocMode::ZeroRange { keep_size: false });
    }
    file.age()?;
    for mode in modes {
        file.fallocate(8192, 30_000, mode)?;
        moved(&file, Content)?;
    }
    Ok(())
}

fn copy_moves_the_target_only(t: &mut Fixture) -> Outcome {
    let (from, to) = (t.root().file_of("f", &[1; 9000])?, t.root().file("g")?);
    aged([&from, &to])?;
    from.copy_to(0, &to, 0, 0, CopyMode::Any)?;
    moved(&from, Nothing)?;
    moved(&to, Content)
}

fn attribute_changes_move_ctime_only(t: &mut Fixture) -> Outcome {
    let (file, dir) = (t.root().file("f")?, t.root().dir("d")?);
    for node in [&file, &dir] {
        node.age()?;
        node.chmod(0o700)?;
        moved(node, Inode)?;
        node.chown(1, 2)?;
        moved(node, Inode)?;
        node.set(&SetAttr {
            btime: Some(LONG_AGO),
            ..SetAttr::default()
        })?;
        moved(node, Inode)?;
    }
    Ok(())
}

fn xattr_changes_move_ctime_only(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.age()?;
    file.set_xattr("user.a", b"1")?;
    moved(&file, Inode)?;
    file.set_xattr_mode("user.a", b"2", SetXattrMode::Replace)?;
    moved(&file, Inode)?;
    file.xattr("user.a")?;
    file.xattrs()?;
    moved(&file, Nothing)?;
    file.remove_xattr("user.a")?;
    moved(&file, Inode)
}

fn flag_changes_move_ctime_only(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.age()?;
    file.set_flags(sapwood_vfs::InodeFlags::NODUMP)?;
    moved(&file, Inode)
}

fn reading_moves_no_content_times(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let file = dir.file_of("f", b"abc")?;
    let link = dir.symlink("s", b"f")?;
    aged([&dir, &file, &link])?;
    file.content()?;
    file.hole_from(0)?;
    dir.list()?;
    dir.find("f")?;
    dir.lacks("g")?;
    t.fs().readlink(link.ino())?;
    t.fs().fsxattr(file.ino())?;
    for node in [&dir, &file, &link] {
        moved(node, Nothing)?;
    }
    Ok(())
}

fn failed_operations_move_nothing(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let (file, below) = (dir.file_of("f", b"abc")?, dir.dir("below")?);
    below.file("inside")?;
    aged([&dir, &file, &below])?;
    let results = [
        dir.file("f").map(drop),
        dir.unlink("g"),
        dir.unlink("below"),
        dir.rmdir("below"),
        dir.rmdir("f"),
        dir.link(&file, "below"),
        dir.rename("f", "below"),
        dir.rename("below", "f"),
        dir.rename_to("f", &dir, "below", RenameMode::NoReplace),
        file.truncate(u64::MAX),
        file.write(u64::MAX, b"x").map(drop),
        file.remove_xattr("user.none"),
        file.set_xattr_mode("user.none", b"", SetXattrMode::Replace),
        file.fallocate(0, 0, AllocMode::Allocate { keep_size: false }),
    ];
    for (number, result) in results.into_iter().enumerate() {
        check(result.is_err(), format_args!("number {number} succeeded"))?;
    }
    for node in [&dir, &file, &below] {
        moved(node, Nothing)?;
    }
    Ok(())
}

fn birth_time_never_moves(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.set(&SetAttr {
        btime: Some(LONG_AGO),
        ..SetAttr::default()
    })?;
    file.write(0, b"abc")?;
    file.chmod(0o600)?;
    file.truncate(0)?;
    t.root().rename("f", "g")?;
    t.root().link(&file, "h")?;
    t.fs().sync()?;
    same(file.attr()?.btime, LONG_AGO)
}
