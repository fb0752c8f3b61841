//! qcow2: the clusters that are not zero, in their order.

use sapwood_block::{Device, Qcow2Device, create_qcow2};

use super::{Copy, Result, UNIT};
use crate::new_file::NewFile;

/// Bytes of a sector. A disk in a qcow2 file has whole ones.
const SECTOR: u64 = 512;

pub(super) fn write(copy: &mut Copy<'_, '_>, out: &NewFile) -> Result<()> {
    let file = out.device()?;
    let size = copy.source.len().next_multiple_of(SECTOR);
    create_qcow2(&*file, size)?;
    let disk = Qcow2Device::open(file, None)?;
    copy.each(UNIT, |at, bytes| Ok(disk.write_at(at, bytes)?))?;
    Ok(disk.flush()?)
}
