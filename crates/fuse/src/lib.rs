//! FUSE session over the [`FileSystem`](sapwood_vfs::FileSystem) trait.
//!
//! # How it works
//!
//! ```text
//! kernel  <->  transport  <->  wire     <->  Dispatcher          <->  dyn FileSystem
//!              (threads)       (bytes)       (protocol's meaning)
//! ```
//!
//! [`mount`](mount()) asks the kernel (as root) or `fusermount3` (as anyone else) for a
//! mounted `/dev/fuse` descriptor, hands it to the transport and returns once the kernel
//! and the transport have agreed on the protocol. What a request *means* (names, node
//! ids, caching, directory pages, ioctls) is decided by the [`Dispatcher`], which knows
//! nothing of the wire.
//!
//! Open files have no state here: opening is never sent to us (`FUSE_NO_OPEN_SUPPORT`),
//! the kernel's lookup count is the reference that keeps an unlinked file alive.

mod anchor;
mod block_mount;
pub mod control;
pub mod daemon;
mod dispatch;
mod end_report;
mod error;
mod ioctl;
mod mount_table;
mod mountpoint;
mod node;
mod options;
mod permissions;
mod privileges;
mod readdir;
mod request;
mod request_counts;
mod session;
pub mod signals;
mod subvolume_page;
mod transport;
mod wire;

pub use block_mount::{is_offered as offers_fuseblk, will_hear_sync};
pub use dispatch::Dispatcher;
pub use error::MountError;
pub use mount_table::{MountEntry, mount_table, mounted_on};
pub use mountpoint::{UnmountError, unmount};
pub use node::NodeId;
pub use options::MountOptions;
pub use readdir::{DirAttributes, DirItem, DirSink, PageKind};
pub use request::{
    Caller, Changes, ControlAnswer, NodeEntry, Reply, Seek, Synchronous, WriteRequest, XattrReply,
};
pub use sapwood_vfs::{Access, Choice};
pub use session::{Session, mount};
pub use subvolume_page::SubvolumeList;
