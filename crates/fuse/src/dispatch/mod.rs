//! The meaning of each request, for all transports.
//!
//! # How it works
//!
//! Every method checks what the protocol leaves to the server (length of names, flag bits),
//! translates node ids, calls the engine and returns the answer or an errno. Only the engine
//! blocks. Any thread may call the methods at any time.
//!
//! Caching: each answer carries the time for which the kernel may cache it. A missing name is an
//! answer, too ([`Dispatcher::lookup`] returns `None`).
//!
//! References: an answer that names a node gives the kernel one lookup, which is one reference of
//! the engine. A transport that could not deliver such an answer releases it with
//! [`Dispatcher::forget`].
//!
//! Set-id bits: with `FUSE_HANDLE_KILLPRIV_V2` the kernel leaves it to the server to clear them on
//! a write, a truncation or a change of owner.
//!
//! End: [`Dispatcher::close`] waits for the calls in progress; later calls fail with `EIO`. It is
//! for an unmount whose users did not close their files.

mod commands;
mod content;
mod engine;
mod prune;
mod xattrs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use sapwood_vfs::{
    Attr, Entry, Error, FileKind, FileSystem, FsStat, Ino, NewInode, RenameMode, SetAttr, SyncKind,
};

use crate::broker::Broker;
use crate::bulk::Bulk;
use crate::end_report::Waiters;
use crate::node::{NodeId, NodeMap, decode_device};
use crate::permissions;
use crate::privileges;
use crate::readdir::{self, DirAttributes, DirItem, DirSink, PageKind, PageRequest};
use crate::request::{Caller, Changes, NodeEntry, Reply, Synchronous};
use crate::request_counts::RequestCounts;

/// Longest name that FUSE carries. The kernel does not check it for the server.
const NAME_MAX: usize = 255;

use engine::ServedEngine;
use prune::Prune;

/// Turns requests into calls of one file system.
pub(crate) struct Dispatcher {
    fs: ServedEngine,
    map: NodeMap,
    ttl: Duration,
    writeback: AtomicBool,
    synchronous: Synchronous,
    waiters: Waiters,
    bulk: Arc<Bulk>,
    prune: Prune,
    requests: RequestCounts,
    /// The mount's options, for commands that ask for them.
    options: Mutex<String>,
    /// The kernel can drop all names at once.
    drops_names: AtomicBool,
    /// The kernel passes `syncfs` on.
    receives_sync: AtomicBool,
    /// True once closed. Each call in progress holds it for reading.
    closed: Arc<RwLock<bool>>,
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher")
            .field("fs", &self.fs.kind())
            .field("map", &self.map)
            .field("writeback", &self.writeback)
            .finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// A dispatcher for `fs`. The kernel may cache answers for `ttl`.
    #[must_use]
    pub(crate) fn new(fs: Arc<dyn FileSystem>, ttl: Duration) -> Self {
        let map = NodeMap::new(fs.root());
        Self {
            fs: ServedEngine::new(fs),
            map,
            ttl,
            writeback: AtomicBool::new(false),
            synchronous: Synchronous::default(),
            waiters: Waiters::default(),
            bulk: Arc::default(),
            prune: Prune::default(),
            requests: RequestCounts::default(),
            options: Mutex::default(),
            drops_names: AtomicBool::new(false),
            receives_sync: AtomicBool::new(false),
            closed: Arc::default(),
        }
    }

    /// Sets which changes must be durable before they are answered.
    #[must_use]
    pub(crate) fn synchronous(self, synchronous: Synchronous) -> Self {
        Self {
            synchronous,
            ..self
        }
    }

    /// Makes `broker`, if there is one, connect to processes that wait for the end of the mount and
    /// to clients of bulk work.
    #[must_use]
    pub(crate) fn connecting_through(self, broker: Option<Broker>) -> Self {
        Self {
            waiters: Waiters::new(broker.clone()),
            bulk: Arc::new(Bulk::new(broker)),
            ..self
        }
    }

    /// How long the kernel may cache names and attributes.
    #[must_use]
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How many requests of each kind were served.
    pub(crate) fn requests(&self) -> &RequestCounts {
        &self.requests
    }

