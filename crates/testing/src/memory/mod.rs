//! A file system in memory: the reference that engines and front ends are tested against.
//!
//! It behaves like btrfs under Linux (a directory has one link and a size of twice its names'
//! bytes, holes have sectors of 4 KiB, subvolumes), as simply as possible: one lock for everything,
//! ordinary maps, a copy where btrfs shares. The rules themselves are in
//! [`rules`](sapwood_vfs::rules) and [`acl`](sapwood_vfs::acl), which engines use too.

mod attrs;
mod content;
mod data;
mod durable;
mod gate;
mod names;
mod state;
mod subvolumes;

use std::ops::ControlFlow;

use parking_lot::{Mutex, MutexGuard};

use crate::conformance::Capabilities;
use content::SECTOR;
use durable::Durable;
use gate::Gate;
use sapwood_vfs::{
    AllocMode, Attr, Content, CopyMode, Credentials, DirEntry, Entry, Error, FileSystem, FsStat,
    Fsxattr, Ino, InodeFlags, NewInode, RenameMode, Result, SeekFrom, SetAttr, SetXattrMode,
    Subvolumes, SyncKind, WriteMode,
};
use state::{ROOT, State};

/// A file system that lives as long as this value.
#[derive(Debug)]
pub struct MemoryFs {
    state: Mutex<State>,
    gate: Gate,
    durable: Durable,
}

impl Default for MemoryFs {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryFs {
    /// An empty file system whose files may hold 1 GiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(1 << 30)
    }

    /// An empty file system whose files may hold `bytes` bytes, in sectors of 4 KiB.
    #[must_use]
    pub fn with_capacity(bytes: u64) -> Self {
        Self {
            state: Mutex::new(State::new(bytes / SECTOR)),
            gate: Gate::default(),
            durable: Durable::default(),
        }
    }

    /// An empty file system that moves ranges within a file, and inherits flags of a directory, as
    /// an engine with these capabilities does. Operations that the engine lacks still work.
    #[must_use]
    pub fn like(capabilities: &Capabilities) -> Self {
        let fs = Self::new();
        let mut state = fs.state.lock();
        state.block_size = capabilities.block_size;
        state.inherited_flags = capabilities.inherited_flags;
        drop(state);
        fs
    }

    /// Refuses changes from now on, or allows them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.state.lock().read_only = read_only;
    }

    /// How often [attributes](FileSystem::getattr) were read.
    pub fn attributes_read(&self) -> u64 {
        self.state.lock().attributes_read
    }

    /// Holds writes from now on until a call of [`referenced`](FileSystem::referenced) or a
    /// snapshot, but no longer than ten seconds.
    pub fn hold_writes(&self) {
        self.gate.shut();
    }

    /// Releases held writes.
    pub fn release_writes(&self) {
        self.gate.open();
    }

    /// True if an inode has not changed since it was last made durable ([`SyncKind::All`]), or its
    /// contents and names have not.
    #[must_use]
    pub fn is_durable(&self, ino: Ino, kind: SyncKind) -> bool {
        self.durable.is_durable(ino, kind)
    }

    /// The attributes that a crash would leave: those at the last fsync of the inode or sync.
    #[must_use]
    pub fn durable_attr(&self, ino: Ino) -> Option<Attr> {
        self.durable.kept(ino)
    }

    /// Number of references that callers hold; 0 once a front end dropped all.
    #[must_use]
    pub fn held_references(&self) -> u64 {
        let state = self.state.lock();
        let nodes = state.nodes.iter();
        let counted = nodes.filter(|(ino, _)| **ino != ROOT);
        counted.map(|(_, node)| node.refs).sum()
    }

    /// Number of inodes, with those that have no name.
    #[must_use]
    pub fn inode_count(&self) -> usize {
        self.state.lock().nodes.len()
    }

    /// Mounts it again after [`unmount`](FileSystem::unmount), and drops all references.
    pub fn remount(&self) {
        let mut state = self.state.lock();
        state.mounted = true;
        let inodes: Vec<Ino> = state.nodes.keys().copied().collect();
        for ino in inodes {
            state.forget(ino, u64::MAX);
        }
    }

    fn live(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        if !state.mounted {
            return Err(Error::io("not mounted".to_owned()));
        }
        state.operations += 1;
        Ok(state)
    }
}

impl FileSystem for MemoryFs {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn root(&self) -> Ino {
        ROOT
    }

    fn read_only(&self) -> bool {
        self.state.lock().read_only
    }

    fn statfs(&self) -> Result<FsStat> {
        let state = self.live()?;
        let free = state.capacity.saturating_sub(state.used);
        Ok(FsStat {
            block_size: SECTOR as u32,
            blocks: state.capacity,
            blocks_free: free,
            blocks_available: free,
            inodes: 0,
            inodes_free: 0,
            name_max: 255,
            fsid: 1,
        })
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        let mut state = self.live()?;
        let ino = state.find(dir, name)?;
        state.entry(ino)
    }

