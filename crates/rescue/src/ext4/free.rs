//! Blocks that no file has now, by the block bitmaps.

use super::volume::Volume;

/// The bitmap of a group's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockBitmap {
    /// In this block.
    At(u64),
    /// It was never written: all blocks for files are free.
    Unwritten,
    /// Its place is not known.
    Lost,
}

impl Volume {
    /// Whether no file has this block now. A block whose bitmap is lost counts as free.
    pub(super) fn is_free(&self, block: u64) -> bool {
        let Ok((group, index)) = self.geometry.group_of_block(block) else {
            return false;
        };
        let bitmap = self.groups.get(group as usize).map(|group| group.bitmap);
        let Some(BlockBitmap::At(at)) = bitmap else {
            return bitmap.is_some();
        };
        let Some(bytes) = self.block(at) else {
            return true;
        };
        let bit = index >> self.geometry.cluster_ratio_bits();
        let byte = bytes.get(bit as usize / 8);
        byte.is_some_and(|byte| byte & 1 << (bit % 8) == 0)
    }
}
