//! A file that mkfs makes, and removes again if it does not come to its end.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A new file; dropped before it is kept, and at a signal that ends the command, it is removed.
pub(crate) struct NewFile {
    unfinished: Arc<Mutex<Option<Unfinished>>>,
}

struct Unfinished {
    path: PathBuf,
    /// Device and inode, so that another file that took the name stays.
    id: (u64, u64),
}

impl NewFile {
    /// Makes the file.
    ///
    /// # Errors
    /// It exists, or cannot be made.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let unfinished = Arc::new(Mutex::new(None));
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
        let file: File = OpenOptions::new().write(true).create_new(true).open(path)?;
        let id = file.metadata().map(|meta| (meta.dev(), meta.ino()))?;
        *unfinished.lock() = Some(Unfinished {
            path: path.to_owned(),
            id,
        });
        let shared = Arc::clone(&unfinished);
        std::thread::spawn(move || {
            for signal in signals.forever() {
                remove(&mut shared.lock());
                // What the signal does without this handler: it ends the process.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
        Ok(Self { unfinished })
    }

    /// The file system is complete: the file stays.
    pub(crate) fn keep(self) {
        *self.unfinished.lock() = None;
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
    if same && let Err(error) = std::fs::remove_file(&path) {
        log::warn!("{}: not removed: {error}", path.display());
    }
}
