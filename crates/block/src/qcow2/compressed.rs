//! Unpacks compressed clusters.

use std::io::Read;

/// Largest window of a frame: 2 to this power, some more than the largest cluster.
const MOST_WINDOW: u32 = 23;

/// Fills `out` from a compressed cluster. False if it is damaged.
pub(super) fn unpack(zstd: bool, bytes: &[u8], out: &mut [u8]) -> bool {
    if zstd {
        let decoder = zstd::stream::read::Decoder::with_buffer(bytes);
        let Ok(mut decoder) = decoder else {
            return false;
        };
        // No cluster needs a larger window, and a hostile frame must not allocate one.
        if decoder.window_log_max(MOST_WINDOW).is_err() {
            return false;
        }
        // The rest of the last sector is no part of the frame.
        return decoder.single_frame().read_exact(out).is_ok();
    }
    let mut decoder = flate2::Decompress::new(false);
    let done = decoder.decompress(bytes, out, flate2::FlushDecompress::Finish);
    done.is_ok() && decoder.total_out() == out.len() as u64
}
