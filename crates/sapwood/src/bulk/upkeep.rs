//! Messages of the connection over which the daemon of a mount scrubs, balances, resizes, and changes
//! the devices and quotas: a length (4 bytes, in the byte order of the machine) and JSON.
//!
//! - Client to daemon: one [`Request`], and the descriptor of a new device. A client that shuts
//!   down its side, or ends, stops the work after the current step.
//! - Daemon to client: progress, and last the result.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::daemon::DaemonError;
use crate::quota::QuotaChange;

/// Most bytes of a request.
const MOST_OF_REQUEST: usize = 64 << 10;
/// Most bytes of an answer, which has paths of damaged files.
const MOST_OF_ANSWER: usize = 256 << 20;
/// Interval between reports of progress.
const INTERVAL: Duration = Duration::from_millis(100);

/// The work that a client requests.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    Scrub {
        read_only: bool,
        limit: Option<u64>,
    },
    Change(Change),
    /// Give the file system another size, or the device with this id.
    Resize {
        devid: Option<u64>,
        size: WantedSize,
    },
    /// The state of the balance.
    BalanceState,
    /// End the balance that runs, so that it can be continued.
    PauseBalance,
    /// The quotas, or that there are none.
    Quotas,
}

/// A new size, in bytes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum WantedSize {
    Exactly(u64),
    More(u64),
    Less(u64),
    /// All of the device.
    Max,
}

/// A change of the block groups, the devices or the quotas.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Change {
    /// Filters as text, as for `BalanceFilter`.
    Balance {
        data: Option<String>,
        metadata: Option<String>,
        system: Option<String>,
        force: bool,
    },
    /// Continue the balance that the file system records.
    ResumeBalance,
    /// Drop the balance that the file system records.
    CancelBalance,
    /// The descriptor of the device follows.
    AddDevice {
        name: String,
        force: bool,
    },
    RemoveDevice(Removal),
    Quota(QuotaChange),
    /// The descriptor of the new device follows.
    ReplaceDevice {
        old: Removal,
        name: String,
        force: bool,
    },
}

/// A device that is removed or replaced.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Removal {
    Devid(u64),
    /// The device with this name.
    Name(String),
    /// The first missing device.
    Missing,
}

/// A message of the daemon. `R` is the result of the requested work.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer<R> {
    Progress {
        done: u64,
        total: u64,
    },
    Done(R),
    /// The work has failed, for a reason that people read.
    Failed(String),
}

fn send(socket: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).map_err(|_| invalid())?;
    socket.write_all(&length.to_ne_bytes())?;
    socket.write_all(&json)
}

fn receive<T: for<'m> Deserialize<'m>>(socket: &mut impl Read, most: usize) -> io::Result<T> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_ne_bytes(length)).map_err(|_| invalid())?;
    if length > most {
        return Err(invalid());
    }
    let mut json = vec![0; length];
    socket.read_exact(&mut json)?;
    serde_json::from_slice(&json).map_err(|_| invalid())
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl Request {
    /// Sends the request.
    ///
    /// # Errors
    /// I/O errors of the connection.
    pub(crate) fn send(&self, mut socket: &UnixStream) -> io::Result<()> {
        send(&mut socket, self)
    }

    /// Receives a request.
    ///
    /// # Errors
    /// I/O errors of the connection; `InvalidData` for a request that is malformed or too long.
    pub(crate) fn receive(mut socket: &UnixStream) -> io::Result<Self> {
        receive(&mut socket, MOST_OF_REQUEST)
    }
}

impl<R: Serialize> Answer<R> {
    /// Sends the message.
    ///
    /// # Errors
    /// I/O errors of the connection.
    pub(crate) fn send(&self, mut socket: &UnixStream) -> io::Result<()> {
        send(&mut socket, self)
    }
}

impl<R: for<'m> Deserialize<'m>> Answer<R> {
    /// Receives a message.
    ///
    /// # Errors
    /// `UnexpectedEof` if the daemon has ended; I/O errors of the connection; `InvalidData`.
    pub(crate) fn receive(mut socket: &UnixStream) -> io::Result<Self> {
        receive(&mut socket, MOST_OF_ANSWER)
    }
}

