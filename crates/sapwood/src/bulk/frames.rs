//! Frames of the connection over which the daemon of a mount sends and receives snapshots: a kind (1
//! byte), a length (4 bytes) and the bytes. Numbers are in the byte order of the machine.
//!
//! - Client to daemon: a [`Request`]. To receive, pieces of the stream follow, and a mark of the end.
//!   A client that closes the connection without it has failed, or was interrupted.
//! - Daemon to client: pieces of the sent stream, progress, and the result.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Most bytes of a frame.
pub(crate) const MOST: usize = 1 << 20;

const REQUEST: u8 = 0;
const STREAM: u8 = 1;
const END: u8 = 2;
const PROGRESS: u8 = 3;
const SENT: u8 = 4;
const RECEIVED: u8 = 5;
const FAILED: u8 = 6;
const SUBVOLUME: u8 = 7;

/// The work that a client requests in the directory of its command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Send the snapshot whose top is the directory.
    Send {
        top: Top,
        name: Vec<u8>,
        version: u32,
        compressed: bool,
        data: bool,
        parent: Option<Top>,
        clone_sources: Vec<Top>,
    },
    /// Receive snapshots into the directory.
    Receive {
        resume: bool,
        checkpoint: u64,
        expand: bool,
    },
}

/// The top directory of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Top {
    /// Inode number.
    pub(crate) ino: u64,
    /// The client's path to it, for errors.
    pub(crate) path: Vec<u8>,
}

/// The result of a send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sent {
    pub(crate) inodes: u64,
    pub(crate) content: u64,
    pub(crate) size: u64,
}

/// The result of a receive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Received {
    pub(crate) commands: u64,
    pub(crate) content: u64,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    Request(Request),
    /// A piece of a stream.
    Stream(Vec<u8>),
    /// The end of the stream.
    End,
    /// Number of inodes that were sent.
    Progress(u64),
    Sent(Sent),
    /// The name of a subvolume that was received; the result follows.
    Subvolume(Vec<u8>),
    Received(Received),
    /// The work has failed, for a reason that people read.
    Failed(String),
}

fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn parsed<T: for<'p> Deserialize<'p>>(payload: &[u8]) -> io::Result<T> {
    serde_json::from_slice(payload).map_err(|_| invalid())
}

/// Sends a piece of a stream, of at most [`MOST`] bytes.
///
/// # Errors
/// I/O errors of the connection.
pub(crate) fn send_piece(socket: &mut impl Write, piece: &[u8]) -> io::Result<()> {
    send(socket, STREAM, piece)
}

fn send(socket: &mut impl Write, kind: u8, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).map_err(|_| invalid())?;
    if payload.len() > MOST {
        return Err(invalid());
    }
    let [a, b, c, d] = length.to_ne_bytes();
    socket.write_all(&[kind, a, b, c, d])?;
    socket.write_all(payload)
}

impl Frame {
    /// Sends the frame.
    ///
    /// # Errors
    /// I/O errors of the connection; `InvalidData` for a frame that is too long.
    pub(crate) fn send(&self, socket: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Request(request) => send(socket, REQUEST, &serde_json::to_vec(request)?),
            Self::Stream(piece) => send(socket, STREAM, piece),
            Self::End => send(socket, END, &[]),
            Self::Progress(done) => send(socket, PROGRESS, &done.to_ne_bytes()),
            Self::Sent(sent) => send(socket, SENT, &serde_json::to_vec(sent)?),
            Self::Subvolume(name) => send(socket, SUBVOLUME, name),
            Self::Received(received) => send(socket, RECEIVED, &serde_json::to_vec(received)?),
            Self::Failed(why) => {
                let bytes = why.as_bytes();
                send(socket, FAILED, bytes.get(..MOST).unwrap_or(bytes))
            }
        }
    }

    /// Receives a frame.
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the connection; I/O errors of the connection; `InvalidData` for
    /// a frame that is too long or malformed.
    pub(crate) fn receive(socket: &mut impl Read) -> io::Result<Self> {
        let mut header = [0; 5];
        socket.read_exact(&mut header)?;
        let [kind, length @ ..] = header;
        let length = usize::try_from(u32::from_ne_bytes(length)).map_err(|_| invalid())?;
        if length > MOST {
            return Err(invalid());
        }
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload)?;
        Ok(match kind {
            REQUEST => Self::Request(parsed(&payload)?),
            STREAM => Self::Stream(payload),
            END => Self::End,
            PROGRESS => {
                let bytes = payload.first_chunk().ok_or_else(invalid)?;
                Self::Progress(u64::from_ne_bytes(*bytes))
            }
            SENT => Self::Sent(parsed(&payload)?),
            SUBVOLUME => Self::Subvolume(payload),
            RECEIVED => Self::Received(parsed(&payload)?),
            FAILED => Self::Failed(String::from_utf8_lossy(&payload).into_owned()),
            _ => return Err(invalid()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(ino: u64) -> Top {
        let path = b"/mnt/\xfd".to_vec();
        Top { ino, path }
    }

    #[test]
    fn frames_arrive_as_they_were_sent() {
        let all = [
            Frame::Request(Request::Send {
                top: top(5),
                name: b"a\xff".to_vec(),
                version: 2,
                compressed: true,
                data: true,
                parent: Some(top(u64::MAX)),
                clone_sources: vec![top(1), top(2)],
            }),
            Frame::Request(Request::Receive {
                resume: true,
                checkpoint: 5,
                expand: true,
            }),
            Frame::Stream(vec![1; MOST]),
            Frame::Stream(Vec::new()),
            Frame::End,
            Frame::Progress(7),
            Frame::Sent(Sent {
                inodes: 1,
                content: 2,
                size: 3,
            }),
            Frame::Subvolume(b"\xfe".to_vec()),
            Frame::Received(Received {
                commands: 4,
                content: 5,
            }),
            Frame::Failed("no space left".to_owned()),
        ];
        let mut bytes = Vec::new();
        for frame in &all {
            frame.send(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        for frame in &all {
            assert_eq!(Frame::receive(&mut rest).ok().as_ref(), Some(frame));
        }
        let end = Frame::receive(&mut rest).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn malformed_frames_are_refused() {
        assert!(send_piece(&mut io::sink(), &vec![0; MOST + 1]).is_err());
        let long = [&[STREAM][..], &u32::MAX.to_ne_bytes()].concat();
        for bytes in [
            &[9, 0, 0, 0, 0][..],
            &[PROGRESS, 0, 0, 0, 0],
            &[REQUEST, 0, 0, 0, 0],
            &long,
        ] {
            let error = Frame::receive(&mut &*bytes).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::UnexpectedEof, "{bytes:?}");
        }
    }
}
