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

mod device;
mod init;
mod later;
mod server;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::dispatch::Dispatcher;
use crate::options::{Access, MountOptions};
use device::Device;
use later::Helper;
use server::Server;

/// Largest read or write in bytes: what the kernel allows by default.
const MAX_IO: u32 = 1 << 20;
/// Room for headers and the fixed part of any request or answer, before or behind `MAX_IO`.
const HEADROOM: usize = 4096;

/// An answered handshake, ready to serve.
pub(crate) struct Transport {
    device: Arc<Device>,
    server: Arc<Server>,
    threads: usize,
}

impl Transport {
    /// Answers the kernel's first request on `device`.
    ///
    /// # Errors
    /// The kernel's protocol is unknown, or the connection is gone.
    pub(crate) fn handshake(
        device: OwnedFd,
        dispatcher: Arc<Dispatcher>,
        options: &MountOptions,
        read_only: bool,
    ) -> io::Result<Self> {
        let device = Device::new(device);
        let wishes = init::Wishes {
            writeback: options.writeback_cache && !read_only,
            posix_acl: options.default_permissions,
        };
        let agreed = init::answer(&device, wishes)?;
        dispatcher.set_writeback(agreed.writeback);
        // With `Owner` the kernel itself refuses others, but not its own write-back threads.
        let only = match options.access {
            Access::OwnerAndRoot => Some(rustix::process::geteuid().as_raw()),
            Access::Owner | Access::All => None,
        };
        Ok(Self {
            device: Arc::new(device),
            server: Arc::new(Server::new(dispatcher, agreed.long_setxattr, only)),
            threads: options.thread_count(),
        })
    }

    /// Serves requests until the file system is unmounted or the connection ends.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn serve(self) -> io::Result<()> {
        let helper = Helper::start(&self.device, &self.server)?;
        let mut threads = Vec::with_capacity(self.threads);
        for number in 0..self.threads {
            // An ordinary user may not be able to open the device a second time.
            let device = match self.device.another() {
                Ok(device) => Arc::new(device),
                Err(error) => {
                    log::debug!("request threads share a descriptor: {error}");
                    Arc::clone(&self.device)
                }
            };
            let (server, helper) = (Arc::clone(&self.server), helper.clone());
            let spawned = std::thread::Builder::new()
                .name(format!("fuse-{number}"))
                .spawn(move || device::serve(&device, &server, &helper));
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                Err(error) => log::warn!("fewer request threads than wanted: {error}"),
            }
        }
        drop(helper);
        let mut result = Ok(());
        for thread in threads {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a request thread panicked")));
            result = result.and(ended);
        }
        result
    }
}
