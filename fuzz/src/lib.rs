//! What the fuzz targets share.

pub mod ext4;
pub mod lies;
mod limit;
pub mod step;
