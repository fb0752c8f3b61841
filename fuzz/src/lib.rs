//! What the fuzz targets share.

#[path = "../../crates/btrfs/tests/hostile/explore.rs"]
pub mod explore;
#[path = "../../crates/btrfs/tests/hostile/image.rs"]
pub mod image;
pub mod lies;
mod limit;
pub mod step;
