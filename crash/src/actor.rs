//! [`Actor`]: performs operations on any file system.

use sapwood_vfs::acl::{self, Acl, AclEntry, Tag as AclTag};
use sapwood_vfs::{
    AllocMode, Attr, CopyMode, Credentials, Error, FileSystem, Ino, InodeFlags, NewInode,
    RenameMode, Result, SetAttr, SetTime, SetXattrMode, SyncKind, Timestamp, WriteMode,
};

use crate::op::{Op, SLOTS, Target, pattern};

/// Device number of device nodes.
const DEVICE: u64 = 0x0103;

/// Performs operations one after another, and keeps the inodes that they hold.
pub struct Actor<'a> {
    fs: &'a dyn FileSystem,
    root: Ino,
    held: [Option<Ino>; SLOTS],
}

impl<'a> Actor<'a> {
    /// An actor that holds no inode yet.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem) -> Self {
        Self::below(fs, fs.root())
    }

    /// As [`new`](Self::new), but paths begin at this directory, to which the caller holds a
    /// reference.
    #[must_use]
    pub fn below(fs: &'a dyn FileSystem, root: Ino) -> Self {
        Self {
            fs,
            root,
            held: [None; SLOTS],
        }
    }

    /// The inode that a target names now. The caller gets no reference.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`]; `Invalid` for an empty slot.
    pub fn ino(&self, target: &Target) -> Result<Ino> {
        match target {
            Target::Held(slot) => self
                .held
                .get(*slot)
                .copied()
                .flatten()
                .ok_or(Error::Invalid),
            Target::Path(path) => self.at(path, Ok),
        }
    }

    /// Attributes of the inode that a target names now.
    ///
    /// # Errors
    /// As [`ino`](Self::ino).
    pub fn attr(&self, target: &Target) -> Result<Attr> {
        self.on(target, |ino| self.fs.getattr(ino))
    }

    /// The inode that a slot holds.
    #[must_use]
    pub fn held(&self, slot: usize) -> Option<Ino> {
        self.held.get(slot).copied().flatten()
    }

    /// Performs one operation.
    ///
    /// # Errors
    /// The error of the file system; `Invalid` for an empty slot.
    pub fn apply(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Create { at } => self.create(at, NewInode::Regular),
            Op::Mkdir { at } => self.create(at, NewInode::Directory),
            Op::Symlink { target, at } => self.create(at, NewInode::Symlink(target.as_bytes())),
            Op::Mknod { at } => self.create(at, NewInode::CharDevice(DEVICE)),
            Op::Tmpfile { dir, slot } => {
                let entry = self.at(dir, |dir| self.fs.tmpfile(&Credentials::ROOT, dir, 0o600))?;
                self.hold(*slot, entry.ino());
                Ok(())
            }
            Op::Hold { at, slot } => {
                // The slot takes over the reference of the walk.
                let ino = self.walk(at)?;
                self.hold(*slot, ino);
                Ok(())
            }
            Op::Release { slot } => {
                let held = self.held.get_mut(*slot).and_then(Option::take);
                self.fs.forget(held.ok_or(Error::Invalid)?, 1);
                Ok(())
            }
            Op::Link { from, to } => {
                let linked = self.on(from, |ino| {
                    self.parent(to, |dir, name| self.fs.link(ino, dir, name))
                })?;
                self.fs.forget(linked.ino(), 1);
                Ok(())
            }
            Op::Rename { from, to } => self.rename(from, to, RenameMode::Replace),
            Op::Exchange { a, b } => self.rename(a, b, RenameMode::Exchange),
            Op::Unlink { at } => self.parent(at, |dir, name| self.fs.unlink(dir, name)),
            Op::Rmdir { at } => self.parent(at, |dir, name| self.fs.rmdir(dir, name)),
            Op::Subvolume { .. } | Op::Snapshot { .. } | Op::DeleteSubvolume { .. } => {
                self.subvolume(op)
            }
            Op::Fsync { on } => self.on(on, |ino| self.fs.fsync(ino, SyncKind::All)),
            Op::Fdatasync { on } => self.on(on, |ino| self.fs.fsync(ino, SyncKind::Data)),
            Op::Sync {} => self.fs.sync(),
            _ => self.data(op),
        }
    }

    fn data(&self, op: &Op) -> Result<()> {
        let allocate = |file: &Target, offset: u64, len: u64, mode| {
            self.on(file, |ino| self.fs.fallocate(ino, offset, len, mode))
        };
        match op {
            Op::Write {
                file,
                offset,
                len,
                tag,
            } => self.on(file, |ino| {
                let data = pattern(*tag, *offset, *len);
                self.fs
                    .write(ino, *offset, &data, WriteMode::default())
                    .map(drop)
            }),
            Op::Append { file, len, tag } => self.on(file, |ino| {
                let data = pattern(*tag, 0, *len);
                let append = WriteMode {
                    append: true,
                    ..WriteMode::default()
                };
                self.fs.write(ino, 0, &data, append).map(drop)
            }),
            Op::Allocate { file, offset, len } => allocate(
                file,
                *offset,
                *len,
                AllocMode::Allocate { keep_size: false },
            ),
            Op::AllocateKeep { file, offset, len } => {
                allocate(file, *offset, *len, AllocMode::Allocate { keep_size: true })
            }
            Op::Punch { file, offset, len } => allocate(file, *offset, *len, AllocMode::PunchHole),
            Op::Zero { file, offset, len } => allocate(
                file,
                *offset,
                *len,
                AllocMode::ZeroRange { keep_size: false },
            ),
            Op::ZeroKeep { file, offset, len } => allocate(
                file,
                *offset,
                *len,
                AllocMode::ZeroRange { keep_size: true },
            ),
            Op::Truncate { file, size } => self.setattr(
                file,
                SetAttr {
                    size: Some(*size),
                    ..SetAttr::default()
                },
            ),
            Op::Reflink {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => self.on(from, |source| {
                self.on(to, |target| {
                    let mode = CopyMode::ShareOnly;
                    let copied =
                        self.fs
                            .copy_range(source, *from_offset, target, *to_offset, *len, mode);
                    copied.map(drop)
                })
            }),
            _ => self.attributes(op),
        }
    }

    fn attributes(&self, op: &Op) -> Result<()> {
        match op {
            Op::SetXattr { on, name, len, tag } => self.on(on, |ino| {
                let name = format!("user.{name}");
                let value = pattern(*tag, 0, *len);
                self.fs
                    .setxattr(ino, name.as_bytes(), &value, SetXattrMode::Any)
            }),
            Op::RemoveXattr { on, name } => self.on(on, |ino| {
                self.fs.removexattr(ino, format!("user.{name}").as_bytes())
            }),
            Op::SetAcl { on, uid } => self.on(on, |ino| self.set_acl(ino, *uid)),
            Op::Chmod { on, perm } => self.setattr(
                on,
                SetAttr {
                    perm: Some(*perm),
                    ..SetAttr::default()
                },
            ),
            Op::Chown { on, uid, gid } => {
                let (uid, gid) = (Some(*uid), Some(*gid));
                self.setattr(
                    on,
                    SetAttr {
                        uid,
                        gid,
                        ..SetAttr::default()
                    },
                )
            }
            Op::SetTimes { on, sec } => {
                let time = |sec| {
                    Some(SetTime::To(Timestamp {
                        sec: i64::from(sec),
                        nsec: 5,
                    }))
                };
                self.setattr(
                    on,
                    SetAttr {
                        atime: time(*sec),
                        mtime: time(sec.saturating_add(1)),
                        ..SetAttr::default()
                    },
                )
            }
            Op::Nocow { file } => self.on(file, |ino| self.fs.set_flags(ino, InodeFlags::NOCOW)),
            Op::Compress { file } => {
                self.on(file, |ino| self.fs.set_flags(ino, InodeFlags::COMPRESS))
            }
            _ => Err(Error::NotSupported),
        }
    }

    fn set_acl(&self, ino: Ino, uid: u32) -> Result<()> {
        let directory = self.fs.getattr(ino)?.kind == sapwood_vfs::FileKind::Directory;
        let entry = |tag, perm| AclEntry { tag, perm };
        let list = vec![
            entry(AclTag::UserObj, 7),
            entry(AclTag::User(uid), 6),
            entry(AclTag::GroupObj, 5),
            entry(AclTag::Mask, 7),
            entry(AclTag::Other, 4),
        ];
        let value = Acl::new(list).map_err(|_| Error::Invalid)?.to_bytes();
        let name = if directory { acl::DEFAULT } else { acl::ACCESS };
        self.fs.setxattr(ino, name, &value, SetXattrMode::Any)
    }

    fn setattr(&self, on: &Target, changes: SetAttr) -> Result<()> {
        self.on(on, |ino| self.fs.setattr(ino, &changes).map(drop))
    }

    fn subvolume(&self, op: &Op) -> Result<()> {
        let volumes = self.fs.subvolumes().ok_or(Error::NotSupported)?;
        match op {
            Op::Subvolume { at } => {
                let made = self.parent(at, |dir, name| volumes.create_subvolume(dir, name))?;
                self.fs.forget(made.ino(), 1);
                Ok(())
            }
            Op::Snapshot { source, at } => {
                let made = self.at(source, |source| {
                    self.parent(at, |dir, name| volumes.snapshot(source, dir, name, false))
                })?;
                self.fs.forget(made.ino(), 1);
                Ok(())
            }
            Op::DeleteSubvolume { at } => {
                self.parent(at, |dir, name| volumes.delete_subvolume(dir, name))
            }
            _ => Err(Error::NotSupported),
        }
    }

    fn create(&self, path: &str, what: NewInode<'_>) -> Result<()> {
        let perm = if what == NewInode::Directory {
            0o755
        } else {
            0o644
        };
        let entry = self.parent(path, |dir, name| {
            self.fs.create(&Credentials::ROOT, dir, name, what, perm)
        })?;
        self.fs.forget(entry.ino(), 1);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        self.parent(from, |from_dir, from_name| {
            self.parent(to, |to_dir, to_name| {
                self.fs.rename(from_dir, from_name, to_dir, to_name, mode)
            })
        })
    }

    fn hold(&mut self, slot: usize, ino: Ino) {
        if let Some(old) = self.held.get_mut(slot).and_then(|held| held.replace(ino)) {
            self.fs.forget(old, 1);
        }
    }

    fn on<R>(&self, target: &Target, work: impl FnOnce(Ino) -> Result<R>) -> Result<R> {
        match target {
            Target::Held(_) => work(self.ino(target)?),
            Target::Path(path) => self.at(path, work),
        }
    }

    fn at<R>(&self, path: &str, work: impl FnOnce(Ino) -> Result<R>) -> Result<R> {
        let ino = self.walk(path)?;
        let result = work(ino);
        self.let_go(ino);
        result
    }

    fn parent<R>(&self, path: &str, work: impl FnOnce(Ino, &[u8]) -> Result<R>) -> Result<R> {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        self.at(dir, |dir| work(dir, name.as_bytes()))
    }

    /// Walks to a path and returns the inode at its end, with a reference.
    fn walk(&self, path: &str) -> Result<Ino> {
        let mut at = self.root;
        for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
            let found = self.fs.lookup(at, name.as_bytes());
            self.let_go(at);
            at = found?.ino();
        }
        Ok(at)
    }

    fn let_go(&self, ino: Ino) {
        if ino != self.root {
            self.fs.forget(ino, 1);
        }
    }
}

impl Drop for Actor<'_> {
    fn drop(&mut self) {
        for ino in self.held.into_iter().flatten() {
            self.fs.forget(ino, 1);
        }
    }
}
