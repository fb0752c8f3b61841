//! POSIX and Linux rules that need no state. Every engine calls these, so that all behave alike.

use crate::{
    AllocMode, Credentials, Error, FileKind, Fsxattr, InodeFlags, RenameMode, Result, SetAttr,
    SetTime, Timestamp, acl,
};

/// Longest name of a directory entry or an extended attribute, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub(crate) const TARGET_MAX: usize = 4095;
/// Longest file, in bytes.
pub const MAX_FILE_SIZE: u64 = i64::MAX as u64;
/// Longest value of an extended attribute that the system-call interface allows.
pub const XATTR_VALUE_MAX: usize = 65536;

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;

/// Checks the name of a directory entry.
///
/// # Errors
/// `NameTooLong`; `Invalid` if it is empty, `.`, `..`, or contains `/` or NUL.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    let reserved = matches!(name, b"" | b"." | b"..");
    if reserved || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Error::Invalid);
    }
    Ok(())
}

/// Checks the target of a symbolic link.
///
/// # Errors
/// `NotFound` if it is empty, `NameTooLong`, `Invalid` if it contains NUL.
pub fn check_target(target: &[u8]) -> Result<()> {
    match target {
        [] => Err(Error::NotFound),
        long if long.len() > TARGET_MAX => Err(Error::NameTooLong),
        bad if bad.contains(&0) => Err(Error::Invalid),
        _ => Ok(()),
    }
}

/// End of the range, exclusive.
///
/// # Errors
/// `FileTooLarge` if it is past [`MAX_FILE_SIZE`].
pub fn range_end(offset: u64, len: u64) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= MAX_FILE_SIZE => Ok(end),
        _ => Err(Error::FileTooLarge),
    }
}

/// Owner and bits of a new inode, before umask and ACL ([`acl::inherit`]) are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// Owner.
    pub uid: u32,
    /// Group: the directory's if it has the set-group-id bit.
    pub gid: u32,
    /// Permission, set-id and sticky bits.
    pub perm: u32,
}

/// Owner and bits of a new inode in a directory with these bits and this group. A directory
/// inherits the set-group-id bit. An executable file may have it only if the caller is in the group
/// or may keep it.
#[must_use]
pub fn new_ownership(
    who: &Credentials,
    dir_perm: u32,
    dir_gid: u32,
    kind: FileKind,
    perm: u32,
) -> Ownership {
    let mut perm = perm & 0o7777;
    let mut gid = who.gid;
    if dir_perm & SETGID != 0 {
        gid = dir_gid;
        if kind == FileKind::Directory {
            perm |= SETGID;
        } else if perm & GROUP_EXEC != 0 && who.gid != dir_gid && !who.keep_setgid {
            perm &= !SETGID;
        }
    }
    Ownership {
        uid: who.uid,
        gid,
        perm,
    }
}

/// `perm` without the bits that a change by an unprivileged caller clears. A set-group-id bit
/// without group execute permission means mandatory locking and stays, as do a directory's bits.
#[must_use]
pub fn kill_setid(kind: FileKind, perm: u32) -> u32 {
    if kind == FileKind::Directory {
        return perm;
    }
    let kept = perm & !SETUID;
    match kept & GROUP_EXEC {
        0 => kept,
        _ => kept & !SETGID,
    }
}

/// Bits of an inode after `changes`.
#[must_use]
pub fn setattr_perm(kind: FileKind, perm: u32, changes: &SetAttr) -> u32 {
    let perm = changes.perm.unwrap_or(perm) & 0o7777;
    if changes.kill_setid {
        return kill_setid(kind, perm);
    }
    perm
}

/// Checks whether `changes` are allowed for an inode of this kind with these flags.
///
/// # Errors
/// `IsDirectory`, `Invalid`, `FileTooLarge` for a size; `NotPermitted` for an immutable or
/// append-only inode; `Invalid` for nanoseconds out of range.
pub fn check_setattr(kind: FileKind, flags: InodeFlags, changes: &SetAttr) -> Result<()> {
    if let Some(size) = changes.size {
        match kind {
            FileKind::Regular => range_end(size, 0)?,
            FileKind::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::Invalid),
        };
    }
    let set = |time: Option<SetTime>| match time {
        Some(SetTime::To(time)) => Some(time),
        _ => None,
    };
    let exact = [
        set(changes.atime),
        set(changes.mtime),
        changes.ctime,
        changes.btime,
    ];
    if exact
        .iter()
        .flatten()
        .any(|time| time.nsec >= 1_000_000_000)
    {
        return Err(Error::Invalid);
    }
    let owner = changes.perm.is_some() || changes.uid.is_some() || changes.gid.is_some();
    let times = exact[0].is_some() || exact[1].is_some() || changes.btime.is_some();
    let touches = changes.atime.is_some() || changes.mtime.is_some();
    let immutable = flags.contains(InodeFlags::IMMUTABLE);
    let append = flags.contains(InodeFlags::APPEND);
    let refused_always = owner || times || changes.size.is_some();
    if ((immutable || append) && refused_always) || (immutable && touches) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Checks a write to an inode with these flags. Data from a write-back cache was checked when it
