//! Names and references, changed by many threads.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{THREADS, tally};
use crate::conformance::case::{Case, group};
use crate::conformance::support::{
    Fixture, HeldInode, Outcome, check, parallel, pattern, refused, same, same_bytes,
};
use sapwood_vfs::{Error, RenameMode};

pub(super) fn cases() -> Vec<Case> {
    group!("threads":
        create_in_one_directory,
        create_in_many_directories,
        one_creator_wins,
        one_remover_wins,
        one_renamer_wins,
        names_come_and_go,
        a_created_file_outlives_its_name,
        renames_between_two_directories,
        exchanges_keep_everybody,
        opposite_directory_moves_make_no_cycle,
        rename_storm_in_a_deep_tree,
        links_are_counted,
        listing_sees_what_stays,
        listing_and_lookup_under_renames,
        exchanged_names_are_never_missing,
        references_and_removal,
        replacing_a_file_is_never_seen_halfway,
        directories_removed_under_creators,
        tmpfiles_get_names if tmpfile,
    )
}

fn create_in_one_directory(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    parallel(THREADS, |thread| {
        for number in 0..150 {
            let name = format!("{thread}-{number}");
            match number % 5 {
                0 => drop(dir.dir(name)?),
                1 => drop(dir.symlink(name, b"t")?),
                _ => drop(dir.file_of(name, &[thread as u8])?),
            }
        }
        Ok(())
    })?;
    let entries = dir.list()?;
    same(entries.len(), THREADS * 150)?;
    let inos: BTreeSet<_> = entries.iter().map(|entry| entry.ino).collect();
    same(inos.len(), THREADS * 150)?;
    same(dir.find("3-7")?.content()?, [3])?;
    if t.capabilities.directory_links {
        same(dir.nlink()?, 2 + THREADS as u32 * 30)?;
    }
    Ok(())
}

fn create_in_many_directories(t: &mut Fixture) -> Outcome {
    let root = t.root();
    parallel(THREADS, |thread| {
        let dir = root.dir(format!("d{thread}"))?;
        for number in 0..150 {
            let bytes = pattern(number, 3000);
            dir.file_of(format!("f{number}"), &bytes)?;
            if number % 3 == 0 {
                dir.unlink(format!("f{number}"))?;
            }
        }
        Ok(())
    })?;
    for thread in 0..THREADS {
        let dir = root.find(format!("d{thread}"))?;
        same(dir.list()?.len(), 100)?;
        same_bytes(&dir.find("f100")?.content()?, &pattern(100, 3000))?;
    }
    Ok(())
}

fn one_creator_wins(t: &mut Fixture) -> Outcome {
    let root = t.root();
    for round in 0..50 {
        let wins = AtomicUsize::new(0);
        parallel(THREADS, |_| {
            tally(root.file(format!("n{round}")), &[Error::Exists], &wins)
        })?;
        same(wins.into_inner(), 1)?;
    }
    let names = root.names()?;
    same(
        names.iter().filter(|name| name.starts_with('n')).count(),
        50,
    )
}

fn one_remover_wins(t: &mut Fixture) -> Outcome {
    let root = t.root();
    for round in 0..50 {
        let wins = AtomicUsize::new(0);
        let gone = [Error::NotFound];
        if round % 2 == 0 {
            root.file("n")?;
            parallel(THREADS, |_| tally(root.unlink("n"), &gone, &wins))?;
        } else {
            root.dir("n")?;
            parallel(THREADS, |_| tally(root.rmdir("n"), &gone, &wins))?;
        }
        same(wins.into_inner(), 1)?;
        root.lacks("n")?;
    }
    Ok(())
}

fn one_renamer_wins(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let dir = root.dir("d")?;
    for round in 0..50 {
        let ino = root.file("n")?.ino();
        let wins = AtomicUsize::new(0);
        parallel(THREADS, |thread| {
            let name = format!("{round}-{thread}");
            let result = root.rename_to("n", &dir, name, RenameMode::NoReplace);
            tally(result, &[Error::NotFound], &wins)
        })?;
        same(wins.into_inner(), 1)?;
        let found = dir.list()?.into_iter().filter(|entry| entry.ino == ino);
        same(found.count(), 1)?;
    }
    same(dir.list()?.len(), 50)
}

