//! Decompression of archives, by a thread of its own.

use std::io::{self, Cursor, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use super::error::{ArchiveError, Result};

/// Most memory of an xz decoder, in KiB. `xz -9` needs half of it.
const XZ_MEMORY: u32 = 128 << 10;
/// Bytes in a piece that the decoder's thread hands over.
const PIECE: usize = 256 << 10;
/// Pieces that wait for the reader.
const WAITING: usize = 4;

/// The decompressed content of a reader: plain, gzip, zstd, xz, bzip2.
///
/// # Errors
/// The reader fails, or its content is compressed in another format.
pub(crate) fn plain<'r>(mut reader: impl Read + Send + 'r) -> Result<Box<dyn Read + Send + 'r>> {
    let mut start = Vec::new();
    reader.by_ref().take(6).read_to_end(&mut start)?;
    decoder(&start, Cursor::new(start.clone()).chain(reader))
}

/// The decoder of a stream that begins with `start`.
fn decoder<'r>(start: &[u8], all: impl Read + Send + 'r) -> Result<Box<dyn Read + Send + 'r>> {
    Ok(match *start {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(all)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::Decoder::new(all)?),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            Box::new(lzma_rust2::XzReader::new_mem_limit(all, true, XZ_MEMORY))
        }
        [b'B', b'Z', b'h', ..] => Box::new(bzip2::read::MultiBzDecoder::new(all)),
        [0x04, 0x22, 0x4d, 0x18, ..] => return Err(ArchiveError::Compression("lz4")),
        [0x1f, 0x9d, ..] => return Err(ArchiveError::Compression("compress")),
        [b'L', b'Z', b'I', b'P', ..] => return Err(ArchiveError::Compression("lzip")),
        [0x89, b'L', b'Z', b'O', ..] => return Err(ArchiveError::Compression("lzop")),
        _ => Box::new(all),
    })
}

/// True if a file with this start is not compressed.
pub(crate) fn is_plain(start: &[u8]) -> bool {
    !matches!(
        start,
        [0x1f, 0x8b | 0x9d, ..]
            | [0x28, 0xb5, 0x2f, 0xfd, ..]
            | [0xfd, b'7', b'z', b'X', b'Z', 0, ..]
            | [b'B', b'Z', b'h', ..]
            | [0x04, 0x22, 0x4d, 0x18, ..]
            | [b'L', b'Z', b'I', b'P', ..]
            | [0x89, b'L', b'Z', b'O', ..]
    )
}

/// Passes the content of `reader` to `work`, decompressed by a thread that runs ahead of `work`. The
/// thread ends before this function returns.
///
/// # Errors
/// The reader fails, or its content is compressed in another format; the error of `work`.
pub(crate) fn decompressed<T, E: From<ArchiveError>>(
    mut reader: impl Read + Send,
    work: impl FnOnce(&mut dyn Read) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let mut start = Vec::new();
    let begun = reader.by_ref().take(6).read_to_end(&mut start);
    begun.map_err(ArchiveError::Read)?;
    let mut all = Cursor::new(start.clone()).chain(reader);
    if is_plain(&start) {
        return work(&mut all);
    }
    let mut decoder = decoder(&start, all)?;
    let (full, pieces) = sync_channel(WAITING);
    let (empty, used) = channel();
    thread::scope(|scope| {
        let decode = move || decode(&mut *decoder, &full, &used);
        let thread = thread::Builder::new().name("decompress".to_owned());
        let started = thread.spawn_scoped(scope, decode);
        started.map_err(ArchiveError::Read)?;
        work(&mut Pieces {
            pieces,
            empty,
            current: Piece::default(),
            at: 0,
        })
    })
}

/// Decompressed bytes.
#[derive(Default)]
struct Piece {
    buf: Vec<u8>,
    len: usize,
}

/// Decompresses until the end, an error, or the reader's end.
fn decode(decoder: &mut dyn Read, full: &SyncSender<io::Result<Piece>>, used: &Receiver<Vec<u8>>) {
    loop {
        let mut piece = Piece {
            buf: used.try_recv().unwrap_or_else(|_| vec![0; PIECE]),
            len: 0,
        };
        let mut failed = None;
        while let Some(rest) = piece.buf.get_mut(piece.len..).filter(|it| !it.is_empty()) {
            match decoder.read(rest) {
                Ok(0) => break,
                Ok(count) => piece.len += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let ends = piece.len < piece.buf.len();
        // The reader takes a piece without bytes for the end.
        let sent = if piece.len > 0 {
            full.send(Ok(piece))
        } else {
            Ok(())
        };
        if let Some(error) = failed {
            // The reader may have ended.
            let _ = full.send(Err(error));
        }
        if ends || sent.is_err() {
            return;
        }
    }
}

/// The reader of the pieces.
struct Pieces {
    pieces: Receiver<io::Result<Piece>>,
    empty: Sender<Vec<u8>>,
    current: Piece,
    /// Bytes of the piece that were read.
    at: usize,
}

impl Read for Pieces {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len {
            // Without a further piece the archive has ended.
            let next = self
                .pieces
                .recv()
                .unwrap_or_else(|_| Ok(Piece::default()))?;
            let last = std::mem::replace(&mut self.current, next);
            self.at = 0;
            if !last.buf.is_empty() {
                // The decoder may have ended.
                let _ = self.empty.send(last.buf);
            }
        }
        let left = self.current.buf.get(self.at..self.current.len);
        let count = left.unwrap_or_default().read(buf)?;
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        to.write_all(content).unwrap();
        to.finish().unwrap()
    }

    fn all(packed: &[u8]) -> Result<Vec<u8>> {
        decompressed(packed, |plain| {
            let mut all = Vec::new();
            plain.read_to_end(&mut all)?;
            Ok(all)
        })
    }

    #[test]
    fn a_thread_hands_over_everything_in_order() {
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 9 * PIECE + 7] {
            let content: Vec<u8> = (0..len).map(|at| (at / 3) as u8).collect();
            assert_eq!(all(&gzip(&content)).unwrap(), content, "{len}");
            let chained = [gzip(&content), gzip(&content)].concat();
            assert_eq!(all(&chained).unwrap().len(), 2 * len);
        }
        assert_eq!(all(b"plain text").unwrap(), b"plain text");
        assert_eq!(all(b"").unwrap(), b"");
    }

    #[test]
    fn what_precedes_damage_is_read() {
        let content: Vec<u8> = (0..5 * PIECE).map(|at| (at % 251) as u8).collect();
        let mut packed = gzip(&content);
        packed.truncate(packed.len() - 4);
        decompressed(packed.as_slice(), |plain| {
            let mut read = vec![0; content.len()];
            plain.read_exact(&mut read)?;
            assert_eq!(read, content);
            assert!(plain.read(&mut [0]).is_err());
            Ok::<_, ArchiveError>(())
        })
        .unwrap();
    }

    #[test]
    fn a_reader_that_ends_early_ends_the_thread() {
        let packed = gzip(&vec![7; 40 * PIECE]);
        let refused: Result<()> = decompressed(packed.as_slice(), |_| {
            Err(ArchiveError::Compression("nothing"))
        });
        assert!(matches!(refused, Err(ArchiveError::Compression("nothing"))));
    }
}
