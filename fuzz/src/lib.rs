//! Shared by the fuzz targets.

pub mod ext4;
pub mod lies;
mod limit;
pub mod step;
