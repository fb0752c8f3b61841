//! Extended attributes, of a symbolic link itself.
#![expect(unsafe_code, reason = "exported names, and pointers that C passes")]

use std::ffi::{c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use crate::call::{self, Failure, call, done};
use crate::file_system::Fs;

/// The value of an extended attribute by its full name, such as `user.x`. Returns its length. With
/// `size` 0, only the length is returned. `ENODATA`: there is none; `ERANGE`: the buffer is too
/// short.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_getxattr(
    fs: *const Fs,
    path: *const c_char,
    name: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let path = call::path("path", path)?;
        let name = call::string("name", name)?;
        let value = fs.xattr(path, name)?.ok_or_else(|| {
            let message = format!("{} has no attribute {}", path.display(), name.display());
            Failure::new(libc::ENODATA, message)
        })?;
        call::give(&value, buffer, size)
    })
}

/// The full names of all extended attributes, each with a zero byte at its end. Returns their
/// length. With `size` 0, only the length is returned. `ERANGE`: the buffer is too short.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_listxattr(
    fs: *const Fs,
    path: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    // SAFETY: the promise of the crate.
    call(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let mut list = Vec::new();
        for name in fs.xattrs(call::path("path", path)?)? {
            list.extend_from_slice(call::name(name.as_bytes())?.as_bytes_with_nul());
        }
        call::give(&list, buffer.cast(), size)
    })
}

/// Sets an extended attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_setxattr(
    fs: *const Fs,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let path = call::path("path", path)?;
        let name = call::string("name", name)?;
        Ok(fs.set_xattr(path, name, call::bytes(value, size)?)?)
    })
}

/// Removes an extended attribute. `ENODATA`: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sapwood_removexattr(
    fs: *const Fs,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: the promise of the crate.
    done(|| unsafe {
        let fs = call::handle("fs", fs)?.get();
        let path = call::path("path", path)?;
        Ok(fs.remove_xattr(path, call::string("name", name)?)?)
    })
}
