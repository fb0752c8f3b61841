//! FUSE sessions over the [`FileSystem`](sapwood_vfs::FileSystem) trait.
//!
//! # How it works
//!
//! ```text
//! kernel  <->  transport  <->  wire     <->  Dispatcher          <->  dyn FileSystem
//!              (threads)       (bytes)       (protocol's meaning)
//! ```
//!
//! [`mount`](mount()) gets a mounted `/dev/fuse` descriptor from the kernel (as root) or from
//! `fusermount3` (as any other user), passes it to the transport, and returns once the kernel and
//! the transport have agreed on the protocol. The `Dispatcher` decides what a request *means*
//! (names, node ids, caching, directory pages, ioctls). It knows nothing of the wire format.
//!
//! Open files have no state in the daemon. The kernel sends no opens (`FUSE_NO_OPEN_SUPPORT`); its
//! lookup count is the reference that keeps an unlinked file alive.

mod anchor;
mod block_mount;
pub mod broker;
pub mod broker_process;
pub mod bulk;
mod bulk_socket;
pub mod control;
pub mod daemon;
mod dispatch;
mod end_report;
mod error;
mod ioctl;
mod mountpoint;
mod node;
mod options;
mod permissions;
mod privileges;
mod readdir;
mod request;
mod request_counts;
pub mod sandbox;
mod second_mount;
mod session;
pub mod signals;
mod subvolume_page;
mod transport;
mod unmount;
mod verity;
mod wire;

pub use block_mount::{is_offered as offers_fuseblk, will_receive_sync};
pub use error::MountError;
pub use options::MountOptions;
pub use sapwood_block::mount_table::{MountEntry, mount_table, mounted_on};
pub use sapwood_block::{MountElsewhere, mounted_elsewhere};
pub use sapwood_vfs::{Access, Choice};
pub use second_mount::mount_again;
pub use session::{Session, mount, mount_through};
pub use subvolume_page::SubvolumeList;
pub use unmount::{UnmountError, unmount};
