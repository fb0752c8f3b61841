//! Btrfs behind the [front] and the [`Subvolumes`] trait: from their methods to the engine's
//! modules.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;

use sapwood_base::WriteData;
use sapwood_block::Device;
use sapwood_btrfs_format::objectid;
use sapwood_vfs::front::{self, AttributeChange, Steps};
use sapwood_vfs::rules::{self, XattrClass};
use sapwood_vfs::{
    self as vfs, AllocMode, Attr, CopyMode, Credentials, DirEntry, Entry, FileKind, FsStat,
    Fsxattr, Ino, InodeFlags, NewInode, RenameMode, Result, SetAttr, SetXattrMode, SubvolumeId,
    SubvolumeInfo, Subvolumes, SyncKind, Timestamp, TrimRange, acl,
};

use super::open::Mount;
use super::sync;
use crate::inode::Inode;
use crate::namespace::names::{self, Target};
use crate::namespace::remove::Removal;
use crate::namespace::rename::{self, NameInDir};
use crate::namespace::{attr, create, dir, orphan, remove, seal};
use crate::subvolume::{choose, default, delete, listing, received, snapshot};
use crate::{EncodedExtent, Error, Options, data, subvolume, xattr};

/// A name with its target, as the front passes it.
type Found<'a> = front::Found<'a, Mount>;

/// The name with its target, for the module of names.
fn found<'a>(found: &'a Found<'_>) -> rename::Found<'a> {
    rename::Found {
        place: found.place,
        target: found.target,
        inode: &found.inode,
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
        self.state.lock().perm()
    }

    fn size(&self) -> u64 {
        self.state.lock().size
    }

    fn times(&self) -> (Timestamp, Timestamp, Timestamp) {
        let state = self.state.lock();
        (state.atime, state.mtime, state.ctime)
    }

    fn content_changed(&self, now: Timestamp) {
        self.state.lock().content_changed(now);
    }

    fn is_linked(&self) -> bool {
        self.is_linked()
    }

    fn is_linkable(&self) -> bool {
        let state = self.state.lock();
        state.nlink > 0 || state.linkable
    }

    fn is_dying(&self) -> bool {
        self.state.lock().dying
    }

    fn is_detached(&self) -> bool {
        self.root.is_dead()
    }

    fn takes_attributes(&self) -> bool {
        !self.is_stub()
    }

    fn check_changeable(&self) -> Result<()> {
        Ok(self.require_writable()?)
    }

    fn check_content_changeable(&self) -> Result<()> {
        if self.is_sealed() {
            Err(vfs::Error::NotPermitted)
        } else {
            Ok(())
        }
    }

    fn refer(&self) {
        self.residence.refer(1);
    }

    fn clear_references(&self) {
        self.residence.clear_references();
    }

    fn lock_key(&self) -> (u64, u64) {
        self.lock_key()
    }

    fn lock_shared(&self) -> impl Sized {
        self.io.read()
    }

    fn lock_exclusive(&self) -> impl Sized {
        self.io.write()
    }
}

impl Mount {
    /// Bytes of a sector.
    #[must_use]
    pub fn sector_size(&self) -> u32 {
        self.engine.sectorsize
    }

    /// Whether a write to `range` of a regular file, in bytes, goes to the place of the range on the
    /// device; see [`Options::in_place`]. Considers data that is in the trees.
    ///
    /// # Errors
    /// `ESTALE` for an unknown inode, `EISDIR`; unreadable blocks.
    pub fn is_overwritable(&self, ino: Ino, range: &Range<u64>) -> Result<bool> {
        let inode = self.regular(ino)?;
        let _io = inode.io.read();
        Ok(data::overwritable(&self.engine, &inode, range)?)
    }

