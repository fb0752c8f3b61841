//! An open image as the place of received subvolumes.

mod attributes;
mod in_place;
mod part;
mod records;

use attributes::Unset;
pub(super) use in_place::receive_in_place;

use std::path::{Path, PathBuf};

use sapwood_btrfs_format::NAME_MAX;
use sapwood_btrfs_format::stream::{Command, attribute as attr, command as cmd};

use super::content::{encoded, expanded};
use super::epoch::InodeId;
use super::error::{ReceiveError, Result, at};
use super::left_out::LeftOut;
use super::record::{Mark, Position, State};
use super::{
    CloneRange, KEEP_SIZE, NewSubvolume, PUNCH_HOLE, ReceiveOptions, Resumed, Sink, ZERO_RANGE,
};
use crate::fs::FileSystem;
use crate::image::Mounted;
use crate::progress::Stop;
use crate::tree::{self, HeldInode, components, split_last};
use crate::vfs::{
    self, AllocMode, CopyMode, Credentials, FileKind, Ino, NewInode, RenameMode, SharedBytes,
    WriteMode,
};
#[cfg(feature = "fuse")]
pub(super) use part::temporary;

/// The subvolume that is being received.
struct Current<'a> {
    root: HeldInode<'a>,
    uuid: [u8; 16],
    transid: u64,
    name: Vec<u8>,
    checkpoint: Mark,
    /// The record is of an earlier receive with an orderly end.
    interrupted: bool,
}

