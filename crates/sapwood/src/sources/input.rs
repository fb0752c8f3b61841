//! An archive that is a source.
//!
//! # How it works
//! An archive is read once, and a thread decompresses it while its entries are used
//! ([`Input::with`]). If the files are counted or summarized before the image is made, the archive
//! is needed twice and is kept ([`Input::keep`]). A kept archive is a decompressed copy in an
//! unnamed file, or the regular file itself if that is not compressed. The need of its files is
//! counted during the copy.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{BLOCK, Need};
use crate::archive::{
    ArchiveError, CpioReader, Entries, Entry, Kept, Scratch, TarReader, Whiteouts, buffered,
    decompressed, is_plain,
};
use crate::progress::Stop;

/// The format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Tar,
    Cpio,
}

/// Bytes of content that are skipped at a time.
const PIECE: usize = 1 << 16;

/// See the module.
#[derive(Clone)]
pub(super) struct Input {
    format: Format,
    /// The name of the file.
    path: Option<PathBuf>,
    state: Arc<Mutex<State>>,
}

enum State {
    /// An unread stream.
    Stream(Box<dyn Read + Send>),
    /// The file at the path. Each use opens it.
    File,
    /// A copy, and the need of its files; `None` for a damaged archive.
    Kept(Kept, Option<Need>),
    /// A stream that is used up.
    Read,
}

/// The opened archive.
enum Opened {
    /// A regular file that is not compressed.
    Again(File),
    Once(Box<dyn Read + Send>),
}

type Result<T> = std::result::Result<T, ArchiveError>;

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => path.fmt(f),
            None => f.write_str("a stream"),
        }
    }
}

impl Input {
    fn new(format: Format, path: Option<PathBuf>, state: State) -> Self {
        let state = Arc::new(Mutex::new(state));
        Self {
            format,
            path,
            state,
        }
    }

    pub(super) fn file(format: Format, path: PathBuf) -> Self {
        Self::new(format, Some(path), State::File)
    }

    pub(super) fn stream(format: Format, stream: impl Read + Send + 'static) -> Self {
        Self::new(format, None, State::Stream(Box::new(stream)))
    }

    /// Reads an archive to its end and keeps it. A damaged entry is an error of a later use.
    ///
    /// # Errors
    /// The archive cannot be read or decompressed.
    pub(super) fn read_now(format: Format, archive: impl Read + Send) -> Result<Self> {
        let (kept, need) = decompressed(archive, |plain| {
            Kept::while_read(plain, &Scratch::default(), |plain| {
                Ok::<_, ArchiveError>(counted(format, plain, skip).ok())
            })
        })?;
        let need = need.map(|(need, ())| need);
        Ok(Self::new(format, None, State::Kept(kept, need)))
    }

    /// Treatment of entries with the name of a whiteout.
    pub(super) fn whiteouts(&self) -> Whiteouts {
        match self.format {
            Format::Tar => Whiteouts::Refused,
            Format::Cpio => Whiteouts::Files,
        }
    }

    /// Whether it is an unread stream or a pipe.
    pub(super) fn is_read_once(&self) -> bool {
        match (&*self.state.lock(), &self.path) {
            (State::File, Some(path)) => path.metadata().is_ok_and(|found| !found.is_file()),
            (State::Stream(_), _) => true,
            _ => false,
        }
    }

    /// Passes the entries to `work`. A stream is used up afterwards.
    ///
    /// # Errors
    /// The archive cannot be read; the error of `work`.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut dyn Entries) -> Result<T>) -> Result<T> {
        let format = self.format;
        let mut state = self.state.lock();
        self.named(match &*state {
            State::Kept(kept, _) => read(format, &mut kept.reader(), work),
            _ => self.open(&mut state).and_then(|opened| match opened {
                Opened::Again(mut file) => read(format, &mut file, work),
                Opened::Once(reader) => decompressed(reader, |plain| read(format, plain, work)),
            }),
        })
    }

    /// Passes the entries to `work`, and keeps the archive for another use. Returns the need of its
    /// files, too.
    ///
    /// # Errors
    /// The archive cannot be read; the copy cannot be written; the error of `work`.
    pub(super) fn keep<T>(
        &self,
        scratch: &Scratch,
        work: impl FnOnce(&mut dyn Entries) -> Result<T>,
    ) -> Result<(Need, T)> {
        let format = self.format;
        let mut state = self.state.lock();
        let worked = match &*state {
            State::Kept(kept, _) => counted(format, &mut kept.reader(), work),
            _ => self.open(&mut state).and_then(|opened| match opened {
                Opened::Again(mut file) => counted(format, &mut file, work),
                Opened::Once(reader) => {
                    let (kept, worked) = decompressed(reader, |plain| {
                        Kept::while_read(plain, scratch, |plain| counted(format, plain, work))
                    })?;
                    *state = State::Kept(kept, Some(worked.0));
                    Ok(worked)
                }
            }),
        };
        self.named(worked)
    }

    /// The need of its files. The archive is kept.
    ///
    /// # Errors
    /// The archive cannot be read; the copy cannot be written.
    pub(super) fn need(&self, scratch: &Scratch, stop: &Stop) -> Result<Need> {
        if let State::Kept(_, Some(need)) = &*self.state.lock() {
            return Ok(*need);
        }
        let skip = |entries: &mut dyn Entries| skip(&mut Stopped::new(entries, stop));
        self.keep(scratch, skip).map(|(need, ())| need)
    }

    fn open(&self, state: &mut State) -> Result<Opened> {
        let Some(path) = &self.path else {
            return match std::mem::replace(state, State::Read) {
                State::Stream(stream) => Ok(Opened::Once(stream)),
                _ => Err(ArchiveError::Read(io::ErrorKind::UnexpectedEof.into())),
            };
        };
        let mut file = File::open(path)?;
        let mut start = Vec::new();
        file.by_ref().take(6).read_to_end(&mut start)?;
        if is_plain(&start) && file.metadata()?.is_file() {
            file.rewind()?;
            return Ok(Opened::Again(file));
        }
        Ok(Opened::Once(Box::new(Cursor::new(start).chain(file))))
    }

    fn named<T>(&self, result: Result<T>) -> Result<T> {
        match &self.path {
            Some(path) => result.map_err(|error| error.of(path)),
            None => result,
        }
    }
}

