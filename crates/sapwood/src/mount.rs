//! Mounting an image with FUSE.
//!
//! [`mount()`] serves a mount from this process. [`control`] sends requests to the daemon of any
//! Sapwood mount, by a path in it: `sync`, subvolumes, counters. [`mounted_on`] and [`mount_table`]
//! find mounts, [`unmount`] ends one. [`daemon`] and [`signals`] are for a process that serves in
//! the background.
//!
//! ```no_run
//! let options = sapwood::Options::default();
//! let mount = sapwood::mount("disk.img", "mnt", &options)?;
//! std::fs::write("mnt/hello", "world")?;
//! mount.unmount()?;
//! mount.wait()?; // the image is complete
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod streams;
mod upkeep;
mod writing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
pub use sapwood_base::memory::available as available_memory;
use sapwood_block::Device;
pub use sapwood_fuse::{
    MountElsewhere, MountEntry, MountOptions, Session, SubvolumeList, UnmountError, broker,
    broker_process, control, daemon, mount_again, mount_table, mounted_elsewhere, mounted_on,
    sandbox, signals, unmount,
};
use sapwood_vfs::{Choice, FileSystem};

use crate::bulk;
use crate::image::{self, Mounted, OpenError, OpenFiles, named};
use crate::options::Options;
use streams::Streams;
use upkeep::Upkeep;
pub use writing::become_writable;
use writing::{Engines, Writing};

/// Interval of commits in a mount whose daemon `sync(1)` does not reach: the same as in the
/// kernel's ext4.
const UNHEARD_COMMIT: Duration = Duration::from_secs(5);

/// Why an image was not mounted, or did not stay so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The image cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The directory cannot be mounted on. The image is unchanged.
    #[error(transparent)]
    Mount(#[from] sapwood_fuse::MountError),
    /// The kernel's requests could not be served.
    #[error("{}", named(path, source))]
    Session {
        /// The directory.
        path: PathBuf,
        /// The error that ended the session.
        source: io::Error,
    },
    /// The mount has ended, and some data that was written since is not in the image.
    #[error("{}", named(image, format_args!("not everything was written: {why}")))]
    Incomplete {
        /// The image.
        image: PathBuf,
        /// The error that lost it.
        why: String,
    },
}

/// An image that is mounted. Dropping it ends neither the mount nor the threads that serve it:
/// [`unmount`](Self::unmount), then [`wait`](Self::wait).
pub struct Mount {
    image: PathBuf,
    dir: PathBuf,
    engines: Arc<Engines>,
    devices: Vec<Arc<dyn Device>>,
    session: Arc<Session>,
    write_protected: bool,
}

/// Mounts an image on a directory, under its real path, and returns when programs can use it.
/// Threads of this process serve it. If no interval of commits was chosen and `sync(1)` does not
/// reach the mount, the interval is 5 seconds. The options `auto_unmount` and `sandbox` are left to
/// the caller.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)); the kernel or `fusermount3` refuses the
/// mount.
pub fn mount(
    image: impl AsRef<Path>,
    dir: impl AsRef<Path>,
    options: &Options,
) -> crate::Result<Mount> {
    let (image, dir) = (image.as_ref(), dir.as_ref());
    let prepared = Prepared::new(image, options)?;
    let files = OpenFiles::open(&prepared.image, &prepared.options)?;
    Ok(prepared.mount(files, dir, None)?)
}

/// Like [`mount()`], for a process that does nothing else: `broker` mounts and unmounts, and this
/// process is confined as the option `sandbox` requires, for the rest of its life and before it
/// reads the first byte of the image. It must have one thread. An image of an NBD server is served
/// without a sandbox, because a reconnect needs sockets. A confined process uses io_uring only with
/// the option `on`, because the sandbox does not see its requests.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)); the broker cannot mount; the sandbox cannot
/// be set up.
pub fn mount_confined(
    image: &Path,
    dir: &Path,
    options: &Options,
    broker: &broker::Broker,
) -> crate::Result<Mount> {
    let mut prepared = Prepared::new(image, options)?;
    let files = OpenFiles::open(&prepared.image, &prepared.options)?;
    let wanted = options.mounting().sandbox;
    if wanted != Choice::Off {
        let strict = wanted == Choice::On;
        if !files.has_export() {
            if prepared.fuse.io_uring == Choice::Auto {
                prepared.fuse.io_uring = Choice::Off;
            }
            let needs = sandbox::Needs::of(&prepared.fuse);
            let confined = sandbox::confine(needs, strict);
            confined.map_err(|error| MountError::from(sapwood_fuse::MountError::Sandbox(error)))?;
        } else if strict {
            let error = sandbox::SandboxError::Connections;
            return Err(MountError::from(sapwood_fuse::MountError::Sandbox(error)).into());
        } else {
            log::info!("without a sandbox: a lost connection must be made again");
        }
    }
    Ok(prepared.mount(files, dir, Some(broker))?)
}

/// The options of the mount that a [`broker`] makes for [`mount_confined`]. `image` is a path from
/// [`located`](image::located).
#[must_use]
pub fn broker_options(image: &Path, options: &Options) -> MountOptions {
    let mut fuse = options.mounting().for_fuse(image);
    fuse.auto_unmount = false;
    fuse
}

