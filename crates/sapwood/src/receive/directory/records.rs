//! The records of a directory of this machine ([`Record`]).
//!
//! # How it works
//! A record is a file with the UUID of its subvolume as its name. It is replaced by a renamed file
//! whose content is durable, so after a crash there is the old or the new one. Next to the record
//! of a partial subvolume are:
//!
//! - `UUID.names`, an empty file. Its modification time is the position of the last change of
//!   names: the number of commands in seconds, and bits of the digest in nanoseconds. A time is
//!   metadata, which file systems with a journal keep in one order with the changes of names.
//! - `UUID.modes`, final modes of directories that are open to their owner meanwhile.
//!
//! After the first record the whole file system is made durable and no single file, because an
//! fsync may make one file durable before names that changed earlier.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use uuid::Uuid;

use super::mounted;
use crate::receive::record::{DIRECTORY, RECORD_MAX, Record};

/// Most bytes of the file with modes.
const MODES_MAX: u64 = 256 << 20;

/// Seconds of a time that every file system can store.
const SECONDS: u64 = 1 << 31;

/// `f_type` of file systems that keep the order of their metadata: XFS, btrfs.
const ORDERED: [u64; 2] = [0x5846_5342, 0x9123_683E];

/// `f_type` of ext2, ext3 and ext4. They keep the order if they have a journal.
const EXT: u64 = 0xEF53;

/// The directory with the records.
pub(super) struct Records<'a>(pub(super) &'a OwnedFd);

/// The file whose time is the position of the last change of names.
pub(super) struct NamesMark(OwnedFd);

impl NamesMark {
    /// Records a position: commands, and nanoseconds below 10^9 from their digest.
    pub(super) fn set(&self, commands: u64, nanoseconds: u32) -> rustix::io::Result<()> {
        let omit = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        };
        let position = Timespec {
            tv_sec: i64::try_from(commands % SECONDS).unwrap_or(0),
            tv_nsec: nanoseconds.into(),
        };
        let times = Timestamps {
            last_access: omit,
            last_modification: position,
        };
        rustix::fs::futimens(&self.0, &times)
    }

    /// The recorded position, if it is after the checkpoint `from`.
    pub(super) fn get(&self, from: u64) -> rustix::io::Result<Option<(u64, u32)>> {
        let stat = rustix::fs::fstat(&self.0)?;
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0) % SECONDS;
        let ahead = seconds.wrapping_sub(from) % SECONDS;
        let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
        // An older position appears as one that is far ahead.
        let newer = ahead != 0 && ahead < SECONDS / 2;
        Ok(newer.then(|| (from.saturating_add(ahead), nanoseconds)))
    }
}

