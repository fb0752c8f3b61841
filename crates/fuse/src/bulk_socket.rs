//! The socket between a client of [bulk work](crate::bulk) and the daemon: its name, the
//! connection, and the descriptor that the client passes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Begins the name of a client's socket. No other program's socket is ever connected to.
const PREFIX: &str = "sapwood-bulk2-";

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The daemon makes files.
    Files,
    /// The daemon gets writable descriptors of the image.
    Writing,
    /// The daemon sends or receives snapshots.
    Streams,
    /// The daemon scrubs, balances, or changes the devices.
    Upkeep,
}

/// The daemon's first bytes, which prove its identity to the client. The client gets them in the
/// answer of its command.
pub(crate) type Token = [u8; 16];

/// A socket that listens, and does not block; and its name.
pub(crate) fn listen() -> io::Result<(UnixListener, String)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos());
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("{PREFIX}{}-{number}-{now:x}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    listener.set_nonblocking(true)?;
    Ok((listener, name))
}

/// Connects to a client, without waiting for one that accepts nothing. The socket blocks.
///
/// # Errors
/// `EINVAL` if `name` is not the name of a client's socket; errors of the system.
pub(crate) fn connect(name: &[u8]) -> io::Result<UnixStream> {
    if !name.starts_with(PREFIX.as_bytes()) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::STREAM;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Sends a descriptor with one byte.
pub(crate) fn send_descriptor(socket: &UnixStream, file: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    control.push(SendAncillaryMessage::ScmRights(&files));
    let data = [IoSlice::new(&[0])];
    rustix::net::sendmsg(socket, &data, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a descriptor with one byte.
pub(crate) fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut data = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    received.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn only_sockets_of_clients_are_connected_to() {
        let name = format!("sapwood-other-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let errno = |name: &str| {
            connect(name.as_bytes())
                .err()
                .and_then(|e| e.raw_os_error())
        };
        assert_eq!(errno(&name), Some(libc::EINVAL));
        assert_eq!(errno(&format!("{PREFIX}none")), Some(libc::ECONNREFUSED));
        let (_listener, name) = listen().unwrap();
        assert_eq!(errno(&name), None);
    }

    #[test]
    fn a_descriptor_passes_through_a_socket() {
        let (one, other) = UnixStream::pair().unwrap();
        let root = std::fs::File::open("/").unwrap();
        send_descriptor(&one, root.as_fd()).unwrap();
        let received = receive_descriptor(&other).unwrap();
        let ino = |fd: &dyn AsFd| rustix::fs::fstat(fd.as_fd()).map(|found| found.st_ino);
        assert_eq!(ino(&received), ino(&root));
        drop(one);
        assert!(receive_descriptor(&other).is_err());
    }
}
