//! The front of an engine: the rules around every operation, written once.
//!
//! An engine implements [`Engine`], and [`Inode`] for its inodes in memory; it then is a
//! [`FileSystem`](crate::FileSystem). The front checks arguments and flags in the order of Linux,
//! locks inodes, keeps references, clears set-id bits and capabilities, keeps ACLs and mode equal,
//! renews access times, and makes changes durable where `chattr +S` or `+D` asks for it. The engine
//! finds, changes and stores.
//!
//! # Locks
//! The front takes the I/O locks of inodes ([`Inode::lock_shared`], [`Inode::lock_exclusive`]),
//! several of them with [`lock_all`]. Each method of [`Engine`] says which of them its caller holds.

mod engine;
mod filesystem;
mod rename;
mod shared;

pub use engine::{AttributeChange, Engine, Found, Hit, Inode, Place, lock_all};
pub use shared::Front;
