//! Removing names, and inodes that live on without a name.

use super::case::{Case, group};
use super::support::{Fixture, Outcome, check, pattern, refused, same, same_bytes};
use sapwood_vfs::{Error, NewInode};

pub(super) fn cases() -> Vec<Case> {
    group!("remove":
        unlink_takes_the_name_away,
        unlink_works_for_every_kind_but_directories,
        unlink_of_nothing_is_not_found,
        unlink_of_a_directory_is_refused,
        unlink_in_a_file_is_refused,
        rmdir_takes_an_empty_directory_away,
        rmdir_of_a_full_directory_is_refused,
        rmdir_of_a_file_is_refused,
        rmdir_of_nothing_is_not_found,
        unlinked_file_lives_while_it_is_held,
        unlinked_file_dies_with_its_last_reference,
        unlinked_file_keeps_its_attributes_changeable,
        unlinked_symlink_and_fifo_live_while_they_are_held,
        removed_directory_lives_while_it_is_held,
        removed_directory_takes_no_part_in_renames,
        unlinked_files_are_gone_after_a_remount if persistent,
        removal_survives_a_remount if persistent,
        one_of_two_names_can_go,
        reused_name_leads_to_a_new_inode,
    )
}

fn unlink_takes_the_name_away(t: &mut Fixture) -> Outcome {
    t.root().file("a")?;
    t.root().file("b")?;
    t.root().unlink("a")?;
    t.root().lacks("a")?;
    t.root().find("b")?;
    refused(t.root().unlink("a"), Error::NotFound)
}

fn unlink_works_for_every_kind_but_directories(t: &mut Fixture) -> Outcome {
    for kind in [
        NewInode::Regular,
        NewInode::Symlink(b"t"),
        NewInode::CharDevice(1),
        NewInode::BlockDevice(2),
        NewInode::Fifo,
        NewInode::Socket,
    ] {
        let ino = t.root().make("n", kind, 0o600)?.ino();
        t.root().unlink("n")?;
        t.root().lacks("n")?;
        refused(t.fs().reference(ino), Error::Stale)?;
    }
    Ok(())
}

fn unlink_of_nothing_is_not_found(t: &mut Fixture) -> Outcome {
    refused(t.root().unlink("a"), Error::NotFound)?;
    let dir = t.root().dir("d")?;
    refused(dir.unlink("a"), Error::NotFound)
}

fn unlink_of_a_directory_is_refused(t: &mut Fixture) -> Outcome {
    t.root().dir("d")?;
    refused(t.root().unlink("d"), Error::IsDirectory)?;
    t.root().find("d")?.file("f")?;
    refused(t.root().unlink("d"), Error::IsDirectory)?;
    t.root().walk("d/f").map(drop).map_err(Into::into)
}

fn unlink_in_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    refused(file.unlink("x"), Error::NotDirectory)?;
    refused(file.rmdir("x"), Error::NotDirectory)
}

fn rmdir_takes_an_empty_directory_away(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.file("f")?;
    dir.unlink("f")?;
    t.root().rmdir("d")?;
    t.root().lacks("d")?;
    let ino = dir.ino();
    drop(dir);
    refused(t.fs().reference(ino), Error::Stale)
}

fn rmdir_of_a_full_directory_is_refused(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.symlink("s", b"x")?;
    refused(t.root().rmdir("d"), Error::NotEmpty)?;
    dir.unlink("s")?;
    dir.dir("e")?;
    refused(t.root().rmdir("d"), Error::NotEmpty)?;
    dir.rmdir("e")?;
    t.root().rmdir("d")?;
    Ok(())
}

fn rmdir_of_a_file_is_refused(t: &mut Fixture) -> Outcome {
    t.root().file("f")?;
    t.root().symlink("s", b".")?;
    refused(t.root().rmdir("f"), Error::NotDirectory)?;
    refused(t.root().rmdir("s"), Error::NotDirectory)
}

fn rmdir_of_nothing_is_not_found(t: &mut Fixture) -> Outcome {
    refused(t.root().rmdir("d"), Error::NotFound)
}

fn unlinked_file_lives_while_it_is_held(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 100_000);
    let file = t.root().file_of("f", &bytes)?;
    t.root().unlink("f")?;
    same(file.nlink()?, 0)?;
    same_bytes(&file.content()?, &bytes)?;
    file.write(200_000, b"more")?;
    same(file.size()?, 200_004)?;
    same(file.read(200_000, 10)?, b"more")?;
    t.fs().fsync(file.ino(), sapwood_vfs::SyncKind::All)?;
    file.truncate(5)?;
    same_bytes(&file.content()?, &bytes[..5])?;
    t.fs().sync()?;
    same_bytes(&file.content()?, &bytes[..5])
}

