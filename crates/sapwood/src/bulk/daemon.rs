//! The work of a mount's daemon for its clients.

use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sapwood_fuse::bulk::{Admitted, Service, Work};

use super::BUFFER;
use super::entries::Received;
use super::message::{Message, Reason};
use crate::archive::{ArchiveError, Change, Client, Extraction, Into, Whiteouts};
use crate::changes::Changes;
use crate::progress::Progress;
use crate::tree::HeldInode;
use crate::vfs::{self, FileSystem};

/// The interval between reports of progress.
const INTERVAL: Duration = Duration::from_millis(100);

/// Makes the entries of clients.
pub(crate) struct Daemon {
    fs: Arc<dyn FileSystem>,
}

impl Daemon {
    pub(crate) fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self { fs }
    }

    /// Returns the number of entries.
    fn serve(&self, work: &Work) -> Result<u64, Reason> {
        let refused = |error: io::Error| Reason {
            path: Vec::new(),
            errno: error.raw_os_error(),
            text: error.to_string(),
        };
        let admitted = work.admit().map_err(refused)?;
        let mut stream = BufReader::with_capacity(BUFFER, &work.socket);
        let mut head = [0; 5];
        stream.read_exact(&mut head).map_err(refused)?;
        let [copies, umask @ ..] = head;
        let umask = u32::from_ne_bytes(umask) & 0o777;
        let extracted = self.extract(work, &admitted, (copies != 0, umask), stream);
        extracted.map_err(|error| match admitted.check_writable() {
            Ok(()) => reason(&error),
            Err(error) => refused(error),
        })
    }

    fn extract(
        &self,
        work: &Work,
        admitted: &Admitted,
        (copies, umask): (bool, u32),
        stream: impl Read,
    ) -> Result<u64, ArchiveError> {
        let failed = |source| ArchiveError::Inode {
            path: PathBuf::from("."),
            source,
        };
        let base = HeldInode::held(&*self.fs, work.dir).map_err(failed)?;
        let caches = &work.caches;
        let changed = |change: Change<'_>| match change {
            Change::Name(dir, name) => caches.name_changed(dir, name),
            Change::Attributes(ino) => caches.attributes_changed(ino),
        };
        let into = Into {
            fs: &*self.fs,
            base,
            through_links: false,
            at: b"",
            creator: work.process.credentials(umask),
            changes: &Changes::default(),
            building: None,
            whiteouts: Whiteouts::Files,
            client: Some(Client {
                process: &work.process,
                umask,
                copies,
                changed: &changed,
            }),
        };
        let mut reports = Reports {
            socket: &work.socket,
            last: Instant::now(),
            writable: true,
            admitted,
        };
        let mut progress = |step: Progress<'_>| reports.report(step);
        let mut received = Received::new(stream);
        let extracted = Extraction::new(into).run(&mut received, &mut progress);
        if work.synchronous {
            self.fs.sync().map_err(failed)?;
        }
        extracted.map(|extracted| extracted.done)
    }
}

impl Service for Daemon {
    fn run(&self, work: Work) {
        let message = match self.serve(&work) {
            Ok(done) => Message::End(done),
            Err(reason) => Message::Failed(reason),
        };
        // The client may have closed the connection.
        let _ = message.send(&mut &work.socket);
        // The client may still be sending.
        let _ = work.socket.shutdown(std::net::Shutdown::Both);
    }
}

/// An error of an entry, for the client.
fn reason(error: &ArchiveError) -> Reason {
    use std::os::unix::ffi::OsStrExt;

    let (path, errno) = match error {
        ArchiveError::Inode { path, source } => (path.as_os_str().as_bytes(), Some(source.errno())),
        ArchiveError::NoTarget { path, .. } => {
            let errno = vfs::Error::NotFound.errno();
            (path.as_os_str().as_bytes(), Some(errno))
        }
        _ => (&[][..], None),
    };
    Reason {
        path: path.to_vec(),
        errno,
        text: error.to_string(),
    }
}

/// Sends the client progress reports at intervals.
struct Reports<'s> {
    socket: &'s UnixStream,
    last: Instant,
    admitted: &'s Admitted,
    writable: bool,
}

impl Reports<'_> {
    fn report(&mut self, step: Progress<'_>) {
        let message = match step {
            Progress::Done { done, .. } => {
                // The clock is read for few entries only.
                if done % 16 != 0 || self.last.elapsed() < INTERVAL {
                    return;
                }
                self.last = Instant::now();
                self.check_writable();
                Message::Done(done)
            }
            Progress::Failed(error) => match error.downcast_ref::<ArchiveError>() {
                Some(error) => Message::LeftOut(reason(error)),
                None => return,
            },
            // The client counts the sent entries.
            Progress::Total(_) | Progress::Bytes(_) | Progress::Item(_) => return,
        };
        // If the client has closed the connection, the end of its entries shows that.
        let _ = message.send(&mut &*self.socket);
    }

    /// Ends the work if the mount became read-only meanwhile.
    fn check_writable(&mut self) {
        if self.writable && self.admitted.check_writable().is_err() {
            self.writable = false;
            let _ = self.socket.shutdown(std::net::Shutdown::Read);
        }
    }
}
