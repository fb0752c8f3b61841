//! qcow2 files: the disk inside of one is a [`Device`](crate::Device).
//!
//! # How it works
//! A disk is made of clusters. The L1 table leads to L2 tables, which lead to the clusters of the
//! file. A table of reference counts marks the clusters in use.
//!
//! A cluster that is in the file is written in place. Any other write takes a free cluster, writes
//! all of it, and changes the tables in memory. [`Qcow2Device::flush`](crate::Device::flush) is the
//! only place that writes them, in an order that makes every power cut leave a consistent file:
//!
//! 1. the blocks of counts, in which new clusters are in use; flush, with the data
//! 2. the table that leads to new blocks of counts, if there are some; flush
//! 3. the L2 tables; if L2 tables are new, flush, and the L1 table; flush
//! 4. the counts of clusters that nothing leads to any more
//!
//! A cluster is used again only after step 3 has removed the last reference to it from the file. At
//! worst, a power cut leaves clusters that are counted and not used.
//!
//! Zeros that are written to a cluster that reads as zeros change nothing.
//!
//! A backing file is opened by a caller only ([`open_backing`]): a name in a file may be any file
//! of the machine.
//!
//! A file that lazy reference counts left dirty gets its counts from the tables when it is opened
//! for writing. This device always writes the counts, so it never sets the mark.
//!
//! | trouble | test in `tests/suite/qcow2.rs` |
//! |---|---|
//! | power cut at any moment | `every_power_cut_leaves_what_was_flushed` |
//! | snapshots share clusters and tables | `clusters_of_a_snapshot_stay` |
//! | a hostile header or table | `hostile_files_are_refused` |

mod backing;
mod compressed;
mod counts;
mod create;
mod device;
mod header;
mod repair;
mod tables;

pub use backing::{BackingFile, backing_disk, open_backing};
pub use create::create_qcow2;
pub use device::Qcow2Device;
pub use header::is_qcow2;
