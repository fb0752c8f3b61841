//! A mounted file system, from mount to unmount.
//!
//! # How it works
//!
//! A session serves until one of two things happens:
//! - The kernel ends the connection after an unmount. The transport's threads return.
//! - The session is *abandoned*: [`Session::unmount`] found the mount busy, detached it lazily, and
//!   its users did not close their files within the grace period. The threads cannot be woken from
//!   their read. They stay until the process ends, and the dispatcher answers everything with
//!   `EIO`.
//!
//! [`Session::wait`] returns in both cases. The engine stays mounted: making everything durable is
//! the caller's last step. Before it abandons a session, `unmount` has the kernel write back its
//! dirty pages. Tests: the cases about unmounting in `tests/mount/sessions.rs`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sapwood_vfs::FileSystem;

use crate::block_mount;
use crate::broker::Broker;
use crate::bulk::Service;
use crate::dispatch::Dispatcher;
use crate::error::MountError;
use crate::mountpoint::{self, MountPoint};
use crate::options::MountOptions;
use crate::request::Synchronous;
use crate::transport::Transport;
use crate::unmount::UnmountError;
use sapwood_block::mount_table::mounted_on;
use sapwood_vfs::Choice;

/// Mounts `fs` on `dir`. On return the kernel and the daemon have agreed on the protocol: the mount
/// is up. It stays until it is unmounted, and outlives the returned [`Session`].
///
/// # Errors
/// See the variants of [`MountError`].
pub fn mount(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    options: &MountOptions,
) -> Result<Session, MountError> {
    mount_through(fs, dir, options, None)
}

/// Mounts like [`mount`], with a mount that `broker` makes and ends, if there is one. The broker's
/// process was given its options.
///
/// # Errors
/// The errors of [`mount`].
pub fn mount_through(
    fs: Arc<dyn FileSystem>,
    dir: &Path,
    options: &MountOptions,
    broker: Option<&Broker>,
) -> Result<Session, MountError> {
    match attempt(&fs, dir, options, broker) {
        // A connection that agreed to io_uring cannot go back to `/dev/fuse`.
        Err(MountError::Session(error)) if options.io_uring == Choice::Auto => {
            log::warn!("mounting once more without io_uring: {error}");
            let plain = MountOptions {
                io_uring: Choice::Off,
                ..options.clone()
            };
            attempt(&fs, dir, &plain, broker)
        }
        result => result,
    }
}

fn attempt(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    options: &MountOptions,
    broker: Option<&Broker>,
) -> Result<Session, MountError> {
    let read_only = options.read_only || fs.read_only();
    let (mount_point, device) = mountpoint::attach(dir, options, read_only, broker)?;
    let dispatcher = Dispatcher::new(Arc::clone(fs), options.ttl)
        .connecting_through(broker.cloned())
        .synchronous(Synchronous {
            all: options.sync,
            names: options.dirsync,
        })
        .telling(options.told.clone());
    let dispatcher = Arc::new(dispatcher);
    let shared = Arc::new(Shared {
        mount_point,
        dispatcher: Arc::clone(&dispatcher),
        busy_grace: options.busy_grace,
        state: Mutex::new(State::Serving),
        ended: Condvar::new(),
        finished: Mutex::new(false),
        finish: Condvar::new(),
        unmounting: Mutex::new(()),
    });
    match start(&shared, device, options, read_only) {
        Ok(()) => {
            shared.note_device();
            let owner = Arc::new(Owner(Arc::clone(&shared)));
            Ok(Session {
                shared,
                _owner: owner,
            })
        }
        Err(error) => {
            // A mount without a daemon would hang every process that accesses it.
            if let Err(left) = shared.mount_point.abort() {
                log::warn!("{} stays mounted: {left}", dir.display());
            }
            Err(MountError::Session(error))
        }
    }
}

