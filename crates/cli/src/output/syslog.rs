//! The system's log, as a daemon in the background writes it: RFC 3164 datagrams to `/dev/log`.
//!
//! `syslog(3)` and the crates for it wait for the program that writes the log. That program may be
//! writing to the very mount that this process serves, so nothing here waits: a message that is not
//! taken at once is left out and counted. So are messages beyond a [`Limit`]; the next message that
//! is sent is preceded by their number.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Instant;

use crate::host::mount::broker::Broker;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use log::Level;
use parking_lot::Mutex;

use super::limit::Limit;
use super::logger::severity;
use super::name;

const SOCKET: &str = "/dev/log";
/// Names another socket; for tests.
const SOCKET_VARIABLE: &str = "SAPWOOD_SYSLOG";
/// `daemon`, in the bits that RFC 3164 gives it.
const FACILITY: u8 = 3 << 3;
/// Longest datagram in bytes, by RFC 3164.
const LONGEST: usize = 1024;

/// A connection to the system's log.
#[derive(Debug)]
pub(super) struct Syslog {
    path: PathBuf,
    /// Connects for a confined daemon.
    broker: Option<Broker>,
    /// Read once, because a confined daemon cannot read it again.
    zone: TimeZone,
    /// The image and where it is mounted.
    about: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    socket: Option<UnixDatagram>,
    limit: Limit,
}

/// The socket of the system's log.
pub(crate) fn socket() -> PathBuf {
    let path = std::env::var_os(SOCKET_VARIABLE);
    path.unwrap_or_else(|| SOCKET.into()).into()
}

impl Syslog {
    /// A log whose lines begin with `about`. Needs no program that takes them.
    pub(super) fn new(about: &str, broker: Option<Broker>) -> Self {
        Self {
            path: socket(),
            broker,
            zone: TimeZone::system(),
            about: name(about.as_bytes()),
            state: Mutex::default(),
        }
    }

    pub(super) fn send(&self, level: Level, text: &str) {
        self.send_at(Instant::now(), level, text);
    }

    fn send_at(&self, now: Instant, level: Level, text: &str) {
        let mut state = self.state.lock();
        if !state.limit.admits(now, level) {
            return;
        }
        self.report(&mut state);
        if !self.deliver(&mut state.socket, level, text) {
            state.limit.leave_out();
        }
    }

    /// Reports messages that were left out and have not been reported.
    pub(super) fn flush(&self) {
        self.report(&mut self.state.lock());
    }

    fn report(&self, state: &mut State) {
        if let Some(count) = state.limit.report()
            && self.deliver(&mut state.socket, Level::Warn, &count)
        {
            state.limit.reported();
        }
    }

    fn deliver(&self, socket: &mut Option<UnixDatagram>, level: Level, text: &str) -> bool {
        let datagram = self.datagram(level, text);
        // The second time through a new connection: the program that takes the log was restarted.
        for _ in 0..2 {
            if socket.is_none() {
                *socket = self.connect();
            }
            let Some(connected) = socket else {
                return false;
            };
            match connected.send(&datagram) {
                Ok(_) => return true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => *socket = None,
            }
        }
        false
    }

    fn connect(&self) -> Option<UnixDatagram> {
        if let Some(broker) = &self.broker {
            return broker.connect_to_log().ok();
        }
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        socket.connect(&self.path).ok()?;
        Some(socket)
    }

    fn datagram(&self, level: Level, text: &str) -> Vec<u8> {
        let time = Timestamp::now().to_zoned(self.zone.clone());
        let time = time.strftime("%b %e %H:%M:%S");
        let mut message = format!(
            "<{}>{time} sapwood[{}]: {}: {}",
            FACILITY | severity(level),
            std::process::id(),
            self.about,
            name(text.as_bytes())
        );
        while message.len() > LONGEST {
            message.pop();
        }
        message.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::limit::{BURST, WINDOW};
    use super::*;

    fn listening() -> (tempfile::TempDir, UnixDatagram, Syslog) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let syslog = Syslog {
            path,
            broker: None,
            zone: TimeZone::UTC,
            about: "a.img on /mnt".to_owned(),
            state: Mutex::default(),
        };
        (dir, socket, syslog)
    }

    fn next(socket: &UnixDatagram) -> Option<String> {
        let mut datagram = [0; 2 * LONGEST];
        let len = socket.recv(&mut datagram).ok()?;
        Some(String::from_utf8(datagram[..len].to_vec()).unwrap())
    }

    #[test]
    fn a_message_names_severity_process_and_mount() {
        let (_dir, socket, syslog) = listening();
        syslog.send(Level::Error, "bytes are lost\nfor good");
        let said = next(&socket).unwrap();
        let end = format!(
            " sapwood[{}]: a.img on /mnt: bytes are lost\\nfor good",
            std::process::id()
        );
        assert!(said.starts_with("<27>") && said.ends_with(&end), "{said}");
        // `Nov 24 03:07:15`
        assert_eq!(said.len(), 4 + 15 + end.len(), "{said}");
        syslog.send(Level::Warn, &"\u{e9}".repeat(LONGEST));
        let said = next(&socket).unwrap();
        assert!(said.starts_with("<28>") && said.len() <= LONGEST, "{said}");
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let (_dir, socket, syslog) = listening();
        let begin = Instant::now();
        for nth in 0..BURST + 7 {
            syslog.send_at(begin, Level::Warn, &format!("number {nth}"));
            // The socket's queue is short.
            match next(&socket) {
                Some(said) => assert!(nth < BURST && said.ends_with(&format!("number {nth}"))),
                None => assert!(nth >= BURST),
            }
        }
        syslog.send_at(begin + WINDOW, Level::Warn, "later");
        assert!(
            next(&socket)
                .unwrap()
                .ends_with(": 7 messages were left out")
        );
        assert!(next(&socket).unwrap().ends_with(": later"));
        assert_eq!(next(&socket), None);
    }

    #[test]
    fn a_log_that_nobody_takes_is_left_out_and_one_that_comes_back_is_used() {
        let (dir, socket, syslog) = listening();
        syslog.send(Level::Warn, "one");
        assert!(next(&socket).is_some());
        drop(socket);
        std::fs::remove_file(dir.path().join("log")).unwrap();
        syslog.send(Level::Warn, "two");
        let socket = UnixDatagram::bind(dir.path().join("log")).unwrap();
        socket.set_nonblocking(true).unwrap();
        syslog.send(Level::Warn, "three");
        assert!(next(&socket).unwrap().ends_with(": 1 message was left out"));
        assert!(next(&socket).unwrap().ends_with(": three"));
    }

    #[test]
    fn a_full_log_is_not_waited_for() {
        let (_dir, socket, syslog) = listening();
        // A queue is bounded in messages, a sender in bytes. The queue is full when a new sender
        // cannot send.
        let fills = || {
            let filler = UnixDatagram::unbound().unwrap();
            filler.set_nonblocking(true).unwrap();
            filler.connect(&syslog.path).unwrap();
            std::iter::from_fn(|| filler.send(b"filler").ok()).count() > 0
        };
        while fills() {}
        syslog.send(Level::Warn, "no room");
        while next(&socket).is_some_and(|said| said == "filler") {}
        assert_eq!(next(&socket), None);
        syslog.send(Level::Warn, "room again");
        assert!(next(&socket).unwrap().ends_with(": 1 message was left out"));
        assert!(next(&socket).unwrap().ends_with(": room again"));
    }
}
