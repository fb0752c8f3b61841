//! The front of an engine: the rules around every operation, implemented once.
//!
//! An engine implements [`Engine`], and [`Inode`] for its inodes in memory. [`Front`] owns an
//! engine and is the [`FileSystem`](crate::FileSystem). It
//!
//! - checks arguments and flags in the order of Linux,
//! - locks inodes and manages references,
//! - clears set-id bits and capabilities,
//! - keeps ACLs and modes consistent,
//! - renews access times,
//! - makes changes durable where `chattr +S` or `+D` requires it.
//!
//! The engine finds, changes and stores.
//!
//! # Locks
//! The front takes the I/O locks of inodes ([`Inode::lock_shared`], [`Inode::lock_exclusive`]), and
//! several of them with [`lock_all`]. Each method of [`Engine`] states which of them its caller
//! holds.

mod engine;
mod filesystem;
mod rename;
mod shared;
mod xattr;

pub use engine::{AttributeChange, Engine, Found, Inode, InodeTable, NameInDir, lock_all};
pub use filesystem::Front;
pub use shared::Steps;