    fn reference(&self, ino: Ino) -> Result<Entry> {
        self.live()?.entry(ino)
    }

    fn parent(&self, dir: Ino) -> Result<Entry> {
        self.live()?.parent(dir)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.state.lock().forget(ino, count);
    }

    fn referenced(&self) -> Vec<Ino> {
        self.gate.open();
        let state = self.state.lock();
        let held = state.nodes.iter().filter(|(_, node)| node.refs > 0);
        held.map(|(ino, _)| *ino).collect()
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let mut state = self.live()?;
        state.attributes_read += 1;
        state.getattr(ino)
    }

    fn setattr(&self, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let attr = self.live()?.setattr(ino, changes)?;
        self.durable.attributes_changed(ino);
        if changes.size.is_some() {
            self.durable.data_changed(ino);
        }
        Ok(attr)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.live()?.readlink(ino)
    }

    fn create(
        &self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Entry> {
        let entry = self.live()?.create(who, dir, name, what, perm)?;
        self.durable.data_changed(dir);
        Ok(entry)
    }

    fn tmpfile(&self, who: &Credentials, dir: Ino, perm: u32) -> Result<Entry> {
        self.live()?.tmpfile(who, dir, perm)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let entry = self.live()?.link(ino, dir, name)?;
        self.durable.data_changed(dir);
        Ok(entry)
    }

    fn unlink(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.live()?.unlink(dir, name)?;
        self.durable.data_changed(dir);
        Ok(())
    }

    fn rmdir(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.live()?.rmdir(dir, name)?;
        self.durable.data_changed(dir);
        Ok(())
    }

    fn rename(
        &self,
        from_dir: Ino,
        from_name: &[u8],
        to_dir: Ino,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let mut state = self.live()?;
        state.rename((from_dir, from_name), (to_dir, to_name), mode)?;
        self.durable.data_changed(from_dir);
        self.durable.data_changed(to_dir);
        Ok(())
    }

    fn readdir(
        &self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        self.live()?.readdir(dir, from, sink)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.live()?.read(ino, offset, buf)
    }

    fn write(&self, ino: Ino, offset: u64, data: &[u8], mode: WriteMode) -> Result<u64> {
        self.gate.pass();
        let end = self.live()?.write(ino, offset, data, mode)?;
        self.durable.data_changed(ino);
        Ok(end)
    }

    fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: AllocMode) -> Result<()> {
        self.live()?.fallocate(ino, offset, len, mode)?;
        self.durable.data_changed(ino);
        Ok(())
    }

    fn seek(&self, ino: Ino, from: SeekFrom) -> Result<u64> {
        self.live()?.seek(ino, from)
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
        let mut state = self.live()?;
        let copied = state.copy_range((from, from_offset), (to, to_offset), len, mode)?;
        self.durable.data_changed(to);
        Ok(copied)
    }

    fn fsync(&self, ino: Ino, kind: SyncKind) -> Result<()> {
        let attr = self.live()?.getattr(ino)?;
        self.durable.synced(attr, kind);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let state = self.live()?;
        let attrs = state
            .nodes
            .keys()
            .filter_map(|ino| state.getattr(*ino).ok());
        self.durable.synced_all(attrs);
        Ok(())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.live()?.getxattr(ino, name)
    }

    fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: SetXattrMode) -> Result<()> {
        self.live()?.setxattr(ino, name, value, mode)?;
        self.durable.attributes_changed(ino);
        Ok(())
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.live()?.listxattr(ino)
    }

    fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.live()?.removexattr(ino, name)?;
        self.durable.attributes_changed(ino);
        Ok(())
    }

    fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.live()?.set_flags(ino, flags)?;
        self.durable.attributes_changed(ino);
        Ok(())
    }

    fn most_filled(&self) -> u64 {
        0
    }

    fn create_filled(
        &self,
        _who: &Credentials,
        _dir: Ino,
        _name: &[u8],
        _perm: u32,
        _content: &Content<'_>,
    ) -> Result<Option<Entry>> {
        Ok(None)
    }

    fn forgo_checksums(&self, _ino: Ino) -> Result<()> {
        Err(Error::NotSupported)
    }

    fn fsxattr(&self, ino: Ino) -> Result<Fsxattr> {
        self.live()?.fsxattr(ino)
    }

    fn set_fsxattr(&self, ino: Ino, value: &Fsxattr) -> Result<()> {
        self.live()?.set_fsxattr(ino, value)?;
        self.durable.attributes_changed(ino);
        Ok(())
    }

    fn subvolumes(&self) -> Option<&dyn Subvolumes> {
        Some(self)
    }

    fn stats_json(&self) -> String {
        let state = self.state.lock();
        format!(
            "{{\"operations\":{},\"inodes\":{}}}",
            state.operations,
            state.nodes.len()
        )
    }

    fn first_error(&self) -> Option<String> {
        None
    }

    fn unmount(&self) -> Result<()> {
        self.live()?.mounted = false;
        Ok(())
    }
}
