//! Hash trees of dm-verity, as `veritysetup` makes them and the kernel reads them.
//!
//! A tree has a digest of each data block, digests of these blocks of digests, and so on, up to the
//! *root hash*. A reader that trusts the root hash trusts every block that it verifies. Forward error
//! correction is not supported: a wrong block is an error.
//!
//! - [`Params`], [`Header`]: the parameters of a tree, and the superblock that stores them.
//! - [`build`]: the tree of a device.
//! - [`VerityDevice`]: a read-only device that verifies what it reads.
//! - [`FileParams`], [`Descriptor`], [`build_file`], [`read_verified`]: trees of single files
//!   (fs-verity).

mod build;
mod device;
mod digest;
mod error;
mod file;
mod header;
mod layout;

pub use build::{OnHashed, build};
pub use device::VerityDevice;
pub use digest::{Algorithm, RootHash};
pub use error::{Error, Result};
pub use file::{
    DESCRIPTOR_MAX, DESCRIPTOR_SIZE, Descriptor, FileDigest, FileLayout, FileParams, ReadBytes,
    ReadFailure, SALT_MAX, build_file, read_verified,
};
pub use header::{HEADER_SIZE, Header, Params};
