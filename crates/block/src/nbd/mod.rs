//! [`NbdDevice`]: an export of an NBD server.
//!
//! # How it works
//!
//! - The protocol follows the public document (`doc/proto.md` of the NBD project): fixed newstyle
//!   handshake, `NBD_OPT_GO`, structured replies if the server has them.
//! - A request is cut into pieces of [`device::PIECE`] bytes. All pieces are sent before the first
//!   reply is awaited, in turn over all connections. There are several connections only if the
//!   server promises that a flush covers them all (`CAN_MULTI_CONN`).
//! - One thread for each connection receives replies. It allocates at most the requested length,
//!   and refuses every reply that does not fit a request in flight. A server that violates the
//!   protocol is not used again: every later request fails with the same error.
//! - A flush is a flush of the server. FUA is the server's, or a write and a flush.
//! - After a lost connection all connections are closed and made again, for at most
//!   [`NbdOptions::patience`]. Requests in flight are resent. Unflushed writes may be lost with the
//!   server, so they are kept in memory (`unflushed.rs`) and repeated before any other request; at
//!   [`unflushed::LIMIT`] bytes the writer flushes. So a later flush still covers every write
//!   before it.
//! - Before that, a new connection compares the watched ranges ([`Device::watch`]) with what this
//!   device wrote there (`watch.rs`). After a write of another client nothing is sent any more.
//! - The old connections are closed for writing first, and their ends awaited for a moment, so that
//!   a live server has served its requests before the same blocks are written again. The protocol
//!   has no fence for a server that executes requests of a connection that it lost long ago.
//! - A large discard asks for the block status, and leaves out unallocated ranges (`status.rs`).
//! - A failed flush is never repeated: the server may have dropped the written data.

pub(crate) mod connection;
pub(crate) mod device;
pub(crate) mod handshake;
pub(crate) mod options;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod stream;
pub(crate) mod unflushed;
pub(crate) mod uri;
pub(crate) mod watch;
pub(crate) mod wire;

#[cfg(doc)]
use crate::Device;
pub use device::NbdDevice;
pub use options::NbdOptions;
pub(crate) use uri::NbdUri;
