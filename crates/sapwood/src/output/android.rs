//! Android sparse images: chunks of blocks that are stored, or filled with a word.
//!
//! Blocks of zeros become fill chunks. With don't-care chunks, flash memory would keep its old
//! content, and a file system relies on reading zeros there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{Copy, OutputError, OutputFormat, Result};

const BLOCK: usize = 4096;
/// Largest image.
const MOST: u64 = u32::MAX as u64 * BLOCK as u64;
const MAGIC: u32 = 0xed26_ff3a;
const HEADER: u16 = 28;
const CHUNK_HEADER: u16 = 12;
const RAW: u16 = 0xcac1;
const FILL: u16 = 0xcac2;
/// Bytes of a chunk of stored blocks, at most.
const MOST_RAW: usize = 16 << 20;

/// A chunk that is not written yet.
enum Chunk {
    Raw(Vec<u8>),
    Fill { word: [u8; 4], blocks: u32 },
}

struct Writer<'f> {
    out: &'f File,
    at: u64,
    chunks: u32,
    /// Blocks before the open chunk, and in it.
    blocks: u32,
    open: Option<Chunk>,
}

pub(super) fn write(copy: &mut Copy<'_, '_>, out: &File) -> Result<()> {
    let size = copy.source.len();
    let blocks = size.div_ceil(BLOCK as u64);
    let total = u32::try_from(blocks).map_err(|_| OutputError::TooLarge {
        format: OutputFormat::AndroidSparse,
        size,
        most: MOST,
    })?;
    let mut writer = Writer {
        out,
        at: HEADER.into(),
        chunks: 0,
        blocks: 0,
        open: None,
    };
    copy.each(BLOCK, |at, bytes| {
        Ok(writer.block((at / BLOCK as u64) as u32, bytes)?)
    })?;
    writer.end(total).map_err(|error| copy.failed(error))
}

impl Writer<'_> {
    /// Adds a block that is not zero. All blocks between the previous one and this one are zero.
    fn block(&mut self, number: u32, bytes: &[u8]) -> io::Result<()> {
        self.zeros(number)?;
        self.blocks += 1;
        let mut whole = bytes.to_vec();
        whole.resize(BLOCK, 0);
        let word = whole.first_chunk::<4>().copied().unwrap_or_default();
        if whole.chunks_exact(4).all(|other| *other == word) {
            return self.fill(word, 1);
        }
        match &mut self.open {
            Some(Chunk::Raw(data)) if data.len() < MOST_RAW => data.extend(whole),
            _ => {
                self.close()?;
                self.open = Some(Chunk::Raw(whole));
            }
        }
        Ok(())
    }

    /// Adds blocks of zeros up to a block.
    fn zeros(&mut self, end: u32) -> io::Result<()> {
        let blocks = end.saturating_sub(self.blocks);
        self.blocks += blocks;
        match blocks {
            0 => Ok(()),
            blocks => self.fill([0; 4], blocks),
        }
    }

    fn fill(&mut self, with: [u8; 4], more: u32) -> io::Result<()> {
        match &mut self.open {
            Some(Chunk::Fill { word, blocks }) if *word == with => *blocks += more,
            _ => {
                self.close()?;
                self.open = Some(Chunk::Fill {
                    word: with,
                    blocks: more,
                });
            }
        }
        Ok(())
    }

    /// Writes the open chunk.
    fn close(&mut self) -> io::Result<()> {
        let (kind, blocks, data) = match self.open.take() {
            None => return Ok(()),
            Some(Chunk::Raw(data)) => (RAW, (data.len() / BLOCK) as u32, data),
            Some(Chunk::Fill { word, blocks }) => (FILL, blocks, word.to_vec()),
        };
        let all = u32::from(CHUNK_HEADER) + data.len() as u32;
        let mut chunk = Vec::from(u32::from(kind).to_le_bytes());
        chunk.extend(blocks.to_le_bytes());
        chunk.extend(all.to_le_bytes());
        chunk.extend(data);
        self.out.write_all_at(&chunk, self.at)?;
        self.at += chunk.len() as u64;
        self.chunks += 1;
        Ok(())
    }

    /// Writes the rest of an image of `total` blocks, and the header.
    fn end(&mut self, total: u32) -> io::Result<()> {
        self.zeros(total)?;
        self.close()?;
        let words = [BLOCK as u32, total, self.chunks, 0];
        let versions = [1, 0, HEADER, CHUNK_HEADER];
        let mut header = MAGIC.to_le_bytes().to_vec();
        header.extend(versions.iter().flat_map(|half| half.to_le_bytes()));
        header.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        self.out.write_all_at(&header, 0)
    }
}
