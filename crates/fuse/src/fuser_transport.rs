//! The transport on the crate `fuser`: requests in, answers out. The only module that
//! knows `fuser`.
//!
//! What `fuser` 0.18 does not carry, and what stands in for it:
//! - `FUSE_TMPFILE`, `FUSE_STATX` (creation time), `FUSE_SYNCFS`: unknown to it; it answers
//!   `ENOSYS`, and the kernel does without.
//! - Whether the caller of a truncation may keep set-id bits: root is taken to.
//! - The clearing of the set-group-id bit when an ACL is set (`FUSE_SETXATTR_EXT`).
//! - Times before 1970: it adds the nanoseconds on the wrong side; undone in [`timestamp`].
//! - A node's id is always the inode number that `stat` shows.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Config, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, Request,
    SessionACL, TimeOrNow, WriteFlags,
};
use sapwood_vfs::{Attr, FileKind, SetTime, Timestamp};

use crate::dispatch::{Caller, Changes, Dispatcher, NodeEntry, Reply, WriteRequest, XattrReply};
use crate::node::{NodeId, encode_device};
use crate::options::{Access, MountOptions};
use crate::readdir::{DirAttributes, DirItem, PageKind};

/// Largest read or write, in bytes: what the kernel allows by default.
const MAX_IO: u32 = 1 << 20;
/// Readahead and write-back requests that the kernel keeps under way.
const MAX_BACKGROUND: u16 = 128;

thread_local! {
    /// One read's data; each request thread keeps its own.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An answered handshake, ready to serve.
pub(crate) struct Transport(fuser::Session<Server>);

impl Transport {
    /// Answers the kernel's first request on `device`.
    ///
    /// # Errors
    /// The kernel's protocol is unknown, or the connection is gone.
    pub(crate) fn handshake(
        device: OwnedFd,
        dispatcher: Arc<Dispatcher>,
        options: &MountOptions,
        read_only: bool,
    ) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(options.thread_count());
        // An ordinary user may not be able to open the device a second time.
        config.clone_fd = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_ok();
        // With `Owner` the kernel itself refuses others, but not its own write-back threads,
        // whom `fuser` would refuse: so that check stays off.
        let acl = match options.access {
            Access::OwnerAndRoot => SessionACL::RootAndOwner,
            Access::Owner | Access::All => SessionACL::All,
        };
        let server = Server {
            dispatcher,
            writeback: options.writeback_cache && !read_only,
            posix_acl: options.default_permissions,
        };
        fuser::Session::from_fd(server, device, acl, config).map(Self)
    }

    /// Serves requests until the file system is unmounted or the connection ends.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn serve(self) -> io::Result<()> {
        self.0.run()
    }
}

/// Receives `fuser`'s calls.
struct Server {
    dispatcher: Arc<Dispatcher>,
    writeback: bool,
    posix_acl: bool,
}

impl Server {
    fn ttl(&self) -> Duration {
        self.dispatcher.ttl()
    }

    fn reply_entry(&self, entry: Reply<NodeEntry>, reply: fuser::ReplyEntry) {
        match entry {
            Ok(entry) => {
                let attr = file_attr(entry.node, &entry.attr);
                reply.entry(&self.ttl(), &attr, Generation(entry.attr.generation));
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn reply_attr(&self, node: INodeNo, attr: Reply<Attr>, reply: fuser::ReplyAttr) {
        match attr {
            Ok(attr) => reply.attr(&self.ttl(), &shown_attr(node, &attr)),
            Err(error) => reply.error(errno(error)),
        }
    }
}

fn errno(error: i32) -> Errno {
    Errno::from_i32(error)
}

fn node(ino: INodeNo) -> NodeId {
    NodeId(ino.0)
}

fn caller(request: &Request, umask: u32) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        umask,
    }
}

fn reply_empty(result: Reply<()>, reply: fuser::ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_xattr(result: Reply<XattrReply>, reply: fuser::ReplyXattr) {
    match result {
        Ok(XattrReply::Size(size)) => reply.size(size),
        Ok(XattrReply::Data(data)) => reply.data(&data),
        Err(error) => reply.error(errno(error)),
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(time.nsec.into());
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let base = if time.sec < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|base| base.checked_add(nanos))
        .unwrap_or(UNIX_EPOCH)
}

/// The kernel's time, from what `fuser` made of it: before 1970 it takes seconds *and*
/// nanoseconds off, where the nanoseconds are to be added.
fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nsec: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            Timestamp {
                sec: 0_i64.saturating_sub_unsigned(before.as_secs()),
                nsec: before.subsec_nanos(),
            }
        }
    }
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(timestamp(time)),
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Attributes with the node's id as inode number, as an entry needs them.
fn file_attr(node: NodeId, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(node.0),
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.kind),
        perm: u16::try_from(attr.perm & 0o7777).unwrap_or(0),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Attributes with the number that `stat` shows: the engine's for the root too.
