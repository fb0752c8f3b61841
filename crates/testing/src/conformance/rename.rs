//! Renames: every kind of file over every kind, in every mode.

use super::case::{Case, group};
use super::support::{Fixture, HeldInode, Outcome, check, pattern, refused, same, same_bytes};
use sapwood_vfs::RenameMode::{Exchange, NoReplace, Replace};
use sapwood_vfs::{Error, FileKind, NewInode, RenameMode, Result};

pub(super) fn cases() -> Vec<Case> {
    group!("rename":
        moves_to_a_free_name,
        replaces_by_kind,
        no_replace_spares_every_target,
        exchange_swaps_every_pair,
        replaces_by_kind_across_directories,
        exchange_swaps_across_directories,
        missing_source_is_not_found,
        missing_target_cannot_be_exchanged,
        directories_must_be_directories,
        same_name_is_no_change,
        two_names_of_one_inode_both_stay,
        directory_into_itself_is_refused,
        directory_over_its_ancestor_is_refused,
        exchange_with_an_ancestor_is_refused,
        replaced_file_lives_while_it_is_held,
        replaced_file_with_another_name_stays,
        replaced_directory_is_removed,
        moved_directory_keeps_its_content,
        exchanged_directories_change_parents,
        rename_survives_a_remount if persistent,
        exchange_survives_a_remount if persistent,
        replacing_survives_a_remount if persistent,
        chains_and_cycles_of_names,
        rename_there_and_back,
        deep_directories_move,
    )
}

/// The kind of inode that a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    File,
    EmptyDir,
    FullDir,
    Symlink,
    Fifo,
}

const THINGS: [Thing; 5] = [
    Thing::File,
    Thing::EmptyDir,
    Thing::FullDir,
    Thing::Symlink,
    Thing::Fifo,
];

impl Thing {
    fn make<'a>(self, dir: &HeldInode<'a>, name: &str) -> Result<HeldInode<'a>> {
        match self {
            Self::File => dir.file_of(name, name.as_bytes()),
            Self::EmptyDir => dir.dir(name),
            Self::FullDir => {
                let made = dir.dir(name)?;
                made.file("inside")?;
                Ok(made)
            }
            Self::Symlink => dir.symlink(name, b"target"),
            Self::Fifo => dir.make(name, NewInode::Fifo, 0o600),
        }
    }

    fn is_dir(self) -> bool {
        matches!(self, Self::EmptyDir | Self::FullDir)
    }

    /// The result of `rename(2)` that replaces `target`.
    fn replaces(self, target: Self) -> Result<()> {
        match (self.is_dir(), target.is_dir()) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            _ if target == Self::FullDir => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }
}

/// Makes `source` as `a` in `from` and `target` as `b` in `to`, renames, and checks the result.
fn try_pair(
    (from, to): (&HeldInode<'_>, &HeldInode<'_>),
    (source, target): (Thing, Thing),
    mode: RenameMode,
    want: Result<()>,
) -> Outcome {
    let context = format!("{source:?} over {target:?}, {mode:?}");
    let one = source.make(from, "a")?;
    let other = target.make(to, "b")?;
    let got = from.rename_to("a", to, "b", mode);
    check(
        got == want,
        format_args!("{context}: got {got:?}, want {want:?}"),
    )?;
    let (at_a, at_b) = match (want.is_ok(), mode) {
        (false, _) => (Some(one.ino()), Some(other.ino())),
        (true, Exchange) => (Some(other.ino()), Some(one.ino())),
        (true, _) => (None, Some(one.ino())),
    };
    let found = |dir: &HeldInode<'_>, name| dir.find(name).ok().map(|found| found.ino());
    let now = (found(from, "a"), found(to, "b"));
    check(
        now == (at_a, at_b),
        format_args!("{context}: names lead to {now:?}"),
    )?;
    let replaced = want.is_ok() && mode != Exchange;
    check(
        (other.nlink()? == 0) == replaced,
        format_args!("{context}: the target has {} links", other.nlink()?),
    )?;
    check(
        one.nlink()? > 0,
        format_args!("{context}: the source lost its link"),
    )?;
    for (dir, name) in [(from, "a"), (to, "b")] {
        clear(dir, name)?;
    }
    Ok(())
}

/// Removes the file or tree that `name` leads to.
fn clear(dir: &HeldInode<'_>, name: &str) -> Outcome {
    let Ok(found) = dir.find(name) else {
        return Ok(());
    };
    if found.attr()?.kind == FileKind::Directory {
        for entry in found.list()? {
            found.unlink(entry.name)?;
        }
        return Ok(dir.rmdir(name)?);
    }
    Ok(dir.unlink(name)?)
}

