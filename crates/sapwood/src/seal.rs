//! Seals: checksums of a stored stream, with which it can be verified without being received.
//!
//! # How it works
//! A seal is a file of its own, because a stream has no place for checksums that every receiver
//! ignores. [`Sealing`] passes the bytes of a stream on and computes the SHA-256 of each chunk of 1
//! MiB. The file has these lines:
//!
//! ```text
//! sapwood-seal 1
//! chunk 1048576
//! 0 1048576 DIGEST
//! 1048576 40 DIGEST
//! end 1048616 DIGEST
//! ```
//!
//! Each chunk line has the chunk's offset, length and digest. The last line has the bytes of the
//! stream and the digest of all lines before. So a seal that is itself damaged or cut is refused.
//!
//! [`Verified`] reads a whole chunk and verifies it before it gives out its first byte.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use sha2::{Digest as _, Sha256};

const MAGIC: &str = "sapwood-seal 1";

/// Bytes of a chunk.
const CHUNK: usize = 1 << 20;

/// Least bytes of a chunk that a seal may have.
const CHUNK_MIN: u64 = 4096;

/// Most bytes of a chunk that a seal may have.
const CHUNK_MAX: u64 = 64 << 20;

/// Most bytes of a line.
const LINE: u64 = 256;

type Digest = [u8; 32];

/// Why a stream does not match its seal, or a seal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The seal or the stream cannot be read.
    #[error("{0}")]
    Read(#[source] io::Error),
    /// The seal is damaged, or is no seal.
    #[error("the seal is damaged at line {line}: {why}")]
    Format {
        /// Number of the line, from 1.
        line: u64,
        /// The contradiction.
        why: &'static str,
    },
    /// A chunk has other bytes.
    #[error("chunk {chunk} (bytes {start} to {end}) is damaged")]
    Damaged {
        /// Number of the chunk, from 0.
        chunk: u64,
        /// Its first byte.
        start: u64,
        /// The byte after its last one.
        end: u64,
    },
    /// A chunk has the bytes of another one.
    #[error("chunk {chunk} (bytes {start} to {end}) has the content of chunk {other}")]
    Moved {
        /// Number of the chunk, from 0.
        chunk: u64,
        /// Its first byte.
        start: u64,
        /// The byte after its last one.
        end: u64,
        /// The chunk that the bytes belong to.
        other: u64,
    },
    /// The stream ends early.
    #[error("the stream ends at byte {found} in chunk {chunk}, instead of {size}")]
    Cut {
        /// The chunk that is missing or cut, from 0.
        chunk: u64,
        /// Bytes of the stream that were found.
        found: u64,
        /// Bytes that it had when it was sealed.
        size: u64,
    },
    /// Bytes follow the end of the stream.
    #[error("the stream goes on after byte {size}, where it ended when it was sealed")]
    Longer {
        /// Bytes that it had when it was sealed.
        size: u64,
    },
}

type Result<T, E = SealError> = std::result::Result<T, E>;

/// The checksums of a stream; see [`Sealing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    chunk: u64,
    size: u64,
    digests: Vec<Digest>,
}

/// Writes a stream to another writer, and computes its seal.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut sealing = sapwood::Sealing::new(Vec::new());
/// std::io::Write::write_all(&mut sealing, b"the bytes of a stream")?;
/// let (stream, seal) = sealing.finish();
/// let mut stored = Vec::new();
/// seal.write_to(&mut stored)?;
///
/// let seal = sapwood::Seal::read(&*stored)?;
/// seal.verify(&*stream, &mut |damage| panic!("{damage}"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sealing<W> {
    writer: W,
    hash: Sha256,
    filled: usize,
    seal: Seal,
}

impl<W: Write> Sealing<W> {
    /// A stream that begins with the next byte, written to `writer`.
    pub fn new(writer: W) -> Self {
        Self {
            writer,
            hash: Sha256::new(),
            filled: 0,
            seal: Seal {
                chunk: CHUNK as u64,
                size: 0,
                digests: Vec::new(),
            },
        }
    }

    fn end_chunk(&mut self) {
        self.seal.digests.push(self.hash.finalize_reset().into());
        self.filled = 0;
    }

