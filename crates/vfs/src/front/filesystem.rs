//! The [`FileSystem`] of an [`Engine`]: the rules around each operation.

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

use sapwood_base::WriteData;

use super::engine::{Engine, Inode, InodeTable as _, NameInDir, lock_all};
use super::shared::Steps;
use super::{rename, xattr};
use crate::rules;
use crate::{
    AllocMode, Attr, Content, CopyMode, Credentials, DirEntry, Entry, Error, FileKind, FileSystem,
    FsStat, Fsxattr, Ino, InodeFlags, NewInode, RenameMode, Result, SeekFrom, SetAttr,
    SetXattrMode, SharedBytes, Subvolumes, SyncKind, TrimRange, WriteMode,
};

/// An engine with the rules around its operations: a [`FileSystem`].
///
/// An operation has one name here and in [`Engine`]. The method here takes inode numbers, checks
/// its arguments and takes locks. The method of the engine gets inodes that are found and locked.
#[derive(Debug)]
pub struct Front<E> {
    engine: E,
}

impl<E: Engine> Front<E> {
    /// Mounts a file system.
    ///
    /// # Errors
    /// Errors of the devices or the image, from the engine.
    pub fn open(
        devices: E::Devices,
        options: E::Options,
    ) -> std::result::Result<Self, E::OpenError> {
        Ok(Self {
            engine: E::open(devices, options)?,
        })
    }

    fn write_data(
        &self,
        ino: Ino,
        offset: u64,
        data: WriteData<'_>,
        mode: WriteMode,
    ) -> Result<u64> {
        self.engine.check_writable()?;
        let inode = self.engine.regular(ino)?;
        inode.check_changeable()?;
        let end = {
            let _io = inode.lock_exclusive();
            inode.check_content_changeable()?;
            let size = inode.size();
            let offset = if mode.append { size } else { offset };
            rules::check_write(inode.flags(), offset >= size, mode.writeback)?;
            let end = rules::range_end(offset, data.len() as u64)?;
            if data.is_empty() {
                return Ok(end);
            }
            self.engine.strip_privileges(&inode, mode.kill_setid)?;
            if !mode.writeback {
                // Before the data is written, because its completion queues the inode item.
                inode.content_changed(self.engine.now());
            }
            self.engine.write(&inode, offset, data)?;
            end
        };
        self.engine.sync_if_asked(&inode)?;
        Ok(end)
    }
}

/// The engine, for operations of one format only.
impl<E> Deref for Front<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.engine
    }
}

