//! Inode flags and properties.

use super::case::{Case, group};
use super::support::{Fixture, HeldInode, Outcome, pattern, refused, same, same_bytes};
use sapwood_vfs::{
    AllocMode, CopyMode, Error, Fsxattr, InodeFlags, NewInode, SetAttr, SetTime, SetXattrMode,
};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = group!("flags":
        set_flags_are_read_back,
        unknown_flags_are_refused,
        immutable_file_refuses_changes,
        immutable_file_can_be_read,
        immutable_directory_refuses_names,
        append_only_file_only_grows,
        append_only_directory_only_takes_names,
        taking_flags_away_frees_again,
        symlinks_keep_few_flags,
        flags_survive_a_remount if persistent,
        fsxattr_shows_flags,
        fsxattr_sets_flags,
        fsxattr_refuses_what_it_cannot_keep,
    );
    cases.extend(group!("properties":
        compression_and_its_opposite_exclude_each_other if compression,
        compression_flag_and_property_agree if compression,
        compression_property_is_validated if compression,
        compression_property_obeys_modes if compression,
        compression_property_is_ignored_elsewhere if compression,
        children_inherit_compression if compression,
        compressed_file_reads_back if compression,
        children_inherit_nocow if compression,
        nocow_stays_on_a_file_with_content if compression,
        nocow_file_reads_back if compression,
    ));
    cases
}

const NONE: InodeFlags = InodeFlags::empty();

fn set_flags_are_read_back(t: &mut Fixture) -> Outcome {
    let (file, dir) = (t.root().file("f")?, t.root().dir("d")?);
    same((file.flags()?, dir.flags()?), (NONE, NONE))?;
    let exclusive = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS | InodeFlags::NOCOW;
    for flag in t.capabilities.flags.iter() {
        if flag != InodeFlags::DIRSYNC {
            file.set_flags(flag)?;
            same(file.flags()?, flag)?;
        }
        dir.set_flags(flag)?;
        same(dir.flags()?, flag)?;
    }
    let many = t.capabilities.flags - exclusive - InodeFlags::DIRSYNC;
    file.set_flags(many)?;
    same(file.flags()?, many)?;
    file.set_flags(NONE)?;
    same(file.flags()?, NONE)?;
    dir.set_flags(NONE)?;
    same(dir.flags()?, NONE)
}

fn unknown_flags_are_refused(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for bit in [0x1, 0x2, 0x800, 0x8000_0000] {
        let flags = InodeFlags::from_bits_retain(bit);
        refused(file.set_flags(flags), Error::NotSupported)?;
    }
    same(file.flags()?, NONE)
}

/// A file with these flags, its content and a second name; both directories are plain.
fn flagged<'a>(root: &HeldInode<'a>, flags: InodeFlags) -> Outcome<HeldInode<'a>> {
    let file = root.file_of("f", b"content")?;
    root.link(&file, "g")?;
    file.set_xattr("user.a", b"x")?;
    file.set_flags(flags)?;
    Ok(file)
}

fn immutable_file_refuses_changes(t: &mut Fixture) -> Outcome {
    let (root, other) = (t.root(), t.root().file_of("other", b"other")?);
    let file = flagged(&root, InodeFlags::IMMUTABLE)?;
    let no = Error::NotPermitted;
    refused(file.write(0, b"x"), no.clone())?;
    refused(file.append(b"x"), no.clone())?;
    refused(file.truncate(0), no.clone())?;
    refused(file.chmod(0o600), no.clone())?;
    refused(file.chown(1, 1), no.clone())?;
    let touch = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    refused(file.set(&touch), no.clone())?;
    let allocate = AllocMode::Allocate { keep_size: true };
    refused(file.fallocate(0, 100, allocate), no.clone())?;
    refused(other.copy_to(0, &file, 0, 0, CopyMode::Any), no.clone())?;
    refused(file.set_xattr("user.b", b"x"), no.clone())?;
    refused(file.remove_xattr("user.a"), no.clone())?;
    refused(root.link(&file, "h"), no.clone())?;
    refused(root.unlink("f"), no.clone())?;
    refused(root.rename("f", "h"), no.clone())?;
    refused(root.rename("other", "f"), no.clone())?;
    same(file.content()?, b"content")?;
    same((file.nlink()?, file.attr()?.perm), (2, 0o644))?;
    file.set_flags(NONE)?;
    Ok(())
}

