//! Open files: the raw layer below the buffers of `io`.

use std::ffi::OsStr;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sapwood::{FileSystem, OpenOptions};

use crate::error::{closed, exception, invalid, io_exception, is_a_directory};
use crate::metadata::{Numbers, numbers};

/// Bytes of the first read of a whole file whose size is not known.
const PIECE: u64 = 64 << 10;

/// How a file is opened.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Opening {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    permissions: u32,
}

/// An open file. Threads share its position.
#[pyclass(frozen, module = "sapwood._sapwood")]
pub(crate) struct File {
    file: Mutex<Option<Arc<sapwood::File>>>,
}

/// Opens a file of an image; a directory is none.
pub(crate) fn open(py: Python<'_>, fs: &FileSystem, path: &[u8], how: &Opening) -> PyResult<File> {
    let mut options = OpenOptions::new();
    options
        .read(how.read)
        .write(how.write)
        .append(how.append)
        .truncate(how.truncate)
        .create(how.create)
        .create_new(how.create_new)
        .mode(how.permissions);
    let path = Path::new(OsStr::from_bytes(path));
    let opened = py.detach(|| {
        let file = fs.open_with(path, &options)?;
        let is_dir = file.metadata()?.is_dir();
        Ok((file, is_dir))
    });
    match opened.map_err(|error| exception(&error))? {
        (_, true) => Err(is_a_directory(path)),
        (file, false) => Ok(File {
            file: Mutex::new(Some(Arc::new(file))),
        }),
    }
}

impl File {
    fn get(&self) -> PyResult<Arc<sapwood::File>> {
        self.file.lock().clone().ok_or_else(|| closed("file"))
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&sapwood::File) -> sapwood::Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.get()?;
        let done = py.detach(move || work(&file));
        done.map_err(|error| exception(&error))
    }

    fn io<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&sapwood::File) -> io::Result<T> + Send,
    ) -> PyResult<T> {
        let file = self.get()?;
        py.detach(move || work(&file)).map_err(io_exception)
    }
}

#[pymethods]
impl File {
    /// Reads at most `size` bytes at the position; fewer only at the end.
    fn read<'py>(&self, py: Python<'py>, size: u64) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.get()?;
        let left = py.detach(|| {
            let position = (&*file).stream_position()?;
            let size = file.metadata()?.len();
            io::Result::Ok(size.saturating_sub(position))
        });
        let size = size.min(left.map_err(io_exception)?);
        let size = usize::try_from(size).map_err(|_| invalid("too much for the memory"))?;
        let mut count = 0;
        let bytes = PyBytes::new_with(py, size, |buf| {
            count = py.detach(|| (&*file).read(buf)).map_err(io_exception)?;
            Ok(())
        })?;
        if count == size {
            return Ok(bytes);
        }
        let read = bytes.as_bytes().get(..count).unwrap_or_default();
        Ok(PyBytes::new(py, read))
    }

    /// Reads from the position to the end.
    fn read_all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let first = self.read(py, u64::MAX)?;
        // Another thread may have made the file longer.
        let next = self.read(py, PIECE)?;
        if next.as_bytes().is_empty() {
            return Ok(first);
        }
        let mut all = [first.as_bytes(), next.as_bytes()].concat();
        self.io(py, |mut file| file.read_to_end(&mut all))?;
        Ok(PyBytes::new(py, &all))
    }

    /// Writes all bytes at the position, or at the end if the file was opened to append.
    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<usize> {
        self.io(py, |mut file| file.write(data))
    }

    /// Moves the position as lseek(2), and returns it.
    fn seek(&self, py: Python<'_>, offset: i64, whence: u32) -> PyResult<u64> {
        let to = match (whence, u64::try_from(offset)) {
            (0, Ok(offset)) => SeekFrom::Start(offset),
            (1, _) => SeekFrom::Current(offset),
            (2, _) => SeekFrom::End(offset),
            _ => return Err(invalid(format!("seek to {offset} from {whence}"))),
        };
        self.io(py, |mut file| file.seek(to))
    }

    /// Truncates the file, or extends it with a hole.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.set_len(size))
    }

    /// Makes content and metadata durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, sapwood::File::sync_all)
    }

    /// Metadata.
    fn stat(&self, py: Python<'_>) -> PyResult<Numbers> {
        self.with(py, |file| Ok(numbers(&file.metadata()?)))
    }

    /// Ends the use of the file.
    fn close(&self, py: Python<'_>) {
        let file = self.file.lock().take();
        py.detach(move || drop(file));
    }
}
