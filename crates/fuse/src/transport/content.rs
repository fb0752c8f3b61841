//! Requests about the contents of files.
//!
//! **Synchronous writes.** For a write with `O_SYNC`, `O_DSYNC`, `RWF_SYNC` or `RWF_DSYNC`, and in
//! a mount with `-o sync`, the kernel sends an fsync after the write. It sends none for a direct
//! write that its caller does not wait for (`io_submit`, io_uring). No request tells the two kinds
//! of direct write apart, so the server makes every synchronous direct write durable before its
//! answer ([`durable`]). An fsync that follows finds nothing to do.
//!
//! **Direct writes and the page cache.** The kernel drops the pages of the range before it sends a
//! direct write, and again after the answer only if the caller waits. In between, a reader can fill
//! the pages with the old content. So the server has the pages dropped by a notification before it
//! answers, if the file was ever read or written through the page cache ([`Readers`]). Of very many
//! concurrent direct writes, some are answered while their pages are being dropped ([`Slot`]); a
//! reader may then see old content for that moment.
//!
//! Tests: `tests/mount/synchronous.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sapwood_vfs::{SetAttr, SetTime, SyncKind, Timestamp};

use super::init::MAX_BACKGROUND;
use super::later::{Job, found};
use super::server::{Call, Outcome};
use crate::node::NodeId;
use crate::request::{Changes, Reply, Seek, WriteRequest};
use crate::wire::abi::{
    CopyFileRangeIn, CopyFileRangeOut, LseekIn, ReadIn, SetAttrIn, WriteIn, WriteOut,
};
use crate::wire::flags::{READ_LOCKOWNER, SetAttrValid, WRITE_KILL_SUIDGID, WRITE_LOCKOWNER};
use crate::wire::{Body, Opcode, reply};

/// Whether a request may wait for the device. Threads are added for such requests only: a few
/// threads that never sleep serve short requests faster than many that must be woken.
pub(super) fn takes_long(opcode: u32, mut body: Body<'_>) -> bool {
    if opcode == Opcode::Write as u32 {
        return body
            .header("write")
            .is_ok_and(|args| durable(&args).is_some());
    }
    Opcode::try_from(opcode).is_ok_and(|opcode| {
        matches!(
            opcode,
            Opcode::Fsync
                | Opcode::FsyncDir
                | Opcode::SyncFs
                | Opcode::Read
                | Opcode::ReadDir
                | Opcode::ReadDirPlus
                | Opcode::Lseek
                | Opcode::Ioctl
                | Opcode::Fallocate
                | Opcode::CopyFileRange
                | Opcode::CopyFileRange64
        )
    })
}

/// Whether a request waits for the device to make something durable, or runs for long.
pub(super) fn waits(opcode: u32, body: Body<'_>) -> bool {
    let short = [
        Opcode::Read,
        Opcode::ReadDir,
        Opcode::ReadDirPlus,
        Opcode::Lseek,
    ];
    takes_long(opcode, body) && !short.iter().any(|&short| short as u32 == opcode)
}

/// What a write must make durable before its answer.
fn durable(args: &WriteIn) -> Option<SyncKind> {
    let flags = args.flags.cast_signed();
    if !is_direct(args) || flags & libc::O_DSYNC == 0 || sapwood_fault::planted(250) {
        return None;
    }
    // `O_SYNC` includes the bit of `O_DSYNC` and one of its own.
    match flags & libc::O_SYNC == libc::O_SYNC {
        true => Some(SyncKind::All),
        false => Some(SyncKind::Data),
    }
}

/// Whether a write bypassed the page cache: only for those does the kernel set the lock owner.
fn is_direct(args: &WriteIn) -> bool {
    args.write_flags & WRITE_LOCKOWNER != 0
}

/// Nodes whose pages the kernel may hold: one bit per hash of a node, never cleared. A collision
/// only costs a needless notification.
pub(super) struct Readers {
    cached: Box<[AtomicU64; Self::WORDS]>,
    direct: Box<[AtomicU64; Self::WORDS]>,
    waiting: Arc<AtomicUsize>,
}

/// Permission for a direct write to wait until the kernel has dropped pages.
///
/// The kernel locks a page while a read into it is in flight, and sends a limited number of reads
/// and direct writes at a time. If all of them were direct writes that wait for the page, it would
/// never send the read. So at most half of them wait.
#[derive(Debug)]
pub(super) struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Readers {
    fn default() -> Self {
        let none = || Box::new([const { AtomicU64::new(0) }; Self::WORDS]);
        Self {
            cached: none(),
            direct: none(),
            waiting: Arc::default(),
        }
    }
}

impl Readers {
    const WORDS: usize = 1024;
    const MOST_WAITING: usize = MAX_BACKGROUND as usize / 2;

    /// Records a read into the page cache. Call it before the engine reads.
    fn reads(&self, node: NodeId) {
        set(&self.cached, node);
    }

