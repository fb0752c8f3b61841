//! A server of the test, which follows a script.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use sapwood_block::{NbdDevice, NbdOptions, Result};

pub(crate) const READ_ONLY: u16 = 1 << 1;
pub(crate) const FLUSH: u16 = 1 << 2;
pub(crate) const FUA: u16 = 1 << 3;
pub(crate) const TRIM: u16 = 1 << 5;
pub(crate) const ZEROES: u16 = 1 << 6;
pub(crate) const MULTI: u16 = 1 << 8;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_ZEROES: u16 = 6;
pub(crate) const CMD_STATUS: u16 = 7;

/// The number that a server here gives the context of a status.
pub(crate) const CONTEXT: u32 = 42;

/// A server on a Unix socket. Each connection has a thread.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(
        serve: impl Fn(UnixStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, serve) = (Arc::clone(&stop), Arc::new(serve));
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
                std::thread::spawn(move || {
                    let other = stream.try_clone().unwrap();
                    // A client that goes away ends its connection.
                    let _ = serve(stream);
                    let _ = other.shutdown(Shutdown::Both);
                });
            }
        });
        Self {
            dir,
            stop,
            accepting: Some(accepting),
        }
    }

    /// A server that negotiates `offer`, and answers requests by `answer`.
    pub(crate) fn answering(
        offer: Offer,
        answer: impl Fn(&mut UnixStream, &Asked) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |mut stream| {
            handshake(&mut stream, &offer)?;
            loop {
                let asked = next(&mut stream)?;
                if asked.command == CMD_DISC {
                    return Ok(());
                }
                answer(&mut stream, &asked)?;
            }
        })
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///test?socket={}", self.socket().display())
    }

    /// Opens the export with little patience.
    pub(crate) fn open(&self, change: impl FnOnce(&mut NbdOptions)) -> Result<NbdDevice> {
        let mut options = NbdOptions {
            patience: Duration::from_secs(20),
            ..NbdOptions::default()
        };
        change(&mut options);
        NbdDevice::open(&self.uri(), options)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(self.socket());
        if let Some(accepting) = self.accepting.take() {
            accepting.join().unwrap();
        }
    }
}

/// A server's description of its export.
#[derive(Clone)]
pub(crate) struct Offer {
    pub(crate) size: u64,
    pub(crate) flags: u16,
    pub(crate) structured: bool,
    /// The server reports allocated ranges.
    pub(crate) status: bool,
    /// Least and most bytes of a request.
    pub(crate) blocks: Option<(u32, u32)>,
}

impl Offer {
    pub(crate) fn new(size: u64, flags: u16) -> Self {
        Self {
            size,
            flags: flags | 1,
            structured: true,
            status: false,
            blocks: None,
        }
    }
}

fn bytes<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Greets as a server with the fixed newstyle handshake, and reads the client's flags.
pub(crate) fn greet(stream: &mut UnixStream) -> io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    bytes::<4>(stream).map(drop)
}

/// Reads an option; returns its number.
pub(crate) fn option(stream: &mut UnixStream) -> io::Result<u32> {
    assert_eq!(bytes(stream)?, *b"IHAVEOPT");
    let option = u32::from_be_bytes(bytes(stream)?);
    let mut data = vec![0; u32::from_be_bytes(bytes(stream)?) as usize];
    stream.read_exact(&mut data)?;
    Ok(option)
}

/// Answers an option.
pub(crate) fn answer(
    stream: &mut UnixStream,
    option: u32,
    kind: u32,
    data: &[u8],
) -> io::Result<()> {
    let mut out = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    stream.write_all(&out)
}

/// The information that ends `NBD_OPT_GO`, without its end.
pub(crate) fn export_info(offer: &Offer) -> Vec<u8> {
    let mut info = vec![0, 0];
    info.extend(offer.size.to_be_bytes());
    info.extend(offer.flags.to_be_bytes());
    info
}

pub(crate) fn handshake(stream: &mut UnixStream, offer: &Offer) -> io::Result<()> {
    greet(stream)?;
    loop {
        match option(stream)? {
            7 => break,
            8 if offer.structured => answer(stream, 8, 1, &[])?,
            10 if offer.status => {
                let context = [&CONTEXT.to_be_bytes()[..], b"base:allocation"].concat();
                answer(stream, 10, 4, &context)?;
                answer(stream, 10, 1, &[])?;
            }
            other => answer(stream, other, (1 << 31) | 1, &[])?,
        }
    }
    answer(stream, 7, 3, &export_info(offer))?;
    if let Some((least, most)) = offer.blocks {
        let mut info = vec![0, 3];
        for number in [least, least, most] {
            info.extend(number.to_be_bytes());
        }
        answer(stream, 7, 3, &info)?;
    }
    answer(stream, 7, 1, &[])
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn next(stream: &mut UnixStream) -> io::Result<Asked> {
    assert_eq!(u32::from_be_bytes(bytes(stream)?), 0x2560_9513);
    let mut asked = Asked {
        flags: u16::from_be_bytes(bytes(stream)?),
        command: u16::from_be_bytes(bytes(stream)?),
        cookie: u64::from_be_bytes(bytes(stream)?),
        offset: u64::from_be_bytes(bytes(stream)?),
        len: u32::from_be_bytes(bytes(stream)?),
        data: Vec::new(),
    };
    if asked.command == CMD_WRITE {
        asked.data = vec![0; asked.len as usize];
        stream.read_exact(&mut asked.data)?;
    }
    Ok(asked)
}

/// A simple reply.
pub(crate) fn simple(
    stream: &mut UnixStream,
    cookie: u64,
    error: u32,
    data: &[u8],
) -> io::Result<()> {
    let mut out = 0x6744_6698_u32.to_be_bytes().to_vec();
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(data);
    stream.write_all(&out)
}

/// A chunk of a structured reply. `len` is the length in its header.
pub(crate) fn chunk_of(
    stream: &mut UnixStream,
    (flags, kind, cookie): (u16, u16, u64),
    len: u32,
    data: &[u8],
) -> io::Result<()> {
    let mut out = 0x668e_33ef_u32.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(len.to_be_bytes());
    out.extend(data);
    stream.write_all(&out)
}

/// A chunk with data for `offset`.
pub(crate) fn data(
    stream: &mut UnixStream,
    done: bool,
    cookie: u64,
    offset: u64,
    data: &[u8],
) -> io::Result<()> {
    let payload = [&offset.to_be_bytes()[..], data].concat();
    let head = (u16::from(done), 1, cookie);
    chunk_of(stream, head, payload.len() as u32, &payload)
}

/// A status: bytes and flags of each extent.
pub(crate) fn status(
    stream: &mut UnixStream,
    done: bool,
    cookie: u64,
    context: u32,
    extents: &[(u32, u32)],
) -> io::Result<()> {
    let numbers = extents.iter().flat_map(|&(len, flags)| [len, flags]);
    let numbers = std::iter::once(context).chain(numbers);
    let payload: Vec<u8> = numbers.flat_map(u32::to_be_bytes).collect();
    let head = (u16::from(done), 5, cookie);
    chunk_of(stream, head, payload.len() as u32, &payload)
}

/// Success without data.
pub(crate) fn ok(stream: &mut UnixStream, cookie: u64) -> io::Result<()> {
    simple(stream, cookie, 0, &[])
}