    /// Ends the stream. Returns the writer, and the seal of all bytes that it got.
    pub fn finish(mut self) -> (W, Seal) {
        if self.filled > 0 {
            self.end_chunk();
        }
        (self.writer, self.seal)
    }
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let most = buf.len().min(CHUNK - self.filled);
        let written = self.writer.write(buf.get(..most).unwrap_or(buf))?;
        self.hash.update(buf.get(..written).unwrap_or_default());
        self.seal.size += written as u64;
        self.filled += written;
        if self.filled >= CHUNK {
            self.end_chunk();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

fn from_hex(text: &str) -> Option<Digest> {
    let digest = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
    digest.try_into().ok()
}

/// The lines of a seal that is read.
struct Lines<R> {
    reader: R,
    line: u64,
    hash: Sha256,
}

impl<R: BufRead> Lines<R> {
    /// The next line, and the digest of all lines before it.
    fn next(&mut self) -> Result<(String, Digest)> {
        self.line += 1;
        let mut bytes = Vec::new();
        let mut limited = (&mut self.reader).take(LINE);
        limited
            .read_until(b'\n', &mut bytes)
            .map_err(SealError::Read)?;
        let before = self.hash.clone().finalize().into();
        self.hash.update(&bytes);
        let whole = bytes.strip_suffix(b"\n").map(<[u8]>::to_vec);
        let text = whole.and_then(|bytes| String::from_utf8(bytes).ok());
        let text = text.ok_or_else(|| self.bad("no line, or cut short"))?;
        Ok((text, before))
    }

    fn bad(&self, why: &'static str) -> SealError {
        SealError::Format {
            line: self.line,
            why,
        }
    }
}

impl Seal {
    /// Bytes of the stream.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads a stored seal.
    ///
    /// # Errors
    /// The seal cannot be read, is damaged, or is no seal.
    pub fn read(reader: impl Read) -> crate::Result<Self> {
        Ok(Self::parse(reader)?)
    }

    fn parse(reader: impl Read) -> Result<Self> {
        let mut lines = Lines {
            reader: BufReader::new(reader),
            line: 0,
            hash: Sha256::new(),
        };
        if lines.next()?.0 != MAGIC {
            return Err(lines.bad("not a seal"));
        }
        let (text, _) = lines.next()?;
        let chunk = text.strip_prefix("chunk ").and_then(|n| n.parse().ok());
        let chunk: u64 = chunk
            .filter(|chunk| (CHUNK_MIN..=CHUNK_MAX).contains(chunk))
            .ok_or_else(|| lines.bad("no size of a chunk"))?;
        let mut seal = Self {
            chunk,
            size: 0,
            digests: Vec::new(),
        };
        loop {
            let (text, before) = lines.next()?;
            let mut parts = text.splitn(3, ' ');
            let mut part = || parts.next().unwrap_or_default();
            let (first, number, digest) = (part(), part().parse::<u64>(), from_hex(part()));
            let (Ok(number), Some(digest)) = (number, digest) else {
                return Err(lines.bad("no chunk"));
            };
            if first == "end" {
                let mut after = [0];
                let more = lines.reader.read(&mut after).map_err(SealError::Read)?;
                return if digest != before || number != seal.size || more != 0 {
                    Err(lines.bad("it does not match the lines before, or is not the last"))
                } else {
                    Ok(seal)
                };
            }
            // Only the last chunk is shorter.
            let follows = first.parse() == Ok(seal.size) && seal.size.is_multiple_of(chunk);
            if !follows || !(1..=chunk).contains(&number) {
                return Err(lines.bad("it does not follow the chunk before"));
            }
            seal.size = seal.size.saturating_add(number);
            seal.digests.push(digest);
        }
    }

    /// Stores the seal as text.
    ///
    /// # Errors
    /// The writer's errors.
    pub fn write_to(&self, mut writer: impl Write) -> io::Result<()> {
        let mut hash = Sha256::new();
        let mut put = |line: String| {
            hash.update(&line);
            writer.write_all(line.as_bytes())
        };
        put(format!("{MAGIC}\nchunk {}\n", self.chunk))?;
        let mut start = 0;
        for digest in &self.digests {
            let len = self.chunk.min(self.size - start);
            put(format!("{start} {len} {}\n", HEXLOWER.encode(digest)))?;
            start += len;
        }
        let digest: Digest = hash.finalize().into();
        writeln!(writer, "end {} {}", self.size, HEXLOWER.encode(&digest))?;
        writer.flush()
    }

    /// Bytes of a chunk.
    fn len(&self, chunk: usize) -> usize {
        let start = self.start(chunk);
        usize::try_from(self.chunk.min(self.size.saturating_sub(start))).unwrap_or(0)
    }

    fn start(&self, chunk: usize) -> u64 {
        self.chunk.saturating_mul(chunk as u64)
    }

    /// The first chunk with each digest.
    fn chunks(&self) -> HashMap<Digest, usize> {
        let digests = self.digests.iter().enumerate().rev();
        digests.map(|(chunk, digest)| (*digest, chunk)).collect()
    }

    /// Verifies the bytes of a chunk. `chunks` gets [`Self::chunks`] at the first damage.
    fn verify_chunk(
        &self,
        chunk: usize,
        bytes: &[u8],
        chunks: &mut Option<HashMap<Digest, usize>>,
    ) -> Result<()> {
        let (start, expected) = (self.start(chunk), self.len(chunk));
        if bytes.len() < expected {
            return Err(SealError::Cut {
                chunk: chunk as u64,
                found: start.saturating_add(bytes.len() as u64),
                size: self.size,
            });
        }
        let found: Digest = Sha256::digest(bytes).into();
        if self.digests.get(chunk) == Some(&found) {
            return Ok(());
        }
        let end = start.saturating_add(expected as u64);
        let chunks = chunks.get_or_insert_with(|| self.chunks());
        let other = chunks.get(&found).copied();
        let chunk = chunk as u64;
        Err(match other {
            None => SealError::Damaged { chunk, start, end },
            Some(other) => SealError::Moved {
                chunk,
                start,
                end,
                other: other as u64,
            },
        })
    }

    /// Verifies a stored stream. Calls `damaged` for each chunk with other bytes, and for a stream
    /// that ends early or goes on. Returns the number of calls.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub fn verify(
        &self,
        reader: impl Read,
        damaged: &mut dyn FnMut(SealError),
    ) -> crate::Result<u64> {
        let mut verified = Verified::new(self, reader);
        let mut count = 0;
        loop {
            match verified.next_chunk() {
                Ok(true) => {}
                Ok(false) => return Ok(count),
                Err(error @ SealError::Read(_)) => return Err(error.into()),
                Err(error) => {
                    let ends = matches!(error, SealError::Cut { .. } | SealError::Longer { .. });
                    damaged(error);
                    count += 1;
                    if ends {
                        return Ok(count);
                    }
                }
            }
        }
    }
}

/// A stream that is verified as it is read. An error is a [`SealError`] inside of the
/// [`io::Error`].
pub(crate) struct Verified<'s, R> {
    seal: &'s Seal,
    reader: R,
    /// Number of the next chunk.
    next: usize,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given out.
    given: usize,
    /// The first chunk with each digest, after a damaged chunk was found.
    chunks: Option<HashMap<Digest, usize>>,
}

