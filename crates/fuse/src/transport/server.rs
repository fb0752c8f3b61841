//! Passes decoded requests to the dispatcher and encodes the results.

use std::io;
use std::sync::Arc;

use sapwood_vfs::{SetAttr, SetTime, Timestamp};

use super::device::{self, Device, HEADROOM};
use super::forgets::{Arrival, Forgets, Reader};
use super::later::{Command, Job, Outcome, guarded};
use super::pages::Readers;
use crate::control;
use crate::dispatch::Dispatcher;
use crate::ioctl;
use crate::node::NodeId;
use crate::options::MAX_IO;
use crate::permissions::Admission;
use crate::readdir::{DirAttributes, DirItem, PageKind};
use crate::request::{Caller, Changes, NodeEntry, Reply, XattrReply};
use crate::wire::abi::{GetXattrOut, InHeader, IoctlIn, ReadIn, SetAttrIn};
use crate::wire::flags::{FSYNC_FDATASYNC, SETXATTR_ACL_KILL_SGID, SetAttrValid};
use crate::wire::reply::{self, Page};
use crate::wire::{self, Body, Opcode, Operation};

/// Called for the kernel's last request, which is answered when this returns.
pub(crate) type OnDestroy = Box<dyn Fn() + Send + Sync>;

/// Turns requests into calls of the dispatcher. All request threads share it.
pub(super) struct Server {
    dispatcher: Arc<Dispatcher>,
    long_setxattr: bool,
    admission: Admission,
    forgets: Forgets,
    on_destroy: OnDestroy,
    pub(super) readers: Readers,
}

impl Server {
    pub(super) fn new(
        dispatcher: Arc<Dispatcher>,
        long_setxattr: bool,
        admission: Admission,
        on_destroy: OnDestroy,
    ) -> Self {
        Self {
            dispatcher,
            long_setxattr,
            admission,
            forgets: Forgets::default(),
            on_destroy,
            readers: Readers::default(),
        }
    }

    /// Releases the references of an answer that could not be delivered.
    pub(super) fn release(&self, nodes: &[NodeId]) {
        for &node in nodes {
            self.dispatcher.forget(node, 1);
        }
    }

