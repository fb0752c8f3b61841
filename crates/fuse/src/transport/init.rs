//! The handshake: what kernel and server agree on.

use std::io;

use zerocopy::IntoBytes;

use super::device::Device;
use super::{HEADROOM, MAX_IO};
use crate::wire::abi::{InHeader, InitIn, InitOut};
use crate::wire::flags::InitFlags;
use crate::wire::{self, MAJOR, MINOR, OLDEST_MINOR, Opcode, Operation};

/// Readahead and write-back requests that the kernel keeps under way.
pub(super) const MAX_BACKGROUND: u16 = 128;

/// What the mount's options ask for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wishes {
    pub(super) writeback: bool,
    pub(super) posix_acl: bool,
    pub(super) io_uring: bool,
}

/// What was agreed on, as far as later requests depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) writeback: bool,
    pub(super) long_setxattr: bool,
    /// `sync(1)` and `syncfs(2)` reach the server.
    pub(super) syncfs: bool,
    /// The kernel can be asked to forget nodes.
    pub(super) prune: bool,
}

/// Since this minor version of the protocol the kernel can be asked to forget nodes.
const PRUNE_MINOR: u32 = 45;

impl Wishes {
    /// All that we would like, offered or not.
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

/// The kernel's first request, in a version of the protocol that we speak.
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

    /// What `wishes` come to. Nothing is sent.
    pub(super) fn agreed(&self, wishes: Wishes) -> Agreed {
        negotiate(&self.init, wishes).1
    }

    /// Answers: from now on there are requests.
    ///
    /// # Errors
    /// The connection is gone.
    pub(super) fn accept(&self, device: &Device, wishes: Wishes) -> io::Result<()> {
        let (out, _) = negotiate(&self.init, wishes);
        let missing = wishes.flags() - InitFlags::from_bits_truncate(offered(&self.init));
        if !missing.is_empty() {
            let InitIn { major, minor, .. } = self.init;
            log::info!("the kernel's FUSE {major}.{minor} does not offer {missing:?}");
        }
        device.answer(self.unique, out.as_bytes())
    }

    /// Answers that there will be no service.
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
/// The protocol is unknown or too old, or the connection is gone.
pub(super) fn receive(device: &Device) -> io::Result<Handshake> {
    let mut buffer = vec![0; HEADROOM + HEADROOM];
    loop {
        let Some(len) = device.receive(&mut buffer)? else {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        };
        let (header, init) = first(buffer.get(..len).unwrap_or(&[]))?;
        if init.major > MAJOR {
            // Told which major version we know, it asks again in that one.
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
                "the kernel speaks FUSE {}.{}, at least {MAJOR}.{OLDEST_MINOR} is needed",
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
        Ok(_) => Err(io::Error::other("the first request is no handshake")),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn negotiate(init: &InitIn, wishes: Wishes) -> (InitOut, Agreed) {
    let agreed = wishes.flags() & InitFlags::from_bits_truncate(offered(init));
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

    const ALL: Wishes = Wishes {
        writeback: true,
        posix_acl: true,
        io_uring: true,
    };

    #[test]
    fn only_what_is_offered_is_agreed_on() {
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
        let without = Wishes {
            writeback: false,
            posix_acl: false,
            io_uring: false,
        };
        assert!(!negotiate(&init, without).1.writeback);
        assert_eq!(out.max_readahead, MAX_IO);
    }
}