/// An open image that receives subvolumes.
pub(super) struct ImageSink<'a> {
    /// The file system, and the path of `dir` in it. `None` in a mount.
    opened: Option<(&'a FileSystem, PathBuf)>,
    image: &'a Mounted,
    fs: &'a dyn vfs::FileSystem,
    dir: HeldInode<'a>,
    current: Option<Current<'a>>,
    /// The file of the last command, because consecutive commands mostly concern the same file.
    last: Option<(Vec<u8>, HeldInode<'a>)>,
    /// The directory of the last name that was not at the top, because consecutive names mostly are
    /// in the same one.
    last_dir: Option<(Vec<u8>, HeldInode<'a>)>,
    /// Attributes of a file that are not set yet, because consecutive commands mostly set several of
    /// one file. They are set with the next command on anything else, and before a checkpoint.
    unset: Option<Unset<'a>>,
    stop: Stop,
    /// Compressed extents are expanded.
    expand: bool,
}

impl<'a> ImageSink<'a> {
    /// Receives into the directory at a path of an open image.
    pub(super) fn new(fs: &'a FileSystem, dir: &Path, options: &ReceiveOptions) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;

        let image = fs.engine();
        let vfs: &dyn vfs::FileSystem = &**image;
        let path = dir.as_os_str().as_bytes();
        let node = tree::resolve(vfs, path, true).map_err(at("receive into", path))?;
        if !node.is_dir() {
            return Err(ReceiveError::NotDirectory(dir.to_owned()));
        }
        Ok(Self {
            opened: Some((fs, dir.to_owned())),
            ..Self::in_directory(image, node, options)
        })
    }

    /// Receives into a directory of a mounted btrfs.
    pub(super) fn in_directory(
        image: &'a Mounted,
        dir: HeldInode<'a>,
        options: &ReceiveOptions,
    ) -> Self {
        Self {
            opened: None,
            image,
            fs: &**image,
            dir,
            current: None,
            last: None,
            last_dir: None,
            unset: None,
            stop: options.stop.clone(),
            expand: options.expand,
        }
    }

    fn root(&self) -> vfs::Result<HeldInode<'a>> {
        let current = self.current.as_ref().ok_or(vfs::Error::NotFound)?;
        self.hold(current.root.ino())
    }

    fn hold(&self, ino: Ino) -> vfs::Result<HeldInode<'a>> {
        Ok(HeldInode::new(self.fs, self.fs.reference(ino)?))
    }

    /// The inode at a path below a directory. No symbolic link is followed.
    fn below(top: HeldInode<'a>, path: &[u8]) -> vfs::Result<HeldInode<'a>> {
        let mut at = top;
        for name in components(path) {
            if !at.is_dir() {
                return Err(vfs::Error::NotDirectory);
            }
            at = at.child(&name)?;
        }
        Ok(at)
    }

    /// The file of the last command, if it is at `path`.
    fn known(&self, path: &[u8]) -> Option<Ino> {
        let (last, node) = self.last.as_ref()?;
        (last == path).then(|| node.ino())
    }

    /// Forgets the last file and directory.
    fn forget(&mut self) {
        self.last = None;
        self.last_dir = None;
    }

    fn find(&mut self, path: &[u8]) -> vfs::Result<Ino> {
        if let Some(ino) = self.known(path) {
            return Ok(ino);
        }
        let node = Self::below(self.root()?, path)?;
        let ino = node.ino();
        self.last = Some((path.to_vec(), node));
        Ok(ino)
    }

    /// The directory of a path, and its last name.
    fn parent<'p>(&mut self, path: &'p [u8]) -> vfs::Result<(HeldInode<'a>, &'p [u8])> {
        let (dir, name) = split_last(path);
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(vfs::Error::Invalid);
        }
        if let Some((path, node)) = &self.last_dir
            && path == dir
        {
            return Ok((self.hold(node.ino())?, name));
        }
        let node = Self::below(self.root()?, dir)?;
        if !components(dir).is_empty() {
            self.last_dir = Some((dir.to_vec(), self.hold(node.ino())?));
        }
        Ok((node, name))
    }

    /// The read-only subvolume with a UUID, as its received one or its own. Without subvolumes, the
    /// directory with such a record.
    fn subvolume(&self, uuid: [u8; 16], transid: u64) -> vfs::Result<Option<Ino>> {
        let Mounted::Btrfs(btrfs) = self.image else {
            let found = self.complete_one(uuid)?;
            return Ok(found.map(|(_, dir)| dir.ino()));
        };
        let subvolumes = self.fs.subvolumes().ok_or(vfs::Error::NotSupported)?;
        let mut found = None;
        for one in subvolumes.list()? {
            let received = one.received_uuid == uuid;
            if !one.read_only || !(received || one.uuid == uuid) {
                continue;
            }
            let tree = btrfs.file_tree(one.id)?;
            let identity = tree.identity();
            let same = if received {
                identity.stransid == transid
            } else {
                identity.ctransid == transid
            };
            // A received subvolume is preferred, then the one of exactly this transaction.
            let rank = (same, received);
            if found.as_ref().is_none_or(|(best, _)| rank > *best) {
                found = Some((rank, tree.ino(tree.top())));
            }
        }
        Ok(found.map(|(_, ino)| ino))
    }

    fn create(&mut self, command: &Command<'_>, what: NewInode<'_>) -> Result<()> {
        let path = command.path(attr::PATH)?;
        let perm = match what {
            NewInode::Directory => 0o700,
            NewInode::Symlink(_) => 0o777,
            _ => 0o600,
        };
        let fs = self.fs;
        let made = self.parent(path).and_then(|(dir, name)| {
            let made = fs.create(&Credentials::ROOT, dir.ino(), name, what, perm)?;
            let made = HeldInode::new(fs, made);
            if let Err(error) = Self::remove_inherited(&made) {
                // A command that fails leaves no name.
                let removed = if made.is_dir() {
                    fs.rmdir(dir.ino(), name)
                } else {
                    fs.unlink(dir.ino(), name)
                };
                // The first error is the one to return.
                drop(removed);
                return Err(error);
            }
            Ok(made)
        });
        let made = made.map_err(at("create", path))?;
        self.last = Some((path.to_vec(), made));
        Ok(())
    }

    /// Removes attributes that a new inode inherited. The stream sends the attributes that the
    /// original has.
    fn remove_inherited(made: &HeldInode<'_>) -> vfs::Result<()> {
        let fs = made.file_system();
        for inherited in fs.listxattr(made.ino())? {
            fs.removexattr(made.ino(), &inherited)?;
        }
        Ok(())
    }

    fn node(&mut self, command: &Command<'_>) -> Result<()> {
        let device = command.u64(attr::RDEV)?;
        let mode = command.u64(attr::MODE)?;
        let kind = u32::try_from(mode).ok().and_then(FileKind::from_mode);
        let what = match kind {
            Some(FileKind::CharDevice) => NewInode::CharDevice(device),
            Some(FileKind::BlockDevice) => NewInode::BlockDevice(device),
            Some(FileKind::Fifo) => NewInode::Fifo,
            Some(FileKind::Socket) => NewInode::Socket,
            Some(FileKind::Regular) => NewInode::Regular,
            _ => {
                let path = command.path(attr::PATH)?;
                return Err(at("create", path)(vfs::Error::Invalid));
            }
        };
        self.create(command, what)
    }

    /// Renames. The file of the last command is known by its new name then; a directory that moves
    /// takes other paths with it.
    fn rename(&mut self, path: &[u8], to: &[u8]) -> Result<()> {
        let moved = self.last.take().filter(|(last, _)| last == path);
        if moved.as_ref().is_none_or(|(_, node)| node.is_dir()) {
            self.last_dir = None;
        }
        let fs = self.fs;
        let renamed = self.parent(path).and_then(|(from_dir, from)| {
            let (to_dir, to) = self.parent(to)?;
            fs.rename(from_dir.ino(), from, to_dir.ino(), to, RenameMode::Replace)
        });
        renamed.map_err(at("rename", path))?;
        if let Some((_, node)) = moved {
            if node.is_dir() {
                self.last_dir = None;
            }
            self.last = Some((to.to_vec(), node));
        }
        Ok(())
    }

    /// Changes names, and forgets the last files whose paths may have changed.
    fn names(&mut self, command: &Command<'_>) -> Result<()> {
        let fs = self.fs;
        let path = command.path(attr::PATH)?;
        if command.number == cmd::RENAME {
            return self.rename(path, command.path(attr::PATH_TO)?);
        }
        self.last = None;
        match command.number {
            cmd::LINK => {
                let existing = command.path(attr::PATH_LINK)?;
                let linked = self.parent(path).and_then(|(dir, name)| {
                    let node = Self::below(self.root()?, existing)?;
                    fs.link(node.ino(), dir.ino(), name)
                });
                let linked = linked.map_err(at("link", path))?;
                drop(HeldInode::new(fs, linked));
                Ok(())
            }
            cmd::RMDIR => {
                let removed = self
                    .parent(path)
                    .and_then(|(dir, name)| fs.rmdir(dir.ino(), name));
                self.last_dir = None;
                removed.map_err(at("remove", path))
            }
            _ => self
                .parent(path)
                .and_then(|(dir, name)| fs.unlink(dir.ino(), name))
                .map_err(at("remove", path)),
        }
    }

    /// Writes `data`, which may be a part of the buffer `owner`.
    fn write(
        &mut self,
        path: &[u8],
        offset: u64,
        data: &[u8],
        owner: Option<&SharedBytes>,
    ) -> Result<u64> {
        self.set_attributes()?;
        let mode = WriteMode::default();
        let shared = owner.and_then(|owner| owner.owner_of(data));
        let written = self.find(path).and_then(|ino| match shared {
            Some(shared) => self.fs.write_shared(ino, offset, shared, mode),
            None => self.fs.write(ino, offset, data, mode),
        });
        written.map_err(at("write", path))?;
        Ok(data.len() as u64)
    }

    /// Stores a compressed extent as it is, if the image takes it so; else expands and writes it.
    fn encoded_write(&mut self, command: &Command<'_>) -> Result<u64> {
        if let Mounted::Btrfs(btrfs) = self.image
            && !self.expand
            && let Some(extent) = encoded(command, btrfs.sector_size())?
        {
            let path = command.path(attr::PATH)?;
            let ino = self.find(path).map_err(at("write", path))?;
            if btrfs
                .write_encoded(ino, &extent)
                .map_err(at("write", path))?
            {
                return Ok(extent.len);
            }
        }
        let (start, data) = expanded(command)?;
        self.write(command.path(attr::PATH)?, start, &data, None)
    }

    fn clone_range(&mut self, range: &CloneRange<'_>) -> Result<u64> {
        let failed = at("clone", range.path);
        let own = self.current.as_ref().map(|current| current.uuid);
        let root = if own == Some(range.source) {
            self.root()
        } else {
            match self.subvolume(range.source, 0) {
                Ok(Some(ino)) => self.hold(ino),
                Ok(None) => return Err(ReceiveError::NoCloneSource(range.source)),
                Err(error) => Err(error),
            }
        };
        let cloned = root.and_then(|root| {
            let from = Self::below(root, range.source_path)?.ino();
            let to = self.find(range.path)?;
            let mut done = 0;
            while done < range.len {
                let from_offset = range.source_offset.saturating_add(done);
                let to_offset = range.offset.saturating_add(done);
                let left = range.len - done;
                let count =
                    self.fs
                        .copy_range(from, from_offset, to, to_offset, left, CopyMode::Any)?;
                if count == 0 {
                    return Err(vfs::Error::Invalid);
                }
                done += count;
            }
            Ok(done)
        });
        cloned.map_err(failed)
    }

    fn allocate(&mut self, command: &Command<'_>) -> Result<()> {
        let path = command.path(attr::PATH)?;
        let (offset, len) = (command.u64(attr::FILE_OFFSET)?, command.u64(attr::SIZE)?);
        let mode = command.u32(attr::FALLOCATE_MODE)?;
        let keep_size = mode & KEEP_SIZE != 0;
        let mode = match mode & !KEEP_SIZE {
            0 => AllocMode::Allocate { keep_size },
            PUNCH_HOLE if keep_size => AllocMode::PunchHole,
            ZERO_RANGE => AllocMode::ZeroRange { keep_size },
            _ => return Err(at("allocate", path)(vfs::Error::NotSupported)),
        };
        let done = self
            .find(path)
            .and_then(|ino| self.fs.fallocate(ino, offset, len, mode));
        done.map_err(at("allocate", path))
    }
}

