//! The commands of a stream on the files of a directory of this machine.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use sapwood_btrfs_format::NAME_MAX;
use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd};

use super::confined::{Confined, set_mode};
use super::host;
use crate::receive::content::expanded;
use crate::receive::epoch::InodeId;
use crate::receive::error::{ReceiveError, Result};
use crate::receive::left_out::{LeftOutKind, Omissions};
use crate::receive::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
use crate::vfs::acl::{ACCESS, DEFAULT};

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// Bytes copied at once where the host has no system call for it.
const PIECE: usize = 1 << 20;

/// Inode flags of btrfs that a user can set: sync, immutable, append, nodump, noatime, dirsync.
const USER_FLAGS: u64 = 0x20 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400;

/// The directory that is being received.
pub(super) struct Tree {
    confined: Confined,
    /// The file of the last command, opened for writing, because consecutive commands mostly
    /// concern the same file.
    last: Option<(Vec<u8>, OwnedFd)>,
    /// Every owner could be set until now.
    keeps_owners: bool,
}

/// Records attributes of a command that cannot be kept, with the name of the subvolume.
struct Report<'o> {
    omissions: &'o mut Omissions,
    subvolume: &'o [u8],
    path: &'o [u8],
}

impl Report<'_> {
    fn add(&mut self, kind: LeftOutKind, why: Option<Errno>) {
        let (subvolume, path) = (self.subvolume, self.path);
        let shown = || PathBuf::from(OsStr::from_bytes(subvolume)).join(OsStr::from_bytes(path));
        self.omissions.add(kind, shown, why);
    }
}

/// The error of a command on a path.
fn at(action: &str, path: &[u8]) -> impl FnOnce(Errno) -> ReceiveError {
    move |error| host(action, &crate::archive::path(path), error)
}

/// Whether the host refuses an operation permanently, rather than failing or being full.
fn is_refusal(error: Errno) -> bool {
    matches!(
        error,
        Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::INVAL | Errno::NOSYS
    )
}

impl Tree {
    pub(super) fn new(confined: Confined) -> Self {
        Self {
            keeps_owners: confined.is_privileged(),
            confined,
            last: None,
        }
    }

    /// Whether every owner could be set until now.
    pub(super) fn keeps_owners(&self) -> bool {
        self.keeps_owners
    }

    /// An owner was refused, in an earlier receive too.
    pub(super) fn owner_was_refused(&mut self) {
        self.keeps_owners = false;
    }

    /// Sets the final modes of the directories that were opened to their owner.
    pub(super) fn close(&mut self) -> rustix::io::Result<()> {
        self.last = None;
        self.confined.restore_modes()
    }

    /// Sets the mode of the top.
    pub(super) fn open_to_others(&self, mode: u32) -> rustix::io::Result<()> {
        set_mode(self.confined.top(), mode)
    }

    pub(super) fn exists(&mut self, path: &[u8]) -> Result<bool> {
        let found = self.confined.locate(path).and_then(|one| one.stat());
        match found {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(at("find", path)(error)),
        }
    }