/// Passes the entries of a decompressed archive to `work`.
fn read<T>(
    format: Format,
    plain: &mut dyn Read,
    work: impl FnOnce(&mut dyn Entries) -> Result<T>,
) -> Result<T> {
    let plain = buffered(plain);
    match format {
        Format::Tar => work(&mut TarReader::new(plain)),
        Format::Cpio => work(&mut CpioReader::new(plain)),
    }
}

/// Passes the entries to `work` like [`read`], and counts the need of their files.
fn counted<T>(
    format: Format,
    plain: &mut dyn Read,
    work: impl FnOnce(&mut dyn Entries) -> Result<T>,
) -> Result<(Need, T)> {
    let mut need = Need::default();
    let mut count = |more| {
        need.add(more);
        Ok(())
    };
    let worked = read(format, plain, |entries| {
        work(&mut Noted::new(entries, &mut count))
    })?;
    Ok((need, worked))
}

/// Reads all entries.
pub(super) fn skip(entries: &mut dyn Entries) -> Result<()> {
    while entries.next()?.is_some() {}
    Ok(())
}

/// Entries that end with [`ArchiveError::Stopped`] after a request.
pub(super) struct Stopped<'e> {
    inner: &'e mut dyn Entries,
    stop: &'e Stop,
    /// Content of the last entry that was not read.
    rest: bool,
    piece: Vec<u8>,
}

impl<'e> Stopped<'e> {
    pub(super) fn new(inner: &'e mut dyn Entries, stop: &'e Stop) -> Self {
        Self {
            inner,
            stop,
            rest: false,
            piece: vec![0; PIECE],
        }
    }

    /// Reads the rest of the content of the last entry. The inner reader would skip it in one step
    /// that nothing ends.
    fn skip(&mut self) -> Result<()> {
        while self.rest {
            self.check()?;
            self.rest = self.inner.read(&mut self.piece)?.1 > 0;
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if self.stop.is_stopped() {
            Err(ArchiveError::Stopped)
        } else {
            Ok(())
        }
    }
}

impl Entries for Stopped<'_> {
    fn next(&mut self) -> Result<Option<Entry>> {
        self.skip()?;
        self.check()?;
        let entry = self.inner.next()?;
        self.rest = entry.as_ref().is_some_and(Entry::has_content);
        Ok(entry)
    }

    fn read(&mut self, piece: &mut [u8]) -> Result<(u64, usize)> {
        self.check()?;
        let read = self.inner.read(piece)?;
        self.rest = read.1 > 0;
        Ok(read)
    }

    fn cut(&self) -> Option<u64> {
        self.inner.cut()
    }

    fn allocated(&self, entry: &Entry, block: u64) -> u64 {
        self.inner.allocated(entry, block)
    }
}

/// Receives the need of an entry.
type Note<'n> = dyn FnMut(Need) -> Result<()> + 'n;

/// Entries that pass their need to a [`Note`] before they are used.
pub(super) struct Noted<'e, 'n> {
    inner: &'e mut dyn Entries,
    note: &'e mut Note<'n>,
}

impl<'e, 'n> Noted<'e, 'n> {
    pub(super) fn new(inner: &'e mut dyn Entries, note: &'e mut Note<'n>) -> Self {
        Self { inner, note }
    }
}

impl Entries for Noted<'_, '_> {
    fn next(&mut self) -> Result<Option<Entry>> {
        let entry = self.inner.next()?;
        if let Some(entry) = &entry {
            let mut need = Need {
                entries: 1,
                bytes: 0,
            };
            need.add_bytes(self.inner.allocated(entry, BLOCK));
            (self.note)(need)?;
        }
        Ok(entry)
    }

    fn read(&mut self, piece: &mut [u8]) -> Result<(u64, usize)> {
        self.inner.read(piece)
    }

    fn cut(&self) -> Option<u64> {
        self.inner.cut()
    }

    fn allocated(&self, entry: &Entry, block: u64) -> u64 {
        self.inner.allocated(entry, block)
    }
}