fn immutable_file_can_be_read(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let file = flagged(&root, InodeFlags::IMMUTABLE)?;
    same(file.content()?, b"content")?;
    same(file.xattr("user.a")?, b"x")?;
    t.fs().fsync(file.ino(), sapwood_vfs::SyncKind::All)?;
    let copy = root.file("copy")?;
    same(file.copy_to(0, &copy, 0, 0, CopyMode::Any)?, 7)?;
    same(copy.content()?, b"content")?;
    file.set_flags(NONE)?;
    Ok(())
}

fn immutable_directory_refuses_names(t: &mut Fixture) -> Outcome {
    let (dir, other) = (t.root().dir("d")?, t.root().file("other")?);
    let file = dir.file_of("f", b"content")?;
    dir.dir("e")?;
    dir.set_flags(InodeFlags::IMMUTABLE)?;
    let no = Error::NotPermitted;
    refused(dir.file("x"), no.clone())?;
    refused(dir.dir("x"), no.clone())?;
    refused(dir.link(&other, "x"), no.clone())?;
    if t.capabilities.tmpfile {
        refused(dir.tmpfile(0o600), no.clone())?;
    }
    refused(dir.unlink("f"), no.clone())?;
    refused(dir.rmdir("e"), no.clone())?;
    refused(dir.rename("f", "x"), no.clone())?;
    let replace = sapwood_vfs::RenameMode::Replace;
    refused(t.root().rename_to("other", &dir, "x", replace), no.clone())?;
    refused(dir.rename_to("f", &t.root(), "x", replace), no.clone())?;
    refused(t.root().rename("d", "x"), no.clone())?;
    refused(t.root().rmdir("d"), no)?;
    // The content of an immutable directory is not immutable.
    file.write(0, b"CONTENT")?;
    dir.find("e")?.file("inside")?;
    same(dir.names()?, ["e", "f"])?;
    dir.set_flags(NONE)?;
    Ok(())
}

fn append_only_file_only_grows(t: &mut Fixture) -> Outcome {
    let root = t.root();
    let file = flagged(&root, InodeFlags::APPEND)?;
    let no = Error::NotPermitted;
    refused(file.write(0, b"x"), no.clone())?;
    refused(file.write(6, b"xx"), no.clone())?;
    refused(file.truncate(0), no.clone())?;
    refused(file.truncate(100), no.clone())?;
    refused(file.chmod(0o600), no.clone())?;
    refused(file.set_xattr("user.b", b"x"), no.clone())?;
    refused(root.unlink("f"), no.clone())?;
    refused(root.link(&file, "h"), no.clone())?;
    refused(root.rename("f", "h"), no.clone())?;
    if t.capabilities.punch_hole {
        refused(file.fallocate(0, 7, AllocMode::PunchHole), no)?;
    }
    file.append(b", more")?;
    file.write(13, b", and more")?;
    refused(
        t.root()
            .file_of("other", b"x")?
            .copy_to(0, &file, 1000, 0, CopyMode::Any),
        Error::NotPermitted,
    )?;
    same(file.content()?, b"content, more, and more")?;
    file.set(&SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    })?;
    file.set_flags(NONE)?;
    Ok(())
}

fn append_only_directory_only_takes_names(t: &mut Fixture) -> Outcome {
    let (dir, other) = (t.root().dir("d")?, t.root().file("other")?);
    dir.file("f")?;
    dir.dir("e")?;
    dir.set_flags(InodeFlags::APPEND)?;
    let no = Error::NotPermitted;
    refused(dir.unlink("f"), no.clone())?;
    refused(dir.rmdir("e"), no.clone())?;
    refused(dir.rename("f", "x"), no.clone())?;
    refused(t.root().rmdir("d"), no)?;
    dir.file("new")?;
    dir.link(&other, "linked")?;
    let replace = sapwood_vfs::RenameMode::Replace;
    t.root().rename_to("other", &dir, "moved", replace)?;
    same(dir.names()?, ["e", "f", "linked", "moved", "new"])?;
    dir.set_flags(NONE)?;
    Ok(())
}

fn taking_flags_away_frees_again(t: &mut Fixture) -> Outcome {
    for flag in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
        let root = t.root();
        let file = flagged(&root, flag)?;
        file.set_flags(NONE)?;
        file.write(0, b"C")?;
        file.chmod(0o600)?;
        root.unlink("f")?;
        root.unlink("g")?;
    }
    Ok(())
}

fn symlinks_keep_few_flags(t: &mut Fixture) -> Outcome {
    let link = t.root().symlink("s", b"t")?;
    link.set_flags(InodeFlags::IMMUTABLE | InodeFlags::NODUMP)?;
    same(link.flags()?, InodeFlags::NODUMP)?;
    t.root().unlink("s")?;
    Ok(())
}

