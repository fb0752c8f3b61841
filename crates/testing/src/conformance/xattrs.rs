//! Extended attributes.

use super::case::{Case, group};
use super::support::{Fixture, Outcome, check, pattern, refused, same, same_bytes};
use sapwood_vfs::{Error, NewInode, SetXattrMode};

pub(super) fn cases() -> Vec<Case> {
    group!("xattr":
        set_value_is_read_back,
        missing_one_is_no_attribute,
        create_and_replace_modes,
        values_may_be_empty_or_binary,
        values_change_their_length,
        all_are_listed,
        removed_one_is_gone,
        long_names_work,
        too_long_names_are_refused,
        bare_and_unknown_namespaces_are_refused,
        every_namespace_works,
        symlinks_and_devices_take_no_user_attributes,
        directories_and_the_root_have_them,
        large_values_work,
        too_large_values_are_refused,
        many_on_one_inode,
        names_that_hash_alike_are_told_apart,
        they_survive_a_remount if persistent,
        they_follow_the_inode,
        inodes_do_not_share_them,
    )
}

/// Names of attributes whose CRC-32C is equal for every seed.
const ALIKE: [(&str, &str); 2] = [
    ("user.ewpvvvrt", "user.qtxwpvec"),
    ("user.bibptpvv", "user.urclwjpj"),
];

fn set_value_is_read_back(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.set_xattr("user.a", b"value")?;
    same(file.xattr("user.a")?, b"value")?;
    same(t.root().find("f")?.xattr("user.a")?, b"value")?;
    file.set_xattr("user.a", b"other")?;
    same(file.xattr("user.a")?, b"other")?;
    same(file.xattrs()?, ["user.a"])
}

fn missing_one_is_no_attribute(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    refused(file.xattr("user.a"), Error::NoAttribute)?;
    refused(file.remove_xattr("user.a"), Error::NoAttribute)?;
    file.set_xattr("user.ab", b"x")?;
    refused(file.xattr("user.a"), Error::NoAttribute)?;
    refused(file.remove_xattr("user.abc"), Error::NoAttribute)?;
    same(file.xattr("user.ab")?, b"x")
}

fn create_and_replace_modes(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let set = |value: &[u8], mode| file.set_xattr_mode("user.a", value, mode);
    refused(set(b"1", SetXattrMode::Replace), Error::NoAttribute)?;
    same(file.xattrs()?.len(), 0)?;
    set(b"2", SetXattrMode::Create)?;
    refused(set(b"3", SetXattrMode::Create), Error::Exists)?;
    same(file.xattr("user.a")?, b"2")?;
    set(b"4", SetXattrMode::Replace)?;
    set(b"5", SetXattrMode::Any)?;
    same(file.xattr("user.a")?, b"5")?;
    file.remove_xattr("user.a")?;
    refused(set(b"6", SetXattrMode::Replace), Error::NoAttribute)
}

fn values_may_be_empty_or_binary(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let every_byte: Vec<u8> = (0..=255).collect();
    for value in [&b""[..], b"\0", b"a\0b", &every_byte] {
        file.set_xattr("user.a", value)?;
        same(file.xattr("user.a")?, value)?;
    }
    file.set_xattr("user.a", b"")?;
    same(file.xattrs()?, ["user.a"])
}

fn values_change_their_length(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.set_xattr("user.before", b"before")?;
    file.set_xattr("user.b", b"")?;
    file.set_xattr("user.z", b"after")?;
    let longest = t.capabilities.xattr_value / 2;
    for len in [1, 100, 10, longest, 0, 1000, longest, 5] {
        let value = pattern(len as u64, len);
        file.set_xattr("user.b", &value)?;
        same_bytes(&file.xattr("user.b")?, &value)?;
        same(file.xattr("user.before")?, b"before")?;
        same(file.xattr("user.z")?, b"after")?;
    }
    Ok(())
}

fn all_are_listed(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    same(file.xattrs()?.len(), 0)?;
    let names = ["security.s", "trusted.t", "user.a", "user.b", "user.b.c"];
    for name in names {
        file.set_xattr(name, b"x")?;
    }
    same(file.xattrs()?, names)?;
    file.remove_xattr("user.a")?;
    same(file.xattrs()?.len(), 4)
}

