//! What the fuzz targets share.

#[path = "../../crates/btrfs/tests/hostile/explore.rs"]
pub mod explore;
pub mod ext4;
#[path = "../../crates/btrfs/tests/hostile/image.rs"]
pub mod image;
pub mod lies;
mod limit;
pub mod step;
