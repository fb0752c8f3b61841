//! Writing tree blocks.

use std::sync::Arc;

use super::{TreeBlock, TreeRead};
use crate::Result;

/// Seals, validates and writes blocks to all their copies; they may not change any more. Flushes
/// nothing.
///
/// # Errors
/// [`Error::BadBlockToWrite`](crate::Error::BadBlockToWrite), [`Error::Device`](crate::Error::Device).
#[allow(clippy::todo)]
pub(crate) fn write_blocks(
    _env: &(impl TreeRead + ?Sized),
    _blocks: &[Arc<TreeBlock>],
) -> Result<()> {
    todo!()
}
