//! Positions in a file, and names, on Unix.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

pub(crate) use std::os::unix::net::UnixStream as LocalStream;

/// The error number of a connection that was shut down.
pub(crate) const SHUT_DOWN: i32 = libc::ESHUTDOWN;

pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    file.read_at(buf, offset)
}

pub(super) fn write_at(file: &File, buf: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(buf, offset)
}

/// Fills `buf` from `offset`.
pub(crate) fn read_exact_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buf, offset)
}

/// Writes all of `buf` at `offset`.
pub(crate) fn write_all_at(file: &File, buf: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(buf, offset)
}

/// The first byte at `from` or after it that is in no hole. `None` if only a hole follows. A file
/// system that does not know its holes has none.
pub(crate) fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) if is_unknown(error) => Ok((from < file.metadata()?.len()).then_some(from)),
        Err(error) => Err(error.into()),
    }
}

/// The first hole at `from` or after it; the end of the file counts as one.
pub(crate) fn next_hole(file: &File, from: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Hole(from)) {
        Err(error) if is_unknown(error) => Ok(file.metadata()?.len()),
        other => Ok(other?),
    }
}

fn is_unknown(error: Errno) -> bool {
    matches!(error, Errno::INVAL | Errno::NOTSUP | Errno::NOTTY)
}

/// Bytes of a name as a part of a path.
pub(crate) fn os_str(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Bytes of a name as a path.
pub(crate) fn os_string(bytes: Vec<u8>) -> OsString {
    OsString::from_vec(bytes)
}
