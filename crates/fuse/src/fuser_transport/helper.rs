//! What must wait for the kernel before it can be answered, in a thread of its own: the
//! kernel in turn may be waiting for the request threads.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc;

use fuser::{INodeNo, Notifier};

use super::convert::{errno, node};
use crate::dispatch::Dispatcher;

/// A request to answer later.
pub(super) enum Job {
    /// A seek for data or a hole, once the kernel has written back a range.
    Seek {
        ino: INodeNo,
        offset: i64,
        whence: i32,
        /// The range's start, and its length; 0: to the end of the file.
        range: (i64, i64),
        reply: fuser::ReplyLseek,
    },
    /// A control command, once the kernel has forgotten a name that it changed.
    Control {
        dir: INodeNo,
        name: Vec<u8>,
        output: Vec<u8>,
        reply: fuser::ReplyIoctl,
    },
}

/// Answers jobs until the session ends.
pub(super) fn run(jobs: &mpsc::Receiver<Job>, notifier: &Notifier, dispatcher: &Dispatcher) {
    for job in jobs {
        match job {
            Job::Seek {
                ino,
                offset,
                whence,
                range,
                reply,
            } => {
                // The kernel writes back what it drops.
                log_unless_unknown(notifier.inval_inode(ino, range.0, range.1));
                match dispatcher.settled_lseek(node(ino), offset, whence) {
                    Ok(found) => reply.offset(found),
                    Err(error) => reply.error(errno(error)),
                }
            }
            Job::Control {
                dir,
                name,
                output,
                reply,
            } => {
                log_unless_unknown(notifier.inval_entry(dir, OsStr::from_bytes(&name)));
                // A negative offset: attributes only.
                log_unless_unknown(notifier.inval_inode(dir, -1, 0));
                reply.ioctl(0, &output);
            }
        }
    }
}

/// What the kernel does not know, it need not write back or forget.
fn log_unless_unknown(notified: std::io::Result<()>) {
    match notified {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
            log::warn!("telling the kernel to drop what it cached: {error}");
        }
        _ => {}
    }
}
