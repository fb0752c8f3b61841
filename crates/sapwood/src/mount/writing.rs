//! A mount that was made read-only becomes writable.
//!
//! # How it works
//! A confined daemon cannot open its image for writing, and a daemon should do so only for a user
//! who may write to it. So the command that remounts opens the image, and passes the descriptors to
//! the daemon ([`become_writable`]). Between two requests the daemon makes its devices writable and
//! opens a second engine on them. That engine replays a log or journal that the first one left
//! alone. The daemon then transfers the kernel's references to it. Nodes of the kernel are inode
//! numbers, so open files and directories stay as they are. The kernel drops its caches if the
//! first engine showed another state (`norecovery`).
//!
//! If the second engine cannot be opened, the first one stays. Tests: `remount_rw_*` in
//! `tests/suites/mounting/remounts.rs`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use sapwood_block::{Device, Operand};
use sapwood_fuse::Session;
use sapwood_fuse::bulk::{self as socket, Service, Work};
use sapwood_vfs::FileSystem;

use super::serve_bulk;
use crate::image::{self, Mounted};
use crate::kind::Kind;
use crate::options::Options;

/// The engine of a mount, and the one that replaced it.
pub(super) struct Engines {
    first: Mounted,
    writing: OnceLock<Mounted>,
    /// Held for reading while an engine serves a client in addition to the kernel.
    pub(super) in_use: RwLock<()>,
    /// Devices that were added since the mount.
    pub(super) added: Mutex<Vec<Arc<dyn Device>>>,
}

impl Engines {
    pub(super) fn new(first: Mounted) -> Self {
        Self {
            first,
            writing: OnceLock::new(),
            in_use: RwLock::default(),
            added: Mutex::default(),
        }
    }

    pub(super) fn current(&self) -> &Mounted {
        self.writing.get().unwrap_or(&self.first)
    }
}

/// Makes a mount writable.
pub(super) struct Writing {
    pub(super) image: PathBuf,
    pub(super) options: Options,
    pub(super) engines: Arc<Engines>,
    pub(super) devices: Vec<Arc<dyn Device>>,
    pub(super) session: Weak<Session>,
    /// Held while a client is served: one at a time.
    pub(super) one: Mutex<()>,
}

impl Service for Writing {
    fn run(&self, work: Work) {
        let result = self.serve(&work);
        if let Err(why) = &result {
            log::warn!("the mount stays read-only: {why}");
        }
        if let Err(error) = socket::answer(&work.socket, &result) {
            log::info!("a process that remounts is gone: {error}");
        }
    }
}

impl Writing {
    fn serve(&self, work: &Work) -> Result<(), String> {
        let failed = |error: io::Error| error.to_string();
        // Descriptor of the directory.
        work.receive_file().map_err(failed)?;
        let files = self
            .devices
            .iter()
            .map(|_| work.receive_file().map(File::from));
        let files = files.collect::<io::Result<Vec<File>>>().map_err(failed)?;
        let _one = self.one.lock();
        if !self.engines.current().read_only() {
            return Ok(());
        }
        let Some(_idle) = self.engines.in_use.try_write() else {
            return Err("a snapshot of it is being sent, or it is being scrubbed".to_owned());
        };
        let session = self.session.upgrade().ok_or("the mount has ended")?;
        let skipped = self.options.is_without_recovery();
        if skipped && !session.drops_names() {
            return Err(
                "it was mounted with norecovery, and this kernel cannot drop all names: \
                        unmount it, and mount it again"
                    .to_owned(),
            );
        }
        let options = self.options.clone().writing();
        let kind = self.engines.first.image_kind();
        let told = options.to_text(kind);
        session.replace_engine(told, skipped, || self.open(files, kind, &options))?;
        serve_bulk(&session, self.engines.current().shared());
        // The first engine has nothing to write. Unmounting it frees its memory.
        if let Err(error) = self.engines.first.unmount() {
            log::info!("the engine that was read-only: {error}");
        }
        Ok(())
    }

    fn open(
        &self,
        files: Vec<File>,
        kind: Kind,
        options: &Options,
    ) -> Result<Arc<dyn FileSystem>, String> {
        for (device, file) in self.devices.iter().zip(files) {
            let writable = device.make_writable(file);
            writable.map_err(|error| error.to_string())?;
        }
        let opened = image::reopen(&self.image, kind, self.devices.clone(), options);
        let opened = opened.map_err(|error| error.to_string())?;
        if opened.read_only() {
            let _ = opened.unmount();
            return Err("its engine cannot write to it".to_owned());
        }
        let shared = opened.shared();
        let _ = self.engines.writing.set(opened);
        Ok(shared)
    }
}

/// Has the daemon of the read-only mount on `dir` write to its `image`, which may be an operand,
/// and to the further `devices` of a btrfs from now on. The kernel still refuses changes until the
/// mount is remounted.
///
/// # Errors
/// This process may not write to the image; the daemon refuses, and the error has its reason.
pub fn become_writable(dir: &Path, image: &Path, devices: &[PathBuf]) -> io::Result<()> {
    let all = std::iter::once(image).chain(devices.iter().map(PathBuf::as_path));
    let files = all.map(|path| {
        if Operand::parse(path).is_ok_and(|operand| operand.is_export()) {
            let why = "an export of an NBD server stays so: unmount it, and mount it without `ro`";
            return Err(io::Error::other(why));
        }
        let opened = sapwood_block::open_for_writing(&Operand::file_of(path));
        opened.map_err(io::Error::other)
    });
    let files = files.collect::<io::Result<Vec<File>>>()?;
    let dir = File::open(dir)?;
    socket::become_writable(dir.as_fd(), &files)?.map_err(io::Error::other)
}
