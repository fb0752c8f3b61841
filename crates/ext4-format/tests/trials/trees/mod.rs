//! Shared by the tests with images: a mount, a reader that finds inodes by the superblock alone, a
//! fill.

pub(crate) mod fill;
pub(crate) mod mount;
pub(crate) mod own;
pub(crate) mod reader;
