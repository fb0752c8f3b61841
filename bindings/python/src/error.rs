//! Errors of the library as exceptions of Python.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyValueError};
use sapwood::internal::{CopyError, OperationError};

/// An `OSError` with this number. Python makes it the subclass of the number, as
/// `FileNotFoundError`. The text of an error of this machine ends in its number, which an `OSError`
/// displays anyway.
fn os_error(errno: i32, text: &str, path: Option<&OsStr>) -> PyErr {
    let number = format!(" (os error {errno})");
    let text = text.strip_suffix(&number).unwrap_or(text).to_owned();
    match path {
        Some(path) => PyOSError::new_err((errno, text, path.to_owned())),
        None => PyOSError::new_err((errno, text)),
    }
}

/// The exception of an error of the library. Its text is the reason alone where the path is known,
/// because an `OSError` displays its file name.
pub(crate) fn exception(error: &sapwood::Error) -> PyErr {
    let (errno, text) = (error.errno(), error.to_string());
    if let Some(OperationError::Path { path, source, .. }) = error.downcast_ref() {
        return os_error(errno, &source.to_string(), Some(path.as_os_str()));
    }
    if let Some(error) = error.downcast_ref::<CopyError>() {
        let cause = error.cause().to_string();
        let place = text.strip_suffix(&format!(": {cause}"));
        return os_error(errno, &cause, place.map(OsStr::new));
    }
    let Some(path) = error.path() else {
        return os_error(errno, &text, None);
    };
    let before = format!("{}: ", path.display());
    let reason = text.strip_prefix(&before).unwrap_or(&text);
    os_error(errno, reason, Some(path.as_os_str()))
}

/// The exception of an error of reading, writing or seeking.
pub(crate) fn io_exception(error: io::Error) -> PyErr {
    match error.downcast::<sapwood::Error>() {
        Ok(error) => exception(&error),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            os_error(libc::EINVAL, &error.to_string(), None)
        }
        Err(error) => {
            let errno = sapwood::errno(&error).unwrap_or(libc::EIO);
            os_error(errno, &error.to_string(), None)
        }
    }
}

/// The exception of the use of something that is closed; `io` raises the same for its files.
pub(crate) fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("I/O operation on closed {what}"))
}

/// The exception of an argument that makes no sense.
pub(crate) fn invalid(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

/// The exception of opening a directory as a file.
pub(crate) fn is_a_directory(path: &Path) -> PyErr {
    os_error(libc::EISDIR, "is a directory", Some(path.as_os_str()))
}
