//! Attributes of a new inode.

use super::case::{Case, group};
use super::support::{Fixture, Outcome, check, fails, refused, same, user};
use sapwood_vfs::{Credentials, Error, FileKind, NewInode, Timestamp};

pub(super) fn cases() -> Vec<Case> {
    group!("create":
        new_file_is_empty,
        new_directory_is_empty,
        directory_links_are_counted if directory_links,
        symlink_holds_its_target,
        symlink_takes_any_target,
        symlink_without_or_with_too_long_a_target_is_refused,
        readlink_of_anything_else_is_refused,
        device_nodes_keep_their_number,
        fifo_and_socket,
        all_kinds_survive_a_remount if persistent,
        taken_name_exists,
        create_in_a_file_is_refused,
        create_in_a_removed_directory_is_not_found,
        owner_is_the_caller,
        umask_takes_bits_away,
        all_permission_bits_can_be_asked_for,
        set_group_id_directory_hands_its_group_on,
        set_group_id_directory_keeps_foreign_executables_plain,
        birth_times_are_now,
        identities_are_unique,
        names_can_be_reused,
    )
}

const KINDS: [NewInode<'static>; 7] = [
    NewInode::Regular,
    NewInode::Directory,
    NewInode::Symlink(b"target"),
    NewInode::CharDevice(0x0103),
    NewInode::BlockDevice(0x0801),
    NewInode::Fifo,
    NewInode::Socket,
];

fn new_file_is_empty(t: &mut Fixture) -> Outcome {
    let attr = t.root().file("f")?.attr()?;
    same(attr.kind, FileKind::Regular)?;
    same(attr.perm, 0o644)?;
    same((attr.nlink, attr.size, attr.allocated), (1, 0, 0))?;
    same((attr.uid, attr.gid, attr.rdev), (0, 0, 0))?;
    check(attr.blksize > 0, "no preferred I/O size")?;
    same(t.root().find("f")?.content()?, b"")
}

fn new_directory_is_empty(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let attr = dir.attr()?;
    same(attr.kind, FileKind::Directory)?;
    same(attr.perm, 0o755)?;
    let links = if t.capabilities.directory_links { 2 } else { 1 };
    same(attr.nlink, links)?;
    same(dir.list()?.len(), 0)?;
    dir.dir("below")?;
    dir.file("beside")?;
    let links = if t.capabilities.directory_links { 3 } else { 1 };
    same(dir.nlink()?, links)
}

fn directory_links_are_counted(t: &mut Fixture) -> Outcome {
    let (dir, other) = (t.root().dir("d")?, t.root().dir("e")?);
    for name in ["a", "b", "c"] {
        dir.dir(name)?;
    }
    same(dir.nlink()?, 5)?;
    dir.rmdir("a")?;
    same(dir.nlink()?, 4)?;
    dir.rename_to("b", &other, "b", sapwood_vfs::RenameMode::Replace)?;
    same((dir.nlink()?, other.nlink()?), (3, 3))?;
    dir.rename_to("c", &other, "b", sapwood_vfs::RenameMode::Replace)?;
    same((dir.nlink()?, other.nlink()?), (2, 3))
}

fn symlink_holds_its_target(t: &mut Fixture) -> Outcome {
    let link = t.root().symlink("s", b"../some/where")?;
    let attr = link.attr()?;
    same(attr.kind, FileKind::Symlink)?;
    same((attr.size, attr.nlink), (13, 1))?;
    same(attr.perm, 0o777)?;
    same(t.fs().readlink(link.ino())?, b"../some/where")
}

fn symlink_takes_any_target(t: &mut Fixture) -> Outcome {
    let every_byte: Vec<u8> = (1..=255).collect();
    let targets = [
        b"/".to_vec(),
        b".".to_vec(),
        b"a b\nc".to_vec(),
        every_byte,
        vec![b'x'; 59],
        vec![b'x'; 60],
        vec![b'x'; 61],
        vec![b'x'; 2048],
        vec![b'y'; 4095],
    ];
    for (number, target) in targets.iter().enumerate() {
        t.root().symlink(format!("s{number}"), target)?;
    }
    for (number, target) in targets.iter().enumerate() {
        let link = t.root().find(format!("s{number}"))?;
        same(&t.fs().readlink(link.ino())?, target)?;
        same(link.size()?, target.len() as u64)?;
    }
    Ok(())
}