    /// The identity of the inode at a path.
    pub(super) fn identify(&mut self, path: &[u8]) -> Result<InodeId> {
        let found = self.confined.locate(path).and_then(|one| one.stat());
        let stat = found.map_err(at("find", path))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The modes of directories that are open to their owner, if they have to be stored again.
    pub(super) fn changed_modes(&self) -> Option<Vec<u8>> {
        self.confined.changed_modes()
    }

    pub(super) fn modes_stored(&mut self) {
        self.confined.modes_stored();
    }

    /// Removes a file or an empty directory.
    pub(super) fn remove(&mut self, path: &[u8]) -> Result<()> {
        self.last = None;
        self.confined.forget_paths();
        let removed = self.confined.locate(path).and_then(|one| {
            let directory = FileType::from_raw_mode(one.stat()?.st_mode) == FileType::Directory;
            let flags = if directory {
                AtFlags::REMOVEDIR
            } else {
                AtFlags::empty()
            };
            rustix::fs::unlinkat(&one.dir, one.name(), flags)
        });
        removed.map_err(at("remove", path))
    }

    /// Executes a command. Returns the bytes of content.
    pub(super) fn apply(
        &mut self,
        command: &Command<'_>,
        omissions: &mut Omissions,
        subvolume: &[u8],
    ) -> Result<u64> {
        if command.number == cmd::UPDATE_EXTENT {
            return Err(ReceiveError::NoContent);
        }
        let path = command.path(attr::PATH)?;
        let mut report = Report {
            omissions,
            subvolume,
            path,
        };
        match command.number {
            cmd::MKFILE | cmd::MKDIR | cmd::MKFIFO | cmd::MKSOCK | cmd::MKNOD | cmd::SYMLINK => {
                self.create(command, path, &mut report)?
            }
            cmd::RENAME | cmd::LINK | cmd::UNLINK | cmd::RMDIR => self.names(command, path)?,
            cmd::SET_XATTR | cmd::REMOVE_XATTR => self.xattr(command, path, &mut report)?,
            cmd::WRITE => {
                let offset = command.u64(attr::FILE_OFFSET)?;
                return self.write(path, offset, command.get(attr::DATA)?);
            }
            cmd::ENCODED_WRITE => {
                let (offset, data) = expanded(command)?;
                return self.write(path, offset, &data);
            }
            cmd::TRUNCATE => {
                let size = command.u64(attr::SIZE)?;
                let done = self
                    .file(path)
                    .and_then(|file| rustix::fs::ftruncate(file, size));
                done.map_err(at("set the size of", path))?;
            }
            cmd::CHMOD => {
                let perm = self.permitted(command, report.omissions, subvolume)?;
                match self.confined.chmod(path, perm) {
                    Err(error) if is_refusal(error) => report.add(LeftOutKind::Mode, Some(error)),
                    done => done.map_err(at("set the mode of", path))?,
                }
            }
            cmd::CHOWN => self.chown(command, path, &mut report)?,
            cmd::UTIMES => self.times(command, path, &mut report)?,
            cmd::FALLOCATE => self.allocate(command, path, &mut report)?,
            cmd::FILEATTR if command.u64(attr::FILEATTR)? & USER_FLAGS != 0 => {
                report.add(LeftOutKind::Flags, None);
            }
            _ => {}
        }
        Ok(0)
    }

    /// The mode of a command. Set-id bits would give the rights of another owner.
    pub(super) fn permitted(
        &self,
        command: &Command<'_>,
        omissions: &mut Omissions,
        subvolume: &[u8],
    ) -> Result<u32> {
        let perm = command.u32(attr::MODE)? & 0o7777;
        if self.keeps_owners || perm & SET_ID == 0 {
            return Ok(perm);
        }
        let path = command.path(attr::PATH)?;
        let mut report = Report {
            omissions,
            subvolume,
            path,
        };
        report.add(LeftOutKind::SetId, None);
        Ok(perm & !SET_ID)
    }

    /// Removes the ACLs that a new entry inherited from its directory.
    pub(super) fn remove_inherited(&mut self, path: &[u8]) {
        let Ok(located) = self.confined.locate(path) else {
            return;
        };
        for name in [ACCESS, DEFAULT] {
            // Most have none, and many file systems have no ACLs.
            let _ = rustix::fs::lremovexattr(located.by_path(), OsStr::from_bytes(name));
        }
    }

    fn create(
        &mut self,
        command: &Command<'_>,
        path: &[u8],
        report: &mut Report<'_>,
    ) -> Result<()> {
        self.last = None;
        let failed = |error| at("create", path)(error);
        let located = self.confined.locate(path).map_err(failed)?;
        let (dir, name) = (&located.dir, located.name());
        if path.is_empty() || name.len() > NAME_MAX {
            return Err(failed(Errno::INVAL));
        }
        let private = Mode::from_raw_mode(0o600);
        let file = || {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(dir, name, flags, private)
        };
        let node = |kind, rdev| rustix::fs::mknodat(dir, name, kind, private, rdev);
        let (made, instead) = match command.number {
            cmd::MKFILE => {
                let made = file().map_err(failed)?;
                self.last = Some((path.to_vec(), made));
                (Ok(()), LeftOutKind::Special)
            }
            cmd::MKDIR => {
                let mode = Mode::from_raw_mode(0o700);
                let made = rustix::fs::mkdirat(dir, name, mode);
                made.map_err(failed)?;
                if let Err(error) = self.confined.forget_mode(&located) {
                    // A command that fails leaves no name.
                    let _ = rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR);
                    return Err(failed(error));
                }
                (Ok(()), LeftOutKind::Special)
            }
            cmd::SYMLINK => {
                let target = OsStr::from_bytes(command.get(attr::PATH_LINK)?);
                let made = rustix::fs::symlinkat(target, dir, name);
                (made, LeftOutKind::Symlink)
            }
            cmd::MKFIFO => (node(FileType::Fifo, 0), LeftOutKind::Special),
            cmd::MKSOCK => (node(FileType::Socket, 0), LeftOutKind::Special),
            _ => {
                let mode = u32::try_from(command.u64(attr::MODE)?).unwrap_or(0);
                let kind = FileType::from_raw_mode(mode);
                if matches!(
                    kind,
                    FileType::Directory | FileType::Symlink | FileType::Unknown
                ) {
                    return Err(failed(Errno::INVAL));
                }
                let made = node(kind, command.u64(attr::RDEV)?);
                (made, LeftOutKind::Special)
            }
        };
        match made {
            Err(error) if is_refusal(error) => {
                file().map_err(failed)?;
                report.add(instead, Some(error));
            }
            made => made.map_err(failed)?,
        }
        if command.number != cmd::SYMLINK {
            self.remove_inherited(path);
        }
        Ok(())
    }

