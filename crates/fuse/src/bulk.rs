//! Bulk work: the daemon does in process, for another process, work that would take very many
//! requests.
//!
//! # How it works
//! The client opens a directory of the mount, listens on a socket with an abstract name, and passes
//! the name in a control command on the directory. The daemon connects, and a thread of its own
//! serves the connection with the program's [`Service`]. So the kernel has checked that the client
//! may reach the directory, and passes the client's ids to the daemon. For a confined daemon the
//! [broker](crate::broker) connects.
//!
//! Nothing else is checked by the kernel, so the daemon does it:
//! - The other end of the socket must be the process that sent the command. The client in turn
//!   expects a token, which only the answer of the command contains.
//! - Groups and capabilities come from `/proc/PID/status`, while the client waits for the answer.
//!   Capabilities count in the daemon's user namespace only: a client in another one is refused
//!   (`privileges::process`).
//! - The client passes its descriptor of the directory, so that the daemon sees whether the client
//!   reached the directory through a read-only mount.
//! - The service checks every change with the client's [`Process`].
//!
//! The kernel's caches do not see the changes: the service reports each one to [`Caches`].
//!
//! End: when the client ends, its socket closes, and the service fails to read. When the mount ends
//! (`Bulk::end`), the daemon closes the sockets and waits for the threads.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use rustix::fs::StatVfsMountFlags;
use rustix::rand::GetRandomFlags;
use sapwood_vfs::Ino;
use sapwood_vfs::permission::Process;

use crate::broker::Broker;
pub(crate) use crate::bulk_socket::Purpose;
use crate::bulk_socket::{self, Token};
use crate::control;
use crate::node::{NodeId, NodeMap};
use crate::privileges::{self, UserNamespace};
use crate::request::{Caller, Reply};

/// How long the daemon may take to send its token after it connected.
const GREETING: Duration = Duration::from_secs(5);
/// Most connections of a mount.
const MOST: usize = 16;

/// The daemon's work for the clients of a mount.
pub trait Service: Send + Sync {
    /// Serves one connection, in a thread of its own.
    fn run(&self, work: Work);
}

/// Drops entries of the kernel's caches.
pub(crate) trait Notify: Send + Sync {
    /// A name in a directory leads elsewhere now, and the directory has another list of names.
    fn expire_name(&self, dir: NodeId, name: &[u8]);
    /// The attributes of a node have changed.
    fn drop_attributes(&self, node: NodeId);
    /// The attributes and the content of a node have changed.
    fn drop_content(&self, node: NodeId);
    /// Any name may lead elsewhere now, and these nodes may have other attributes and content.
    fn drop_all(&self, nodes: &[NodeId]);
}

/// The kernel's caches of names and attributes of a mount.
#[derive(Clone)]
pub struct Caches {
    notify: Arc<dyn Notify>,
    map: NodeMap,
}

impl std::fmt::Debug for Caches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caches").finish_non_exhaustive()
    }
}

impl Caches {
    /// A name in `dir` was made or removed: the kernel must look it up again, and read the
    /// attributes of `dir` again. Must not be called with a lock held that a request needs.
    pub fn name_changed(&self, dir: Ino, name: &[u8]) {
        self.notify.expire_name(self.map.node(dir), name);
    }

    /// The attributes of an inode were changed. Like [`name_changed`](Self::name_changed).
    pub fn attributes_changed(&self, ino: Ino) {
        self.notify.drop_attributes(self.map.node(ino));
    }

    /// The content of an inode was changed. Like [`name_changed`](Self::name_changed).
    pub fn content_changed(&self, ino: Ino) {
        self.notify.drop_content(self.map.node(ino));
    }
}

/// A connection, and the client's identity.
#[derive(Debug)]
pub struct Work {
    /// The connection.
    pub socket: UnixStream,
    /// The directory of the command. The kernel refers to it while the client is admitted.
    pub dir: Ino,
    /// The client.
    pub process: Process,
    /// The kernel's caches.
    pub caches: Caches,
    /// Every change must be durable before it is acknowledged to the client.
    pub synchronous: bool,
    mount: Option<u64>,
}

