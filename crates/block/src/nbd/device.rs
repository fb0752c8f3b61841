//! The device: pieces of requests, lost connections, repeated writes.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::connection::{Failure, Request};
use super::handshake::Export;
use super::options::NbdOptions;
use super::session::Session;
use super::status::WORTH_ASKING;
use super::unflushed::{Content, Unflushed};
use super::uri::NbdUri;
use super::watch::Watch;
use super::wire::*;
use crate::error::{check_range, check_writable};
use crate::host;
use crate::{Device, Error, NbdError, SECTOR_SIZE};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Bytes of a piece of a request.
pub(crate) const PIECE: u32 = 256 << 10;
/// The most bytes of one trim or of one write of zeros.
pub(super) const MOST_WITHOUT_DATA: u64 = 1 << 30;
/// Zeros from this length on are written without their bytes.
const ZEROS: usize = 4096;
/// Times that a request is sent.
const TRIES: u32 = 6;
/// First and longest time between two attempts to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Writes that a new connection must repeat.
#[derive(Debug, Default)]
struct Log {
    /// Generation of the session whose writes are recorded.
    generation: u64,
    unflushed: Unflushed,
}

#[derive(Debug)]
struct State {
    session: Arc<Session>,
    failed: Option<Arc<NbdError>>,
}

/// An export of an NBD server. The module lists the NBD commands of each request.
#[derive(Debug)]
pub struct NbdDevice {
    name: String,
    uri: NbdUri,
    options: NbdOptions,
    export: Export,
    state: Mutex<State>,
    log: Mutex<Log>,
    watch: Mutex<Watch>,
    /// Held by the writer that flushes because the log is full.
    full: Mutex<()>,
    /// The error of a flush that a writer began. No flush succeeds after it.
    flush_failed: Mutex<Option<i32>>,
    /// Held exclusively by a write of a part of a block.
    blocks: RwLock<()>,
}

impl NbdDevice {
    /// Connects to an export.
    ///
    /// # Errors
    /// [`Error::Nbd`]: no connection, a refusal, or a writable open of a server without flush.
    pub fn open(uri: &str, options: NbdOptions) -> Result<Self> {
        let name = uri.to_owned();
        let failed = |why: NbdError| Error::nbd(&name, Arc::new(why));
        let parsed = NbdUri::parse(uri).map_err(failed)?;
        let (session, export) =
            Session::open(&parsed, options.timeout, options.connections, 1).map_err(failed)?;
        let writable = !options.read_only && !export.has(READ_ONLY);
        if writable && !export.has(SEND_FLUSH) && !options.without_flush && !parsed.without_flush {
            session.close();
            return Err(failed(NbdError::NoFlush));
        }
        Ok(Self {
            name,
            uri: parsed,
            options,
            export,
            state: Mutex::new(State {
                session: Arc::new(session),
                failed: None,
            }),
            log: Mutex::new(Log {
                generation: 1,
                ..Log::default()
            }),
            watch: Mutex::default(),
            full: Mutex::new(()),
            flush_failed: Mutex::new(None),
            blocks: RwLock::new(()),
        })
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.lock().session.connections.len()
    }

    fn least(&self) -> u64 {
        self.export.least.into()
    }

    /// Bytes of a piece of a request with data.
    fn piece(&self) -> usize {
        PIECE.min(self.export.most) as usize
    }

    fn session(&self) -> Result<Arc<Session>> {
        let state = self.state.lock();
        match &state.failed {
            Some(why) => Err(Error::nbd(&self.name, Arc::clone(why))),
            None => Ok(Arc::clone(&state.session)),
        }
    }

