//! The stream of an archive: compressed, with the digests of both ends.

use std::io::{self, Write};

use flate2::GzBuilder;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use super::ExportCompression;

/// A writer that computes the digest and the number of its bytes.
struct Hashed<W> {
    out: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Hashed<W> {
    fn new(out: W) -> Self {
        Self {
            out,
            hash: Sha256::new(),
            size: 0,
        }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

enum Encoder<W: Write> {
    Plain(Hashed<W>),
    Gzip(GzEncoder<Hashed<W>>),
    Zstd(zstd::Encoder<'static, Hashed<W>>),
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(out) => out.write(bytes),
            Self::Zstd(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => out.flush(),
            Self::Zstd(out) => out.flush(),
        }
    }
}

/// The output of an archive.
pub(super) struct Stream<W: Write>(Hashed<Encoder<W>>);

impl<W: Write> Stream<W> {
    /// # Errors
    /// `InvalidInput` if the compression has no such level.
    pub(super) fn new(out: W, compression: ExportCompression) -> io::Result<Self> {
        let out = Hashed::new(out);
        let encoder = match compression {
            ExportCompression::None => Encoder::Plain(out),
            ExportCompression::Gzip(level) => {
                // No time and no name, so that the same archive has the same bytes.
                let builder = GzBuilder::new().mtime(0);
                let level = flate2::Compression::new(level.min(9));
                Encoder::Gzip(builder.write(out, level))
            }
            ExportCompression::Zstd(level) => Encoder::Zstd(zstd::Encoder::new(out, level)?),
        };
        Ok(Self(Hashed::new(encoder)))
    }

    /// Ends the stream: digests before and after compression, and bytes that were written.
    pub(super) fn finish(self) -> io::Result<([u8; 32], [u8; 32], u64)> {
        let diff_id = self.0.hash.finalize().into();
        let mut out = match self.0.out {
            Encoder::Plain(out) => out,
            Encoder::Gzip(out) => out.finish()?,
            Encoder::Zstd(out) => out.finish()?,
        };
        out.flush()?;
        Ok((diff_id, out.hash.finalize().into(), out.size))
    }
}

impl<W: Write> Write for Stream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