fn symlink_without_or_with_too_long_a_target_is_refused(t: &mut Fixture) -> Outcome {
    refused(t.root().symlink("s", b""), Error::NotFound)?;
    refused(t.root().symlink("s", &[b'x'; 4096]), Error::NameTooLong)?;
    fails(t.root().symlink("s", b"a\0b"))?;
    t.root().lacks("s")
}

fn readlink_of_anything_else_is_refused(t: &mut Fixture) -> Outcome {
    for (number, kind) in KINDS.into_iter().enumerate() {
        if kind.kind() != FileKind::Symlink {
            let inode = t.root().make(format!("k{number}"), kind, 0o600)?;
            refused(t.fs().readlink(inode.ino()), Error::Invalid)?;
        }
    }
    Ok(())
}

fn device_nodes_keep_their_number(t: &mut Fixture) -> Outcome {
    // `makedev` of 8:1, of 4095:255 and of a minor number with more than 8 bits.
    for (number, rdev) in [0x801u64, 0xfffff, 0x1234_5678].into_iter().enumerate() {
        let (c, b) = (format!("c{number}"), format!("b{number}"));
        let node = t.root().make(c, NewInode::CharDevice(rdev), 0o600)?;
        let attr = node.attr()?;
        same((attr.kind, attr.rdev), (FileKind::CharDevice, rdev))?;
        let node = t.root().make(b, NewInode::BlockDevice(rdev), 0o640)?;
        let attr = node.attr()?;
        same((attr.kind, attr.rdev), (FileKind::BlockDevice, rdev))?;
        same((attr.perm, attr.size), (0o640, 0))?;
    }
    Ok(())
}

fn fifo_and_socket(t: &mut Fixture) -> Outcome {
    let fifo = t.root().make("p", NewInode::Fifo, 0o622)?.attr()?;
    same((fifo.kind, fifo.perm), (FileKind::Fifo, 0o622))?;
    same((fifo.size, fifo.rdev), (0, 0))?;
    let socket = t.root().make("s", NewInode::Socket, 0o777)?.attr()?;
    same((socket.kind, socket.perm), (FileKind::Socket, 0o777))
}

fn all_kinds_survive_a_remount(t: &mut Fixture) -> Outcome {
    let mut attrs = Vec::new();
    for (number, kind) in KINDS.into_iter().enumerate() {
        let inode = t.root().make(format!("k{number}"), kind, 0o640)?;
        inode.chown(1000 + number as u32, 70_000)?;
        attrs.push(inode.attr()?);
    }
    t.remount(false)?;
    for (number, attr) in attrs.iter().enumerate() {
        same(&t.root().find(format!("k{number}"))?.attr()?, attr)?;
    }
    let link = t.root().find("k2")?;
    same(t.fs().readlink(link.ino())?, b"target")
}

fn taken_name_exists(t: &mut Fixture) -> Outcome {
    for (old_number, old) in KINDS.into_iter().enumerate() {
        let name = format!("k{old_number}");
        let ino = t.root().make(&name, old, 0o600)?.ino();
        for new in KINDS {
            refused(t.root().make(&name, new, 0o600), Error::Exists)?;
        }
        same(t.root().find(&name)?.ino(), ino)?;
    }
    same(t.root().list()?.len() >= KINDS.len(), true)
}

fn create_in_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for kind in KINDS {
        refused(file.make("x", kind, 0o600), Error::NotDirectory)?;
    }
    Ok(())
}

fn create_in_a_removed_directory_is_not_found(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    t.root().rmdir("d")?;
    for kind in KINDS {
        refused(dir.make("x", kind, 0o600), Error::NotFound)?;
    }
    same(dir.list()?.len(), 0)
}

fn owner_is_the_caller(t: &mut Fixture) -> Outcome {
    for (number, kind) in KINDS.into_iter().enumerate() {
        let name = format!("k{number}");
        let attr = t
            .root()
            .make_as(&user(1234, 70_000), name, kind, 0o600)?
            .attr()?;
        same((attr.uid, attr.gid), (1234, 70_000))?;
    }
    Ok(())
}

