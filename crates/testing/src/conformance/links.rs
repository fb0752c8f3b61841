//! Hard links, files without a name, and the count of references.

use super::case::{Case, group};
use super::support::{Fixture, Outcome, check, pattern, refused, same, same_bytes, user};
use sapwood_vfs::{Credentials, Error, Ino, NewInode};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = group!("links":
        link_gives_a_second_name,
        link_works_for_every_kind_but_directories,
        link_to_a_directory_is_refused,
        link_to_a_taken_name_exists,
        link_into_a_file_is_refused,
        link_into_a_removed_directory_is_not_found,
        link_to_an_unlinked_inode_is_not_found,
        links_in_many_directories,
        many_links_in_one_directory,
        many_links_survive_a_remount if persistent,
        links_share_everything,
    );
    let limit = Case::new("links", "too_many_are_refused", too_many_are_refused, |c| {
        c.link_max.is_some()
    });
    cases.push(limit);
    cases.extend(group!("tmpfile":
        has_no_name if tmpfile,
        can_get_a_name if tmpfile,
        can_get_several_names if tmpfile,
        named_one_survives_a_remount if tmpfile,
        nameless_one_dies_with_its_last_reference if tmpfile,
        needs_a_living_directory if tmpfile,
        takes_owner_and_umask if tmpfile,
        once_unlinked_stays_unlinked if tmpfile,
    ));
    cases.extend(group!("references":
        each_entry_carries_one,
        many_can_be_given_back_at_once,
        giving_back_unknown_inodes_is_harmless,
        listing_takes_none,
        named_inode_lives_without_any,
    ));
    cases
}

fn link_gives_a_second_name(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("a", b"content")?;
    let dir = t.root().dir("d")?;
    let entry = t.fs().link(file.ino(), dir.ino(), b"b")?;
    let linked = t.node(entry);
    same(linked.ino(), file.ino())?;
    same(entry.attr.nlink, 2)?;
    same(file.nlink()?, 2)?;
    same(dir.find("b")?.content()?, b"content")?;
    same(dir.names()?, ["b"])
}

fn link_works_for_every_kind_but_directories(t: &mut Fixture) -> Outcome {
    for (number, what) in [
        NewInode::Symlink(b"t"),
        NewInode::CharDevice(5),
        NewInode::BlockDevice(6),
        NewInode::Fifo,
        NewInode::Socket,
    ]
    .into_iter()
    .enumerate()
    {
        let inode = t.root().make(format!("a{number}"), what, 0o600)?;
        t.root().link(&inode, format!("b{number}"))?;
        same(inode.nlink()?, 2)?;
        same(t.root().find(format!("b{number}"))?.attr()?, inode.attr()?)?;
    }
    Ok(())
}

fn link_to_a_directory_is_refused(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    refused(t.root().link(&dir, "e"), Error::NotPermitted)?;
    refused(dir.link(&t.root(), "e"), Error::NotPermitted)?;
    t.root().lacks("e")
}

fn link_to_a_taken_name_exists(t: &mut Fixture) -> Outcome {
    let file = t.root().file("a")?;
    t.root().file("b")?;
    t.root().dir("d")?;
    for name in ["a", "b", "d"] {
        refused(t.root().link(&file, name), Error::Exists)?;
    }
    same(file.nlink()?, 1)
}

fn link_into_a_file_is_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("a")?;
    refused(file.link(&file, "b"), Error::NotDirectory)?;
    same(file.nlink()?, 1)
}

fn link_into_a_removed_directory_is_not_found(t: &mut Fixture) -> Outcome {
    let file = t.root().file("a")?;
    let dir = t.root().dir("d")?;
    t.root().rmdir("d")?;
    refused(dir.link(&file, "b"), Error::NotFound)?;
    same(file.nlink()?, 1)
}

fn link_to_an_unlinked_inode_is_not_found(t: &mut Fixture) -> Outcome {
    let file = t.root().file("a")?;
    t.root().unlink("a")?;
    refused(t.root().link(&file, "b"), Error::NotFound)?;
    t.root().lacks("b")?;
    same(file.nlink()?, 0)
}

fn links_in_many_directories(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"x")?;
    for number in 0..40 {
        t.root().dir(format!("d{number}"))?.link(&file, "f")?;
    }
    same(file.nlink()?, 41)?;
    for number in 0..40 {
        t.root().find(format!("d{number}"))?.unlink("f")?;
        same(file.nlink()?, 40 - number)?;
    }
    Ok(())
}