fn flags_survive_a_remount(t: &mut Fixture) -> Outcome {
    let (file, dir) = (t.root().file_of("f", b"abc")?, t.root().dir("d")?);
    file.set_flags(InodeFlags::IMMUTABLE | InodeFlags::NOATIME)?;
    dir.set_flags(InodeFlags::APPEND | InodeFlags::NODUMP)?;
    drop((file, dir));
    t.remount(false)?;
    let (file, dir) = (t.root().find("f")?, t.root().find("d")?);
    same(file.flags()?, InodeFlags::IMMUTABLE | InodeFlags::NOATIME)?;
    same(dir.flags()?, InodeFlags::APPEND | InodeFlags::NODUMP)?;
    refused(file.write(0, b"x"), Error::NotPermitted)?;
    file.set_flags(NONE)?;
    file.write(0, b"x")?;
    Ok(())
}

fn fsxattr_shows_flags(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    same(t.fs().fsxattr(file.ino())?.xflags, 0)?;
    file.set_flags(InodeFlags::APPEND | InodeFlags::NODUMP)?;
    same(t.fs().fsxattr(file.ino())?.xflags, 0x10 | 0x80)?;
    file.set_flags(InodeFlags::IMMUTABLE)?;
    same(t.fs().fsxattr(file.ino())?.xflags, 0x8)?;
    file.set_flags(NONE)?;
    Ok(())
}

fn fsxattr_sets_flags(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let value = |xflags| Fsxattr {
        xflags,
        ..Fsxattr::default()
    };
    t.fs().set_fsxattr(file.ino(), &value(0x40 | 0x80))?;
    same(file.flags()?, InodeFlags::NOATIME | InodeFlags::NODUMP)?;
    t.fs().set_fsxattr(file.ino(), &value(0x8))?;
    same(file.flags()?, InodeFlags::IMMUTABLE)?;
    t.fs().set_fsxattr(file.ino(), &value(0))?;
    same(file.flags()?, NONE)
}

fn fsxattr_refuses_what_it_cannot_keep(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for value in [
        Fsxattr {
            xflags: 0x1,
            ..Fsxattr::default()
        },
        Fsxattr {
            extsize: 4096,
            ..Fsxattr::default()
        },
        Fsxattr {
            cowextsize: 4096,
            ..Fsxattr::default()
        },
    ] {
        refused(t.fs().set_fsxattr(file.ino(), &value), Error::NotSupported)?;
    }
    same(file.flags()?, NONE)
}

const COMPRESSION: &str = "btrfs.compression";

fn compression_and_its_opposite_exclude_each_other(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let both = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
    refused(file.set_flags(both), Error::Invalid)?;
    let both = InodeFlags::COMPRESS | InodeFlags::NOCOW;
    refused(file.set_flags(both), Error::Invalid)?;
    same(file.flags()?, NONE)
}

fn compression_flag_and_property_agree(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.set_xattr(COMPRESSION, b"zstd")?;
    same(file.flags()?, InodeFlags::COMPRESS)?;
    same(file.xattr(COMPRESSION)?, b"zstd")?;
    file.set_xattr(COMPRESSION, b"none")?;
    same(file.flags()?, InodeFlags::NOCOMPRESS)?;
    file.remove_xattr(COMPRESSION)?;
    same(file.flags()?, NONE)?;
    refused(file.xattr(COMPRESSION), Error::NoAttribute)?;
    file.set_flags(InodeFlags::COMPRESS)?;
    file.xattr(COMPRESSION)?;
    file.set_flags(NONE)?;
    refused(file.xattr(COMPRESSION), Error::NoAttribute)
}

fn compression_property_is_validated(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    for value in [&b"gzip"[..], b"zst", b"zstd:", b"zstd:x", b"lz4"] {
        refused(file.set_xattr(COMPRESSION, value), Error::Invalid)?;
    }
    refused(file.set_xattr("btrfs.other", b"x"), Error::Invalid)?;
    for value in [&b"zlib"[..], b"lzo", b"zstd", b"zstd:15", b"zlib:9"] {
        file.set_xattr(COMPRESSION, value)?;
        same(file.xattr(COMPRESSION)?, value)?;
    }
    Ok(())
}

fn children_inherit_compression(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_xattr(COMPRESSION, b"zstd")?;
    let (file, below) = (dir.file("f")?, dir.dir("below")?);
    for node in [&file, &below] {
        same(node.flags()?, InodeFlags::COMPRESS)?;
        same(node.xattr(COMPRESSION)?, b"zstd")?;
    }
    let link = dir.symlink("s", b"f")?;
    same(
        (link.flags()?, link.xattrs()?.len()),
        (InodeFlags::COMPRESS, 0),
    )
}

