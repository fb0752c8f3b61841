//! Messages of the daemon to its client: a kind (1 byte), a length (4 bytes) and the bytes.

use std::io::{self, Read, Write};

/// Most bytes of a message.
const MOST: usize = 64 << 10;

const DONE: u8 = 0;
const LEFT_OUT: u8 = 1;
const END: u8 = 2;
const FAILED: u8 = 3;

/// A report of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// Number of entries that are done.
    Done(u64),
    /// An entry was left out.
    LeftOut(Reason),
    /// The work is complete, with this number of entries.
    End(u64),
    /// The work has failed.
    Failed(Reason),
}

/// Why an entry could not be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    /// Name of the entry; empty if there is none.
    pub(crate) path: Vec<u8>,
    /// The error number, if the file system gave one.
    pub(crate) errno: Option<i32>,
    /// The message, which begins with the name of the entry.
    pub(crate) text: String,
}

impl Message {
    /// Sends the message.
    ///
    /// # Errors
    /// I/O errors of the connection.
    pub(super) fn send(&self, socket: &mut impl Write) -> io::Result<()> {
        let (kind, payload) = match self {
            Self::Done(done) => (DONE, done.to_ne_bytes().to_vec()),
            Self::End(done) => (END, done.to_ne_bytes().to_vec()),
            Self::LeftOut(reason) => (LEFT_OUT, reason.encode()),
            Self::Failed(reason) => (FAILED, reason.encode()),
        };
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let message = [&[kind][..], &length.to_ne_bytes(), &payload].concat();
        socket.write_all(&message)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// I/O errors of the connection; `InvalidData` for a message that is too long or malformed.
    pub(super) fn receive(socket: &mut impl Read) -> io::Result<Self> {
        let mut header = [0; 5];
        socket.read_exact(&mut header)?;
        let [kind, length @ ..] = header;
        let length = usize::try_from(u32::from_ne_bytes(length)).map_err(io::Error::other)?;
        if length > MOST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload)?;
        let number = || {
            payload
                .first_chunk()
                .map(|bytes| u64::from_ne_bytes(*bytes))
        };
        let message = match kind {
            DONE => number().map(Self::Done),
            END => number().map(Self::End),
            LEFT_OUT => Reason::decode(&payload).map(Self::LeftOut),
            FAILED => Reason::decode(&payload).map(Self::Failed),
            _ => None,
        };
        message.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Reason {
    /// An errno (0: none), the length of the name, the name, and the text.
    fn encode(&self) -> Vec<u8> {
        let path = self.path.get(..MOST / 4).unwrap_or(&self.path);
        let text = self.text.as_bytes();
        let text = text.get(..MOST / 2).unwrap_or(text);
        let length = u32::try_from(path.len()).unwrap_or(0);
        let errno = self.errno.unwrap_or(0).to_ne_bytes();
        [&errno[..], &length.to_ne_bytes(), path, text].concat()
    }

    fn decode(payload: &[u8]) -> Option<Self> {
        let (errno, rest) = payload.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_ne_bytes(*length)).ok()?;
        let (path, text) = rest.split_at_checked(length)?;
        Some(Self {
            path: path.to_vec(),
            errno: Some(i32::from_ne_bytes(*errno)).filter(|errno| *errno != 0),
            text: String::from_utf8_lossy(text).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let reason = |errno| Reason {
            path: b"a/\xff".to_vec(),
            errno,
            text: "a/\\xff: no space left on device".to_owned(),
        };
        let all = [
            Message::Done(7),
            Message::LeftOut(reason(Some(28))),
            Message::Failed(reason(None)),
            Message::End(9),
        ];
        let mut bytes = Vec::new();
        for message in &all {
            message.send(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        for message in &all {
            assert_eq!(Message::receive(&mut rest).ok().as_ref(), Some(message));
        }
        assert!(Message::receive(&mut rest).is_err());
        assert!(Message::receive(&mut &[9, 0, 0, 0, 0][..]).is_err());
        assert!(Message::receive(&mut &[0, 0, 0, 0, 255][..]).is_err());
    }
}