fn start(
    shared: &Arc<Shared>,
    device: OwnedFd,
    options: &MountOptions,
    read_only: bool,
) -> io::Result<()> {
    let dispatcher = Arc::clone(&shared.dispatcher);
    let at_the_end = Arc::downgrade(shared);
    let wait_for_engine = move || {
        if let Some(shared) = at_the_end.upgrade() {
            shared.wait_for_engine();
        }
    };
    let transport = Transport::handshake(
        device,
        shared.mount_point.path(),
        dispatcher,
        Box::new(wait_for_engine),
        options,
        read_only,
    )?;
    let passed_on = shared.mount_point.is_block() && block_mount::passes_sync();
    let receives_sync = passed_on || transport.receives_sync();
    shared.dispatcher.set_receives_sync(receives_sync);
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name("fuse-session".to_owned())
        .spawn(move || {
            let result = transport.serve();
            shared.end(State::Ended(result));
        })?;
    Ok(())
}

#[derive(Debug)]
enum State {
    Serving,
    Ended(io::Result<()>),
    Abandoned,
}

#[derive(Debug)]
struct Shared {
    mount_point: MountPoint,
    dispatcher: Arc<Dispatcher>,
    busy_grace: Duration,
    state: Mutex<State>,
    ended: Condvar,
    /// True once the engine is unmounted, or no thread waits for it any more.
    finished: Mutex<bool>,
    finish: Condvar,
    /// Serializes unmounts.
    unmounting: Mutex<()>,
}

impl Shared {
    /// Bulk work is refused if the device number of the mount is unknown.
    fn note_device(&self) {
        if let Some(entry) = mounted_on(self.mount_point.path()) {
            let (major, minor) = entry.device;
            let device = rustix::fs::makedev(major, minor);
            self.dispatcher.bulk().set_mount(device);
        }
    }

    fn end(&self, end: State) {
        let mut state = self.state.lock();
        if matches!(*state, State::Serving) {
            *state = end;
        }
        self.ended.notify_all();
    }

    /// Waits for the end of the session and of the engine. The kernel's last request
    /// (`FUSE_DESTROY`, only in a mount of type `fuseblk`) calls this in a request thread.
    fn wait_for_engine(&self) {
        if !*self.finished.lock() {
            self.dispatcher.close();
        }
        self.end(State::Ended(Ok(())));
        let mut finished = self.finished.lock();
        self.finish.wait_while(&mut finished, |finished| !*finished);
    }

    fn finish(&self) {
        *self.finished.lock() = true;
        self.finish.notify_all();
    }

    /// Waits at most `grace` for the end. True if the session has ended.
    fn wait_for(&self, grace: Duration) -> bool {
        let mut state = self.state.lock();
        self.ended
            .wait_while_for(&mut state, |state| matches!(state, State::Serving), grace);
        !matches!(*state, State::Serving)
    }
}

/// A mounted file system. Clones are cheap and refer to the same session. Dropping it does not
/// unmount.
#[derive(Debug, Clone)]
pub struct Session {
    shared: Arc<Shared>,
    _owner: Arc<Owner>,
}