    /// The calling thread begins to read `device`, which carries requests and forgets.
    pub(super) fn reads_forgets(&self, device: &Arc<Device>) -> Reader<'_> {
        self.forgets.reader(device)
    }

    /// Takes over the `/dev/fuse` device while most requests arrive through io_uring.
    ///
    /// # Errors
    /// Errors of system calls.
    pub(super) fn use_for_forgets(&self, device: &Arc<Device>) -> io::Result<()> {
        let longest = usize::try_from(MAX_IO).map_err(io::Error::other)? + HEADROOM;
        self.forgets.use_for_forgets(device, longest)
    }

    /// Serves that device until the connection ends. Several threads may call it.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn serve_forgets(&self, device: &Device) -> io::Result<()> {
        loop {
            match self.forgets.receive()? {
                Arrival::Message(message, _in_progress) => {
                    self.serve_forget_message(device, &message)
                }
                Arrival::Nothing => self.forgets.wait_for_messages(),
                Arrival::Ended => return Ok(()),
            }
        }
    }

    /// From now on [`defer`](Self::defer) takes forgets. Call it before
    /// [`serve_deferred`](Self::serve_deferred).
    pub(super) fn defer_forgets(&self) {
        self.forgets.deferred.open();
    }

    /// No thread serves deferred forgets, or none will defer one.
    pub(super) fn end_deferring(&self) {
        self.forgets.deferred.close();
    }

    /// Passes a forget to the thread of forgets, if it takes it.
    pub(super) fn defer(&self, message: &[u8]) -> bool {
        self.forgets.defer(message)
    }

    /// Serves deferred forgets until the connection ends.
    ///
    /// # Errors
    /// None. The result has the type of every thread of the pool.
    pub(super) fn serve_deferred(&self, device: &Device) -> io::Result<()> {
        while let Some(message) = self.forgets.deferred.take() {
            let _in_progress = self.forgets.resume(message.number);
            self.serve_forget_message(device, &message.bytes);
        }
        Ok(())
    }

    fn serve_forget_message(&self, device: &Device, message: &[u8]) {
        let (header, body) = match wire::split_message(message) {
            Ok(split) => split,
            Err(error) => return device::malformed(device, message, error),
        };
        let answered = match self.once(&header, body, &mut []) {
            Outcome::Silent => return,
            Outcome::Answer(Err(errno)) => device.refuse(header.unique, errno),
            // Apart from forgets, only interrupts arrive here.
            Outcome::Answer(Ok(_)) | Outcome::AnswerThen(..) | Outcome::Later(_) => {
                device.refuse(header.unique, libc::EIO)
            }
        };
        if let Err(error) = answered {
            device::undelivered(header.opcode, &error);
        }
    }

    /// Serves one request. The payload of the answer goes to the start of `out`.
    pub(super) fn handle(&self, header: &InHeader, body: Body<'_>, out: &mut [u8]) -> Outcome {
        if header.opcode == Opcode::SyncFs as u32 || header.opcode == Opcode::Destroy as u32 {
            self.settle_forgets();
        }
        let serve = |device: &Device, message: &[u8]| self.serve_forget_message(device, message);
        let no_space = |outcome: &Outcome| {
            matches!(outcome, Outcome::Answer(Err(libc::ENOSPC | libc::EDQUOT)))
        };
        let once = || self.once(header, body, out);
        self.forgets.retry(once, no_space, serve)
    }

    /// Waits until all forgets that were sent before now are served.
    fn settle_forgets(&self) {
        self.forgets
            .settle(|device, message| self.serve_forget_message(device, message));
    }

    fn once(&self, header: &InHeader, body: Body<'_>, out: &mut [u8]) -> Outcome {
        let operation = Opcode::try_from(header.opcode).and_then(|opcode| {
            let operation = Operation::decode(opcode, body, self.long_setxattr)?;
            Ok((opcode, operation))
        });
        let operation = match operation {
            Ok((opcode, operation)) => {
                self.dispatcher.requests().count(opcode);
                operation
            }
            Err(error) => {
                log::warn!("request of opcode {}: {error}", header.opcode);
                return Outcome::Answer(Err(error.errno()));
            }
        };
        if !self.admission.admits(header.uid, &operation) {
            return Outcome::Answer(Err(libc::EACCES));
        }
        let call = Call {
            server: self,
            header,
        };
        match guarded(&self.dispatcher, || call.run(operation, out)) {
            Outcome::Answer(Ok(len)) if self.dispatcher.wants_pruning() => {
                Outcome::AnswerThen(Ok(len), Job::Prune)
            }
            outcome => outcome,
        }
    }
}

/// One request in progress.
pub(super) struct Call<'a> {
    pub(super) server: &'a Server,
    header: &'a InHeader,
}

