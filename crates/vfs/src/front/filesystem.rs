//! Implements the [`FileSystem`] trait for every [`Engine`].

use std::ops::ControlFlow;
use std::sync::Arc;

use super::engine::{AttributeChange, Engine, Inode, Place, lock_all};
use super::rename;
use super::shared::Front;
use crate::rules::{self, XattrClass};
use crate::{
    AllocMode, Attr, Content, CopyMode, Credentials, DirEntry, Entry, Error, FileKind, FileSystem,
    FsStat, Fsxattr, Ino, InodeFlags, NewInode, RenameMode, Result, SeekFrom, SetAttr,
    SetXattrMode, Subvolumes, SyncKind, TrimRange, WriteMode,
};

impl<E: Engine> FileSystem for E {
    fn kind(&self) -> &'static str {
        Engine::kind(self)
    }

    fn root(&self) -> Ino {
        Engine::root(self)
    }

    fn read_only(&self) -> bool {
        self.shows_read_only()
    }

    fn statfs(&self) -> Result<FsStat> {
        self.check_open()?;
        self.statistics()
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_open()?;
        let dir = self.directory(dir)?;
        rules::check_name(name)?;
        loop {
            let (_, inode) = self.find(&dir, name)?.ok_or(Error::NotFound)?;
            match self.entry(&inode) {
                // The last name of the inode was removed between the lookup and the reference.
                Err(Error::Stale) if !self.is_read_only() => {}
                other => return other,
            }
        }
    }

    fn reference(&self, ino: Ino) -> Result<Entry> {
        self.check_open()?;
        let inode = self.live(ino)?;
        match inode.is_detached() {
            true => Err(Error::Stale),
            false => self.entry(&inode),
        }
    }

    fn parent(&self, dir: Ino) -> Result<Entry> {
        self.check_open()?;
        let dir = self.directory(dir)?;
        let parent = {
            let _io = dir.lock_shared();
            self.parent_of(&dir)?
        };
        self.entry(&parent)
    }

    fn forget(&self, ino: Ino, count: u64) {
        let Some(inode) = self.release(ino, count) else {
            return;
        };
        if !inode.is_linked()
            && let Err(error) = self.reap(&inode)
        {
            // The orphan item stays: the next mount deletes the inode.
            log::warn!("{inode:?}: not deleted: {error}");
        }
    }

    fn referenced(&self) -> Vec<Ino> {
        self.referenced_inodes()
    }

    fn is_crowded(&self, ino: Ino) -> bool {
        self.has_crowd(ino)
    }

    fn crowd(&self) -> Vec<Ino> {
        self.crowded_inodes()
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.check_open()?;
        Ok(self.attributes(&self.live(ino)?))
    }

    fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.check_writable()?;
        let inode = self.live(ino)?;
        if *changes != SetAttr::default() {
            self.change_attributes(&inode, changes)?;
        }
        self.sync_if_asked(&inode)?;
        Ok(self.attributes(&inode))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.check_open()?;
        let inode = self.live(ino)?;
        match inode.kind() {
            FileKind::Symlink => self.target_of(&inode),
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
        let made = new_name(self, dir, name, &what, |place, vacancy| {
            self.make(who, place, vacancy, what, perm).map(Some)
        })?;
        // The closure makes one.
        made.ok_or(Error::Invalid)
    }

    fn most_filled(&self) -> u64 {
        self.most_content()
    }

    fn create_filled(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        perm: u32,
        content: &Content<'_>,
    ) -> Result<Option<Entry>> {
        if content.data.len() as u64 > self.most_content() {
            return Ok(None);
        }
        new_name(self, dir, name, &NewInode::Regular, |place, vacancy| {
            self.make_filled(who, place, vacancy, perm, content)
        })
    }

    fn tmpfile(&self, who: &Credentials, dir: Ino, perm: u32) -> Result<Entry> {
        self.check_writable()?;
        let dir = self.directory(dir)?;
        dir.check_changeable()?;
        let inode = {
            let _io = dir.lock_shared();
            if !dir.takes_names() {
                return Err(Error::NotFound);
            }
            rules::check_add_name(dir.flags())?;
            self.make_unnamed(who, &dir, perm)?
        };
        self.entry(&inode)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_writable()?;
        let (inode, dir) = (self.live(ino)?, self.live(dir)?);
        rules::check_name(name)?;
        rules::check_directory(dir.kind())?;
        dir.check_changeable()?;
        {
            let _guards = lock_all(&[&inode, &dir]);
            if !dir.takes_names() {
                return Err(Error::NotFound);
            }
            self.vacancy(&dir, name)?;
            rules::check_add_name(dir.flags())?;
            self.check_same_tree(&inode, &dir)?;
            rules::check_link(inode.kind(), inode.flags())?;
            if !inode.is_linkable() {
                return Err(Error::NotFound);
            }
            self.add_link(&inode, Place { dir: &dir, name })?;
        }
        self.sync_if_asked(&dir)?;
        self.entry(&inode)
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        remove(self, dir, name, false)
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        remove(self, dir, name, true)
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
        let (from, to) = (self.live(from_dir)?, self.live(to_dir)?);
        let source = Place {
            dir: &from,
            name: from_name,
        };
        let target = Place {
            dir: &to,
            name: to_name,
        };
        rename::rename(self, source, target, mode)?;
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
        self.check_open()?;
        let dir = self.directory(dir)?;
        {
            let _io = dir.lock_shared();
            self.list(&dir, from, sink)?;
        }
        self.accessed(&dir)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.check_open()?;
        let inode = self.regular(ino)?;
        let count = {
            let _io = inode.lock_shared();
            self.read_data(&inode, offset, buf)?
        };
        self.accessed(&inode)?;
        Ok(count)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64> {
        self.check_writable()?;
        let inode = self.regular(ino)?;
        inode.check_changeable()?;
        let early = inode.size();
        let end = {
            let _io = inode.lock_exclusive();
            let size = match sapwood_fault::planted(51) {
                true => early,
                false => inode.size(),
            };
            let offset = if mode.append { size } else { offset };
            rules::check_write(inode.flags(), offset >= size, mode.writeback)?;
            let end = rules::range_end(offset, data.len() as u64)?;
            if data.is_empty() {
                return Ok(end);
            }
            self.strip_privileges(&inode, mode.kill_setid)?;
            if !mode.writeback {
                // Before the data is written, because its completion queues the inode item.
                inode.content_changed(self.now());
            }
            self.write_data(&inode, offset, data)?;
            end
        };
        self.sync_if_asked(&inode)?;
        Ok(end)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        self.check_writable()?;
        let inode = self.regular(ino)?;
        inode.check_changeable()?;
        if len == 0 {
            return Err(Error::Invalid);
        }
        rules::range_end(offset, len)?;
        {
            let _io = inode.lock_exclusive();
            rules::check_allocate(inode.flags(), mode)?;
            self.strip_privileges(&inode, false)?;
            self.allocate_range(&inode, offset, len, mode)?;
            self.store_content_change(&inode)?;
        }
        self.sync_if_asked(&inode)
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        self.check_open()?;
        let inode = self.regular(ino)?;
        let _io = inode.lock_shared();
        let size = inode.size();
        let (SeekFrom::Data(offset) | SeekFrom::Hole(offset)) = from;
        let wants_data = matches!(from, SeekFrom::Data(_));
        let mut at = offset;
        while at < size {
            let (is_data, end) = self.stretch(&inode, at, size)?;
            if is_data == wants_data {
                return Ok(at);
            }
            at = end;
        }
        // The end of the file counts as a hole.
        match offset >= size || wants_data {
            true => Err(Error::NoSuchOffset),
            false => Ok(size),
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
        self.check_writable()?;
        let (source, target) = (self.regular(from)?, self.regular(to)?);
        target.check_changeable()?;
        let copied = {
            let _guards = lock_all(&[&source, &target]);
            // A copy is never an append.
            rules::check_write(target.flags(), false, false)?;
            self.strip_privileges(&target, false)?;
            let (from, to) = ((&source, from_offset), (&target, to_offset));
            let copied = self.copy_data(from, to, len, mode)?;
            self.store_content_change(&target)?;
            copied
        };
        self.sync_if_asked(&target)?;
        Ok(copied)
    }

    fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()> {
        self.check_open()?;
        self.make_durable(&self.live(ino)?, kind)
    }

    fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.make_all_durable()
    }

    fn trim(&self, range: &TrimRange) -> Result<u64> {
        self.check_writable()?;
        self.discard_free(range)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.check_open()?;
        let inode = self.with_attributes(ino)?;
        rules::xattr_class(name)?;
        let _io = inode.lock_shared();
        self.attribute(&inode, name)?.ok_or(Error::NoAttribute)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()> {
        self.check_writable()?;
        let inode = self.with_attributes(ino)?;
        let class = rules::xattr_class(name)?;
        self.check_attribute(class, name, value)?;
        inode.check_changeable()?;
        {
            let _io = inode.lock_exclusive();
            let checked = || rules::check_xattr_change(inode.kind(), inode.flags(), class, false);
            match class {
                XattrClass::AccessAcl | XattrClass::DefaultAcl => {
                    self.set_acl(&inode, name, class, value)?;
                }
                XattrClass::Btrfs => {
                    checked()?;
                    self.set_property(&inode, name, value, mode)?;
                }
                _ => {
                    checked()?;
                    let change = AttributeChange {
                        name,
                        class,
                        value: Some(value),
                        mode,
                        perm: None,
                    };
                    self.change_attribute(&inode, change)?;
                }
            }
        }
        self.sync_if_asked(&inode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.check_open()?;
        let inode = self.live(ino)?;
        let _io = inode.lock_shared();
        self.attribute_names(&inode)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        let inode = self.with_attributes(ino)?;
        let class = rules::xattr_class(name)?;
        inode.check_changeable()?;
        {
            let _io = inode.lock_exclusive();
            rules::check_xattr_change(inode.kind(), inode.flags(), class, true)?;
            let mode = SetXattrMode::Replace;
            if class == XattrClass::Btrfs {
                self.set_property(&inode, name, b"", mode)?;
            } else if self.attribute(&inode, name)?.is_some() {
                let change = AttributeChange {
                    name,
                    class,
                    value: None,
                    mode,
                    perm: None,
                };
                self.change_attribute(&inode, change)?;
            } else if !matches!(class, XattrClass::AccessAcl | XattrClass::DefaultAcl) {
                // Removing an ACL that is equivalent to the mode is not an error.
                return Err(Error::NoAttribute);
            }
        }
        self.sync_if_asked(&inode)
    }

    fn set_flags(&self, ino: Ino, asked: InodeFlags) -> Result<()> {
        self.check_writable()?;
        let inode = self.live(ino)?;
        change_flags(self, &inode, asked)
    }

    fn forgo_checksums(&self, ino: Ino) -> Result<()> {
        self.check_writable()?;
        let inode = self.live(ino)?;
        inode.check_changeable()?;
        let _io = inode.lock_exclusive();
        match inode.kind() == FileKind::Regular && inode.size() == 0 {
            true => self.store_without_checksums(&inode),
            false => Err(Error::Invalid),
        }
    }

    fn fsxattr(&self, ino: Ino) -> Result<Fsxattr> {
        self.check_open()?;
        Ok(self.extended_flags(&*self.live(ino)?))
    }

    fn set_fsxattr(&self, ino: Ino, value: &Fsxattr) -> Result<()> {
        self.check_writable()?;
        let inode = self.live(ino)?;
        let own = self.own_extended_flags(value);
        let flags = rules::flags_of_fsxattr(inode.flags(), &own)?;
        self.check_extended_flags(&inode, value)?;
        change_flags(self, &inode, flags)?;
        self.set_extended_flags(&inode, value)
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        self.subvolume_operations()
    }

    fn stats_json(&self) -> String {
        self.counters_json()
    }

    fn first_error(&self) -> Option<String> {
        self.first_failure()
    }

    fn unmount(&self) -> Result<()> {
        self.check_open()?;
        if !self.is_read_only() {
            for inode in self.inodes() {
                if !inode.is_linked() {
                    inode.clear_references();
                    self.reap(&inode)?;
                }
            }
        }
        self.shut_down()
    }
}

/// Makes an inode, unless `make` refuses to, and its name.
fn new_name<E: Engine>(
    engine: &E,
    dir: Ino,
    name: &[u8],
    what: &NewInode<'_>,
    make: impl FnOnce(Place<'_, E::Inode>, E::Vacancy) -> Result<Option<Arc<E::Inode>>>,
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
        let Some(inode) = make(Place { dir: &dir, name }, vacancy)? else {
            return Ok(None);
        };
        // Before another thread can remove the name.
        engine.entry(&inode)?
    };
    engine.sync_if_asked(&dir)?;
    Ok(Some(entry))
}

fn remove<E: Engine>(engine: &E, dir: Ino, name: &[u8], directory: bool) -> Result<()> {
    engine.check_writable()?;
    let dir = engine.live(dir)?;
    rules::check_name(name)?;
    rules::check_directory(dir.kind())?;
    engine.remove(Place { dir: &dir, name }, directory)?;
    engine.sync_if_asked(&dir)
}

fn change_flags<E: Engine>(engine: &E, inode: &Arc<E::Inode>, asked: InodeFlags) -> Result<()> {
    engine.check_flags(asked)?;
    inode.check_changeable()?;
    let _io = inode.lock_exclusive();
    let flags = rules::set_flags(inode.kind(), inode.size(), inode.flags(), asked)?;
    engine.store_flags(inode, flags)
}
