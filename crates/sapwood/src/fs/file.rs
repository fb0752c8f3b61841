//! An open file.

use std::fmt;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::file_system::FileSystem;
use super::handle::Handle;
use super::metadata::{Metadata, Times};
use crate::damage::{Content, Damage, InImage, Salvage, read_range};
use crate::error::{Error, Result};
use crate::progress::Stop;
use crate::vfs::{self, AllocMode, Cause, SeekFrom, SetAttr, SyncKind, WriteMode};

/// How a file is opened, as [`std::fs::OpenOptions`].
#[derive(Debug, Clone)]
pub struct OpenOptions {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) append: bool,
    pub(super) truncate: bool,
    pub(super) create: bool,
    pub(super) create_new: bool,
    pub(super) mode: u32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $name: $type) -> &mut Self {
            self.$name = $name;
            self
        }
    )*};
}

impl OpenOptions {
    /// Nothing is allowed; a new file's mode is `0o644`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    setters! {
        /// Allows reading.
        read: bool,
        /// Allows writing.
        write: bool,
        /// Allows writing, always at the end.
        append: bool,
        /// Empties an existing file. Needs `write`.
        truncate: bool,
        /// Creates the file if there is none. Needs `write` or `append`.
        create: bool,
        /// Creates the file and fails if the name exists. Needs `write` or `append`.
        create_new: bool,
        /// Permission bits of a new file.
        mode: u32,
    }

    pub(super) fn writes(&self) -> bool {
        self.write || self.append
    }

    /// True for combinations that `std` refuses too.
    pub(super) fn is_valid(&self) -> bool {
        let some = self.read || self.writes();
        let truncates = !self.truncate || (self.write && !self.append);
        let creates = !(self.create || self.create_new) || self.writes();
        some && truncates && creates
    }
}

/// An open file of an image. It keeps the file system open.
///
/// Reads, writes and seeks through [`Read`], [`Write`] and [`Seek`] share one position, also
/// through `&File`. [`read_at`](Self::read_at) and [`write_at`](Self::write_at) leave it alone.
pub struct File {
    handle: Handle,
    path: PathBuf,
    read: bool,
    write: bool,
    append: bool,
    position: Mutex<u64>,
}

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// The content of an open file.
struct Readable<'f>(InImage<'f>);

impl Content for Readable<'_> {
    type Error = io::Error;

    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.0.read(at, buf)?)
    }

    fn data(&self, at: u64) -> io::Result<Option<u64>> {
        Ok(self.0.data(at)?)
    }

    fn hole(&self, at: u64) -> io::Result<u64> {
        Ok(self.0.hole(at)?)
    }

    fn damage(error: io::Error) -> io::Result<Cause> {
        let error = error.downcast::<vfs::Error>()?;
        Ok(InImage::damage(error)?)
    }
}

impl File {
    pub(super) fn new(handle: Handle, path: &Path, options: &OpenOptions) -> Self {
        Self {
            handle,
            path: path.to_owned(),
            read: options.read,
            write: options.writes(),
            append: options.append,
            position: Mutex::new(0),
        }
    }

    /// The file system that the file is in.
    #[must_use]
    pub fn file_system(&self) -> &FileSystem {
        self.handle.fs()
    }

