//! The library face of Sapwood: btrfs and ext4 in user space, without a mount
//! and without root.
//!
//! ```no_run
//! use sapwood::vfs::FileSystem;
//!
//! let fs = sapwood::image::open("disk.img".as_ref(), &sapwood::Options::default())?;
//! let node = sapwood::tree::resolve(&*fs, b"etc/hostname", true)?;
//! let mut buf = vec![0; 4096];
//! let len = fs.read(node.ino(), 0, &mut buf)?;
//! println!("{}", String::from_utf8_lossy(&buf[..len]));
//! drop(node);
//! fs.unmount()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod image;
pub mod kind;
pub mod options;
pub mod target;
pub mod tree;

pub use kind::Kind;
pub use options::Options;
pub use sapwood_block as block;
pub use sapwood_btrfs as btrfs;
pub use sapwood_ext4 as ext4;
pub use sapwood_vfs as vfs;