    /// Writes a compressed extent to a regular file as it is, without expanding it. Returns false
    /// if the file or the file system does not take it in this form; then the caller expands it and
    /// writes the bytes.
    ///
    /// Offset and lengths are checked, the compressed bytes are not: if they do not expand to the
    /// claimed length, the range is unreadable.
    ///
    /// # Errors
    /// The errors of [`write`](sapwood_vfs::FileSystem::write).
    pub fn write_encoded(&self, ino: Ino, extent: &EncodedExtent<'_>) -> Result<bool> {
        self.check_writable()?;
        let inode = self.regular(ino)?;
        front::Inode::check_changeable(&*inode)?;
        let written = {
            let _io = inode.io.write();
            front::Inode::check_content_changeable(&*inode)?;
            let at_end = extent.offset >= front::Inode::size(&*inode);
            rules::check_write(front::Inode::flags(&*inode), at_end, false)?;
            rules::range_end(extent.offset, extent.len)?;
            self.strip_privileges(&inode, false)?;
            front::Inode::content_changed(&*inode, front::Engine::now(self));
            data::write_encoded(&self.engine, &inode, extent)?
        };
        self.sync_if_asked(&inode)?;
        Ok(written)
    }
}

impl front::Engine for Mount {
    type Inode = Inode;
    type Target = Target;
    type Vacancy = ();
    type Devices = Vec<Arc<dyn Device>>;
    type Options = Options;
    type OpenError = Error;

    fn open(devices: Self::Devices, options: Options) -> crate::Result<Self> {
        Self::open(devices, options)
    }

    fn now(&self) -> Timestamp {
        self.engine.now()
    }

