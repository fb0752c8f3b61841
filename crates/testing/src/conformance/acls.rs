//! POSIX access control lists, as extended attributes and by their effects.

use super::case::{Case, group};
use super::support::{Fixture, HeldInode, Outcome, refused, same};
use sapwood_vfs::acl::{ACCESS, Acl, AclEntry, DEFAULT, Tag};
use sapwood_vfs::{Credentials, Error, NewInode};

pub(super) fn cases() -> Vec<Case> {
    group!("acl":
        access_list_moves_the_mode,
        list_that_equals_the_mode_is_not_stored,
        chmod_moves_the_mask,
        empty_list_removes,
        removing_a_missing_list_is_no_error,
        malformed_lists_are_refused,
        default_list_is_for_directories,
        symlinks_have_none,
        children_inherit_the_default_list,
        inherited_list_ignores_the_umask,
        minimal_default_list_sets_the_mode,
        tmpfile_inherits if tmpfile,
        without_default_list_nothing_is_inherited,
        default_list_leaves_the_mode_alone,
        lists_survive_a_remount if persistent,
        lists_are_listed,
        set_id_bits_stay,
    )
}

fn list(entries: &[(Tag, u32)]) -> Outcome<Vec<u8>> {
    let entries = entries.iter().map(|&(tag, perm)| AclEntry { tag, perm });
    let acl = Acl::new(entries.collect());
    Ok(acl.map_err(sapwood_vfs::Error::from)?.to_bytes())
}

/// `u::rwx,u:1000:rw,g::rx,m::MASK,o::r`
fn with_mask(mask: u32) -> Outcome<Vec<u8>> {
    list(&[
        (Tag::UserObj, 7),
        (Tag::User(1000), 6),
        (Tag::GroupObj, 5),
        (Tag::Mask, mask),
        (Tag::Other, 4),
    ])
}

#[track_caller]
fn perm_is(node: &HeldInode<'_>, perm: u32) -> Outcome {
    same(format!("{:o}", node.attr()?.perm), format!("{perm:o}"))
}

fn access_list_moves_the_mode(t: &mut Fixture) -> Outcome {
    let (file, dir) = (t.root().file("f")?, t.root().dir("d")?);
    for node in [&file, &dir] {
        refused(node.xattr(ACCESS), Error::NoAttribute)?;
        node.set_xattr(ACCESS, &with_mask(3)?)?;
        perm_is(node, 0o734)?;
        same(node.xattr(ACCESS)?, with_mask(3)?)?;
        node.set_xattr(ACCESS, &with_mask(6)?)?;
        perm_is(node, 0o764)?;
    }
    Ok(())
}

fn list_that_equals_the_mode_is_not_stored(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.set_xattr(ACCESS, &with_mask(7)?)?;
    file.set_xattr(ACCESS, &Acl::from_mode(0o641).to_bytes())?;
    perm_is(&file, 0o641)?;
    refused(file.xattr(ACCESS), Error::NoAttribute)?;
    same(file.xattrs()?.len(), 0)
}

fn chmod_moves_the_mask(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.set_xattr(ACCESS, &with_mask(7)?)?;
    file.chmod(0o610)?;
    perm_is(&file, 0o610)?;
    let want = list(&[
        (Tag::UserObj, 6),
        (Tag::User(1000), 6),
        (Tag::GroupObj, 5),
        (Tag::Mask, 1),
        (Tag::Other, 0),
    ])?;
    same(file.xattr(ACCESS)?, want)
}

fn empty_list_removes(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    for name in [ACCESS, DEFAULT] {
        dir.set_xattr(name, &with_mask(7)?)?;
        dir.set_xattr(name, &2u32.to_le_bytes())?;
        refused(dir.xattr(name), Error::NoAttribute)?;
    }
    perm_is(&dir, 0o774)?;
    dir.set_xattr(ACCESS, &with_mask(7)?)?;
    dir.set_xattr(DEFAULT, &with_mask(7)?)?;
    dir.remove_xattr(ACCESS)?;
    dir.remove_xattr(DEFAULT)?;
    same(dir.xattrs()?.len(), 0)
}

fn removing_a_missing_list_is_no_error(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.remove_xattr(ACCESS)?;
    dir.remove_xattr(DEFAULT)?;
    t.root().file("f")?.remove_xattr(ACCESS)?;
    Ok(())
}

fn malformed_lists_are_refused(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let good = with_mask(7)?;
    let patched = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    for name in [ACCESS, DEFAULT] {
        refused(dir.set_xattr(name, &patched(0, 1)), Error::NotSupported)?;
        refused(dir.set_xattr(name, b""), Error::Invalid)?;
        refused(dir.set_xattr(name, &good[..good.len() - 1]), Error::Invalid)?;
        // An unknown tag, unknown permissions, an entry out of order.
        refused(dir.set_xattr(name, &patched(4, 3)), Error::Invalid)?;
        refused(dir.set_xattr(name, &patched(6, 8)), Error::Invalid)?;
        refused(dir.set_xattr(name, &patched(20, 1)), Error::Invalid)?;
        // Without a mask, and without others.
        let no_mask = [&good[..28], &good[36..]].concat();
        refused(dir.set_xattr(name, &no_mask), Error::Invalid)?;
        refused(dir.set_xattr(name, &good[..36]), Error::Invalid)?;
    }
    same(dir.xattrs()?.len(), 0)?;
    perm_is(&dir, 0o755)
}