/// All pairs of kinds, within one directory or between two.
fn try_all(
    t: &Fixture,
    across: bool,
    mode: RenameMode,
    want: impl Fn(Thing, Thing) -> Result<()>,
) -> Outcome {
    let from = t.root().dir("from")?;
    let to = if across {
        t.root().dir("to")?
    } else {
        from.again()?
    };
    for source in THINGS {
        for target in THINGS {
            try_pair((&from, &to), (source, target), mode, want(source, target))?;
        }
    }
    same(from.list()?.len() + to.list()?.len(), 0)
}

fn moves_to_a_free_name(t: &mut Fixture) -> Outcome {
    let (from, to) = (t.root().dir("from")?, t.root().dir("to")?);
    for (number, thing) in THINGS.into_iter().enumerate() {
        for mode in [Replace, NoReplace] {
            let (a, b, c) = (
                format!("a{number}{mode:?}"),
                format!("b{number}{mode:?}"),
                format!("c{number}{mode:?}"),
            );
            let ino = thing.make(&from, &a)?.ino();
            from.rename_to(&a, &from, &b, mode)?;
            from.lacks(&a)?;
            same(from.find(&b)?.ino(), ino)?;
            from.rename_to(&b, &to, &c, mode)?;
            from.lacks(&b)?;
            same(to.find(&c)?.ino(), ino)?;
        }
    }
    same((from.list()?.len(), to.list()?.len()), (0, 10))
}

fn replaces_by_kind(t: &mut Fixture) -> Outcome {
    try_all(t, false, Replace, Thing::replaces)
}

fn replaces_by_kind_across_directories(t: &mut Fixture) -> Outcome {
    try_all(t, true, Replace, Thing::replaces)
}

fn no_replace_spares_every_target(t: &mut Fixture) -> Outcome {
    try_all(t, false, NoReplace, |_, _| Err(Error::Exists))?;
    t.root().rmdir("from")?;
    try_all(t, true, NoReplace, |_, _| Err(Error::Exists))
}

fn exchange_swaps_every_pair(t: &mut Fixture) -> Outcome {
    try_all(t, false, Exchange, |_, _| Ok(()))
}

fn exchange_swaps_across_directories(t: &mut Fixture) -> Outcome {
    try_all(t, true, Exchange, |_, _| Ok(()))
}

fn missing_source_is_not_found(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    t.root().file("b")?;
    for mode in [Replace, NoReplace, Exchange] {
        refused(t.root().rename_to("a", &dir, "x", mode), Error::NotFound)?;
        refused(dir.rename_to("b", &dir, "b", mode), Error::NotFound)?;
    }
    t.root().find("b").map(drop).map_err(Into::into)
}

fn missing_target_cannot_be_exchanged(t: &mut Fixture) -> Outcome {
    t.root().file("a")?;
    refused(
        t.root().rename_to("a", &t.root(), "b", Exchange),
        Error::NotFound,
    )?;
    t.root().find("a").map(drop).map_err(Into::into)
}

fn directories_must_be_directories(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    t.root().file("g")?;
    for mode in [Replace, NoReplace, Exchange] {
        refused(
            t.root().rename_to("g", &file, "x", mode),
            Error::NotDirectory,
        )?;
        refused(
            file.rename_to("x", &t.root(), "y", mode),
            Error::NotDirectory,
        )?;
    }
    Ok(())
}

fn same_name_is_no_change(t: &mut Fixture) -> Outcome {
    for (name, thing) in [("f", Thing::File), ("d", Thing::FullDir)] {
        let ino = thing.make(&t.root(), name)?.ino();
        t.root().rename(name, name)?;
        t.root().rename_to(name, &t.root(), name, Exchange)?;
        refused(
            t.root().rename_to(name, &t.root(), name, NoReplace),
            Error::Exists,
        )?;
        same(t.root().find(name)?.ino(), ino)?;
    }
    same(t.root().find("f")?.nlink()?, 1)
}

fn two_names_of_one_inode_both_stay(t: &mut Fixture) -> Outcome {
    let file = t.root().file("a")?;
    let dir = t.root().dir("d")?;
    t.root().link(&file, "b")?;
    dir.link(&file, "c")?;
    t.root().rename("a", "b")?;
    t.root().rename_to("a", &dir, "c", Replace)?;
    t.root().rename_to("a", &dir, "c", Exchange)?;
    for (dir, name) in [(&t.root(), "a"), (&t.root(), "b"), (&dir, "c")] {
        same(dir.find(name)?.ino(), file.ino())?;
    }
    same(file.nlink()?, 3)
}

