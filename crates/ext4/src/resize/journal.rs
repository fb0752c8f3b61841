//! A journal for a file system that has none, for the time of a change.
//!
//! Without a journal, blocks that change together need an order of writes that `e2fsck` can repair.
//! Where there is no such order, the file system gets a journal before the change and loses it
//! afterwards. A power cut while the superblock names the journal leaves a file system with a
//! journal. Before and after, it leaves blocks that are marked as used and are not.

use sapwood_ext4_format::{
    Compat, EXTENT_MAX_LEN, Extent, ExtentNodeMut, INDIRECT_DIRECT, Incompat, Inode, InodeFlags,
    SuperBlock, file_mode, special_ino,
};
use sapwood_jbd2::NewJournal;

use super::grow::zero;
use super::image::Image;
use super::{ResizeError, Result};
use crate::Error;

/// Blocks of the journal: as few as the kernel accepts.
const BLOCKS: u32 = 1024;
const _: () = assert!(BLOCKS <= EXTENT_MAX_LEN);
/// Most blocks of the descriptor table that one transaction of it changes, in addition to the
/// blocks of a few groups.
pub(super) const MOST_TABLES: u32 = BLOCKS - BLOCKS / 32 - 64;
/// Most blocks of pointers that its map can need.
const POINTERS: u32 = 5;
/// Free blocks side by side that it takes.
pub(super) const ROOM: u64 = (BLOCKS + POINTERS) as u64;

/// A journal that will be removed.
#[derive(Debug)]
pub(crate) struct Borrowed {
    /// The superblock and the inode as they were before.
    sb: SuperBlock,
    inode: Inode,
    /// The blocks, including the map's.
    start: u64,
    len: u64,
}

/// Gives a file system a journal, durably. `None`: no free run is long enough.
///
/// # Errors
/// The inode of the journal is in use; errors of the device.
pub(super) fn borrow(image: &mut Image) -> Result<Option<Borrowed>> {
    let ino = special_ino::JOURNAL;
    let before = image.inode(ino)?;
    if before.links() != 0 || image.sb.journal_inum.get() != 0 {
        return Err(ResizeError::Unclean);
    }
    let Some(start) = image.take_run(BLOCKS + POINTERS)? else {
        return Ok(None);
    };
    let end = start + u64::from(BLOCKS);
    let first = NewJournal {
        block_size: image.geometry.block_size(),
        blocks: BLOCKS,
        fast_commit_blocks: 0,
        uuid: *image.geometry.uuid(),
        external_at: None,
    };
    zero(&*image.device, &image.geometry, start, BLOCKS.into())?;
    image.put(start, first.superblock().map_err(Error::from)?)?;
    let mut inode = Inode::new(&image.geometry);
    let spare = map(
        image,
        &mut inode,
        start..end,
        end..end + u64::from(POINTERS),
    )?;
    image.free(spare, end + u64::from(POINTERS) - spare);
    inode.set_mode(file_mode::REGULAR | 0o600);
    inode.set_links(1);
    let block_size = image.block_size();
    inode.set_size(u64::from(BLOCKS) * block_size, &image.geometry)?;
    inode.set_sectors((spare - start) * (block_size / 512), &image.geometry)?;
    let borrowed = Borrowed {
        sb: image.sb.clone(),
        inode: before,
        start,
        len: spare - start,
    };
    let words = (0..15).map(|index| inode.block_word(index));
    let size = inode.size(&image.geometry);
    let words = words.chain([(size >> 32) as u32, size as u32]);
    for (place, word) in image.sb.jnl_blocks.iter_mut().zip(words) {
        *place = word.into();
    }
    image.sb.jnl_backup_type = 1;
    image.sb.journal_inum = ino.into();
    let mut features = image.sb.features();
    features.compat |= Compat::HAS_JOURNAL;
    image.sb.set_features(features);
    image.put_inode(ino, inode)?;
    image.commit(None)?;
    image.reopen_log()?;
    Ok(Some(borrowed))
}

/// Removes the journal. No change may be pending.
///
/// # Errors
/// Errors of the device.
pub(super) fn give_back(image: &mut Image, borrowed: Borrowed) -> Result<()> {
    image.sb.jnl_blocks = borrowed.sb.jnl_blocks;
    image.sb.jnl_backup_type = borrowed.sb.jnl_backup_type;
    image.sb.journal_inum = borrowed.sb.journal_inum;
    let mut features = image.sb.features();
    features.compat -= Compat::HAS_JOURNAL;
    image.sb.set_features(features);
    image.reopen_log()?;
    image.commit(None)?;
    image.put_inode(special_ino::JOURNAL, borrowed.inode)?;
    image.free(borrowed.start, borrowed.len);
    image.commit(None)
}

/// Makes an inode map `data`, with blocks of pointers from `spare` if it needs some. Returns the
/// first block of `spare` that it does not need.
fn map(
    image: &mut Image,
    inode: &mut Inode,
    mut data: std::ops::Range<u64>,
    mut spare: std::ops::Range<u64>,
) -> Result<u64> {
    let features = image.geometry.features();
    if features.has_incompat(Incompat::EXTENTS) {
        let extent = Extent {
            logical: 0,
            len: BLOCKS,
            physical: data.start,
            unwritten: false,
        };
        let made = ExtentNodeMut::init(inode.block_mut(), 0);
        let made = made.and_then(|mut node| node.insert_extent(0, &extent));
        made.map_err(|reason| Error::BadInode {
            ino: special_ino::JOURNAL,
            reason: reason.to_string(),
        })?;
        inode.set_flags(InodeFlags::EXTENTS);
        return Ok(spare.start);
    }
    let mut words = [0; 15];
    for (index, word) in words.iter_mut().enumerate() {
        let depth = (index + 1).saturating_sub(INDIRECT_DIRECT as usize);
        *word = pointer(image, &mut data, &mut spare, depth)?;
    }
    for (place, word) in inode.block_mut().chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Ok(spare.start)
}

/// The pointer to the next block of `data`, or to a block with pointers to the next ones, `depth`
/// levels above data. Without extents block numbers have 32 bits.
fn pointer(
    image: &mut Image,
    data: &mut std::ops::Range<u64>,
    spare: &mut std::ops::Range<u64>,
    depth: usize,
) -> Result<u32> {
    if depth == 0 || data.is_empty() {
        return Ok(data.next().unwrap_or(0) as u32);
    }
    let block = spare.next().ok_or(Error::NoSpace)?;
    let mut bytes = vec![0; image.block_size() as usize];
    for place in bytes.chunks_exact_mut(4) {
        let number = pointer(image, data, spare, depth - 1)?;
        place.copy_from_slice(&number.to_le_bytes());
    }
    image.put(block, bytes)?;
    Ok(block as u32)
}
