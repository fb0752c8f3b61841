//! Content, attributes and snapshots, changed by many threads.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::{THREADS, tally};
use crate::conformance::case::{Case, group};
use crate::conformance::support::{
    Fixture, Outcome, check, parallel, pattern, refused, same, same_bytes,
};
use sapwood_vfs::{CopyMode, Error, SetAttr, SetXattrMode, SyncKind};

pub(super) fn cases() -> Vec<Case> {
    group!("threads":
        writers_of_disjoint_ranges,
        writers_of_interleaved_bytes,
        appenders_lose_nothing,
        readers_see_whole_small_writes,
        reading_while_truncating,
        copies_in_both_directions,
        attributes_of_one_inode,
        xattrs_of_one_inode,
        syncs_among_writers,
        fsyncs_of_one_file,
        snapshots_among_writers if subvolumes,
        subvolumes_come_and_go if subvolumes,
        subvolumes_removed_under_creators if subvolumes,
        subvolumes_renamed_under_lookups if subvolumes,
    )
}

fn writers_of_disjoint_ranges(t: &mut Fixture) -> Outcome {
    const SHARE: usize = 300_000;
    let file = t.root().file("f")?;
    parallel(THREADS, |thread| {
        let bytes = pattern(thread as u64, SHARE);
        for (number, piece) in bytes.chunks(7001).enumerate() {
            let offset = thread * SHARE + number * 7001;
            file.write(offset as u64, piece)?;
            if number % 20 == 0 {
                t.fs().fsync(file.ino(), SyncKind::Data)?;
            }
        }
        Ok(())
    })?;
    for round in 0..2 {
        same(file.size()?, (THREADS * SHARE) as u64)?;
        for thread in 0..THREADS {
            let got = file.read((thread * SHARE) as u64, SHARE)?;
            same_bytes(&got, &pattern(thread as u64, SHARE))?;
        }
        if round == 0 {
            t.fs().sync()?;
        }
    }
    Ok(())
}

fn writers_of_interleaved_bytes(t: &mut Fixture) -> Outcome {
    // Neighbours share every sector.
    let file = t.root().file("f")?;
    parallel(THREADS, |thread| {
        for number in 0..600 {
            let offset = number * THREADS + thread;
            file.write(offset as u64, &[thread as u8 + 1])?;
        }
        Ok(())
    })?;
    let want: Vec<u8> = (0..600 * THREADS)
        .map(|at| (at % THREADS) as u8 + 1)
        .collect();
    same_bytes(&file.content()?, &want)?;
    t.fs().sync()?;
    same_bytes(&file.content()?, &want)
}

fn appenders_lose_nothing(t: &mut Fixture) -> Outcome {
    const RECORD: usize = 100;
    let file = t.root().file("f")?;
    parallel(THREADS, |thread| {
        for number in 0..100u8 {
            let mut record = [number; RECORD];
            record[0] = thread as u8;
            let end = file.append(&record)?;
            same(end % RECORD as u64, 0)?;
        }
        Ok(())
    })?;
    let content = file.content()?;
    same(content.len(), THREADS * 100 * RECORD)?;
    let mut next = [0u8; THREADS];
    for record in content.chunks(RECORD) {
        let thread = usize::from(record[0]);
        check(thread < THREADS, "a record is torn")?;
        same(&record[1..], &[next[thread]; RECORD - 1][..])?;
        next[thread] += 1;
    }
    same(next, [100; THREADS])
}

fn readers_see_whole_small_writes(t: &mut Fixture) -> Outcome {
    // Linux guarantees this within a page.
    let file = t.root().file_of("f", &[0; 4096])?;
    let done = AtomicBool::new(false);
    parallel(4, |thread| {
        if thread == 0 {
            for round in 0..500u32 {
                file.write(0, &[round as u8; 4096])?;
                if round % 100 == 0 {
                    t.fs().fsync(file.ino(), SyncKind::All)?;
                }
            }
            done.store(true, Ordering::Release);
            return Ok(());
        }
        while !done.load(Ordering::Acquire) {
            let bytes = file.read(0, 4096)?;
            same(bytes.len(), 4096)?;
            let torn = bytes.iter().any(|byte| *byte != bytes[0]);
            check(!torn, "a read saw half a write")?;
        }
        Ok(())
    })
}

