//! Reports how a mount ended to the processes that unmount it.
//!
//! An unmount ends with the daemon's last writes, when commands can no longer reach the mount. A
//! process that needs the result binds a datagram socket with an abstract name and passes the name
//! to the daemon while the mount exists ([`control::report_end`](crate::control::report_end)). The
//! daemon connects at once, and sends one datagram when the image is complete or when it knows that
//! it cannot be. A daemon that dies sends none.

use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::broker::Broker;
use crate::request::Reply;

/// Most processes that one mount reports to.
const MOST: usize = 16;
/// Most bytes of a reason.
const REASON_BYTES: usize = 4096;
/// First byte of a datagram.
const COMPLETE: u8 = 0;
const FAILED: u8 = 1;
/// Begins the name of each socket that waits.
const PREFIX: &str = "sapwood-end-";

/// Processes that wait for the end of a mount.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    sockets: Mutex<Vec<UnixDatagram>>,
    /// Connects for a confined daemon.
    broker: Option<Broker>,
}

impl Waiters {
    /// Waiters of a daemon that connects through `broker`, if there is one.
    pub(crate) fn new(broker: Option<Broker>) -> Self {
        Self {
            sockets: Mutex::default(),
            broker,
        }
    }

    pub(crate) fn add(&self, name: &[u8]) -> Reply<()> {
        let connected = match &self.broker {
            Some(broker) => broker.connect_to_waiter(name),
            None => SocketAddr::from_abstract_name(name).and_then(|address| connect(&address)),
        };
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let socket = connected.map_err(errno)?;
        let mut all = self.sockets.lock();
        if all.len() == MOST {
            return Err(libc::EUSERS);
        }
        all.push(socket);
        Ok(())
    }

    /// Reports the end, with a reason if the image lacks something that was written.
    pub(crate) fn report(&self, failure: Option<&str>) {
        let failed = failure.is_some();
        let mut datagram = vec![if failed { FAILED } else { COMPLETE }];
        let reason = failure.unwrap_or_default().as_bytes();
        datagram.extend(reason.iter().take(REASON_BYTES));
        for socket in self.sockets.lock().drain(..) {
            // A process that no longer waits loses nothing.
            let _ = socket.send(&datagram);
        }
    }
}

/// A socket that is connected to `address` and does not block.
pub(crate) fn connect(address: &SocketAddr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(address)?;
    Ok(socket)
}

/// Whether an abstract name is that of a process that waits for a report.
pub(crate) fn is_name(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes())
}

/// The receiving end in a process that unmounts; see
/// [`control::report_end`](crate::control::report_end).
#[derive(Debug)]
pub struct EndReport(UnixDatagram);

impl EndReport {
    /// A report that is still to come, and the name to which the daemon sends it.
    pub(crate) fn new() -> io::Result<(Self, String)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_nanos());
        let name = format!("{PREFIX}{}-{number}-{now:x}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        Ok((Self(socket), name))
    }

    /// How the mount ended. Call it after the daemon has released the image. `None` if the daemon
    /// died without a report.
    #[must_use]
    pub fn result(&self) -> Option<Result<(), String>> {
        let mut datagram = [0; 1 + REASON_BYTES];
        let len = loop {
            match self.0.recv(&mut datagram) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
                Ok(len) => break len,
            }
        };
        let (kind, reason) = datagram.get(..len)?.split_first()?;
        Some(match *kind {
            COMPLETE => Ok(()),
            _ => Err(String::from_utf8_lossy(reason).into_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_waiting_process_gets_one_report() {
        let waiters = Waiters::default();
        let (one, one_name) = EndReport::new().unwrap();
        let (other, other_name) = EndReport::new().unwrap();
        waiters.add(one_name.as_bytes()).unwrap();
        waiters.add(other_name.as_bytes()).unwrap();
        assert_eq!(one.result(), None);
        waiters.report(Some("no device"));
        waiters.report(None);
        assert_eq!(one.result(), Some(Err("no device".to_owned())));
        assert_eq!(other.result(), Some(Err("no device".to_owned())));
        assert_eq!(one.result(), None);
    }

    #[test]
    fn a_daemon_that_dies_reports_nothing() {
        let (report, name) = EndReport::new().unwrap();
        let waiters = Waiters::default();
        waiters.add(name.as_bytes()).unwrap();
        drop(waiters);
        assert_eq!(report.result(), None);
    }

    #[test]
    fn a_long_reason_is_cut_and_a_missing_socket_is_an_error() {
        let waiters = Waiters::default();
        let (report, name) = EndReport::new().unwrap();
        waiters.add(name.as_bytes()).unwrap();
        waiters.report(Some(&"x".repeat(2 * REASON_BYTES)));
        assert_eq!(report.result(), Some(Err("x".repeat(REASON_BYTES))));
        drop(report);
        assert_eq!(waiters.add(name.as_bytes()), Err(libc::ECONNREFUSED));
    }
}