fn unlinked_file_dies_with_its_last_reference(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"x")?;
    let ino = file.ino();
    let again = file.again()?;
    t.root().unlink("f")?;
    drop(file);
    same(again.content()?, b"x")?;
    t.fs().sync()?;
    same(again.content()?, b"x")?;
    drop(again);
    refused(t.fs().reference(ino), Error::Stale)
}

fn unlinked_file_keeps_its_attributes_changeable(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    t.root().unlink("f")?;
    file.chmod(0o600)?;
    file.chown(5, 6)?;
    file.set_xattr("user.a", b"value")?;
    let attr = file.attr()?;
    same(
        (attr.perm, attr.uid, attr.gid, attr.nlink),
        (0o600, 5, 6, 0),
    )?;
    same(file.xattr("user.a")?, b"value")
}

fn unlinked_symlink_and_fifo_live_while_they_are_held(t: &mut Fixture) -> Outcome {
    let link = t.root().symlink("s", b"target")?;
    let fifo = t.root().make("p", NewInode::Fifo, 0o600)?;
    t.root().unlink("s")?;
    t.root().unlink("p")?;
    same(t.fs().readlink(link.ino())?, b"target")?;
    same((link.nlink()?, fifo.nlink()?), (0, 0))
}

fn removed_directory_lives_while_it_is_held(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    t.root().rmdir("d")?;
    same(dir.nlink()?, 0)?;
    same(dir.list()?.len(), 0)?;
    dir.lacks("x")?;
    refused(dir.unlink("x"), Error::NotFound)?;
    refused(dir.rmdir("x"), Error::NotFound)?;
    dir.chmod(0o700)?;
    same(dir.attr()?.perm, 0o700)
}

fn removed_directory_takes_no_part_in_renames(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let file = t.root().file("f")?;
    t.root().rmdir("d")?;
    let replace = sapwood_vfs::RenameMode::Replace;
    refused(t.root().rename_to("f", &dir, "g", replace), Error::NotFound)?;
    refused(dir.rename_to("g", &t.root(), "h", replace), Error::NotFound)?;
    refused(dir.link(&file, "g"), Error::NotFound)?;
    same(t.root().find("f")?.ino(), file.ino())
}

fn unlinked_files_are_gone_after_a_remount(t: &mut Fixture) -> Outcome {
    let shared = t.shared();
    let mut inos = Vec::new();
    for number in 0..20 {
        let file = t
            .root()
            .file_of(format!("f{number}"), &pattern(number, 50_000))?;
        t.root().unlink(format!("f{number}"))?;
        // The reference is held until the unmount and never dropped.
        inos.push(shared.reference(file.ino())?.ino());
    }
    let dir = t.root().dir("d")?;
    t.root().rmdir("d")?;
    inos.push(shared.reference(dir.ino())?.ino());
    drop((dir, shared));
    t.remount(false)?;
    for ino in inos {
        refused(t.fs().reference(ino), Error::Stale)?;
    }
    t.root().lacks("f0")
}

fn removal_survives_a_remount(t: &mut Fixture) -> Outcome {
    t.root().file_of("gone", &pattern(1, 10_000))?;
    t.root().dir("gone_too")?;
    t.root().file("stays")?;
    t.fs().sync()?;
    t.root().unlink("gone")?;
    t.root().rmdir("gone_too")?;
    t.remount(false)?;
    t.root().lacks("gone")?;
    t.root().lacks("gone_too")?;
    t.root().find("stays").map(drop).map_err(Into::into)
}

fn one_of_two_names_can_go(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("a", b"x")?;
    let dir = t.root().dir("d")?;
    dir.link(&file, "b")?;
    t.root().unlink("a")?;
    same(file.nlink()?, 1)?;
    let ino = file.ino();
    drop(file);
    let found = dir.find("b")?;
    same(found.ino(), ino)?;
    same(found.content()?, b"x")
}

fn reused_name_leads_to_a_new_inode(t: &mut Fixture) -> Outcome {
    let old = t.root().file_of("f", b"old")?;
    t.root().unlink("f")?;
    let new = t.root().file_of("f", b"new")?;
    check(
        old.ino() != new.ino(),
        "the identity of a held inode was given away",
    )?;
    same(old.content()?, b"old")?;
    same(new.content()?, b"new")?;
    same(t.root().find("f")?.ino(), new.ino())
}