fn reading_while_truncating(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", &[7; 100_000])?;
    let done = AtomicBool::new(false);
    parallel(4, |thread| {
        if thread == 0 {
            for round in 0..150u64 {
                file.truncate(round * 7919 % 100_000)?;
                file.truncate(0)?;
                file.write(0, &[7; 100_000])?;
            }
            done.store(true, Ordering::Release);
            return Ok(());
        }
        while !done.load(Ordering::Acquire) {
            let bytes = file.read(0, 100_000)?;
            let strange = bytes.iter().find(|byte| **byte != 7);
            check(strange.is_none(), format_args!("read {strange:?}"))?;
        }
        Ok(())
    })?;
    same_bytes(&file.content()?, &[7; 100_000])
}

fn copies_in_both_directions(t: &mut Fixture) -> Outcome {
    const LEN: usize = 262_144;
    let (a, b) = (
        t.root().file_of("a", &[1; 2 * LEN])?,
        t.root().file_of("b", &[2; 2 * LEN])?,
    );
    // The threads only read the first halves and only write the second halves.
    parallel(THREADS, |thread| {
        for _ in 0..25 {
            let (from, to) = if thread % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let copied = from.copy_to(0, to, LEN as u64, LEN as u64, CopyMode::Any)?;
            same(copied, LEN as u64)?;
        }
        Ok(())
    })?;
    same_bytes(&a.content()?, &[[1; LEN], [2; LEN]].concat())?;
    same_bytes(&b.content()?, &[[2; LEN], [1; LEN]].concat())
}

fn attributes_of_one_inode(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    parallel(4, |thread| {
        for round in 1..=200u32 {
            let mut changes = SetAttr::default();
            match thread {
                0 => changes.uid = Some(round),
                1 => changes.gid = Some(round),
                2 => changes.perm = Some(round % 0o1000),
                _ => {
                    file.write(u64::from(round) * 10, b"x")?;
                    continue;
                }
            }
            file.set(&changes)?;
        }
        Ok(())
    })?;
    let attr = file.attr()?;
    same((attr.uid, attr.gid, attr.perm), (200, 200, 200))?;
    same(attr.size, 2001)
}

fn xattrs_of_one_inode(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let wins = AtomicUsize::new(0);
    parallel(THREADS, |thread| {
        let create = file.set_xattr_mode("user.one", &[thread as u8], SetXattrMode::Create);
        tally(create, &[Error::Exists], &wins)?;
        let name = format!("user.t{thread}");
        for round in 0..60u8 {
            file.set_xattr(&name, &vec![round; usize::from(round)])?;
            same(file.xattr(&name)?.len(), usize::from(round))?;
            if round % 3 == 0 {
                file.remove_xattr(&name)?;
                refused(file.xattr(&name), Error::NoAttribute)?;
            }
        }
        Ok(())
    })?;
    same(wins.into_inner(), 1)?;
    same(file.xattrs()?.len(), THREADS + 1)
}

fn syncs_among_writers(t: &mut Fixture) -> Outcome {
    let root = t.root();
    parallel(THREADS, |thread| {
        let dir = root.dir(format!("d{thread}"))?;
        for number in 0..40 {
            if thread < 2 {
                t.fs().sync()?;
                continue;
            }
            let name = format!("f{number}");
            let file = dir.file_of(&name, &pattern(number, 20_000))?;
            file.write(5000, b"overwritten")?;
            if number % 4 == 0 {
                drop(file);
                dir.unlink(&name)?;
            }
        }
        Ok(())
    })?;
    let mut want = pattern(1, 20_000);
    want[5000..5011].copy_from_slice(b"overwritten");
    drop(root);
    if t.capabilities.persistent {
        t.remount(false)?;
    }
    for thread in 2..THREADS {
        same(t.root().find(format!("d{thread}"))?.list()?.len(), 30)?;
        let file = t.root().walk(&format!("d{thread}/f1"))?;
        same_bytes(&file.content()?, &want)?;
    }
    Ok(())
}

fn fsyncs_of_one_file(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    parallel(THREADS, |thread| {
        for round in 0..25u8 {
            file.write(thread as u64 * 10_000, &[round + 1; 9000])?;
            let kind = match round % 2 {
                0 => SyncKind::All,
                _ => SyncKind::Data,
            };
            t.fs().fsync(file.ino(), kind)?;
        }
        Ok(())
    })?;
    drop(file);
    if t.capabilities.persistent {
        t.remount(false)?;
    }
    let file = t.root().find("f")?;
    for thread in 0..THREADS {
        same_bytes(&file.read(thread as u64 * 10_000, 9000)?, &[25; 9000])?;
    }
    Ok(())
}

