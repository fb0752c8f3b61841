//! Connected sockets.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::uri::Address;
use crate::host::LocalStream;

/// A connected socket. Its clones are the same socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(LocalStream),
}

impl Stream {
    /// Connects within `timeout`, which also limits every later write.
    pub(super) fn connect(address: &Address, timeout: Duration) -> io::Result<Self> {
        let stream = match address {
            Address::Unix(path) => Self::Unix(LocalStream::connect(path)?),
            Address::Tcp(host, port) => {
                let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    outcome = TcpStream::connect_timeout(&address, timeout);
                    if outcome.is_ok() {
                        break;
                    }
                }
                let stream = outcome?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
        };
        stream.set_read_timeout(timeout)?;
        match &stream {
            Self::Tcp(stream) => stream.set_write_timeout(Some(timeout))?,
            Self::Unix(stream) => stream.set_write_timeout(Some(timeout))?,
        }
        Ok(stream)
    }

    /// Limits the time that a read waits before it fails.
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
        })
    }

    /// Ends one direction or both. A connection that has ended already is no error.
    pub(super) fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Writes a header and its payload, in one call if the host accepts both.
    pub(super) fn write_both(&mut self, header: &[u8], payload: &[u8]) -> io::Result<()> {
        let mut slices = [IoSlice::new(header), IoSlice::new(payload)];
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match self.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut left, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(bufs),
            Self::Unix(stream) => stream.write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