fn umask_takes_bits_away(t: &mut Fixture) -> Outcome {
    let who = Credentials {
        umask: 0o027,
        ..Credentials::ROOT
    };
    let perm = |name, what, perm| -> Outcome<u32> {
        Ok(t.root().make_as(&who, name, what, perm)?.attr()?.perm)
    };
    same(perm("f", NewInode::Regular, 0o666)?, 0o640)?;
    same(perm("g", NewInode::Regular, 0o4777)?, 0o4750)?;
    same(perm("d", NewInode::Directory, 0o777)?, 0o750)?;
    same(perm("p", NewInode::Fifo, 0o622)?, 0o600)?;
    same(perm("s", NewInode::Symlink(b"x"), 0o777)?, 0o777)
}

fn all_permission_bits_can_be_asked_for(t: &mut Fixture) -> Outcome {
    for (number, perm) in [0, 0o111, 0o777, 0o1777, 0o2755, 0o4755, 0o7777]
        .into_iter()
        .enumerate()
    {
        let file = t
            .root()
            .make(format!("f{number}"), NewInode::Regular, perm)?;
        same(file.attr()?.perm, perm)?;
        let dir = t
            .root()
            .make(format!("d{number}"), NewInode::Directory, perm)?;
        same(dir.attr()?.perm, perm)?;
    }
    Ok(())
}

fn set_group_id_directory_hands_its_group_on(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.chown(0, 500)?;
    dir.chmod(0o2775)?;
    let who = user(1000, 1000);
    let file = dir.make_as(&who, "f", NewInode::Regular, 0o644)?.attr()?;
    same((file.uid, file.gid, file.perm), (1000, 500, 0o644))?;
    let below = dir.make_as(&who, "below", NewInode::Directory, 0o755)?;
    let attr = below.attr()?;
    same((attr.gid, attr.perm), (500, 0o2755))?;
    let deeper = below.make_as(&who, "deeper", NewInode::Directory, 0o700)?;
    same(deeper.attr()?.perm, 0o2700)?;
    let link = dir.make_as(&who, "s", NewInode::Symlink(b"f"), 0o777)?;
    same(link.attr()?.gid, 500)
}

fn set_group_id_directory_keeps_foreign_executables_plain(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.chown(0, 500)?;
    dir.chmod(0o2777)?;
    let perm = |who: Credentials, name, perm| -> Outcome<u32> {
        Ok(dir
            .make_as(&who, name, NewInode::Regular, perm)?
            .attr()?
            .perm)
    };
    same(perm(user(1000, 1000), "foreign", 0o2755)?, 0o755)?;
    same(perm(user(1000, 1000), "plain", 0o2744)?, 0o2744)?;
    same(perm(user(1000, 500), "member", 0o2755)?, 0o2755)?;
    same(perm(Credentials::ROOT, "root", 0o2755)?, 0o2755)
}

fn birth_times_are_now(t: &mut Fixture) -> Outcome {
    for (number, kind) in KINDS.into_iter().enumerate() {
        let before = Timestamp::now();
        let attr = t.root().make(format!("k{number}"), kind, 0o600)?.attr()?;
        let after = Timestamp::now();
        for time in [attr.atime, attr.mtime, attr.ctime, attr.btime] {
            // A coarse clock may be up to a tick behind.
            let early = Timestamp {
                sec: before.sec - 1,
                ..before
            };
            check(
                time >= early && time <= after,
                format_args!("{time:?} is not within {before:?} and {after:?}"),
            )?;
        }
    }
    Ok(())
}

fn identities_are_unique(t: &mut Fixture) -> Outcome {
    let mut inos = vec![t.fs().root()];
    for number in 0..200 {
        let kind = KINDS[number % KINDS.len()];
        inos.push(t.root().make(format!("n{number}"), kind, 0o600)?.ino());
    }
    let count = inos.len();
    inos.sort();
    inos.dedup();
    same(inos.len(), count)
}

fn names_can_be_reused(t: &mut Fixture) -> Outcome {
    for round in 0..50u8 {
        match round % 3 {
            0 => {
                t.root().file_of("n", &[round])?;
                t.root().unlink("n")?;
            }
            1 => {
                let dir = t.root().dir("n")?;
                same(dir.list()?.len(), 0)?;
                t.root().rmdir("n")?;
            }
            _ => {
                let file = t.root().file("n")?;
                same(file.size()?, 0)?;
                t.root().unlink("n")?;
            }
        }
        t.root().lacks("n")?;
    }
    Ok(())
}
