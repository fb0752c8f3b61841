//! Writes a transaction into the log.
//!
//! # How it works
//! Order of the blocks in the log:
//!
//! 1. revoke blocks
//! 2. descriptor blocks, each followed by the blocks that it names
//! 3. the commit block
//!
//! The commit block is written alone, and made durable, after all others are durable: a transaction
//! counts if and only if its commit block is there. The other blocks go out in a few large writes,
//! with zeros at the place of the commit block. A commit block is zero beyond its first sector, so
//! that it cannot be torn: `e2fsck` treats a torn one as corruption, as it sums the whole block.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::buffer::Content;
use crate::codec::{Codec, Tag};
use crate::counters::Counters;
use crate::log::Log;
use crate::transaction::Snapshot;
use crate::{Error, Result, Tid};

enum Piece {
    Made(Vec<u8>),
    Shared(Content),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Made(bytes) => bytes,
            Self::Shared(content) => content,
        }
    }
}

/// Blocks of the log that the snapshot takes, including the commit block.
pub(crate) fn cost(codec: &Codec, snapshot: &Snapshot) -> u64 {
    let blocks = snapshot.blocks.len();
    let descriptors = blocks.div_ceil(codec.tags_per_block());
    let revokes = snapshot.revoked.len().div_ceil(codec.revokes_per_block());
    (blocks + descriptors + revokes + 1) as u64
}

/// Writes all but the commit block from position `at` of the ring on. Returns the position after
/// the last block.
pub(crate) fn write_blocks(
    log: &Log,
    counters: &Counters,
    tid: Tid,
    at: u64,
    snapshot: &Snapshot,
) -> Result<u64> {
    let codec = log.codec();
    let sequence = tid as u32;
    let mut pieces = Vec::new();
    let revoked = match sapwood_fault::planted(106) {
        true => &[],
        false => snapshot.revoked.as_slice(),
    };
    for blocks in revoked.chunks(codec.revokes_per_block()) {
        pieces.push(Piece::Made(codec.revoke(sequence, blocks)));
    }
    for part in snapshot.blocks.chunks(codec.tags_per_block()) {
        let mut tags = Vec::with_capacity(part.len());
        let at = pieces.len();
        for one in part {
            let block = one.buffer.block();
            if !codec.is_wide() && block > u64::from(u32::MAX) {
                return Err(Error::Target {
                    sequence,
                    target: block,
                });
            }
            let escaped = Codec::needs_escape(&one.content) && !sapwood_fault::planted(135);
            let piece = if escaped {
                Counters::count(&counters.escaped);
                Piece::Made(escape(&one.content))
            } else {
                Piece::Shared(one.content.clone())
            };
            let checksum = codec.data_checksum(sequence, piece.bytes());
            tags.push(Tag {
                block,
                escaped,
                checksum,
            });
            pieces.push(piece);
        }
        pieces.insert(at, Piece::Made(codec.descriptor(sequence, &tags)));
    }
    let bytes: Vec<&[u8]> = pieces.iter().map(Piece::bytes).collect();
    write_uncommitted(log, at, &bytes)?;
    let blocks = snapshot.blocks.len() as u64;
    let overhead = pieces.len() as u64 + 1 - blocks;
    Counters::add(&counters.blocks_logged, blocks);
    Counters::add(&counters.log_overhead_blocks, overhead);
    Counters::add(&counters.revokes, snapshot.revoked.len() as u64);
    Ok(at + pieces.len() as u64)
}

/// Writes the blocks of a transaction from position `at` of the ring on, and zeros after the last
/// one, where its commit block is to be.
pub(crate) fn write_uncommitted(log: &Log, at: u64, pieces: &[&[u8]]) -> Result<()> {
    let zeros = vec![0; log.block_size() as usize];
    let mut pieces = pieces.to_vec();
    if !sapwood_fault::planted(364) {
        pieces.push(&zeros);
    }
    log.write_ring(at, &pieces)
}

/// Makes all preceding writes durable, then writes the commit block at position `at`, durably.
pub(crate) fn write_commit(log: &Log, tid: Tid, at: u64) -> Result<()> {
    if !sapwood_fault::planted(104) {
        log.device().flush()?;
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let block = log
        .codec()
        .commit(tid as u32, now.as_secs(), now.subsec_nanos());
    log.write_ring_fua(at, &block)
}

/// A copy of the block with zeros in place of the magic.
pub(crate) fn escape(content: &[u8]) -> Vec<u8> {
    let mut bytes = content.to_vec();
    if let Some(start) = bytes.first_chunk_mut::<4>() {
        start.fill(0);
    }
    bytes
}
