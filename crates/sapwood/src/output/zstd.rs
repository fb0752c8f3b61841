//! zstd in the seekable format: frames of a fixed number of bytes, and a table of them in a frame
//! that decoders skip.
//!
//! The frames are compressed on all processors. The number of processors does not change the bytes.

use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;

use super::{Copy, Failed, Result};

/// Bytes of the disk in a frame.
const FRAME: usize = 4 << 20;
const LEVEL: i32 = 3;
/// Magic of the frame with the table, and of the table.
const SKIPPED: u32 = 0x184d_2a5e;
const SEEKABLE: u32 = 0x8f92_eab1;

struct Writer<'f> {
    out: &'f File,
    /// Bytes of each frame, compressed and not.
    table: Vec<(u32, u32)>,
    /// Frames that are not compressed yet.
    waiting: Vec<Vec<u8>>,
    /// A frame of zeros, compressed.
    zeros: Vec<u8>,
    most: usize,
}

pub(super) fn write(copy: &mut Copy<'_, '_>, out: &File) -> Result<()> {
    let size = copy.source.len();
    let mut writer = Writer {
        out,
        table: Vec::new(),
        waiting: Vec::new(),
        zeros: compressed(&vec![0; FRAME]).map_err(|error| copy.failed(error))?,
        most: std::thread::available_parallelism().map_or(1, NonZero::get),
    };
    copy.each(FRAME, |at, bytes| writer.frame(at, bytes))?;
    let ended = writer.end(size);
    ended.map_err(|error| copy.failed(error))
}

impl Writer<'_> {
    /// Adds a frame that is not zero. All frames between the previous one and this one are zero.
    fn frame(&mut self, at: u64, bytes: &[u8]) -> std::result::Result<(), Failed> {
        self.zeros(at)?;
        self.waiting.push(bytes.to_vec());
        if self.waiting.len() >= self.most {
            self.compress()?;
        }
        Ok(())
    }

    /// Adds whole frames of zeros up to an offset.
    fn zeros(&mut self, end: u64) -> io::Result<()> {
        while self.done() + FRAME as u64 <= end {
            self.compress()?;
            self.out.write_all(&self.zeros)?;
            self.table.push((self.zeros.len() as u32, FRAME as u32));
        }
        Ok(())
    }

    /// Bytes of the disk in all frames.
    fn done(&self) -> u64 {
        (self.table.len() + self.waiting.len()) as u64 * FRAME as u64
    }

    /// Compresses and writes the frames that wait.
    fn compress(&mut self) -> io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let frames = std::thread::scope(|scope| {
            let started: Vec<_> = waiting
                .iter()
                .map(|bytes| scope.spawn(|| compressed(bytes)))
                .collect();
            let ended = started.into_iter().map(|thread| match thread.join() {
                Ok(frame) => frame,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.collect::<io::Result<Vec<_>>>()
        })?;
        for (frame, bytes) in frames.iter().zip(&waiting) {
            self.out.write_all(frame)?;
            self.table.push((frame.len() as u32, bytes.len() as u32));
        }
        Ok(())
    }

    /// Writes the rest of a disk of this size, and the table.
    fn end(&mut self, size: u64) -> io::Result<()> {
        self.zeros(size)?;
        if self.done() < size {
            let left = size.saturating_sub(self.done()) as usize;
            self.waiting.push(vec![0; left]);
        }
        self.compress()?;
        let mut table = Vec::new();
        for (packed, plain) in &self.table {
            table.extend(packed.to_le_bytes());
            table.extend(plain.to_le_bytes());
        }
        table.extend((self.table.len() as u32).to_le_bytes());
        // The table has no checksums.
        table.push(0);
        table.extend(SEEKABLE.to_le_bytes());
        let mut frame = SKIPPED.to_le_bytes().to_vec();
        frame.extend((table.len() as u32).to_le_bytes());
        frame.extend(table);
        self.out.write_all(&frame)
    }
}

/// A frame with a checksum.
fn compressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(LEVEL)?;
    compressor.include_checksum(true)?;
    compressor.compress(bytes)
}