    /// Executes a command that changes names. The last file and directory may move.
    fn names(&mut self, command: &Command<'_>, path: &[u8]) -> Result<()> {
        self.last = None;
        self.confined.forget_paths();
        let confined = &mut self.confined;
        match command.number {
            cmd::RENAME => {
                let to = command.path(attr::PATH_TO)?;
                let renamed = confined.locate(path).and_then(|from| {
                    let to = confined.locate(to)?;
                    rustix::fs::renameat(&from.dir, from.name(), &to.dir, to.name())
                });
                confined.forget_paths();
                renamed.map_err(at("rename", path))
            }
            cmd::LINK => {
                let existing = command.path(attr::PATH_LINK)?;
                let linked = confined.locate(path).and_then(|new| {
                    let old = confined.locate(existing)?;
                    let flags = AtFlags::empty();
                    rustix::fs::linkat(&old.dir, old.name(), &new.dir, new.name(), flags)
                });
                linked.map_err(at("link", path))
            }
            number => {
                let flags = if number == cmd::RMDIR {
                    AtFlags::REMOVEDIR
                } else {
                    AtFlags::empty()
                };
                let removed = confined
                    .locate(path)
                    .and_then(|one| rustix::fs::unlinkat(&one.dir, one.name(), flags));
                removed.map_err(at("remove", path))
            }
        }
    }