impl Records<'_> {
    /// Opens the directory of records. Its files direct removals and modes, so they have to be of
    /// the caller, of root, or of the user who can also replace the received directories.
    ///
    /// # Errors
    /// `PermissionDenied` if other users can write to it.
    fn directory(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(self.0, DIRECTORY, flags, Mode::empty())?;
        let (found, above) = (rustix::fs::fstat(&dir)?, rustix::fs::fstat(self.0)?);
        let own = rustix::process::geteuid().as_raw();
        let trusted = [0, own, above.st_uid].contains(&found.st_uid);
        if !trusted || found.st_mode & 0o022 != 0 {
            let why =
                format!("{DIRECTORY} belongs to another user, or other users can write to it");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(dir)
    }

    fn make_directory(&self) -> io::Result<OwnedFd> {
        match rustix::fs::mkdirat(self.0, DIRECTORY, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        self.directory()
    }

    fn read(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let dir = match self.directory() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            dir => dir?,
        };
        // Does not block on a fifo.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file?),
        };
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// The record of a subvolume, if there is one.
    pub(super) fn find(&self, uuid: [u8; 16]) -> io::Result<Option<Record>> {
        let name = Uuid::from_bytes(uuid).to_string();
        let record = self.read(&name, RECORD_MAX as u64)?;
        let record = record.and_then(|bytes| Record::parse(&bytes));
        Ok(record.filter(|record| record.uuid == uuid))
    }

    /// Stores the first record of an empty directory, or of one that does not exist yet.
    pub(super) fn begin(&self, record: &Record) -> io::Result<()> {
        let dir = self.make_directory()?;
        let name = Uuid::from_bytes(record.uuid).to_string();
        let new = format!("{name}.new");
        write(&dir, &new, &record.to_bytes())?.sync_all()?;
        Ok(rustix::fs::renameat(&dir, &new, &dir, &name)?)
    }

    /// Makes everything durable, and then stores a record and, if they changed, the modes. The
    /// record is durable before any later change of names.
    pub(super) fn store(&self, record: &Record, modes: Option<&[u8]>) -> io::Result<()> {
        let dir = self.make_directory()?;
        let name = Uuid::from_bytes(record.uuid).to_string();
        let (new, modes_name) = (format!("{name}.new"), format!("{name}.modes"));
        let new_modes = format!("{modes_name}.new");
        if let Some(modes) = modes {
            write(&dir, &new_modes, modes)?;
        }
        let bytes = record.to_bytes();
        match write(&dir, &new, &bytes) {
            Ok(_) => {
                mounted::sync(self.0)?;
                if modes.is_some() {
                    rustix::fs::renameat(&dir, &new_modes, &dir, &modes_name)?;
                }
                rustix::fs::renameat(&dir, &new, &dir, &name)?;
            }
            // A full file system has room for it in place of the old one, with the risk that a
            // crash at this moment spoils it.
            Err(error) if is_full(&error) && modes.is_none() => {
                mounted::sync(self.0)?;
                let _ = rustix::fs::unlinkat(&dir, &new, AtFlags::empty());
                write(&dir, &name, &bytes)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes the file for the positions of a subvolume.
    pub(super) fn make_names_mark(&self, uuid: [u8; 16]) -> io::Result<NamesMark> {
        Ok(Self::names_mark(
            &self.make_directory()?,
            uuid,
            OFlags::CREATE,
        )?)
    }

    /// The file for the positions of a subvolume, if there is one.
    pub(super) fn find_names_mark(&self, uuid: [u8; 16]) -> io::Result<Option<NamesMark>> {
        match Self::names_mark(&self.directory()?, uuid, OFlags::empty()) {
            Err(Errno::NOENT) => Ok(None),
            mark => Ok(Some(mark?)),
        }
    }

    fn names_mark(dir: &OwnedFd, uuid: [u8; 16], create: OFlags) -> rustix::io::Result<NamesMark> {
        let name = format!("{}.names", Uuid::from_bytes(uuid));
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, name, flags | create, Mode::from_raw_mode(0o600))?;
        Ok(NamesMark(file))
    }

    /// The modes that were stored with the record of a subvolume.
    pub(super) fn modes(&self, uuid: [u8; 16]) -> io::Result<Vec<u8>> {
        let name = format!("{}.modes", Uuid::from_bytes(uuid));
        Ok(self.read(&name, MODES_MAX)?.unwrap_or_default())
    }

    /// Removes the files of a partial subvolume next to its record.
    pub(super) fn remove_marks(&self, uuid: [u8; 16]) -> io::Result<()> {
        self.remove(uuid, &["names", "modes", "modes.new", "new"])
    }

    /// Removes the file for the positions of a subvolume.
    pub(super) fn remove_names_mark(&self, uuid: [u8; 16]) -> io::Result<()> {
        self.remove(uuid, &["names"])
    }

    fn remove(&self, uuid: [u8; 16], suffixes: &[&str]) -> io::Result<()> {
        let dir = self.directory()?;
        for suffix in suffixes {
            let name = format!("{}.{suffix}", Uuid::from_bytes(uuid));
            match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Identifies the running system and its mount. Empty if that is not possible.
    pub(super) fn mount(&self) -> String {
        const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let found = rustix::fs::statx(self.0, "", AtFlags::EMPTY_PATH, UNIQUE);
        match (boot, found) {
            (Ok(boot), Ok(found)) if found.stx_mask & UNIQUE.bits() != 0 => {
                format!("{} {}", boot.trim(), found.stx_mnt_id)
            }
            _ => String::new(),
        }
    }

    /// Whether the file system keeps the order of its metadata over a power cut.
    pub(super) fn is_ordered(&self) -> bool {
        let found = rustix::fs::fstatfs(self.0).ok();
        let kind = found.and_then(|found| u64::try_from(found.f_type).ok());
        match kind.map(|kind| kind & 0xFFFF_FFFF) {
            Some(EXT) => self.has_journal(),
            kind => kind.is_some_and(|kind| ORDERED.contains(&kind)),
        }
    }

    /// Whether the kernel's ext4 of the directory has a journal. `journal_task` in sysfs is the
    /// process of its journal, or no number.
    fn has_journal(&self) -> bool {
        let Ok(stat) = rustix::fs::fstat(self.0) else {
            return false;
        };
        let (major, minor) = (
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        );
        let device = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"));
        let task = device.and_then(|device| {
            let name = device.file_name().unwrap_or_default();
            std::fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("journal_task"))
        });
        task.is_ok_and(|task| task.trim().parse::<u32>().is_ok())
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSPC | Errno::DQUOT)
    )
}

/// Writes a file.
fn write(dir: &OwnedFd, name: &str, bytes: &[u8]) -> io::Result<File> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_other_users_can_write_are_refused() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DIRECTORY);
        std::fs::create_dir(&path).unwrap();
        let open = std::fs::File::open(dir.path()).unwrap().into();
        let records = Records(&open);
        for (mode, refused) in [(0o755, false), (0o775, true), (0o757, true), (0o700, false)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let found = records.find([1; 16]).map_err(|error| error.kind());
            let expected = if refused {
                Err(io::ErrorKind::PermissionDenied)
            } else {
                Ok(None)
            };
            assert_eq!(found, expected, "{mode:o}");
        }
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            records.find([1; 16]).unwrap_err();
        }
    }

    #[test]
    fn a_mark_is_a_position_after_its_checkpoint_or_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(DIRECTORY)).unwrap();
        let open = std::fs::File::open(dir.path()).unwrap().into();
        let records = Records(&open);
        assert!(records.find_names_mark([1; 16]).unwrap().is_none());
        let mark = records.make_names_mark([1; 16]).unwrap();
        for (from, commands, found) in [
            (1, 1, None),
            (7, 3, None),
            (3, 7, Some(7)),
            (SECONDS - 1, SECONDS + 5, Some(SECONDS + 5)),
            (SECONDS + 5, SECONDS - 1, None),
        ] {
            mark.set(commands, 999_999_999).unwrap();
            let expected = found.map(|found| (found, 999_999_999));
            assert_eq!(mark.get(from).unwrap(), expected, "{from} {commands}");
        }
    }
}
