//! The [`FileSystem`] trait for btrfs: from numbers to inodes, references, and errors for callers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs};
use sapwood_vfs::{
    AllocMode, Attr, CopyMode, Credentials, DirEntry, Entry, FileKind, FileSystem, FsStat, Fsxattr,
    Ino, InodeFlags, NewInode, RenameMode, Result, SeekFrom, SetAttr, SetXattrMode, Subvolumes,
    SyncKind, WriteMode,
};

use super::inode::Inode;
use super::rename::Place;
use super::{attr, create, dir, link, orphan, remove, rename, sync, top_dir, xattr};
use crate::{Btrfs, Error, data};

impl Btrfs {
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

    /// An inode that can have attributes: the stub of a subvolume has none.
    fn with_xattrs(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        match inode.is_stub() {
            true => Err(vfs::Error::NotSupported),
            false => Ok(inode),
        }
    }

    /// Takes a reference for the caller, unless the inode was deleted meanwhile.
    pub(crate) fn entry(&self, inode: &Arc<Inode>) -> Result<Entry> {
        inode.residence.refer(1);
        if inode.state.lock().dying {
            return Err(vfs::Error::Stale);
        }
        Ok(Entry {
            attr: inode.attr(self.engine.sectorsize),
        })
    }

    fn check_alive(&self) -> Result<()> {
        Ok(self.engine.health.check_open().map_err(Error::from)?)
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

impl FileSystem for Btrfs {
    fn kind(&self) -> &'static str {
        "btrfs"
    }

    fn root(&self) -> Ino {
        self.engine
            .inodes
            .numbers()
            .ino(self.top.id(), top_dir(&self.top))
    }

    fn read_only(&self) -> bool {
        self.engine.read_only() || self.top.is_read_only()
    }

    fn statfs(&self) -> Result<FsStat> {
        self.check_alive()?;
        if let Err(error) = self.engine.run_frees() {
            log::warn!("free space: {error}");
        }
        Ok(self.engine.space.statfs(&self.engine.fsid, self.top.id()))
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_alive()?;
        let dir = self.inode(dir)?;
        loop {
            let inode = dir::lookup(&self.engine, &dir, name)?;
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
        if inode.root.is_dead() {
            return Err(vfs::Error::Stale);
        }
        self.entry(&inode)
    }

    fn parent(&self, dir: Ino) -> Result<Entry> {
        self.check_alive()?;
        self.entry(&dir::parent(&self.engine, &self.inode(dir)?)?)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Some(inode) = self.engine.inodes.release(ino, count) else {
            return;
        };
        if !inode.is_linked()
            && let Err(error) = orphan::reap(&self.engine, &inode)
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
        Ok(self.inode(ino)?.attr(self.engine.sectorsize))
    }

    fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.check_writable()?;
        let inode = self.inode(ino)?;
        attr::setattr(&self.engine, &inode, changes)?;
        self.sync_if_asked(&inode)?;
        Ok(inode.attr(self.engine.sectorsize))
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
        self.sync_if_asked(&to)?;
        match from_dir == to_dir || sapwood_fault::planted(70) {
            true => Ok(()),
            false => self.sync_if_asked(&from),
        }
    }

    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.check_alive()?;
        let dir = self.inode(dir)?;
        dir::readdir(&self.engine, &dir, from, sink)?;
        Ok(attr::accessed(&self.engine, &dir)?)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check_alive()?;
        let inode = self.regular(ino)?;
        let count = {
            let _io = inode.io.read();
            data::read(&self.engine, &inode, offset, buf)?
        };
        attr::accessed(&self.engine, &inode)?;
        Ok(count)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64> {
        self.check_writable()?;
        let inode = self.regular(ino)?;
        inode.require_writable()?;
        let early = inode.state.lock().size;
        let end = {
            let _io = inode.io.write();
            let (size, flags) = {
                let state = inode.state.lock();
                (state.size, state.vfs_flags())
            };
            let size = if sapwood_fault::planted(51) {
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
            data::write(&self.engine, &inode, offset, data)?;
            end
        };
        self.sync_if_asked(&inode)?;
        Ok(end)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        self.check_writable()?;
        let inode = self.regular(ino)?;
        inode.require_writable()?;
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
        target.require_writable()?;
        let copied = {
            let _guards = super::locks::lock_all(&[&source, &target]);
            let flags = target.vfs_flags();
            // Nobody can say of a copy that it appends.
            rules::check_write(flags, false, false)?;
            attr::written(&self.engine, &target, false)?;
            let copied = data::copy_range(
                &self.engine,
                &source,
                from_offset,
                &target,
                to_offset,
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
        let begun = Instant::now();
        let done = sync::fsync(&self.engine, &self.inode(ino)?, kind);
        self.engine.counters.fsync_latency.record(begun.elapsed());
        Ok(done?)
    }

    fn sync(&self) -> Result<()> {
        self.check_alive()?;
        Ok(sync::sync(&self.engine)?)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.check_alive()?;
        let inode = self.with_xattrs(ino)?;
        rules::xattr_class(name)?;
        xattr::get(&self.engine, &inode, name)?.ok_or(vfs::Error::NoAttribute)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()> {
        self.check_writable()?;
        let inode = self.with_xattrs(ino)?;
        xattr::set(&self.engine, &inode, name, value, mode)?;
        self.sync_if_asked(&inode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.check_alive()?;
        Ok(xattr::list(&self.engine, &*self.inode(ino)?)?)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        let inode = self.with_xattrs(ino)?;
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
        let current = inode.vfs_flags();
        let flags = rules::flags_of_fsxattr(current, value)?;
        Ok(attr::set_flags(&self.engine, &inode, flags)?)
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        Some(self)
    }

    fn stats_json(&self) -> String {
        self.engine
            .counters
            .to_json(self.engine.health.first_error())
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
                    orphan::reap(&self.engine, &inode)?;
                }
            }
        }
        Ok(self.close()?)
    }
}