fn shown_attr(node: INodeNo, attr: &Attr) -> FileAttr {
    if node == INodeNo::ROOT {
        file_attr(NodeId(attr.ino.0), attr)
    } else {
        file_attr(NodeId(node.0), attr)
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_PARALLEL_DIROPS;
        if self.writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        if self.posix_acl {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        let offered = config.capabilities() & wanted;
        let missing = wanted - offered;
        if !missing.is_empty() {
            log::info!("the kernel's FUSE does not offer {missing:?}");
        }
        if config.add_capabilities(offered).is_err() {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        // These only say which value would do; what is set by then is a working default.
        let _ = config.set_max_write(MAX_IO);
        let _ = config.set_max_background(MAX_BACKGROUND);
        if let Err(most) = config.set_max_readahead(MAX_IO) {
            let _ = config.set_max_readahead(most);
        }
        self.dispatcher
            .set_writeback(offered.contains(InitFlags::FUSE_WRITEBACK_CACHE));
        Ok(())
    }

    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        match self.dispatcher.lookup(node(dir), name.as_bytes()) {
            Ok(Some(entry)) => self.reply_entry(Ok(entry), reply),
            Ok(None) => reply.entry(&self.ttl(), &ABSENT, Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        self.dispatcher.forget(node(ino), count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: fuser::ReplyAttr) {
        self.reply_attr(ino, self.dispatcher.getattr(node(ino)), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        let changes = Changes {
            set: sapwood_vfs::SetAttr {
                perm: mode.map(|mode| mode & 0o7777),
                uid,
                gid,
                size,
                atime: atime.map(set_time),
                mtime: mtime.map(set_time),
                ctime: ctime.map(timestamp),
                btime: None,
                kill_setid: false,
            },
            keep_setid: request.uid() == 0,
        };
        self.reply_attr(ino, self.dispatcher.setattr(node(ino), &changes), reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: fuser::ReplyData) {
        match self.dispatcher.readlink(node(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: fuser::ReplyEntry,
    ) {
        let who = caller(request, umask);
        let made = self
            .dispatcher
            .mknod(who, node(dir), name.as_bytes(), mode, rdev);
        self.reply_entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: fuser::ReplyEntry,
    ) {
        let who = caller(request, umask);
        let made = self.dispatcher.mkdir(who, node(dir), name.as_bytes(), mode);
        self.reply_entry(made, reply);
    }

    fn unlink(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        reply_empty(self.dispatcher.unlink(node(dir), name.as_bytes()), reply);
    }

    fn rmdir(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        reply_empty(self.dispatcher.rmdir(node(dir), name.as_bytes()), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: fuser::ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let who = caller(request, 0);
        let made = self
            .dispatcher
            .symlink(who, node(dir), name.as_bytes(), target);
        self.reply_entry(made, reply);
    }

    fn rename(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        new_dir: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let from = (node(dir), name.as_bytes());
        let to = (node(new_dir), new_name.as_bytes());
        reply_empty(self.dispatcher.rename(from, to, flags.bits()), reply);
    }

    fn link(
        &self,
        _: &Request,
        ino: INodeNo,
        dir: INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEntry,
    ) {
        let linked = self.dispatcher.link(node(ino), node(dir), name.as_bytes());
        self.reply_entry(linked, reply);
    }

    /// Not answered, once and for all: the kernel then opens without asking.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: fuser::ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    /// As [`open`](Self::open).
    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: fuser::ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    /// Not answered: the kernel then makes the node and opens it without asking, and has
    /// nothing to tell us when it is closed.
    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: fuser::ReplyCreate,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// Not answered: there is nothing to do when a descriptor is closed.
    fn flush(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    /// Not answered: the kernel checks by itself.
    fn access(&self, _: &Request, _: INodeNo, _: fuser::AccessFlags, reply: fuser::ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: fuser::ReplyData,
    ) {
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = usize::try_from(size.min(MAX_IO)).unwrap_or(0);
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let buffer = &mut buffer[..size];
            match self.dispatcher.read(node(ino), offset, buffer) {
                Ok(count) => reply.data(&buffer[..count.min(size)]),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let request = WriteRequest {
            node: node(ino),
            offset,
            data,
            kill_setid: flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        match (self.dispatcher.write(&request), u32::try_from(data.len())) {
            (Ok(()), Ok(len)) => reply.written(len),
            (Ok(()), Err(_)) => reply.error(Errno::EIO),
            (Err(error), _) => reply.error(errno(error)),
        }
    }

    fn fsync(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        reply_empty(self.dispatcher.fsync(node(ino), data_only), reply);
    }

    fn fsyncdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        reply_empty(self.dispatcher.fsync(node(ino), data_only), reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectory,
    ) {
        let mut add = |item: &DirItem, _: Option<&DirAttributes>| {
            let name = OsStr::from_bytes(&item.name);
            !reply.add(INodeNo(item.ino.0), item.cookie, file_type(item.kind), name)
        };
        let kind = PageKind::Names;
        match self
            .dispatcher
            .readdir(node(ino), offset, PAGE_BYTES, kind, &mut add)
        {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectoryPlus,
    ) {
        let ttl = self.ttl();
        let mut add = |item: &DirItem, attributes: Option<&DirAttributes>| {
            let Some(DirAttributes { node: id, attr }) = attributes else {
                return false;
            };
            // Of the two dots the kernel takes no more than the number and the name.
            let shown = if *id == NodeId::NONE {
                NodeId(item.ino.0)
            } else {
                *id
            };
            !reply.add(
                INodeNo(shown.0),
                item.cookie,
                OsStr::from_bytes(&item.name),
                &ttl,
                &file_attr(shown, attr),
                Generation(attr.generation),
            )
        };
        let kind = PageKind::Attributes;
        match self
            .dispatcher
            .readdir(node(ino), offset, PAGE_BYTES, kind, &mut add)
        {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: fuser::ReplyStatfs) {
        match self.dispatcher.statfs() {
            Ok(stat) => reply.statfs(
                stat.blocks,
                stat.blocks_free,
                stat.blocks_available,
                stat.inodes,
                stat.inodes_free,
                stat.block_size,
                stat.name_max,
                stat.block_size,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: fuser::ReplyEmpty,
    ) {
        let set = self
            .dispatcher
            .setxattr(node(ino), name.as_bytes(), value, flags);
        reply_empty(set, reply);
    }

    fn getxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        let value = self.dispatcher.getxattr(node(ino), name.as_bytes(), size);
        reply_xattr(value, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: fuser::ReplyXattr) {
        reply_xattr(self.dispatcher.listxattr(node(ino), size), reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let removed = self.dispatcher.removexattr(node(ino), name.as_bytes());
        reply_empty(removed, reply);
    }

    fn ioctl(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        input: &[u8],
        out_size: u32,
        reply: fuser::ReplyIoctl,
    ) {
        let out_size = usize::try_from(out_size).unwrap_or(0);
        match self.dispatcher.ioctl(node(ino), command, input, out_size) {
            Ok(output) => reply.ioctl(0, &output),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        let done = self.dispatcher.fallocate(node(ino), offset, len, mode);
        reply_empty(done, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        match self.dispatcher.lseek(node(ino), offset, whence) {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        // The answer has 32 bits; a shorter copy is allowed.
        let len = len.min(u64::from(u32::MAX & !0xfff));
        let copied =
            self.dispatcher
                .copy_file_range((node(from), from_offset), (node(to), to_offset), len);
        match copied.and_then(|count| u32::try_from(count).map_err(|_| libc::EIO)) {
            Ok(count) => reply.written(count),
            Err(error) => reply.error(errno(error)),
        }
    }
}

/// Most of a directory page, in bytes. `fuser` does not say what the kernel asked for, only
/// when it is full; the C library asks for this much.
const PAGE_BYTES: usize = 32 << 10;

/// What `fuser` sends for a name that does not exist: no node.
const ABSENT: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_read_as_fuser_makes_them() {
        // What `fuser` makes of -2 s and 0.8 s.
        let made = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let time = Timestamp {
            sec: -2,
            nsec: 800_000_000,
        };
        assert_eq!(timestamp(made), time);
        assert_eq!(
            system_time(time),
            UNIX_EPOCH - Duration::new(1, 200_000_000)
        );
    }
}