fn names_come_and_go(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let allowed = [
        Error::NotFound,
        Error::Exists,
        Error::NotEmpty,
        Error::Stale,
    ];
    let any = AtomicUsize::new(0);
    parallel(THREADS, |thread| {
        let mut random = fastrand::Rng::with_seed(thread as u64);
        for _ in 0..200 {
            let name = format!("n{}", random.u8(..3));
            match random.u8(..4) {
                0 => tally(root.dir(&name), &allowed, &any)?,
                1 => tally(root.rmdir(&name), &allowed, &any)?,
                2 => tally(root.find(&name), &allowed, &any)?,
                _ => {
                    if let Ok(dir) = root.find(&name) {
                        tally(dir.dir("x"), &allowed, &any)?;
                        tally(dir.rmdir("x"), &allowed, &any)?;
                    }
                }
            }
        }
        Ok(())
    })?;
    for number in 0..3 {
        if let Ok(dir) = root.find(format!("n{number}")) {
            tally(dir.rmdir("x"), &allowed, &any)?;
            root.rmdir(format!("n{number}"))?;
        }
    }
    same(
        root.names()?
            .iter()
            .filter(|name| name.starts_with('n'))
            .count(),
        0,
    )
}

/// A creator gets its file, even if another thread removes the name before `create` returns.
fn a_created_file_outlives_its_name(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let created = AtomicBool::new(false);
    let wins = AtomicUsize::new(0);
    parallel(THREADS, |thread| {
        if thread == 0 {
            let results = (0..2000).try_for_each(|_| match root.file("n") {
                Ok(file) => file.attr().map(drop),
                Err(Error::Exists) => Ok(()),
                Err(error) => Err(error),
            });
            created.store(true, Ordering::Relaxed);
            return tally(results, &[], &wins);
        }
        while !created.load(Ordering::Relaxed) {
            tally(root.unlink("n"), &[Error::NotFound], &wins)?;
        }
        Ok(())
    })
}

fn renames_between_two_directories(t: &mut Fixture) -> Outcome {
    let (a, b) = (t.root().dir("a")?, t.root().dir("b")?);
    for thread in 0..THREADS {
        a.file_of(format!("f{thread}"), &[thread as u8])?;
    }
    parallel(THREADS, |thread| {
        let name = format!("f{thread}");
        for _ in 0..100 {
            a.rename_to(&name, &b, &name, RenameMode::Replace)?;
            b.rename_to(&name, &a, &name, RenameMode::Replace)?;
        }
        Ok(())
    })?;
    same((a.list()?.len(), b.list()?.len()), (THREADS, 0))?;
    for thread in 0..THREADS {
        same(a.find(format!("f{thread}"))?.content()?, [thread as u8])?;
    }
    Ok(())
}

fn exchanges_keep_everybody(t: &mut Fixture) -> Outcome {
    let dirs = [t.root().dir("a")?, t.root().dir("b")?, t.root().dir("c")?];
    let mut inos = BTreeSet::new();
    for dir in &dirs {
        for name in ["x", "y"] {
            inos.insert(match name {
                "x" => dir.file(name)?.ino(),
                _ => dir.dir(name)?.ino(),
            });
        }
    }
    parallel(THREADS, |thread| {
        let mut random = fastrand::Rng::with_seed(thread as u64);
        let mut name = || if random.bool() { "x" } else { "y" };
        let mut order = fastrand::Rng::with_seed(100 + thread as u64);
        for _ in 0..150 {
            let (from, to) = (&dirs[order.usize(..3)], &dirs[order.usize(..3)]);
            from.rename_to(name(), to, name(), RenameMode::Exchange)?;
        }
        Ok(())
    })?;
    let mut found = BTreeSet::new();
    for dir in &dirs {
        same(dir.names()?, ["x", "y"])?;
        found.extend(dir.list()?.into_iter().map(|entry| entry.ino));
        for entry in dir.list()? {
            if entry.kind == sapwood_vfs::FileKind::Directory {
                let inner = dir.find(&entry.name)?;
                same(inner.parent()?.ino(), dir.ino())?;
            }
        }
    }
    same(found, inos)
}

