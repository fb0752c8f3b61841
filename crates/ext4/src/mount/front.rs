//! Implements the [front]'s interface by calls of the engine's modules.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_base::WriteData;
use sapwood_block::Device;
use sapwood_vfs::front::{self, AttributeChange};
use sapwood_vfs::rules::XattrClass;
use sapwood_vfs::{
    self as vfs, AllocMode, Attr, Content, CopyMode, Credentials, DirEntry, FileKind, FsStat,
    Fsxattr, Ino, InodeFlags, NewInode, RenameMode, Result, SetAttr, SyncKind, Timestamp,
    TrimRange, acl,
};

use super::{Mount, sync};
use crate::inode::{Inode, vfs_time};
use crate::namespace::create::NameInDir;
use crate::namespace::rename;
use crate::namespace::{attr, create, filled, reap, remove};
use crate::{Error, Options, block_alloc, data, dir, xattr};

impl Mount {
    /// The inode of a number.
    #[cfg(test)]
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        front::Steps::live(self, ino)
    }
}

impl front::Inode for Inode {
    fn kind(&self) -> FileKind {
        self.kind
    }

    fn flags(&self) -> InodeFlags {
        self.vfs_flags()
    }

    fn perm(&self) -> u32 {
        self.state.lock().mode() & 0o7777
    }

    fn size(&self) -> u64 {
        self.size()
    }

    fn times(&self) -> (Timestamp, Timestamp, Timestamp) {
        let state = self.state.lock();
        let raw = &state.raw;
        (
            vfs_time(raw.atime()),
            vfs_time(raw.mtime()),
            vfs_time(raw.ctime()),
        )
    }

    fn content_changed(&self, now: Timestamp) {
        self.state.lock().content_changed(now);
    }

    fn is_linked(&self) -> bool {
        self.is_linked()
    }

    fn is_linkable(&self) -> bool {
        let state = self.state.lock();
        state.raw.links() > 0 || state.linkable
    }

    fn is_dying(&self) -> bool {
        self.state.lock().dying
    }

    fn check_content_changeable(&self) -> Result<()> {
        Ok(self.check_changeable()?)
    }

    fn refer(&self) {
        self.residence.refer(1);
    }

    fn clear_references(&self) {
        self.residence.clear_references();
    }

    fn lock_key(&self) -> (u64, u64) {
        (self.ino.into(), 0)
    }

    fn lock_shared(&self) -> impl Sized {
        self.io.read()
    }

    fn lock_exclusive(&self) -> impl Sized {
        self.io.write()
    }
}

/// The front's result, without the parts that only the front needs.
fn found<'a>(found: &'a front::Found<'a, Mount>) -> rename::Found<'a> {
    rename::Found {
        place: found.place,
        inode: &found.inode,
    }
}

impl front::Engine for Mount {
    type Inode = Inode;
    type Target = ();
    type Vacancy = dir::Absent;
    type Devices = Arc<dyn Device>;
    type Options = Options;
    type OpenError = Error;

    fn open(device: Arc<dyn Device>, options: Options) -> crate::Result<Self> {
        Self::open(device, options)
    }

    fn now(&self) -> Timestamp {
        self.engine.now()
    }

