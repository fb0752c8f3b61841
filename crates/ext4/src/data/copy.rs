//! Copying within the file system: as bytes, because the format shares no extents.

use std::sync::Arc;

use sapwood_vfs::{self as vfs, CopyMode};

use super::{read, write};
use crate::Result;
use crate::engine::Engine;
use crate::inode::Inode;

/// Bytes copied at once.
const CHUNK: u64 = 1 << 20;

/// Copies `len` bytes (0: to the end of the source) from one file to another, or within one.
/// Returns how many. The caller holds `io` of both exclusively, and has checked that the target may
/// be written.
///
/// # Errors
/// [`vfs::Error::NotSupported`] if sharing is required; [`vfs::Error::Invalid`] for ranges that
/// overlap in one file; `FileTooLarge`; [`NoSpace`](crate::Error::NoSpace).
pub(crate) fn copy_range(
    engine: &Arc<Engine>,
    source: (&Arc<Inode>, u64),
    target: (&Arc<Inode>, u64),
    len: u64,
    mode: CopyMode,
) -> Result<u64> {
    engine.check()?;
    if mode == CopyMode::ShareOnly {
        return Err(vfs::Error::NotSupported.into());
    }
    let ((from, from_offset), (to, to_offset)) = (source, target);
    to.check_changeable()?;
    let left = from.size().saturating_sub(from_offset);
    let len = if len == 0 { left } else { len.min(left) };
    let end = to_offset.checked_add(len).ok_or(vfs::Error::FileTooLarge)?;
    if len == 0 {
        return Ok(0);
    }
    if end > to.max_size(engine) {
        return Err(vfs::Error::FileTooLarge.into());
    }
    // `left`: the end of the source is no overflow.
    if Arc::ptr_eq(from, to) && from_offset < end && to_offset < from_offset + len {
        return Err(vfs::Error::Invalid.into());
    }
    let mut buf = vec![0; len.min(CHUNK) as usize];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(CHUNK) as usize;
        let bytes = buf.get_mut(..part).unwrap_or_default();
        let copied = read::read(engine, from, from_offset + done, bytes).and_then(|n| {
            write::write(engine, to, to_offset + done, (&*bytes).into(), false).map(|()| n)
        });
        match copied {
            Ok(n) => done += n as u64,
            // The caller gets the number of copied bytes, and the error with the next call.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