fn many_links_in_one_directory(t: &mut Fixture) -> Outcome {
    // More than fit in one item of back references in btrfs.
    let dir = t.root().dir("d")?;
    let file = dir.file_of("f", b"content")?;
    let name = |number: u32| format!("{number:04}-{}", "n".repeat(150));
    for number in 0..400 {
        dir.link(&file, name(number))?;
    }
    same(file.nlink()?, 401)?;
    same(dir.list()?.len(), 401)?;
    for number in (0..400).rev().step_by(2) {
        dir.unlink(name(number))?;
        dir.lacks(name(number))?;
    }
    same(file.nlink()?, 201)?;
    for number in (0..400).step_by(2) {
        same(dir.find(name(number))?.ino(), file.ino())?;
        dir.rename(name(number), name(number + 1))?;
    }
    same((file.nlink()?, dir.list()?.len()), (201, 201))
}

fn many_links_survive_a_remount(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let file = dir.file_of("f", b"content")?;
    let name = |number: u32| format!("{number:04}-{}", "n".repeat(200));
    for number in 0..300 {
        dir.link(&file, name(number))?;
    }
    drop((file, dir));
    t.remount(false)?;
    let dir = t.root().find("d")?;
    same(dir.find("f")?.nlink()?, 301)?;
    for number in 0..300 {
        dir.unlink(name(number))?;
    }
    drop(dir);
    t.remount(false)?;
    let file = t.root().walk("d/f")?;
    same((file.nlink()?, file.content()?), (1, b"content".to_vec()))
}

fn links_share_everything(t: &mut Fixture) -> Outcome {
    let one = t.root().file("a")?;
    t.root().link(&one, "b")?;
    let other = t.root().find("b")?;
    other.write(0, b"through b")?;
    other.chmod(0o600)?;
    other.set_xattr("user.x", b"y")?;
    same(one.content()?, b"through b")?;
    same(one.attr()?, other.attr()?)?;
    same(one.xattr("user.x")?, b"y")
}

fn too_many_are_refused(t: &mut Fixture) -> Outcome {
    let most = t.capabilities.link_max.unwrap_or(u32::MAX);
    let dir = t.root().dir("d")?;
    let file = dir.file("f")?;
    for number in 1..most {
        dir.link(&file, number.to_string())?;
    }
    same(file.nlink()?, most)?;
    refused(dir.link(&file, "more"), Error::TooManyLinks)?;
    dir.lacks("more")?;
    dir.unlink("1")?;
    dir.link(&file, "more")?;
    same(file.nlink()?, most)
}

fn has_no_name(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let file = dir.tmpfile(0o640)?;
    let attr = file.attr()?;
    same((attr.nlink, attr.size, attr.perm), (0, 0, 0o640))?;
    same(dir.list()?.len(), 0)?;
    let bytes = pattern(1, 100_000);
    file.write(0, &bytes)?;
    t.fs().sync()?;
    same_bytes(&file.content()?, &bytes)?;
    t.root().rmdir("d")?;
    same_bytes(&file.content()?, &bytes)
}

fn can_get_a_name(t: &mut Fixture) -> Outcome {
    let file = t.root().tmpfile(0o600)?;
    file.write(0, b"content")?;
    let dir = t.root().dir("d")?;
    dir.link(&file, "f")?;
    same(file.nlink()?, 1)?;
    let ino = file.ino();
    drop(file);
    let found = dir.find("f")?;
    same(found.ino(), ino)?;
    same(found.content()?, b"content")
}

fn can_get_several_names(t: &mut Fixture) -> Outcome {
    let file = t.root().tmpfile(0o600)?;
    t.root().link(&file, "a")?;
    t.root().link(&file, "b")?;
    refused(t.root().link(&file, "a"), Error::Exists)?;
    same(file.nlink()?, 2)
}

fn named_one_survives_a_remount(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 50_000);
    let file = t.root().tmpfile(0o600)?;
    file.write(0, &bytes)?;
    t.fs().sync()?;
    t.root().link(&file, "f")?;
    let other = t.root().tmpfile(0o600)?;
    other.write(0, &bytes)?;
    let lost = other.ino();
    drop((file, other));
    t.remount(false)?;
    refused(t.fs().reference(lost), Error::Stale)?;
    let file = t.root().find("f")?;
    same(file.nlink()?, 1)?;
    same_bytes(&file.content()?, &bytes)
}

