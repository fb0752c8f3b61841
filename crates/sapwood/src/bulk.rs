//! Many files at once, put into a mounted image by the daemon that serves the mount.
//!
//! # How it works
//! Creating a file in a mount takes several requests from the program to the kernel, and from the
//! kernel to the daemon. A client of this module sends the files to the daemon through a socket
//! ([`sapwood_fuse::bulk`]), and the daemon makes them in process, with the rights of the client.
//! The client reads its archive or directory itself, with its own rights. The daemon, which may be
//! confined and run as another user, parses no archive.
//!
//! - Client to daemon ([`entries`]): whether it copies (1 byte), its umask (4 bytes), then entries,
//!   and a mark of the end. A client that ends without it has failed, or was interrupted: then the
//!   daemon stops after the last whole file.
//! - Daemon to client ([`message`]): names that it left out, its progress, and the result.
//!
//! The name of a client's socket contains the version of this protocol
//! ([`sapwood_fuse::bulk::connect`]). Numbers are in the byte order of the machine, which both
//! share.

mod daemon;
mod entries;
pub(crate) mod frames;
mod message;
pub(crate) mod upkeep;

use std::io::{self, BufWriter, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use crate::archive::{Entry, PIECE};
pub(crate) use daemon::Daemon;
pub(crate) use entries::Content;
pub(crate) use message::{Message, Reason};

/// Bytes that are sent or received at once.
const BUFFER: usize = 256 << 10;
/// `f_type` of FUSE.
const FUSE: u64 = 0x6573_5546;

/// The work that a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Entries of an archive.
    Extract,
    /// A copy that keeps the metadata that the client may keep.
    Copy,
}

/// Sends entries to the daemon of a mount.
pub(crate) struct Sender {
    socket: BufWriter<UnixStream>,
    scratch: Vec<u8>,
}

/// Receives the messages of the daemon.
pub(crate) struct Receiver(UnixStream);

/// Connects to the daemon of the mount that the directory `dir` is in. `None` if it is in none, or
/// if its daemon does not do the work of this process: then system calls do it.
pub(crate) fn connect(dir: BorrowedFd<'_>, work: Work, umask: u32) -> Option<(Sender, Receiver)> {
    let found = rustix::fs::fstatfs(dir).ok()?;
    if u64::try_from(found.f_type) != Ok(FUSE) {
        return None;
    }
    let connected = sapwood_fuse::bulk::connect(dir).and_then(|socket| {
        let receiver = Receiver(socket.try_clone()?);
        let mut socket = BufWriter::with_capacity(BUFFER, socket);
        socket.write_all(&[u8::from(work == Work::Copy)])?;
        socket.write_all(&umask.to_ne_bytes())?;
        let scratch = Vec::new();
        Ok((Sender { socket, scratch }, receiver))
    });
    connected
        .inspect_err(|error| log::debug!("without the daemon's help: {error}"))
        .ok()
}

impl Sender {
    /// Sends an entry; the content of a file with a size follows.
    ///
    /// # Errors
    /// I/O errors of the connection; `InvalidInput` for an entry that is too long.
    pub(crate) fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        self.scratch.clear();
        entries::encode(entry, &mut self.scratch)?;
        self.socket.write_all(&self.scratch)
    }

    /// Sends a piece of a file.
    ///
    /// # Errors
    /// I/O errors of the connection.
    pub(crate) fn content(&mut self, mut at: u64, data: &[u8]) -> io::Result<()> {
        for piece in data.chunks(PIECE) {
            let header = entries::piece(at, piece.len());
            self.socket.write_all(&header)?;
            self.socket.write_all(piece)?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Ends the content of a file.
    ///
    /// # Errors
    /// I/O errors of the connection.
    pub(crate) fn end_content(&mut self, content: Content) -> io::Result<()> {
        self.socket.write_all(&entries::end_of_content(content))
    }

    /// Ends the work. Without this mark the daemon stops after the last whole file.
    ///
    /// # Errors
    /// I/O errors of the connection.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.socket.write_all(&entries::END)?;
        self.socket.flush()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Without the mark of the end the daemon sees that the work is not complete.
        let _ = self.socket.get_ref().shutdown(Shutdown::Write);
    }
}

impl Receiver {
    /// The next message.
    ///
    /// # Errors
    /// I/O errors of the connection; `UnexpectedEof` if the daemon has ended.
    pub(crate) fn next(&mut self) -> io::Result<Message> {
        Message::receive(&mut self.0)
    }
}
