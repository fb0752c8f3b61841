//! Comparing the content of two files block by block.

use super::zeroed::is_zero;
use crate::tree::HeldInode;
use crate::vfs::{self, SeekFrom};

/// Bytes of a file that are compared at a time.
const PIECE: usize = 1 << 20;
/// Unit of comparison.
const BLOCK: usize = 4096;

/// Blocks of a file that differ.
pub(super) struct Run<'r> {
    /// Offset of the first byte.
    pub(super) start: u64,
    /// Bytes.
    pub(super) len: u64,
    /// The bytes of the new file; `None` if all are zeros.
    pub(super) bytes: Option<&'r [u8]>,
}

/// Takes a run.
pub(super) type Take<'t> = dyn FnMut(Run<'_>) -> vfs::Result<()> + 't;

/// Buffers of both sides.
pub(super) struct Comparison {
    pieces: [Vec<u8>; 2],
}

impl Default for Comparison {
    fn default() -> Self {
        Self {
            pieces: [vec![0; PIECE], vec![0; PIECE]],
        }
    }
}

impl Comparison {
    /// Calls `take` for all blocks of the first `size` bytes that differ, in order. Bytes after the
    /// end of a file count as zeros. True if there were any.
    pub(super) fn each(
        &mut self,
        new: &HeldInode<'_>,
        node: &HeldInode<'_>,
        size: u64,
        take: &mut Take<'_>,
    ) -> vfs::Result<bool> {
        let mut offset = 0;
        let mut any = false;
        while let Some(data) = next_data(new, node, offset)?.filter(|data| *data < size) {
            let start = data - data % BLOCK as u64;
            let left = usize::try_from(size - start).unwrap_or(PIECE).min(PIECE);
            any |= self.piece(new, node, (start, left), take)?;
            offset = start + left as u64;
        }
        Ok(any)
    }

    fn piece(
        &mut self,
        new: &HeldInode<'_>,
        node: &HeldInode<'_>,
        (start, len): (u64, usize),
        take: &mut Take<'_>,
    ) -> vfs::Result<bool> {
        let [wanted, found] = &mut self.pieces;
        let wanted = wanted.get_mut(..len).unwrap_or_default();
        let found = found.get_mut(..len).unwrap_or_default();
        vfs::read_padded(new.file_system(), new.ino(), start, wanted)?;
        vfs::read_padded(node.file_system(), node.ino(), start, found)?;
        let mut runs: Vec<(bool, usize, usize)> = Vec::new();
        let mut end = 0;
        for (now, then) in wanted.chunks(BLOCK).zip(found.chunks(BLOCK)) {
            let begin = end;
            end += now.len();
            if now == then {
                continue;
            }
            let hole = is_zero(now);
            match runs.last_mut() {
                Some((last, _, until)) if (*last, *until) == (hole, begin) => *until = end,
                _ => runs.push((hole, begin, end)),
            }
        }
        for (hole, begin, end) in &runs {
            let bytes = wanted.get(*begin..*end).unwrap_or_default();
            take(Run {
                start: start + *begin as u64,
                len: (end - begin) as u64,
                bytes: (!hole).then_some(bytes),
            })?;
        }
        Ok(!runs.is_empty())
    }
}

/// The offset of the next data of either file, from `offset` on.
fn next_data(one: &HeldInode<'_>, other: &HeldInode<'_>, offset: u64) -> vfs::Result<Option<u64>> {
    let next = |node: &HeldInode<'_>| match (node.file_system())
        .seek(node.ino(), SeekFrom::Data(offset))
    {
        Ok(data) => Ok(Some(data)),
        Err(vfs::Error::NoSuchOffset) => Ok(None),
        Err(error) => Err(error),
    };
    Ok(match (next(one)?, next(other)?) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    })
}
