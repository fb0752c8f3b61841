//! Requests in, answers out: our own FUSE transport.
//!
//! # How it works
//!
//! [`Transport::handshake`] answers the kernel's first request ([`init`]) and thereby
//! brings the mount up. [`Transport::serve`] then runs request threads until the kernel
//! ends the connection. Each request is decoded by `wire`, handed to the dispatcher
//! by [`server::Server`] and answered from the same thread, into a buffer that the thread
//! keeps: no request costs an allocation of the transport's.
//!
//! `/dev/fuse` ([`device`]): each thread has a descriptor of its own (a clone, with its own
//! queue of requests under way in the kernel), reads a request and writes the answer.
//! io_uring ([`uring`]): where the kernel offers it, most requests come that way; forgets do not,
//! and are taken in batches ([`forgets`]). [`crew`] adds threads while requests take long.
//!
//! What must wait for the kernel first ([`later`]) must not wait in a thread that the
//! kernel in turn may need.
//!
//! Trouble: a request that is malformed is answered with an errno and logged (tests in
//! `wire/tests.rs`); a panic of the engine is answered with `EIO`, and so is everything
//! after it, because what the engine holds in memory can no longer be believed (test in
//! `server.rs`); an answer that the kernel no longer wants gives back the references that
//! it carried (test in `server.rs`); a kernel that ends the connection ends the threads
//! (`tests/mount/sessions.rs`).

mod content;
mod crew;
mod device;
mod forgets;
mod init;
mod later;
mod server;
mod uring;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::dispatch::Dispatcher;
use crate::options::{MAX_IO, MountOptions};
use crate::permissions::{Asking, kernel_checks};
use crew::Crew;
use device::{Device, Plain};
use init::{Handshake, Wishes};
use later::Helper;
use sapwood_vfs::Choice;
use server::Server;
use uring::{Rings, Shared};

/// Room for headers and the fixed part of any request or answer, before or behind `MAX_IO`.
const HEADROOM: usize = 4096;
/// A request or answer above this, in bytes, leaves memory behind that is given back once
/// nothing more comes for [`KEEP`].
const LARGE: usize = 128 << 10;
const KEEP: std::time::Duration = std::time::Duration::from_secs(1);
/// Threads on `/dev/fuse` beside io_uring: for forgets.
const BESIDE_RINGS: usize = 2;

/// Called with the kernel's last request, which is answered when it returns.
pub(crate) type Farewell = Box<dyn Fn() + Send + Sync>;

/// An answered handshake, ready to serve.
pub(crate) struct Transport {
    device: Arc<Device>,
    server: Arc<Server>,
    crew: Arc<Crew>,
    helper: Helper,
    /// Threads on `/dev/fuse`: at first, and at most.
    threads: (usize, usize),
    /// Most requests come through io_uring.
    rings: bool,
    hears_sync: bool,
}

impl Transport {
    /// Answers the kernel's first request on `device`, which serves the mount on
    /// `mount_point`.
    ///
    /// # Errors
    /// The kernel's protocol is unknown, the connection is gone, or there is no io_uring
    /// where it was asked for.
    pub(crate) fn handshake(
        device: OwnedFd,
        mount_point: &Path,
        dispatcher: Arc<Dispatcher>,
        farewell: Farewell,
        options: &MountOptions,
        read_only: bool,
    ) -> io::Result<Self> {
        let device = Arc::new(Device::new(device));
        let handshake = init::receive(&device)?;
        let mut wishes = Wishes {
            writeback: options.writeback_cache && !read_only,
            posix_acl: kernel_checks(options),
            io_uring: false,
        };
        let agreed = handshake.agreed(wishes);
        dispatcher.set_writeback(agreed.writeback);
        dispatcher.set_prunes(agreed.prune);
        let server = Arc::new(Server::new(
            dispatcher,
            agreed.long_setxattr,
            Asking::of(options),
            farewell,
        ));
        let transport = Self {
            helper: Helper::start(&device, &server)?,
            device,
            server,
            crew: Arc::default(),
            threads: options.thread_count(),
            rings: false,
            hears_sync: agreed.syncfs,
        };
        let rings = match transport.rings(&handshake, mount_point, options) {
            Ok(rings) => rings,
            Err(error) => {
                handshake.refuse(&transport.device);
                return Err(error);
            }
        };
        wishes.io_uring = rings.is_some();
        handshake.accept(&transport.device, wishes)?;
        let Some(rings) = rings else {
            return Ok(transport);
        };
        rings.begin().map_err(|error| {
            io::Error::other(format!(
                "FUSE over io_uring: {error} (io_uring=off does without)"
            ))
        })?;
        log::debug!("requests come through io_uring");
        Ok(Self {
            rings: true,
            ..transport
        })
    }

    /// Rings, if they are wanted and can be had.
    fn rings(
        &self,
        handshake: &Handshake,
        mount_point: &Path,
        options: &MountOptions,
    ) -> io::Result<Option<Rings>> {
        if options.io_uring == Choice::Off {
            return Ok(None);
        }
        let prepared = if handshake.offers_io_uring() {
            let shared = Shared::new(
                &self.device,
                &self.server,
                &self.crew,
                &self.helper,
                mount_point,
            );
            Rings::prepare(&Arc::new(shared), options.threads, options.most_buffers(1))
        } else {
            Err(io::Error::other(
                "the kernel does not offer FUSE over io_uring \
                 (is /sys/module/fuse/parameters/enable_uring on?)",
            ))
        };
        match prepared {
            Ok(rings) => Ok(Some(rings)),
            Err(error) if options.io_uring == Choice::On => Err(error),
            Err(error) => {
                log::info!("requests come through /dev/fuse: {error}");
                Ok(None)
            }
        }
    }

    /// Whether the kernel passes `sync` on, because it was agreed on.
    pub(crate) fn hears_sync(&self) -> bool {
        self.hears_sync
    }

    /// Serves requests until the file system is unmounted or the connection ends.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn serve(self) -> io::Result<()> {
        if self.rings {
            self.server.beside_rings(&self.device)?;
            for number in 0..BESIDE_RINGS {
                let (server, device) = (Arc::clone(&self.server), Arc::clone(&self.device));
                match self.crew.start(move || server.serve_beside(&device)) {
                    Err(error) if number == 0 => return Err(error),
                    Err(error) => log::warn!("fewer threads for forgets than wanted: {error}"),
                    Ok(()) => {}
                }
            }
        } else {
            let (first, _) = self.threads;
            let plain = Plain::new(
                self.device,
                self.server,
                self.helper,
                &self.crew,
                self.threads,
            );
            plain.start(first)?;
        }
        self.crew.wait()
    }
}
