//! Data and attributes of one inode.

use std::io::Write;
use std::sync::Arc;

use sapwood_btrfs_format::stream::{WRITE_V1, WRITE_V2};

use super::error::{Result, SendError, at};
use super::source::{Content, ContentKind, ContentOf, FileRange, Range, Ranges, Source, Tree};
use super::{Sender, contradiction};
use crate::progress::Progress;
use crate::vfs::{FileKind, StoredInode};

/// The attribute that a change of the owner or the content removes.
const CAPABILITY: &[u8] = b"security.capability";

/// `fallocate` modes.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;

/// Ranges of a file, cut as another file's ranges require.
pub(super) struct Cut<'t, C> {
    ranges: Ranges<'t, C>,
    next: Option<Range<C>>,
}

impl<'t, C: Content> Cut<'t, C> {
    pub(super) fn new(ranges: Ranges<'t, C>) -> Self {
        Self { ranges, next: None }
    }

    fn peek(&mut self) -> Result<Option<&Range<C>>> {
        if self.next.is_none() {
            self.next = self.ranges.next().transpose()?;
        }
        Ok(self.next.as_ref())
    }

    /// The content from `start` on, and its end; a hole after the end of the file.
    pub(super) fn at(&mut self, start: u64) -> Result<(C, u64)> {
        while let Some(range) = self.peek()? {
            if range.end <= start {
                self.next = None;
                continue;
            }
            let content = range.content.skip(start.saturating_sub(range.start));
            return Ok((content, range.end));
        }
        Ok((C::hole(), u64::MAX))
    }
}

impl<S: Source, W: Write> Sender<'_, '_, S, W> {
    /// The target of a symbolic link; empty for every other inode.
    pub(super) fn target(&self, number: u64, inode: &StoredInode, path: &[u8]) -> Result<Vec<u8>> {
        if inode.kind != FileKind::Symlink {
            return Ok(Vec::new());
        }
        let node = self.new.open(number).map_err(at(path))?;
        node.target().map_err(at(path))
    }

