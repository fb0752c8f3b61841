//! Erases stale metadata of a file system: unused inodes, removed names and the log. Free blocks are
//! left to a trim.
//!
//! A removed inode leaves its fields, with the target of a short symbolic link and small attributes,
//! in the table of inodes. A removed name leaves its bytes in the gap that it becomes. The log has
//! copies of blocks. An image that is published should have none of them.

use std::sync::Arc;

use sapwood_block::{Device, zero_range};
use sapwood_ext4_format::{
    BitmapKind, Compat, DirFormat, Geometry, Inode, InodeFlags, SuperBlock, bitmap,
};
use sapwood_jbd2::Cache;

use crate::dir::format_of;
use crate::group::Groups;
use crate::map::{self, Mapped};
use crate::mount::{journal_layout, read_super};
use crate::resize::is_index;
use crate::{Error, Result};

/// Bytes of bitmaps in memory while the groups are read.
const CACHE: usize = 4 << 20;

/// Erases unused inodes, gaps between names and the log of a file system that is closed. Names in
/// inodes (`inline_data`) keep their gaps.
///
/// # Errors
/// The image is damaged; errors of the device.
pub fn erase_unused(device: &Arc<dyn Device>) -> Result<()> {
    let sb = read_super(&**device)?;
    let geometry = Geometry::new(&sb)?;
    let cache = Arc::new(Cache::new(Arc::clone(device), geometry.block_size(), CACHE));
    let groups = Groups::open(&cache, &geometry, false)?;
    let erasing = Erasing {
        device: &**device,
        geometry: &geometry,
    };
    for number in 0..groups.count() {
        let group = groups.group(number)?;
        if !group.is_unwritten(BitmapKind::Inode) {
            let bits = groups.bitmap(group, BitmapKind::Inode)?.read().to_vec();
            erasing.table(number, groups.inode_table(number)?, &bits)?;
        }
    }
    erasing.log(&sb)
}

struct Erasing<'d> {
    device: &'d dyn Device,
    geometry: &'d Geometry,
}

impl Erasing<'_> {
    /// The table of inodes of a group.
    fn table(&self, group: u32, table: u64, bits: &[u8]) -> Result<()> {
        let geometry = self.geometry;
        let (per_group, size) = (geometry.inodes_per_group(), geometry.inode_size());
        let each = geometry.block_size() / u32::from(size);
        let mut bytes = vec![0; geometry.block_size() as usize];
        for first in (0..per_group).step_by(each.max(1) as usize) {
            let (block, _) = geometry.inode_in_table(table, first);
            let at = geometry.block_offset(block)?;
            self.device.read_at(at, &mut bytes)?;
            let mut changed = false;
            for (index, slot) in (first..per_group).zip(bytes.chunks_mut(size.into())) {
                if !bitmap::test_bit(bits, index) {
                    changed |= slot.iter().any(|byte| *byte != 0);
                    slot.fill(0);
                    continue;
                }
                let Some(ino) = geometry.ino(group, index) else {
                    continue;
                };
                let inode = Inode::read(slot, geometry)?;
                if inode.is_dir() && inode.links() > 0 {
                    self.directory(ino, &inode)?;
                }
            }
            if changed {
                self.device.write_at(at, &bytes)?;
            }
        }
        Ok(())
    }

    /// The gaps between the names of a directory.
    fn directory(&self, ino: u32, inode: &Inode) -> Result<()> {
        let (geometry, flags) = (self.geometry, inode.flags());
        if flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(());
        }
        let format = format_of(geometry, flags);
        let seed = geometry.inode_seed(ino, inode.generation());
        let blocks = inode.size(geometry) / u64::from(geometry.block_size());
        let mut bytes = vec![0; geometry.block_size() as usize];
        for run in map::standalone::runs(self.device, geometry, ino, inode, blocks)? {
            let Mapped::Written(first) = run.what else {
                continue;
            };
            for index in 0..run.len {
                let block = first.saturating_add(index);
                geometry.check_blocks(block, 1)?;
                let at = geometry.block_offset(block)?;
                self.device.read_at(at, &mut bytes)?;
                let indexed = flags.contains(InodeFlags::INDEX);
                if indexed && is_node(&bytes, &format, run.logical + index) {
                    continue;
                }
                let bad = |reason: String| Error::BadBlock { ino, block, reason };
                let erased = format.erase_gaps(&mut bytes);
                if !erased.map_err(|error| bad(error.to_string()))? {
                    continue;
                }
                if format.checksums {
                    let sealed = format.seal(&mut bytes, seed);
                    sealed.map_err(|error| bad(error.to_string()))?;
                }
                self.device.write_at(at, &bytes)?;
            }
        }
        Ok(())
    }

    /// The log, after the superblock of the journal.
    fn log(&self, sb: &SuperBlock) -> Result<()> {
        let has_journal = sb.features().has_compat(Compat::HAS_JOURNAL);
        if !has_journal || sb.journal_inum.get() == 0 {
            return Ok(());
        }
        let bits = self.geometry.block_bits();
        for run in journal_layout(self.device, sb, self.geometry)? {
            let skipped = u64::from(run.logical == 0);
            let len = run.len.saturating_sub(skipped) << bits;
            let start = self.geometry.block_offset(run.physical + skipped)?;
            zero_range(self.device, start, len)?;
        }
        Ok(())
    }
}

/// Whether a block of an indexed directory belongs to the index. Without checksums an empty block
/// of names begins like a node: it has no limit of entries then.
fn is_node(bytes: &[u8], format: &DirFormat, logical: u64) -> bool {
    if logical == 0 || format.checksums {
        return logical == 0 || is_index(bytes, format);
    }
    let limit = bytes.get(8..10).and_then(|bytes| bytes.first_chunk());
    let limit = limit.map_or(0, |bytes| u16::from_le_bytes(*bytes));
    is_index(bytes, format) && usize::from(limit) == (format.block_size - 8) / 8
}

#[cfg(test)]
mod tests {
    use sapwood_vfs::{Credentials, FileSystem, NewInode, TrimRange};

    use super::*;
    use crate::oracles::{MIB, TOOLS, clean, image, left_out, open};

    #[test]
    fn no_block_of_names_keeps_removed_ones() {
        if left_out(TOOLS) {
            return;
        }
        for (features, names) in [
            ("-b 1024", 8),
            ("-b 1024 -O ^metadata_csum", 8),
            ("-b 1024 -O ^metadata_csum", 400),
            ("-b 4096 -O ^metadata_csum", 400),
            ("-b 1024", 400),
        ] {
            let device = image(32 * MIB, features);
            let fs = open(&device);
            let (who, what) = (Credentials::ROOT, NewInode::Directory);
            let dir = fs.create(&who, fs.root(), b"dir", what, 0o755).unwrap();
            let name = |number: u32| format!("secret-{number}-of-a-long-name").into_bytes();
            for number in 0..names {
                fs.create(&who, dir.ino(), &name(number), NewInode::Fifo, 0o644)
                    .unwrap();
            }
            for number in 0..names {
                fs.unlink(dir.ino(), &name(number)).unwrap();
            }
            fs.sync().unwrap();
            fs.trim(&TrimRange::default()).unwrap();
            fs.unmount().unwrap();
            let erased: Arc<dyn Device> = device.clone();
            erase_unused(&erased).unwrap();
            clean(&device, features);
            let mut bytes = vec![0; 32 << 20];
            device.read_at(0, &mut bytes).unwrap();
            let left = bytes
                .windows(7)
                .filter(|bytes| *bytes == b"secret-")
                .count();
            assert_eq!(left, 0, "{features}, {names} names");
        }
    }
}