fn default_list_is_for_directories(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    refused(file.set_xattr(DEFAULT, &with_mask(7)?), Error::AccessDenied)?;
    let fifo = t.root().make("p", NewInode::Fifo, 0o600)?;
    refused(fifo.set_xattr(DEFAULT, &with_mask(7)?), Error::AccessDenied)?;
    fifo.set_xattr(ACCESS, &with_mask(7)?)?;
    perm_is(&fifo, 0o774)
}

fn symlinks_have_none(t: &mut Fixture) -> Outcome {
    let link = t.root().symlink("s", b"t")?;
    refused(link.set_xattr(ACCESS, &with_mask(7)?), Error::NotSupported)?;
    refused(link.set_xattr(DEFAULT, &with_mask(7)?), Error::NotSupported)?;
    same(link.xattrs()?.len(), 0)
}

fn children_inherit_the_default_list(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr(DEFAULT, &with_mask(7)?)?;
    let file = dir.make("f", NewInode::Regular, 0o666)?;
    perm_is(&file, 0o664)?;
    let want = list(&[
        (Tag::UserObj, 6),
        (Tag::User(1000), 6),
        (Tag::GroupObj, 5),
        (Tag::Mask, 6),
        (Tag::Other, 4),
    ])?;
    same(file.xattr(ACCESS)?, want)?;
    refused(file.xattr(DEFAULT), Error::NoAttribute)?;
    let below = dir.make("below", NewInode::Directory, 0o777)?;
    perm_is(&below, 0o774)?;
    same(below.xattr(ACCESS)?, with_mask(7)?)?;
    same(below.xattr(DEFAULT)?, with_mask(7)?)?;
    let deeper = below.make("deeper", NewInode::Directory, 0o777)?;
    same(deeper.xattr(DEFAULT)?, with_mask(7)?)?;
    let link = dir.symlink("s", b"f")?;
    same(link.xattrs()?.len(), 0)?;
    perm_is(&link, 0o777)
}

fn inherited_list_ignores_the_umask(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr(DEFAULT, &with_mask(7)?)?;
    let who = Credentials {
        umask: 0o777,
        ..Credentials::ROOT
    };
    let file = dir.make_as(&who, "f", NewInode::Regular, 0o666)?;
    perm_is(&file, 0o664)?;
    dir.remove_xattr(DEFAULT)?;
    let file = dir.make_as(&who, "g", NewInode::Regular, 0o666)?;
    perm_is(&file, 0)
}

fn minimal_default_list_sets_the_mode(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr(DEFAULT, &Acl::from_mode(0o750).to_bytes())?;
    let file = dir.make("f", NewInode::Regular, 0o666)?;
    perm_is(&file, 0o640)?;
    same(file.xattrs()?.len(), 0)?;
    let below = dir.make("below", NewInode::Directory, 0o777)?;
    perm_is(&below, 0o750)?;
    same(below.xattr(DEFAULT)?, Acl::from_mode(0o750).to_bytes())
}

fn tmpfile_inherits(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr(DEFAULT, &with_mask(7)?)?;
    let file = dir.tmpfile(0o600)?;
    perm_is(&file, 0o600)?;
    let want = list(&[
        (Tag::UserObj, 6),
        (Tag::User(1000), 6),
        (Tag::GroupObj, 5),
        (Tag::Mask, 0),
        (Tag::Other, 0),
    ])?;
    same(file.xattr(ACCESS)?, want)
}

fn without_default_list_nothing_is_inherited(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr(ACCESS, &with_mask(7)?)?;
    let file = dir.make("f", NewInode::Regular, 0o666)?;
    same(file.xattrs()?.len(), 0)?;
    perm_is(&file, 0o666)
}

fn default_list_leaves_the_mode_alone(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr(DEFAULT, &with_mask(1)?)?;
    perm_is(&dir, 0o755)?;
    dir.chmod(0o700)?;
    same(dir.xattr(DEFAULT)?, with_mask(1)?)
}

fn lists_survive_a_remount(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr(DEFAULT, &with_mask(7)?)?;
    dir.file("f")?;
    drop(dir);
    t.remount(false)?;
    let dir = t.root().find("d")?;
    same(dir.xattr(DEFAULT)?, with_mask(7)?)?;
    perm_is(&dir.find("f")?, 0o644)?;
    let again = dir.make("g", NewInode::Regular, 0o644)?;
    same(dir.find("f")?.xattr(ACCESS)?, again.xattr(ACCESS)?)
}

fn lists_are_listed(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr("user.a", b"x")?;
    dir.set_xattr(ACCESS, &with_mask(7)?)?;
    dir.set_xattr(DEFAULT, &with_mask(7)?)?;
    same(
        dir.xattrs()?,
        [
            "system.posix_acl_access",
            "system.posix_acl_default",
            "user.a",
        ],
    )
}

fn set_id_bits_stay(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.chmod(0o6755)?;
    file.set_xattr(ACCESS, &with_mask(5)?)?;
    perm_is(&file, 0o6754)
}
