//! Positions in a file, and names, on Windows. A file has no holes here.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::windows::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// The error number of a connection that was shut down: `WSAESHUTDOWN`.
pub(crate) const SHUT_DOWN: i32 = 10_058;

pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    file.seek_read(buf, offset)
}

pub(super) fn write_at(file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
    file.seek_write(buf, offset)
}

/// Fills `buf` from `offset`.
pub(crate) fn read_exact_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.seek_read(rest, offset + done as u64)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// Writes all of `buf` at `offset`.
pub(crate) fn write_all_at(file: &File, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = buf.get(done..).filter(|rest| !rest.is_empty()) {
        match file.seek_write(rest, offset + done as u64)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// The first byte at `from` or after it. `None` at the end of the file.
pub(crate) fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    Ok((from < file.metadata()?.len()).then_some(from))
}

/// The end of the file.
pub(crate) fn next_hole(file: &File, _: u64) -> io::Result<u64> {
    Ok(file.metadata()?.len())
}

/// Bytes of a name as a part of a path. A name that is not UTF-8 becomes one that names no file.
pub(crate) fn os_str(bytes: &[u8]) -> &OsStr {
    OsStr::new(str::from_utf8(bytes).unwrap_or("\u{fffd}"))
}

/// Bytes of a name as a path. Bytes that are not UTF-8 are replaced.
pub(crate) fn os_string(bytes: Vec<u8>) -> OsString {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// A Unix socket; the standard library has none here, so no value exists.
#[derive(Debug)]
pub(crate) enum LocalStream {}

impl LocalStream {
    pub(crate) fn connect(_: &Path) -> io::Result<Self> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(crate) fn set_write_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn set_read_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match *self {}
    }

    pub(crate) fn shutdown(&self, _: Shutdown) -> io::Result<()> {
        match *self {}
    }
}

impl Read for LocalStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Write for LocalStream {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match *self {}
    }
}