fn nameless_one_dies_with_its_last_reference(t: &mut Fixture) -> Outcome {
    let file = t.root().tmpfile(0o600)?;
    file.write(0, &pattern(1, 50_000))?;
    let ino = file.ino();
    let again = file.again()?;
    drop(file);
    same(again.size()?, 50_000)?;
    drop(again);
    refused(t.fs().reference(ino), Error::Stale)
}

fn needs_a_living_directory(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    t.root().rmdir("d")?;
    refused(dir.tmpfile(0o600), Error::NotFound)?;
    let file = t.root().file("f")?;
    refused(file.tmpfile(0o600), Error::NotDirectory)
}

fn takes_owner_and_umask(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.chown(0, 500)?;
    dir.chmod(0o2777)?;
    let who = Credentials {
        umask: 0o022,
        ..user(1000, 1000)
    };
    let entry = t.fs().tmpfile(&who, dir.ino(), 0o666)?;
    let file = t.node(entry);
    let attr = file.attr()?;
    same((attr.uid, attr.gid, attr.perm), (1000, 500, 0o644))
}

fn once_unlinked_stays_unlinked(t: &mut Fixture) -> Outcome {
    let file = t.root().tmpfile(0o600)?;
    t.root().link(&file, "f")?;
    t.root().unlink("f")?;
    refused(t.root().link(&file, "g"), Error::NotFound)
}

fn each_entry_carries_one(t: &mut Fixture) -> Outcome {
    let fs = t.fs();
    let root = fs.root();
    let made = fs.create(&Credentials::ROOT, root, b"f", NewInode::Regular, 0o600)?;
    let ino = made.ino();
    same(fs.lookup(root, b"f")?.ino(), ino)?;
    same(fs.reference(ino)?.ino(), ino)?;
    same(fs.link(ino, root, b"g")?.ino(), ino)?;
    fs.unlink(root, b"f")?;
    fs.unlink(root, b"g")?;
    for left in (1..=4).rev() {
        let alive = fs.getattr(ino).is_ok();
        check(alive, format_args!("dead with {left} references left"))?;
        fs.forget(ino, 1);
    }
    refused(fs.reference(ino), Error::Stale)?;
    let dir = t.root().dir("d")?;
    let below = dir.dir("below")?;
    let parent = fs.parent(below.ino())?.ino();
    same(parent, dir.ino())?;
    drop(below);
    dir.rmdir("below")?;
    drop(dir);
    t.root().rmdir("d")?;
    fs.getattr(parent)?;
    fs.forget(parent, 1);
    refused(fs.reference(parent), Error::Stale)
}

fn many_can_be_given_back_at_once(t: &mut Fixture) -> Outcome {
    let fs = t.fs();
    let ino = t.root().file("f")?.ino();
    for _ in 0..1000 {
        fs.lookup(fs.root(), b"f")?;
    }
    t.root().unlink("f")?;
    fs.forget(ino, 400);
    fs.forget(ino, 599);
    same(fs.getattr(ino)?.nlink, 0)?;
    check(fs.referenced().contains(&ino), "not named as referenced")?;
    fs.forget(ino, 1);
    check(!fs.referenced().contains(&ino), "named as referenced still")?;
    refused(fs.reference(ino), Error::Stale)
}

fn giving_back_unknown_inodes_is_harmless(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    t.fs().forget(Ino(0x0123_4567), 1);
    t.fs().forget(Ino(u64::MAX), 1);
    t.fs().forget(t.fs().root(), 1);
    t.root().attr()?;
    file.attr()?;
    Ok(())
}

fn listing_takes_none(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let ino = dir.file("f")?.ino();
    for _ in 0..10 {
        same(dir.list()?.len(), 1)?;
    }
    dir.unlink("f")?;
    refused(t.fs().reference(ino), Error::Stale)
}

fn named_inode_lives_without_any(t: &mut Fixture) -> Outcome {
    let bytes = pattern(1, 30_000);
    let file = t.root().file_of("f", &bytes)?;
    file.set_xattr("user.a", b"b")?;
    let ino = file.ino();
    drop(file);
    t.fs().sync()?;
    let found = t.root().find("f")?;
    same(found.ino(), ino)?;
    same_bytes(&found.content()?, &bytes)?;
    same(found.xattr("user.a")?, b"b")
}