    /// Performs a request, and repeats it after a lost connection. `work` returns `None` if its
    /// session ended before the outcome was recorded.
    pub(super) fn request<T>(
        &self,
        op: &'static str,
        offset: u64,
        len: u64,
        mut work: impl FnMut(&Session) -> Result<Option<T>, Failure>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let session = self.session()?;
            let why = match work(&session) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => continue,
                Err(Failure::Server(host::SHUT_DOWN)) => {
                    let ending = io::Error::from_raw_os_error(host::SHUT_DOWN);
                    Arc::new(NbdError::Lost(ending))
                }
                Err(Failure::Server(errno)) => {
                    let source = io::Error::from_raw_os_error(errno);
                    return Err(Error::io(&self.name, op, offset, len, source));
                }
                Err(Failure::Dead(why)) => why,
            };
            tries += 1;
            self.recover(session.generation, why, tries >= TRIES)?;
        }
    }

    /// Replaces the session `generation`, unless another thread has replaced it.
    fn recover(&self, generation: u64, why: Arc<NbdError>, last: bool) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(failed) = &state.failed {
            return Err(Error::nbd(&self.name, Arc::clone(failed)));
        }
        if state.session.generation != generation {
            return Ok(());
        }
        state.session.close();
        let outcome = match why.is_transient() {
            true if last => Err(Arc::new(NbdError::GivenUp(why.to_string(), 0))),
            true => self.reconnect(generation + 1, &why).map_err(Arc::new),
            false => Err(why),
        };
        match outcome {
            Ok(session) => {
                log::warn!("{}: connected again", self.name);
                state.session = Arc::new(session);
                Ok(())
            }
            Err(failed) => {
                log::error!("{}: {failed}", self.name);
                state.failed = Some(Arc::clone(&failed));
                Err(Error::nbd(&self.name, failed))
            }
        }
    }

    /// A new session, after repeating the writes since the last flush.
    fn reconnect(&self, generation: u64, why: &NbdError) -> Result<Session, NbdError> {
        log::warn!("{}: {why}", self.name);
        let since = Instant::now();
        let mut pause = PAUSE.0;
        let mut generation = generation;
        loop {
            let outcome = self.try_reconnect(generation);
            match outcome {
                Err(why) if why.is_transient() => {
                    if since.elapsed() >= self.options.patience {
                        let seconds = self.options.patience.as_secs();
                        return Err(NbdError::GivenUp(why.to_string(), seconds));
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE.1);
                    generation += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn try_reconnect(&self, generation: u64) -> Result<Session, NbdError> {
        let NbdOptions {
            timeout,
            connections,
            ..
        } = self.options;
        let (session, export) = Session::open(&self.uri, timeout, connections, generation)?;
        let outcome = self
            .compare(&export)
            .and_then(|()| self.find_other_writers(&session))
            .and_then(|()| self.replay(&session));
        if let Err(why) = outcome {
            session.close();
            return Err(why);
        }
        Ok(session)
    }

    fn compare(&self, export: &Export) -> Result<(), NbdError> {
        let changed = NbdError::Changed;
        if export.size != self.export.size {
            return Err(changed("its size"));
        }
        if export.least != self.export.least || export.most != self.export.most {
            return Err(changed("its block sizes"));
        }
        if export.flags != self.export.flags {
            return Err(changed("what the server can do"));
        }
        Ok(())
    }

    /// Fails if a watched range has a content that this device did not write.
    fn find_other_writers(&self, session: &Session) -> Result<(), NbdError> {
        let ranges = self.watch.lock().ranges();
        for (offset, len) in ranges {
            let (start, blocks) = self.around(offset, len);
            let mut found = vec![0; blocks as usize];
            self.receive(session, start, &mut found)
                .map_err(|failure| match failure {
                    Failure::Server(errno) => NbdError::Lost(io::Error::from_raw_os_error(errno)),
                    Failure::Dead(why) => NbdError::Lost(io::Error::other(why.to_string())),
                })?;
            let skip = (offset - start) as usize;
            let found = found.get(skip..skip + len as usize).unwrap_or_default();
            if !self.watch.lock().is_own(offset, found) {
                return Err(NbdError::Overwritten(offset));
            }
        }
        Ok(())
    }

    /// Repeats unflushed writes. Later writes of older sessions are not recorded: their callers
    /// repeat them.
    fn replay(&self, session: &Session) -> Result<(), NbdError> {
        let ranges = {
            let mut log = self.log.lock();
            log.generation = session.generation;
            log.unflushed.all()
        };
        for (offset, content) in ranges {
            let written = match &content {
                Content::Bytes(bytes) => self.send_write(session, offset, bytes, 0),
                Content::Zeros(len) => self.send_zeros(session, offset, *len, 0),
            };
            written.map_err(|failure| match failure {
                Failure::Server(errno) => NbdError::Replay(io::Error::from_raw_os_error(errno)),
                Failure::Dead(why) if why.is_transient() => {
                    NbdError::Lost(io::Error::other(why.to_string()))
                }
                Failure::Dead(why) => NbdError::Replay(io::Error::other(why.to_string())),
            })?;
        }
        Ok(())
    }

    fn send_write(
        &self,
        session: &Session,
        offset: u64,
        bytes: &[u8],
        flags: u16,
    ) -> Result<(), Failure> {
        let pieces = bytes.chunks(self.piece());
        let requests = pieces.zip((offset..).step_by(self.piece()));
        let requests = requests.map(|(payload, offset)| Request {
            command: CMD_WRITE,
            flags,
            offset,
            len: payload.len() as u32,
            payload,
        });
        session.all(requests, |_, _| {})
    }

    fn send_zeros(
        &self,
        session: &Session,
        offset: u64,
        len: u64,
        flags: u16,
    ) -> Result<(), Failure> {
        session.all(
            without_data(CMD_WRITE_ZEROES, flags, offset, len),
            |_, _| {},
        )
    }

    /// Reads whole blocks.
    fn read_blocks(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.request("read", offset, buf.len() as u64, |session| {
            self.receive(session, offset, buf)?;
            Ok(Some(()))
        })
    }

    /// Reads whole blocks through a session.
    fn receive(&self, session: &Session, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        let piece = self.piece();
        let starts = (0..buf.len()).step_by(piece);
        let lens = starts.map(|start| (start, piece.min(buf.len() - start)));
        let requests: Vec<_> = lens
            .map(|(start, len)| Request {
                command: CMD_READ,
                flags: 0,
                offset: offset + start as u64,
                len: len as u32,
                payload: &[],
            })
            .collect();
        session.all(requests.into_iter(), |number, data| {
            let start = number * piece;
            if let Some(place) = buf.get_mut(start..start + data.len()) {
                place.copy_from_slice(&data);
            }
        })
    }

    /// Writes whole blocks; durable on return if `through`.
    fn write_blocks(&self, offset: u64, buf: &[u8], through: bool) -> Result<()> {
        let fua = through && self.export.has(SEND_FUA);
        let flags = if fua { CMD_FLAG_FUA } else { 0 };
        let zeros = self.export.has(SEND_WRITE_ZEROES)
            && buf.len() >= ZEROS
            && buf.iter().all(|byte| *byte == 0);
        let len = buf.len() as u64;
        let op = if through { "FUA write" } else { "write" };
        // Without a flush the list would grow for ever.
        let kept = !fua && self.export.has(SEND_FLUSH);
        self.watch.lock().wrote(offset, buf);
        self.request(op, offset, len, |session| {
            if zeros {
                self.send_zeros(session, offset, len, flags)?
            } else {
                self.send_write(session, offset, buf, flags)?
            }
            let content = || {
                if zeros {
                    Content::Zeros(len)
                } else {
                    Content::Bytes(buf.into())
                }
            };
            let mut log = self.log.lock();
            if log.generation != session.generation {
                return Ok(None);
            }
            if kept {
                log.unflushed.insert(offset, content())
            } else {
                log.unflushed.remove(offset, len)
            }
            Ok(Some(()))
        })?;
        if through && !fua {
            self.flush_server()?;
        }
        self.keep_bound()
    }

    /// Flushes if the list of unflushed writes is too long.
    fn keep_bound(&self) -> Result<()> {
        if !self.log.lock().unflushed.is_full() {
            return Ok(());
        }
        let _turn = self.full.lock();
        if !self.log.lock().unflushed.is_full() {
            return Ok(());
        }
        self.flush_server().inspect_err(|error| {
            let errno = match error {
                Error::Io { source, .. } => source.raw_os_error(),
                _ => None,
            };
            *self.flush_failed.lock() = Some(errno.unwrap_or(libc::EIO));
        })
    }

    fn flush_server(&self) -> Result<()> {
        if !self.export.has(SEND_FLUSH) {
            return Ok(());
        }
        self.request("flush", 0, 0, |session| {
            let last = self.log.lock().unflushed.last();
            let request = Request {
                command: CMD_FLUSH,
                flags: 0,
                offset: 0,
                len: 0,
                payload: &[],
            };
            session.all(std::iter::once(request), |_, _| {})?;
            let mut log = self.log.lock();
            if log.generation != session.generation {
                return Ok(None);
            }
            log.unflushed.flushed(last);
            Ok(Some(()))
        })
    }

    /// Trims whole blocks.
    pub(super) fn trim(&self, start: u64, len: u64) -> Result<()> {
        self.request("discard", start, len, |session| {
            self.log.lock().unflushed.remove(start, len);
            self.watch.lock().forget(start, len);
            session.all(without_data(CMD_TRIM, 0, start, len), |_, _| {})?;
            Ok(Some(()))
        })
    }

    /// The whole blocks that contain a range: start and length in bytes.
    fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let least = self.least();
        let start = offset - offset % least;
        let end = (offset + len).next_multiple_of(least);
        (start, end - start)
    }

    fn write(&self, offset: u64, buf: &[u8], through: bool) -> Result<()> {
        check_writable(&self.name, self.read_only())?;
        let len = buf.len() as u64;
        check_range(&self.name, self.export.size, offset, len)?;
        if buf.is_empty() {
            return Ok(());
        }
        let (start, blocks) = self.around(offset, len);
        if (start, blocks) == (offset, len) {
            let _shared = (self.least() > 1).then(|| self.blocks.read());
            return self.write_blocks(offset, buf, through);
        }
        let _alone = self.blocks.write();
        let mut whole = vec![0; blocks as usize];
        self.read_blocks(start, &mut whole)?;
        let skip = (offset - start) as usize;
        whole[skip..skip + buf.len()].copy_from_slice(buf);
        self.write_blocks(start, &whole, through)
    }
}

/// Requests without data for a range.
pub(super) fn without_data(
    command: u16,
    flags: u16,
    offset: u64,
    len: u64,
) -> impl Iterator<Item = Request<'static>> {
    let starts = (0..len).step_by(MOST_WITHOUT_DATA as usize);
    starts.map(move |start| Request {
        command,
        flags,
        offset: offset + start,
        len: (len - start).min(MOST_WITHOUT_DATA) as u32,
        payload: &[],
    })
}

impl Device for NbdDevice {
    fn size(&self) -> u64 {
        self.export.size
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read_only(&self) -> bool {
        self.options.read_only || self.export.has(READ_ONLY)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        check_range(&self.name, self.export.size, offset, len)?;
        let (start, blocks) = self.around(offset, len);
        if (start, blocks) == (offset, len) {
            return self.read_blocks(offset, buf);
        }
        let mut whole = vec![0; blocks as usize];
        self.read_blocks(start, &mut whole)?;
        let skip = (offset - start) as usize;
        buf.copy_from_slice(&whole[skip..skip + buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write(offset, buf, false)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        match bufs {
            [one] => self.write(offset, one, false),
            several => self.write(offset, &several.concat(), false),
        }
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write(offset, buf, true)
    }

    fn flush(&self) -> Result<()> {
        if self.read_only() {
            return Ok(());
        }
        self.flush_server()?;
        match *self.flush_failed.lock() {
            None => Ok(()),
            Some(errno) => {
                let source = io::Error::from_raw_os_error(errno);
                Err(Error::io(&self.name, "flush", 0, 0, source))
            }
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_writable(&self.name, self.read_only())?;
        check_range(&self.name, self.export.size, offset, len)?;
        let start = offset.next_multiple_of(self.least());
        let end = offset + len - (offset + len) % self.least();
        if !self.export.has(SEND_TRIM) || start >= end {
            return Ok(());
        }
        match end - start {
            len if self.export.status && len >= WORTH_ASKING => self.discard_allocated(start, len),
            len => self.trim(start, len),
        }
    }

    fn watch(&self, offset: u64, len: u64) -> Result<()> {
        check_range(&self.name, self.export.size, offset, len)?;
        if self.read_only() || len == 0 {
            return Ok(());
        }
        let start = offset - offset % SECTOR_SIZE;
        let end = (offset + len).next_multiple_of(SECTOR_SIZE);
        // A last part of a sector is not watched.
        let end = end.min(self.export.size - self.export.size % SECTOR_SIZE);
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        self.read_at(start, &mut bytes)?;
        self.watch.lock().add(start, &bytes);
        Ok(())
    }

    fn release_lock(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.session.close();
        let ended = NbdError::Lost(io::ErrorKind::NotConnected.into());
        state.failed.get_or_insert(Arc::new(ended));
        Ok(())
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.state.lock().session.close();
    }
}