impl Call<'_> {
    pub(super) fn dispatcher(&self) -> &Dispatcher {
        &self.server.dispatcher
    }

    pub(super) fn node(&self) -> NodeId {
        NodeId(self.header.nodeid)
    }

    pub(super) fn caller(&self, umask: u32) -> Caller {
        Caller {
            uid: self.header.uid,
            gid: self.header.gid,
            umask,
            pid: self.header.pid,
        }
    }

    fn run(&self, operation: Operation<'_>, out: &mut [u8]) -> Outcome {
        let (to, node) = (self.dispatcher(), self.node());
        match operation {
            Operation::Forget { count } => {
                let _in_progress = self.server.forgets.begin();
                to.forget(node, count);
                Outcome::Silent
            }
            Operation::BatchForget(nodes) => {
                let _in_progress = self.server.forgets.begin();
                for one in nodes {
                    to.forget(NodeId(one.nodeid), one.nlookup);
                }
                Outcome::Silent
            }
            Operation::Lseek(args) => self.lseek(&args, out),
            Operation::Ioctl { args, input } => self.ioctl(&args, input, out),
            Operation::Read(args) => self.read(&args, out).into(),
            Operation::Write { args, data } => self.write(&args, data, out),
            Operation::ReadDir(args) => self.readdir(&args, PageKind::Names, out).into(),
            Operation::ReadDirPlus(args) => self.readdir(&args, PageKind::Attributes, out).into(),
            Operation::CopyFileRange { args, wide } => self.copy(&args, wide, out).into(),
            // After an interrupt the kernel still waits for the answer. With `ENOSYS` it sends no
            // more interrupts.
            Operation::NotServed | Operation::Interrupt => Err(libc::ENOSYS).into(),
            Operation::Init(_) => Err(libc::EIO).into(),
            Operation::Release => Ok(0).into(),
            Operation::Destroy => {
                (self.server.on_destroy)();
                Ok(0).into()
            }
            other => self.metadata(other, out).into(),
        }
    }

    /// Requests about names and attributes.
    fn metadata(&self, operation: Operation<'_>, out: &mut [u8]) -> Reply<usize> {
        let (to, node) = (self.dispatcher(), self.node());
        match operation {
            Operation::Lookup { name } => {
                let entry = match to.lookup(node, name)? {
                    Some(entry) => reply::entry(to.ttl(), &entry),
                    None => reply::absent(to.ttl()),
                };
                reply::put(out, &entry)
            }
            Operation::Access { mask } => {
                to.access(node, mask)?;
                Ok(0)
            }
            Operation::GetAttr => reply::put(out, &reply::attributes(to.ttl(), &to.getattr(node)?)),
            Operation::Statx => reply::put(out, &reply::statx(to.ttl(), &to.getattr(node)?)),
            Operation::SetAttr(args) => {
                let attr = to.setattr(self.caller(0), node, &changes(&args))?;
                reply::put(out, &reply::attributes(to.ttl(), &attr))
            }
            Operation::ReadLink => reply::bytes(out, &to.readlink(node)?),
            Operation::Symlink { name, target } => {
                self.entry(to.symlink(self.caller(0), node, name, target)?, out)
            }
            Operation::Mknod { args, name } => {
                let who = self.caller(args.umask);
                self.entry(to.mknod(who, node, name, args.mode, args.rdev)?, out)
            }
            Operation::Mkdir { args, name } => {
                let who = self.caller(args.umask);
                self.entry(to.mkdir(who, node, name, args.mode)?, out)
            }
            Operation::TmpFile { args } => {
                let made = to.tmpfile(self.caller(args.umask), node, args.mode)?;
                reply::opened(out, &reply::entry(to.ttl(), &made))
            }
            Operation::Link { source, name } => {
                self.entry(to.link(NodeId(source), node, name)?, out)
            }
            Operation::Unlink { name } => to.unlink(node, name).map(|()| 0),
            Operation::Rmdir { name } => to.rmdir(node, name).map(|()| 0),
            Operation::Rename {
                args,
                from: old,
                to: new,
            } => {
                let target = (NodeId(args.newdir), new);
                let who = self.caller(0);
                to.rename(who, (node, old), target, args.flags).map(|()| 0)
            }
            Operation::StatFs => reply::put(out, &reply::statfs(&to.statfs()?)),
            Operation::Fsync { flags } => to.fsync(node, flags & FSYNC_FDATASYNC != 0).map(|()| 0),
            Operation::SyncFs => to.syncfs().map(|()| 0),
            Operation::Fallocate(args) => {
                let (who, mode) = (self.caller(0), args.mode.cast_signed());
                to.fallocate(who, node, args.offset, args.length, mode)
                    .map(|()| 0)
            }
            other => self.attribute(other, out),
        }
    }

    /// Requests about extended attributes.
    fn attribute(&self, operation: Operation<'_>, out: &mut [u8]) -> Reply<usize> {
        let (to, node) = (self.dispatcher(), self.node());
        let answer = match operation {
            Operation::SetXattr { args, name, value } => {
                let kill_setgid = args.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0;
                let flags = args.flags.cast_signed();
                return to
                    .setxattr(node, name, value, flags, kill_setgid)
                    .map(|()| 0);
            }
            Operation::RemoveXattr { name } => return to.removexattr(node, name).map(|()| 0),
            Operation::GetXattr { size, name } => to.getxattr(node, name, size)?,
            Operation::ListXattr { size } => to.listxattr(node, size)?,
            _ => return Err(libc::ENOSYS),
        };
        match answer {
            XattrReply::Size(size) => reply::put(out, &GetXattrOut { size, padding: 0 }),
            XattrReply::Data(data) => reply::bytes(out, &data),
        }
    }

    fn entry(&self, entry: NodeEntry, out: &mut [u8]) -> Reply<usize> {
        reply::put(out, &reply::entry(self.dispatcher().ttl(), &entry))
    }

    fn readdir(&self, args: &ReadIn, kind: PageKind, out: &mut [u8]) -> Reply<usize> {
        let size = usize::try_from(args.size).unwrap_or(usize::MAX);
        let size = size.min(out.len());
        let mut page = Page::new(out.get_mut(..size).ok_or(libc::EIO)?);
        let to = self.dispatcher();
        let mut add = |item: &DirItem, attributes: Option<&DirAttributes>| match attributes {
            Some(attributes) => page.add_plus(to.ttl(), item, attributes),
            None => page.add(item),
        };
        to.readdir(self.node(), args.offset, size, kind, &mut add)?;
        Ok(page.len())
    }

    fn ioctl(&self, args: &IoctlIn, input: &[u8], out: &mut [u8]) -> Outcome {
        let command = Command {
            who: self.caller(0),
            node: self.node(),
            number: args.cmd,
            input: input.to_vec(),
            out_size: usize::try_from(args.out_size).unwrap_or(usize::MAX),
        };
        if control::wants_settled(args.cmd) {
            self.server.settle_forgets();
            return Outcome::Later(Job::Settled(command));
        }
        if ioctl::sets_flags(args.cmd) {
            return Outcome::Later(Job::Flags(command));
        }
        command.run(self.dispatcher(), out)
    }
}

