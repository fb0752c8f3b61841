//! Unpacks compressed clusters.

use std::io::Read;

/// Fills `out` from a compressed cluster. False if it is damaged.
pub(super) fn unpack(zstd: bool, bytes: &[u8], out: &mut [u8]) -> bool {
    if zstd {
        let decoder = zstd::stream::read::Decoder::with_buffer(bytes);
        let Ok(decoder) = decoder else { return false };
        // The rest of the last sector is no part of the frame.
        return decoder.single_frame().read_exact(out).is_ok();
    }
    let mut decoder = flate2::Decompress::new(false);
    let done = decoder.decompress(bytes, out, flate2::FlushDecompress::Finish);
    done.is_ok() && decoder.total_out() == out.len() as u64
}