impl<'s, R: Read> Verified<'s, R> {
    pub(crate) fn new(seal: &'s Seal, reader: R) -> Self {
        Self {
            seal,
            reader,
            next: 0,
            buffer: Vec::new(),
            given: 0,
            chunks: None,
        }
    }

    /// Reads and verifies the next chunk. Returns false at the end of the stream.
    fn next_chunk(&mut self) -> Result<bool> {
        let chunk = self.next;
        self.next += 1;
        self.given = 0;
        self.buffer.clear();
        if chunk >= self.seal.digests.len() {
            let more = (&mut self.reader).take(1).read_to_end(&mut self.buffer);
            self.buffer.clear();
            return match more.map_err(SealError::Read)? {
                0 => Ok(false),
                _ => Err(SealError::Longer {
                    size: self.seal.size,
                }),
            };
        }
        let len = self.seal.len(chunk) as u64;
        let read = (&mut self.reader).take(len).read_to_end(&mut self.buffer);
        read.map_err(SealError::Read)?;
        let seal = self.seal;
        let verified = seal.verify_chunk(chunk, &self.buffer, &mut self.chunks);
        if verified.is_err() {
            // None of its bytes is given out.
            self.buffer.clear();
        }
        verified.map(|()| true)
    }
}

impl<R: Read> Read for Verified<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.given >= self.buffer.len() {
            match self.next_chunk() {
                Ok(true) => {}
                Ok(false) => return Ok(0),
                Err(SealError::Read(error)) => return Err(error),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        let mut rest = self.buffer.get(self.given..).unwrap_or_default();
        let count = rest.read(buf)?;
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(bytes: &[u8]) -> Seal {
        let mut sealing = Sealing::new(Vec::new());
        for part in bytes.chunks(70_001) {
            sealing.write_all(part).unwrap();
        }
        let (written, seal) = sealing.finish();
        assert_eq!(written, bytes);
        seal
    }

    fn stream() -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes = vec![0; 3 * CHUNK + 500];
        random.fill(&mut bytes);
        bytes
    }