    /// Reads at a byte offset. Returns the number of bytes, which is smaller than `buf` only at the
    /// end of the file.
    ///
    /// # Errors
    /// The file was not opened for reading; the image is damaged; the device fails.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let action = "read";
        self.allowed(self.read, action)?;
        let fs = self.handle.vfs();
        self.on(action, fs.read(self.handle.ino(), offset, buf))
    }

    /// Reads at a byte offset until `buf` is full.
    ///
    /// # Errors
    /// The file was not opened for reading; [`io::ErrorKind::UnexpectedEof`]; the image is damaged.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(buf, offset)? == buf.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Passes the content to `sink` in pieces, each with its offset: up to an unreadable part, or
    /// also after it if `keep_going`. Returns the unreadable parts, which include every range
    /// without a piece.
    ///
    /// # Errors
    /// The file was not opened for reading, or is a directory; the first error of `sink`.
    pub fn read_around_damage(
        &self,
        keep_going: bool,
        sink: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<Option<Damage>> {
        // Refuses a file that is not regular.
        self.read_at(&mut [], 0)?;
        let size = self.metadata()?.len();
        let mut salvage = Salvage::new(keep_going, Stop::new());
        let content = Readable(InImage(self.handle.vfs(), self.handle.ino()));
        let mut piece = vec![0; PIECE];
        read_range(&content, 0..size, &mut piece, &mut salvage, sink)?;
        Ok(salvage.found())
    }

    /// Writes all of `data` at a byte offset; at the end if the file was opened to append.
    ///
    /// # Errors
    /// The file was not opened for writing; no space; the device fails.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_from(data, offset).map(drop)
    }

    fn write_from(&self, data: &[u8], offset: u64) -> Result<u64> {
        let action = "write";
        self.allowed(self.write, action)?;
        let mode = WriteMode {
            append: self.append,
            ..WriteMode::default()
        };
        let fs = self.handle.vfs();
        self.on(action, fs.write(self.handle.ino(), offset, data, mode))
    }

    /// Truncates the file, or extends it with a hole.
    ///
    /// # Errors
    /// The file was not opened for writing; the size is too large; the device fails.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.allowed(self.write, "truncate")?;
        let size = Some(size);
        let changes = SetAttr {
            size,
            ..SetAttr::default()
        };
        self.set("truncate", &changes)
    }

    /// Makes content and metadata durable.
    ///
    /// # Errors
    /// A write failed since the last call; the device fails.
    pub fn sync_all(&self) -> Result<()> {
        let synced = self.handle.vfs().fsync(self.handle.ino(), SyncKind::All);
        self.on("sync", synced)
    }

    /// Makes the content durable, and the metadata that is needed to read it.
    ///
    /// # Errors
    /// A write failed since the last call; the device fails.
    pub fn sync_data(&self) -> Result<()> {
        let synced = self.handle.vfs().fsync(self.handle.ino(), SyncKind::Data);
        self.on("sync", synced)
    }

    /// Metadata now.
    ///
    /// # Errors
    /// The file system was closed; the device fails.
    pub fn metadata(&self) -> Result<Metadata> {
        let attr = self.handle.vfs().getattr(self.handle.ino());
        self.on("stat", attr).map(Metadata::new)
    }

    /// Sets permission, set-id and sticky bits.
    ///
    /// # Errors
    /// The file is immutable; the file system was closed.
    pub fn set_permissions(&self, mode: u32) -> Result<()> {
        let changes = SetAttr {
            perm: Some(mode & 0o7777),
            ..SetAttr::default()
        };
        self.set("change the mode of", &changes)
    }

    /// Sets times.
    ///
    /// # Errors
    /// The file is immutable; the file system was closed.
    pub fn set_times(&self, times: Times) -> Result<()> {
        self.set("set the times of", &times.changes())
    }

    /// The first byte with data at or after `offset`; `None` if only a hole follows.
    ///
    /// # Errors
    /// The image is damaged; the device fails.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.find(SeekFrom::Data(offset))
    }

    /// The first byte of a hole at or after `offset`; the end of the file counts as a hole. `None`
    /// past the end.
    ///
    /// # Errors
    /// The image is damaged; the device fails.
    pub fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.find(SeekFrom::Hole(offset))
    }

    fn find(&self, from: SeekFrom) -> Result<Option<u64>> {
        match self.handle.vfs().seek(self.handle.ino(), from) {
            Ok(offset) => Ok(Some(offset)),
            Err(vfs::Error::NoSuchOffset) => Ok(None),
            Err(error) => self.on("seek in", Err(error)),
        }
    }

    /// Allocates space for a range of bytes. The file grows if the range ends past its end.
    ///
    /// # Errors
    /// No space; the image has no unwritten extents; the device fails.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        let keep_size = false;
        self.change_range(offset, len, AllocMode::Allocate { keep_size })
    }

    /// Frees the space of a range of bytes, which then reads as zeros.
    ///
    /// # Errors
    /// No space for metadata; the device fails.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        self.change_range(offset, len, AllocMode::PunchHole)
    }

    fn change_range(&self, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        let action = "allocate space in";
        self.allowed(self.write, action)?;
        let fs = self.handle.vfs();
        self.on(action, fs.fallocate(self.handle.ino(), offset, len, mode))
    }

    fn set(&self, action: &'static str, changes: &SetAttr) -> Result<()> {
        let set = self.handle.vfs().setattr(self.handle.ino(), changes);
        self.on(action, set).map(drop)
    }

    fn on<T>(&self, action: &'static str, result: vfs::Result<T>) -> Result<T> {
        result.map_err(Error::at(action, &self.path))
    }

    /// `EBADF` has no variant of its own: the operation is not permitted on this handle.
    fn allowed(&self, allowed: bool, action: &'static str) -> Result<()> {
        let result = if allowed {
            Ok(())
        } else {
            Err(vfs::Error::NotPermitted)
        };
        self.on(action, result)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("ino", &self.handle.ino().0)
            .finish_non_exhaustive()
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        let count = self.read_at(buf, *position)?;
        *position += count as u64;
        Ok(count)
    }
}

impl Write for &File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut position = self.position.lock();
        *position = self.write_from(data, *position)?;
        Ok(data.len())
    }

    /// Nothing is buffered in the handle. [`File::sync_all`] makes data durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let mut position = self.position.lock();
        let new = match to {
            io::SeekFrom::Start(offset) => Some(offset),
            io::SeekFrom::End(by) => self.metadata()?.len().checked_add_signed(by),
            io::SeekFrom::Current(by) => position.checked_add_signed(by),
        };
        *position = new.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(*position)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

impl Seek for File {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
