//! The transport on the crate `fuser`: requests in, answers out. The only module that
//! knows `fuser`.
//!
//! What `fuser` 0.18 does not carry, and what stands in for it:
//! - `FUSE_TMPFILE`, `FUSE_STATX` (creation time), `FUSE_SYNCFS`: unknown to it; it answers
//!   `ENOSYS`, and the kernel does without.
//! - Whether the caller of a truncation may keep set-id bits: root is taken to.
//! - The clearing of the set-group-id bit when an ACL is set (`FUSE_SETXATTR_EXT`).
//! - Times before 1970: it adds the nanoseconds on the wrong side; undone in [`convert::timestamp`].
//! - A node's id is always the inode number that `stat` shows.

mod convert;
mod helper;

mod server;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use fuser::{Config, SessionACL};

use self::server::Server;
use crate::dispatch::Dispatcher;
use crate::options::{Access, MountOptions};

/// An answered handshake, ready to serve.
pub(crate) struct Transport(fuser::Session<Server>);

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
        let mut config = Config::default();
        config.n_threads = Some(options.thread_count());
        // An ordinary user may not be able to open the device a second time.
        config.clone_fd = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_ok();
        // With `Owner` the kernel itself refuses others, but not its own write-back threads,
        // whom `fuser` would refuse: so that check stays off.
        let acl = match options.access {
            Access::OwnerAndRoot => SessionACL::RootAndOwner,
            Access::Owner | Access::All => SessionACL::All,
        };
        let (later, jobs) = mpsc::channel();
        let server = Server {
            dispatcher: Arc::clone(&dispatcher),
            later,
            writeback: options.writeback_cache && !read_only,
            posix_acl: options.default_permissions,
        };
        let session = fuser::Session::from_fd(server, device, acl, config)?;
        let notifier = session.notifier();
        std::thread::Builder::new()
            .name("fuse-helper".to_owned())
            .spawn(move || helper::run(&jobs, &notifier, &dispatcher))?;
        Ok(Self(session))
    }

    /// Serves requests until the file system is unmounted or the connection ends.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn serve(self) -> io::Result<()> {
        self.0.run()
    }
}
