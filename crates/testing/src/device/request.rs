//! A request as the devices of this module see it.

use sapwood_block::Error;

/// Kind of a device request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequestKind {
    /// [`read_at`](sapwood_block::Device::read_at).
    Read,
    /// [`write_at`](sapwood_block::Device::write_at) or
    /// [`write_vectored_at`](sapwood_block::Device::write_vectored_at).
    Write,
    /// [`write_fua`](sapwood_block::Device::write_fua).
    Fua,
    /// [`flush`](sapwood_block::Device::flush).
    Flush,
    /// [`discard`](sapwood_block::Device::discard).
    Discard,
}

bitflags::bitflags! {
    /// A set of request kinds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct RequestKinds: u8 {
        /// Reads.
        const READ = 1;
        /// Writes that are not write-through.
        const WRITE = 1 << 1;
        /// Write-through writes.
        const FUA = 1 << 2;
        /// Flushes.
        const FLUSH = 1 << 3;
        /// Discards.
        const DISCARD = 1 << 4;
        /// Every write, write-through or not.
        const ANY_WRITE = Self::WRITE.bits() | Self::FUA.bits();
        /// Everything that changes the medium or makes a change durable.
        const ANY_CHANGE = Self::ANY_WRITE.bits() | Self::FLUSH.bits() | Self::DISCARD.bits();
    }
}

impl RequestKind {
    /// Number of kinds.
    pub(crate) const COUNT: usize = 5;

    /// The set that holds this kind only.
    #[must_use]
    pub fn set(self) -> RequestKinds {
        match self {
            Self::Read => RequestKinds::READ,
            Self::Write => RequestKinds::WRITE,
            Self::Fua => RequestKinds::FUA,
            Self::Flush => RequestKinds::FLUSH,
            Self::Discard => RequestKinds::DISCARD,
        }
    }

    /// The name that [`Error::Io`] gives.
    #[must_use]
    pub fn op(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Fua => "FUA write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        }
    }
}

/// A request on its way to a device.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Kind of the request.
    pub kind: RequestKind,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
    /// The data of a write; the pieces of a vectored write are concatenated.
    pub bytes: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// A request without data.
    #[must_use]
    pub fn new(kind: RequestKind, offset: u64, len: u64) -> Self {
        Self {
            kind,
            offset,
            len,
            bytes: None,
        }
    }

    /// A write of `bytes`.
    #[must_use]
    pub fn write(kind: RequestKind, offset: u64, bytes: &'a [u8]) -> Self {
        Self {
            kind,
            offset,
            len: bytes.len() as u64,
            bytes: Some(bytes),
        }
    }

    /// True if the request touches a byte of `range`. A flush touches none.
    #[must_use]
    pub fn touches(&self, range: &std::ops::Range<u64>) -> bool {
        self.offset < range.end && range.start < self.offset.saturating_add(self.len)
    }

    /// The error of a medium that fails the request (`EIO`).
    pub(crate) fn failure(&self, device: &str) -> Error {
        let source = rustix::io::Errno::IO;
        Error::io(device, self.kind.op(), self.offset, self.len, source)
    }
}
