//! The handshake: the kernel and the server agree on the protocol.

use std::io;

use zerocopy::IntoBytes;

use super::device::{Device, HEADROOM};
use crate::options::MAX_IO;
use crate::wire::abi::{InHeader, InitIn, InitOut};
use crate::wire::flags::InitFlags;
use crate::wire::{self, MAJOR, MINOR, OLDEST_MINOR, Opcode, Operation};

/// Most readahead and write-back requests that the kernel keeps in flight.
pub(super) const MAX_BACKGROUND: u16 = 128;

/// The requests of the mount's options.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) writeback: bool,
    pub(super) posix_acl: bool,
    pub(super) io_uring: bool,
}

/// Results of the handshake that later requests depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) writeback: bool,
    pub(super) long_setxattr: bool,
    /// `sync(1)` and `syncfs(2)` reach the server.
    pub(super) syncfs: bool,
    /// The kernel can forget nodes on request.
    pub(super) prune: bool,
    /// The kernel can drop all names at once.
    pub(super) drops_names: bool,
}

/// First minor version of the protocol in which the kernel can drop all names at once.
const EPOCH_MINOR: u32 = 44;
/// First minor version of the protocol in which the kernel can forget nodes on request.
const PRUNE_MINOR: u32 = 45;

impl Wanted {
    /// All flags that the server requests, offered or not.
    fn flags(self) -> InitFlags {
        let mut wanted = InitFlags::ASYNC_READ
            | InitFlags::ASYNC_DIO
            | InitFlags::BIG_WRITES
            | InitFlags::CACHE_SYMLINKS
            | InitFlags::DIRECT_IO_ALLOW_MMAP
            | InitFlags::DONT_MASK
            | InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO
            | InitFlags::EXPLICIT_INVAL_DATA
            | InitFlags::EXPORT_SUPPORT
            | InitFlags::HANDLE_KILLPRIV_V2
            | InitFlags::HAS_SYNCFS
            | InitFlags::INIT_EXT
            | InitFlags::MAX_PAGES
            | InitFlags::NO_OPENDIR_SUPPORT
            | InitFlags::NO_OPEN_SUPPORT
            | InitFlags::PARALLEL_DIROPS
            | InitFlags::SETXATTR_EXT;
        wanted.set(InitFlags::WRITEBACK_CACHE, self.writeback);
        wanted.set(InitFlags::POSIX_ACL, self.posix_acl);
        wanted.set(InitFlags::OVER_IO_URING, self.io_uring);
        wanted
    }
}

/// The kernel's first request, in a supported version of the protocol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handshake {
    unique: u64,
    init: InitIn,
}

impl Handshake {
    /// Whether requests may come through io_uring.
    pub(super) fn offers_io_uring(&self) -> bool {
        InitFlags::from_bits_truncate(offered(&self.init)).contains(InitFlags::OVER_IO_URING)
    }

    /// The result that `wanted` would have. Sends nothing.
    pub(super) fn agreed(&self, wanted: Wanted) -> Agreed {
        negotiate(&self.init, wanted).1
    }

    /// Answers the handshake: from now on the kernel sends requests.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn accept(&self, device: &Device, wanted: Wanted) -> io::Result<()> {
        let (out, _) = negotiate(&self.init, wanted);
        let missing = wanted.flags() - InitFlags::from_bits_truncate(offered(&self.init));
        if !missing.is_empty() {
            let InitIn { major, minor, .. } = self.init;
            log::info!("the kernel's FUSE {major}.{minor} does not offer {missing:?}");
        }
        device.answer(self.unique, out.as_bytes())
    }

    /// Answers that the server will not serve.
    pub(super) fn refuse(&self, device: &Device) {
        let _ = device.refuse(self.unique, libc::EPROTO);
    }
}

fn offered(init: &InitIn) -> u64 {
    u64::from(init.flags) | (u64::from(init.flags2) << 32)
}

