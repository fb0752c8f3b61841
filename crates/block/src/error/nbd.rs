//! Errors of network block devices.

use std::io;

/// A violation of the protocol by a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The first bytes are not a fixed newstyle handshake.
    #[error("not an NBD server with the fixed newstyle handshake")]
    Greeting,
    /// A number that begins every message of its kind.
    #[error("wrong magic number {0:#x}")]
    Magic(u64),
    /// An answer to an option that was not sent.
    #[error("an answer to option {0}, which was not asked")]
    Option(u32),
    /// A message is longer than one of its kind can be, or shorter.
    #[error("a message of {0} bytes where none can have that length")]
    Length(u64),
    /// The handshake does not end.
    #[error("too many answers in the handshake")]
    Endless,
    /// The handshake ends without a size.
    #[error("no size of the export")]
    NoSize,
    /// The sizes of blocks contradict each other.
    #[error("impossible block sizes: least {least}, most {most}")]
    BlockSize {
        /// Least bytes of a request.
        least: u32,
        /// Most bytes of a request.
        most: u32,
    },
    /// A reply to a request that is not in flight: never sent, or answered before.
    #[error("a reply to request {0:#x}, which is not in flight")]
    Cookie(u64),
    /// A reply of a kind that the request cannot have.
    #[error("a reply of type {0}, which the request cannot have")]
    Kind(u16),
    /// Data outside of the requested range, or repeated data.
    #[error("{len} bytes of data at {offset}, which were not asked for or came before")]
    Data {
        /// Byte offset on the device.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A status of something that was not asked for.
    #[error("a status of context {0}, which was not asked for")]
    Context(u32),
    /// A status with an extent of no length, or outside of the range.
    #[error("an extent of {len} bytes at {at} of the range, where none can be")]
    Extent {
        /// Bytes from the begin of the range.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// A read ended before all of its data arrived.
    #[error("a read ended after {got} of {wanted} bytes")]
    Short {
        /// Bytes that arrived.
        got: u64,
        /// Requested bytes.
        wanted: u64,
    },
}

/// An error of a network block device.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// The address cannot be read.
    #[error("no address of an NBD export: {0}")]
    Uri(&'static str),
    /// No connection to the server.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// The connection ended or does not answer.
    #[error("connection lost: {0}")]
    Lost(#[source] io::Error),
    /// The server broke the protocol. No further request is sent to it.
    #[error("the server broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// The server does not give access to the export.
    #[error("the server refuses the export {export:?}: {why}")]
    Refused {
        /// Name of the export.
        export: String,
        /// The server's message, or the meaning of its answer.
        why: String,
    },
    /// Nothing can be made durable.
    #[error(
        "the server has no flush, so nothing that is written is known to be durable: open it \
         read-only, or consent with ?without-flush in the address"
    )]
    NoFlush,
    /// After a new connection the export was another one.
    #[error("after a new connection the export differs: {0}")]
    Changed(&'static str),
    /// While the connection was lost, another client wrote to a range that only this one writes.
    #[error(
        "another client wrote to the export while the connection was lost (at byte {0}): nothing \
         more is written"
    )]
    Overwritten(u64),
    /// The server accepts a connection, but does not begin the handshake.
    #[error(
        "the server does not begin a conversation within {0} s: it hangs, or has another client and \
         serves one at a time (qemu-nbd without -e)"
    )]
    Silent(u64),
    /// A write that had succeeded was refused when it was repeated after a new connection.
    #[error("after a new connection a write cannot be repeated: {0}")]
    Replay(#[source] io::Error),
    /// No connection came about within the time for it.
    #[error("{0}; no new connection within {1} s")]
    GivenUp(String, u64),
}

impl NbdError {
    /// Whether a new connection may help.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Lost(_) | Self::Silent(_))
    }
}
