//! What the fuzz targets share.

#[path = "../../crates/btrfs/tests/hostile/explore.rs"]
pub mod explore;
#[path = "../../crates/btrfs/tests/hostile/image.rs"]
pub mod image;
mod limit;
pub mod step;
