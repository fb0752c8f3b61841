//! Changing attributes.

use super::case::{Case, group};
use super::support::{Fixture, LONG_AGO, Outcome, check, pattern, refused, same, same_bytes};
use sapwood_vfs::{Error, NewInode, SetAttr, SetTime, Timestamp, WriteMode};

pub(super) fn cases() -> Vec<Case> {
    group!("setattr":
        permissions_are_set,
        owner_and_group_are_set,
        large_ids_are_kept,
        nothing_changes_nothing,
        result_is_the_new_state,
        times_are_set_to_the_nanosecond,
        times_before_1970_and_far_ahead_are_kept,
        nanoseconds_out_of_range_are_refused,
        time_now_is_now,
        several_changes_at_once,
        kill_setid_clears_the_bits,
        kill_setid_spares_locking_bit_and_directories,
        writes_clear_set_id_bits_if_asked,
        capability_is_dropped_by_changes,
        symlinks_have_attributes_too,
        attributes_survive_a_remount if persistent,
        times_survive_a_remount if persistent,
        dead_inodes_are_stale,
    )
}

fn perm(perm: u32) -> SetAttr {
    SetAttr {
        perm: Some(perm),
        ..SetAttr::default()
    }
}

fn permissions_are_set(t: &mut Fixture) -> Outcome {
    let (file, dir) = (t.root().file("f")?, t.root().dir("d")?);
    for bits in [0, 0o1, 0o644, 0o777, 0o1777, 0o2755, 0o4711, 0o7777] {
        for inode in [&file, &dir] {
            let kind = inode.attr()?.kind;
            inode.chmod(bits)?;
            same(inode.attr()?.perm, bits)?;
            same(inode.attr()?.kind, kind)?;
        }
    }
    t.root().chmod(0o711)?;
    same(t.root().attr()?.perm, 0o711)
}

fn owner_and_group_are_set(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.set(&SetAttr {
        uid: Some(10),
        ..SetAttr::default()
    })?;
    same((file.attr()?.uid, file.attr()?.gid), (10, 0))?;
    file.set(&SetAttr {
        gid: Some(20),
        ..SetAttr::default()
    })?;
    same((file.attr()?.uid, file.attr()?.gid), (10, 20))?;
    same(file.attr()?.perm, 0o644)
}

fn large_ids_are_kept(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for id in [65_535, 65_536, 1 << 31, u32::MAX - 1] {
        file.chown(id, id - 1)?;
        same((file.attr()?.uid, file.attr()?.gid), (id, id - 1))?;
    }
    Ok(())
}

fn nothing_changes_nothing(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    file.age()?;
    let before = file.attr()?;
    same(file.set(&SetAttr::default())?, before)?;
    same(file.attr()?, before)
}

fn result_is_the_new_state(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    let changes = SetAttr {
        perm: Some(0o600),
        uid: Some(3),
        size: Some(10_000),
        ..SetAttr::default()
    };
    let result = file.set(&changes)?;
    same((result.perm, result.uid, result.size), (0o600, 3, 10_000))?;
    same(file.attr()?, result)
}

fn times_are_set_to_the_nanosecond(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let time = |sec, nsec| Timestamp { sec, nsec };
    let changes = SetAttr {
        atime: Some(SetTime::To(time(1_000_000_001, 1))),
        mtime: Some(SetTime::To(time(1_000_000_002, 999_999_999))),
        ctime: Some(time(1_000_000_003, 123_456_789)),
        btime: Some(time(1_000_000_004, 7)),
        ..SetAttr::default()
    };
    file.set(&changes)?;
    let attr = file.attr()?;
    same(attr.atime, time(1_000_000_001, 1))?;
    same(attr.mtime, time(1_000_000_002, 999_999_999))?;
    same(attr.ctime, time(1_000_000_003, 123_456_789))?;
    same(attr.btime, time(1_000_000_004, 7))
}

fn times_before_1970_and_far_ahead_are_kept(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    // 1901 (the very first second of 32 bits has no nanoseconds on Linux's ext4), the second before
    // 1970, and 2400.
    for sec in [-2_147_483_647, -1, 0, 13_569_465_600] {
        let time = Timestamp { sec, nsec: 5 };
        file.set(&SetAttr {
            atime: Some(SetTime::To(time)),
            mtime: Some(SetTime::To(time)),
            ..SetAttr::default()
        })?;
        same((file.attr()?.atime, file.attr()?.mtime), (time, time))?;
    }
    Ok(())
}

fn nanoseconds_out_of_range_are_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let before = file.attr()?;
    for nsec in [1_000_000_000, u32::MAX] {
        let time = SetTime::To(Timestamp { sec: 0, nsec });
        for changes in [
            SetAttr {
                atime: Some(time),
                ..SetAttr::default()
            },
            SetAttr {
                mtime: Some(time),
                ..SetAttr::default()
            },
        ] {
            refused(file.set(&changes), Error::Invalid)?;
        }
    }
    same(file.attr()?, before)
}

fn time_now_is_now(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.age()?;
    let start = Timestamp::now().sec - 1;
    let attr = file.set(&SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    })?;
    check(attr.mtime.sec >= start, "mtime is not now")?;
    check(attr.ctime.sec >= start, "ctime is not now")?;
    same(attr.atime, LONG_AGO)?;
    let attr = file.set(&SetAttr {
        atime: Some(SetTime::Now),
        ..SetAttr::default()
    })?;
    check(attr.atime.sec >= start, "atime is not now")
}