    fn kind(&self) -> &'static str {
        "ext4"
    }

    fn root(&self) -> Ino {
        Ino(sapwood_ext4_format::special_ino::ROOT.into())
    }

    fn check_open(&self) -> Result<()> {
        Ok(self.engine.health.check_open().map_err(Error::from)?)
    }

    fn refuses_changes(&self) -> bool {
        self.engine.read_only()
    }

    fn statfs(&self) -> Result<FsStat> {
        let found = self.engine.space.statfs();
        Ok(if self.engine.options.minix_df {
            FsStat {
                blocks: self.engine.geometry.blocks_count(),
                ..found
            }
        } else {
            found
        })
    }

    fn stats_json(&self) -> String {
        self.engine
            .counters
            .to_json(&self.engine.journal, &self.engine.health)
    }

    fn first_error(&self) -> Option<String> {
        self.engine.health.first_error().map(str::to_owned)
    }

    fn unmount(&self) -> Result<()> {
        Ok(self.close()?)
    }

    fn inode_by_number(&self, ino: Ino) -> Result<Arc<Inode>> {
        Ok(self.engine.inodes.by_number(&self.engine, ino)?)
    }

    fn inodes(&self) -> &impl front::InodeTable<Inode = Inode> {
        &self.engine.inodes
    }

    fn reap(&self, inode: &Arc<Inode>) -> Result<()> {
        Ok(reap::reap(&self.engine, inode)?)
    }

    fn getattr(&self, inode: &Arc<Inode>) -> Attr {
        inode.attr(&self.engine)
    }

    fn truncate(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        // Also if the length stays, because this frees blocks after the end.
        Ok(data::truncate(&self.engine, inode, size)?)
    }

    fn setattr(
        &self,
        inode: &Arc<Inode>,
        changes: &SetAttr,
        access: Option<Option<Vec<u8>>>,
        strip: bool,
    ) -> Result<()> {
        Ok(attr::setattr(&self.engine, inode, changes, access, strip)?)
    }

    fn set_privileges(&self, inode: &Arc<Inode>, perm: u32, strip: bool) -> Result<()> {
        Ok(attr::set_privileges(&self.engine, inode, perm, strip)?)
    }

    fn store_content_change(&self, inode: &Arc<Inode>) -> Result<()> {
        Ok(attr::content_changed(&self.engine, inode)?)
    }

    fn keeps_access_time(&self, _inode: &Inode) -> bool {
        self.engine.options.noatime || self.engine.read_only()
    }

    fn set_access_time(&self, inode: &Arc<Inode>, now: Timestamp) -> Result<()> {
        attr::set_access_time(inode, now);
        Ok(())
    }

    fn check_flags(&self, asked: InodeFlags) -> Result<()> {
        attr::check_flags(asked)
    }

    fn set_flags(&self, inode: &Arc<Inode>, flags: InodeFlags) -> Result<()> {
        Ok(attr::set_flags(&self.engine, inode, flags)?)
    }

    fn fsxattr(&self, inode: &Inode) -> Fsxattr {
        attr::fsxattr(inode)
    }

    fn own_fsxattr(&self, value: &Fsxattr) -> Fsxattr {
        attr::without_project(value)
    }

    fn check_fsxattr(&self, inode: &Inode, value: &Fsxattr) -> Result<()> {
        attr::check_project(inode, value)
    }

    fn set_fsxattr(&self, inode: &Arc<Inode>, value: &Fsxattr) -> Result<()> {
        Ok(attr::set_project(&self.engine, inode, value)?)
    }

    fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<((), Arc<Inode>)>> {
        Ok(remove::lookup(&self.engine, dir, name)?.map(|inode| ((), inode)))
    }

    fn is_current(
        &self,
        place: NameInDir<'_>,
        found: Option<&front::Found<'_, Self>>,
    ) -> Result<bool> {
        let NameInDir { dir, name } = place;
        Ok(match found {
            Some(found) => remove::leads_to(&self.engine, dir, name, &found.inode)?,
            None => dir::find(&self.engine, dir, name)?.is_none(),
        })
    }

    fn vacancy(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<dir::Absent> {
        dir::absent(&self.engine, dir, name)?.ok_or(vfs::Error::Exists)
    }

    fn parent(&self, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
        let parent = dir::parent(&self.engine, dir)?;
        Ok(self.engine.inodes.named(&self.engine, parent)?)
    }

    fn directory_ring(&self, dir: &Inode) -> vfs::Error {
        Error::BadInode {
            ino: dir.ino,
            reason: "the directories above it form a ring".into(),
        }
        .into()
    }

    fn has_entries(&self, dir: &Arc<Inode>) -> Result<bool> {
        Ok(!dir::is_empty(&self.engine, dir)?)
    }

    fn readdir(
        &self,
        dir: &Arc<Inode>,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        Ok(dir::readdir(&self.engine, dir, from, sink)?)
    }

    fn longest_target(&self) -> usize {
        usize::try_from(self.engine.block_size() - 1).unwrap_or(usize::MAX)
    }

    fn create(
        &self,
        who: &Credentials,
        place: NameInDir<'_>,
        vacancy: dir::Absent,
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Arc<Inode>> {
        Ok(create::create(
            &self.engine,
            who,
            place,
            &vacancy,
            what,
            perm,
        )?)
    }

    fn most_filled(&self) -> u64 {
        filled::most(&self.engine)
    }

    fn create_filled(
        &self,
        who: &Credentials,
        place: NameInDir<'_>,
        vacancy: dir::Absent,
        perm: u32,
        content: &Content<'_>,
    ) -> Result<Option<Arc<Inode>>> {
        Ok(create::create_filled(
            &self.engine,
            who,
            place,
            &vacancy,
            perm,
            content,
        )?)
    }

    fn tmpfile(&self, who: &Credentials, dir: &Arc<Inode>, perm: u32) -> Result<Arc<Inode>> {
        Ok(create::tmpfile(&self.engine, who, dir, perm)?)
    }

    fn link(&self, inode: &Arc<Inode>, place: NameInDir<'_>) -> Result<()> {
        Ok(create::link(&self.engine, inode, place.dir, place.name)?)
    }

    fn unlink(&self, place: NameInDir<'_>) -> Result<()> {
        let NameInDir { dir, name } = place;
        Ok(remove::remove(&self.engine, dir, name, false)?)
    }

    fn rmdir(&self, place: NameInDir<'_>) -> Result<()> {
        let NameInDir { dir, name } = place;
        Ok(remove::remove(&self.engine, dir, name, true)?)
    }

    fn lock_topology(&self) -> impl Sized {
        self.topology.lock()
    }

    fn rename(
        &self,
        source: &front::Found<'_, Self>,
        target: Option<&front::Found<'_, Self>>,
        to: NameInDir<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let target = target.map(found);
        Ok(rename::rename(
            &self.engine,
            found(source),
            target,
            to,
            mode,
        )?)
    }

    fn readlink(&self, inode: &Arc<Inode>) -> Result<Vec<u8>> {
        Ok(data::readlink(&self.engine, inode)?)
    }

    fn read(&self, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(data::read(&self.engine, inode, offset, buf)?)
    }

    fn write(&self, inode: &Arc<Inode>, offset: u64, data: WriteData<'_>) -> Result<()> {
        data::write(&self.engine, inode, offset, data, false)?;
        Ok(())
    }

    fn stretch(&self, inode: &Arc<Inode>, at: u64, size: u64) -> Result<(bool, u64)> {
        Ok(data::stretch(&self.engine, inode, at, size)?)
    }

    fn fallocate(&self, inode: &Arc<Inode>, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        Ok(data::fallocate(&self.engine, inode, offset, len, mode)?)
    }

    fn copy_range(
        &self,
        from: (&Arc<Inode>, u64),
        to: (&Arc<Inode>, u64),
        len: u64,
        mode: CopyMode,
    ) -> Result<u64> {
        Ok(data::copy_range(&self.engine, from, to, len, mode)?)
    }

    fn fsync(&self, inode: &Arc<Inode>, kind: SyncKind) -> Result<()> {
        Ok(sync::fsync(&self.engine, inode, kind)?)
    }

    fn store_verity(&self, inode: &Arc<Inode>, tree: &[u8], descriptor: &[u8]) -> Result<()> {
        data::verity::store(&self.engine, inode, tree, descriptor)?;
        Ok(sync::fsync(&self.engine, inode, SyncKind::All)?)
    }

    fn verity_descriptor(&self, inode: &Arc<Inode>) -> Result<Vec<u8>> {
        Ok(data::verity::descriptor(&self.engine, inode)?)
    }

    fn read_verity_tree(&self, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(data::verity::read_tree(&self.engine, inode, offset, buf)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(sync::sync(&self.engine)?)
    }

    fn trim(&self, range: &TrimRange) -> Result<u64> {
        if !block_alloc::is_trim_range(&self.engine.groups, range) {
            return Err(vfs::Error::Invalid);
        }
        Ok(block_alloc::trim(&self.engine.groups, range)?)
    }

    fn getxattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(xattr::get(&self.engine, inode, name)?)
    }

    fn listxattr(&self, inode: &Arc<Inode>) -> Result<Vec<Vec<u8>>> {
        Ok(xattr::list(&self.engine, inode)?)
    }

    fn has_capability(&self, inode: &Arc<Inode>) -> Result<bool> {
        let found = xattr::may_have(inode)
            && xattr::get(&self.engine, inode, vfs::rules::CAPABILITY)?.is_some();
        Ok(found)
    }

    fn damaged_acl(&self, inode: &Inode, reason: acl::AclError) -> vfs::Error {
        Error::BadInode {
            ino: inode.ino,
            reason: format!("access ACL: {reason}"),
        }
        .into()
    }

    fn check_xattr(&self, class: XattrClass, _name: &[u8], value: &[u8]) -> Result<()> {
        if class == XattrClass::Btrfs {
            return Err(vfs::Error::NotSupported);
        }
        if value.len() > vfs::rules::XATTR_VALUE_MAX {
            Err(vfs::Error::AttributeTooLarge)
        } else {
            Ok(())
        }
    }

    fn change_xattr(&self, inode: &Arc<Inode>, change: AttributeChange<'_>) -> Result<()> {
        xattr::change(&self.engine, inode, change)?;
        Ok(reap::reap_values(&self.engine)?)
    }
}