/// The changes that a `setattr` asks for.
fn changes(args: &SetAttrIn) -> Changes {
    let valid = SetAttrValid::from_bits_truncate(args.valid);
    let time = |set: SetAttrValid, now: SetAttrValid, sec: i64, nsec: u32| {
        if valid.contains(now) {
            Some(SetTime::Now)
        } else {
            valid
                .contains(set)
                .then_some(SetTime::To(Timestamp { sec, nsec }))
        }
    };
    let set = SetAttr {
        perm: valid
            .contains(SetAttrValid::MODE)
            .then_some(args.mode & 0o7777),
        uid: valid.contains(SetAttrValid::UID).then_some(args.uid),
        gid: valid.contains(SetAttrValid::GID).then_some(args.gid),
        size: valid.contains(SetAttrValid::SIZE).then_some(args.size),
        atime: time(
            SetAttrValid::ATIME,
            SetAttrValid::ATIME_NOW,
            args.atime,
            args.atimensec,
        ),
        mtime: time(
            SetAttrValid::MTIME,
            SetAttrValid::MTIME_NOW,
            args.mtime,
            args.mtimensec,
        ),
        ctime: valid.contains(SetAttrValid::CTIME).then_some(Timestamp {
            sec: args.ctime,
            nsec: args.ctimensec,
        }),
        btime: None,
        kill_setid: false,
    };
    Changes {
        set,
        keep_setid: !valid.contains(SetAttrValid::KILL_SUIDGID),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sapwood_testing::MemoryFs;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::wire::abi::{BatchForgetIn, EntryOut, ForgetIn, ForgetOne, MkdirIn};

    fn server(admission: Admission) -> (Arc<MemoryFs>, Server) {
        let fs = Arc::new(MemoryFs::new());
        let dispatcher = Dispatcher::new(Arc::clone(&fs) as _, Duration::from_secs(1));
        (
            fs,
            Server::new(Arc::new(dispatcher), true, admission, Box::new(|| ())),
        )
    }

    fn ask(server: &Server, opcode: Opcode, uid: u32, body: &[u8], out: &mut [u8]) -> Outcome {
        let header = InHeader {
            opcode: opcode as u32,
            nodeid: NodeId::ROOT.0,
            uid,
            ..InHeader::default()
        };
        server.handle(&header, Body::joined(body), out)
    }

    fn mkdir() -> Vec<u8> {
        let mut body = MkdirIn::default().as_bytes().to_vec();
        body.extend_from_slice(b"dir\0");
        body
    }

    #[test]
    fn an_undelivered_answer_releases_its_references() {
        let (fs, server) = server(Admission::Anyone);
        let mut out = [0; 4096];
        let Outcome::Answer(Ok(len)) = ask(&server, Opcode::Mkdir, 0, &mkdir(), &mut out) else {
            panic!("not made");
        };
        let gone = ask(&server, Opcode::Rmdir, 0, b"dir\0", &mut [0; 16]);
        assert!(matches!(gone, Outcome::Answer(Ok(0))));
        assert_eq!(fs.inode_count(), 2);
        server.release(&reply::granted(Opcode::Mkdir as u32, &out[..len]));
        assert_eq!(fs.inode_count(), 1);
    }

    #[test]
    fn a_forget_releases_its_count() {
        let (fs, server) = server(Admission::Anyone);
        let mut out = [0; 4096];
        ask(&server, Opcode::Mkdir, 0, &mkdir(), &mut out);
        for _ in 0..3 {
            ask(&server, Opcode::Lookup, 0, b"dir\0", &mut out);
        }
        assert_eq!(fs.held_references(), 4);
        let entry = EntryOut::read_from_prefix(&out).map(|(entry, _)| entry);
        let nodeid = entry.map_or(0, |entry| entry.nodeid);
        let one = InHeader {
            opcode: Opcode::Forget as u32,
            nodeid,
            ..InHeader::default()
        };
        let count = ForgetIn { nlookup: 2 };
        let forgotten = server.handle(&one, Body::joined(count.as_bytes()), &mut []);
        assert!(matches!(forgotten, Outcome::Silent));
        assert_eq!(fs.held_references(), 2);
        let batch = InHeader {
            opcode: Opcode::BatchForget as u32,
            ..InHeader::default()
        };
        let mut body = BatchForgetIn { count: 1, dummy: 0 }.as_bytes().to_vec();
        body.extend_from_slice(ForgetOne { nodeid, nlookup: 1 }.as_bytes());
        server.handle(&batch, Body::joined(&body), &mut []);
        assert_eq!(fs.held_references(), 1);
    }

    #[test]
    fn statfs_does_not_wait_for_a_forget() {
        let (_, server) = server(Admission::Anyone);
        let _in_progress = server.forgets.begin();
        let answer = ask(&server, Opcode::StatFs, 0, &[], &mut [0; 200]);
        assert!(matches!(answer, Outcome::Answer(Ok(_))));
    }

    #[test]
    fn a_panic_ends_service() {
        let (_, server) = server(Admission::Anyone);
        let outcome = guarded(&server.dispatcher, || panic!("planted"));
        assert!(matches!(outcome, Outcome::Answer(Err(libc::EIO))));
        while !matches!(
            ask(&server, Opcode::GetAttr, 0, &[0; 16], &mut [0; 200]),
            Outcome::Answer(Err(libc::EIO))
        ) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn other_users_may_only_use_open_files() {
        let (_, server) = server(Admission::OwnerAndRoot(1000));
        let mut out = [0; 4096];
        for (uid, allowed) in [(0, true), (1000, true), (1001, false)] {
            let looked = ask(&server, Opcode::Lookup, uid, b"dir\0", &mut out);
            let refused = matches!(looked, Outcome::Answer(Err(libc::EACCES)));
            assert_eq!(refused, !allowed);
            let synced = ask(&server, Opcode::Fsync, uid, &[0; 16], &mut out);
            assert!(matches!(synced, Outcome::Answer(Ok(0))));
        }
    }

    #[test]
    fn an_answer_that_does_not_fit_is_an_error() {
        let (_, server) = server(Admission::Anyone);
        let small = ask(&server, Opcode::GetAttr, 0, &[0; 16], &mut [0; 100]);
        assert!(matches!(small, Outcome::Answer(Err(libc::EIO))));
        let none = ask(&server, Opcode::Lookup, 0, b"none\0", &mut []);
        assert!(matches!(none, Outcome::Answer(Err(libc::EIO))));
    }
}
