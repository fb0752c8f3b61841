//! The pieces of work that writeback does for a file.

use std::ops::Range;
use std::sync::Arc;

use crate::file_data::InFlight;
use crate::inode::Inode;

/// The threads that do the work of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// In this thread.
    Here,
    /// By the threads of writeback.
    Queue,
}

/// A range that was taken, and its file.
pub(crate) type Taken = (Arc<Inode>, Arc<InFlight>);

/// A part of an in-flight range that is side by side on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// Byte on the device.
    pub(crate) at: u64,
    /// Bytes of the file.
    pub(crate) range: Range<u64>,
}

/// Work for a thread.
pub(crate) enum Work {
    /// Plan taken ranges, and write the short ones.
    Prepare(Vec<Taken>),
    /// Write a part of a range.
    Write(Part),
    /// Complete ready ranges of files.
    Complete(Vec<Arc<Inode>>),
}

/// A request, and the range that it is part of.
pub(crate) struct Part {
    pub(crate) inode: Arc<Inode>,
    pub(crate) io: Arc<InFlight>,
    pub(crate) request: Request,
}

impl Part {
    /// Bytes of it.
    pub(crate) fn len(&self) -> u64 {
        self.request.range.end - self.request.range.start
    }
}