/// Serves the bulk work of a session that was not made by [`mount()`]: this process then makes the
/// files of `sapwood untar` and `sapwood cp` into the mount. `fs` is the file system of the
/// session. [`Session::end_bulk`] must be called after the end of the session, before `fs` is
/// unmounted.
pub fn serve_bulk(session: &Session, fs: Arc<dyn FileSystem>) {
    session.serve_bulk(Arc::new(bulk::Daemon::new(fs)));
}

/// The parts of a mount that are settled before the image is opened.
struct Prepared {
    image: PathBuf,
    options: Options,
    fuse: MountOptions,
}

impl Prepared {
    fn new(image: &Path, options: &Options) -> Result<Self, MountError> {
        let (image, mut options) = image::located(image, options)?;
        let mut fuse = broker_options(&image, &options);
        // In addition to the caches, which take a quarter at most.
        fuse.buffer_bytes = Some(sapwood_base::memory::available() / 8);
        if !options.commit_is_chosen() && !sapwood_fuse::will_receive_sync(&fuse) {
            options.set_commit_interval(UNHEARD_COMMIT);
        }
        Ok(Self {
            image,
            options,
            fuse,
        })
    }

    fn mount(
        self,
        files: OpenFiles,
        dir: &Path,
        broker: Option<&broker::Broker>,
    ) -> Result<Mount, MountError> {
        let mut fuse = self.fuse;
        let (fs, devices) = files.mount(&self.options, |_| Ok(()))?;
        report_paused_balance(&fs);
        let write_protected = fs.read_only() && !fuse.read_only;
        fuse.read_only |= write_protected;
        fuse.told = self.options.to_text(fs.image_kind());
        match sapwood_fuse::mount_through(fs.shared(), dir, &fuse, broker) {
            Ok(session) => {
                serve_bulk(&session, fs.shared());
                let session = Arc::new(session);
                let engines = Arc::new(Engines::new(fs));
                session.serve_streams(Arc::new(Streams::new(Arc::clone(&engines))));
                let encrypted = self.options.is_encrypted();
                let upkeep = Upkeep::new(Arc::clone(&engines), devices.clone(), encrypted);
                session.serve_upkeep(Arc::new(upkeep));
                session.serve_writing(Arc::new(Writing {
                    image: self.image.clone(),
                    options: self.options,
                    engines: Arc::clone(&engines),
                    devices: devices.clone(),
                    session: Arc::downgrade(&session),
                    one: Mutex::default(),
                }));
                Ok(Mount {
                    image: self.image,
                    dir: dir.to_owned(),
                    engines,
                    devices,
                    session,
                    write_protected,
                })
            }
            Err(error) => {
                // Nothing was changed yet; the error belongs to the mount.
                let _ = fs.unmount();
                Err(error.into())
            }
        }
    }
}

fn report_paused_balance(fs: &Mounted) {
    if let Mounted::Btrfs(fs) = fs
        && sapwood_btrfs::balance::is_paused(fs).unwrap_or(false)
    {
        log::warn!("a balance is paused: `sapwood balance --resume` continues it");
    }
}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mount")
            .field("image", &self.image)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

impl Mount {
    /// The session with the kernel, which can be ended from another thread.
    #[doc(hidden)]
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The mounted file system. A read-only mount that becomes writable gets another one.
    #[must_use]
    pub fn engine(&self) -> Arc<dyn FileSystem> {
        self.engines.current().shared()
    }

    /// Whether the mount is read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.engines.current().read_only()
    }

    /// Whether it is read-only because the image or device is write-protected.
    #[must_use]
    pub fn is_write_protected(&self) -> bool {
        self.write_protected
    }

    /// Unmounts.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`](crate::ErrorKind::ResourceBusy): files are open in the mount.
    pub fn unmount(&self) -> crate::Result<()> {
        Ok(self.session.unmount()?)
    }

    /// Waits until the image is unmounted, by this process or another one, and completes the image.
    ///
    /// # Errors
    /// The session failed, or not everything that was written is in the image.
    pub fn wait(self) -> crate::Result<()> {
        self.wait_with(|| {})
    }

    /// Like [`wait`](Self::wait), with `ended` called between the end of the mount and the
    /// completion of the image.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    #[doc(hidden)]
    pub fn wait_with(self, ended: impl FnOnce()) -> crate::Result<()> {
        let served = self.session.wait().map_err(|source| MountError::Session {
            path: self.dir.clone(),
            source,
        });
        self.session.end_bulk();
        ended();
        let done = self.complete().and(served);
        let why = done.as_ref().map_err(ToString::to_string).err();
        self.session.report_end(why.as_deref());
        // A program that waits for the kernel's unmount then finds the image complete and unlocked.
        let added = std::mem::take(&mut *self.engines.added.lock());
        for device in self.devices.iter().chain(&added) {
            if let Err(error) = device.release_lock() {
                log::warn!("{error}");
            }
        }
        self.session.finish();
        Ok(done?)
    }

    /// Fails if anything that was written since the mount is not in the image.
    fn complete(&self) -> Result<(), MountError> {
        let fs = self.engines.current();
        let unmounted = fs.unmount();
        let why = match fs.first_error() {
            Some(error) => error,
            None => match unmounted {
                Ok(()) => return Ok(()),
                Err(error) => error.to_string(),
            },
        };
        Err(MountError::Incomplete {
            image: self.image.clone(),
            why,
        })
    }
}
