//! File data: from the bytes of a write to extents and checksums on disk, and back.

pub(crate) mod compress;
mod dirty;
mod file;

pub(crate) use file::{
    FileData, copy_range, delete_content, fallocate, flush_all, flush_complete, read, read_symlink,
    seek, truncate, write,
};