fn opposite_directory_moves_make_no_cycle(t: &mut Fixture) -> Outcome {
    let root = t.root();
    for _ in 0..40 {
        let (a, b) = (root.dir("a")?, root.dir("b")?);
        let wins = AtomicUsize::new(0);
        // The second rename finds that its source is gone from the root; or, if the engine looks
        // the name up first, that the source would become its own ancestor.
        let lost = [Error::Invalid, Error::NotFound];
        parallel(2, |thread| {
            let result = match thread {
                0 => root.rename_to("a", &b, "a", RenameMode::Replace),
                _ => root.rename_to("b", &a, "b", RenameMode::Replace),
            };
            tally(result, &lost, &wins)
        })?;
        same(wins.into_inner(), 1)?;
        if root.find("a").is_ok() {
            same(b.parent()?.ino(), a.ino())?;
            a.rmdir("b")?;
            root.rmdir("a")?;
        } else {
            same(a.parent()?.ino(), b.ino())?;
            b.rmdir("a")?;
            root.rmdir("b")?;
        }
    }
    Ok(())
}

/// Number of directories below `dir`. The parent of each must be the directory in which it was
/// found.
fn count_tree(dir: &HeldInode<'_>) -> Outcome<usize> {
    let mut count = 0;
    for entry in dir.list()? {
        let below = dir.find(&entry.name)?;
        same(below.parent()?.ino(), dir.ino())?;
        count += 1 + count_tree(&below)?;
    }
    Ok(count)
}

fn rename_storm_in_a_deep_tree(t: &mut Fixture) -> Outcome {
    let top = t.root().dir("top")?;
    let mut dirs = vec![top.again()?];
    let mut random = fastrand::Rng::with_seed(5);
    for number in 0..24 {
        let above = &dirs[random.usize(..dirs.len())];
        dirs.push(above.dir(format!("d{number}"))?);
    }
    let dirs = &dirs;
    let moved = AtomicUsize::new(0);
    parallel(THREADS, |thread| {
        let mut random = fastrand::Rng::with_seed(thread as u64);
        let lost = [
            Error::NotFound,
            Error::Invalid,
            Error::NotEmpty,
            Error::Exists,
        ];
        for _ in 0..300 {
            let from = &dirs[random.usize(..dirs.len())];
            let to = &dirs[random.usize(..dirs.len())];
            let name = format!("d{}", random.u8(..24));
            let (target, mode) = match random.u8(..4) {
                0 => (format!("d{}", random.u8(..24)), RenameMode::Exchange),
                _ => (name.clone(), RenameMode::NoReplace),
            };
            tally(from.rename_to(name, to, target, mode), &lost, &moved)?;
        }
        Ok(())
    })?;
    same(count_tree(&top)?, 24)
}

fn links_are_counted(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let root = t.root();
    parallel(THREADS, |thread| {
        let dir = root.dir(format!("d{thread}"))?;
        for round in 0..100 {
            dir.link(&file, format!("l{round}"))?;
            if round % 2 == 0 {
                dir.unlink(format!("l{round}"))?;
            }
        }
        Ok(())
    })?;
    same(file.nlink()? as usize, 1 + THREADS * 50)
}

fn listing_sees_what_stays(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    for number in 0..200 {
        dir.file(format!("stays-{number}"))?;
    }
    parallel(THREADS, |thread| {
        for round in 0..40 {
            if thread < 4 {
                let name = format!("goes-{thread}-{round}");
                dir.file(&name)?;
                dir.rename(&name, format!("went-{thread}"))?;
                continue;
            }
            let (mut at, mut seen) = (0, BTreeSet::new());
            loop {
                let page = dir.page(at, 37)?;
                let Some(last) = page.last() else { break };
                at = last.next;
                for entry in page {
                    if entry.name.starts_with(b"stays-") {
                        let new = seen.insert(entry.name);
                        check(new, "an entry was listed twice")?;
                    }
                }
            }
            same(seen.len(), 200)?;
        }
        Ok(())
    })?;
    same(dir.list()?.len(), 204)
}

fn listing_and_lookup_under_renames(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let file = dir.file_of("a", b"x")?;
    let done = AtomicBool::new(false);
    parallel(4, |thread| {
        if thread == 0 {
            for round in 0..400 {
                let (from, to) = if round % 2 == 0 {
                    ("a", "b")
                } else {
                    ("b", "a")
                };
                dir.rename(from, to)?;
            }
            done.store(true, Ordering::Release);
            return Ok(());
        }
        while !done.load(Ordering::Acquire) {
            for name in ["a", "b"] {
                match dir.find(name) {
                    Ok(found) => same(found.ino(), file.ino())?,
                    Err(error) => same(error, Error::NotFound)?,
                }
            }
            for entry in dir.list()? {
                same(entry.ino, file.ino())?;
            }
        }
        Ok(())
    })?;
    same(dir.names()?, ["a"])
}