fn removed_one_is_gone(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for name in ["user.a", "user.b", "user.c"] {
        file.set_xattr(name, name.as_bytes())?;
    }
    file.remove_xattr("user.b")?;
    refused(file.xattr("user.b"), Error::NoAttribute)?;
    refused(file.remove_xattr("user.b"), Error::NoAttribute)?;
    same(file.xattrs()?, ["user.a", "user.c"])?;
    same(file.xattr("user.c")?, b"user.c")?;
    file.set_xattr_mode("user.b", b"again", SetXattrMode::Create)?;
    same(file.xattr("user.b")?, b"again")
}

fn long_names_work(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let name = format!("user.{}", "n".repeat(250));
    file.set_xattr(&name, b"long")?;
    same(file.xattr(&name)?, b"long")?;
    same(file.xattrs()?, [name.clone()])?;
    file.set_xattr("user.\u{e4} \n=", b"odd")?;
    same(file.xattr("user.\u{e4} \n=")?, b"odd")?;
    file.remove_xattr(&name)?;
    refused(file.xattr(&name), Error::NoAttribute)
}

fn too_long_names_are_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let name = format!("user.{}", "n".repeat(251));
    refused(file.set_xattr(&name, b"x"), Error::NameTooLong)?;
    refused(file.xattr(&name), Error::NameTooLong)?;
    refused(file.remove_xattr(&name), Error::NameTooLong)
}

fn bare_and_unknown_namespaces_are_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for name in ["user.", "trusted.", "security."] {
        refused(file.set_xattr(name, b"x"), Error::Invalid)?;
    }
    for name in [
        "user",
        "usera",
        "os2.x",
        "system.x",
        "system.posix_acl",
        "x",
        "",
    ] {
        refused(file.set_xattr(name, b"x"), Error::NotSupported)?;
        refused(file.xattr(name), Error::NotSupported)?;
        refused(file.remove_xattr(name), Error::NotSupported)?;
    }
    same(file.xattrs()?.len(), 0)
}

fn every_namespace_works(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for name in [
        "user.n",
        "trusted.n",
        "security.n",
        "trusted.overlay.opaque",
    ] {
        file.set_xattr(name, name.as_bytes())?;
    }
    for name in [
        "user.n",
        "trusted.n",
        "security.n",
        "trusted.overlay.opaque",
    ] {
        same(file.xattr(name)?, name.as_bytes())?;
        file.remove_xattr(name)?;
    }
    same(file.xattrs()?.len(), 0)
}

fn symlinks_and_devices_take_no_user_attributes(t: &mut Fixture) -> Outcome {
    for (name, what) in [
        ("s", NewInode::Symlink(b"t")),
        ("c", NewInode::CharDevice(1)),
        ("b", NewInode::BlockDevice(1)),
        ("p", NewInode::Fifo),
        ("k", NewInode::Socket),
    ] {
        let inode = t.root().make(name, what, 0o600)?;
        refused(inode.set_xattr("user.a", b"x"), Error::NotPermitted)?;
        inode.set_xattr("trusted.a", b"trusted")?;
        inode.set_xattr("security.a", b"security")?;
        same(inode.xattr("trusted.a")?, b"trusted")?;
        same(inode.xattrs()?, ["security.a", "trusted.a"])?;
    }
    Ok(())
}

fn directories_and_the_root_have_them(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    for (inode, value) in [(&t.root(), b"root"), (&dir, b"subd")] {
        inode.set_xattr("user.a", value)?;
        same(inode.xattr("user.a")?, value)?;
    }
    dir.file("f")?;
    same(dir.find("f")?.xattrs()?.len(), 0)
}

fn large_values_work(t: &mut Fixture) -> Outcome {
    let value = pattern(1, t.capabilities.xattr_value);
    for number in 0..5 {
        let file = t.root().file(format!("f{number}"))?;
        file.set_xattr("user.large", &value)?;
    }
    for number in 0..5 {
        let file = t.root().find(format!("f{number}"))?;
        same_bytes(&file.xattr("user.large")?, &value)?;
    }
    Ok(())
}

