//! Writes blocks to the device in few, large requests.

use sapwood_block::Device;

use crate::Result;

/// Most bytes of one write.
const MOST_BYTES: usize = 1 << 20;
/// Most blocks of one write: the host limits the number of pieces per request.
const MOST_BLOCKS: usize = 512;

/// Writes blocks of `block_size` bytes, given in rising order. Contiguous blocks share a write.
pub(crate) fn write_blocks(
    device: &dyn Device,
    block_size: u32,
    blocks: &[(u64, &[u8])],
) -> Result<()> {
    let most = (MOST_BYTES / block_size.max(1) as usize).clamp(1, MOST_BLOCKS);
    let mut rest = blocks;
    while let Some((first, _)) = rest.first() {
        let neighbours = rest.iter().zip(*first..).take(most);
        let count = neighbours.take_while(|((at, _), want)| at == want).count();
        let (run, after) = rest.split_at(count.max(1));
        let pieces: Vec<&[u8]> = run.iter().map(|(_, bytes)| *bytes).collect();
        device.write_vectored_at(first * u64::from(block_size), &pieces)?;
        rest = after;
    }
    Ok(())
}
