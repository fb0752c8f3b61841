use super::*;
use crate::Timestamp;

#[test]
fn names() {
    assert_eq!(check_name(&[b'a'; 255]), Ok(()));
    assert_eq!(check_name(&[b'a'; 256]), Err(Error::NameTooLong));
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        assert_eq!(check_name(bad), Err(Error::Invalid), "{bad:?}");
    }
    assert_eq!(check_name(b"..."), Ok(()));
    assert_eq!(check_target(b""), Err(Error::NotFound));
    assert_eq!(check_target(&[b'a'; 4095]), Ok(()));
    assert_eq!(check_target(&[b'a'; 4096]), Err(Error::NameTooLong));
}

#[test]
fn ranges() {
    assert_eq!(range_end(MAX_FILE_SIZE - 1, 1), Ok(MAX_FILE_SIZE));
    assert_eq!(range_end(MAX_FILE_SIZE, 1), Err(Error::FileTooLarge));
    assert_eq!(range_end(u64::MAX, 1), Err(Error::FileTooLarge));
}

#[test]
fn setgid_inheritance() {
    let who = Credentials {
        uid: 1000,
        gid: 1000,
        umask: 0,
        keep_setgid: false,
    };
    let plain = new_ownership(&who, 0o755, 50, FileKind::Regular, 0o2755);
    assert_eq!((plain.gid, plain.perm), (1000, 0o2755));
    let file = new_ownership(&who, 0o2755, 50, FileKind::Regular, 0o2755);
    assert_eq!((file.gid, file.perm), (50, 0o755));
    let no_exec = new_ownership(&who, 0o2755, 50, FileKind::Regular, 0o2744);
    assert_eq!((no_exec.gid, no_exec.perm), (50, 0o2744));
    let dir = new_ownership(&who, 0o2755, 50, FileKind::Directory, 0o755);
    assert_eq!((dir.gid, dir.perm), (50, 0o2755));
    let member = Credentials { gid: 50, ..who };
    let file = new_ownership(&member, 0o2755, 50, FileKind::Regular, 0o2755);
    assert_eq!(file.perm, 0o2755);
}

#[test]
fn set_id_bits_are_cleared() {
    assert_eq!(kill_setid(FileKind::Regular, 0o6755), 0o755);
    assert_eq!(kill_setid(FileKind::Regular, 0o6745), 0o2745);
    assert_eq!(kill_setid(FileKind::Directory, 0o6755), 0o6755);
    let changes = SetAttr {
        perm: Some(0o4711),
        kill_setid: true,
        ..SetAttr::default()
    };
    assert_eq!(setattr_perm(FileKind::Regular, 0o600, &changes), 0o711);
}

#[test]
fn setattr_checks() {
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    let none = InodeFlags::empty();
    let check = check_setattr;
    assert_eq!(
        check(FileKind::Directory, none, &size(0)),
        Err(Error::IsDirectory)
    );
    assert_eq!(check(FileKind::Fifo, none, &size(0)), Err(Error::Invalid));
    assert_eq!(
        check(FileKind::Regular, none, &size(1 << 63)),
        Err(Error::FileTooLarge)
    );
    let touch = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    assert_eq!(check(FileKind::Regular, InodeFlags::APPEND, &touch), Ok(()));
    assert_eq!(
        check(FileKind::Regular, InodeFlags::IMMUTABLE, &touch),
        Err(Error::NotPermitted)
    );
    let bad = SetAttr {
        mtime: Some(SetTime::To(Timestamp {
            sec: 0,
            nsec: 1_000_000_000,
        })),
        ..SetAttr::default()
    };
    assert_eq!(check(FileKind::Regular, none, &bad), Err(Error::Invalid));
}

fn side(kind: FileKind) -> RenameSide {
    RenameSide {
        dir_flags: InodeFlags::empty(),
        flags: InodeFlags::empty(),
        kind,
        holds_other_dir: false,
        has_entries: false,
    }
}

