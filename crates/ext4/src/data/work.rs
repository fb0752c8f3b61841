//! The pieces of work that writeback does for a file.

use std::ops::Range;
use std::sync::Arc;

use crate::file_data::InFlight;
use crate::inode::Inode;

/// Where the work of a flush is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// In this thread.
    Here,
    /// By the threads of writeback.
    Queue,
}

/// A part of an in-flight range that is one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// Byte on the device.
    pub(crate) at: u64,
    /// Bytes of the file.
    pub(crate) range: Range<u64>,
}

/// Work for a thread.
pub(crate) enum Work {
    /// Plan a range that was taken.
    Prepare(Arc<Inode>, Arc<InFlight>),
    /// Write a part of a range.
    Write(Arc<Inode>, Arc<InFlight>, Request),
    /// Complete what is ready of a file.
    Complete(Arc<Inode>),
}
