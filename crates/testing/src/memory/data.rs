//! Reading, writing and moving file content.

use super::content::SECTOR;
use super::state::State;
use sapwood_vfs::rules;
use sapwood_vfs::{AllocMode, CopyMode, Error, Ino, InodeFlags, Result, SeekFrom, WriteMode};

fn aligned(value: u64) -> bool {
    value.is_multiple_of(SECTOR)
}

impl State {
    pub(super) fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.content(ino)?.read(offset, buf))
    }

    pub(super) fn write(
        &mut self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<u64> {
        let content = self.content(ino)?;
        let size = content.size;
        self.writable(ino)?;
        let offset = if mode.append { size } else { offset };
        rules::check_write(self.node(ino)?.flags, offset >= size, mode.writeback)?;
        let end = rules::range_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(offset);
        }
        self.reserve(content.missing(offset, end))?;
        self.change_content(ino, |content| content.write(offset, data))?;
        self.after_change(ino, mode.kill_setid, !mode.writeback)?;
        Ok(end)
    }

    /// Clears the set-id bits and the capability and updates the times, after a change of content.
    fn after_change(&mut self, ino: Ino, kill_setid: bool, times: bool) -> Result<()> {
        let node = self.node_mut(ino)?;
        if kill_setid {
            node.perm = rules::kill_setid(node.kind, node.perm);
        }
        node.xattrs.remove(rules::CAPABILITY);
        if times {
            node.touch();
        }
        Ok(())
    }

    pub(super) fn fallocate(
        &mut self,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: AllocMode,
    ) -> Result<()> {
        let content = self.content(ino)?;
        let size = content.size;
        self.writable(ino)?;
        if len == 0 {
            return Err(Error::Invalid);
        }
        let end = rules::range_end(offset, len)?;
        let flags = self.node(ino)?.flags;
        let only_adds = matches!(mode, AllocMode::Allocate { .. });
        if flags.contains(InodeFlags::IMMUTABLE)
            || (flags.contains(InodeFlags::APPEND) && !only_adds)
        {
            return Err(Error::NotPermitted);
        }
        match mode {
            AllocMode::Allocate { keep_size } | AllocMode::ZeroRange { keep_size } => {
                self.reserve(content.missing(offset, end))?;
                self.change_content(ino, |content| {
                    if only_adds {
                        content.allocate(offset, end)
                    } else {
                        content.zero(offset, end)
                    }
                    if !keep_size {
                        content.size = content.size.max(end);
                    }
                })?;
            }
            AllocMode::PunchHole => {
                self.change_content(ino, |content| content.punch(offset, end))?
            }
            AllocMode::CollapseRange => {
                if !self.movable(offset, len) || end >= size {
                    return Err(Error::Invalid);
                }
                self.change_content(ino, |content| content.collapse(offset, len))?;
            }
            AllocMode::InsertRange => {
                if !self.movable(offset, len) || offset >= size {
                    return Err(Error::Invalid);
                }
                rules::range_end(size, len)?;
                self.change_content(ino, |content| content.insert(offset, len))?;
            }
        }
        self.after_change(ino, false, true)
    }

    /// True if a range of this offset and length can be collapsed or inserted.
    fn movable(&self, offset: u64, len: u64) -> bool {
        (offset | len).is_multiple_of(self.block_size)
    }

    pub(super) fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        let content = self.content(ino)?;
        match from {
            SeekFrom::Data(offset) => content.seek_data(offset),
            SeekFrom::Hole(offset) => content.seek_hole(offset),
        }
    }

    /// The length to copy; 0 if there is nothing to do.
    fn copy_length(
        &self,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
        mode: CopyMode,
    ) -> Result<u64> {
        let source = self.content(from)?;
        let target = self.content(to)?;
        let left = source.size.saturating_sub(from_offset);
        let want = match len {
            0 => left,
            len => len,
        };
        if mode == CopyMode::ShareOnly {
            let to_end = from_offset.checked_add(want) == Some(source.size);
            let inside = to_offset
                .checked_add(want)
                .is_some_and(|end| end < target.size);
            if want > left || from_offset > source.size {
                return Err(Error::Invalid);
            }
            // Sharing zero bytes succeeds, even at an unaligned offset.
            if want == 0 {
                return Ok(0);
            }
            if !aligned(from_offset) || !aligned(to_offset) {
                return Err(Error::Invalid);
            }
            if !aligned(want) && (!to_end || inside) {
                return Err(Error::Invalid);
            }
            let nocow = |ino| self.node(ino).map(|node| node.flags & InodeFlags::NOCOW);
            if nocow(from)? != nocow(to)? {
                return Err(Error::Invalid);
            }
        }
        let len = want.min(left);
        let end = rules::range_end(to_offset, len)?;
        let overlap = from_offset < end && to_offset < from_offset.saturating_add(len);
        if from == to && overlap {
            return Err(Error::Invalid);
        }
        Ok(len)
    }

    pub(super) fn copy_range(
        &mut self,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
        mode: CopyMode,
    ) -> Result<u64> {
        self.content(from.0)?;
        self.content(to.0)?;
        self.writable(to.0)?;
        rules::check_write(self.node(to.0)?.flags, false, false)?;
        let len = self.copy_length(from, to, len, mode)?;
        if len == 0 {
            return Ok(0);
        }
        let end = to.1 + len;
        let source = self.content(from.0)?;
        if aligned(from.1) && aligned(to.1) {
            let part = source.cut(from.1, from.1 + len);
            self.reserve(part.allocated() + 1)?;
            self.change_content(to.0, |content| content.paste(to.1, part))?;
        } else {
            self.reserve(self.content(to.0)?.missing(to.1, end))?;
            let mut bytes = vec![0; usize::try_from(len).map_err(|_| Error::NoSpace)?];
            source.read(from.1, &mut bytes);
            self.change_content(to.0, |content| content.write(to.1, &bytes))?;
        }
        self.after_change(to.0, false, true)?;
        Ok(len)
    }
}
