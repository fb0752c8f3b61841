//! Durability, read-only mounts, unmounting, and a full file system.

use super::case::{Case, group};
use super::support::{
    Fixture, HeldInode, Outcome, check, fails, pattern, refused, same, same_bytes,
};
use sapwood_vfs::{
    AllocMode, CopyMode, Error, FileKind, InodeFlags, NewInode, RenameMode, SyncKind,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = group!("durability":
        every_kind_can_be_synced,
        unlinked_inodes_can_be_synced,
        sync_twice_is_fine,
        syncing_the_dead_is_stale,
        unmounted_file_system_refuses_calls,
        mixed_tree_survives_remounts if persistent,
        synced_and_unsynced_changes_survive if persistent,
        read_only_mount_refuses_changes if persistent,
        read_only_mount_can_be_read if persistent,
    );
    let full = group!("full":
        writing_ends_with_no_space,
        acknowledged_data_survives_a_full_file_system,
        removing_makes_room,
        truncating_makes_room,
        filling_and_emptying_again_and_again,
        failed_allocation_takes_nothing if preallocate,
        directories_work_when_full,
    );
    cases.extend(full.into_iter().map(Case::small));
    cases
}

fn every_kind_can_be_synced(t: &mut Fixture) -> Outcome {
    let inodes = [
        t.root(),
        t.root().file_of("f", b"abc")?,
        t.root().dir("d")?,
        t.root().symlink("s", b"t")?,
        t.root().make("p", NewInode::Fifo, 0o600)?,
    ];
    for inode in &inodes {
        t.fs().fsync(inode.ino(), SyncKind::Data)?;
        t.fs().fsync(inode.ino(), SyncKind::All)?;
    }
    same(inodes[1].content()?, b"abc")
}

fn unlinked_inodes_can_be_synced(t: &mut Fixture) -> Outcome {
    let (file, dir) = (t.root().file_of("f", &[1; 10_000])?, t.root().dir("d")?);
    t.root().unlink("f")?;
    t.root().rmdir("d")?;
    for inode in [&file, &dir] {
        t.fs().fsync(inode.ino(), SyncKind::All)?;
    }
    file.write(0, &[2; 20_000])?;
    t.fs().fsync(file.ino(), SyncKind::All)?;
    same_bytes(&file.content()?, &[2; 20_000])
}

fn sync_twice_is_fine(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for round in 0..20u8 {
        file.write(0, &[round; 5000])?;
        for _ in 0..2 {
            t.fs().fsync(file.ino(), SyncKind::All)?;
            t.fs().sync()?;
        }
    }
    same_bytes(&file.content()?, &[19; 5000])
}

fn syncing_the_dead_is_stale(t: &mut Fixture) -> Outcome {
    let ino = t.root().file("f")?.ino();
    t.root().unlink("f")?;
    refused(t.fs().fsync(ino, SyncKind::All), Error::Stale)
}

fn unmounted_file_system_refuses_calls(t: &mut Fixture) -> Outcome {
    let fs = t.shared();
    let ino = t.root().file_of("f", b"abc")?.ino();
    t.unmount()?;
    fails(fs.lookup(fs.root(), b"f"))?;
    fails(fs.getattr(ino))?;
    fails(fs.read(ino, 0, &mut [0; 3]))?;
    fails(fs.sync())?;
    fails(fs.unmount())?;
    fs.forget(ino, 1);
    Ok(())
}

/// Makes a small tree with every kind of file from a seed; `check_tree` checks it.
fn make_tree(dir: &HeldInode<'_>, seed: u64) -> Outcome {
    let file = dir.file_of("file", &pattern(seed, 20_000 + seed as usize))?;
    file.set_xattr("user.seed", &seed.to_le_bytes())?;
    file.chmod(0o640)?;
    dir.link(&file, "link")?;
    dir.symlink("symlink", format!("to-{seed}").as_bytes())?;
    dir.make("device", NewInode::CharDevice(seed), 0o600)?;
    let below = dir.dir("below")?;
    below.chown(seed as u32, 5)?;
    for number in 0..seed % 7 {
        below.file_of(format!("n{number}"), &pattern(number, 100))?;
    }
    let sparse = dir.file("sparse")?;
    sparse.write(1_000_000, b"end")?;
    Ok(())
}