/// entered the cache, and may start before the end of an append-only file.
///
/// # Errors
/// `NotPermitted` for an immutable file, and for an append-only one before its end.
pub fn check_write(flags: InodeFlags, at_end: bool, writeback: bool) -> Result<()> {
    let before_end = flags.contains(InodeFlags::APPEND) && !at_end && !writeback;
    if before_end || flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Checks `fallocate` of a file with these flags: an append-only file may only grow.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_allocate(flags: InodeFlags, mode: AllocMode) -> Result<()> {
    let only_adds = matches!(mode, AllocMode::Allocate { .. });
    let fixed = flags.contains(InodeFlags::IMMUTABLE);
    if fixed || (flags.contains(InodeFlags::APPEND) && !only_adds) {
        Err(Error::NotPermitted)
    } else {
        Ok(())
    }
}

/// Checks that an inode of this kind with these flags may get another name.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_link(kind: FileKind, flags: InodeFlags) -> Result<()> {
    let fixed = flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    if kind == FileKind::Directory || fixed {
        Err(Error::NotPermitted)
    } else {
        Ok(())
    }
}

/// Checks that this is a directory.
///
/// # Errors
/// `NotDirectory`.
pub(crate) fn check_directory(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Directory => Ok(()),
        _ => Err(Error::NotDirectory),
    }
}

/// Seconds after which an access time is renewed even if it is newer than the last change.
const RELATIME_LIMIT: i64 = 24 * 60 * 60;

/// Whether a read at `now` renews the access time (`relatime`), given the times of the last access,
/// change of content, and change of the inode.
#[must_use]
pub(crate) fn access_time_is_due(
    (atime, mtime, ctime): (Timestamp, Timestamp, Timestamp),
    now: Timestamp,
) -> bool {
    let old = atime <= mtime || atime <= ctime;
    old || now.sec.saturating_sub(atime.sec) >= RELATIME_LIMIT
}

/// Checks that names may be added to a directory with these flags.
///
/// # Errors
/// `NotPermitted`.
pub fn check_add_name(dir_flags: InodeFlags) -> Result<()> {
    if dir_flags.contains(InodeFlags::IMMUTABLE) {
        Err(Error::NotPermitted)
    } else {
        Ok(())
    }
}

/// Checks, by the flags of both, that a name of `victim` may be removed from a directory.
///
/// # Errors
/// `NotPermitted`.
pub fn check_remove_name(dir_flags: InodeFlags, victim: InodeFlags) -> Result<()> {
    let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    if dir_flags.intersects(fixed) || victim.intersects(fixed) {
        Err(Error::NotPermitted)
    } else {
        Ok(())
    }
}

/// Checks, by the flags of both and the kind of `victim`, that a name of a directory (`directory`:
/// `rmdir`) or of anything else may be removed.
///
/// # Errors
/// `NotPermitted`, `NotDirectory`, `IsDirectory`.
pub fn check_remove(
    dir_flags: InodeFlags,
    victim: (InodeFlags, FileKind),
    directory: bool,
) -> Result<()> {
    check_remove_name(dir_flags, victim.0)?;
    match (directory, victim.1 == FileKind::Directory) {
        (true, false) => Err(Error::NotDirectory),
        (false, true) => Err(Error::IsDirectory),
        _ => Ok(()),
    }
}

/// One side of a rename: a directory, and the inode of the name in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenameSide {
    /// Flags of the directory.
    pub dir_flags: InodeFlags,
    /// Flags of the inode.
    pub flags: InodeFlags,
    /// Type of the inode.
    pub kind: FileKind,
    /// The inode is a directory, and is the *other* side's directory or one above it.
    pub holds_other_dir: bool,
    /// The inode is a directory with entries.
    pub has_entries: bool,
}

