//! Block devices: the only crate of Sapwood that opens a file or a device.
//!
//! Everything above works on the [`Device`] trait. There are devices for files, for memory, for
//! exports of NBD servers, for the disks in qcow2 files, and for changes that stay in memory or are
//! applied in one step, and [`Layer`] for devices on top of another. The crate `sapwood-testing` has
//! devices that record, fail, tear or hold chosen writes.

mod device;
mod disk_format;
mod error;
mod file;
mod holder;
mod host;
mod joined;
mod layer;
mod memory;
pub mod mount_table;
mod nbd;
mod operand;
mod overlay;
mod part;
pub mod partition;
mod patient;
mod qcow2;
pub mod signature;
mod staged;
mod undo;
mod zeros;

pub use device::{Device, SECTOR_SIZE};
pub use disk_format::{DiskFormat, UnknownFormat};
pub use error::{Error, NbdError, Qcow2Error, Result, Violation, check_range, check_writable};
pub use file::{FileDevice, open_to_pass};
pub use holder::{Holder, MountElsewhere, Process, Server};
pub use host::{OpenOptions, mounted_elsewhere, open_for_writing};
pub use joined::JoinedDevice;
pub use layer::Layer;
pub use memory::{MemoryDevice, PAGE_SIZE};
pub(crate) use nbd::NbdUri;
pub use nbd::{NbdDevice, NbdOptions};
pub use operand::{Operand, OperandError, OperandFiles, Part};
pub use overlay::{OVERLAY_PAGE, OverlayDevice};
pub use part::PartDevice;
pub use patient::{PATIENCE, PatientDevice, patiently};
pub use qcow2::{BackingFile, Qcow2Device, backing_disk, create_qcow2, is_qcow2, open_backing};
pub use staged::{Passes, StagedDevice};
pub use undo::{UndoError, UndoFile, UndoSide, UndoState, record_undo};
pub use zeros::zero_range;