impl Sink for ImageSink<'_> {
    fn begin(&mut self, new: &NewSubvolume<'_>, position: &Position) -> Result<()> {
        self.make(new, position)
    }

    fn resume(&mut self, new: &NewSubvolume<'_>) -> Result<Resumed> {
        self.find_part(new)
    }

    fn proceed(&mut self) -> Result<()> {
        match &mut self.current {
            // From now on the receive may be killed after a change of names.
            Some(current) if current.interrupted => {
                current.interrupted = false;
                let names = current.checkpoint.clone();
                self.store(self.running(names))
            }
            _ => Ok(()),
        }
    }

    fn identify(&mut self, path: &[u8]) -> Result<InodeId> {
        let found = match self.known(path) {
            Some(ino) => Ok(ino),
            None => self
                .root()
                .and_then(|root| Self::below(root, path))
                .map(|node| node.ino()),
        };
        Ok((0, found.map_err(at("find", path))?.0))
    }

    fn exists(&mut self, path: &[u8]) -> Result<bool> {
        match self.root().and_then(|root| Self::below(root, path)) {
            Ok(_) => Ok(true),
            Err(vfs::Error::NotFound) => Ok(false),
            Err(error) => Err(at("find", path)(error)),
        }
    }

    fn remove(&mut self, path: &[u8]) -> Result<()> {
        self.set_attributes()?;
        self.forget();
        let removed = self.parent(path).and_then(|(dir, name)| {
            if dir.child(name)?.is_dir() {
                self.fs.rmdir(dir.ino(), name)
            } else {
                self.fs.unlink(dir.ino(), name)
            }
        });
        removed.map_err(at("remove", path))
    }

    fn apply(&mut self, command: &Command<'_>, owner: Option<&SharedBytes>) -> Result<u64> {
        if !matches!(command.number, cmd::CHMOD | cmd::CHOWN | cmd::UTIMES) {
            self.set_attributes()?;
        }
        match command.number {
            cmd::MKFILE => self.create(command, NewInode::Regular)?,
            cmd::MKDIR => self.create(command, NewInode::Directory)?,
            cmd::MKFIFO => self.create(command, NewInode::Fifo)?,
            cmd::MKSOCK => self.create(command, NewInode::Socket)?,
            cmd::MKNOD => self.node(command)?,
            cmd::SYMLINK => {
                let target = command.get(attr::PATH_LINK)?;
                self.create(command, NewInode::Symlink(target))?;
            }
            cmd::RENAME | cmd::LINK | cmd::UNLINK | cmd::RMDIR => self.names(command)?,
            cmd::SET_XATTR | cmd::REMOVE_XATTR => self.xattr(command)?,
            cmd::WRITE => {
                let path = command.path(attr::PATH)?;
                let offset = command.u64(attr::FILE_OFFSET)?;
                return self.write(path, offset, command.get(attr::DATA)?, owner);
            }
            cmd::ENCODED_WRITE => return self.encoded_write(command),
            cmd::CLONE => {
                return self.clone_range(&CloneRange {
                    path: command.path(attr::PATH)?,
                    offset: command.u64(attr::FILE_OFFSET)?,
                    len: command.u64(attr::CLONE_LEN)?,
                    source: command.uuid(attr::CLONE_UUID)?,
                    source_path: command.path(attr::CLONE_PATH)?,
                    source_offset: command.u64(attr::CLONE_OFFSET)?,
                });
            }
            cmd::TRUNCATE => self.truncate(command)?,
            cmd::CHMOD | cmd::CHOWN | cmd::UTIMES => self.attributes(command)?,
            cmd::FALLOCATE => self.allocate(command)?,
            cmd::UPDATE_EXTENT => return Err(ReceiveError::NoContent),
            // Flags that only the format defines. `btrfs receive` leaves them out, too.
            _ => {}
        }
        Ok(0)
    }

    fn names_changed(&mut self, position: &Position) -> Result<()> {
        self.store(self.running(position.mark()))
    }

    fn checkpoint(&mut self, position: &Position) -> Result<()> {
        // The changes that the checkpoint counts must be durable before it is recorded.
        self.set_attributes()?;
        self.fs.sync().map_err(at("write back", b""))?;
        if let Some(current) = &mut self.current {
            current.checkpoint = position.mark();
        }
        self.store(self.running(position.mark()))
    }

    fn interrupt(&mut self, position: &Position, doubtful: bool) -> Result<()> {
        self.set_attributes()?;
        self.forget();
        self.fs.sync().map_err(at("write back", b""))?;
        let mark = position.mark();
        self.store(State::Interrupted { mark, doubtful })?;
        self.fs.sync().map_err(at("write back", b""))
    }

    fn finish(&mut self, position: &Position) -> Result<()> {
        self.set_attributes()?;
        self.forget();
        self.checkpoint(position)?;
        self.complete(position)
    }

    fn left_out(&mut self) -> Vec<LeftOut> {
        Vec::new()
    }
}