    fn kind(&self) -> &'static str {
        "btrfs"
    }

    fn root(&self) -> Ino {
        self.engine
            .inodes
            .numbers()
            .ino(self.top.id(), self.top.top_dir())
    }

    fn check_open(&self) -> Result<()> {
        Ok(self.engine.health.check_open().map_err(Error::from)?)
    }

    fn refuses_changes(&self) -> bool {
        self.engine.read_only()
    }

    fn read_only(&self) -> bool {
        self.engine.read_only() || self.top.is_read_only()
    }

    fn statfs(&self) -> Result<FsStat> {
        Ok(self.engine.space.statfs(&self.engine.fsid, self.top.id()))
    }

    fn stats_json(&self) -> String {
        self.engine
            .counters
            .to_json(self.engine.health.first_error())
    }

    fn first_error(&self) -> Option<String> {
        self.engine.health.first_error().map(str::to_owned)
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        Some(self)
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
        Ok(orphan::reap(&self.engine, inode)?)
    }

    fn getattr(&self, inode: &Arc<Inode>) -> Attr {
        inode.attr(self.engine.sectorsize)
    }

    fn truncate(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        if size != inode.state.lock().size {
            data::truncate(&self.engine, inode, size)?;
        }
        Ok(())
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

    fn keeps_access_time(&self, inode: &Inode) -> bool {
        let fixed = inode.root.is_read_only() || inode.is_stub();
        self.engine.options.noatime || self.engine.read_only() || fixed
    }

    fn set_access_time(&self, inode: &Arc<Inode>, now: Timestamp) -> Result<()> {
        Ok(attr::set_access_time(&self.engine, inode, now)?)
    }

    fn set_flags(&self, inode: &Arc<Inode>, flags: InodeFlags) -> Result<()> {
        Ok(attr::set_flags(&self.engine, inode, flags)?)
    }

    fn forgo_checksums(&self, inode: &Arc<Inode>) -> Result<()> {
        Ok(attr::forgo_checksums(&self.engine, inode)?)
    }

    fn fsxattr(&self, inode: &Inode) -> Fsxattr {
        rules::fsxattr_of(inode.vfs_flags())
    }

    fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<(Target, Arc<Inode>)>> {
        Ok(remove::lookup(&self.engine, dir, name)?)
    }

    fn is_current(&self, place: NameInDir<'_>, found: Option<&Found<'_>>) -> Result<bool> {
        let now = names::find(&self.engine, place.dir, place.name)?;
        Ok(now == found.map(|found| found.target))
    }

    fn vacancy(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<()> {
        Ok(names::check_vacant(&self.engine, dir, name)?)
    }

    fn parent(&self, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
        Ok(dir::parent(&self.engine, dir)?)
    }

    fn directory_ring(&self, dir: &Inode) -> vfs::Error {
        let (subvolume, directory) = (dir.root.id(), dir.objectid);
        Error::DirectoryRing {
            subvolume,
            directory,
        }
        .into()
    }

    fn has_entries(&self, dir: &Arc<Inode>) -> Result<bool> {
        Ok(dir.state.lock().size > 0)
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
        create::longest_symlink(&self.engine)
    }

    fn create(
        &self,
        who: &Credentials,
        place: NameInDir<'_>,
        (): (),
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Arc<Inode>> {
        Ok(create::create(&self.engine, who, place, what, perm)?)
    }

    fn tmpfile(&self, who: &Credentials, dir: &Arc<Inode>, perm: u32) -> Result<Arc<Inode>> {
        Ok(create::tmpfile(&self.engine, who, dir, perm)?)
    }

    fn check_same_tree(&self, inode: &Inode, dir: &Inode) -> Result<()> {
        if inode.root.id() == dir.root.id() {
            Ok(())
        } else {
            Err(vfs::Error::CrossDevice)
        }
    }

    fn link(&self, inode: &Arc<Inode>, place: NameInDir<'_>) -> Result<()> {
        Ok(create::link(&self.engine, inode, place.dir, place.name)?)
    }

    fn unlink(&self, place: NameInDir<'_>) -> Result<()> {
        self.remove(place, false)
    }

    fn rmdir(&self, place: NameInDir<'_>) -> Result<()> {
        self.remove(place, true)
    }

    fn lock_topology(&self) -> impl Sized {
        self.engine.topology.lock()
    }

    fn crosses_trees(
        &self,
        source: &Found<'_>,
        target: Option<&Found<'_>>,
        to: NameInDir<'_>,
        mode: RenameMode,
    ) -> bool {
        rename::crosses_subvolumes(&found(source), target.map(found).as_ref(), to, mode)
    }

    fn rename(
        &self,
        source: &Found<'_>,
        target: Option<&Found<'_>>,
        to: NameInDir<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let target = target.map(found);
        let source = found(source);
        Ok(rename::rename(
            &self.engine,
            &source,
            target.as_ref(),
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
        data::write(&self.engine, inode, offset, data)?;
        Ok(())
    }

    fn stretch(&self, inode: &Arc<Inode>, at: u64, _size: u64) -> Result<(bool, u64)> {
        Ok(data::stretch(&self.engine, inode, at)?)
    }

    fn fallocate(&self, inode: &Arc<Inode>, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        Ok(data::fallocate(&self.engine, inode, offset, len, mode)?)
    }

    fn copy_range(
        &self,
        (from, from_offset): (&Arc<Inode>, u64),
        (to, to_offset): (&Arc<Inode>, u64),
        len: u64,
        mode: CopyMode,
    ) -> Result<u64> {
        Ok(data::copy_range(
            &self.engine,
            from,
            from_offset,
            to,
            to_offset,
            len,
            mode,
        )?)
    }

    fn fsync(&self, inode: &Arc<Inode>, kind: SyncKind) -> Result<()> {
        let begun = Instant::now();
        let done = sync::fsync(&self.engine, inode, kind);
        self.engine.counters.fsync_latency.record(begun.elapsed());
        Ok(done?)
    }

    fn store_verity(&self, inode: &Arc<Inode>, tree: &[u8], descriptor: &[u8]) -> Result<()> {
        seal::store(&self.engine, inode, tree, descriptor)?;
        Ok(self.engine.commit(None)?)
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
        if !self.engine.space.is_trim_range(range) {
            return Err(vfs::Error::Invalid);
        }
        Ok(self.engine.space.trim(range)?)
    }

    fn getxattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(xattr::get(&self.engine, inode, name)?)
    }

    fn listxattr(&self, inode: &Arc<Inode>) -> Result<Vec<Vec<u8>>> {
        Ok(xattr::list(&self.engine, inode)?)
    }

    fn has_capability(&self, inode: &Arc<Inode>) -> Result<bool> {
        Ok(attr::has_capability(&self.engine, inode)?)
    }

    fn damaged_acl(&self, inode: &Inode, reason: acl::AclError) -> vfs::Error {
        Error::Acl {
            tree: inode.root.id(),
            objectid: inode.objectid,
            reason,
        }
        .into()
    }

    fn check_xattr(&self, _class: XattrClass, name: &[u8], value: &[u8]) -> Result<()> {
        Ok(xattr::check_size(&self.engine, name, value)?)
    }

    fn change_xattr(&self, inode: &Arc<Inode>, change: AttributeChange<'_>) -> Result<()> {
        Ok(xattr::change(&self.engine, inode, change)?)
    }

    fn set_property(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: SetXattrMode,
    ) -> Result<()> {
        Ok(xattr::set_property(&self.engine, inode, name, value, mode)?)
    }
}

impl Mount {
    fn remove(&self, place: NameInDir<'_>, directory: bool) -> Result<()> {
        let NameInDir { dir, name } = place;
        match remove::remove(&self.engine, dir, name, directory)? {
            Removal::Done => Ok(()),
            Removal::Subvolume => Ok(subvolume::delete_empty(&self.engine, dir, name)?),
        }
    }
}

impl Subvolumes for Mount {
    fn list(&self) -> Result<Vec<SubvolumeInfo>> {
        Ok(listing::list(&self.engine)?)
    }

    fn create_subvolume(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_writable()?;
        let dir = self.live(dir)?;
        self.entry(&subvolume::create::create(&self.engine, &dir, name)?)
    }

    fn snapshot(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Entry> {
        self.check_writable()?;
        let source = snapshot::top_of(&*self.live(source)?)?;
        let dir = self.live(dir)?;
        let made = snapshot::snapshot(&self.engine, &source, &dir, name, read_only)?;
        self.entry(&made)
    }

    fn delete_subvolume(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.check_writable()?;
        Ok(delete::delete(&self.engine, &self.live(dir)?, name)?)
    }

    fn set_read_only(&self, root: Ino, read_only: bool) -> Result<()> {
        self.check_writable()?;
        let root = snapshot::top_of(&*self.live(root)?)?;
        Ok(default::set_read_only(&self.engine, &root, read_only)?)
    }

    fn set_received(&self, root: Ino, uuid: [u8; 16], transid: u64) -> Result<()> {
        self.check_writable()?;
        let root = snapshot::top_of(&*self.live(root)?)?;
        Ok(received::set_received(&self.engine, &root, uuid, transid)?)
    }

    fn default_subvolume(&self) -> Result<SubvolumeId> {
        let id = choose::default_id(&self.engine.blocks, &self.engine.roots)?;
        Ok(SubvolumeId(id.unwrap_or(objectid::FS_TREE)))
    }

    fn set_default_subvolume(&self, id: SubvolumeId) -> Result<()> {
        self.check_writable()?;
        match default::set_default(&self.engine, id.0) {
            Err(Error::NoSuchSubvolume(_)) => Err(vfs::Error::NotFound),
            other => Ok(other?),
        }
    }

    fn subvolume_at(&self, root: Ino) -> Result<SubvolumeId> {
        let root = snapshot::top_of(&*self.live(root)?)?;
        Ok(SubvolumeId(root.id()))
    }

    fn subvolume_of(&self, ino: Ino) -> Result<SubvolumeId> {
        Ok(SubvolumeId(self.live(ino)?.root.id()))
    }
}
