//! Writes tree blocks.

use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};
use std::thread::{self, ScopedJoinHandle};

use sapwood_btrfs_format::{BlockMut, block::header_flag};

use super::block::BlockBytes;
use super::{TreeBlock, TreeRead};
use crate::Result;
use crate::devices::{BlockExpect, Volume};
use crate::lock::TreeClass;

/// Most bytes of one request.
const RUN_BYTES: usize = 1 << 20;
/// Number of blocks that is worth a thread.
const PART: usize = 64;
const MOST_THREADS: usize = 8;

/// Seals, validates and writes blocks to all their copies, in the order of their addresses, with as
/// few requests as their locations allow. They no longer change: a writer must copy them from now
/// on. Does not flush.
///
/// # Errors
/// [`Error::BadBlockToWrite`](crate::Error::BadBlockToWrite) before anything is written,
/// [`Error::Device`](crate::Error::Device).
pub(crate) fn write_blocks(
    env: &(impl TreeRead + ?Sized),
    blocks: &[Arc<TreeBlock>],
) -> Result<()> {
    let volume = env.blocks().volume();
    let mut sealed = seal_all(volume, blocks)?;
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
        volume.write_metadata(*start, &bufs)?;
        rest = behind;
    }
    for block in blocks {
        block.set_clean();
    }
    Ok(())
}

/// Makes blocks final before they are written: a writer must copy them from now on. No thread may
/// be changing one of them.
pub(crate) fn freeze(blocks: &[Arc<TreeBlock>]) {
    for block in blocks {
        block.set_written();
    }
}

/// Removes new blocks that will not be written.
pub(crate) fn abandon(env: &(impl TreeRead + ?Sized), blocks: &[Arc<TreeBlock>]) {
    for block in blocks {
        block.set_clean();
        env.blocks().forget(block.bytenr());
    }
}

/// Blocks with their addresses, in their form on disk.
type Sealed = Vec<(u64, BlockBytes)>;

/// Seals blocks, very many of them in several threads, because validation and checksums take most
/// of the time of a large commit.
fn seal_all(volume: &Volume, blocks: &[Arc<TreeBlock>]) -> Result<Sealed> {
    let seal_part = |part: &[Arc<TreeBlock>]| -> Result<Sealed> {
        let sealed = part.iter();
        sealed.map(|b| Ok((b.bytenr(), seal(volume, b)?))).collect()
    };
    if blocks.len() < 2 * PART {
        return seal_part(blocks);
    }
    let threads = threads().min(blocks.len() / PART);
    let mut parts = blocks.chunks(blocks.len().div_ceil(threads));
    let own = parts.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = parts
            .map(|part| {
                let builder = thread::Builder::new().name("btrfs-seal".to_owned());
                let thread = builder.spawn_scoped(scope, move || seal_part(part));
                (part, thread)
            })
            .collect();
        let mut all = seal_part(own)?;
        for (part, thread) in others {
            all.extend(match thread.map(ScopedJoinHandle::join) {
                Ok(Ok(sealed)) => sealed?,
                Ok(Err(panic)) => resume_unwind(panic),
                // No thread could be started.
                Err(_) => seal_part(part)?,
            });
        }
        Ok(all)
    })
}

/// Most threads that seal at once.
fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    let found = || thread::available_parallelism().map_or(1, usize::from);
    *THREADS.get_or_init(|| found().min(MOST_THREADS))
}

/// Makes a block final and returns its bytes in their form on disk.
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