fn directory_into_itself_is_refused(t: &mut Fixture) -> Outcome {
    let a = t.root().dir("a")?;
    let b = a.dir("b")?;
    let c = b.dir("c")?;
    for mode in [Replace, NoReplace] {
        for into in [&a, &b, &c] {
            refused(t.root().rename_to("a", into, "x", mode), Error::Invalid)?;
        }
        refused(a.rename_to("b", &c, "x", mode), Error::Invalid)?;
    }
    same(t.root().walk("a/b/c")?.ino(), c.ino())
}

fn directory_over_its_ancestor_is_refused(t: &mut Fixture) -> Outcome {
    let a = t.root().dir("a")?;
    let b = a.dir("b")?;
    b.dir("c")?;
    b.file("f")?;
    refused(a.rename_to("b", &t.root(), "a", Replace), Error::NotEmpty)?;
    refused(b.rename_to("c", &t.root(), "a", Replace), Error::NotEmpty)?;
    refused(b.rename_to("f", &t.root(), "a", Replace), Error::NotEmpty)?;
    refused(b.rename_to("c", &t.root(), "a", NoReplace), Error::Exists)?;
    t.root().walk("a/b/c").map(drop).map_err(Into::into)
}

fn exchange_with_an_ancestor_is_refused(t: &mut Fixture) -> Outcome {
    let a = t.root().dir("a")?;
    let b = a.dir("b")?;
    b.dir("c")?;
    b.file("f")?;
    for (dir, name) in [(&a, "b"), (&b, "c"), (&b, "f")] {
        refused(
            dir.rename_to(name, &t.root(), "a", Exchange),
            Error::Invalid,
        )?;
        refused(t.root().rename_to("a", dir, name, Exchange), Error::Invalid)?;
    }
    t.root().walk("a/b/c").map(drop).map_err(Into::into)
}

fn replaced_file_lives_while_it_is_held(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 60_000);
    let old = t.root().file_of("b", &bytes)?;
    t.root().file_of("a", b"new")?;
    t.root().rename("a", "b")?;
    same(old.nlink()?, 0)?;
    same_bytes(&old.content()?, &bytes)?;
    same(t.root().find("b")?.content()?, b"new")?;
    let ino = old.ino();
    drop(old);
    refused(t.fs().reference(ino), Error::Stale)
}

fn replaced_file_with_another_name_stays(t: &mut Fixture) -> Outcome {
    let old = t.root().file_of("b", b"old")?;
    t.root().link(&old, "c")?;
    t.root().file_of("a", b"new")?;
    t.root().rename("a", "b")?;
    same(old.nlink()?, 1)?;
    same(t.root().find("c")?.content()?, b"old")
}

fn replaced_directory_is_removed(t: &mut Fixture) -> Outcome {
    let old = t.root().dir("b")?;
    t.root().dir("a")?.file("f")?;
    t.root().rename("a", "b")?;
    same(old.nlink()?, 0)?;
    refused(old.file("x"), Error::NotFound)?;
    same(t.root().find("b")?.names()?, ["f"])
}

fn moved_directory_keeps_its_content(t: &mut Fixture) -> Outcome {
    let (a, b) = (t.root().dir("a")?, t.root().dir("b")?);
    let moved = a.dir("m")?;
    let below = moved.dir("below")?;
    let file = below.file_of("f", b"content")?;
    a.rename_to("m", &b, "n", Replace)?;
    same(t.root().walk("b/n/below/f")?.ino(), file.ino())?;
    same(file.content()?, b"content")?;
    same(moved.parent()?.ino(), b.ino())?;
    same(below.parent()?.ino(), moved.ino())?;
    moved.file("new")?;
    same(t.root().walk("b/n")?.names()?, ["below", "new"])
}

fn exchanged_directories_change_parents(t: &mut Fixture) -> Outcome {
    let (a, b) = (t.root().dir("a")?, t.root().dir("b")?);
    let (x, y) = (a.dir("x")?, b.dir("y")?);
    x.file("in_x")?;
    a.rename_to("x", &b, "y", Exchange)?;
    same(x.parent()?.ino(), b.ino())?;
    same(y.parent()?.ino(), a.ino())?;
    same(b.find("y")?.names()?, ["in_x"])?;
    // A file and a directory are exchanged: the link counts of both parents change.
    let file = a.file("f")?;
    a.rename_to("f", &b, "y", Exchange)?;
    same(a.find("f")?.ino(), x.ino())?;
    same(b.find("y")?.ino(), file.ino())?;
    same(x.parent()?.ino(), a.ino())?;
    let links = if t.capabilities.directory_links {
        (4, 2)
    } else {
        (1, 1)
    };
    same((a.nlink()?, b.nlink()?), links)
}