fn check_tree(dir: &HeldInode<'_>, seed: u64) -> Outcome {
    let names = ["below", "device", "file", "link", "sparse", "symlink"];
    same(dir.names()?, names)?;
    let (file, link) = (dir.find("file")?, dir.find("link")?);
    same_bytes(&file.content()?, &pattern(seed, 20_000 + seed as usize))?;
    same(file.xattr("user.seed")?, seed.to_le_bytes())?;
    let attr = file.attr()?;
    same((attr.perm, attr.nlink, attr.ino), (0o640, 2, link.ino()))?;
    let symlink = dir.find("symlink")?;
    let target = dir.fs().readlink(symlink.ino())?;
    same(target, format!("to-{seed}").into_bytes())?;
    let device = dir.find("device")?.attr()?;
    same((device.kind, device.rdev), (FileKind::CharDevice, seed))?;
    let below = dir.find("below")?;
    same((below.attr()?.uid, below.attr()?.gid), (seed as u32, 5))?;
    same(below.list()?.len() as u64, seed % 7)?;
    for number in 0..seed % 7 {
        let file = below.find(format!("n{number}"))?;
        same_bytes(&file.content()?, &pattern(number, 100))?;
    }
    let sparse = dir.find("sparse")?;
    same(sparse.size()?, 1_000_003)?;
    same(sparse.read(999_998, 10)?, b"\0\0end")
}

fn mixed_tree_survives_remounts(t: &mut Fixture) -> Outcome {
    for round in 0..4 {
        for seed in round * 10..(round + 1) * 10 {
            make_tree(&t.root().dir(format!("t{seed}"))?, seed)?;
        }
        t.remount(false)?;
        for seed in 0..(round + 1) * 10 {
            check_tree(&t.root().find(format!("t{seed}"))?, seed)?;
        }
    }
    Ok(())
}

fn synced_and_unsynced_changes_survive(t: &mut Fixture) -> Outcome {
    for seed in 0..12 {
        make_tree(&t.root().dir(format!("t{seed}"))?, seed)?;
        match seed % 4 {
            0 => t.fs().sync()?,
            1 => {
                let file = t.root().walk(&format!("t{seed}/file"))?;
                t.fs().fsync(file.ino(), SyncKind::All)?;
            }
            2 => {
                let dir = t.root().find(format!("t{seed}"))?;
                t.fs().fsync(dir.ino(), SyncKind::All)?;
            }
            _ => {}
        }
    }
    t.remount(false)?;
    for seed in 0..12 {
        check_tree(&t.root().find(format!("t{seed}"))?, seed)?;
    }
    Ok(())
}

fn read_only_mount_refuses_changes(t: &mut Fixture) -> Outcome {
    make_tree(&t.root().dir("d")?, 3)?;
    t.remount(true)?;
    check(t.fs().read_only(), "read_only() is false")?;
    let (root, dir) = (t.root(), t.root().find("d")?);
    let file = dir.find("file")?;
    let results = [
        root.file("x").map(drop),
        root.dir("x").map(drop),
        root.symlink("x", b"t").map(drop),
        root.link(&file, "x"),
        dir.unlink("file"),
        dir.rmdir("below"),
        dir.rename("file", "x"),
        dir.rename_to("file", &dir, "symlink", RenameMode::Exchange),
        file.write(0, b"x").map(drop),
        file.append(b"x").map(drop),
        file.truncate(0),
        file.chmod(0).map(drop),
        file.set_xattr("user.x", b"x"),
        file.remove_xattr("user.seed"),
        file.set_flags(InodeFlags::NODUMP),
        file.fallocate(0, 10, AllocMode::Allocate { keep_size: true }),
        dir.find("sparse")?
            .copy_to(0, &file, 0, 4096, CopyMode::Any)
            .map(drop),
    ];
    for (number, result) in results.into_iter().enumerate() {
        let text = format_args!("number {number}: {result:?}");
        check(result == Err(Error::ReadOnly), text)?;
    }
    if t.capabilities.tmpfile {
        refused(root.tmpfile(0o600), Error::ReadOnly)?;
    }
    check_tree(&dir, 3)?;
    drop((root, dir, file));
    t.remount(false)?;
    check(!t.fs().read_only(), "read_only() stays true")?;
    t.root().file("x")?;
    check_tree(&t.root().find("d")?, 3)
}

fn read_only_mount_can_be_read(t: &mut Fixture) -> Outcome {
    make_tree(&t.root().dir("d")?, 3)?;
    t.remount(true)?;
    check_tree(&t.root().find("d")?, 3)?;
    refused(t.root().find("nothing"), Error::NotFound)?;
    let file = t.root().walk("d/file")?;
    t.fs().fsync(file.ino(), SyncKind::All)?;
    t.fs().sync()?;
    t.fs().statfs()?;
    same(file.data_from(0)?, 0)
}

