//! File data: from the bytes of a write to blocks on the device, and back.
//!
//! # How it works
//! Each file has a [`FileData`](crate::file_data::FileData). Its bytes go through these steps, each
//! a module:
//!
//! ```text
//!  write      reserves blocks, copies into the dirty ranges
//!  writeback  decides when a file is written (threads, bound, age); an fsync does not wait for it
//!  flush      takes a dirty run: it is in flight from here on
//!  submit     plans it (in place? unwritten? a hole: allocate, in memory only), writes requests
//!  complete   I/O done; one handle: bitmap, map, size on disk, inode
//! ```
//!
//! Data is in flight to the device before any handle refers to it, and the device is flushed before
//! a commit block. So no power cut exposes the old content of a block, and a commit never waits for
//! data.
//!
//! Reads look at the dirty ranges, then at data in flight, then at the map. A range stays in flight
//! until the map has it. Only the `io` lock of a file is held over I/O: shared to read, exclusive
//! to write, truncate, fallocate and copy. Writeback does not take it. So a reader's range that is
//! not in memory cannot change under it: a thread that could begin to change it needs `io`
//! exclusively.
//!
//! A thread that takes blocks out of the map (truncate, punch, collapse) first discards or flushes
//! dirty data in the range and waits until nothing there is in flight.
//!
//! Dirty bytes are bounded over all files: a writer that would exceed the bound starts writeback
//! and waits for room. It may hold `io`, as writeback never needs it. No thread may wait for data
//! with a handle open: completion needs a handle, for which it may wait for a commit, which in turn
//! waits for the open handle.
//!
//! A failed write makes the mount read-only: the data is lost, and `flush` returns the error.
//!
//! | trouble | test |
//! |---|---|
//! | a power cut between data and extent | `tests::order::extents_follow_their_data` |
//! | written again while in flight | `tests::order::what_is_written_again_in_flight_is_kept` |
//! | a write fails | `tests::order::a_failed_write_is_told_once` |
//! | fsync during other files' writeback | `tests::order::fsync_waits_for_its_file_only` |
//! | a later part is written first | `tests::order::a_growing_file_is_completed_in_order` |
//! | no block left | `tests::space::a_full_file_system_refuses_at_the_write` |

mod complete;
mod copy;
mod fallocate;
mod flush;
mod inline;
mod read;
mod submit;
mod symlink;
#[cfg(test)]
mod tests;
mod truncate;
pub(crate) mod verity;
mod work;
mod write;
mod writeback;

pub(crate) use copy::copy_range;
pub(crate) use fallocate::fallocate;
pub(crate) use flush::{flush, flush_all};
pub(crate) use read::{read, stretch};
pub(crate) use symlink::{readlink, write_symlink};
pub(crate) use truncate::{cut_orphan, delete_content, is_bare, release_orphan, truncate};
pub(crate) use write::write;
pub(crate) use writeback::new_writeback;

#[cfg(test)]
use crate::inode::Inode;

/// Whether written data waits for earlier data of the file.
#[cfg(test)]
pub(crate) fn is_waiting_to_complete(inode: &Inode) -> bool {
    inode.data.state.lock().in_flight.is_waiting()
}