fn several_changes_at_once(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", &pattern(1, 10_000))?;
    let attr = file.set(&SetAttr {
        perm: Some(0o4755),
        uid: Some(1),
        gid: Some(2),
        size: Some(5000),
        atime: Some(SetTime::To(LONG_AGO)),
        mtime: Some(SetTime::To(LONG_AGO)),
        ..SetAttr::default()
    })?;
    same((attr.perm, attr.uid, attr.gid), (0o4755, 1, 2))?;
    same((attr.atime, attr.mtime), (LONG_AGO, LONG_AGO))?;
    check(attr.ctime > LONG_AGO, "ctime did not move")?;
    same_bytes(&file.content()?, &pattern(1, 10_000)[..5000])
}

fn kill_setid_clears_the_bits(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    for changes in [
        SetAttr {
            uid: Some(5),
            ..SetAttr::default()
        },
        SetAttr {
            size: Some(1),
            ..SetAttr::default()
        },
    ] {
        file.chmod(0o6755)?;
        let attr = file.set(&SetAttr {
            kill_setid: true,
            ..changes
        })?;
        same(attr.perm, 0o755)?;
        file.chmod(0o6755)?;
        same(file.set(&changes)?.perm, 0o6755)?;
    }
    Ok(())
}

fn kill_setid_spares_locking_bit_and_directories(t: &mut Fixture) -> Outcome {
    let (file, dir) = (t.root().file("f")?, t.root().dir("d")?);
    let changes = SetAttr {
        gid: Some(5),
        kill_setid: true,
        ..SetAttr::default()
    };
    file.chmod(0o6745)?;
    same(file.set(&changes)?.perm, 0o2745)?;
    dir.chmod(0o6755)?;
    same(dir.set(&changes)?.perm, 0o6755)
}

fn writes_clear_set_id_bits_if_asked(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.chmod(0o6755)?;
    file.write(0, b"abc")?;
    same(file.attr()?.perm, 0o6755)?;
    let mode = WriteMode {
        kill_setid: true,
        ..WriteMode::default()
    };
    file.write_mode(0, b"abc", mode)?;
    same(file.attr()?.perm, 0o755)
}

fn capability_is_dropped_by_changes(t: &mut Fixture) -> Outcome {
    const NAME: &str = "security.capability";
    // A valid value: revision 2 of the structure, with no rights in it.
    let value = [[1, 0, 0, 2].as_slice(), &[0; 16]].concat();
    let file = t.root().file_of("f", b"abc")?;
    let kept = |kept: bool| same(file.xattr(NAME).is_ok(), kept);
    file.set_xattr(NAME, &value)?;
    same(file.xattr(NAME)?, value.clone())?;
    file.set(&perm(0o700))?;
    kept(true)?;
    file.chown(1, 1)?;
    kept(false)?;
    file.set_xattr(NAME, &value)?;
    file.write(0, b"x")?;
    kept(false)?;
    file.set_xattr(NAME, &value)?;
    file.truncate(1)?;
    kept(false)
}

fn symlinks_have_attributes_too(t: &mut Fixture) -> Outcome {
    let link = t.root().symlink("s", b"target")?;
    let fifo = t.root().make("p", NewInode::Fifo, 0o600)?;
    for inode in [&link, &fifo] {
        inode.chown(7, 8)?;
        inode.age()?;
        let attr = inode.attr()?;
        same((attr.uid, attr.gid, attr.mtime), (7, 8, LONG_AGO))?;
    }
    same(t.fs().readlink(link.ino())?, b"target")
}

fn attributes_survive_a_remount(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.chmod(0o1770)?;
    dir.chown(u32::MAX - 1, 70_000)?;
    let file = dir.file_of("f", b"abc")?;
    file.chmod(0o4711)?;
    file.truncate(123_456)?;
    t.root().chmod(0o700)?;
    t.fs().sync()?;
    let before = (t.root().attr()?, dir.attr()?, file.attr()?);
    drop((dir, file));
    t.remount(false)?;
    let (dir, file) = (t.root().find("d")?, t.root().walk("d/f")?);
    same((t.root().attr()?, dir.attr()?, file.attr()?), before)
}

fn times_survive_a_remount(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let time = |sec, nsec| Timestamp { sec, nsec };
    file.set(&SetAttr {
        atime: Some(SetTime::To(time(-5, 999_999_999))),
        mtime: Some(SetTime::To(time(13_569_465_600, 1))),
        btime: Some(time(1_234_567_890, 987_654_321)),
        ..SetAttr::default()
    })?;
    let before = file.attr()?;
    drop(file);
    t.remount(false)?;
    let after = t.root().find("f")?.attr()?;
    same(after.atime, time(-5, 999_999_999))?;
    same(after.mtime, time(13_569_465_600, 1))?;
    same(after.btime, time(1_234_567_890, 987_654_321))?;
    same(after, before)
}

fn dead_inodes_are_stale(t: &mut Fixture) -> Outcome {
    let ino = t.root().file("f")?.ino();
    t.root().unlink("f")?;
    let fs = t.fs();
    refused(fs.getattr(ino), Error::Stale)?;
    refused(fs.setattr(ino, &perm(0)), Error::Stale)?;
    refused(fs.read(ino, 0, &mut [0; 4]), Error::Stale)?;
    refused(fs.write(ino, 0, b"x", WriteMode::default()), Error::Stale)?;
    refused(fs.listxattr(ino), Error::Stale)?;
    refused(fs.lookup(ino, b"x"), Error::Stale)?;
    refused(fs.fsxattr(ino), Error::Stale)
}
