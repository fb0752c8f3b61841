//! Writing tree blocks.

use std::sync::Arc;

use sapwood_btrfs_format::{BlockMut, block::header_flag};

use super::block::BlockBytes;
use super::{TreeBlock, TreeRead};
use crate::Result;
use crate::lock::TreeClass;
use crate::volume::{BlockExpect, Volume};

/// Bytes that one request carries at most.
const RUN_BYTES: usize = 1 << 20;

/// Seals, validates and writes blocks to all their copies, in the order of their addresses, with
/// as few requests as their places allow. From here on they change no more: who wants to change
/// one copies it. Flushes nothing.
///
/// # Errors
/// [`Error::BadBlockToWrite`](crate::Error::BadBlockToWrite) before anything is written,
/// [`Error::Device`](crate::Error::Device).
pub(crate) fn write_blocks(
    env: &(impl TreeRead + ?Sized),
    blocks: &[Arc<TreeBlock>],
) -> Result<()> {
    let volume = env.blocks().volume();
    let mut sealed = Vec::with_capacity(blocks.len());
    for block in blocks {
        sealed.push((block.bytenr(), seal(volume, block)?));
    }
    sealed.sort_unstable_by_key(|(bytenr, _)| *bytenr);
    sealed.dedup_by_key(|(bytenr, _)| *bytenr);
    let nodesize = volume.geometry().nodesize as usize;
    let mut rest = &sealed[..];
    while let Some((start, _)) = rest.first() {
        let most = (RUN_BYTES / nodesize).max(1);
        let follows =
            |(nth, (at, _)): (usize, &(u64, BlockBytes))| *at == start + (nth * nodesize) as u64;
        let run = rest
            .iter()
            .take(most)
            .enumerate()
            .take_while(|b| follows((b.0, b.1)));
        let count = run.count().max(1);
        let (run, behind) = rest.split_at(count);
        let bufs: Vec<&[u8]> = run.iter().map(|(_, bytes)| &bytes[..]).collect();
        volume.write_vectored(*start, &bufs)?;
        rest = behind;
    }
    for block in blocks {
        block.set_clean();
    }
    Ok(())
}

/// Makes blocks final before they are written: who wants to change one copies it from here on.
/// Nobody is changing one of them now.
pub(crate) fn freeze(blocks: &[Arc<TreeBlock>]) {
    for block in blocks {
        block.set_written();
    }
}

/// Forgets new blocks that nobody will write.
pub(crate) fn abandon(env: &(impl TreeRead + ?Sized), blocks: &[Arc<TreeBlock>]) {
    for block in blocks {
        block.set_clean();
        env.blocks().forget(block.bytenr());
    }
}

/// Makes a block final and returns its bytes as they go to disk.
fn seal(volume: &Volume, block: &TreeBlock) -> Result<BlockBytes> {
    let mut guard = block.write(TreeClass::Committed);
    block.set_written();
    let bytes = guard.bytes_mut();
    let mut edit = BlockMut::new(bytes).map_err(|source| crate::Error::Block {
        root: block.owner(),
        source,
    })?;
    let header = edit.header_mut();
    header.flags = (header.flags.get() | header_flag::WRITTEN).into();
    edit.zero_free_space();
    let want = BlockExpect {
        level: Some(block.level()),
        generation: Some(block.generation()),
        owner: Some(block.owner()),
        first_key: None,
    };
    volume.check_before_write(block.bytenr(), bytes, &want)?;
    volume.geometry().checksum.seal_block(bytes);
    Ok(guard.bytes())
}