/// A client that may change the mount, as long as the mount of its directory is writable.
#[derive(Debug)]
pub struct Admitted(OwnedFd);

impl Work {
    /// Checks that the client may change the mount, with the descriptor that it sends first.
    ///
    /// # Errors
    /// `EROFS` if the client reached the directory through a read-only mount; `EPERM` if the
    /// descriptor is not the directory; I/O errors of the connection.
    pub fn admit(&self) -> io::Result<Admitted> {
        let admitted = self.identify()?;
        admitted.check_writable().map(|()| admitted)
    }

    /// Checks that the client has the directory open, with the descriptor that it sends first.
    ///
    /// # Errors
    /// `EPERM` if the descriptor is not the directory; I/O errors of the connection.
    pub fn identify(&self) -> io::Result<Admitted> {
        let dir = bulk_socket::receive_descriptor(&self.socket)?;
        let found = rustix::fs::fstat(&dir)?;
        let same = self.mount == Some(found.st_dev) && found.st_ino == self.dir.0;
        if same {
            Ok(Admitted(dir))
        } else {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        }
    }
}

impl Work {
    /// Receives a descriptor that the client sends.
    ///
    /// # Errors
    /// `UnexpectedEof` if no descriptor arrives; I/O errors of the connection.
    pub fn receive_file(&self) -> io::Result<OwnedFd> {
        bulk_socket::receive_descriptor(&self.socket)
    }
}

impl Admitted {
    /// Whether a file lies in the mount. The daemon must not wait for such a file.
    ///
    /// # Errors
    /// Errors of system calls.
    pub fn is_in_mount(&self, file: &OwnedFd) -> io::Result<bool> {
        let own = rustix::fs::fstat(&self.0)?;
        Ok(rustix::fs::fstat(file)?.st_dev == own.st_dev)
    }

    /// Checks that the mount through which the client reached the directory is still writable.
    ///
    /// # Errors
    /// `EROFS`; errors of system calls.
    pub fn check_writable(&self) -> io::Result<()> {
        let flags = rustix::fs::fstatvfs(&self.0)?.f_flag;
        if flags.contains(StatVfsMountFlags::RDONLY) {
            Err(io::Error::from_raw_os_error(libc::EROFS))
        } else {
            Ok(())
        }
    }
}

/// The bulk work of a mount.
#[derive(Default)]
pub(crate) struct Bulk {
    service: RwLock<Option<Arc<dyn Service>>>,
    writing: OnceLock<Arc<dyn Service>>,
    streams: OnceLock<Arc<dyn Service>>,
    upkeep: OnceLock<Arc<dyn Service>>,
    notify: OnceLock<Arc<dyn Notify>>,
    /// Device number of the mount, as in `st_dev`.
    mount: OnceLock<u64>,
    running: Mutex<Running>,
    idle: Condvar,
    /// Connects for a confined daemon.
    broker: Option<Broker>,
}

#[derive(Default)]
struct Running {
    ended: bool,
    next: u64,
    sockets: HashMap<u64, UnixStream>,
}

impl Bulk {
    /// Bulk work of a daemon that connects through `broker`, if there is one.
    pub(crate) fn new(broker: Option<Broker>) -> Self {
        Self {
            broker,
            ..Self::default()
        }
    }

    /// Sets how notifications reach the kernel.
    pub(crate) fn set_notify(&self, notify: Arc<dyn Notify>) {
        let _ = self.notify.set(notify);
    }

    /// Sets the device number of the mount.
    pub(crate) fn set_mount(&self, device: u64) {
        let _ = self.mount.set(device);
    }

    /// Sets the service for new connections; they are refused before.
    pub(crate) fn set_service(&self, service: Arc<dyn Service>) {
        *self.service.write() = Some(service);
    }

    /// Sets the service for clients that make the mount writable.
    pub(crate) fn set_writing(&self, service: Arc<dyn Service>) {
        let _ = self.writing.set(service);
    }

