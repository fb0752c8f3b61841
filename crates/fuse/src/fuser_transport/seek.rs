//! Seeks for data or holes where the kernel may hold data that it has not written back.

use std::sync::mpsc;

use fuser::{INodeNo, Notifier};

use super::convert::{errno, node};
use crate::dispatch::Dispatcher;

/// A seek whose answer waits for the kernel to write back a range.
pub(super) struct SeekJob {
    pub(super) ino: INodeNo,
    pub(super) offset: i64,
    pub(super) whence: i32,
    pub(super) start: i64,
    /// 0: to the end of the file.
    pub(super) len: i64,
    pub(super) reply: fuser::ReplyLseek,
}

/// Answers unsettled seeks until the session ends. A thread of its own: the write-back
/// that it waits for needs the request threads.
pub(super) fn answer_seeks(
    jobs: &mpsc::Receiver<SeekJob>,
    notifier: &Notifier,
    dispatcher: &Dispatcher,
) {
    for job in jobs {
        // The kernel writes back what it drops. If it no longer knows the inode, there is
        // nothing to write.
        if let Err(error) = notifier.inval_inode(job.ino, job.start, job.len) {
            log::debug!("write-back of {} before a seek: {error}", job.ino.0);
        }
        match dispatcher.settled_lseek(node(job.ino), job.offset, job.whence) {
            Ok(found) => job.reply.offset(found),
            Err(error) => job.reply.error(errno(error)),
        }
    }
}
