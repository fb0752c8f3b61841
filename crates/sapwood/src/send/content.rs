//! Data and attributes of one inode.

use std::io::Write;
use std::sync::Arc;

use sapwood_btrfs::compare::{Extent, ExtentContent, Extents, Inode};
use sapwood_btrfs_format::compression as algorithm;
use sapwood_btrfs_format::stream::{WRITE_V1, WRITE_V2, encoding};

use super::error::{Result, SendError, at};
use super::output::EncodedRange;
use super::{Sender, contradiction};
use crate::progress::Progress;
use crate::tree::HeldInode;
use crate::vfs::FileKind;

/// The attribute that a change of the owner or the content removes.
const CAPABILITY: &[u8] = b"security.capability";

/// `fallocate` modes.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;

/// The stream's number for the compression of an extent.
fn encoding_of(compression: u8, sector: u64) -> Option<u32> {
    match compression {
        algorithm::ZLIB => Some(encoding::ZLIB),
        algorithm::ZSTD => Some(encoding::ZSTD),
        algorithm::LZO if (4096..=65536).contains(&sector) => {
            Some(encoding::LZO_4K + (sector / 4096).ilog2())
        }
        _ => None,
    }
}

/// Ranges of a file, cut as another file's ranges require.
struct Ranges<'t> {
    extents: Extents<'t>,
    next: Option<Extent>,
}

impl<'t> Ranges<'t> {
    fn new(extents: Extents<'t>) -> Self {
        Self {
            extents,
            next: None,
        }
    }

    fn peek(&mut self) -> Result<Option<&Extent>> {
        if self.next.is_none() {
            self.next = self.extents.next_extent()?;
        }
        Ok(self.next.as_ref())
    }

    /// The content from `start` on, and its end; a hole after the end of the file.
    fn at(&mut self, start: u64) -> Result<(ExtentContent, u64)> {
        while let Some(extent) = self.peek()? {
            if extent.end <= start {
                self.next = None;
                continue;
            }
            let content = extent.content.from(start.saturating_sub(extent.start));
            return Ok((content, extent.end));
        }
        Ok((ExtentContent::Hole, u64::MAX))
    }
}

