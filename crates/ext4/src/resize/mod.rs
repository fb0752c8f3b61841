//! Changes the size of a file system that is not mounted; `mounted` grows one that is.
//!
//! # How it works
//! Growing writes the metadata of the new groups past the old end, where no reader looks. Then one
//! transaction changes the superblock, the descriptor table, and the last of the old groups
//! (`grow`).
//!
//! Shrinking first renumbers inodes of the removed groups (`renumber`). Then it moves everything
//! past the new end (`relocate`): contents, blocks of maps, attributes, at last the journal. Each
//! transaction of both leaves a complete file system of the old size. Then one transaction changes
//! the superblock and the related blocks (`shrink`). The caller shortens a file after that.
//!
//! Nodes of extent trees that a move adds or frees count for the quotas of the owners, in the same
//! transaction (`quotas`).
//!
//! A file system with casefold is resized although it cannot be mounted for writing, if it needs no
//! recovery: a resize reads no name.
//!
//! See `Image::commit` for the state after a power cut. Copies of the superblock and of the
//! descriptor table are written at the end.
//!
//! Growing past the blocks that are reserved for descriptors puts further descriptors into meta
//! groups (`meta_groups`).

mod grow;
mod image;
mod journal;
mod map;
mod meta_groups;
mod mounted;
#[cfg(test)]
mod mounted_tests;
mod quotas;
mod references;
mod relocate;
mod renumber;
mod shrink;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::Geometry;
use sapwood_vfs::Timestamp;

use crate::mount::{protect_for_resize, read_super, refuse_external_journal};
use image::Image;
pub(crate) use journal::Borrowed;
pub use mounted::{Grown, MountedSize, OnStep, grow_mounted};
pub(crate) use references::is_index;

/// Passes of [`shrink_to_fit`]: space that one frees, another one can use.
const PASSES: usize = 4;
/// Larger sizes that are tried if the smallest has too little room.
const TRIES: u64 = 12;

/// Errors of a resize. The file system stays consistent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] crate::Error),
    /// The file system has errors.
    #[error("the file system has errors: check it first (e2fsck -f)")]
    Unclean,
    /// The device is smaller.
    #[error("{device}: has {size} bytes, fewer than {wanted}")]
    PastEnd {
        /// Device name.
        device: String,
        /// Size in bytes.
        size: u64,
        /// The requested size.
        wanted: u64,
    },
    /// More blocks or inodes than the features allow.
    #[error("{wanted} bytes are more than the file system can have: {why}")]
    TooLarge {
        /// The requested size.
        wanted: u64,
        /// The missing property.
        why: &'static str,
    },
    /// A file system without a journal needs one for this change, and has no room for it.
    #[error("there is no room for the journal that this change needs: grow it by less first")]
    NoJournal,
    /// The used space does not fit.
    #[error("the used space does not fit into {wanted} bytes")]
    NoRoom {
        /// The requested size.
        wanted: u64,
    },
    /// More inodes are in use than there would be.
    #[error("{used} inodes are in use, and {wanted} bytes have room for fewer")]
    Inodes {
        /// Number of used inodes.
        used: u32,
        /// The requested size.
        wanted: u64,
    },
    /// An inode cannot get a number that would exist.
    #[error("{wanted} bytes end before inode {ino}, whose number cannot change: {why}")]
    Pinned {
        /// The inode.
        ino: u32,
        /// The reason why its number cannot change.
        why: &'static str,
        /// The requested size.
        wanted: u64,
    },
    /// Bitmaps or tables of groups that stay would have to move.
    #[error("metadata of group {group} lies past {wanted} bytes")]
    Metadata {
        /// The group.
        group: u32,
        /// The requested size.
        wanted: u64,
    },
    /// A mounted file system would have to become smaller than it is, in bytes.
    #[error("a mounted ext4 does not become smaller than its {size} bytes: unmount it first")]
    Shrinks {
        /// Its size in bytes.
        size: u64,
    },
    /// A mounted file system has no journal, so a power cut might leave it damaged.
    #[error("without a journal it grows only while nothing has it mounted")]
    NoJournalMounted,
    /// A mounted file system has a journal that is too small for the transaction that adds a group.
    #[error(
        "the journal is too small for the {blocks} blocks that change together: it grows only while \
         nothing has it mounted"
    )]
    SmallJournal {
        /// Blocks.
        blocks: u32,
    },
    /// A mounted file system has grown too often.
    #[error("it has grown too often since it was mounted: mount it again first")]
    TooOften,
    /// The callback stopped it.
    #[error("interrupted; the size has not changed, or only a part of the way")]
    Interrupted,
    /// Blocks that must change together do not fit into the journal.
    #[error("the journal is too small for {blocks} blocks that change together")]
    Journal {
        /// Blocks.
        blocks: u64,
    },
}

impl From<sapwood_block::Error> for ResizeError {
    fn from(error: sapwood_block::Error) -> Self {
        Self::Engine(error.into())
    }
}

impl From<sapwood_jbd2::Error> for ResizeError {
    fn from(error: sapwood_jbd2::Error) -> Self {
        Self::Engine(error.into())
    }
}

impl From<sapwood_ext4_format::FormatError> for ResizeError {
    fn from(error: sapwood_ext4_format::FormatError) -> Self {
        Self::Engine(error.into())
    }
}

type Result<T> = std::result::Result<T, ResizeError>;

