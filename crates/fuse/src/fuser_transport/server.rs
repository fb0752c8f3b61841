//! `fuser`'s calls, each handed to the dispatcher and its result to the reply.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use fuser::{
    CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, Request, TimeOrNow, WriteFlags,
};
use sapwood_vfs::Attr;

use super::convert::{
    ABSENT, caller, errno, file_attr, file_type, node, set_time, shown_attr, timestamp,
};
use super::helper::Job;
use crate::dispatch::Dispatcher;
use crate::node::NodeId;
use crate::readdir::{DirAttributes, DirItem, PageKind};
use crate::request::{Changes, ControlAnswer, NodeEntry, Reply, Seek, WriteRequest, XattrReply};

/// Largest read or write, in bytes: what the kernel allows by default.
const MAX_IO: u32 = 1 << 20;
/// Readahead and write-back requests that the kernel keeps under way.
const MAX_BACKGROUND: u16 = 128;

/// Most of a directory page, in bytes. `fuser` does not say what the kernel asked for, only
/// when it is full; the C library asks for this much.
const PAGE_BYTES: usize = 32 << 10;

thread_local! {
    /// One read's data; each request thread keeps its own.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Receives `fuser`'s calls.
pub(super) struct Server {
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) later: mpsc::Sender<Job>,
    pub(super) writeback: bool,
    pub(super) posix_acl: bool,
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
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        input: &[u8],
        out_size: u32,
        reply: fuser::ReplyIoctl,
    ) {
        let out_size = usize::try_from(out_size).unwrap_or(0);
        let who = caller(request, 0);
        match self
            .dispatcher
            .ioctl(who, node(ino), command, input, out_size)
        {
            Ok(ControlAnswer {
                output,
                changed_name: None,
            }) => reply.ioctl(0, &output),
            Ok(ControlAnswer {
                output,
                changed_name: Some(name),
            }) => {
                // Without its thread the job is dropped, which answers it with EIO.
                let _ = self.later.send(Job::Control {
                    dir: ino,
                    name,
                    output,
                    reply,
                });
            }
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
            Ok(Seek::Found(found)) => reply.offset(found),
            Ok(Seek::Unsettled { offset: start, len }) => {
                let start = i64::try_from(start).unwrap_or(i64::MAX);
                let len = len.and_then(|len| i64::try_from(len).ok()).unwrap_or(0);
                let job = Job::Seek {
                    ino,
                    offset,
                    whence,
                    range: (start, len),
                    reply,
                };
                // Without its thread the job is dropped, which answers it with EIO.
                let _ = self.later.send(job);
            }
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
        let len = len.min(u64::from(!0xfff_u32));
        let copied =
            self.dispatcher
                .copy_file_range((node(from), from_offset), (node(to), to_offset), len);
        match copied.and_then(|count| u32::try_from(count).map_err(|_| libc::EIO)) {
            Ok(count) => reply.written(count),
            Err(error) => reply.error(errno(error)),
        }
    }
}