impl<'a, W: Write> Sender<'a, '_, '_, W> {
    /// The inode of the new snapshot, open for reading.
    fn open(&self, number: u64, path: &[u8]) -> Result<HeldInode<'a>> {
        let fs = self.fs;
        let ino = self.new.ino(number);
        Ok(HeldInode::new(fs, fs.reference(ino).map_err(at(path))?))
    }

    /// The target of a symbolic link; empty for every other inode.
    pub(super) fn target(&self, number: u64, inode: &Inode, path: &[u8]) -> Result<Vec<u8>> {
        if inode.kind != FileKind::Symlink {
            return Ok(Vec::new());
        }
        let node = self.open(number, path)?;
        self.fs.readlink(node.ino()).map_err(at(path))
    }

    /// Sends data and attributes of an inode that was just created.
    pub(super) fn created(&mut self, number: u64, inode: &Inode, path: &[u8]) -> Result<()> {
        if inode.kind == FileKind::Regular {
            self.all_data(number, inode, path)?;
        }
        self.out.chown(path, inode)?;
        if inode.kind != FileKind::Symlink {
            self.out.chmod(path, inode)?;
        }
        for (name, value) in self.new.xattrs(number)? {
            self.out.set_xattr(path, &name, &value)?;
        }
        self.out.times(path, inode)
    }

    /// Sends what changed in an inode that the parent has, too.
    pub(super) fn changed(
        &mut self,
        number: u64,
        (old, new): (&Inode, &Inode),
        data: bool,
        path: &[u8],
    ) -> Result<()> {
        let mut privileges_lost = false;
        if new.kind == FileKind::Regular && (data || old.size != new.size) {
            privileges_lost = self.changed_data(number, (old, new), path)?;
        }
        let owner = (old.uid, old.gid) != (new.uid, new.gid);
        if owner {
            self.out.chown(path, new)?;
            privileges_lost = true;
        }
        // A change of owner or content clears set-id bits.
        let set_id = new.perm & 0o6000 != 0 && privileges_lost;
        if new.kind != FileKind::Symlink && (old.perm != new.perm || set_id) {
            self.out.chmod(path, new)?;
        }
        let old_xattrs = match &self.old {
            Some(tree) => tree.xattrs(number)?,
            None => Vec::new(),
        };
        let new_xattrs = self.new.xattrs(number)?;
        for (name, _) in &old_xattrs {
            if new_xattrs.iter().all(|(other, _)| other != name) {
                // The change may have removed it already.
                if name != CAPABILITY || !privileges_lost {
                    self.out.remove_xattr(path, name)?;
                }
            }
        }
        for entry in &new_xattrs {
            let lost = privileges_lost && entry.0 == CAPABILITY;
            if lost || !old_xattrs.contains(entry) {
                self.out.set_xattr(path, &entry.0, &entry.1)?;
            }
        }
        self.out.times(path, new)
    }

    /// Sends the content of a new file.
    fn all_data(&mut self, number: u64, inode: &Inode, path: &[u8]) -> Result<()> {
        let tree = Arc::clone(&self.new);
        let mut ranges = Ranges::new(tree.extents(number, inode.size)?);
        let mut written = 0;
        while let Some(extent) = ranges.peek()?.cloned() {
            ranges.next = None;
            let end = extent.end.min(inode.size);
            match extent.content {
                ExtentContent::Hole => {}
                ExtentContent::Prealloc(_) => {
                    if self.out.version() >= 2 {
                        let len = extent.end - extent.start;
                        self.out.fallocate(path, KEEP_SIZE, extent.start, len)?;
                    }
                }
                content => {
                    self.extent(number, path, &content, (extent.start, end))?;
                    written = end;
                }
            }
        }
        if written < inode.size {
            self.out.truncate(path, inode.size)?;
        }
        Ok(())
    }

    /// Sends the ranges that differ. Returns whether the receiver writes to the file.
    fn changed_data(
        &mut self,
        number: u64,
        (old, new): (&Inode, &Inode),
        path: &[u8],
    ) -> Result<bool> {
        let (tree, parent) = (Arc::clone(&self.new), self.old.clone());
        let parent = parent.ok_or(contradiction(number, "no parent has it"))?;
        let mut before = Ranges::new(parent.extents(number, old.size.min(new.size))?);
        let mut after = Ranges::new(tree.extents(number, new.size)?);
        let mut written = false;
        if old.size != new.size {
            self.out.truncate(path, new.size)?;
            written = true;
        }
        let edge = old.size.min(new.size);
        let leaves_zeros =
            written && self.out.version() >= 2 && !edge.is_multiple_of(tree.sector());
        let mut start = 0;
        while start < new.size {
            let (old, old_end) = before.at(start)?;
            let (content, new_end) = after.at(start)?;
            let end = old_end.min(new_end).min(new.size);
            if leaves_zeros && (start..end).contains(&(edge - 1)) {
                self.clear_edge(path, edge, &content)?;
            }
            if !old.is_shared(&content) {
                written |= self.replace(number, path, (&old, &content), (start, end))?;
            }
            start = end;
        }
        Ok(written)
    }

    /// Removes the sector of zeros that a receiver makes when it changes the size of a file within
    /// a hole or within preallocated space.
    fn clear_edge(&mut self, path: &[u8], edge: u64, content: &ExtentContent) -> Result<()> {
        let sector = self.new.sector();
        let start = edge - edge % sector;
        if matches!(content, ExtentContent::Hole | ExtentContent::Prealloc(_)) {
            self.out
                .fallocate(path, PUNCH_HOLE | KEEP_SIZE, start, sector)?;
        }
        if matches!(content, ExtentContent::Prealloc(_)) {
            self.out.fallocate(path, KEEP_SIZE, start, sector)?;
        }
        Ok(())
    }

    /// Replaces the content of a range.
    fn replace(
        &mut self,
        number: u64,
        path: &[u8],
        (old, new): (&ExtentContent, &ExtentContent),
        (start, end): (u64, u64),
    ) -> Result<bool> {
        use ExtentContent::{Data, Hole, Inline, Prealloc};

        let fallocate = self.out.version() >= 2;
        // A receiver frees and allocates whole sectors only.
        let sector = self.new.sector();
        let len = end.checked_next_multiple_of(sector).unwrap_or(end) - start;
        match (old, new) {
            (_, Data(_) | Inline { .. }) => self.extent(number, path, new, (start, end))?,
            (Hole | Prealloc(_), Hole | Prealloc(_)) if !fallocate => return Ok(false),
            (_, Hole) if fallocate => {
                self.out
                    .fallocate(path, PUNCH_HOLE | KEEP_SIZE, start, len)?;
            }
            (Hole | Prealloc(_), _) => self.out.fallocate(path, KEEP_SIZE, start, len)?,
            (_, Prealloc(_)) if fallocate => {
                self.out
                    .fallocate(path, PUNCH_HOLE | KEEP_SIZE, start, len)?;
                self.out.fallocate(path, KEEP_SIZE, start, len)?;
            }
            // Version 1 of the stream has no holes.
            _ => self.write(number, path, start, end)?,
        }
        Ok(true)
    }

    /// Sends a data range of a file of the new snapshot, compressed as stored if that was
    /// requested.
    fn extent(
        &mut self,
        number: u64,
        path: &[u8],
        content: &ExtentContent,
        (start, end): (u64, u64),
    ) -> Result<()> {
        if let ExtentContent::Data(extent) = content
            && self.options.data
        {
            let rest = self.clone_range(number, path, extent, (start, end))?;
            if rest >= end {
                return Ok(());
            }
            if rest > start {
                return self.write(number, path, rest, end);
            }
        }
        let encoding = match content {
            ExtentContent::Data(extent) if self.options.compressed && self.options.data => {
                encoding_of(extent.compression, self.new.sector()).map(|number| (number, extent))
            }
            _ => None,
        };
        let Some((encoding, extent)) = encoding else {
            return self.write(number, path, start, end);
        };
        let stored = self.new.stored(number, start, extent)?;
        let part = EncodedRange {
            start,
            len: end - start,
            extent_len: extent.ram_bytes,
            extent_offset: extent.offset,
            encoding,
        };
        self.out.encoded_write(path, &part, &stored)?;
        self.content += end - start;
        (self.progress)(Progress::Bytes(self.content));
        Ok(())
    }

    /// Sends the bytes of a range of a file of the new snapshot.
    fn write(&mut self, number: u64, path: &[u8], start: u64, end: u64) -> Result<()> {
        if !self.options.data {
            return self.out.update_extent(path, start, end - start);
        }
        let most = if self.out.version() >= 2 {
            WRITE_V2
        } else {
            WRITE_V1
        };
        let (fs, node) = (self.fs, self.open(number, path)?);
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(most, 0);
        let mut offset = start;
        while offset < end {
            if self.options.stop.is_stopped() {
                return Err(SendError::Stopped);
            }
            let len = usize::try_from(end - offset).map_or(most, |len| len.min(most));
            let piece = buffer.get_mut(..len).unwrap_or_default();
            let count = fs.read(node.ino(), offset, piece).map_err(at(path))?;
            if count == 0 {
                return Err(contradiction(number, "its content ends before its size"));
            }
            let piece = buffer.get(..count).unwrap_or_default();
            self.out.write(path, offset, piece)?;
            offset += count as u64;
        }
        self.buffer = buffer;
        self.content += end - start;
        (self.progress)(Progress::Bytes(self.content));
        Ok(())
    }
}