    /// Records a write through the page cache. It matters only for files that also have direct
    /// writes: a file that is written through the cache and later directly costs no notification.
    fn writes(&self, node: NodeId) {
        if is_set(&self.direct, node) {
            set(&self.cached, node);
        }
    }

    /// Records a direct write that the engine has completed. Returns whether pages may be stale.
    fn wrote_directly(&self, node: NodeId) -> bool {
        set(&self.direct, node) || is_set(&self.cached, node)
    }
}

impl Readers {
    fn slot(&self) -> Option<Slot> {
        let slot = Slot(Arc::clone(&self.waiting));
        (self.waiting.fetch_add(1, Ordering::Relaxed) < Self::MOST_WAITING).then_some(slot)
    }
}

type Bits = [AtomicU64; Readers::WORDS];

fn place(bits: &Bits, node: NodeId) -> Option<(&AtomicU64, u64)> {
    // Fibonacci hashing: the upper bits depend on all bits of the number.
    let hash = node.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let word = bits.get(usize::try_from(hash >> 6).ok()?)?;
    Some((word, 1 << (hash & 63)))
}

fn is_set(bits: &Bits, node: NodeId) -> bool {
    place(bits, node).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
}

/// Sets a node's bit. True if it was not set before.
fn set(bits: &Bits, node: NodeId) -> bool {
    place(bits, node).is_some_and(|(word, bit)| {
        word.load(Ordering::SeqCst) & bit == 0 && word.fetch_or(bit, Ordering::SeqCst) & bit == 0
    })
}

impl Call<'_> {
    pub(super) fn read(&self, args: &ReadIn, out: &mut [u8]) -> Reply<usize> {
        if args.read_flags & READ_LOCKOWNER == 0 {
            self.server.readers.reads(self.node());
        }
        let size = usize::try_from(args.size).unwrap_or(usize::MAX);
        let size = size.min(out.len());
        let buffer = out.get_mut(..size).ok_or(libc::EIO)?;
        let count = self.dispatcher().read(self.node(), args.offset, buffer)?;
        Ok(count.min(size))
    }

    pub(super) fn write(&self, args: &WriteIn, data: &[u8], out: &mut [u8]) -> Outcome {
        let readers = &self.server.readers;
        let written = self.dispatcher().write(&WriteRequest {
            node: self.node(),
            offset: args.offset,
            data,
            kill_setid: args.write_flags & WRITE_KILL_SUIDGID != 0 && !sapwood_fault::planted(255),
            sync: durable(args),
        });
        if let Err(errno) = written {
            return Err(errno).into();
        }
        if !is_direct(args) {
            readers.writes(self.node());
        } else if readers.wrote_directly(self.node()) && !sapwood_fault::planted(251) {
            let job = |slot| Job::Written {
                node: self.node(),
                range: (
                    i64::try_from(args.offset).unwrap_or(i64::MAX),
                    i64::from(args.size),
                ),
                answer: write_out(args.size),
                _slot: slot,
            };
            return match readers.slot() {
                Some(slot) => Outcome::Later(job(Some(slot))),
                None => Outcome::AnswerThen(reply::put(out, &write_out(args.size)), job(None)),
            };
        }
        reply::put(out, &write_out(args.size)).into()
    }

    pub(super) fn lseek(&self, args: &LseekIn, out: &mut [u8]) -> Outcome {
        let (offset, whence) = (args.offset.cast_signed(), args.whence.cast_signed());
        match self.dispatcher().lseek(self.node(), offset, whence) {
            Ok(Seek::Found(at)) => found(out, at).into(),
            Ok(Seek::Unsettled { offset: start, len }) => {
                let start = i64::try_from(start).unwrap_or(i64::MAX);
                let len = len.and_then(|len| i64::try_from(len).ok()).unwrap_or(0);
                Outcome::Later(Job::Seek {
                    node: self.node(),
                    offset,
                    whence,
                    range: (start, len),
                })
            }
            Err(errno) => Err(errno).into(),
        }
    }

    pub(super) fn copy(&self, args: &CopyFileRangeIn, wide: bool, out: &mut [u8]) -> Reply<usize> {
        // The older answer has 32 bits. A shorter copy is allowed.
        let most = if wide {
            u64::MAX
        } else {
            u64::from(!0xfff_u32)
        };
        let bytes_copied = self.dispatcher().copy_file_range(
            self.caller(0),
            (self.node(), args.off_in),
            (NodeId(args.nodeid_out), args.off_out),
            args.len.min(most),
        )?;
        if wide {
            return reply::put(out, &CopyFileRangeOut { bytes_copied });
        }
        let size = u32::try_from(bytes_copied).map_err(|_| libc::EIO)?;
        reply::put(out, &write_out(size))
    }
}

fn write_out(size: u32) -> WriteOut {
    WriteOut { size, padding: 0 }
}

pub(super) fn changes(args: &SetAttrIn) -> Changes {
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