    /// The file at a path, opened for writing.
    fn file(&mut self, path: &[u8]) -> rustix::io::Result<&OwnedFd> {
        let same = self.last.as_ref().is_some_and(|(last, _)| last == path);
        if !same {
            self.last = None;
            let file = self.confined.open(path, OFlags::WRONLY)?;
            self.last = Some((path.to_vec(), file));
        }
        let file = self.last.as_ref().map(|(_, file)| file);
        file.ok_or(Errno::NOENT)
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<u64> {
        let written = self
            .file(path)
            .and_then(|file| write_all(file, data, offset));
        written.map_err(at("write", path))?;
        Ok(data.len() as u64)
    }

    /// Gives a range of a file the content of a range in `source`, or in this directory.
    pub(super) fn clone_range(
        &mut self,
        command: &Command<'_>,
        source: Option<&mut Confined>,
    ) -> Result<u64> {
        let path = command.path(attr::PATH)?;
        let (to, len) = (
            command.u64(attr::FILE_OFFSET)?,
            command.u64(attr::CLONE_LEN)?,
        );
        let from_path = command.path(attr::CLONE_PATH)?;
        let from = command.u64(attr::CLONE_OFFSET)?;
        let read = OFlags::RDONLY;
        let opened = match source {
            Some(source) => source.open(from_path, read),
            None => self.confined.open(from_path, read),
        };
        let copied = opened.and_then(|source| {
            let file = self.file(path)?;
            copy_range(&source, from, file, to, len)
        });
        copied.map_err(at("clone", path))?;
        Ok(len)
    }

    fn chown(&mut self, command: &Command<'_>, path: &[u8], report: &mut Report<'_>) -> Result<()> {
        let (uid, gid) = (command.u32(attr::UID)?, command.u32(attr::GID)?);
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let located = self.confined.locate(path).map_err(at("find", path))?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let own = |uid| rustix::fs::chownat(&located.dir, located.name(), uid, Some(gid), flags);
        match own(Some(uid)) {
            // INVAL: a user namespace that does not know the owner.
            Err(error) if is_refusal(error) => {
                self.owner_was_refused();
                // The group alone may be one of the user's.
                let _ = own(None);
                report.add(LeftOutKind::Owner, Some(error));
                Ok(())
            }
            done => done.map_err(at("set the owner of", path)),
        }
    }

    fn times(&mut self, command: &Command<'_>, path: &[u8], report: &mut Report<'_>) -> Result<()> {
        let time = |number| -> Result<Timespec> {
            let (tv_sec, nsec) = command.time(number)?;
            Ok(Timespec {
                tv_sec,
                tv_nsec: nsec.into(),
            })
        };
        let times = Timestamps {
            last_access: time(attr::ATIME)?,
            last_modification: time(attr::MTIME)?,
        };
        let located = self.confined.locate(path).map_err(at("find", path))?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::utimensat(&located.dir, located.name(), &times, flags) {
            Err(error) if is_refusal(error) => {
                report.add(LeftOutKind::Times, Some(error));
                Ok(())
            }
            done => done.map_err(at("set the times of", path)),
        }
    }

    fn xattr(&mut self, command: &Command<'_>, path: &[u8], report: &mut Report<'_>) -> Result<()> {
        let name = OsStr::from_bytes(command.get(attr::XATTR_NAME)?);
        let set = command.number == cmd::SET_XATTR;
        let value = if set {
            command.get(attr::XATTR_DATA)?
        } else {
            &[]
        };
        let changed = self.confined.change(path, |located| {
            if set {
                rustix::fs::lsetxattr(located.by_path(), name, value, XattrFlags::empty())
            } else {
                rustix::fs::lremovexattr(located.by_path(), name)
            }
        });
        match changed {
            // A default ACL or a capability may be gone already, or was never kept.
            Err(Errno::NODATA) if !set => Ok(()),
            Err(error) if !set && is_refusal(error) => Ok(()),
            // Some file systems have less room for attributes.
            Err(error @ (Errno::NOSPC | Errno::TOOBIG | Errno::RANGE)) if set => {
                report.add(LeftOutKind::Attribute, Some(error));
                Ok(())
            }
            Err(error) if is_refusal(error) => {
                report.add(LeftOutKind::Attribute, Some(error));
                Ok(())
            }
            done => done.map_err(at("set an attribute of", path)),
        }
    }

    fn allocate(
        &mut self,
        command: &Command<'_>,
        path: &[u8],
        report: &mut Report<'_>,
    ) -> Result<()> {
        let (offset, len) = (command.u64(attr::FILE_OFFSET)?, command.u64(attr::SIZE)?);
        let mode = command.u32(attr::FALLOCATE_MODE)?;
        let failed = at("allocate", path);
        if mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 {
            return Err(failed(Errno::NOTSUP));
        }
        let flags = FallocateFlags::from_bits_retain(mode);
        let file = match self.file(path) {
            Ok(file) => file,
            Err(error) => return Err(failed(error)),
        };
        match rustix::fs::fallocate(file, flags, offset, len) {
            Err(Errno::NOTSUP | Errno::NOSYS) => {
                let zeros = mode & (PUNCH_HOLE | ZERO_RANGE) != 0;
                let written = write_zeros(file, offset, len, zeros, mode & KEEP_SIZE == 0);
                report.add(LeftOutKind::Allocation, Some(Errno::NOTSUP));
                written.map_err(failed)
            }
            done => done.map_err(failed),
        }
    }
}

fn write_all(file: &OwnedFd, mut data: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, offset) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                data = data.get(count..).unwrap_or_default();
                offset = offset.saturating_add(count as u64);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes zeros over a range (`zeros`), and extends the file to its end (`extend`), without holes.
fn write_zeros(
    file: &OwnedFd,
    offset: u64,
    len: u64,
    zeros: bool,
    extend: bool,
) -> rustix::io::Result<()> {
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
    let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
    if zeros {
        let piece = vec![0; PIECE];
        let mut at = offset;
        while at < end.min(size) {
            let count = (end.min(size) - at).min(PIECE as u64);
            let count = usize::try_from(count).unwrap_or(PIECE);
            write_all(file, piece.get(..count).unwrap_or(&piece), at)?;
            at += count as u64;
        }
    }
    if extend && end > size {
        rustix::fs::ftruncate(file, end)?;
    }
    Ok(())
}

/// Copies a range. The system call shares it where the file system can. `EINVAL`: both ranges are
/// of one file and overlap, or the source is too short.
fn copy_range(
    from: &OwnedFd,
    start: u64,
    to: &OwnedFd,
    offset: u64,
    len: u64,
) -> rustix::io::Result<()> {
    let end = start.checked_add(len).ok_or(Errno::INVAL)?;
    let into_end = offset.checked_add(len).ok_or(Errno::INVAL)?;
    let (one, two) = (rustix::fs::fstat(from)?, rustix::fs::fstat(to)?);
    let same = (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino);
    if same && start < into_end && offset < end {
        return Err(Errno::INVAL);
    }
    let (mut at, mut into) = (start, offset);
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut into), left) {
            // The source is shorter.
            Ok(0) => return Err(Errno::INVAL),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOTSUP | Errno::NOSYS | Errno::TXTBSY) => {
                return copy_bytes(from, at, to, into, end - at);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn copy_bytes(
    from: &OwnedFd,
    start: u64,
    to: &OwnedFd,
    offset: u64,
    len: u64,
) -> rustix::io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut done = 0;
    while done < len {
        let most = usize::try_from((len - done).min(PIECE as u64)).unwrap_or(PIECE);
        let buf = piece.get_mut(..most).unwrap_or_default();
        let count = match rustix::io::pread(from, buf, start.saturating_add(done)) {
            Ok(0) => return Err(Errno::INVAL),
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        let data = piece.get(..count).unwrap_or_default();
        write_all(to, data, offset.saturating_add(done))?;
        done += count as u64;
    }
    Ok(())
}
