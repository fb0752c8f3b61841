//! Parts that the engines share: ranked locks, the state of a mount, inodes in memory, dirty data
//! and its bound, threads, counters. Nothing here depends on a format, a device or a request.

pub mod active;
pub mod age;
pub mod ahead;
pub mod bound;
pub mod dirty;
pub mod event;
pub mod finding;
pub mod hash;
pub mod health;
pub(crate) mod histogram;
mod host;
pub mod lock;
pub mod machine;
pub mod memory;
pub mod pace;
pub mod piece;
pub(crate) mod range_set;
pub mod report;
pub mod resident;
pub mod workers;
pub mod writeback;

pub use active::{ActiveFiles, Added};
pub use ahead::ReadAhead;
pub use bound::ByteBound;
pub use dirty::DirtyRanges;
pub use event::EventCount;
pub use hash::NumberMap;
pub use health::{Health, Unhealthy};
pub use histogram::Histogram;
pub use lock::{Rank, RankedMutex, RankedRwLock};
pub use memory::Memory;
pub use pace::Pace;
pub use piece::{Piece, SharedBytes, WriteData};
pub use range_set::RangeSet;
pub use report::Report;
pub use resident::{Residence, Resident, ResidentTable};
pub use workers::{Alarm, Batching, WorkerGroup, Workers};