/// Connects to the daemon of the mount that `dir` is in, and sends a request.
///
/// # Errors
/// [`DaemonError`].
pub(crate) fn request(dir: &Path, request: &Request) -> Result<UnixStream, DaemonError> {
    let unreachable = |error| DaemonError::Mount {
        path: dir.to_owned(),
        source: named(error),
    };
    let opened = File::open(dir).map_err(unreachable)?;
    let socket = sapwood_fuse::bulk::connect_for_upkeep(opened.as_fd()).map_err(unreachable)?;
    let sent = request.send(&socket);
    sent.map_err(|error| refused(dir, error.to_string()))?;
    Ok(socket)
}

fn refused(dir: &Path, why: String) -> DaemonError {
    let path = dir.to_owned();
    DaemonError::Refused { path, why }
}

/// An error of the connection, with its reason where one is known.
fn named(error: io::Error) -> io::Error {
    let why = match Errno::from_io_error(&error) {
        Some(Errno::NOTTY) => "not in a mount by Sapwood",
        Some(Errno::PERM) => "only root and the owner of the mount may do this",
        Some(Errno::OPNOTSUPP) => "the daemon of the mount does not do this",
        _ => return error,
    };
    io::Error::new(error.kind(), why)
}

/// Waits for the result of a [`request`]. `step` gets the units that are done, and of all; once it
/// returns `Break`, the daemon ends the work early, and still reports it.
///
/// # Errors
/// [`DaemonError::Refused`].
pub(crate) fn wait<R: for<'m> Deserialize<'m>>(
    dir: &Path,
    socket: &UnixStream,
    step: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<R, DaemonError> {
    let mut stopped = false;
    loop {
        let answer = Answer::receive(socket);
        match answer.map_err(|error| refused(dir, error.to_string()))? {
            Answer::Progress { done, total } => {
                if step(done, total).is_break() && !stopped {
                    stopped = true;
                    // A daemon that is gone is noticed by the next receive.
                    let _ = socket.shutdown(Shutdown::Write);
                }
            }
            Answer::Done(result) => return Ok(result),
            Answer::Failed(why) => return Err(refused(dir, why)),
        }
    }
}

/// Reports progress to a client, and notices that it wants no more.
pub(crate) struct Reporter<'s> {
    socket: &'s UnixStream,
    last: Option<Instant>,
    stopped: bool,
}

impl<'s> Reporter<'s> {
    pub(crate) fn new(socket: &'s UnixStream) -> Self {
        Self {
            socket,
            last: None,
            stopped: false,
        }
    }

    /// A step of the work. The work ends with `Break`.
    pub(crate) fn step(&mut self, done: u64, total: u64) -> ControlFlow<()> {
        let due = self.last.is_none_or(|last| last.elapsed() >= INTERVAL);
        if due && !self.stopped {
            self.last = Some(Instant::now());
            let sent = Answer::<()>::Progress { done, total }.send(self.socket);
            self.stopped = sent.is_err() || self.has_ended();
        }
        if self.stopped {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Whether the client has closed its side.
    fn has_ended(&self) -> bool {
        let mut socket = self.socket;
        let received = socket
            .set_nonblocking(true)
            .and_then(|()| socket.read(&mut [0]));
        let blocking = socket.set_nonblocking(false);
        let open = match received {
            Ok(count) => count > 0,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        !open || blocking.is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (client, daemon) = pair();
        let request = Request::Scrub {
            read_only: true,
            limit: Some(7),
        };
        request.send(&client).unwrap();
        let received = Request::receive(&daemon).unwrap();
        assert!(matches!(
            received,
            Request::Scrub {
                read_only: true,
                limit: Some(7)
            }
        ));
        let answer = Answer::<()>::Progress { done: 1, total: 2 };
        answer.send(&daemon).unwrap();
        let received = Answer::<u64>::receive(&client).unwrap();
        assert!(matches!(received, Answer::Progress { done: 1, total: 2 }));
    }

    #[test]
    fn malformed_messages_are_refused() {
        for bytes in [&[255, 255, 255, 255][..], &[2, 0, 0, 0, b'{', b'x']] {
            let (mut client, daemon) = pair();
            client.write_all(bytes).unwrap();
            let error = Request::receive(&daemon).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn a_client_that_is_gone_or_done_stops_the_work() {
        let (client, daemon) = pair();
        let mut reporter = Reporter::new(&daemon);
        assert!(reporter.step(1, 2).is_continue());
        client.shutdown(std::net::Shutdown::Write).unwrap();
        std::thread::sleep(INTERVAL);
        assert!(reporter.step(2, 2).is_break());
        let (client, daemon) = pair();
        drop(client);
        assert!(Reporter::new(&daemon).step(0, 0).is_break());
    }
}
