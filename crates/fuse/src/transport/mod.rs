//! Sapwood's own FUSE transport: receives requests and sends answers.
//!
//! # How it works
//!
//! [`Transport::handshake`] answers the kernel's first request ([`init`]), which brings the mount
//! up. [`Transport::serve`] then runs request threads until the kernel ends the connection. `wire`
//! decodes each request, [`server::Server`] passes it to the dispatcher, and the same thread
//! answers it from a buffer that the thread keeps. So the transport allocates nothing per request.
//!
//! - `/dev/fuse` ([`plain`], [`device`]): each thread has its own descriptor (a clone with its own
//!   queue in the kernel), reads a request and writes the answer. Forgets, which have none, go to a
//!   thread of their own ([`deferred`]).
//! - io_uring ([`uring`]): where the kernel offers it, most requests arrive this way. Forgets do
//!   not; they are taken in batches ([`forgets`]).
//! - [`lone`] recognizes a client that sends one request at a time, and saves wake-ups.
//! - [`pool`] adds threads while requests take long.
//! - [`later`] answers requests that must wait for the kernel first, because the kernel may need
//!   the request thread meanwhile.
//!
//! Trouble cases:
//! - A malformed request is answered with an errno and logged (`wire/tests.rs`).
//! - After a panic of the engine, this request and all later ones are answered with `EIO`, because
//!   the engine's memory can no longer be trusted (`server.rs`).
//! - An answer that the kernel no longer wants releases the references in it (`server.rs`).
//! - A kernel that ends the connection ends the threads (`tests/mount/sessions.rs`).

mod content;
mod deferred;
mod device;
mod forgets;
mod init;
mod later;
mod lone;
mod pages;
mod plain;
mod pool;
mod server;
mod uring;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::dispatch::Dispatcher;
use crate::options::MountOptions;
use crate::permissions::{Admission, kernel_checks};
use device::Device;
use init::{Handshake, Wanted};
use later::{Helper, Notifier};
use lone::Lone;
use plain::Plain;
use pool::Pool;
use sapwood_vfs::Choice;
use server::{OnDestroy, Server};
use uring::{Rings, Shared};

/// Threads on `/dev/fuse` when io_uring is in use; they serve forgets.
const FORGET_THREADS: usize = 2;

/// A connection after the handshake, ready to serve.
pub(crate) struct Transport {
    device: Arc<Device>,
    server: Arc<Server>,
    pool: Arc<Pool>,
    lone: Arc<Lone>,
    helper: Helper,
    /// Number of threads on `/dev/fuse`: at the start, and at most.
    threads: (usize, usize),
    /// Most requests come through io_uring.
    rings: bool,
    receives_sync: bool,
}

impl Transport {
    /// Answers the kernel's first request on `device`, which serves the mount on `mount_point`.
    ///
    /// # Errors
    /// The kernel's protocol is unknown, the connection is gone, or io_uring was required but is
    /// not available.
    pub(crate) fn handshake(
        device: OwnedFd,
        mount_point: &Path,
        dispatcher: Arc<Dispatcher>,
        on_destroy: OnDestroy,
        options: &MountOptions,
        read_only: bool,
    ) -> io::Result<Self> {
        let device = Arc::new(Device::new(device));
        let handshake = init::receive(&device)?;
        let mut wanted = Wanted {
            writeback: options.writeback_cache && !read_only,
            posix_acl: kernel_checks(options),
            io_uring: false,
        };
        let agreed = handshake.agreed(wanted);
        dispatcher.set_writeback(agreed.writeback);
        dispatcher.set_prunes(agreed.prune);
        dispatcher.set_drops_names(agreed.drops_names);
        dispatcher
            .bulk()
            .set_notify(Arc::new(Notifier(Arc::clone(&device))));
        let helper = Helper::start(&device, &dispatcher)?;
        let server = Arc::new(Server::new(
            dispatcher,
            agreed.long_setxattr,
            Admission::of(options),
            on_destroy,
        ));
        let transport = Self {
            helper,
            device,
            server,
            pool: Arc::default(),
            lone: Arc::new(Lone::new(options.polling)),
            threads: options.thread_count(),
            rings: false,
            receives_sync: agreed.syncfs,
        };
        let rings = match transport.rings(&handshake, mount_point, options) {
            Ok(rings) => rings,
            Err(error) => {
                handshake.refuse(&transport.device);
                return Err(error);
            }
        };
        wanted.io_uring = rings.is_some();
        handshake.accept(&transport.device, wanted)?;
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

    /// Rings, if the options want them and they are available.
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
                &self.pool,
                &self.lone,
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

    /// Whether the kernel agreed to pass `sync` on.
    pub(crate) fn receives_sync(&self) -> bool {
        self.receives_sync
    }

    /// Serves requests until the file system is unmounted or the connection ends.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn serve(self) -> io::Result<()> {
        self.lone.watch();
        let lone = Arc::clone(&self.lone);
        let pool = Arc::clone(&self.pool);
        let started = self.start();
        let served = started.and_then(|()| pool.wait());
        lone.end();
        served
    }

    /// Starts the threads that serve.
    fn start(self) -> io::Result<()> {
        if self.rings {
            self.server.use_for_forgets(&self.device)?;
            for number in 0..FORGET_THREADS {
                let (server, device) = (Arc::clone(&self.server), Arc::clone(&self.device));
                match self.pool.start(move || server.serve_forgets(&device)) {
                    Err(error) if number == 0 => return Err(error),
                    Err(error) => log::warn!("fewer threads for forgets than wanted: {error}"),
                    Ok(()) => {}
                }
            }
        } else {
            let (first, _) = self.threads;
            let (server, device) = (Arc::clone(&self.server), Arc::clone(&self.device));
            self.server.defer_forgets();
            let deferring = self.pool.start(move || server.serve_deferred(&device));
            let server = Arc::clone(&self.server);
            if let Err(error) = deferring {
                log::warn!("request threads serve forgets: {error}");
                server.end_deferring();
            }
            let plain = Plain::new(
                self.device,
                self.server,
                self.helper,
                &self.pool,
                &self.lone,
                self.threads,
            );
            plain.start(first).inspect_err(|_| server.end_deferring())?;
        }
        Ok(())
    }
}
