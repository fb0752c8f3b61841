//! Listings and walks.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use sapwood::{ReadDir, Walk as SapwoodWalk};

use crate::call::{self, call};
use crate::file_system::Fs;
use crate::metadata::Stat;

/// The entries of a directory. One thread at a time may use it.
pub struct Dir {
    entries: ReadDir,
    name: CString,
}

/// Everything below a directory. One thread at a time may use it.
pub struct Walk {
    walk: SapwoodWalk,
    path: CString,
}

/// A name in a directory.
#[repr(C)]
#[derive(Debug)]
pub struct DirectoryEntry {
    /// The name. It is valid until the next call with its `sapwood_dir`.
    pub name: *const c_char,
    /// Inode number.
    pub ino: u64,
    /// Type, in the bits `S_IFMT` of `st_mode`.
    pub mode: u32,
}

/// Begins to list a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_dir_open(
    fs: *const Fs,
    path: *const c_char,
    dir: *mut *mut Dir,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        call::make("dir", dir, || {
            let fs = call::handle("fs", fs)?.get();
            Ok(Dir {
                entries: fs.read_dir(call::path("path", path)?)?,
                name: CString::default(),
            })
        })
    }
}

/// The next entry, without `.` and `..`, in the image's order. Returns 1, or 0 at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_dir_next(dir: *mut Dir, entry: *mut DirectoryEntry) -> c_int {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let place = call::place("entry", entry)?;
        let dir = call::handle_mut("dir", dir)?;
        let Some(found) = dir.entries.next() else {
            return Ok(0);
        };
        let found = found?;
        dir.name = call::name(found.file_name().as_bytes())?;
        place.write(DirectoryEntry {
            name: dir.name.as_ptr(),
            ino: found.ino(),
            mode: found.file_type().kind().mode_bits(),
        });
        Ok(1)
    })
}

/// Ends a listing. `NULL` is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_dir_close(dir: *mut Dir) -> c_int {
    // SAFETY: the promise of the crate: it came from `sapwood_dir_open`.
    unsafe { call::end(dir) }
}

/// Begins a walk of everything below a directory: depth first, each directory before its content.
/// Symbolic links are not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_walk_open(
    fs: *const Fs,
    path: *const c_char,
    walk: *mut *mut Walk,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        call::make("walk", walk, || {
            let fs = call::handle("fs", fs)?.get();
            Ok(Walk {
                walk: fs.walk(call::path("path", path)?)?,
                path: CString::default(),
            })
        })
    }
}

/// The next file: its path below the directory where the walk began, valid until the next call with
/// this walk, and its metadata (`stat` may be `NULL`). Returns 1, or 0 at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_walk_next(
    walk: *mut Walk,
    path: *mut *const c_char,
    stat: *mut Stat,
) -> c_int {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let place = call::place("path", path)?;
        let walk = call::handle_mut("walk", walk)?;
        let Some(found) = walk.walk.next() else {
            return Ok(0);
        };
        let found = found?;
        walk.path = call::name(found.relative_path().as_os_str().as_bytes())?;
        place.write(walk.path.as_ptr());
        if !stat.is_null() {
            call::place("stat", stat)?.write(Stat::of(found.metadata()));
        }
        Ok(1)
    })
}

/// Ends a walk. `NULL` is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_walk_close(walk: *mut Walk) -> c_int {
    // SAFETY: the promise of the crate: it came from `sapwood_walk_open`.
    unsafe { call::end(walk) }
}
