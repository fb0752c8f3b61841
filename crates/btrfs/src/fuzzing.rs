//! Functions for the fuzz targets only. No stable interface.

use crate::Compression;
use crate::data::compress;

/// Compresses `data` to at most `limit` bytes; `None` if they do not suffice.
#[must_use]
pub fn compress(how: Compression, data: &[u8], limit: usize, sector: usize) -> Option<Vec<u8>> {
    compress::compress(how, data, limit, sector)
}