/// Finishes the session when the last [`Session`] is dropped, so that no thread waits for the
/// engine.
#[derive(Debug)]
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Session {
    /// The absolute path of the mount point.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        self.shared.mount_point.path()
    }

    /// Unmounts. If the mount is in use, detaches it: its name disappears at once, and users that
    /// still hold files open after [`MountOptions::busy_grace`] get `EIO`. After a success the
    /// session has ended and nothing calls the engine any more. Does nothing if the session has
    /// ended. Must not be called by a thread that serves the mount.
    ///
    /// # Errors
    /// The kernel or `fusermount3` refused for another reason; the session continues.
    pub fn unmount(&self) -> Result<(), UnmountError> {
        let shared = &*self.shared;
        let _one = shared.unmounting.lock();
        if shared.wait_for(Duration::ZERO) {
            return Ok(());
        }
        // The engine is unmounted after this call, so the kernel must not wait for it here.
        shared.finish();
        match shared.mount_point.unmount() {
            Ok(()) => {}
            Err(UnmountError::Busy(path)) => {
                log::warn!("{} is in use: detaching it", path.display());
                shared.mount_point.detach_busy()?;
            }
            Err(error) => return Err(error),
        }
        // After a plain unmount the last requests may still be in flight.
        if shared.wait_for(shared.busy_grace) {
            return Ok(());
        }
        shared.dispatcher.bulk().end();
        shared.dispatcher.close();
        shared.end(State::Abandoned);
        Ok(())
    }

    /// Whether `umount(2)` waits until the engine is unmounted: the mount is of type `fuseblk`.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.shared.mount_point.is_block()
    }

    /// Whether `sync(1)` and `syncfs(2)` wait until the engine has made everything durable.
    #[must_use]
    pub fn receives_sync(&self) -> bool {
        self.shared.dispatcher.receives_sync()
    }

    /// Reports how the mount ended to the processes that unmount it
    /// ([`control::report_end`](crate::control::report_end)), with a reason if the image lacks
    /// something that was written. Call it before the image is released.
    pub fn report_end(&self, failure: Option<&str>) {
        self.shared.dispatcher.report_end(failure);
    }

    /// Lets `umount(2)` return, if it [waits](Self::waits). Dropping the last clone of the session
    /// does the same.
    pub fn finish(&self) {
        self.shared.finish();
    }

    /// Sets the service for [bulk work](crate::bulk) of this mount.
    pub fn serve_bulk(&self, service: Arc<dyn Service>) {
        self.shared.dispatcher.serve_bulk(service);
    }

    /// Sets the service that makes the mount writable, for the clients of
    /// [`become_writable`](crate::bulk::become_writable).
    pub fn serve_writing(&self, service: Arc<dyn Service>) {
        self.shared.dispatcher.bulk().set_writing(service);
    }

    /// Sets the service that sends and receives snapshots, for the clients of
    /// [`connect_for_streams`](crate::bulk::connect_for_streams).
    pub fn serve_streams(&self, service: Arc<dyn Service>) {
        self.shared.dispatcher.bulk().set_streams(service);
    }

    /// Sets the service for clients that scrub, balance, or change the devices of the file system;
    /// only the first call counts. See [`connect_for_upkeep`](crate::bulk::connect_for_upkeep).
    pub fn serve_upkeep(&self, service: Arc<dyn Service>) {
        self.shared.dispatcher.bulk().set_upkeep(service);
    }

    /// Replaces the read-only engine by the one that `open` returns, between two requests. The
    /// kernel then writes to it after a remount. With `elsewhere` the new engine may show other
    /// names and content than the old one, and the kernel drops its caches. Commands get `told` as
    /// the options from now on. May be called once.
    ///
    /// # Errors
    /// The errors of `open`; the engine stays.
    pub fn replace_engine<E>(
        &self,
        told: String,
        elsewhere: bool,
        open: impl FnOnce() -> Result<Arc<dyn FileSystem>, E>,
    ) -> Result<(), E> {
        let dispatcher = &self.shared.dispatcher;
        let cached = dispatcher.replace_engine(told, open)?;
        if let Some(notify) = dispatcher.bulk().notify().filter(|_| elsewhere) {
            notify.drop_all(&cached);
        }
        Ok(())
    }

    /// Whether [`replace_engine`](Self::replace_engine) can make the kernel drop its caches: since
    /// protocol 7.44 (Linux 6.16).
    #[must_use]
    pub fn drops_names(&self) -> bool {
        self.shared.dispatcher.drops_names()
    }

    /// Makes everything durable in the engine.
    ///
    /// # Errors
    /// Errors of the engine.
    pub fn sync(&self) -> sapwood_vfs::Result<()> {
        self.shared.dispatcher.sync_engine()
    }

    /// Ends all bulk work, and waits until no service runs. To be called after the end of the
    /// session, before the engine is unmounted.
    pub fn end_bulk(&self) {
        self.shared.dispatcher.bulk().end();
    }

    /// How many requests of each kind the kernel has sent since the mount, by the protocol's names.
    #[must_use]
    pub fn requests(&self) -> Vec<(String, u64)> {
        self.shared.dispatcher.requests().all()
    }

    /// True once the session has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.wait_for(Duration::ZERO)
    }

    /// Waits until the session has ended: by `umount`, `fusermount3 -u` or
    /// [`unmount`](Self::unmount). Nothing calls the engine any more then; the caller unmounts it.
    ///
    /// # Errors
    /// The connection to the kernel failed.
    pub fn wait(&self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        self.shared
            .ended
            .wait_while(&mut state, |state| matches!(state, State::Serving));
        match std::mem::replace(&mut *state, State::Ended(Ok(()))) {
            State::Ended(result) => result,
            State::Serving | State::Abandoned => Ok(()),
        }
    }
}
