//! The process that mounts and unmounts for a confined daemon; [`broker`] has the
//! protocol.
//!
//! The broker unmounts only the mount that it made, which it recognizes by the device number that
//! the kernel gave it. It connects only to the system's log and to two kinds of abstract sockets,
//! by their prefixes: sockets that wait for the end of a mount, and clients of bulk work. It keeps
//! no descriptor of `/dev/fuse`, so that the kernel ends the connection when the daemon dies.
//!
//! Signals that end a daemon do not end the broker. It ends with the daemon, when its sockets are
//! closed. With `auto_unmount` it first detaches a mount that the daemon left.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::broker::{
    self, ABORT, BULK, BrokerSockets, DETACH_BUSY, DONE, END, LOG, MOUNT, OTHER, REFUSED, SAME,
    UNKNOWN, UNMOUNT,
};
use crate::bulk_socket;
use crate::end_report;
use crate::mountpoint;
use crate::options::MountOptions;
use crate::privileges::UserNamespace;
use crate::unmount::{self, UnmountError};
use sapwood_block::mount_table::mounted_on;

/// How long the kernel may take to end the connection of a process that has ended.
const CLOSING: Duration = Duration::from_secs(30);
/// Interval at which a condition without an event is checked.
const INTERVAL: Duration = Duration::from_millis(20);

/// Serves the daemon of the mount on `dir`, a real path, until the daemon ends. `log` is the socket
/// of the system's log. With `auto_unmount`, a mount that the daemon left is then detached.
///
/// # Errors
/// Errors of system calls.
pub fn serve(
    sockets: BrokerSockets,
    dir: &Path,
    options: &MountOptions,
    log: PathBuf,
    auto_unmount: bool,
) -> io::Result<()> {
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let connections = sockets.connections;
    std::thread::Builder::new()
        .name("connections".to_owned())
        .spawn(move || serve_connections(&connections, &log))?;
    let mut process = Process {
        dir,
        options,
        device: None,
    };
    let socket = sockets.mounts.as_fd();
    while let Some((request, _)) = broker::receive(socket)? {
        process.answer(socket, &request)?;
    }
    if auto_unmount && process.device.is_some() {
        detach_if_dead(dir).map_err(io::Error::other)?;
    }
    Ok(())
}

struct Process<'a> {
    dir: &'a Path,
    options: &'a MountOptions,
    /// Device number of the mount that it made.
    device: Option<(u32, u32)>,
}

impl Process<'_> {
    fn answer(&mut self, socket: BorrowedFd<'_>, request: &[u8]) -> io::Result<()> {
        let unmounted = match request {
            [MOUNT, read_only] => return self.mount(socket, *read_only != 0),
            [UNMOUNT] => self.of_ours(|dir| unmount::detach(dir, false)),
            [DETACH_BUSY] => self.of_ours(unmount::detach_busy),
            [ABORT] => self.of_ours(unmount::abort),
            _ => Err(UnmountError::Failed {
                path: self.dir.to_owned(),
                reason: "the broker does not know the request".to_owned(),
            }),
        };
        let message = match unmounted {
            Ok(()) => vec![DONE],
            Err(error) => {
                let mut message = vec![REFUSED];
                message.extend(error.to_bytes());
                message
            }
        };
        broker::send(socket, &message, None)
    }

    fn mount(&mut self, socket: BorrowedFd<'_>, read_only: bool) -> io::Result<()> {
        match mountpoint::attach_directly(self.dir, self.options, read_only) {
            Ok(attached) => {
                self.device = mounted_on(self.dir).map(|entry| entry.device);
                let mut message = vec![DONE, attached.kind.to_byte()];
                message.extend(attached.warning.unwrap_or_default().into_bytes());
                broker::send(socket, &message, Some(attached.device.as_fd()))
            }
            Err(error) => {
                let mut message = vec![REFUSED];
                message.extend(error.to_string().into_bytes());
                broker::send(socket, &message, None)
            }
        }
    }

    /// Calls `act` if the directory has the mount that this process made.
    fn of_ours(
        &self,
        act: impl FnOnce(&Path) -> Result<(), UnmountError>,
    ) -> Result<(), UnmountError> {
        let found = mounted_on(self.dir).map(|entry| entry.device);
        if found.is_none() || found != self.device {
            return Err(UnmountError::NotMounted(self.dir.to_owned()));
        }
        act(self.dir)
    }
}

fn serve_connections(socket: &OwnedFd, log: &Path) {
    while let Ok(Some((request, _))) = broker::receive(socket.as_fd()) {
        let sent = match connect(&request, log) {
            Ok((connected, rest)) => {
                let message = [&[DONE][..], &rest].concat();
                broker::send(socket.as_fd(), &message, Some(connected.as_fd()))
            }
            Err(error) => {
                let mut message = vec![REFUSED];
                message.extend(error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes());
                broker::send(socket.as_fd(), &message, None)
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Carries out a request for a connection. Returns the rest of the answer, too.
fn connect(request: &[u8], log: &Path) -> io::Result<(OwnedFd, Vec<u8>)> {
    match request.split_first() {
        Some((&END, name)) if end_report::is_name(name) => {
            Ok((connect_to_name(name)?.into(), Vec::new()))
        }
        Some((&LOG, [])) => Ok((connect_to_path(log)?.into(), Vec::new())),
        Some((&BULK, rest)) => {
            let (pid, name) = rest.split_first_chunk().ok_or(Errno::INVAL)?;
            let connected = bulk_socket::connect(name)?;
            let namespace = match UserNamespace::of(u32::from_ne_bytes(*pid)) {
                UserNamespace::Same => SAME,
                UserNamespace::Other => OTHER,
                UserNamespace::Unknown => UNKNOWN,
            };
            Ok((connected.into(), vec![namespace]))
        }
        _ => Err(Errno::INVAL.into()),
    }
}

fn connect_to_name(name: &[u8]) -> io::Result<UnixDatagram> {
    end_report::connect(&SocketAddr::from_abstract_name(name)?)
}

fn connect_to_path(path: &Path) -> io::Result<UnixDatagram> {
    end_report::connect(&SocketAddr::from_pathname(path)?)
}

/// Detaches the mount on `dir` if its daemon has died.
fn detach_if_dead(dir: &Path) -> Result<(), UnmountError> {
    let end = Instant::now() + CLOSING;
    // The kernel may still be closing the connection.
    while mounted_on(dir).is_some_and(|entry| entry.is_ours()) {
        // Attributes may come from the kernel's cache.
        if let Err(Errno::NOTCONN) = rustix::fs::statfs(dir) {
            return unmount::unmount(dir, true);
        }
        if Instant::now() >= end {
            break;
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}
