//! Listing directories.

use std::collections::{BTreeMap, BTreeSet};

use super::case::{Case, group};
use super::support::{Fixture, HeldInode, Outcome, check, refused, same};
use sapwood_vfs::{DirEntry, Error, FileKind, Ino, NewInode};

pub(super) fn cases() -> Vec<Case> {
    group!("readdir":
        empty_directory_lists_nothing,
        entries_say_what_names_lead_to,
        listing_of_a_file_is_refused,
        positions_go_on_behind_an_entry,
        every_page_size_lists_all,
        order_is_stable,
        end_position_lists_nothing,
        other_positions_continue_with_the_next_entry if persistent,
        big_directory_lists_all_once,
        big_directory_can_be_emptied_while_listing,
        removal_behind_the_position_changes_nothing,
        removal_of_the_entry_at_the_position_is_harmless,
        additions_while_listing_repeat_nothing,
        renames_while_listing_repeat_nothing_else,
        listing_ends_while_its_entries_are_renamed_away_and_back,
        listing_survives_a_remount if persistent,
        long_names_fill_pages,
        directory_can_shrink_and_grow,
    )
}

fn empty_directory_lists_nothing(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    same(dir.list()?.len(), 0)?;
    dir.file("f")?;
    dir.unlink("f")?;
    same(dir.list()?.len(), 0)
}

fn entries_say_what_names_lead_to(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let mut want = BTreeMap::new();
    for (name, what) in [
        ("f", NewInode::Regular),
        ("d", NewInode::Directory),
        ("s", NewInode::Symlink(b"t")),
        ("c", NewInode::CharDevice(1)),
        ("b", NewInode::BlockDevice(1)),
        ("p", NewInode::Fifo),
        ("k", NewInode::Socket),
    ] {
        let inode = dir.make(name, what, 0o600)?;
        want.insert(name.as_bytes().to_vec(), (inode.ino(), what.kind()));
    }
    let listed = dir.list()?;
    let got: BTreeMap<_, _> = listed
        .into_iter()
        .map(|entry| (entry.name, (entry.ino, entry.kind)))
        .collect();
    same(got, want)
}

fn listing_of_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    refused(file.list(), Error::NotDirectory)?;
    let link = t.root().symlink("s", b".")?;
    refused(link.list(), Error::NotDirectory)
}

fn fill(dir: &HeldInode<'_>, count: usize) -> Outcome<BTreeSet<Vec<u8>>> {
    let mut names = BTreeSet::new();
    for number in 0..count {
        let name = format!("entry-{number}");
        dir.file(&name)?;
        names.insert(name.into_bytes());
    }
    Ok(names)
}

/// Lists in pages of `limit`, and calls `between` after each page with its entries.
fn paged(
    dir: &HeldInode<'_>,
    limit: usize,
    mut between: impl FnMut(&[DirEntry]) -> Outcome,
) -> Outcome<Vec<DirEntry>> {
    let (mut all, mut at) = (Vec::new(), 0);
    loop {
        let page = dir.page(at, limit)?;
        check(page.len() <= limit, "the sink broke and was called again")?;
        let Some(last) = page.last() else {
            return Ok(all);
        };
        check(last.next != 0, "a position that means the start")?;
        at = last.next;
        between(&page)?;
        all.extend(page);
        check(all.len() < 1_000_000, "the listing does not end")?;
    }
}

#[track_caller]
fn names_once(entries: &[DirEntry]) -> Outcome<BTreeSet<Vec<u8>>> {
    let names: BTreeSet<_> = entries.iter().map(|entry| entry.name.clone()).collect();
    same(names.len(), entries.len())?;
    Ok(names)
}

fn positions_go_on_behind_an_entry(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    fill(&dir, 50)?;
    let all = dir.list()?;
    for (number, entry) in all.iter().enumerate() {
        same(&dir.page(entry.next, usize::MAX)?[..], &all[number + 1..])?;
    }
    Ok(())
}

fn every_page_size_lists_all(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let names = fill(&dir, 97)?;
    for limit in [1, 2, 3, 7, 32, 96, 97, 98] {
        let listed = paged(&dir, limit, |_| Ok(()))?;
        same(names_once(&listed)?, names.clone())?;
    }
    Ok(())
}

fn order_is_stable(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    fill(&dir, 300)?;
    let first = dir.list()?;
    same(&dir.list()?, &first)?;
    t.fs().sync()?;
    same(&dir.list()?, &first)
}

fn end_position_lists_nothing(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    fill(&dir, 10)?;
    let end = dir.list()?.last().map_or(0, |entry| entry.next);
    same(dir.page(end, usize::MAX)?, vec![])?;
    same(dir.page(i64::MAX as u64, usize::MAX)?, vec![])
}

/// A program may seek a directory to any offset.
fn other_positions_continue_with_the_next_entry(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    fill(&dir, 400)?;
    for number in (0..400).step_by(3) {
        dir.unlink(format!("entry-{number}"))?;
    }
    let all = dir.list()?;
    let last = all.last().map_or(0, |entry| entry.next);
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        let high = (u128::from(state) * u128::from(below)) >> 64;
        u64::try_from(high).unwrap_or_default()
    };
    for round in 0..3000_usize {
        let near = all.get(round % all.len()).map_or(0, |entry| entry.next);
        let position = match round % 3 {
            0 => random(last),
            1 => near.saturating_sub(1 + random(100)),
            _ => near.saturating_add(1 + random(100)),
        };
        if all.iter().any(|entry| entry.next == position) {
            continue;
        }
        let expected = all.iter().find(|entry| entry.next > position);
        let page = dir.page(position, 1)?;
        let names = (page.first(), expected);
        let names = (names.0.map(|e| &e.name), names.1.map(|e| &e.name));
        same(names.0, names.1)?;
    }
    Ok(())
}