    /// Sets whether the kernel uses the write-back cache; it then maintains file times.
    pub(crate) fn set_writeback(&self, on: bool) {
        self.writeback.store(on, Ordering::Release);
    }

    /// Reports how the mount ended to the processes that asked for it.
    pub(crate) fn report_end(&self, failure: Option<&str>) {
        self.waiters.report(failure);
    }

    /// Ends all service: waits for calls in progress, answers later ones with `EIO`.
    pub(crate) fn close(&self) {
        *self.closed.write() = true;
    }

    fn enter(&self) -> Reply<RwLockReadGuard<'_, bool>> {
        // A recursive read: no call re-enters, and a waiting close must not block requests that the
        // calls in progress depend on.
        let guard = self.closed.read_recursive();
        if *guard { Err(libc::EIO) } else { Ok(guard) }
    }

    /// Makes a change of an inode durable where the mount asks for it.
    fn settle(&self, ino: Ino) -> Reply<()> {
        if self.synchronous.all {
            self.fs.fsync(ino, SyncKind::All).map_err(errno)
        } else {
            Ok(())
        }
    }

    /// Makes a change of a directory's names durable where the mount asks for it.
    fn settle_names(&self, dir: Ino) -> Reply<()> {
        if self.synchronous.all || self.synchronous.names {
            self.fs.fsync(dir, SyncKind::All).map_err(errno)
        } else {
            Ok(())
        }
    }

    /// The answer with a new name in `dir`, once the change is as durable as the mount requires.
    fn new_name(&self, dir: Ino, entry: &Entry) -> Reply<NodeEntry> {
        if let Err(errno) = self.settle_names(dir) {
            self.fs.forget(entry.ino(), 1);
            return Err(errno);
        }
        Ok(self.entry(entry))
    }

    /// Sets whether the kernel can forget nodes on request.
    pub(crate) fn set_prunes(&self, on: bool) {
        self.prune.set_possible(on);
    }

    /// Whether to ask the kernel to forget nodes. Returns true once, until the call of
    /// [`nodes_to_prune`](Self::nodes_to_prune).
    pub(crate) fn wants_pruning(&self) -> bool {
        self.prune.is_due()
    }

    /// The nodes that the kernel should forget if it does not use them.
    #[must_use]
    pub(crate) fn nodes_to_prune(&self) -> Vec<u64> {
        let Ok(_open) = self.enter() else {
            return Vec::new();
        };
        let inos = self.fs.crowd().into_iter();
        let nodes: Vec<u64> = inos.map(|ino| self.map.node(ino).0).collect();
        self.prune.listed(nodes.len());
        nodes
    }

    fn entry(&self, entry: &Entry) -> NodeEntry {
        self.prune.referenced(&*self.fs, entry.ino());
        NodeEntry {
            node: self.map.node(entry.ino()),
            attr: entry.attr,
        }
    }

    /// Finds a name; `None` if it does not exist. A kernel that resolves a file handle asks for `.`
    /// and `..`.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a name of more than 255 bytes; errors of the engine.
    pub(crate) fn lookup(&self, dir: NodeId, name: &[u8]) -> Reply<Option<NodeEntry>> {
        let _open = self.enter()?;
        let dir = self.map.ino(dir);
        let found = match name {
            b"." => self.fs.reference(dir),
            b".." => self.fs.parent(dir),
            _ => {
                check_name(name)?;
                self.fs.lookup(dir, name)
            }
        };
        match found {
            Ok(entry) => Ok(Some(self.entry(&entry))),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(error.errno()),
        }
    }

    /// Releases `count` lookups of a node. Lookups of the root are not counted.
    pub(crate) fn forget(&self, node: NodeId, count: u64) {
        if node != NodeId::ROOT && node != NodeId::NONE && self.enter().is_ok() {
            self.fs.forget(self.map.ino(node), count);
        }
    }

    /// Reads attributes.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn getattr(&self, node: NodeId) -> Reply<Attr> {
        let _open = self.enter()?;
        self.fs.getattr(self.map.ino(node)).map_err(errno)
    }

    /// Checks whether root has the rights in `mask`, with bits as for `access`. Only root sends
    /// this, from a mount where the kernel does not check permissions.
    ///
    /// # Errors
    /// `EACCES` if root has not all of them; errors of the engine.
    pub(crate) fn access(&self, node: NodeId, mask: u32) -> Reply<()> {
        let attr = self.getattr(node)?;
        permissions::may(&attr, mask)
            .then_some(())
            .ok_or(libc::EACCES)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn setattr(&self, who: Caller, node: NodeId, changes: &Changes) -> Reply<Attr> {
        let _open = self.enter()?;
        let ino = self.map.ino(node);
        let mut set = changes.set;
        let chown = set.uid.is_some() || set.gid.is_some();
        let truncate = set.size.is_some() && !changes.keep_setid;
        if set.perm.is_none() && (chown || truncate) {
            let attr = self.fs.getattr(ino).map_err(errno)?;
            let kept = privileges::after_chown(&attr, who);
            set.perm = (kept != attr.perm).then_some(kept);
        }
        let attr = match self.fs.setattr(ino, &set) {
            Err(Error::NotPermitted) => self.refused_times(ino, &set)?,
            result => result.map_err(errno)?,
        };
        self.settle(ino)?;
        Ok(attr)
    }

    /// The answer to a change that an immutable or append-only inode refuses. A write-back cache
    /// sends the times of its last write late. If they are older than the inode's last change, no
    /// caller has set them since, and the server ignores them without an error.
    fn refused_times(&self, ino: Ino, set: &SetAttr) -> Reply<Attr> {
        let attr = self.fs.getattr(ino).map_err(errno)?;
        let only_times = SetAttr {
            mtime: set.mtime,
            ctime: set.ctime,
            ..SetAttr::default()
        } == *set;
        match set.ctime {
            Some(ctime) if only_times && ctime <= attr.ctime => Ok(attr),
            _ => Err(libc::EPERM),
        }
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn readlink(&self, node: NodeId) -> Reply<Vec<u8>> {
        let _open = self.enter()?;
        self.fs.readlink(self.map.ino(node)).map_err(errno)
    }

    /// Creates anything but a directory or link. `mode` has type and permissions; `rdev` has FUSE's
    /// 32-bit form.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a name of more than 255 bytes; `EINVAL` for an unknown type; errors of
    /// the engine.
    pub(crate) fn mknod(
        &self,
        who: Caller,
        dir: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Reply<NodeEntry> {
        let what = match FileKind::from_mode(mode) {
            Some(FileKind::Regular) => NewInode::Regular,
            None if mode & libc::S_IFMT == 0 => NewInode::Regular,
            Some(FileKind::CharDevice) => NewInode::CharDevice(decode_device(rdev)),
            Some(FileKind::BlockDevice) => NewInode::BlockDevice(decode_device(rdev)),
            Some(FileKind::Fifo) => NewInode::Fifo,
            Some(FileKind::Socket) => NewInode::Socket,
            Some(FileKind::Directory | FileKind::Symlink) | None => return Err(libc::EINVAL),
        };
        self.create(who, dir, name, what, mode)
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a name of more than 255 bytes; errors of the engine.
    pub(crate) fn mkdir(
        &self,
        who: Caller,
        dir: NodeId,
        name: &[u8],
        mode: u32,
    ) -> Reply<NodeEntry> {
        self.create(who, dir, name, NewInode::Directory, mode)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a name of more than 255 bytes; errors of the engine.
    pub(crate) fn symlink(
        &self,
        who: Caller,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Reply<NodeEntry> {
        let who = Caller { umask: 0, ..who };
        self.create(who, dir, name, NewInode::Symlink(target), 0o777)
    }

    fn create(
        &self,
        who: Caller,
        dir: NodeId,
        name: &[u8],
        what: NewInode<'_>,
        mode: u32,
    ) -> Reply<NodeEntry> {
        let _open = self.enter()?;
        check_name(name)?;
        let dir = self.map.ino(dir);
        let perm = mode & 0o7777;
        self.fs
            .create(&who.credentials(), dir, name, what, perm)
            .map_err(errno)
            .and_then(|entry| self.new_name(dir, &entry))
    }

    /// Creates an unnamed regular file.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn tmpfile(&self, who: Caller, dir: NodeId, mode: u32) -> Reply<NodeEntry> {
        let _open = self.enter()?;
        self.fs
            .tmpfile(&who.credentials(), self.map.ino(dir), mode & 0o7777)
            .map(|entry| self.entry(&entry))
            .map_err(errno)
    }

    /// Adds a name for a node.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a name of more than 255 bytes; errors of the engine.
    pub(crate) fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Reply<NodeEntry> {
        let _open = self.enter()?;
        check_name(name)?;
        let dir = self.map.ino(dir);
        self.fs
            .link(self.map.ino(node), dir, name)
            .map_err(errno)
            .and_then(|entry| self.new_name(dir, &entry))
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a name of more than 255 bytes; errors of the engine.
    pub(crate) fn unlink(&self, dir: NodeId, name: &[u8]) -> Reply<()> {
        let _open = self.enter()?;
        check_name(name)?;
        let dir = self.map.ino(dir);
        self.fs.unlink(dir, name).map_err(errno)?;
        self.settle_names(dir)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a name of more than 255 bytes; errors of the engine.
    pub(crate) fn rmdir(&self, dir: NodeId, name: &[u8]) -> Reply<()> {
        let _open = self.enter()?;
        check_name(name)?;
        let dir = self.map.ino(dir);
        self.fs.rmdir(dir, name).map_err(errno)?;
        self.settle_names(dir)
    }

    /// Renames, with the flags of `renameat2`.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a name of more than 255 bytes; `EINVAL` for other flags; errors of the
    /// engine.
    pub(crate) fn rename(
        &self,
        who: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Reply<()> {
        let _open = self.enter()?;
        check_name(from.1)?;
        check_name(to.1)?;
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            flags if flags & !libc::RENAME_NOREPLACE == libc::RENAME_WHITEOUT => {
                RenameMode::Whiteout {
                    who: who.credentials(),
                    replace: flags == libc::RENAME_WHITEOUT,
                }
            }
            _ => return Err(libc::EINVAL),
        };
        let (from_dir, to_dir) = (self.map.ino(from.0), self.map.ino(to.0));
        self.fs
            .rename(from_dir, from.1, to_dir, to.1, mode)
            .map_err(errno)?;
        self.settle_names(to_dir)?;
        if from_dir == to_dir {
            Ok(())
        } else {
            self.settle_names(from_dir)
        }
    }

    /// Makes a file or directory durable.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn fsync(&self, node: NodeId, data_only: bool) -> Reply<()> {
        let _open = self.enter()?;
        let kind = if data_only {
            SyncKind::Data
        } else {
            SyncKind::All
        };
        self.fs.fsync(self.map.ino(node), kind).map_err(errno)
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn syncfs(&self) -> Reply<()> {
        let _open = self.enter()?;
        self.fs.sync().map_err(errno)
    }

    /// Passes one page of a directory, from `cookie` on, to `sink`: as much as it takes, and at
    /// most `max_bytes` on the wire. An empty page is the end.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn readdir(
        &self,
        dir: NodeId,
        cookie: u64,
        max_bytes: usize,
        kind: PageKind,
        sink: DirSink<'_>,
    ) -> Reply<()> {
        let _open = self.enter()?;
        let request = PageRequest {
            dir: self.map.ino(dir),
            cookie,
            max_bytes,
            kind,
        };
        let mut noting = |item: &DirItem, attributes: Option<&DirAttributes>| {
            let taken = sink(item, attributes);
            if let Some(given) = attributes.filter(|given| taken && given.node != NodeId::NONE) {
                self.prune.referenced(&*self.fs, self.map.ino(given.node));
            }
            taken
        };
        readdir::page(&*self.fs, self.map, request, &mut noting).map_err(errno)
    }

    /// Sizes and counts.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn statfs(&self) -> Reply<FsStat> {
        let _open = self.enter()?;
        self.fs.statfs().map_err(errno)
    }
}

fn errno(error: Error) -> i32 {
    error.errno()
}

fn check_name(name: &[u8]) -> Reply<()> {
    if name.len() > NAME_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(libc::EINVAL);
    }
    Ok(())
}
