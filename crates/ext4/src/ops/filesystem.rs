//! The [`FileSystem`] trait for ext4: from numbers to inodes, references, and errors for callers.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs};
use sapwood_vfs::{
    AllocMode, Attr, CopyMode, Credentials, DirEntry, Entry, FileKind, FileSystem, FsStat, Fsxattr,
    Ino, InodeFlags, NewInode, RenameMode, Result, SeekFrom, SetAttr, SetXattrMode, Subvolumes,
    SyncKind, WriteMode,
};

use super::rename::Place;
use super::{attr, create, link, locks, reap, remove, rename, sync};
use crate::inode::Inode;
use crate::{Ext4, data, dir, xattr};

impl Ext4 {
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.engine.inodes.by_number(&self.engine, ino)?;
        if inode.state.lock().dying {
            return Err(vfs::Error::Stale);
        }
        Ok(inode)
    }

    fn regular(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(vfs::Error::IsDirectory),
            _ => Err(vfs::Error::Invalid),
        }
    }

    /// Takes a reference for the caller, unless the inode was deleted meanwhile.
    pub(crate) fn entry(&self, inode: &Arc<Inode>) -> Result<Entry> {
        inode.residence.refer(1);
        if inode.state.lock().dying {
            return Err(vfs::Error::Stale);
        }
        Ok(Entry {
            attr: inode.attr(&self.engine),
        })
    }

    fn check_alive(&self) -> Result<()> {
        Ok(self
            .engine
            .health
            .check_open()
            .map_err(crate::Error::from)?)
    }

    /// Refuses a change of a mount that takes none.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_alive()?;
        if self.engine.read_only() {
            Err(vfs::Error::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// What `O_SYNC` directories and files (`chattr +S`, `+D`) add to a change.
    fn sync_if_asked(&self, inode: &Arc<Inode>) -> Result<()> {
        let flags = inode.vfs_flags();
        let wanted = match inode.kind {
            FileKind::Directory => flags.intersects(InodeFlags::SYNC | InodeFlags::DIRSYNC),
            _ => flags.contains(InodeFlags::SYNC),
        };
        if wanted {
            Ok(sync::fsync(&self.engine, inode, SyncKind::All)?)
        } else {
            Ok(())
        }
    }
}

impl FileSystem for Ext4 {
    fn kind(&self) -> &'static str {
        "ext4"
    }

    fn root(&self) -> Ino {
        Ino(sapwood_ext4_format::special_ino::ROOT.into())
    }

    fn read_only(&self) -> bool {
        self.engine.read_only()
    }

    fn statfs(&self) -> Result<FsStat> {
        self.check_alive()?;
        let found = self.engine.space.statfs();
        Ok(match self.engine.options.minix_df {
            true => FsStat {
                blocks: self.engine.geometry.blocks_count(),
                ..found
            },
            false => found,
        })
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_alive()?;
        let dir = self.inode(dir)?;
        dir.require_dir()?;
        if name.len() > rules::NAME_MAX {
            return Err(vfs::Error::NameTooLong);
        }
        loop {
            let inode = remove::look_up(&self.engine, &dir, name)?.ok_or(vfs::Error::NotFound)?;
            match self.entry(&inode) {
                // Its last name went between the search and the reference.
                Err(vfs::Error::Stale) if !self.engine.read_only() => {}
                other => return other,
            }
        }
    }

    fn reference(&self, ino: Ino) -> Result<Entry> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        self.entry(&inode)
    }

    fn parent(&self, dir: Ino) -> Result<Entry> {
        self.check_alive()?;
        let dir = self.inode(dir)?;
        dir.require_dir()?;
        let parent = {
            let _io = dir.io.read();
            dir::parent(&self.engine, &dir)?
        };
        self.entry(&self.engine.inodes.named(&self.engine, parent)?)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Some(inode) = self.engine.inodes.release(ino, count) else {
            return;
        };
        if !inode.is_linked()
            && let Err(error) = reap::reap(&self.engine, &inode)
        {
            // The orphan item stays: the next mount deletes the inode.
            log::warn!("{inode:?}: not deleted: {error}");
        }
    }

    fn referenced(&self) -> Vec<Ino> {
        self.engine.inodes.referenced()
    }

    fn is_crowded(&self, ino: Ino) -> bool {
        self.engine.inodes.is_crowded(ino)
    }

    fn crowd(&self) -> Vec<Ino> {
        self.engine.inodes.crowd()
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.check_alive()?;
        Ok(self.inode(ino)?.attr(&self.engine))
    }

    fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.check_writable()?;
        let inode = self.inode(ino)?;
        attr::setattr(&self.engine, &inode, changes)?;
        self.sync_if_asked(&inode)?;
        Ok(inode.attr(&self.engine))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Symlink => Ok(data::read_symlink(&self.engine, &inode)?),
            _ => Err(vfs::Error::Invalid),
        }
    }

    fn create(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Entry> {
        self.check_writable()?;
        let dir = self.inode(dir)?;
        let inode = create::create(&self.engine, who, &dir, name, what, perm)?;
        let entry = self.entry(&inode)?;
        self.sync_if_asked(&dir)?;
        Ok(entry)
    }

    fn tmpfile(&self, who: &Credentials, dir: Ino, perm: u32) -> Result<Entry> {
        self.check_writable()?;
        let inode = create::tmpfile(&self.engine, who, &self.inode(dir)?, perm)?;
        self.entry(&inode)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_writable()?;
        let (inode, dir) = (self.inode(ino)?, self.inode(dir)?);
        link::link(&self.engine, &inode, &dir, name)?;
        self.sync_if_asked(&dir)?;
        self.entry(&inode)
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        let dir = self.inode(dir)?;
        remove::unlink(&self.engine, &dir, name)?;
        self.sync_if_asked(&dir)
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        let dir = self.inode(dir)?;
        remove::rmdir(&self.engine, &dir, name)?;
        self.sync_if_asked(&dir)
    }

    fn rename(
        &self,
        from_dir: Ino,
        from_name: &[u8],
        to_dir: Ino,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.check_writable()?;
        let (from, to) = (self.inode(from_dir)?, self.inode(to_dir)?);
        let (source, target) = (
            Place {
                dir: &from,
                name: from_name,
            },
            Place {
                dir: &to,
                name: to_name,
            },
        );
        rename::rename(&self.engine, source, target, mode)?;
        self.sync_if_asked(&to)
    }

    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.check_alive()?;
        let dir = self.inode(dir)?;
        dir.require_dir()?;
        {
            let _io = dir.io.read();
            dir::list(&self.engine, &dir, from, sink)?;
        }
        attr::accessed(&self.engine, &dir);
        Ok(())
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check_alive()?;
        let inode = self.regular(ino)?;
        let count = {
            let _io = inode.io.read();
            data::read(&self.engine, &inode, offset, buf)?
        };
        attr::accessed(&self.engine, &inode);
        Ok(count)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64> {
        self.check_writable()?;
        let inode = self.regular(ino)?;
        let early = inode.size();
        let end = {
            let _io = inode.io.write();
            let (size, flags) = (inode.size(), inode.vfs_flags());
            let size = if sapwood_fault::planted(148) {
                early
            } else {
                size
            };
            let offset = if mode.append { size } else { offset };
            rules::check_write(flags, offset >= size, mode.writeback)?;
            let end = rules::range_end(offset, data.len() as u64)?;
            if data.is_empty() {
                return Ok(end);
            }
            attr::written(&self.engine, &inode, mode.kill_setid)?;
            if !mode.writeback {
                // Before the data, because its completion queues the inode item.
                inode.state.lock().content_changed(vfs::Timestamp::now());
            }
            data::write(&self.engine, &inode, offset, data, false)?;
            end
        };
        self.sync_if_asked(&inode)?;
        Ok(end)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        self.check_writable()?;
        let inode = self.regular(ino)?;
        if len == 0 {
            return Err(vfs::Error::Invalid);
        }
        rules::range_end(offset, len)?;
        {
            let _io = inode.io.write();
            let flags = inode.vfs_flags();
            let only_adds = matches!(mode, AllocMode::Allocate { .. });
            if flags.contains(InodeFlags::IMMUTABLE)
                || (flags.contains(InodeFlags::APPEND) && !only_adds)
            {
                return Err(vfs::Error::NotPermitted);
            }
            attr::written(&self.engine, &inode, false)?;
            data::fallocate(&self.engine, &inode, offset, len, mode)?;
            attr::content_changed(&self.engine, &inode)?;
        }
        self.sync_if_asked(&inode)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        self.check_alive()?;
        let inode = self.regular(ino)?;
        let _io = inode.io.read();
        Ok(data::seek(&self.engine, &inode, from)?)
    }

    fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
        mode: CopyMode,
    ) -> Result<u64> {
        self.check_writable()?;
        let (source, target) = (self.regular(from)?, self.regular(to)?);
        let copied = {
            let _guards = locks::lock_all(&[&source, &target]);
            let flags = target.vfs_flags();
            // Nobody can say of a copy that it appends.
            rules::check_write(flags, false, false)?;
            attr::written(&self.engine, &target, false)?;
            let copied = data::copy_range(
                &self.engine,
                (&source, from_offset),
                (&target, to_offset),
                len,
                mode,
            )?;
            attr::content_changed(&self.engine, &target)?;
            copied
        };
        self.sync_if_asked(&target)?;
        Ok(copied)
    }

    fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()> {
        self.check_alive()?;
        Ok(sync::fsync(&self.engine, &self.inode(ino)?, kind)?)
    }

    fn sync(&self) -> Result<()> {
        self.check_alive()?;
        Ok(sync::sync(&self.engine)?)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        rules::xattr_class(name)?;
        let _io = inode.io.read();
        xattr::get(&self.engine, &inode, name)?.ok_or(vfs::Error::NoAttribute)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()> {
        self.check_writable()?;
        let inode = self.inode(ino)?;
        xattr::set(&self.engine, &inode, name, value, mode)?;
        self.sync_if_asked(&inode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        let _io = inode.io.read();
        Ok(xattr::list(&self.engine, &inode)?)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        let inode = self.inode(ino)?;
        xattr::remove(&self.engine, &inode, name)?;
        self.sync_if_asked(&inode)
    }

    fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.check_writable()?;
        Ok(attr::set_flags(&self.engine, &self.inode(ino)?, flags)?)
    }

    fn fsxattr(&self, ino: Ino) -> Result<Fsxattr> {
        self.check_alive()?;
        Ok(attr::fsxattr(&*self.inode(ino)?))
    }

    fn set_fsxattr(&self, ino: Ino, value: &Fsxattr) -> Result<()> {
        self.check_writable()?;
        let inode = self.inode(ino)?;
        Ok(attr::set_fsxattr(&self.engine, &inode, value)?)
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        None
    }

    fn stats_json(&self) -> String {
        self.engine.counters.to_json(&self.engine)
    }

    fn first_error(&self) -> Option<String> {
        self.engine.health.first_error().map(str::to_owned)
    }

    fn unmount(&self) -> Result<()> {
        self.check_alive()?;
        if !self.engine.read_only() {
            for inode in self.engine.inodes.all() {
                if !inode.is_linked() {
                    inode.residence.clear_references();
                    reap::reap(&self.engine, &inode)?;
                }
            }
        }
        Ok(self.close()?)
    }
}
