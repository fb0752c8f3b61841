//! Directories, links, rename, removal, subvolumes.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sapwood::FileSystem;

use crate::call::{self, call, done};
use crate::file_system::Fs;

/// Does `work` on a path.
///
/// # Safety
/// The promise of the crate.
unsafe fn on(
    fs: *const Fs,
    path: *const c_char,
    work: impl FnOnce(&FileSystem, &Path) -> sapwood::Result<()>,
) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        Ok(work(fs, call::path("path", path)?)?)
    })
}

/// Does `work` on two paths, whose arguments have these names.
///
/// # Safety
/// The promise of the crate.
unsafe fn on_two(
    fs: *const Fs,
    (one_name, one): (&str, *const c_char),
    (other_name, other): (&str, *const c_char),
    work: impl FnOnce(&FileSystem, &Path, &Path) -> sapwood::Result<()>,
) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let one = call::path(one_name, one)?;
        Ok(work(fs, one, call::path(other_name, other)?)?)
    })
}

/// Creates a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_mkdir(fs: *const Fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { on(fs, path, |fs, path| fs.create_dir_with(path, mode)) }
}

/// Creates a directory and all missing ones above it. One that exists is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_mkdir_all(fs: *const Fs, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { on(fs, path, |fs, path| fs.create_dir_all_with(path, mode)) }
}

/// Removes a name of anything but a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_unlink(fs: *const Fs, path: *const c_char) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { on(fs, path, |fs, path| fs.remove_file(path)) }
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_rmdir(fs: *const Fs, path: *const c_char) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { on(fs, path, |fs, path| fs.remove_dir(path)) }
}

/// Removes a directory and everything below it. Symbolic links below are removed, not followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_remove_all(fs: *const Fs, path: *const c_char) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { on(fs, path, |fs, path| fs.remove_dir_all(path)) }
}

/// Renames, as rename(2): replaces a file or an empty directory at `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_rename(
    fs: *const Fs,
    from: *const c_char,
    to: *const c_char,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        on_two(fs, ("from", from), ("to", to), |fs, from, to| {
            fs.rename(from, to)
        })
    }
}

/// Creates a symbolic link at `path` that contains `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_symlink(
    fs: *const Fs,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        on_two(
            fs,
            ("target", target),
            ("path", path),
            |fs, target, path| fs.symlink(target, path),
        )
    }
}

/// Gives a file one more name, `path`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_link(
    fs: *const Fs,
    original: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        on_two(
            fs,
            ("original", original),
            ("path", path),
            |fs, original, path| fs.hard_link(original, path),
        )
    }
}

/// The target of a symbolic link. Returns its length; no zero byte is added. With `size` 0, only
/// the length is returned. `ERANGE`: the buffer is too short.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_readlink(
    fs: *const Fs,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let target = fs.read_link(call::path("path", path)?)?;
        call::give(target.as_os_str().as_bytes(), buffer.cast::<c_void>(), size)
    })
}

/// Creates a subvolume (btrfs). A path is in the subvolume that is open: the default one, or the
/// one that the option `subvol` names; `subvolid=0` reaches all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_subvolume_create(fs: *const Fs, path: *const c_char) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { on(fs, path, |fs, path| fs.create_subvolume(path)) }
}

/// Deletes a subvolume or snapshot with all that is in it (btrfs).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_subvolume_delete(fs: *const Fs, path: *const c_char) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe { on(fs, path, |fs, path| fs.delete_subvolume(path)) }
}

/// Creates a snapshot of the subvolume with root directory `from` at `to` (btrfs); `/` is the
/// subvolume that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_snapshot(
    fs: *const Fs,
    from: *const c_char,
    to: *const c_char,
    read_only: bool,
) -> c_int {
    // SAFETY: the promise of the crate.
    unsafe {
        on_two(fs, ("from", from), ("to", to), |fs, from, to| {
            if read_only {
                fs.snapshot_read_only(from, to)
            } else {
                fs.snapshot(from, to)
            }
        })
    }
}
