//! qcow2: the clusters that are not zero, in their order.

use std::path::Path;
use std::sync::Arc;

use sapwood_block::{Device, FileDevice, Qcow2Device, create_qcow2};

use super::{Copy, Result, UNIT};

/// Bytes of a sector. A disk in a qcow2 file has whole ones.
const SECTOR: u64 = 512;

pub(super) fn write(copy: &mut Copy<'_, '_>, out: &Path) -> Result<()> {
    let file: Arc<dyn Device> = Arc::new(FileDevice::create(out, 0)?);
    let size = copy.source.len().next_multiple_of(SECTOR);
    create_qcow2(&*file, size)?;
    let disk = Qcow2Device::open(file, None)?;
    copy.each(UNIT, |at, bytes| Ok(disk.write_at(at, bytes)?))?;
    Ok(disk.flush()?)
}
