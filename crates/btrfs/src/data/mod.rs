//! File data: from the bytes of a write to extents and checksums on disk, and back.
//!
//! # How it works
//! Each file has a [`FileData`]. Bytes go through it like this:
//!
//! ```text
//!  write      reserves space, copies into the dirty ranges                    (write)
//!  take       a dirty run becomes a range in flight                           (flush)
//!  decide     inline? overwrite? compress? allocate                           (decide, overwrite)
//!  order      the ordered extent: the place of each part of the data          (decide)
//!  submit     checksums are computed once, bytes go to the device in batches  (submit)
//!  complete   joins a transaction: old items out, new item and checksums in,  (complete)
//!             nbytes, size on disk
//! ```
//!
//! Each step is one module, and calls only those below. The threads of writeback begin at any step
//! ([`writeback`]); a small flush does everything up to the I/O in the caller's thread.
//!
//! Reads look at the dirty ranges, then at data in flight, then at the tree. A range is in flight
//! until the tree has it. Only the `io` lock of a file is held over I/O: shared to read, exclusive
//! to write, truncate, fallocate and clone. Writeback does not take it. So a reader's range that is
//! not in memory cannot change under it: a thread that could begin to change it needs `io`
//! exclusively. Completions change the items of other ranges of the file, in steps that leave each
//! of these ranges findable at any time ([`items`]), one change at a time.
//!
//! Truncate, punch, clone and fallocate also change items. They first discard or flush the dirty
//! data in the range, and wait until nothing there is in flight.
//!
//! Dirty bytes are bounded over all files: a writer that would exceed the bound starts writeback
//! and waits for room ([`writeback`]). It may hold `io`, as writeback never needs it.
//!
//! An extent that arrives compressed begins at the order ([`encoded`]); readers of its range wait
//! for its completion.
//!
//! A failed write makes the mount read-only: the data is lost, and `flush` returns an error. If
//! only the host has no space, the bytes become dirty again, and the space in the file system is
//! promised to them again. Nothing reaches the tree or the log, `flush` returns an error, and the
//! next one tries again.
//!
//! [`writeback`]: self::writeback
//! [`encoded`]: self::encoded

mod allocate;
mod clone;
mod complete;
pub(crate) mod compress;
mod decide;
mod encoded;
mod files;
mod flush;
mod hole;
mod items;
mod overwrite;
mod read;
mod submit;
#[cfg(test)]
mod tests;
mod truncate;
pub(crate) mod verity;
mod write;
mod writeback;

pub(crate) use allocate::fallocate;
pub(crate) use clone::copy_range;
pub use encoded::EncodedExtent;
pub(crate) use encoded::write_encoded;
pub(crate) use files::Files;
pub(crate) use flush::{Wait, flush, flush_all, flush_complete, flush_root};
pub(crate) use items::{drop_extents, preallocated_behind};
pub(crate) use overwrite::possible as overwritable;
pub(crate) use read::{read, read_stored, readlink, stretch};
pub(crate) use truncate::{delete_content, truncate};
pub(crate) use write::write;
