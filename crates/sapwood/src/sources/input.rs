//! Where an archive is read from.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::archive::{ArchiveError, Entries, cpio_entries, tar_entries};

/// Where an archive is read from.
#[derive(Clone)]
pub(super) enum Input {
    File(PathBuf),
    /// A stream, which is copied to a file when it has to be read twice.
    Stream(Arc<Mutex<Stream>>),
}

pub(super) enum Stream {
    Unread(Box<dyn Read + Send>),
    Copied(File),
    Read,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.fmt(f),
            Self::Stream(_) => f.write_str("a stream"),
        }
    }
}

impl Input {
    pub(super) fn stream(stream: impl Read + Send + 'static) -> Self {
        let stream = Stream::Unread(Box::new(stream));
        Self::Stream(Arc::new(Mutex::new(stream)))
    }

    /// Whether it is a stream that nothing was read from, or a pipe.
    pub(super) fn is_read_once(&self) -> bool {
        match self {
            Self::File(path) => path.metadata().is_ok_and(|found| !found.is_file()),
            Self::Stream(stream) => matches!(&*stream.lock(), Stream::Unread(_)),
        }
    }

    /// Makes sure that it can be read several times.
    pub(super) fn keep(&self) -> Result<(), ArchiveError> {
        let Self::Stream(stream) = self else {
            return Ok(());
        };
        let mut stream = stream.lock();
        if let Stream::Unread(reader) = &mut *stream {
            let mut file = tempfile::tempfile()?;
            io::copy(reader, &mut file)?;
            *stream = Stream::Copied(file);
        }
        Ok(())
    }

    /// Hands the entries of the archive, a tar or a cpio, to `work`.
    pub(super) fn with(
        &self,
        tar: bool,
        work: impl FnOnce(&mut dyn Entries) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let read = |reader: &mut dyn Read| {
            if tar {
                work(&mut *tar_entries(reader)?)
            } else {
                work(&mut *cpio_entries(reader)?)
            }
        };
        match self {
            Self::File(path) => {
                let opened = File::open(path).map_err(ArchiveError::Read);
                let read = opened.and_then(|mut file| read(&mut file));
                read.map_err(|error| error.of(path))
            }
            Self::Stream(stream) => match &mut *stream.lock() {
                Stream::Copied(file) => {
                    file.rewind()?;
                    read(file)
                }
                Stream::Read => Err(ArchiveError::Read(io::ErrorKind::UnexpectedEof.into())),
                unread @ Stream::Unread(_) => match std::mem::replace(unread, Stream::Read) {
                    Stream::Unread(mut reader) => read(&mut reader),
                    _ => Ok(()),
                },
            },
        }
    }
}
