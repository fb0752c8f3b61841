//! Block devices: the only crate of Sapwood that opens a file or a device.
//!
//! Everything above works on the [`Device`] trait. There are devices for files, for memory, and for
//! changes that stay in memory, and [`Layer`] for devices on top of another. The crate
//! `sapwood-testing` has devices that record, fail, tear or hold chosen writes.

mod device;
mod error;
mod file;
mod layer;
mod memory;
mod overlay;
mod patient;
pub mod signature;

pub use device::{Device, SECTOR_SIZE};
pub use error::{Error, Result, check_range, check_writable};
pub use file::{FileDevice, OpenOptions};
pub use layer::Layer;
pub use memory::{MemoryDevice, PAGE_SIZE};
pub use overlay::{OVERLAY_PAGE, OverlayDevice};
pub use patient::{PATIENCE, PatientDevice, patiently};
