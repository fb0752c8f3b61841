//! File data: from the bytes of a write to extents and checksums on disk, and back.

pub(crate) mod compress;
mod dirty;
