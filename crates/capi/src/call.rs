//! The frame around every function: arguments, errors, panics.
//!
//! A panic ends here: unwinding into C is undefined. It becomes the error `EIO`.
#![expect(unsafe_code, reason = "pointers that C passes")]

use std::any::Any;
use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use sapwood::internal::errno_in;

thread_local! {
    /// The message of the last call of this thread that failed.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Error of a function.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(errno: c_int, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { errno, message }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, message)
    }

    fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no message");
        Self::new(libc::EIO, format!("a defect of Sapwood: {text}"))
    }

    fn record(self) -> c_int {
        // A thread that ends may have no message any more.
        let _ = MESSAGE.try_with(|last| {
            if let Ok(mut last) = last.try_borrow_mut() {
                *last = text(&self.message);
            }
        });
        -self.errno
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let errno = errno_in(&error).unwrap_or(libc::EIO);
        Self::new(errno, error.to_string())
    }
}

/// The return value of a function.
pub(crate) trait Status {
    fn failed(negative_errno: c_int) -> Self;
}

impl Status for c_int {
    fn failed(negative_errno: c_int) -> Self {
        negative_errno
    }
}

impl Status for i64 {
    fn failed(negative_errno: c_int) -> Self {
        negative_errno.into()
    }
}

#[cfg(target_pointer_width = "32")]
impl Status for isize {
    fn failed(negative_errno: c_int) -> Self {
        negative_errno as isize
    }
}

#[cfg(target_pointer_width = "64")]
impl Status for isize {
    fn failed(negative_errno: c_int) -> Self {
        i64::from(negative_errno) as isize
    }
}

/// Does the work of a function.
pub(crate) fn call<T: Status>(work: impl FnOnce() -> Result<T>) -> T {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return value,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::of_panic(&*payload),
    };
    T::failed(failure.record())
}

/// Runs `work` like [`call`], for a function that returns 0.
pub(crate) fn done(work: impl FnOnce() -> Result<()>) -> c_int {
    call(|| work().map(|()| 0))
}

/// Makes a handle and stores the pointer to it at `place`; `NULL` if that fails. `what` names the
/// argument.
///
/// # Safety
/// `place` is `NULL` or points to room for a pointer.
pub(crate) unsafe fn make<T>(
    what: &str,
    place: *mut *mut T,
    work: impl FnOnce() -> Result<T>,
) -> c_int {
    done(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { self::place(what, place) }?;
        place.write(std::ptr::null_mut());
        place.write(Box::into_raw(Box::new(work()?)));
        Ok(())
    })
}

/// Takes a handle back from C; `None` for `NULL`.
///
/// # Safety
/// `pointer` is `NULL` or came from [`make`], and is used no more.
pub(crate) unsafe fn take<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// Ends a handle. `NULL` is allowed.
///
/// # Safety
/// `pointer` is `NULL` or a handle that no other thread uses.
pub(crate) unsafe fn end<T>(pointer: *mut T) -> c_int {
    // SAFETY: the caller's promise.
    done(|| unsafe {
        drop(take(pointer));
        Ok(())
    })
}

/// A length as C returns it.
pub(crate) fn length(count: usize) -> Result<isize> {
    isize::try_from(count).map_err(|_| Failure::new(libc::EOVERFLOW, "too long"))
}

/// A text without zero bytes.
pub(crate) fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}

/// A name from the image.
pub(crate) fn name(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Failure::new(libc::EUCLEAN, "a name contains a zero byte"))
}

/// The object behind a pointer. `what` names the argument.
///
/// # Safety
/// `pointer` is `NULL` or points to a live `T`.
pub(crate) unsafe fn handle<'a, T>(what: &str, pointer: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// The object behind a pointer, for a change.
///
/// # Safety
/// `pointer` is `NULL` or points to a live `T` that no other thread uses.
pub(crate) unsafe fn handle_mut<'a, T>(what: &str, pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// A place for a result, which may hold anything before.
///
/// # Safety
/// `pointer` is `NULL` or leads to memory for a `T`.
pub(crate) unsafe fn place<'a, T>(what: &str, pointer: *mut T) -> Result<&'a mut MaybeUninit<T>> {
    // SAFETY: the caller's promise; `MaybeUninit` may hold any bytes.
    unsafe { handle_mut(what, pointer.cast()) }
}

/// The bytes of a string.
///
/// # Safety
/// `pointer` is `NULL` or points to a string that ends with a zero byte.
pub(crate) unsafe fn string<'a>(what: &str, pointer: *const c_char) -> Result<&'a OsStr> {
    if pointer.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    let string = unsafe { CStr::from_ptr(pointer) };
    Ok(OsStr::from_bytes(string.to_bytes()))
}

/// A path.
///
/// # Safety
/// `pointer` is `NULL` or points to a string that ends with a zero byte.
pub(crate) unsafe fn path<'a>(what: &str, pointer: *const c_char) -> Result<&'a Path> {
    // SAFETY: the caller's promise.
    unsafe { string(what, pointer) }.map(Path::new)
}

/// A UTF-8 string; `None` for `NULL`.
///
/// # Safety
/// `pointer` is `NULL` or points to a string that ends with a zero byte.
pub(crate) unsafe fn optional<'a>(what: &str, pointer: *const c_char) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let string = unsafe { string(what, pointer) }?;
    let utf8 = string.to_str().map(Some);
    utf8.ok_or_else(|| Failure::invalid(format!("{what} is not UTF-8")))
}