/// Checks a rename of `source` over `target`, after both names were looked up. Returns false if
/// both lead to the same inode, so that there is nothing to do. The order of the checks is as in
/// Linux.
///
/// # Errors
/// `Exists`, `NotFound`, `Invalid`, `NotEmpty`, `NotPermitted`, `NotDirectory`,
/// `IsDirectory`.
pub fn check_rename(
    source: &RenameSide,
    target: Option<&RenameSide>,
    to_dir_flags: InodeFlags,
    mode: RenameMode,
    same_inode: bool,
) -> Result<bool> {
    match (mode, target) {
        (mode, Some(_)) if mode.is_no_replace() => return Err(Error::Exists),
        (RenameMode::Exchange, None) => return Err(Error::NotFound),
        _ => {}
    }
    if source.holds_other_dir {
        return Err(Error::Invalid);
    }
    if target.is_some_and(|target| target.holds_other_dir) {
        return Err(match mode {
            RenameMode::Exchange => Error::Invalid,
            _ => Error::NotEmpty,
        });
    }
    if same_inode {
        return Ok(false);
    }
    check_remove_name(source.dir_flags, source.flags)?;
    let Some(target) = target else {
        check_add_name(to_dir_flags)?;
        return Ok(true);
    };
    check_remove_name(target.dir_flags, target.flags)?;
    if mode == RenameMode::Exchange {
        return Ok(true);
    }
    match (
        source.kind == FileKind::Directory,
        target.kind == FileKind::Directory,
    ) {
        (true, false) => Err(Error::NotDirectory),
        (false, true) => Err(Error::IsDirectory),
        (true, true) if target.has_entries => Err(Error::NotEmpty),
        _ => Ok(true),
    }
}

/// Namespace of an extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrClass {
    /// `user.`
    User,
    /// `trusted.`
    Trusted,
    /// `security.`
    Security,
    /// `system.posix_acl_access`
    AccessAcl,
    /// `system.posix_acl_default`
    DefaultAcl,
    /// `btrfs.`: properties
    Btrfs,
}

/// Namespace of the attribute `name`.
///
/// # Errors
/// `NotSupported` if it is unknown, `Invalid` if nothing follows the prefix, `NameTooLong`.
pub fn xattr_class(name: &[u8]) -> Result<XattrClass> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.contains(&0) {
        return Err(Error::Invalid);
    }
    match name {
        acl::ACCESS => return Ok(XattrClass::AccessAcl),
        acl::DEFAULT => return Ok(XattrClass::DefaultAcl),
        _ => {}
    }
    for (prefix, class) in [
        (&b"user."[..], XattrClass::User),
        (b"trusted.", XattrClass::Trusted),
        (b"security.", XattrClass::Security),
        (b"btrfs.", XattrClass::Btrfs),
    ] {
        match name.strip_prefix(prefix) {
            Some([]) => return Err(Error::Invalid),
            Some(_) => return Ok(class),
            None => {}
        }
    }
    Err(Error::NotSupported)
}

/// Checks that an attribute of this namespace may be changed on an inode of this kind with these
/// flags. `removes` is true for a removal and for an empty ACL.
///
/// # Errors
/// `NotPermitted` for an immutable or append-only inode, and for `user.` on anything but a regular
/// file or directory; `NotSupported` for an ACL of a symbolic link; `AccessDenied` for a default
/// ACL on anything but a directory.
pub fn check_xattr_change(
    kind: FileKind,
    flags: InodeFlags,
    class: XattrClass,
    removes: bool,
) -> Result<()> {
    if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(Error::NotPermitted);
    }
    match (class, kind) {
        (XattrClass::User, FileKind::Regular | FileKind::Directory) => Ok(()),
        (XattrClass::User, _) => Err(Error::NotPermitted),
        (XattrClass::AccessAcl | XattrClass::DefaultAcl, FileKind::Symlink) => {
            Err(Error::NotSupported)
        }
        (XattrClass::DefaultAcl, FileKind::Directory) => Ok(()),
        (XattrClass::DefaultAcl, _) if !removes => Err(Error::AccessDenied),
        _ => Ok(()),
    }
}

/// The attribute that every change of a file's content or owner removes, whichever caller makes it:
/// its privileges were granted for the old content.
pub const CAPABILITY: &[u8] = b"security.capability";

/// True if `changes` remove [`CAPABILITY`].
#[must_use]
pub fn drops_capability(changes: &SetAttr) -> bool {
    changes.size.is_some() || changes.uid.is_some() || changes.gid.is_some()
}