    /// Sets the service for clients that send or receive snapshots.
    pub(crate) fn set_streams(&self, service: Arc<dyn Service>) {
        let _ = self.streams.set(service);
    }

    /// Sets the service for clients that scrub, balance, or change the devices.
    pub(crate) fn set_upkeep(&self, service: Arc<dyn Service>) {
        let _ = self.upkeep.set(service);
    }

    /// How notifications reach the kernel.
    pub(crate) fn notify(&self) -> Option<&Arc<dyn Notify>> {
        self.notify.get()
    }

    /// Connects to the client `who`, which listens at `name`, and starts to serve it. `panicked` is
    /// called if the service panics. Returns the token that the daemon sends first.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without a service, or if the rights of the client are unknown; `EPERM` if
    /// another process listens; `EUSERS`; errors of system calls.
    pub(crate) fn start(
        self: &Arc<Self>,
        purpose: Purpose,
        who: Caller,
        dir: Ino,
        (map, synchronous): (NodeMap, bool),
        name: &[u8],
        panicked: impl FnOnce() + Send + 'static,
    ) -> Reply<Token> {
        let service = match purpose {
            Purpose::Files => self.service.read().clone(),
            Purpose::Writing => self.writing.get().cloned(),
            Purpose::Streams => self.streams.get().cloned(),
            Purpose::Upkeep => self.upkeep.get().cloned(),
        };
        let (Some(service), Some(notify)) = (service, self.notify.get()) else {
            return Err(libc::EOPNOTSUPP);
        };
        let (socket, process) = self.reach(who, name)?;
        let other = socket.try_clone().map_err(errno)?;
        let work = Work {
            socket,
            dir,
            process,
            caches: Caches {
                notify: Arc::clone(notify),
                map,
            },
            synchronous,
            mount: self.mount.get().copied(),
        };
        let entry = self.enlist(other)?;
        let token = token().map_err(errno)?;
        let thread = std::thread::Builder::new().name("fuse-bulk".to_owned());
        let started = thread.spawn(move || {
            let _entry = entry;
            let run = std::panic::AssertUnwindSafe(|| {
                // A client that is gone needs no work.
                if (&work.socket).write_all(&token).is_ok() {
                    service.run(work);
                }
            });
            if std::panic::catch_unwind(run).is_err() {
                panicked();
            }
        });
        started.map(|_| token).map_err(errno)
    }

    /// A connection to the client `who`, which listens at `name`, and its rights.
    fn reach(&self, who: Caller, name: &[u8]) -> Reply<(UnixStream, Process)> {
        let (socket, namespace) = match &self.broker {
            Some(broker) => broker.connect_to_client(name, who.pid),
            None => {
                let connected = bulk_socket::connect(name);
                connected.map(|socket| (socket, UserNamespace::of(who.pid)))
            }
        }
        .map_err(errno)?;
        let (process, leader) = privileges::process(who, namespace).ok_or(libc::EOPNOTSUPP)?;
        let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(|e| e.raw_os_error())?;
        if peer.uid.as_raw() == who.uid && peer.pid.as_raw_pid() == leader {
            Ok((socket, process))
        } else {
            Err(libc::EPERM)
        }
    }

    /// Adds a connection to those that are served.
    fn enlist(self: &Arc<Self>, socket: UnixStream) -> Reply<Connected> {
        let mut running = self.running.lock();
        if running.ended {
            return Err(libc::EIO);
        }
        if running.sockets.len() >= MOST {
            return Err(libc::EUSERS);
        }
        running.next += 1;
        let number = running.next;
        running.sockets.insert(number, socket);
        Ok(Connected {
            bulk: Arc::clone(self),
            number,
        })
    }

