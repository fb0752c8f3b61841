//! Open files.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Seek, SeekFrom, Write};

use sapwood::OpenOptions;

use crate::call::{self, Failure, Result, call, done, length};
use crate::file_system::Fs;
use crate::metadata::Stat;

/// An open file.
///
/// Any number of threads may use it at a time; they share one position.
pub struct File {
    file: sapwood::File,
    access: c_int,
}

impl File {
    fn reads(&self) -> Result<&sapwood::File> {
        match self.access {
            libc::O_WRONLY => Err(Failure::new(
                libc::EBADF,
                "the file is not open for reading",
            )),
            _ => Ok(&self.file),
        }
    }

    fn writes(&self) -> Result<&sapwood::File> {
        match self.access {
            libc::O_RDONLY => Err(Failure::new(
                libc::EBADF,
                "the file is not open for writing",
            )),
            _ => Ok(&self.file),
        }
    }
}

/// The options that flags of open(2) mean.
fn options(flags: c_int, mode: u32) -> Result<OpenOptions> {
    let access = flags & libc::O_ACCMODE;
    let known = libc::O_ACCMODE
        | libc::O_CREAT
        | libc::O_EXCL
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_CLOEXEC
        | libc::O_LARGEFILE;
    if access == libc::O_ACCMODE || flags & !known != 0 {
        return Err(Failure::invalid(format!("flags {flags:#o}")));
    }
    let has = |flag| flags & flag != 0;
    let writes = access != libc::O_RDONLY;
    if !writes && has(libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) {
        let message = "O_CREAT, O_TRUNC and O_APPEND need O_WRONLY or O_RDWR";
        return Err(Failure::invalid(message));
    }
    let mut options = OpenOptions::new();
    options
        .read(access != libc::O_WRONLY)
        .write(writes && !has(libc::O_APPEND))
        .append(has(libc::O_APPEND))
        .truncate(has(libc::O_TRUNC))
        .create(has(libc::O_CREAT))
        .create_new(has(libc::O_CREAT) && has(libc::O_EXCL))
        .mode(mode);
    Ok(options)
}

/// Opens a file of the image. `flags` are flags of open(2): `O_RDONLY`, `O_WRONLY` or `O_RDWR`,
/// with `O_CREAT`, `O_EXCL`, `O_TRUNC` or `O_APPEND`. A new file gets the permission bits `mode`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_open(
    fs: *const Fs,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    file: *mut *mut File,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        call::make("file", file, || {
            let fs = call::handle("fs", fs)?.get();
            let path = call::path("path", path)?;
            Ok(File {
                file: fs.open_with(path, &options(flags, mode)?)?,
                access: flags & libc::O_ACCMODE,
            })
        })
    }
}

/// Ends the use of a file. Written data is durable after `sapwood_file_sync`, `sapwood_sync` or
/// `sapwood_close`. `NULL` is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_close(file: *mut File) -> c_int {
    // SAFETY: the promise of the crate: it came from `sapwood_file_open`.
    unsafe { call::end(file) }
}

/// Reads at the file's position, and moves it. Returns the number of bytes, 0 at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_read(
    file: *const File,
    buffer: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let mut file = call::handle("file", file)?.reads()?;
        length(file.read(call::bytes_mut(buffer, size)?)?)
    })
}

/// Reads at a byte offset. Returns the number of bytes, fewer than `size` only at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_pread(
    file: *const File,
    buffer: *mut c_void,
    size: usize,
    offset: u64,
) -> libc::ssize_t {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let file = call::handle("file", file)?.reads()?;
        length(file.read_at(call::bytes_mut(buffer, size)?, offset)?)
    })
}

/// Writes all bytes at the file's position (with `O_APPEND`, at the end), and moves it. Returns
/// `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_write(
    file: *const File,
    data: *const c_void,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let mut file = call::handle("file", file)?.writes()?;
        file.write_all(call::bytes(data, size)?)?;
        length(size)
    })
}

/// Writes all bytes at a byte offset (with `O_APPEND`, at the end). Returns `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_pwrite(
    file: *const File,
    data: *const c_void,
    size: usize,
    offset: u64,
) -> libc::ssize_t {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let file = call::handle("file", file)?.writes()?;
        file.write_at(call::bytes(data, size)?, offset)?;
        length(size)
    })
}

/// Moves the position as lseek(2); `whence` is `SEEK_SET`, `SEEK_CUR` or `SEEK_END`. Returns the
/// new position.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_seek(file: *const File, offset: i64, whence: c_int) -> i64 {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let mut file = &call::handle("file", file)?.file;
        let to = match (whence, u64::try_from(offset)) {
            (libc::SEEK_SET, Ok(offset)) => SeekFrom::Start(offset),
            (libc::SEEK_CUR, _) => SeekFrom::Current(offset),
            (libc::SEEK_END, _) => SeekFrom::End(offset),
            _ => return Err(Failure::invalid(format!("seek to {offset} from {whence}"))),
        };
        let position = file.seek(to)?;
        i64::try_from(position).map_err(|_| Failure::new(libc::EOVERFLOW, "too far"))
    })
}

/// Truncates the file, or extends it with a hole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_truncate(file: *const File, size: u64) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe { Ok(call::handle("file", file)?.writes()?.set_len(size)?) })
}

/// Metadata of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_stat(file: *const File, result: *mut Stat) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let result = call::place("result", result)?;
        let metadata = call::handle("file", file)?.file.metadata()?;
        result.write(Stat::of(&metadata));
        Ok(())
    })
}

/// Makes content and metadata of the file durable, as fsync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_sync(file: *const File) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe { Ok(call::handle("file", file)?.file.sync_all()?) })
}

/// Makes the content durable, and the metadata that is needed to read it, as fdatasync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_file_datasync(file: *const File) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe { Ok(call::handle("file", file)?.file.sync_data()?) })
}

#[cfg(test)]
mod tests {
    use super::options;

    #[test]
    fn flags_without_a_meaning_are_refused() {
        for flags in [
            libc::O_RDONLY,
            libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
            libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC,
        ] {
            assert!(options(flags, 0o644).is_ok(), "{flags:#o}");
        }
        for flags in [
            libc::O_ACCMODE,
            libc::O_RDONLY | libc::O_CREAT,
            libc::O_RDONLY | libc::O_TRUNC,
            libc::O_RDWR | libc::O_DIRECTORY,
            -1,
        ] {
            assert!(options(flags, 0o644).is_err(), "{flags:#o}");
        }
    }
}