/// Flags of an inode that has `current` after `asked` was set. A flag without meaning for the
/// inode's kind is dropped, and a file with content keeps its `NOCOW`.
///
/// # Errors
/// `NotSupported` for unknown bits, `Invalid` for bits that exclude one another.
pub fn set_flags(
    kind: FileKind,
    size: u64,
    current: InodeFlags,
    asked: InodeFlags,
) -> Result<InodeFlags> {
    if InodeFlags::from_bits(asked.bits()).is_none() {
        return Err(Error::NotSupported);
    }
    let both = |a: InodeFlags, b: InodeFlags| asked.contains(a | b);
    if both(InodeFlags::COMPRESS, InodeFlags::NOCOMPRESS)
        || both(InodeFlags::COMPRESS, InodeFlags::NOCOW)
    {
        return Err(Error::Invalid);
    }
    let mut flags = match kind {
        FileKind::Directory => asked,
        FileKind::Regular => asked - InodeFlags::DIRSYNC,
        _ => asked & (InodeFlags::NODUMP | InodeFlags::NOATIME),
    };
    if kind == FileKind::Regular && size != 0 {
        flags.set(InodeFlags::NOCOW, current.contains(InodeFlags::NOCOW));
        if flags.contains(InodeFlags::NOCOW) && flags.contains(InodeFlags::COMPRESS) {
            return Err(Error::Invalid);
        }
    }
    Ok(flags)
}

/// Flags that a new inode inherits from its directory.
#[must_use]
pub const fn inherited_flags(dir_flags: InodeFlags) -> InodeFlags {
    let compression = InodeFlags::COMPRESS.union(InodeFlags::NOCOMPRESS);
    dir_flags.intersection(compression.union(InodeFlags::NOCOW))
}

/// Name of the property that selects the compression of a file, or of the files created in a
/// directory.
pub const COMPRESSION: &[u8] = b"btrfs.compression";

/// Flags of an inode after its [`COMPRESSION`] property was set to `value`; an empty value removes
/// it. `None` if the property has no meaning for the inode's kind and must be ignored.
///
/// # Errors
/// `Invalid` for an unknown value, and for a file that cannot be compressed.
pub fn set_compression(
    kind: FileKind,
    flags: InodeFlags,
    value: &[u8],
) -> Result<Option<InodeFlags>> {
    let (algorithm, level) = match value.iter().position(|&byte| byte == b':') {
        Some(colon) => (&value[..colon], value.get(colon + 1..)),
        None => (value, None),
    };
    let level_ok = level.is_none_or(|digits| {
        !digits.is_empty() && digits.len() <= 3 && digits.iter().all(u8::is_ascii_digit)
    });
    let set = match algorithm {
        b"" | b"no" | b"none" if level.is_some() => return Err(Error::Invalid),
        b"" => InodeFlags::empty(),
        b"no" | b"none" => InodeFlags::NOCOMPRESS,
        b"zlib" | b"lzo" | b"zstd" if level_ok => InodeFlags::COMPRESS,
        _ => return Err(Error::Invalid),
    };
    if !matches!(kind, FileKind::Regular | FileKind::Directory) {
        return Ok(None);
    }
    if flags.contains(InodeFlags::NOCOW) && !value.is_empty() {
        return Err(Error::Invalid);
    }
    let rest = flags - InodeFlags::COMPRESS - InodeFlags::NOCOMPRESS;
    Ok(Some(rest | set))
}

/// Inode flags and the equivalent `FS_XFLAG_*` bits.
const XFLAGS: [(InodeFlags, u32); 5] = [
    (InodeFlags::IMMUTABLE, 0x8),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
];

/// The result of `FS_IOC_FSGETXATTR` for these flags.
#[must_use]
pub fn fsxattr_of(flags: InodeFlags) -> Fsxattr {
    let shown = XFLAGS.iter().filter(|(flag, _)| flags.contains(*flag));
    Fsxattr {
        xflags: shown.map(|(_, bit)| bit).sum(),
        ..Fsxattr::default()
    }
}

/// Flags to set for `FS_IOC_FSSETXATTR` on an inode that has `current`. Flags that the call cannot
/// express stay.
///
/// # Errors
/// `NotSupported` for a bit or field without a flag.
pub fn flags_of_fsxattr(current: InodeFlags, value: &Fsxattr) -> Result<InodeFlags> {
    let known: u32 = XFLAGS.iter().map(|(_, bit)| bit).sum();
    let extra = value.extsize | value.projid | value.cowextsize | (value.xflags & !known);
    if extra != 0 {
        return Err(Error::NotSupported);
    }
    let mut flags = current;
    for (flag, bit) in XFLAGS {
        flags.set(flag, value.xflags & bit != 0);
    }
    Ok(flags)
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