/// A UTF-8 string.
///
/// # Safety
/// `pointer` is `NULL` or points to a string that ends with a zero byte.
pub(crate) unsafe fn required<'a>(what: &str, pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let found = unsafe { optional(what, pointer) }?;
    found.ok_or_else(|| Failure::invalid(format!("{what} is NULL")))
}

/// Refuses flags that are not among `all`.
pub(crate) fn known(flags: u32, all: u32) -> Result<()> {
    match flags & !all {
        0 => Ok(()),
        unknown => Err(Failure::invalid(format!("unknown flags {unknown:#x}"))),
    }
}

/// Bytes to read.
///
/// # Safety
/// `pointer` leads to `len` bytes, or `len` is 0.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> Result<&'a [u8]> {
    if checked(pointer, len)? {
        Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), len) })
    } else {
        Ok(&[])
    }
}

/// Bytes to fill. C memory counts as initialized, with unknown bytes.
///
/// # Safety
/// `pointer` is `NULL` or points to `len` bytes that no other thread uses.
pub(crate) unsafe fn bytes_mut<'a>(pointer: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if checked(pointer, len)? {
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
    } else {
        Ok(&mut [])
    }
}

/// False for an empty buffer, whose pointer may be anything.
fn checked(pointer: *const c_void, len: usize) -> Result<bool> {
    length(len)?;
    match (len, pointer.is_null()) {
        (0, _) => Ok(false),
        (_, true) => Err(Failure::new(libc::EFAULT, "the buffer is NULL")),
        _ => Ok(true),
    }
}

/// Copies `value` into the buffer, like getxattr(2): with `size` 0 it only returns the length.
///
/// # Safety
/// `buffer` is `NULL` or points to `size` bytes that no other thread uses.
pub(crate) unsafe fn give(value: &[u8], buffer: *mut c_void, size: usize) -> Result<isize> {
    if size > 0 {
        // SAFETY: the caller's promise.
        let buffer = unsafe { bytes_mut(buffer, size) }?;
        let room = buffer.get_mut(..value.len()).ok_or_else(|| {
            let message = format!("the buffer has {size} bytes, {} are needed", value.len());
            Failure::new(libc::ERANGE, message)
        })?;
        room.copy_from_slice(value);
    }
    length(value.len())
}

/// The message of the last call of this thread that failed; an empty string if none did. It is
/// valid until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn sapwood_error_message() -> *const c_char {
    let message = MESSAGE.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |it| it.as_ptr()));
    message.unwrap_or(c"".as_ptr())
}

/// The version of the library, as `"0.2.0"`.
#[unsafe(no_mangle)]
pub extern "C" fn sapwood_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood::vfs;

    fn message() -> String {
        // SAFETY: the message of this thread, which makes no other call meanwhile.
        let message = unsafe { CStr::from_ptr(sapwood_error_message()) };
        message.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_an_error_of_its_thread() {
        let number = 7;
        let status = done(|| panic!("number {number}"));
        assert_eq!(status, -libc::EIO);
        assert_eq!(message(), "a defect of Sapwood: number 7");
        assert_eq!(call::<isize>(|| panic!("literal")), -5);
        assert_eq!(message(), "a defect of Sapwood: literal");
        std::thread::spawn(|| assert_eq!(message(), ""))
            .join()
            .unwrap();
    }

    #[test]
    fn a_message_has_no_zero_byte() {
        assert_eq!(done(|| Err(Failure::invalid("a\0b"))), -libc::EINVAL);
        assert_eq!(message(), "a\\0b");
        assert_eq!(name(b"a\0b").unwrap_err().errno, libc::EUCLEAN);
    }

    #[test]
    fn the_innermost_cause_gives_the_number() {
        let full = || vfs::Error::NoSpace;
        for error in [
            Failure::from(full()),
            Failure::from(std::io::Error::from(full())),
            Failure::from(std::io::Error::from_raw_os_error(libc::ENOSPC)),
        ] {
            assert_eq!(error.errno, libc::ENOSPC);
        }
        assert_eq!(Failure::from(std::fmt::Error).errno, libc::EIO);
        let option = sapwood::Options::new().option("no_such_option", None);
        assert_eq!(Failure::from(option.unwrap_err()).errno, libc::EINVAL);
    }

    #[test]
    fn null_and_impossible_lengths_are_refused() {
        let mut buffer = [0_u8; 4];
        let pointer = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer has the lengths that are used, or the length is refused.
        unsafe {
            assert!(bytes(std::ptr::null(), 0).unwrap().is_empty());
            assert_eq!(bytes(std::ptr::null(), 1).unwrap_err().errno, libc::EFAULT);
            assert_eq!(
                bytes(pointer, usize::MAX).unwrap_err().errno,
                libc::EOVERFLOW
            );
            assert_eq!(
                string("x", std::ptr::null()).unwrap_err().errno,
                libc::EINVAL
            );
            assert_eq!(give(b"12345", pointer, 4).unwrap_err().errno, libc::ERANGE);
            assert_eq!(give(b"12345", pointer, 0).unwrap(), 5);
            assert_eq!(give(b"123", pointer, 4).unwrap(), 3);
        }
        assert_eq!(&buffer, b"123\0");
    }
}
