//! Requests of a confined daemon to a process outside its sandbox.
//!
//! # How it works
//!
//! A confined daemon ([`sandbox`](crate::sandbox)) can neither mount nor unmount nor connect to a
//! socket. The *broker* is a process that the daemon starts before it opens the image. The broker
//! knows the directory and the options of one mount from its own command line. It reads nothing of
//! the image, and serves only the requests in the table
//! ([`broker_process`](crate::broker_process)).
//!
//! The two share two sockets that keep the bounds of messages. A mount or unmount may take long, so
//! the short requests have their own socket.
//!
//! | socket | request | answer |
//! |---|---|---|
//! | mounts | `M`, read-only (1) | `0`, type (1), warnings; with the open `/dev/fuse` |
//! | mounts | `U`, `B`, `A`: unmount, detach while busy, abort | `0` |
//! | connections | `E`, name of a socket that waits for the end of the mount | `0`; with a socket |
//! | connections | `L`: the system's log | `0`; with a socket |
//! | connections | `K`, process (4), name of a socket of bulk work | `0`, `S`, `O` or `U`; with a socket |
//!
//! With a client of bulk work the broker sends the relation of the client's user namespace to its
//! own: the same, another, or unknown. A confined daemon may not examine a process's namespace.
//!
//! An answer that begins with another byte is an error: of a mount, its message; of an unmount, a
//! kind (1) and its message; of a connection, an errno (4).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::privileges::UserNamespace;

pub(crate) const MOUNT: u8 = b'M';
pub(crate) const UNMOUNT: u8 = b'U';
pub(crate) const DETACH_BUSY: u8 = b'B';
pub(crate) const ABORT: u8 = b'A';
pub(crate) const END: u8 = b'E';
pub(crate) const LOG: u8 = b'L';
pub(crate) const BULK: u8 = b'K';
/// User namespaces.
pub(crate) const SAME: u8 = b'S';
pub(crate) const OTHER: u8 = b'O';
pub(crate) const UNKNOWN: u8 = b'U';

/// First byte of an answer.
pub(crate) const DONE: u8 = 0;
pub(crate) const REFUSED: u8 = 1;

/// Longest message in bytes.
const LONGEST: usize = 4096;

/// The daemon's ends of the sockets. Clones share them.
#[derive(Debug, Clone)]
pub struct Broker {
    mounts: Arc<Mutex<OwnedFd>>,
    connections: Arc<Mutex<OwnedFd>>,
}

/// The broker's ends of the sockets.
#[derive(Debug)]
pub struct BrokerSockets {
    /// Requests to mount and unmount.
    pub mounts: OwnedFd,
    /// Requests for connections.
    pub connections: OwnedFd,
}

/// Makes the sockets.
///
/// # Errors
/// Errors of system calls.
pub fn sockets() -> io::Result<(Broker, BrokerSockets)> {
    let pair = || {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)
    };
    let (mounts, its_mounts) = pair()?;
    let (connections, its_connections) = pair()?;
    let ours = Broker {
        mounts: Arc::new(Mutex::new(mounts)),
        connections: Arc::new(Mutex::new(connections)),
    };
    let its = BrokerSockets {
        mounts: its_mounts,
        connections: its_connections,
    };
    Ok((ours, its))
}

impl Broker {
    /// Has the broker carry out a request about the mount.
    ///
    /// # Errors
    /// The broker is gone.
    pub(crate) fn ask(&self, request: &[u8]) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        exchange(&self.mounts.lock(), request)
    }

    /// A socket that is connected to the process that waits for the end of the mount under `name`.
    ///
    /// # Errors
    /// The broker is gone; no process waits under that name.
    pub(crate) fn connect_to_waiter(&self, name: &[u8]) -> io::Result<UnixDatagram> {
        let mut request = vec![END];
        request.extend_from_slice(name);
        self.connect(&request).map(|(socket, _)| socket.into())
    }

    /// A socket that is connected to the client of bulk work that listens under `name`, and the
    /// user namespace of the process `pid`.
    ///
    /// # Errors
    /// The broker is gone; no process listens under that name.
    pub(crate) fn connect_to_client(
        &self,
        name: &[u8],
        pid: u32,
    ) -> io::Result<(UnixStream, UserNamespace)> {
        let mut request = vec![BULK];
        request.extend_from_slice(&pid.to_ne_bytes());
        request.extend_from_slice(name);
        let (socket, namespace) = self.connect(&request)?;
        let namespace = match namespace.as_slice() {
            [SAME] => UserNamespace::Same,
            [OTHER] => UserNamespace::Other,
            _ => UserNamespace::Unknown,
        };
        Ok((socket.into(), namespace))
    }

    /// A socket that is connected to the system's log, and does not block.
    ///
    /// # Errors
    /// The broker is gone; no program takes the log.
    pub fn connect_to_log(&self) -> io::Result<UnixDatagram> {
        self.connect(&[LOG]).map(|(socket, _)| socket.into())
    }

    /// A connected socket, and the rest of the answer.
    fn connect(&self, request: &[u8]) -> io::Result<(OwnedFd, Vec<u8>)> {
        let (answer, socket) = exchange(&self.connections.lock(), request)?;
        match (answer.split_first(), socket) {
            (Some((&DONE, rest)), Some(socket)) => Ok((socket, rest.to_vec())),
            (Some((_, errno)), _) => Err(match errno.first_chunk() {
                Some(errno) => io::Error::from_raw_os_error(i32::from_ne_bytes(*errno)),
                None => io::ErrorKind::InvalidData.into(),
            }),
            (None, _) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn exchange(socket: &OwnedFd, request: &[u8]) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    // No descriptor goes this way, so `send` suffices, which names no address.
    retry_on_intr(|| rustix::net::send(socket, request, SendFlags::NOSIGNAL))?;
    receive(socket.as_fd())?.ok_or_else(|| io::Error::other("the broker process has ended"))
}

/// The next message, and the descriptor that came with it. `None` if the other end is closed.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; LONGEST];
    let len = loop {
        let mut into = [IoSliceMut::new(&mut message)];
        match rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
            Ok(received) => break received.bytes,
        }
    };
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    message.truncate(len);
    Ok((len > 0).then_some((message, descriptor)))
}

/// Sends a message, with a descriptor if there is one. Cuts a long message.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let message = message.get(..LONGEST).unwrap_or(message);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let from = [IoSlice::new(message)];
    retry_on_intr(|| rustix::net::sendmsg(socket, &from, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}