/// Reads the kernel's first request.
///
/// # Errors
/// The protocol is unknown or too old, or the connection has ended.
pub(super) fn receive(device: &Device) -> io::Result<Handshake> {
    let mut buffer = vec![0; HEADROOM + HEADROOM];
    loop {
        let Some(len) = device.receive(&mut buffer)? else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        let (header, init) = first(buffer.get(..len).unwrap_or(&[]))?;
        if init.major > MAJOR {
            // The kernel repeats its request in the major version of this answer.
            let out = InitOut {
                major: MAJOR,
                minor: MINOR,
                ..InitOut::default()
            };
            device.answer(header.unique, out.as_bytes())?;
            continue;
        }
        let handshake = Handshake {
            unique: header.unique,
            init,
        };
        if init.major < MAJOR || init.minor < OLDEST_MINOR {
            handshake.refuse(device);
            return Err(io::Error::other(format!(
                "the kernel has FUSE {}.{}, but at least {MAJOR}.{OLDEST_MINOR} is needed",
                init.major, init.minor
            )));
        }
        return Ok(handshake);
    }
}

fn first(message: &[u8]) -> io::Result<(InHeader, InitIn)> {
    let decoded = wire::split_message(message).and_then(|(header, body)| {
        let opcode = Opcode::try_from(header.opcode)?;
        Operation::decode(opcode, body, false).map(|operation| (header, operation))
    });
    match decoded {
        Ok((header, Operation::Init(init))) => Ok((header, init)),
        Ok(_) => Err(io::Error::other("the first request is not a handshake")),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn negotiate(init: &InitIn, wanted: Wanted) -> (InitOut, Agreed) {
    let agreed = wanted.flags() & InitFlags::from_bits_truncate(offered(init));
    let [flags, flags2] = halves(agreed.bits());
    let pages = usize::try_from(MAX_IO).unwrap_or(0) / rustix::param::page_size();
    let out = InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: init.max_readahead.min(MAX_IO),
        flags,
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND / 4 * 3,
        max_write: MAX_IO,
        time_gran: 1,
        max_pages: u16::try_from(pages.max(1)).unwrap_or(u16::MAX),
        flags2,
        ..InitOut::default()
    };
    let agreed = Agreed {
        writeback: agreed.contains(InitFlags::WRITEBACK_CACHE),
        long_setxattr: agreed.contains(InitFlags::SETXATTR_EXT),
        syncfs: agreed.contains(InitFlags::HAS_SYNCFS),
        prune: init.minor >= PRUNE_MINOR,
        drops_names: init.minor >= EPOCH_MINOR,
    };
    (out, agreed)
}

/// Lower and upper 32 bits.
fn halves(bits: u64) -> [u32; 2] {
    let half = |shift: u32| u32::try_from((bits >> shift) & u64::from(u32::MAX)).unwrap_or(0);
    [half(0), half(32)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wanted = Wanted {
        writeback: true,
        posix_acl: true,
        io_uring: true,
    };

    #[test]
    fn only_offered_features_are_agreed_on() {
        let init = InitIn {
            major: 7,
            minor: 31,
            max_readahead: 1 << 17,
            flags: 0,
            ..InitIn::default()
        };
        let (out, agreed) = negotiate(&init, ALL);
        assert_eq!((out.flags, out.flags2), (0, 0));
        assert_eq!(out.max_readahead, 1 << 17);
        let nothing = Agreed {
            writeback: false,
            long_setxattr: false,
            syncfs: false,
            prune: false,
            drops_names: false,
        };
        assert_eq!(agreed, nothing);
    }

    #[test]
    fn truncation_is_never_left_to_an_open_that_is_not_sent() {
        let init = InitIn {
            major: 7,
            minor: 45,
            flags: u32::MAX,
            flags2: u32::MAX,
            max_readahead: u32::MAX,
            ..InitIn::default()
        };
        let (out, agreed) = negotiate(&init, ALL);
        let flags =
            InitFlags::from_bits_retain(u64::from(out.flags) | (u64::from(out.flags2) << 32));
        assert_eq!(flags, ALL.flags());
        assert!(!flags.contains(InitFlags::ATOMIC_O_TRUNC));
        assert!(agreed.writeback && agreed.long_setxattr && agreed.syncfs && agreed.prune);
        assert!(agreed.drops_names);
        let without = Wanted {
            writeback: false,
            posix_acl: false,
            io_uring: false,
        };
        assert!(!negotiate(&init, without).1.writeback);
        assert_eq!(out.max_readahead, MAX_IO);
    }
}
