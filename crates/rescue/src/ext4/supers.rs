//! The superblock and its backups.

use sapwood_block::Device;
use sapwood_ext4_format::{Geometry, SUPER_OFFSET, SUPER_SIZE, SuperBlock, usual_backups};

use crate::{Error, Result, Scanning, Watch};

/// Bytes that a search reads at once.
const PIECE: u64 = 4 << 20;
/// Alignment of superblocks that a search finds.
const STEP: usize = 1024;
/// Most superblocks that are listed.
const MOST: usize = 64;

/// A valid superblock.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundSuper {
    /// Byte offset on the device.
    pub offset: u64,
    /// Group that it names itself.
    pub group: u16,
    /// Last write, in seconds since 1970.
    pub written: u64,
    /// Blocks of the file system.
    pub blocks: u64,
    /// The superblock.
    pub(super) sb: SuperBlock,
    pub(super) geometry: Geometry,
}

/// The superblock at a byte offset.
///
/// # Errors
/// A description of the defect.
pub(super) fn read(device: &dyn Device, offset: u64) -> std::result::Result<FoundSuper, String> {
    let mut bytes = vec![0; SUPER_SIZE];
    let read = device.read_at(offset, &mut bytes);
    read.map_err(|error| error.to_string())?;
    parse(&bytes, offset)
}

fn parse(bytes: &[u8], offset: u64) -> std::result::Result<FoundSuper, String> {
    let sb = SuperBlock::parse(bytes).map_err(|error| error.to_string())?;
    let geometry = Geometry::new(&sb).map_err(|error| error.to_string())?;
    Ok(FoundSuper {
        offset,
        group: sb.block_group_nr.get(),
        written: sb.wtime(),
        blocks: geometry.blocks_count(),
        sb,
        geometry,
    })
}

/// The superblock, or else a valid backup: at the positions that mke2fs uses, then anywhere, and
/// last a copy in the journal.
///
/// # Errors
/// [`Error::NoExt4`], [`Error::Interrupted`].
pub(super) fn find(device: &dyn Device, watch: &dyn Watch) -> Result<FoundSuper> {
    if let Ok(found) = read(device, SUPER_OFFSET) {
        return Ok(found);
    }
    for offset in usual_backups() {
        if let Ok(found) = read(device, offset)
            && found.is_backup_at(offset)
        {
            return Ok(found);
        }
    }
    search(device, watch)?.ok_or(Error::NoExt4 {
        bytes: device.size(),
    })
}

impl FoundSuper {
    /// Whether a backup of its group belongs at this offset.
    pub(super) fn is_backup_at(&self, offset: u64) -> bool {
        let group = u32::from(self.group);
        let block = self.geometry.backup_super_block(group);
        let size = u64::from(self.geometry.block_size());
        block.is_some_and(|block| group > 0 && block.checked_mul(size) == Some(offset))
    }

    /// Whether it has a checksum, and its file system fills nearly all of a device.
    fn fills(&self, device: u64) -> bool {
        let size = u64::from(self.geometry.block_size());
        let bytes = self.blocks.saturating_mul(size);
        self.geometry.metadata_csum() && bytes <= device && device - bytes <= device / 64
    }
}

/// Searches a device for a backup that is where it belongs. Without one, takes the newest
/// superblock anywhere that has a right checksum and the size of the device: a copy in the journal.
///
/// # Errors
/// [`Error::Interrupted`].
fn search(device: &dyn Device, watch: &dyn Watch) -> Result<Option<FoundSuper>> {
    let mut copy: Option<FoundSuper> = None;
    let mut buf = vec![0; PIECE as usize];
    let mut start = 0;
    while start < device.size() {
        let len = (device.size() - start).min(PIECE);
        let bytes = &mut buf[..len as usize];
        if !device.has_no_data(start, len) && device.read_at(start, bytes).is_ok() {
            for (number, part) in bytes.chunks_exact(STEP).enumerate() {
                let offset = start + (number * STEP) as u64;
                let magic = part.get(56..58) == Some(&[0x53, 0xef]);
                let Some(found) = magic.then(|| parse(part, offset).ok()).flatten() else {
                    continue;
                };
                if found.is_backup_at(offset) {
                    return Ok(Some(found));
                }
                let newer = copy
                    .as_ref()
                    .is_none_or(|copy| copy.written <= found.written);
                if newer && found.fills(device.size()) {
                    copy = Some(found);
                }
            }
        }
        start += len;
        let (done, total) = (start, device.size());
        if !watch.step(Scanning { done, total }) {
            return Err(Error::Interrupted);
        }
    }
    Ok(copy)
}

/// The state of each position of a superblock, with its byte offset.
pub(super) fn places(
    device: &dyn Device,
    geometry: &Geometry,
) -> Vec<(u64, std::result::Result<FoundSuper, String>)> {
    let size = u64::from(geometry.block_size());
    let backups = (1..geometry.group_count())
        .filter_map(|group| geometry.backup_super_block(group))
        .filter_map(|block| block.checked_mul(size))
        .take_while(|offset| *offset < device.size());
    let all = std::iter::once(SUPER_OFFSET).chain(backups).take(MOST);
    all.map(|offset| (offset, read(device, offset))).collect()
}
