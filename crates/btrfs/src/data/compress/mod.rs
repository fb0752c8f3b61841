//! Compression of file data: zlib, LZO and Zstandard, as btrfs stores them.
//!
//! Data is compressed in pieces of at most [`MAX_PIECE`] bytes, each of which becomes an extent (or
//! an inline item) of its own. Data that does not shrink by at least a sector stays uncompressed.

mod lzo;

use std::io::Read;

use sapwood_btrfs_format::compression as id;

use crate::compression::Compression;

/// Most bytes that one compressed extent expands to.
pub(crate) const MAX_PIECE: usize = 128 * 1024;

/// The compression that was chosen for data that is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompressionChoice {
    pub(crate) how: Compression,
    pub(crate) by: ChosenBy,
}

/// The source of a choice of compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChosenBy {
    /// The mount, for all data, also for files that do not shrink.
    Force,
    /// The file's flag or property.
    File,
    /// The mount, for files that shrink.
    Mount,
}

/// Why compressed data does not expand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("it ends too early")]
    Short,
    #[error("a length in it is impossible")]
    Length,
    #[error("it refers to data before its begin")]
    Distance,
    #[error("it expands to more than it may")]
    Limit,
    #[error("its stream is damaged")]
    Stream,
    #[error("its algorithm {0} is unknown")]
    Algorithm(u8),
}

/// Output of a bounded length.
struct Sink {
    bytes: Vec<u8>,
    limit: usize,
}

impl Sink {
    fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(limit.min(MAX_PIECE)),
            limit,
        }
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        if bytes.len() > self.limit - self.len() {
            return Err(Broken::Limit);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends `len` bytes that begin `distance` before the end, which they may overlap.
    fn repeat(&mut self, distance: usize, len: usize) -> Result<(), Broken> {
        if len > self.limit - self.len() {
            return Err(Broken::Limit);
        }
        let from = self.len().checked_sub(distance).ok_or(Broken::Distance)?;
        if distance >= len {
            self.bytes.extend_from_within(from..from + len);
        } else {
            for at in from..from + len {
                let byte = self.bytes.get(at).copied().ok_or(Broken::Distance)?;
                self.bytes.push(byte);
            }
        }
        Ok(())
    }

    fn into_inner(self) -> Vec<u8> {
        self.bytes
    }
}

/// Compresses `data`; `None` if the result would exceed `limit` bytes. `sector` is the size of
/// the file system's sectors in bytes.
pub(crate) fn compress(
    how: Compression,
    data: &[u8],
    limit: usize,
    sector: usize,
) -> Option<Vec<u8>> {
    match how {
        Compression::Zlib(level) => {
            let mut out = vec![0; limit];
            let mut state = flate2::Compress::new(flate2::Compression::new(level.into()), true);
            let status = state
                .compress(data, &mut out, flate2::FlushCompress::Finish)
                .ok()?;
            if status != flate2::Status::StreamEnd {
                return None;
            }
            out.truncate(usize::try_from(state.total_out()).ok()?);
            Some(out)
        }
        Compression::Lzo => lzo::compress(data, limit, sector),
        Compression::Zstd(level) => {
            let mut out = vec![0; limit];
            // An output buffer that is too small is the only error that data can cause.
            let len = zstd::bulk::compress_to_buffer(data, &mut out, level.into()).ok()?;
            out.truncate(len);
            Some(out)
        }
    }
}

/// Expands the stored bytes of a compressed extent to `len` bytes. `algorithm` is the number in
/// file extent items, `sector` the sector of LZO in bytes. `None`: the bytes are damaged.
#[must_use]
pub fn expand(algorithm: u8, stored: &[u8], len: usize, sector: usize) -> Option<Vec<u8>> {
    decompress(algorithm, stored, len, sector).ok()
}

/// Expands `data`, stored with `algorithm`, to exactly `len` bytes: missing bytes read as zeros,
/// surplus bytes are an error or ignored. Memory is bounded by `len`.
///
/// # Errors
/// The stream is damaged or the algorithm unknown.
pub(crate) fn decompress(
    algorithm: u8,
    data: &[u8],
    len: usize,
    sector: usize,
) -> Result<Vec<u8>, Broken> {
    let mut out = match algorithm {
        id::ZLIB => {
            let mut out = Vec::with_capacity(len);
            let reader = flate2::bufread::ZlibDecoder::new(data);
            reader
                .take(len as u64)
                .read_to_end(&mut out)
                .map_err(|_| Broken::Stream)?;
            out
        }
        id::LZO => lzo::decompress(data, len, sector)?,
        id::ZSTD => {
            let mut out = Vec::with_capacity(len);
            let mut reader =
                zstd::stream::read::Decoder::with_buffer(data).map_err(|_| Broken::Stream)?;
            // Refuses frames whose window would take more memory than any piece can need.
            reader.window_log_max(20).map_err(|_| Broken::Stream)?;
            reader
                .single_frame()
                .take(len as u64)
                .read_to_end(&mut out)
                .map_err(|_| Broken::Stream)?;
            out
        }
        other => return Err(Broken::Algorithm(other)),
    };
    out.resize(len, 0);
    Ok(out)
}