impl<E: Engine> FileSystem for Front<E> {
    fn kind(&self) -> &'static str {
        self.engine.kind()
    }

    fn root(&self) -> Ino {
        self.engine.root()
    }

    fn read_only(&self) -> bool {
        self.engine.read_only()
    }

    fn statfs(&self) -> Result<FsStat> {
        self.engine.check_open()?;
        self.engine.statfs()
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.engine.check_open()?;
        let dir = self.engine.directory(dir)?;
        rules::check_name(name)?;
        loop {
            let (_, inode) = self.engine.lookup(&dir, name)?.ok_or(Error::NotFound)?;
            match self.engine.entry(&inode) {
                // The last name of the inode was removed between the lookup and the reference.
                Err(Error::Stale) if !self.engine.refuses_changes() => {}
                other => return other,
            }
        }
    }

    fn reference(&self, ino: Ino) -> Result<Entry> {
        self.engine.check_open()?;
        let inode = self.engine.live(ino)?;
        if inode.is_detached() {
            Err(Error::Stale)
        } else {
            self.engine.entry(&inode)
        }
    }

    fn parent(&self, dir: Ino) -> Result<Entry> {
        self.engine.check_open()?;
        let dir = self.engine.directory(dir)?;
        let parent = {
            let _io = dir.lock_shared();
            self.engine.parent(&dir)?
        };
        self.engine.entry(&parent)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Some(inode) = self.engine.inodes().forget(ino, count) else {
            return;
        };
        if !inode.is_linked()
            && let Err(error) = self.engine.reap(&inode)
        {
            // The orphan item stays: the next mount deletes the inode.
            log::warn!("{inode:?}: not deleted: {error}");
        }
    }

    fn referenced(&self) -> Vec<Ino> {
        self.engine.inodes().referenced()
    }

    fn is_crowded(&self, ino: Ino) -> bool {
        self.engine.inodes().is_crowded(ino)
    }

    fn crowd(&self) -> Vec<Ino> {
        self.engine.inodes().crowd()
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.engine.check_open()?;
        Ok(self.engine.getattr(&self.engine.live(ino)?))
    }

    fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.engine.check_writable()?;
        let inode = self.engine.live(ino)?;
        if *changes != SetAttr::default() {
            self.engine.change_attributes(&inode, changes)?;
        }
        self.engine.sync_if_asked(&inode)?;
        Ok(self.engine.getattr(&inode))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.engine.check_open()?;
        let inode = self.engine.live(ino)?;
        match inode.kind() {
            FileKind::Symlink => self.engine.readlink(&inode),
            _ => Err(Error::Invalid),
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
        let made = new_name(&self.engine, dir, name, &what, |place, vacancy| {
            self.engine
                .create(who, place, vacancy, what, perm)
                .map(Some)
        })?;
        // The closure makes one.
        made.ok_or(Error::Invalid)
    }

    fn most_filled(&self) -> u64 {
        self.engine.most_filled()
    }

    fn create_filled(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        perm: u32,
        content: &Content<'_>,
    ) -> Result<Option<Entry>> {
        if content.data.len() as u64 > self.engine.most_filled() {
            return Ok(None);
        }
        new_name(
            &self.engine,
            dir,
            name,
            &NewInode::Regular,
            |place, vacancy| {
                self.engine
                    .create_filled(who, place, vacancy, perm, content)
            },
        )
    }

    fn tmpfile(&self, who: &Credentials, dir: Ino, perm: u32) -> Result<Entry> {
        self.engine.check_writable()?;
        let dir = self.engine.directory(dir)?;
        dir.check_changeable()?;
        let inode = {
            let _io = dir.lock_shared();
            if !dir.takes_names() {
                return Err(Error::NotFound);
            }
            rules::check_add_name(dir.flags())?;
            self.engine.tmpfile(who, &dir, perm)?
        };
        self.engine.entry(&inode)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.engine.check_writable()?;
        let (inode, dir) = (self.engine.live(ino)?, self.engine.live(dir)?);
        rules::check_name(name)?;
        rules::check_directory(dir.kind())?;
        dir.check_changeable()?;
        {
            let _guards = lock_all(&[&inode, &dir]);
            if !dir.takes_names() {
                return Err(Error::NotFound);
            }
            self.engine.vacancy(&dir, name)?;
            rules::check_add_name(dir.flags())?;
            self.engine.check_same_tree(&inode, &dir)?;
            rules::check_link(inode.kind(), inode.flags())?;
            if !inode.is_linkable() {
                return Err(Error::NotFound);
            }
            self.engine.link(&inode, NameInDir { dir: &dir, name })?;
        }
        self.engine.sync_if_asked(&dir)?;
        self.engine.entry(&inode)
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let (engine, dir) = (&self.engine, parent_of_name(&self.engine, dir, name)?);
        engine.unlink(NameInDir { dir: &dir, name })?;
        engine.sync_if_asked(&dir)
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let (engine, dir) = (&self.engine, parent_of_name(&self.engine, dir, name)?);
        engine.rmdir(NameInDir { dir: &dir, name })?;
        engine.sync_if_asked(&dir)
    }

    fn rename(
        &self,
        from_dir: Ino,
        from_name: &[u8],
        to_dir: Ino,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.engine.check_writable()?;
        let (from, to) = (self.engine.live(from_dir)?, self.engine.live(to_dir)?);
        let source = NameInDir {
            dir: &from,
            name: from_name,
        };
        let target = NameInDir {
            dir: &to,
            name: to_name,
        };
        rename::rename(&self.engine, source, target, mode)?;
        self.engine.sync_if_asked(&to)?;
        if from_dir == to_dir {
            Ok(())
        } else {
            self.engine.sync_if_asked(&from)
        }
    }

    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.engine.check_open()?;
        let dir = self.engine.directory(dir)?;
        {
            let _io = dir.lock_shared();
            self.engine.readdir(&dir, from, sink)?;
        }
        self.engine.accessed(&dir)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.engine.check_open()?;
        let inode = self.engine.regular(ino)?;
        let count = {
            let _io = inode.lock_shared();
            self.engine.read(&inode, offset, buf)?
        };
        self.engine.accessed(&inode)?;
        Ok(count)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64> {
        self.write_data(ino, offset, data.into(), mode)
    }

    fn write_shared(
        &self,
        ino: Ino,
        offset: u64,
        data: SharedBytes,
        mode: WriteMode,
    ) -> Result<u64> {
        self.write_data(ino, offset, WriteData::Shared(data), mode)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        self.engine.check_writable()?;
        let inode = self.engine.regular(ino)?;
        inode.check_changeable()?;
        if len == 0 {
            return Err(Error::Invalid);
        }
        rules::range_end(offset, len)?;
        {
            let _io = inode.lock_exclusive();
            inode.check_content_changeable()?;
            rules::check_allocate(inode.flags(), mode)?;
            self.engine.strip_privileges(&inode, false)?;
            self.engine.fallocate(&inode, offset, len, mode)?;
            self.engine.store_content_change(&inode)?;
        }
        self.engine.sync_if_asked(&inode)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        self.engine.check_open()?;
        let inode = self.engine.regular(ino)?;
        let _io = inode.lock_shared();
        let size = inode.size();
        let (SeekFrom::Data(offset) | SeekFrom::Hole(offset)) = from;
        let wants_data = matches!(from, SeekFrom::Data(_));
        let mut at = offset;
        while at < size {
            let (is_data, end) = self.engine.stretch(&inode, at, size)?;
            if is_data == wants_data {
                return Ok(at);
            }
            at = end;
        }
        // The end of the file counts as a hole.
        if offset >= size || wants_data {
            Err(Error::NoSuchOffset)
        } else {
            Ok(size)
        }
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
        self.engine.check_writable()?;
        let (source, target) = (self.engine.regular(from)?, self.engine.regular(to)?);
        target.check_changeable()?;
        let copied = {
            let _guards = lock_all(&[&source, &target]);
            target.check_content_changeable()?;
            // A copy is never an append.
            rules::check_write(target.flags(), false, false)?;
            self.engine.strip_privileges(&target, false)?;
            let (from, to) = ((&source, from_offset), (&target, to_offset));
            let copied = self.engine.copy_range(from, to, len, mode)?;
            self.engine.store_content_change(&target)?;
            copied
        };
        self.engine.sync_if_asked(&target)?;
        Ok(copied)
    }

    fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()> {
        self.engine.check_open()?;
        self.engine.fsync(&self.engine.live(ino)?, kind)
    }

    fn sync(&self) -> Result<()> {
        self.engine.check_open()?;
        self.engine.sync()
    }

    fn trim(&self, range: &TrimRange) -> Result<u64> {
        self.engine.check_writable()?;
        self.engine.trim(range)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.engine.check_open()?;
        let inode = self.engine.with_attributes(ino)?;
        rules::xattr_class(name)?;
        let _io = inode.lock_shared();
        self.engine
            .getxattr(&inode, name)?
            .ok_or(Error::NoAttribute)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()> {
        xattr::set(&self.engine, ino, (name, value), mode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.engine.check_open()?;
        let inode = self.engine.live(ino)?;
        let _io = inode.lock_shared();
        self.engine.listxattr(&inode)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        xattr::remove(&self.engine, ino, name)
    }

    fn set_flags(&self, ino: Ino, asked: InodeFlags) -> Result<()> {
        self.engine.check_writable()?;
        let inode = self.engine.live(ino)?;
        change_flags(&self.engine, &inode, asked)
    }

    fn forgo_checksums(&self, ino: Ino) -> Result<()> {
        self.engine.check_writable()?;
        let inode = self.engine.live(ino)?;
        inode.check_changeable()?;
        let _io = inode.lock_exclusive();
        if inode.kind() == FileKind::Regular && inode.size() == 0 {
            self.engine.forgo_checksums(&inode)
        } else {
            Err(Error::Invalid)
        }
    }

    fn store_verity(&self, ino: Ino, tree: &[u8], descriptor: &[u8]) -> Result<()> {
        self.engine.check_writable()?;
        let inode = self.engine.regular(ino)?;
        let _io = inode.lock_exclusive();
        self.engine.store_verity(&inode, tree, descriptor)
    }

    fn verity_descriptor(&self, ino: Ino) -> Result<Vec<u8>> {
        self.engine.check_open()?;
        let inode = self.engine.regular(ino)?;
        let _io = inode.lock_shared();
        self.engine.verity_descriptor(&inode)
    }

    fn read_verity_tree(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.engine.check_open()?;
        let inode = self.engine.regular(ino)?;
        let _io = inode.lock_shared();
        self.engine.read_verity_tree(&inode, offset, buf)
    }

    fn fsxattr(&self, ino: Ino) -> Result<Fsxattr> {
        self.engine.check_open()?;
        Ok(self.engine.fsxattr(&*self.engine.live(ino)?))
    }

    fn set_fsxattr(&self, ino: Ino, value: &Fsxattr) -> Result<()> {
        self.engine.check_writable()?;
        let inode = self.engine.live(ino)?;
        let own = self.engine.own_fsxattr(value);
        let flags = rules::flags_of_fsxattr(inode.flags(), &own)?;
        self.engine.check_fsxattr(&inode, value)?;
        change_flags(&self.engine, &inode, flags)?;
        self.engine.set_fsxattr(&inode, value)
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        self.engine.subvolumes()
    }

    fn stats_json(&self) -> String {
        self.engine.stats_json()
    }

    fn first_error(&self) -> Option<String> {
        self.engine.first_error()
    }

    fn unmount(&self) -> Result<()> {
        self.engine.check_open()?;
        if !self.engine.refuses_changes() {
            for inode in self.engine.inodes().all() {
                if !inode.is_linked() {
                    inode.clear_references();
                    self.engine.reap(&inode)?;
                }
            }
        }
        self.engine.unmount()
    }
}

/// Makes an inode, unless `make` refuses to, and its name.
fn new_name<E: Engine>(
    engine: &E,
    dir: Ino,
    name: &[u8],
    what: &NewInode<'_>,
    make: impl FnOnce(NameInDir<'_, E::Inode>, E::Vacancy) -> Result<Option<Arc<E::Inode>>>,
) -> Result<Option<Entry>> {
    engine.check_writable()?;
    let dir = engine.live(dir)?;
    rules::check_name(name)?;
    rules::check_directory(dir.kind())?;
    dir.check_changeable()?;
    if let NewInode::Symlink(target) = what {
        rules::check_target(target)?;
        if target.len() > engine.longest_target() {
            return Err(Error::NameTooLong);
        }
    }
    let entry = {
        let _io = dir.lock_exclusive();
        if !dir.takes_names() {
            return Err(Error::NotFound);
        }
        let vacancy = engine.vacancy(&dir, name)?;
        rules::check_add_name(dir.flags())?;
        let Some(inode) = make(NameInDir { dir: &dir, name }, vacancy)? else {
            return Ok(None);
        };
        // Before another thread can remove the name.
        engine.entry(&inode)?
    };
    engine.sync_if_asked(&dir)?;
    Ok(Some(entry))
}

/// The directory that a name is removed from.
fn parent_of_name<E: Engine>(engine: &E, dir: Ino, name: &[u8]) -> Result<Arc<E::Inode>> {
    engine.check_writable()?;
    let dir = engine.live(dir)?;
    rules::check_name(name)?;
    rules::check_directory(dir.kind())?;
    Ok(dir)
}

fn change_flags<E: Engine>(engine: &E, inode: &Arc<E::Inode>, asked: InodeFlags) -> Result<()> {
    engine.check_flags(asked)?;
    inode.check_changeable()?;
    let _io = inode.lock_exclusive();
    let flags = rules::set_flags(inode.kind(), inode.size(), inode.flags(), asked)?;
    engine.set_flags(inode, flags)
}