/// Callback with the number of bytes moved so far.
pub type OnMoved<'p> = dyn FnMut(u64) + Send + 'p;

/// Gives a file system without a journal one, until [`give_back_journal`]. `None`: there is no
/// room.
///
/// # Errors
/// [`ResizeError::Unclean`]; [`ResizeError::Engine`] for errors of the image and of the device.
pub(crate) fn borrow_journal(
    device: &Arc<dyn Device>,
    time: Option<Timestamp>,
) -> Result<Option<Borrowed>> {
    journal::borrow(&mut Image::open(device, time)?)
}

/// Removes a journal that [`borrow_journal`] made.
///
/// # Errors
/// [`ResizeError::Unclean`], [`ResizeError::Journal`]; [`ResizeError::Engine`] for errors of the
/// image and of the device. The file system is consistent then, and may still have the journal.
pub(crate) fn give_back_journal(
    device: &Arc<dyn Device>,
    time: Option<Timestamp>,
    borrowed: Borrowed,
) -> Result<()> {
    journal::give_back(&mut Image::open(device, time)?, borrowed)
}

/// Bytes of the file system on a device.
///
/// # Errors
/// There is no valid superblock.
pub fn size(device: &dyn Device) -> std::result::Result<u64, crate::Error> {
    let geometry = Geometry::new(&read_super(device)?)?;
    Ok(geometry.blocks_count() << geometry.block_bits())
}

/// Gives the file system on `device` this size, or the next smaller one that it can have: the last
/// group needs room for its own metadata. Returns that size. With a `time` the result is
/// [reproducible](crate::Options::set_reproducible).
///
/// # Errors
/// - In both directions: [`ResizeError::PastEnd`], [`ResizeError::Unclean`],
///   [`ResizeError::Journal`]; [`ResizeError::Engine`] for errors of the image and of the device.
/// - Growing: [`ResizeError::TooLarge`], [`ResizeError::NoJournal`], [`ResizeError::NoRoom`].
/// - Shrinking: [`ResizeError::NoRoom`], [`ResizeError::Inodes`], [`ResizeError::Pinned`],
///   [`ResizeError::Metadata`].
///
/// The file system is consistent then. It has its old size, unless the device failed after the
/// transaction that changes the size, or growing needed two steps and only the first succeeded.
pub fn resize(
    device: &Arc<dyn Device>,
    size: u64,
    time: Option<Timestamp>,
    moved: &mut OnMoved<'_>,
) -> Result<u64> {
    if size > device.size() {
        return Err(ResizeError::PastEnd {
            device: device.name().to_owned(),
            size: device.size(),
            wanted: size,
        });
    }
    refuse_external_journal(&**device)?;
    let (device, _protection) = protect_for_resize(device, time)?;
    let mut image = Image::open(&device, time)?;
    let bits = image.geometry.block_bits();
    let blocks = size >> bits;
    if blocks > image.geometry.blocks_count() {
        grow::grow(&mut image, blocks)?;
    } else if blocks < image.geometry.blocks_count() {
        shrink::shrink(&mut image, blocks, moved)?;
    }
    Ok(image.geometry.blocks_count() << bits)
}

/// Makes the file system on `device` as small as it can be made, with at least `inodes` free
/// inodes, and discards its free blocks. Returns its new size. With a `time` the result is
/// [reproducible](crate::Options::set_reproducible).
///
/// # Errors
/// [`ResizeError::Unclean`], [`ResizeError::Journal`], [`ResizeError::Inodes`],
/// [`ResizeError::Metadata`]; [`ResizeError::Engine`] for errors of the image and of the device.
/// The file system is consistent then.
pub fn shrink_to_fit(
    device: &Arc<dyn Device>,
    inodes: u64,
    time: Option<Timestamp>,
    moved: &mut OnMoved<'_>,
) -> Result<u64> {
    refuse_external_journal(&**device)?;
    let (device, _protection) = protect_for_resize(device, time)?;
    let mut groups = 1;
    for _ in 0..PASSES {
        if !pass(&device, inodes, &mut groups, time, moved)? {
            break;
        }
    }
    shrink::discard_free(&mut Image::open(&device, time)?)?;
    Ok(size(&*device)?)
}

/// Makes the file system smaller. False: it is as small as possible. `groups`: the number that must
/// stay.
fn pass(
    device: &Arc<dyn Device>,
    inodes: u64,
    groups: &mut u32,
    time: Option<Timestamp>,
    moved: &mut OnMoved<'_>,
) -> Result<bool> {
    let mut image = Image::open(device, time)?;
    let now = image.geometry.blocks_count();
    *groups = (*groups).max(renumber::least_groups(&image)?);
    let mut least = shrink::least(&image, inodes, *groups)?;
    for attempt in 0..TRIES {
        let blocks = least.saturating_add(least / 128 * attempt + 32 * attempt);
        if blocks >= now {
            break;
        }
        match shrink::shrink(&mut image, blocks, moved) {
            Ok(()) => return Ok(image.geometry.blocks_count() < now),
            Err(ResizeError::NoRoom { .. }) => image = Image::open(device, time)?,
            Err(ResizeError::Pinned { ino, .. }) => {
                *groups = image.geometry.inode_location(ino)?.0 + 1;
                image = Image::open(device, time)?;
                least = shrink::least(&image, inodes, *groups)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
