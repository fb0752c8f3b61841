//! The stream that a send writes.

use std::io::Write;

use sapwood_btrfs_format::stream::{Writer, attribute as attr, command as cmd};

use super::error::{Result, SendError};
use crate::vfs::{FileKind, StoredInode};

/// A range of a file that refers to a part of a compressed extent.
pub(super) struct EncodedRange {
    /// Offset in the file.
    pub(super) start: u64,
    /// Bytes of the file.
    pub(super) len: u64,
    /// Bytes of the whole extent, expanded.
    pub(super) extent_len: u64,
    /// Offset of the range in the expanded extent.
    pub(super) extent_offset: u64,
    /// Number of the compression.
    pub(super) encoding: u32,
}

/// A range of a file of a source.
pub(super) struct CloneSource {
    pub(super) uuid: [u8; 16],
    pub(super) transid: u64,
    pub(super) path: Vec<u8>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The stream, command after command.
pub(super) struct Output<W> {
    writer: W,
    stream: Writer,
    /// Written bytes.
    pub(super) bytes: u64,
}

impl<W: Write> Output<W> {
    pub(super) fn new(mut writer: W, version: u32) -> Result<Self> {
        let header = sapwood_btrfs_format::stream::header(version);
        writer.write_all(&header).map_err(SendError::Write)?;
        Ok(Self {
            writer,
            stream: Writer::new(version),
            bytes: header.len() as u64,
        })
    }

    pub(super) fn version(&self) -> u32 {
        self.stream.version()
    }

    /// Writes a command whose attributes `compose` adds.
    ///
    /// # Errors
    /// [`SendError::TooLong`], [`SendError::Write`].
    pub(super) fn command(
        &mut self,
        command: u16,
        compose: impl FnOnce(&mut Writer),
    ) -> Result<()> {
        compose(self.stream.begin(command));
        if self.stream.is_too_long() {
            return Err(SendError::TooLong {
                path: crate::archive::path(self.stream.path().unwrap_or_default()),
                version: self.stream.version(),
            });
        }
        let bytes = self.stream.finish();
        self.bytes += bytes.len() as u64;
        self.writer.write_all(bytes).map_err(SendError::Write)
    }

    pub(super) fn path(&mut self, command: u16, path: &[u8]) -> Result<()> {
        self.command(command, |out| {
            out.put(attr::PATH, path);
        })
    }

    /// Creates an inode. `target`: for a symbolic link.
    pub(super) fn create(
        &mut self,
        number: u64,
        inode: &StoredInode,
        path: &[u8],
        target: &[u8],
    ) -> Result<()> {
        let command = match inode.kind {
            FileKind::Regular => cmd::MKFILE,
            FileKind::Directory => cmd::MKDIR,
            FileKind::Symlink => cmd::SYMLINK,
            FileKind::CharDevice | FileKind::BlockDevice => cmd::MKNOD,
            FileKind::Fifo => cmd::MKFIFO,
            FileKind::Socket => cmd::MKSOCK,
        };
        self.command(command, |out| {
            out.put(attr::PATH, path).put_u64(attr::INO, number);
            match inode.kind {
                FileKind::Symlink => {
                    out.put(attr::PATH_LINK, target);
                }
                FileKind::Regular | FileKind::Directory => {}
                kind => {
                    let mode = kind.mode_bits() | inode.perm;
                    out.put_u64(attr::RDEV, inode.rdev);
                    out.put_u64(attr::MODE, mode.into());
                }
            }
        })
    }

    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.command(cmd::RENAME, |out| {
            out.put(attr::PATH, from).put(attr::PATH_TO, to);
        })
    }

    /// Makes a hard link: `path` is the new name.
    pub(super) fn link(&mut self, path: &[u8], existing: &[u8]) -> Result<()> {
        self.command(cmd::LINK, |out| {
            out.put(attr::PATH, path).put(attr::PATH_LINK, existing);
        })
    }

    pub(super) fn truncate(&mut self, path: &[u8], size: u64) -> Result<()> {
        self.command(cmd::TRUNCATE, |out| {
            out.put(attr::PATH, path).put_u64(attr::SIZE, size);
        })
    }