fn rename_survives_a_remount(t: &mut Fixture) -> Outcome {
    let (a, b) = (t.root().dir("a")?, t.root().dir("b")?);
    a.file_of("f", b"content")?;
    a.dir("d")?.file("inside")?;
    t.fs().sync()?;
    a.rename_to("f", &b, "g", Replace)?;
    a.rename_to("d", &b, "e", Replace)?;
    drop((a, b));
    t.remount(false)?;
    same(t.root().find("a")?.list()?.len(), 0)?;
    same(t.root().walk("b/g")?.content()?, b"content")?;
    same(t.root().walk("b/e")?.names()?, ["inside"])?;
    let (b, e) = (t.root().find("b")?, t.root().walk("b/e")?);
    same(e.parent()?.ino(), b.ino())
}

fn exchange_survives_a_remount(t: &mut Fixture) -> Outcome {
    let (a, b) = (t.root().dir("a")?, t.root().dir("b")?);
    a.file_of("f", b"content")?;
    b.dir("d")?.file("inside")?;
    t.fs().sync()?;
    a.rename_to("f", &b, "d", Exchange)?;
    drop((a, b));
    t.remount(false)?;
    same(t.root().walk("b/d")?.content()?, b"content")?;
    same(t.root().walk("a/f")?.names()?, ["inside"])
}

fn replacing_survives_a_remount(t: &mut Fixture) -> Outcome {
    for number in 0..30 {
        t.root()
            .file_of(format!("old{number}"), &pattern(number, 5000))?;
        t.root()
            .file_of(format!("new{number}"), &pattern(100 + number, 6000))?;
    }
    t.fs().sync()?;
    for number in 0..30 {
        t.root()
            .rename(format!("new{number}"), format!("old{number}"))?;
    }
    t.remount(false)?;
    for number in 0..30 {
        let found = t.root().find(format!("old{number}"))?;
        same_bytes(&found.content()?, &pattern(100 + number, 6000))?;
        t.root().lacks(format!("new{number}"))?;
    }
    Ok(())
}

fn chains_and_cycles_of_names(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    for name in ["a", "b", "c"] {
        dir.file_of(name, name.as_bytes())?;
    }
    dir.rename("c", "tmp")?;
    dir.rename("b", "c")?;
    dir.rename("a", "b")?;
    dir.rename("tmp", "a")?;
    same(dir.names()?, ["a", "b", "c"])?;
    for (name, content) in [("a", b"c"), ("b", b"a"), ("c", b"b")] {
        same(dir.find(name)?.content()?, content)?;
    }
    dir.rename_to("a", &dir, "b", Exchange)?;
    dir.rename_to("b", &dir, "c", Exchange)?;
    for (name, content) in [("a", b"a"), ("b", b"b"), ("c", b"c")] {
        same(dir.find(name)?.content()?, content)?;
    }
    Ok(())
}

fn rename_there_and_back(t: &mut Fixture) -> Outcome {
    let (a, b) = (t.root().dir("a")?, t.root().dir("b")?);
    let file = a.file_of("f", b"content")?;
    for round in 0..100 {
        a.rename_to("f", &b, "g", Replace)?;
        b.rename_to("g", &a, "f", Replace)?;
        if round % 40 == 0 {
            t.fs().sync()?;
        }
    }
    same((a.list()?.len(), b.list()?.len()), (1, 0))?;
    same(a.find("f")?.ino(), file.ino())?;
    same((file.nlink()?, file.content()?), (1, b"content".to_vec()))
}

fn deep_directories_move(t: &mut Fixture) -> Outcome {
    let top = t.root().dir("top")?;
    let mut at = top.dir("d")?;
    for _ in 0..50 {
        at = at.dir("d")?;
    }
    let bottom = at.ino();
    refused(t.root().rename_to("top", &at, "x", Replace), Error::Invalid)?;
    // The lower half moves to the root, and the upper half moves below it.
    let path = ["top"].into_iter().chain(["d"; 25]).collect::<Vec<_>>();
    let middle = t.root().walk(&path.join("/"))?;
    middle.rename_to("d", &t.root(), "other", Replace)?;
    t.root().rename_to("top", &at, "top", Replace)?;
    let path = ["other"].into_iter().chain(["d"; 25]).collect::<Vec<_>>();
    let found = t.root().walk(&path.join("/"))?;
    same(found.ino(), bottom)?;
    same(found.names()?, ["top"])?;
    refused(
        middle.rename_to("x", &t.root(), "y", Replace),
        Error::NotFound,
    )?;
    refused(
        t.root().rename_to("other", &middle, "x", Replace),
        Error::Invalid,
    )
}