#[test]
fn rename_rules() {
    let (file, dir) = (side(FileKind::Regular), side(FileKind::Directory));
    let check = |source: &RenameSide, target: Option<&RenameSide>, mode| {
        check_rename(source, target, InodeFlags::empty(), mode, false)
    };
    use RenameMode::{Exchange, NoReplace, Replace};
    assert_eq!(check(&file, None, Replace), Ok(true));
    assert_eq!(check(&file, Some(&file), NoReplace), Err(Error::Exists));
    assert_eq!(check(&file, None, Exchange), Err(Error::NotFound));
    assert_eq!(check(&file, Some(&dir), Replace), Err(Error::IsDirectory));
    assert_eq!(check(&dir, Some(&file), Replace), Err(Error::NotDirectory));
    assert_eq!(check(&dir, Some(&file), Exchange), Ok(true));
    let full = RenameSide {
        has_entries: true,
        ..dir
    };
    assert_eq!(check(&dir, Some(&full), Replace), Err(Error::NotEmpty));
    assert_eq!(check(&full, Some(&dir), Replace), Ok(true));
    let holds = RenameSide {
        holds_other_dir: true,
        ..full
    };
    assert_eq!(check(&holds, None, Replace), Err(Error::Invalid));
    assert_eq!(check(&file, Some(&holds), Replace), Err(Error::NotEmpty));
    assert_eq!(check(&file, Some(&holds), Exchange), Err(Error::Invalid));
    let fixed = RenameSide {
        flags: InodeFlags::APPEND,
        ..file
    };
    assert_eq!(check(&fixed, None, Replace), Err(Error::NotPermitted));
    assert_eq!(
        check_rename(&file, Some(&file), InodeFlags::empty(), Replace, true),
        Ok(false)
    );
}

#[test]
fn xattr_names() {
    assert_eq!(xattr_class(b"user.x"), Ok(XattrClass::User));
    assert_eq!(xattr_class(b"user."), Err(Error::Invalid));
    assert_eq!(xattr_class(b"user"), Err(Error::NotSupported));
    assert_eq!(xattr_class(b"system.x"), Err(Error::NotSupported));
    assert_eq!(xattr_class(acl::ACCESS), Ok(XattrClass::AccessAcl));
    assert_eq!(xattr_class(b"btrfs.compression"), Ok(XattrClass::Btrfs));
    assert_eq!(xattr_class(&[b'u'; 256]), Err(Error::NameTooLong));
}

#[test]
fn xattr_targets() {
    let none = InodeFlags::empty();
    let check = check_xattr_change;
    assert_eq!(
        check(FileKind::Symlink, none, XattrClass::User, false),
        Err(Error::NotPermitted)
    );
    assert_eq!(
        check(FileKind::Symlink, none, XattrClass::Trusted, false),
        Ok(())
    );
    assert_eq!(
        check(FileKind::Regular, none, XattrClass::DefaultAcl, false),
        Err(Error::AccessDenied)
    );
    assert_eq!(
        check(FileKind::Regular, none, XattrClass::DefaultAcl, true),
        Ok(())
    );
    assert_eq!(
        check(
            FileKind::Regular,
            InodeFlags::IMMUTABLE,
            XattrClass::User,
            false
        ),
        Err(Error::NotPermitted)
    );
}

#[test]
fn flags() {
    let none = InodeFlags::empty();
    let set = |asked| set_flags(FileKind::Regular, 0, none, asked);
    assert_eq!(set(InodeFlags::NOCOW), Ok(InodeFlags::NOCOW));
    assert_eq!(set(InodeFlags::DIRSYNC), Ok(none));
    assert_eq!(
        set(InodeFlags::COMPRESS | InodeFlags::NOCOW),
        Err(Error::Invalid)
    );
    assert_eq!(
        set(InodeFlags::from_bits_retain(0x8000_0000)),
        Err(Error::NotSupported)
    );
    assert_eq!(
        set_flags(FileKind::Regular, 1, none, InodeFlags::NOCOW),
        Ok(none)
    );
    let value = fsxattr_of(InodeFlags::IMMUTABLE | InodeFlags::NODUMP | InodeFlags::NOCOW);
    assert_eq!(value.xflags, 0x88);
    assert_eq!(
        flags_of_fsxattr(InodeFlags::NOCOW, &value),
        Ok(InodeFlags::NOCOW | InodeFlags::IMMUTABLE | InodeFlags::NODUMP)
    );
    let project = Fsxattr { projid: 1, ..value };
    assert_eq!(flags_of_fsxattr(none, &project), Err(Error::NotSupported));
}

#[test]
fn compression_property() {
    let none = InodeFlags::empty();
    let set = |value: &[u8]| set_compression(FileKind::Regular, none, value);
    assert_eq!(set(b"zstd"), Ok(Some(InodeFlags::COMPRESS)));
    assert_eq!(set(b"zstd:15"), Ok(Some(InodeFlags::COMPRESS)));
    assert_eq!(set(b"none"), Ok(Some(InodeFlags::NOCOMPRESS)));
    assert_eq!(set(b""), Ok(Some(none)));
    for bad in [&b"gzip"[..], b"zstd:", b"zstd:x", b"no:1", b":"] {
        assert_eq!(set(bad), Err(Error::Invalid), "{bad:?}");
    }
    assert_eq!(set_compression(FileKind::Fifo, none, b"zlib"), Ok(None));
    assert_eq!(
        set_compression(FileKind::Regular, InodeFlags::NOCOW, b"zlib"),
        Err(Error::Invalid)
    );
}
