//! The records of a directory of this machine ([`Record`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use uuid::Uuid;

use super::record::{RECORD_MAX, Record};

/// The hidden directory that has the records.
const DIRECTORY: &str = ".sapwood-received";

/// The directory with the records.
pub(super) struct Records<'a>(pub(super) &'a OwnedFd);

impl Records<'_> {
    fn directory(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.0, DIRECTORY, flags, Mode::empty())
    }

    /// The record of a subvolume, if there is one.
    pub(super) fn find(&self, uuid: [u8; 16]) -> io::Result<Option<Record>> {
        let dir = match self.directory() {
            Err(Errno::NOENT) => return Ok(None),
            dir => dir?,
        };
        // Does not block on a fifo.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let name = Uuid::from_bytes(uuid).to_string();
        let file = match rustix::fs::openat(&dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file?),
        };
        let mut bytes = Vec::new();
        file.take(RECORD_MAX as u64).read_to_end(&mut bytes)?;
        Ok(Record::parse(&bytes).filter(|record| record.uuid == uuid))
    }

    /// Stores a record, durably. It replaces an older one of its UUID in place, so that a full file
    /// system has room for it.
    pub(super) fn store(&self, record: &Record) -> io::Result<()> {
        match rustix::fs::mkdirat(self.0, DIRECTORY, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        let dir = self.directory()?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let name = Uuid::from_bytes(record.uuid).to_string();
        let file = rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(0o644))?;
        let mut file = File::from(file);
        let bytes = record.to_bytes();
        file.write_all(&bytes)?;
        file.set_len(bytes.len() as u64)?;
        file.sync_all()?;
        rustix::fs::fsync(&dir)?;
        Ok(())
    }
}
