//! What the engines share: locks with ranks, the state of a mount, objects in memory, dirty ranges,
//! counters. Nothing here knows a file system's format, a device or a request.

pub mod ahead;
pub mod dirty;
pub mod health;
pub mod histogram;
pub mod lock;
pub mod range_set;
pub mod report;
pub mod resident;

pub use ahead::ReadAhead;
pub use dirty::DirtyRanges;
pub use health::{Health, Unhealthy};
pub use histogram::Histogram;
pub use lock::{Rank, RankedMutex, RankedRwLock};
pub use range_set::RangeSet;
pub use report::Report;
pub use resident::{Residence, Resident, ResidentTable};