fn snapshots_among_writers(t: &mut Fixture) -> Outcome {
    const RECORD: u64 = 10_000;
    let entry = t.subvolumes()?.create_subvolume(t.fs().root(), b"s")?;
    let source = t.node(entry);
    let file = source.file("f")?;
    // Number of records that are certainly written.
    let written = AtomicU64::new(0);
    parallel(2, |thread| {
        for round in 0..20u64 {
            if thread == 0 {
                for number in round * 5..(round + 1) * 5 {
                    let record = [number as u8 + 1; RECORD as usize];
                    file.write(number * RECORD, &record)?;
                    written.store(number + 1, Ordering::Release);
                }
                continue;
            }
            let before = written.load(Ordering::Acquire);
            let (root, name) = (t.fs().root(), format!("snap{round}"));
            let entry = t
                .subvolumes()?
                .snapshot(source.ino(), root, name.as_bytes(), true)?;
            let copy = t.node(entry).find("f")?.content()?;
            let least = (before * RECORD) as usize;
            check(copy.len() >= least, "what was written before is missing")?;
            for (number, record) in copy[..least].chunks(RECORD as usize).enumerate() {
                same_bytes(record, &[number as u8 + 1; RECORD as usize])?;
            }
        }
        Ok(())
    })?;
    same(file.size()?, 100 * RECORD)?;
    same(t.subvolumes()?.list()?.len(), 21)
}

fn subvolumes_come_and_go(t: &mut Fixture) -> Outcome {
    let entry = t.subvolumes()?.create_subvolume(t.fs().root(), b"s")?;
    let source = t.node(entry);
    source.file_of("f", &pattern(1, 50_000))?;
    parallel(4, |thread| {
        let (subvolumes, root) = (t.subvolumes()?, t.fs().root());
        for round in 0..10 {
            let name = format!("snap{thread}-{round}");
            let entry = subvolumes.snapshot(source.ino(), root, name.as_bytes(), false)?;
            let snap = t.node(entry);
            same_bytes(&snap.find("f")?.content()?, &pattern(1, 50_000))?;
            snap.find("f")?.write(0, b"own")?;
            snap.file("new")?;
            drop(snap);
            if round % 2 == 0 {
                subvolumes.delete_subvolume(root, name.as_bytes())?;
            }
        }
        Ok(())
    })?;
    same(t.subvolumes()?.list()?.len(), 1 + 4 * 5)?;
    same_bytes(&source.find("f")?.content()?, &pattern(1, 50_000))
}

fn subvolumes_removed_under_creators(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let allowed = [Error::NotFound, Error::NotEmpty];
    for round in 0..40 {
        let entry = t.subvolumes()?.create_subvolume(root.ino(), b"s")?;
        let top = t.node(entry);
        let (created, removed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        parallel(2, |thread| match thread {
            0 => tally(root.rmdir("s"), &allowed, &removed),
            _ => tally(top.file("f"), &[Error::NotFound, Error::Stale], &created),
        })?;
        let outcome = (created.into_inner(), removed.into_inner());
        let text = format_args!("round {round}: (created, removed) is {outcome:?}");
        check(outcome == (1, 0) || outcome == (0, 1), text)?;
        if outcome == (1, 0) {
            top.unlink("f")?;
            root.rmdir("s")?;
        }
    }
    Ok(())
}

fn subvolumes_renamed_under_lookups(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let entry = t.subvolumes()?.create_subvolume(root.ino(), b"a")?;
    let top = t.node(entry);
    let done = AtomicBool::new(false);
    parallel(3, |thread| {
        if thread == 0 {
            for round in 0..200 {
                let (from, to) = if round % 2 == 0 {
                    ("a", "b")
                } else {
                    ("b", "a")
                };
                root.rename(from, to)?;
            }
            done.store(true, Ordering::Release);
            return Ok(());
        }
        while !done.load(Ordering::Acquire) {
            for name in ["a", "b"] {
                match root.find(name) {
                    Ok(found) => same(found.ino(), top.ino())?,
                    Err(error) => same(error, Error::NotFound)?,
                }
            }
        }
        Ok(())
    })
}
