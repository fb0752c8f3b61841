//! Inodes and ranges of files as they are stored, for comparing two images.
//!
//! Ext4 does not mark the changes since an earlier state, so a comparison reads all inodes. It can
//! skip the content of a file whose inode has the same bytes in both images.
//!
//! The image must be open read-only, because it must not change during the comparison.

use std::sync::atomic::Ordering;

use sapwood_ext4_format::{Inode as RawInode, InodeFlags};
use sapwood_vfs::{Ino, StoredInode};

use crate::inode::Inode;
use crate::map::{self, Mapped};
use crate::{Mount, Result};

/// An inode with its bytes on disk.
#[derive(Debug, Clone)]
pub struct InodeRecord {
    /// The attributes. `flags` has the bits of `FS_IOC_GETFLAGS`.
    pub inode: StoredInode,
    /// The bytes on disk, without access time and with the checksum for that.
    pub bytes: Vec<u8>,
}

impl InodeRecord {
    /// Whether the times of the inode are from a running clock: the time of its last change has
    /// nanoseconds. Builders of reproducible images store one fixed time of whole seconds, and
    /// inodes of 128 bytes have no nanoseconds. Such a time proves nothing about the content.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.inode.ctime.nsec != 0
    }
}

/// The content of a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeContent {
    /// Zeros without space.
    Hole,
    /// Zeros with space.
    Unwritten,
    /// Data.
    Data,
}

/// A range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// Offset in bytes.
    pub start: u64,
    /// Offset after it, in bytes; a multiple of the block size.
    pub end: u64,
    /// Its content.
    pub content: RangeContent,
}

impl Mount {
    /// UUID of the file system.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.engine.super_block.lock().uuid
    }

    /// Whether the image was unmounted before it was opened. Otherwise written data may be on disk
    /// while the change of its inode is not.
    #[must_use]
    pub fn was_unmounted(&self) -> bool {
        self.engine.clean_at_mount && !self.engine.needed_recovery.load(Ordering::Relaxed)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.engine.block_size()
    }

    /// The inode with a number.
    ///
    /// # Errors
    /// `Stale` if it is not in use or belongs to the file system itself; the inode is damaged;
    /// errors of the device.
    pub fn inode_record(&self, number: u64) -> Result<InodeRecord> {
        let inode = self.engine.inodes.by_number(&self.engine, Ino(number))?;
        let attr = inode.attr(&self.engine);
        let bytes = stored_bytes(self, &inode)?;
        Ok(InodeRecord {
            inode: StoredInode {
                kind: attr.kind,
                perm: attr.perm,
                uid: attr.uid,
                gid: attr.gid,
                nlink: attr.nlink,
                rdev: attr.rdev,
                size: attr.size,
                generation: attr.generation,
                flags: (attr.flags.bits() | attr.layout & InodeFlags::VERITY.bits()).into(),
                atime: attr.atime,
                mtime: attr.mtime,
                ctime: attr.ctime,
                otime: attr.btime,
            },
            bytes,
        })
    }

    /// The range of a file from byte `start`, which is a multiple of the block size, up to at most
    /// `end`, rounded up to a block. Content in the inode is data.
    ///
    /// # Errors
    /// There is no such inode; its map is damaged; errors of the device.
    pub fn file_range(&self, number: u64, start: u64, end: u64) -> Result<FileRange> {
        let inode = self.engine.inodes.by_number(&self.engine, Ino(number))?;
        let _io = inode.io.read();
        let block_size = self.block_size();
        let (first, last) = (start / block_size, end.div_ceil(block_size));
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Ok(FileRange {
                start,
                end: last.saturating_mul(block_size),
                content: RangeContent::Data,
            });
        }
        let run = map::lookup(&self.engine, &inode, first, last.saturating_sub(first))?;
        let run_end = map::run_end(inode.ino, &run, first, last)?;
        let content = match run.what {
            Mapped::Hole => RangeContent::Hole,
            Mapped::Unwritten(_) => RangeContent::Unwritten,
            Mapped::Written(_) => RangeContent::Data,
        };
        Ok(FileRange {
            start,
            end: run_end.saturating_mul(block_size),
            content,
        })
    }
}

/// The bytes of an inode, without its access time.
fn stored_bytes(mount: &Mount, inode: &Inode) -> Result<Vec<u8>> {
    let map = *inode.map.read();
    let mut raw: RawInode = inode.state.lock().raw.clone();
    *raw.block_mut() = map;
    raw.set_atime(sapwood_ext4_format::Timestamp::default());
    raw.set_checksum(inode.ino, &mount.engine.geometry);
    let mut bytes = vec![0; raw.size_on_disk()];
    raw.write(&mut bytes)?;
    Ok(bytes)
}