    /// Ends all connections, and waits until no service runs. New ones are refused.
    pub(crate) fn end(&self) {
        let mut running = self.running.lock();
        running.ended = true;
        for socket in running.sockets.values() {
            // The peer may have closed it already.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.idle
            .wait_while(&mut running, |running| !running.sockets.is_empty());
    }
}

/// A connection in the list of those that are served.
struct Connected {
    bulk: Arc<Bulk>,
    number: u64,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.bulk.running.lock().sockets.remove(&self.number);
        self.bulk.idle.notify_all();
    }
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A number that no other process can know.
fn token() -> io::Result<Token> {
    let mut token = Token::default();
    rustix::rand::getrandom(&mut token, GetRandomFlags::empty())?;
    Ok(token)
}

/// Connects to the daemon of the mount that the directory `dir` is in, to have it work in `dir`.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount, `EOPNOTSUPP` if its daemon does not do such work for this
/// process; errors of system calls.
pub fn connect(dir: BorrowedFd<'_>) -> io::Result<UnixStream> {
    connect_for(Purpose::Files, dir)
}

/// Connects to the daemon of the mount that the directory `dir` is in, to have it send the snapshot
/// `dir`, or receive snapshots into `dir`.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount, `EOPNOTSUPP` if its daemon does not do such work for this
/// process, `EPERM` for a user other than the mount's owner and root; errors of system calls.
pub fn connect_for_streams(dir: BorrowedFd<'_>) -> io::Result<UnixStream> {
    connect_for(Purpose::Streams, dir)
}

/// Connects to the daemon of the mount that the directory `dir` is in, to have it scrub or balance
/// the file system, or change its devices.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount, `EOPNOTSUPP` if its daemon does not do such work for this
/// process, `EPERM` for a user other than the mount's owner and root; errors of system calls.
pub fn connect_for_upkeep(dir: BorrowedFd<'_>) -> io::Result<UnixStream> {
    connect_for(Purpose::Upkeep, dir)
}

/// Sends a descriptor to the daemon.
///
/// # Errors
/// I/O errors of the connection.
pub fn send_file(socket: &UnixStream, file: BorrowedFd<'_>) -> io::Result<()> {
    bulk_socket::send_descriptor(socket, file)
}

/// Makes the daemon of a read-only mount write to its image from now on. `dir` is a directory in
/// the mount. The descriptors, from `sapwood_block::open_for_writing`, are for the image and its
/// further devices, in the order of the mount's options. The inner result is the daemon's.
///
/// # Errors
/// `ENOTTY` if it is not a Sapwood mount, `EOPNOTSUPP` if its daemon does no bulk work for this
/// process; `EPERM` for a user other than the mount's owner and root.
pub fn become_writable(
    dir: BorrowedFd<'_>,
    files: &[File],
) -> io::Result<std::result::Result<(), String>> {
    let mut socket = connect_for(Purpose::Writing, dir)?;
    for file in files {
        bulk_socket::send_descriptor(&socket, file.as_fd())?;
    }
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    match answer.split_first() {
        Some((&DONE, [])) => Ok(Ok(())),
        Some((_, why)) => Ok(Err(String::from_utf8_lossy(why).into_owned())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Answers [`become_writable`].
///
/// # Errors
/// I/O errors of the connection.
pub fn answer(mut socket: &UnixStream, result: &std::result::Result<(), String>) -> io::Result<()> {
    match result {
        Ok(()) => socket.write_all(&[DONE]),
        Err(why) => socket.write_all(&[&[REFUSED], why.as_bytes()].concat()),
    }
}

/// First byte of the answer.
const DONE: u8 = 0;
const REFUSED: u8 = 1;

fn connect_for(purpose: Purpose, dir: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let (listener, name) = bulk_socket::listen()?;
    let token = control::offer_bulk(dir, purpose, name.as_bytes())?;
    // The daemon connected before it answered; other processes may have connected too.
    loop {
        let (mut socket, _) = listener.accept()?;
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(GREETING))?;
        let mut received = Token::default();
        if socket.read_exact(&mut received).is_ok() && received == token {
            socket.set_read_timeout(None)?;
            bulk_socket::send_descriptor(&socket, dir)?;
            return Ok(socket);
        }
    }
}