/// Bytes of one sample.
const SAMPLE: usize = 16;
/// Distance between the starts of two samples.
const STRIDE: usize = 256;

/// False if `data` looks like noise: its bytes are spread so evenly that no compression
/// would gain. Looks at one byte in sixteen.
pub(crate) fn worth_trying(data: &[u8]) -> bool {
    let mut counts = [0u32; 256];
    let mut total = 0u32;
    for place in data.chunks(STRIDE) {
        for byte in place.iter().take(SAMPLE) {
            counts[usize::from(*byte)] += 1;
            total += 1;
        }
    }
    // Too few to judge.
    if total < 512 {
        return true;
    }
    let used = counts.iter().filter(|count| **count > 0).count();
    if used < 64 {
        return true;
    }
    entropy_bits(&counts, total) < 7.2
}

/// Shannon entropy in bits for each byte.
fn entropy_bits(counts: &[u32; 256], total: u32) -> f32 {
    let total = total as f32;
    counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let share = *count as f32 / total;
            -share * share.log2()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Compression; 3] = [Compression::Zlib(3), Compression::Lzo, Compression::Zstd(3)];

    #[test]
    fn names_parse() {
        assert_eq!("zstd".parse(), Ok(Compression::Zstd(3)));
        assert_eq!("zstd:-7".parse(), Ok(Compression::Zstd(-7)));
        assert_eq!("zlib:9".parse(), Ok(Compression::Zlib(9)));
        assert_eq!("lzo".parse(), Ok(Compression::Lzo));
        for bad in ["", "gzip", "zlib:10", "lzo:1", "zstd:99", "zstd:"] {
            assert!(bad.parse::<Compression>().is_err(), "{bad}");
        }
    }

    #[test]
    fn pieces_round_trip_and_pad() {
        let data: Vec<u8> = (0..MAX_PIECE).map(|i| (i / 97 % 251) as u8).collect();
        for how in ALL {
            let packed = compress(how, &data, data.len() - 4096, 4096).unwrap();
            // On disk a piece is padded to whole sectors.
            let mut padded = packed.clone();
            padded.resize(packed.len().next_multiple_of(4096), 0);
            assert_eq!(
                decompress(how.id(), &padded, data.len(), 4096).unwrap(),
                data
            );
            assert_eq!(
                decompress(how.id(), &packed, 5000, 4096).unwrap(),
                data[..5000]
            );
            let longer = decompress(how.id(), &packed, data.len() + 10, 4096).unwrap();
            assert!(longer.ends_with(&[0; 10]));
        }
    }

    #[test]
    fn what_does_not_shrink_is_refused() {
        let mut noise = 1u64;
        let data: Vec<u8> = std::iter::repeat_with(|| {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        })
        .take(MAX_PIECE)
        .collect();
        for how in ALL {
            assert_eq!(compress(how, &data, data.len() - 4096, 4096), None, "{how}");
        }
        assert!(!worth_trying(&data));
    }

    proptest! {
        #[test]
        fn hostile_pieces_end(
            seed in prop::collection::vec(any::<u8>(), 1..2000),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let data = seed.repeat(5);
            for how in ALL {
                let mut packed = compress(how, &data, usize::MAX >> 40, 4096).unwrap_or_default();
                for (at, value) in &flips {
                    if !packed.is_empty() {
                        let at = at.index(packed.len());
                        packed[at] = *value;
                    }
                }
                if let Ok(out) = decompress(how.id(), &packed, 8192, 4096) {
                    prop_assert_eq!(out.len(), 8192);
                }
                let _ = decompress(how.id(), &seed, 4096, 4096);
            }
        }
    }

    #[test]
    fn text_is_worth_it() {
        let text =
            b"It was a bright cold day in spring, and the clocks were striking. ".repeat(1000);
        assert!(worth_trying(&text));
        assert!(worth_trying(&[0; 100_000]));
        assert!(worth_trying(b"short"));
    }
}
