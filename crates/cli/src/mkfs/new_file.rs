//! A file that mkfs makes beside its place, and that gets its name when it is complete.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use sapwood::block::Device;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A new file, or one under a temporary name. It is removed when it is dropped, or when a signal
/// ends the command, before it is kept.
pub(crate) struct NewFile {
    unfinished: Arc<Mutex<Option<Unfinished>>>,
    path: PathBuf,
    /// Its place.
    place: PathBuf,
    /// The file that it replaces, locked.
    old: Option<Arc<dyn Device>>,
}

struct Unfinished {
    path: PathBuf,
    /// Device and inode, so that another file that took the name stays.
    id: (u64, u64),
}

impl NewFile {
    /// Makes a file that has its name from the start.
    ///
    /// # Errors
    /// It exists, or cannot be made.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
        let mut new = fs::OpenOptions::new();
        new.write(true).create_new(true);
        let file = new.open(path)?;
        Self::watched(signals, &file, path.to_owned(), path.to_owned(), None)
    }

    /// Makes a file beside a place where there is none, or `old`, whose permissions it gets.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn beside(place: &Path, old: Option<Arc<dyn Device>>) -> io::Result<Self> {
        let place = match old {
            // What a symbolic link leads to is replaced, not the link.
            Some(_) => place.canonicalize()?,
            None => place.to_owned(),
        };
        let dir = match place.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
        let permissions = match old {
            Some(_) => Some(place.metadata()?.permissions()),
            None => None,
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".sapwood-");
        let made = builder.make_in(dir, |path| {
            fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
        })?;
        if let Some(permissions) = permissions {
            made.as_file().set_permissions(permissions)?;
        }
        let (file, path) = made.into_parts();
        let path = path.keep().map_err(|error| error.error)?;
        Self::watched(signals, &file, path, place, old)
    }

    fn watched(
        mut signals: Signals,
        file: &fs::File,
        path: PathBuf,
        place: PathBuf,
        old: Option<Arc<dyn Device>>,
    ) -> io::Result<Self> {
        let id = file.metadata().map(|meta| (meta.dev(), meta.ino()))?;
        let unfinished = Arc::new(Mutex::new(Some(Unfinished {
            path: path.clone(),
            id,
        })));
        let shared = Arc::clone(&unfinished);
        std::thread::spawn(move || {
            for signal in signals.forever() {
                // Held until the process ends, so that no other thread reports the missing file.
                let mut unfinished = shared.lock();
                remove(&mut unfinished);
                // What the signal does without this handler: it ends the process.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
        Ok(Self {
            unfinished,
            path,
            place,
            old,
        })
    }

    /// Its name until it is kept.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file system is complete: the file stays. One under a temporary name becomes durable and
    /// gets its own.
    ///
    /// # Errors
    /// It cannot be made durable or renamed, or another file took the name meanwhile; then it is
    /// removed.
    pub(crate) fn keep(self) -> io::Result<()> {
        if self.path == self.place {
            *self.unfinished.lock() = None;
            return Ok(());
        }
        fs::File::open(&self.path)?.sync_all()?;
        let mut unfinished = self.unfinished.lock();
        match self.old {
            Some(_) => fs::rename(&self.path, &self.place)?,
            None => {
                match renameat_with(CWD, &self.path, CWD, &self.place, RenameFlags::NOREPLACE) {
                    // Some file systems know no flags.
                    Err(Errno::INVAL) => fs::rename(&self.path, &self.place)?,
                    renamed => renamed?,
                }
            }
        }
        *unfinished = None;
        drop(unfinished);
        match self.place.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => fs::File::open(dir)?.sync_all(),
            _ => fs::File::open(".")?.sync_all(),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        remove(&mut self.unfinished.lock());
    }
}

fn remove(unfinished: &mut Option<Unfinished>) {
    let Some(Unfinished { path, id }) = unfinished.take() else {
        return;
    };
    let same = path
        .symlink_metadata()
        .is_ok_and(|meta| (meta.dev(), meta.ino()) == id);
    if same && let Err(error) = fs::remove_file(&path) {
        log::warn!("{}: not removed: {error}", path.display());
    }
}