    /// Sends data and attributes of an inode that was just created.
    pub(super) fn created(&mut self, number: u64, inode: &StoredInode, path: &[u8]) -> Result<()> {
        self.note_sealed(inode);
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
        (old, new): (&StoredInode, &StoredInode),
        data: bool,
        path: &[u8],
    ) -> Result<()> {
        self.note_sealed(new);
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

    /// Counts a file with a hash tree, which the stream does not have.
    fn note_sealed(&mut self, inode: &StoredInode) {
        let sealed = inode.kind == FileKind::Regular && inode.flags & S::SEALED != 0;
        self.verifies = sealed;
        self.sealed += u64::from(sealed);
    }

    /// Sends the content of a new file.
    fn all_data(&mut self, number: u64, inode: &StoredInode, path: &[u8]) -> Result<()> {
        let tree = Arc::clone(&self.new);
        let mut written = 0;
        for range in tree.ranges(number, inode.size)? {
            let range = range?;
            let end = range.end.min(inode.size);
            match range.content.kind() {
                ContentKind::Hole => {}
                ContentKind::Prealloc => {
                    if self.out.version() >= 2 {
                        let len = range.end - range.start;
                        self.out.fallocate(path, KEEP_SIZE, range.start, len)?;
                    }
                }
                ContentKind::Data => {
                    self.data(number, path, &range.content, (range.start, end))?;
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
        (old, new): (&StoredInode, &StoredInode),
        path: &[u8],
    ) -> Result<bool> {
        let (tree, parent) = (Arc::clone(&self.new), self.old.clone());
        let parent = parent.ok_or(contradiction(number, "no parent has it"))?;
        let mut before = Cut::new(parent.ranges(number, old.size.min(new.size))?);
        let mut after = Cut::new(tree.ranges(number, new.size)?);
        let mut written = false;
        if old.size != new.size {
            self.out.truncate(path, new.size)?;
            written = true;
        }
        let edge = old.size.min(new.size);
        let exact = self.out.version() >= 2;
        let leaves_zeros = old.size < new.size && exact && !edge.is_multiple_of(tree.sector());
        let (mut start, mut last) = (0, ContentKind::Data);
        while start < new.size {
            let (old, old_end) = before.at(start)?;
            let (content, new_end) = after.at(start)?;
            let end = old_end.min(new_end).min(new.size);
            if leaves_zeros && (start..end).contains(&(edge - 1)) {
                self.clear_edge(path, edge, content.kind())?;
            }
            written |= self.changed_range(number, path, (&old, &content), (start, end))?;
            (start, last) = (end, content.kind());
        }
        if written && exact {
            self.clear_end(path, new.size, last)?;
        }
        Ok(written)
    }

    /// Removes the sector of zeros that a receiver makes when it enlarges a file that ended within a
    /// hole or within preallocated space.
    fn clear_edge(&mut self, path: &[u8], edge: u64, content: ContentKind) -> Result<()> {
        let sector = self.new.sector();
        let start = edge - edge % sector;
        if content != ContentKind::Data {
            self.out
                .fallocate(path, PUNCH_HOLE | KEEP_SIZE, start, sector)?;
        }
        if content == ContentKind::Prealloc {
            self.out.fallocate(path, KEEP_SIZE, start, sector)?;
        }
        Ok(())
    }

    /// Removes the zeros that a receiver writes to the last sector of a file, from its end on, when it
    /// changes the size or preallocates. They would become data in a hole or in preallocated space.
    fn clear_end(&mut self, path: &[u8], size: u64, content: ContentKind) -> Result<()> {
        let sector = self.new.sector();
        let start = size - size % sector;
        let Some(after) = start.checked_add(sector).filter(|_| size > start) else {
            return Ok(());
        };
        match content {
            ContentKind::Data => {}
            ContentKind::Hole => {
                let mode = PUNCH_HOLE | KEEP_SIZE;
                self.out.fallocate(path, mode, start, sector)?;
            }
            // The end must not be within the sector while it is allocated.
            ContentKind::Prealloc => {
                self.out.truncate(path, after)?;
                let mode = PUNCH_HOLE | KEEP_SIZE;
                self.out.fallocate(path, mode, start, sector)?;
                self.out.fallocate(path, KEEP_SIZE, start, sector)?;
                self.out.truncate(path, size)?;
            }
        }
        Ok(())
    }

    /// Sends the parts of a range that differ. Returns whether the receiver writes to the file.
    fn changed_range(
        &mut self,
        number: u64,
        path: &[u8],
        (old, new): (&ContentOf<S>, &ContentOf<S>),
        (start, end): (u64, u64),
    ) -> Result<bool> {
        let (mut written, mut at) = (false, start);
        while at < end {
            let content = new.skip(at - start);
            let rest = FileRange {
                number,
                path,
                start: at,
                end,
                content: &content,
            };
            let Some(part) = self.source.changed_part(&old.skip(at - start), &rest)? else {
                break;
            };
            let from = part.0.saturating_sub(start);
            written |= self.replace(number, path, (old.kind(), &new.skip(from)), part)?;
            at = part.1;
        }
        Ok(written)
    }

    /// Replaces the content of a range.
    fn replace(
        &mut self,
        number: u64,
        path: &[u8],
        (old, new): (ContentKind, &ContentOf<S>),
        (start, end): (u64, u64),
    ) -> Result<bool> {
        use ContentKind::{Data, Hole, Prealloc};

        let fallocate = self.out.version() >= 2;
        // A receiver frees and allocates whole sectors only.
        let sector = self.new.sector();
        let len = end.checked_next_multiple_of(sector).unwrap_or(end) - start;
        match (old, new.kind()) {
            (_, Data) => self.data(number, path, new, (start, end))?,
            (Hole | Prealloc, Hole | Prealloc) if !fallocate => return Ok(false),
            (_, Hole) if fallocate => {
                self.out
                    .fallocate(path, PUNCH_HOLE | KEEP_SIZE, start, len)?;
            }
            (Hole | Prealloc, _) => self.out.fallocate(path, KEEP_SIZE, start, len)?,
            (_, Prealloc) if fallocate => {
                self.out
                    .fallocate(path, PUNCH_HOLE | KEEP_SIZE, start, len)?;
                self.out.fallocate(path, KEEP_SIZE, start, len)?;
            }
            // Version 1 of the stream has no holes.
            _ => self.write(number, path, start, end)?,
        }
        Ok(true)
    }

    /// Sends a data range of a file of the new tree, in a smaller form than its bytes if there is
    /// one.
    fn data(
        &mut self,
        number: u64,
        path: &[u8],
        content: &ContentOf<S>,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let range = FileRange {
            number,
            path,
            start,
            end,
            content,
        };
        if self.verifies {
            // Only a read of its bytes is verified.
            return self.write(number, path, start, end);
        }
        let stored = self.source.send_stored(&mut self.out, &range)?;
        if stored.content > 0 {
            self.content += stored.content;
            (self.progress)(Progress::Bytes(self.content));
        }
        if stored.rest < end {
            self.write(number, path, stored.rest, end)?;
        }
        Ok(())
    }

    /// Sends the bytes of a range of a file of the new tree.
    fn write(&mut self, number: u64, path: &[u8], start: u64, end: u64) -> Result<()> {
        if !self.options.data {
            return self.out.update_extent(path, start, end - start);
        }
        let most = if self.out.version() >= 2 {
            WRITE_V2
        } else {
            WRITE_V1
        };
        let tree = Arc::clone(&self.new);
        let node = tree.open(number).map_err(at(path))?;
        let fs = node.file_system();
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