    fn damage(seal: &Seal, bytes: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        let count = seal.verify(bytes, &mut |error| found.push(error.to_string()));
        assert_eq!(count.unwrap(), found.len() as u64);
        found
    }

    #[test]
    fn a_seal_round_trips_and_any_change_of_it_is_refused() {
        for bytes in [&b""[..], b"short", &stream()] {
            let seal = sealed(bytes);
            let mut stored = Vec::new();
            seal.write_to(&mut stored).unwrap();
            assert_eq!(Seal::parse(&*stored).unwrap(), seal);
            for at in 0..stored.len() {
                let mut changed = stored.clone();
                changed[at] ^= 1;
                assert!(Seal::parse(&*changed).is_err(), "{at}");
                assert!(Seal::parse(&stored[..at]).is_err(), "{at}");
            }
            stored.push(b'\n');
            assert!(Seal::parse(&*stored).is_err());
        }
    }

    #[test]
    fn flipped_bits_moved_and_missing_parts_are_named() {
        let bytes = stream();
        let seal = sealed(&bytes);
        assert_eq!(damage(&seal, &bytes), [""; 0]);
        let mut flipped = bytes.clone();
        flipped[CHUNK] ^= 0x80;
        flipped[3 * CHUNK + 499] ^= 1;
        assert_eq!(
            damage(&seal, &flipped),
            [
                "chunk 1 (bytes 1048576 to 2097152) is damaged",
                "chunk 3 (bytes 3145728 to 3146228) is damaged"
            ]
        );
        let mut moved = bytes.clone();
        let (first, rest) = moved.split_at_mut(CHUNK);
        first.swap_with_slice(&mut rest[..CHUNK]);
        assert_eq!(
            damage(&seal, &moved),
            [
                "chunk 0 (bytes 0 to 1048576) has the content of chunk 1",
                "chunk 1 (bytes 1048576 to 2097152) has the content of chunk 0"
            ]
        );
        let cut = damage(&seal, &bytes[..CHUNK + 7]);
        let expected = "the stream ends at byte 1048583 in chunk 1, instead of 3146228";
        assert_eq!(cut, [expected]);
        assert_eq!(damage(&seal, &bytes[..3 * CHUNK]).len(), 1);
        let longer = damage(&seal, &[&bytes[..], b"x"].concat());
        assert_eq!(longer.len(), 1);
        assert!(longer[0].contains("goes on after byte 3146228"));
    }

    #[test]
    fn a_damaged_chunk_gives_out_no_byte() {
        let mut bytes = stream();
        let seal = sealed(&bytes);
        bytes[2 * CHUNK - 1] ^= 1;
        let mut verified = Verified::new(&seal, &*bytes);
        let mut found = Vec::new();
        let error = verified.read_to_end(&mut found).unwrap_err();
        assert_eq!(found, bytes[..CHUNK]);
        let error = error.downcast::<SealError>().unwrap();
        assert!(matches!(error, SealError::Damaged { chunk: 1, .. }));
    }
}