fn exchanged_names_are_never_missing(t: &mut Fixture) -> Outcome {
    let (one, two) = (t.root().dir("one")?, t.root().dir("two")?);
    let inos = [one.file("a")?.ino(), two.file("b")?.ino()];
    let done = AtomicBool::new(false);
    parallel(4, |thread| {
        if thread == 0 {
            for _ in 0..300 {
                one.rename_to("a", &two, "b", RenameMode::Exchange)?;
            }
            done.store(true, Ordering::Release);
            return Ok(());
        }
        while !done.load(Ordering::Acquire) {
            for (dir, name) in [(&one, "a"), (&two, "b")] {
                let found = dir.find(name)?.ino();
                check(inos.contains(&found), "a third inode")?;
            }
        }
        Ok(())
    })?;
    same([one.find("a")?.ino(), two.find("b")?.ino()], inos)
}

fn references_and_removal(t: &mut Fixture) -> Outcome {
    let root = t.root();
    for round in 0..60u8 {
        let made = root.file_of("f", &[round; 5000])?;
        let ino = made.ino();
        let keeper = std::sync::Mutex::new(Some(made));
        parallel(4, |thread| {
            match thread {
                0 => root.unlink("f")?,
                1 => drop(keeper.lock().map(|mut keeper| keeper.take())),
                _ => match root.find("f") {
                    Ok(found) => {
                        let content = found.content()?;
                        same_bytes(&content, &[round; 5000])?;
                        drop(found.again()?);
                        same_bytes(&found.content()?, &[round; 5000])?;
                    }
                    Err(error) => same(error, Error::NotFound)?,
                },
            }
            Ok(())
        })?;
        refused(t.fs().reference(ino), Error::Stale)?;
    }
    Ok(())
}

fn replacing_a_file_is_never_seen_halfway(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.file_of("f", &[0; 3000])?;
    let done = AtomicBool::new(false);
    parallel(4, |thread| {
        if thread == 0 {
            for round in 0..150u8 {
                dir.file_of("new", &[round; 3000])?;
                dir.rename("new", "f")?;
            }
            done.store(true, Ordering::Release);
            return Ok(());
        }
        let mut last = 0;
        while !done.load(Ordering::Acquire) {
            let bytes = dir.find("f")?.read(0, 4000)?;
            same(bytes.len(), 3000)?;
            check(bytes.iter().all(|byte| *byte == bytes[0]), "mixed content")?;
            check(bytes[0] >= last, "an older file came back")?;
            last = bytes[0];
        }
        Ok(())
    })?;
    same(dir.names()?, ["f"])
}

fn directories_removed_under_creators(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let allowed = [Error::NotFound, Error::NotEmpty, Error::Exists];
    for _ in 0..60 {
        let dir = root.dir("d")?;
        let (created, removed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        parallel(4, |thread| match thread {
            0 => tally(root.rmdir("d"), &allowed, &removed),
            _ => tally(dir.file(format!("f{thread}")), &allowed, &created),
        })?;
        // Either the directory is removed and nothing was made in it, or it stays with all its
        // entries.
        match removed.into_inner() {
            1 => {
                same(created.into_inner(), 0)?;
                same(dir.list()?.len(), 0)?;
                root.lacks("d")?;
            }
            _ => {
                same(created.into_inner(), 3)?;
                for entry in dir.list()? {
                    dir.unlink(entry.name)?;
                }
                root.rmdir("d")?;
            }
        }
    }
    Ok(())
}

fn tmpfiles_get_names(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let wins = AtomicUsize::new(0);
    parallel(THREADS, |thread| {
        for round in 0..40 {
            let file = root.tmpfile(0o600)?;
            file.write(0, &[thread as u8; 100])?;
            let name = format!("f{round}");
            tally(root.link(&file, &name), &[Error::Exists], &wins)?;
        }
        Ok(())
    })?;
    same(wins.into_inner(), 40)?;
    for round in 0..40 {
        let content = root.find(format!("f{round}"))?.content()?;
        same(content.len(), 100)?;
        check(
            content.iter().all(|byte| *byte == content[0]),
            "mixed content",
        )?;
    }
    Ok(())
}