fn compression_property_obeys_modes(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    let set = |value: &[u8], mode| file.set_xattr_mode(COMPRESSION, value, mode);
    refused(set(b"lzo", SetXattrMode::Replace), Error::NoAttribute)?;
    refused(set(b"", SetXattrMode::Replace), Error::NoAttribute)?;
    refused(set(b"bad", SetXattrMode::Replace), Error::Invalid)?;
    refused(file.remove_xattr(COMPRESSION), Error::NoAttribute)?;
    set(b"", SetXattrMode::Any)?;
    set(b"lzo", SetXattrMode::Create)?;
    refused(set(b"zstd", SetXattrMode::Create), Error::Exists)?;
    set(b"zstd", SetXattrMode::Replace)?;
    set(b"", SetXattrMode::Replace)?;
    same((file.xattrs()?.len(), file.flags()?), (0, NONE))
}

fn compression_property_is_ignored_elsewhere(t: &mut Fixture) -> Outcome {
    for (name, what) in [
        ("s", NewInode::Symlink(b"t")),
        ("p", NewInode::Fifo),
        ("c", NewInode::CharDevice(1)),
    ] {
        let inode = t.root().make(name, what, 0o600)?;
        inode.set_xattr(COMPRESSION, b"zstd")?;
        inode.set_xattr_mode(COMPRESSION, b"zlib", SetXattrMode::Replace)?;
        inode.remove_xattr(COMPRESSION)?;
        refused(inode.set_xattr(COMPRESSION, b"bad"), Error::Invalid)?;
        refused(inode.xattr(COMPRESSION), Error::NoAttribute)?;
        same((inode.xattrs()?.len(), inode.flags()?), (0, NONE))?;
    }
    Ok(())
}

fn compressed_file_reads_back(t: &mut Fixture) -> Outcome {
    for algorithm in ["zlib", "lzo", "zstd", "zstd:9", "none"] {
        let file = t.root().file(algorithm)?;
        file.set_xattr(COMPRESSION, algorithm.as_bytes())?;
        let mut bytes = b"very much alike. ".repeat(40_000);
        bytes[300_000..400_000].copy_from_slice(&pattern(1, 100_000));
        file.write(0, &bytes)?;
        t.fs().sync()?;
        same_bytes(&file.content()?, &bytes)?;
        file.write(131_000, &[b'x'; 5000])?;
        bytes[131_000..136_000].fill(b'x');
        file.truncate(500_001)?;
        t.fs().sync()?;
        same_bytes(&file.content()?, &bytes[..500_001])?;
        if t.capabilities.persistent {
            drop(file);
            t.remount(false)?;
            let file = t.root().find(algorithm)?;
            same_bytes(&file.content()?, &bytes[..500_001])?;
        }
    }
    Ok(())
}

fn children_inherit_nocow(t: &mut Fixture) -> Outcome {
    let dir = t.root().dir("d")?;
    dir.set_flags(InodeFlags::NOCOW)?;
    same(dir.file("f")?.flags()?, InodeFlags::NOCOW)?;
    same(dir.dir("below")?.flags()?, InodeFlags::NOCOW)?;
    let fifo = dir.make("p", NewInode::Fifo, 0o600)?;
    fifo.attr()?;
    Ok(())
}

fn nocow_stays_on_a_file_with_content(t: &mut Fixture) -> Outcome {
    let file = t.root().file_of("f", b"abc")?;
    file.set_flags(InodeFlags::NOCOW)?;
    same(file.flags()?, NONE)?;
    let file = t.root().file("g")?;
    file.set_flags(InodeFlags::NOCOW)?;
    file.write(0, b"abc")?;
    file.set_flags(NONE)?;
    same(file.flags()?, InodeFlags::NOCOW)
}

fn nocow_file_reads_back(t: &mut Fixture) -> Outcome {
    let file = t.root().file("f")?;
    file.set_flags(InodeFlags::NOCOW)?;
    let mut bytes = pattern(1, 300_000);
    file.write(0, &bytes)?;
    t.fs().sync()?;
    for offset in [0, 5000, 131_072, 299_000] {
        let new = pattern(offset as u64, 1000);
        file.write(offset as u64, &new)?;
        bytes[offset..offset + 1000].copy_from_slice(&new);
        t.fs().fsync(file.ino(), sapwood_vfs::SyncKind::Data)?;
    }
    same_bytes(&file.content()?, &bytes)?;
    if t.capabilities.persistent {
        drop(file);
        t.remount(false)?;
        same_bytes(&t.root().find("f")?.content()?, &bytes)?;
    }
    Ok(())
}