fn big_directory_lists_all_once(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let names = fill(&dir, 5000)?;
    let listed = paged(&dir, 113, |_| Ok(()))?;
    same(names_once(&listed)?, names.clone())?;
    let inos: BTreeSet<Ino> = listed.iter().map(|entry| entry.ino).collect();
    same(inos.len(), names.len())?;
    for name in names.iter().step_by(97) {
        dir.find(name)?;
    }
    dir.lacks("entry-5000")
}

fn big_directory_can_be_emptied_while_listing(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let names = fill(&dir, 3000)?;
    let listed = paged(&dir, 57, |page| {
        for entry in page {
            dir.unlink(&entry.name)?;
        }
        Ok(())
    })?;
    same(names_once(&listed)?, names)?;
    same(dir.list()?.len(), 0)?;
    t.root().rmdir("d")?;
    Ok(())
}

fn removal_behind_the_position_changes_nothing(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let names = fill(&dir, 100)?;
    let first = dir.page(0, 50)?;
    for entry in first.iter().step_by(3) {
        dir.unlink(&entry.name)?;
    }
    let next = first.last().map_or(0, |entry| entry.next);
    let mut all = first;
    all.extend(dir.page(next, usize::MAX)?);
    same(names_once(&all)?, names)
}

fn removal_of_the_entry_at_the_position_is_harmless(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    fill(&dir, 30)?;
    let mut left = dir.list()?;
    for at in [14, 0, 24] {
        // Removes both neighbours of the position.
        let position = left[at].next;
        for entry in left.drain(at..at + 2) {
            dir.unlink(entry.name)?;
        }
        same(&dir.page(position, usize::MAX)?[..], &left[at..])?;
    }
    Ok(())
}

fn additions_while_listing_repeat_nothing(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let names = fill(&dir, 200)?;
    let mut added = 0;
    let listed = paged(&dir, 10, |_| {
        // Few enough for the listing to reach its end.
        if added < 100 {
            dir.file(format!("added-{added}"))?;
            added += 1;
        }
        Ok(())
    })?;
    let listed = names_once(&listed)?;
    check(names.is_subset(&listed), "an entry was left out")?;
    same(dir.list()?.len(), 200 + added)
}

fn renames_while_listing_repeat_nothing_else(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let names = fill(&dir, 200)?;
    dir.file("moving")?;
    let mut at = 0;
    let listed = paged(&dir, 10, |_| {
        let from = match at {
            0 => "moving".to_owned(),
            _ => format!("moving-{at}"),
        };
        at += 1;
        if at < 30 {
            dir.rename(from, format!("moving-{at}"))?;
        }
        Ok(())
    })?;
    let stayed = listed
        .iter()
        .filter(|entry| entry.name.starts_with(b"entry-"));
    let stayed: Vec<DirEntry> = stayed.cloned().collect();
    same(names_once(&stayed)?, names)
}

fn listing_ends_while_its_entries_are_renamed_away_and_back(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let names = fill(&dir, 500)?;
    let mut seen = 0;
    let listed = paged(&dir, 10, |page| {
        seen += page.len();
        check(seen <= 2 * names.len(), "the listing follows renames")?;
        for entry in page {
            dir.rename(&entry.name, "away")?;
            dir.rename("away", &entry.name)?;
        }
        Ok(())
    })?;
    let found: BTreeSet<_> = listed.into_iter().map(|entry| entry.name).collect();
    same(found, names)
}

fn listing_survives_a_remount(t: &mut Fixture) -> Outcome {
    let names = fill(&t.root().dir("d")?, 1000)?;
    t.remount(false)?;
    let dir = t.root().find("d")?;
    same(names_once(&paged(&dir, 100, |_| Ok(()))?)?, names.clone())?;
    dir.file("one-more")?;
    dir.unlink("entry-500")?;
    drop(dir);
    t.remount(false)?;
    let mut want = names;
    want.remove(&b"entry-500"[..]);
    want.insert(b"one-more".to_vec());
    same(names_once(&t.root().find("d")?.list()?)?, want)
}

fn long_names_fill_pages(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let name = |number: usize| format!("{number:03}{}", "x".repeat(252));
    for number in 0..400 {
        dir.file(name(number))?;
    }
    let listed = names_once(&paged(&dir, 33, |_| Ok(()))?)?;
    same(listed.len(), 400)?;
    for number in (0..400).step_by(2) {
        dir.unlink(name(number))?;
    }
    let listed = names_once(&paged(&dir, 33, |_| Ok(()))?)?;
    let want: BTreeSet<_> = (1..400).step_by(2).map(|n| name(n).into_bytes()).collect();
    same(listed, want)
}

fn directory_can_shrink_and_grow(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    for round in 0..3 {
        for number in 0..500 {
            let name = format!("r{round}-{number}");
            match number % 3 {
                0 => drop(dir.dir(&name)?),
                _ => drop(dir.file(&name)?),
            }
        }
        same(dir.list()?.len(), 500)?;
        for entry in dir.list()? {
            match entry.kind {
                FileKind::Directory => dir.rmdir(entry.name)?,
                _ => dir.unlink(entry.name)?,
            }
        }
        same(dir.list()?.len(), 0)?;
    }
    t.root().rmdir("d")?;
    Ok(())
}