    pub(super) fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        self.command(cmd::WRITE, |out| {
            out.put(attr::PATH, path)
                .put_u64(attr::FILE_OFFSET, offset)
                .put_data(data);
        })
    }

    /// Writes the stored bytes of a compressed extent.
    pub(super) fn encoded_write(
        &mut self,
        path: &[u8],
        range: &EncodedRange,
        stored: &[u8],
    ) -> Result<()> {
        self.command(cmd::ENCODED_WRITE, |out| {
            out.put(attr::PATH, path)
                .put_u64(attr::FILE_OFFSET, range.start)
                .put_u64(attr::UNENCODED_FILE_LEN, range.len)
                .put_u64(attr::UNENCODED_LEN, range.extent_len)
                .put_u64(attr::UNENCODED_OFFSET, range.extent_offset)
                .put_u32(attr::COMPRESSION, range.encoding)
                .put_data(stored);
        })
    }

    /// Shares a range with another file.
    pub(super) fn clone_range(
        &mut self,
        path: &[u8],
        offset: u64,
        len: u64,
        source: &CloneSource,
    ) -> Result<()> {
        self.command(cmd::CLONE, |out| {
            out.put_u64(attr::FILE_OFFSET, offset)
                .put_u64(attr::CLONE_LEN, len)
                .put(attr::PATH, path)
                .put(attr::CLONE_UUID, &source.uuid)
                .put_u64(attr::CLONE_CTRANSID, source.transid)
                .put(attr::CLONE_PATH, &source.path)
                .put_u64(attr::CLONE_OFFSET, source.offset);
        })
    }

    /// Records in the stream that a range changed, without its content.
    pub(super) fn update_extent(&mut self, path: &[u8], offset: u64, len: u64) -> Result<()> {
        self.command(cmd::UPDATE_EXTENT, |out| {
            out.put(attr::PATH, path)
                .put_u64(attr::FILE_OFFSET, offset)
                .put_u64(attr::SIZE, len);
        })
    }

    pub(super) fn fallocate(
        &mut self,
        path: &[u8],
        mode: u32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.command(cmd::FALLOCATE, |out| {
            out.put(attr::PATH, path)
                .put_u32(attr::FALLOCATE_MODE, mode)
                .put_u64(attr::FILE_OFFSET, offset)
                .put_u64(attr::SIZE, len);
        })
    }

    pub(super) fn chown(&mut self, path: &[u8], inode: &StoredInode) -> Result<()> {
        self.command(cmd::CHOWN, |out| {
            out.put(attr::PATH, path)
                .put_u64(attr::UID, inode.uid.into())
                .put_u64(attr::GID, inode.gid.into());
        })
    }

    pub(super) fn chmod(&mut self, path: &[u8], inode: &StoredInode) -> Result<()> {
        self.command(cmd::CHMOD, |out| {
            out.put(attr::PATH, path)
                .put_u64(attr::MODE, inode.perm.into());
        })
    }

    pub(super) fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        self.command(cmd::SET_XATTR, |out| {
            out.put(attr::PATH, path)
                .put(attr::XATTR_NAME, name)
                .put(attr::XATTR_DATA, value);
        })
    }

    pub(super) fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<()> {
        self.command(cmd::REMOVE_XATTR, |out| {
            out.put(attr::PATH, path).put(attr::XATTR_NAME, name);
        })
    }

    pub(super) fn times(&mut self, path: &[u8], inode: &StoredInode) -> Result<()> {
        let version = self.version();
        self.command(cmd::UTIMES, |out| {
            out.put(attr::PATH, path);
            let times = [
                (attr::ATIME, inode.atime),
                (attr::MTIME, inode.mtime),
                (attr::CTIME, inode.ctime),
            ];
            for (name, time) in times {
                out.put_time(name, time.sec, time.nsec);
            }
            if version >= 2 {
                out.put_time(attr::OTIME, inode.otime.sec, inode.otime.nsec);
            }
        })
    }

    pub(super) fn end(&mut self) -> Result<()> {
        self.command(cmd::END, |_| {})?;
        self.writer.flush().map_err(SendError::Write)
    }
}
