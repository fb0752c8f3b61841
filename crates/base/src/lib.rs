//! What the engines share: locks with ranks, dirty ranges, the state of a mount. Nothing here knows
//! a file system's format, a device or a request.

pub mod dirty;
pub mod health;
pub mod lock;

pub use dirty::DirtyRanges;
pub use health::{Health, Unhealthy};
pub use lock::{Rank, RankedMutex, RankedRwLock};