fn too_large_values_are_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let result = file.set_xattr("user.a", &vec![1; 65_537]);
    refused(result, Error::AttributeTooLarge)?;
    // The limit of the interface may still be more than fits.
    match file.set_xattr("user.a", &vec![1; 65_536]) {
        Ok(()) => same(file.xattr("user.a")?.len(), 65_536)?,
        Err(error) => {
            same(error, Error::NoSpace)?;
            refused(file.xattr("user.a"), Error::NoAttribute)?;
        }
    }
    file.set_xattr("user.b", b"x")?;
    same(file.xattr("user.b")?, b"x")
}

fn many_on_one_inode(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let count = t.capabilities.xattr_count as u64;
    let name = |number: u64| format!("user.number-{number}");
    for number in 0..count {
        file.set_xattr(name(number), &pattern(number, 100))?;
    }
    same(file.xattrs()?.len() as u64, count)?;
    for number in (0..count).step_by(2) {
        file.remove_xattr(name(number))?;
    }
    for number in 0..count {
        match number % 2 {
            0 => refused(file.xattr(name(number)), Error::NoAttribute)?,
            _ => same(file.xattr(name(number))?, pattern(number, 100))?,
        }
    }
    Ok(())
}

fn names_that_hash_alike_are_told_apart(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for (one, other) in ALIKE {
        file.set_xattr(one, b"one")?;
        refused(file.xattr(other), Error::NoAttribute)?;
        refused(file.remove_xattr(other), Error::NoAttribute)?;
        file.set_xattr_mode(other, b"the other", SetXattrMode::Create)?;
        same(file.xattr(one)?, b"one")?;
        file.set_xattr_mode(one, b"a longer one", SetXattrMode::Replace)?;
        same(file.xattr(other)?, b"the other")?;
        same(file.xattr(one)?, b"a longer one")?;
        file.remove_xattr(one)?;
        same(file.xattrs()?, [other])?;
        same(file.xattr(other)?, b"the other")?;
        file.remove_xattr(other)?;
    }
    same(file.xattrs()?.len(), 0)
}

fn they_survive_a_remount(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    let file = dir.file("f")?;
    for (inode, count) in [(&file, 20u64), (&dir, 3)] {
        for number in 0..count {
            inode.set_xattr(format!("user.{number}"), &pattern(number, 50))?;
        }
    }
    t.root().set_xattr("trusted.root", b"r")?;
    drop((file, dir));
    t.remount(false)?;
    let file = t.root().walk("d/f")?;
    same(
        (file.xattrs()?.len(), t.root().find("d")?.xattrs()?.len()),
        (20, 3),
    )?;
    for number in 0..20 {
        same(file.xattr(format!("user.{number}"))?, pattern(number, 50))?;
        file.remove_xattr(format!("user.{number}"))?;
    }
    same(t.root().xattr("trusted.root")?, b"r")?;
    drop(file);
    t.remount(false)?;
    same(t.root().walk("d/f")?.xattrs()?.len(), 0)
}

fn they_follow_the_inode(t: &mut Fixture) -> Outcome {
    let file = t.root().file("a")?;
    file.set_xattr("user.a", b"x")?;
    t.root().rename("a", "b")?;
    t.root().link(&file, "c")?;
    t.root().unlink("b")?;
    same(t.root().find("c")?.xattr("user.a")?, b"x")?;
    file.write(0, b"content")?;
    file.truncate(0)?;
    same(file.xattr("user.a")?, b"x")?;
    t.root().unlink("c")?;
    same(file.xattr("user.a")?, b"x")
}

fn inodes_do_not_share_them(t: &mut Fixture) -> Outcome {
    for number in 0..20u8 {
        let file = t.root().file(format!("f{number}"))?;
        file.set_xattr("user.same", b"same for all")?;
        file.set_xattr("user.own", &[number])?;
    }
    t.root().find("f3")?.remove_xattr("user.same")?;
    for number in 0..20u8 {
        let file = t.root().find(format!("f{number}"))?;
        same(file.xattr("user.own")?, [number])?;
        let has = file.xattr("user.same").is_ok();
        check(has == (number != 3), format_args!("file {number}: {has}"))?;
    }
    Ok(())
}
