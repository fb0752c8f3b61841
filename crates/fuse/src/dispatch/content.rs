//! Contents of files.

use std::sync::atomic::Ordering;

use sapwood_vfs::{AllocMode, CopyMode, Error, Ino, SeekFrom, SetAttr, WriteMode};

use super::{Dispatcher, errno};
use crate::node::NodeId;
use crate::privileges;
use crate::request::{Caller, Reply, Seek, WriteRequest};

impl Dispatcher {
    /// Reads into `buf`. Returns the number of bytes read.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn read(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> Reply<usize> {
        let _open = self.enter()?;
        self.fs.read(self.map.ino(node), offset, buf).map_err(errno)
    }

    /// Writes all of the data or nothing. The offset counts even for a file opened to append: the
    /// kernel knows the current size and has set the offset.
    ///
    /// A kernel with a write-back cache sends the times of a write later, in a request that no
    /// caller waits for. A direct write may have to be durable with its times before its answer, so
    /// the engine sets them.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn write(&self, request: &WriteRequest<'_>) -> Reply<()> {
        let _open = self.enter()?;
        let mode = WriteMode {
            kill_setid: request.kill_setid,
            append: false,
            writeback: self.writeback.load(Ordering::Acquire) && !request.direct,
        };
        let ino = self.map.ino(request.node);
        self.fs
            .write(ino, request.offset, request.data, mode)
            .map_err(errno)?;
        match request.sync {
            Some(kind) => self.fs.fsync(ino, kind).map_err(errno),
            None => Ok(()),
        }
    }

    /// `fallocate`, with its mode bits.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for other bits; errors of the engine.
    pub(crate) fn fallocate(
        &self,
        who: Caller,
        node: NodeId,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Reply<()> {
        let _open = self.enter()?;
        let mode = alloc_mode(mode).ok_or(libc::EOPNOTSUPP)?;
        let ino = self.map.ino(node);
        self.clear_setid(who, ino)?;
        self.fs.fallocate(ino, offset, len, mode).map_err(errno)?;
        self.settle(ino)
    }

    /// Clears the set-id bits that a change of content by `who` clears. The kernel holds the
    /// inode's lock, so the mode does not change between the two calls.
    fn clear_setid(&self, who: Caller, ino: Ino) -> Reply<()> {
        let attr = self.fs.getattr(ino).map_err(errno)?;
        let kept = privileges::after_write(&attr, who);
        if kept == attr.perm {
            return Ok(());
        }
        let set = SetAttr {
            perm: Some(kept),
            ..SetAttr::default()
        };
        match self.fs.setattr(ino, &set) {
            // An append-only file keeps its mode: the engine refuses the change below, or the file
            // only grows.
            Ok(_) | Err(Error::NotPermitted) => Ok(()),
            Err(error) => Err(errno(error)),
        }
    }

    /// `lseek` for data or a hole. The kernel handles the other kinds.
    ///
    /// # Errors
    /// `EINVAL` for another `whence`; errors of the engine.
    pub(crate) fn lseek(&self, node: NodeId, offset: i64, whence: i32) -> Reply<Seek> {
        let found = self.seek(node, offset, whence);
        if !self.writeback.load(Ordering::Acquire) {
            return found.map(Seek::Found);
        }
        let start = u64::try_from(offset).unwrap_or(0);
        match (found, whence) {
            (Ok(found), libc::SEEK_DATA) if found == offset => Ok(Seek::Found(found)),
            (Ok(found), libc::SEEK_DATA) => Ok(Seek::Unsettled {
                offset: start,
                len: u64::try_from(found)
                    .ok()
                    .map(|end| end.saturating_sub(start)),
            }),
            (Ok(found), _) => Ok(Seek::Unsettled {
                offset: u64::try_from(found).unwrap_or(start),
                len: None,
            }),
            (Err(libc::ENXIO), _) => Ok(Seek::Unsettled {
                offset: start,
                len: None,
            }),
            (Err(error), _) => Err(error),
        }
    }

    /// The answer to an unsettled [`lseek`](Self::lseek), after the kernel has written back.
    ///
    /// # Errors
    /// `ENXIO` if no data or hole follows `offset`; `EINVAL` for another `whence`; errors of the
    /// engine.
    pub(crate) fn settled_lseek(&self, node: NodeId, offset: i64, whence: i32) -> Reply<i64> {
        self.seek(node, offset, whence)
    }

    fn seek(&self, node: NodeId, offset: i64, whence: i32) -> Reply<i64> {
        let _open = self.enter()?;
        let offset = u64::try_from(offset).map_err(|_| libc::ENXIO)?;
        let from = match whence {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(libc::EINVAL),
        };
        let found = self.fs.seek(self.map.ino(node), from).map_err(errno)?;
        i64::try_from(found).map_err(|_| libc::EOVERFLOW)
    }

    /// Copies a range, sharing extents where possible. Returns the number of bytes copied.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn copy_file_range(
        &self,
        who: Caller,
        from: (NodeId, u64),
        to: (NodeId, u64),
        len: u64,
    ) -> Reply<u64> {
        let _open = self.enter()?;
        if len == 0 {
            return Ok(0);
        }
        let (source, target) = (self.map.ino(from.0), self.map.ino(to.0));
        self.clear_setid(who, target)?;
        let copied = self
            .fs
            .copy_range(source, from.1, target, to.1, len, CopyMode::Any)
            .map_err(errno)?;
        self.settle(target)?;
        Ok(copied)
    }
}

fn alloc_mode(mode: i32) -> Option<AllocMode> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(AllocMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(AllocMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(AllocMode::ZeroRange { keep_size }),
        libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Some(AllocMode::CollapseRange),
        libc::FALLOC_FL_INSERT_RANGE if !keep_size => Some(AllocMode::InsertRange),
        _ => None,
    }
}
