//! ext4 on disk: structures, checksums, validators, readable dumps. No I/O.

mod acl;
mod checksum;
mod dir;
mod extent;
mod hash;
mod htree;
mod indirect;
mod inline;
mod orphan;
mod quota;
mod xattr;

pub use acl::*;
pub use checksum::{crc16, crc32c, inode_seed, uuid_seed};
pub use dir::*;
pub use extent::*;
pub use hash::*;
pub use htree::*;
pub use indirect::*;
pub use inline::*;
pub use orphan::*;
pub use quota::*;
pub use xattr::*;