const PIECE: usize = 256 << 10;

/// Writes pieces to a new file until there is no space, and returns how many fitted.
fn fill(t: &Fixture, name: &str) -> Outcome<u64> {
    let file = t.root().file(name)?;
    for number in 0.. {
        let result = file.write(number * PIECE as u64, &pattern(number, PIECE));
        match result.and_then(|_| t.fs().fsync(file.ino(), SyncKind::Data)) {
            Ok(()) => {}
            Err(Error::NoSpace) => return Ok(number),
            Err(other) => return Err(other.into()),
        }
        check(number < 10_000, "it never gets full")?;
    }
    Ok(0)
}

fn writing_ends_with_no_space(t: &mut Fixture) -> Outcome {
    let before = t.fs().statfs()?;
    let pieces = fill(t, "f")?;
    check(pieces > 50, format_args!("only {pieces} pieces fitted"))?;
    let after = t.fs().statfs()?;
    check(
        after.blocks_available < before.blocks_available / 4,
        format_args!("{} blocks still seem available", after.blocks_available),
    )
}

fn acknowledged_data_survives_a_full_file_system(t: &mut Fixture) -> Outcome {
    let kept = t.root().file_of("kept", &pattern(77, 500_000))?;
    let pieces = fill(t, "f")?;
    drop(kept);
    t.fs().sync()?;
    if t.capabilities.persistent {
        t.remount(false)?;
    }
    let file = t.root().find("f")?;
    check(file.size()? >= pieces * PIECE as u64, "it became shorter")?;
    for number in (0..pieces).step_by(7) {
        let piece = file.read(number * PIECE as u64, PIECE)?;
        same_bytes(&piece, &pattern(number, PIECE))?;
    }
    same_bytes(&t.root().find("kept")?.content()?, &pattern(77, 500_000))
}

fn removing_makes_room(t: &mut Fixture) -> Outcome {
    let pieces = fill(t, "f")?;
    t.root().unlink("f")?;
    t.fs().sync()?;
    let again = fill(t, "g")?;
    check(
        again >= pieces * 8 / 10,
        format_args!("{pieces} pieces fitted, then {again}"),
    )
}

fn truncating_makes_room(t: &mut Fixture) -> Outcome {
    let pieces = fill(t, "f")?;
    let file = t.root().find("f")?;
    file.truncate(pieces / 2 * PIECE as u64)?;
    t.fs().sync()?;
    let again = fill(t, "g")?;
    check(
        again >= pieces * 3 / 10,
        format_args!("{pieces} pieces fitted; after half of it went, {again}"),
    )?;
    same_bytes(&file.read(PIECE as u64, PIECE)?, &pattern(1, PIECE))
}

fn filling_and_emptying_again_and_again(t: &mut Fixture) -> Outcome {
    let first = fill(t, "f0")?;
    t.root().unlink("f0")?;
    for round in 1..4 {
        // There is no sync in between: the engine itself must find the freed space.
        let pieces = fill(t, &format!("f{round}"))?;
        check(
            pieces >= first * 8 / 10,
            format_args!("{first} pieces fitted, in round {round} {pieces}"),
        )?;
        t.root().unlink(format!("f{round}"))?;
    }
    same(
        t.root()
            .names()?
            .iter()
            .filter(|name| name.starts_with('f'))
            .count(),
        0,
    )
}

fn failed_allocation_takes_nothing(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    let mode = AllocMode::Allocate { keep_size: false };
    for _ in 0..5 {
        refused(file.fallocate(0, 1 << 30, mode), Error::NoSpace)?;
    }
    same(file.read(0, 3)?, b"abc")?;
    file.truncate(3)?;
    t.fs().sync()?;
    let pieces = fill(t, "g")?;
    check(pieces > 50, format_args!("only {pieces} pieces fitted"))
}

fn directories_work_when_full(t: &mut Fixture) -> Outcome {
    for number in 0..100 {
        t.root()
            .file_of(format!("n{number}"), &pattern(number, 10_000))?;
    }
    fill(t, "f")?;
    for number in 0..100 {
        let file = t.root().find(format!("n{number}"))?;
        same_bytes(&file.content()?, &pattern(number, 10_000))?;
        drop(file);
        t.root().unlink(format!("n{number}"))?;
    }
    t.root().unlink("f")?;
    t.fs().sync()?;
    let dir = t.root().dir("d")?;
    dir.file_of("x", &pattern(1, 100_000))?;
    Ok(())
}
