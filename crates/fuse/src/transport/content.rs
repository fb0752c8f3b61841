//! Requests about the contents of files.
//!
//! **Synchronous writes.** For a write with `O_SYNC`, `O_DSYNC`, `RWF_SYNC` or `RWF_DSYNC`, and in
//! a mount with `-o sync`, the kernel sends an fsync after the write. It sends none for a direct
//! write that its caller does not wait for (`io_submit`, io_uring). The two kinds of direct write
//! look the same in a request, so the server makes every synchronous direct write durable before
//! its answer ([`durable`]), for `O_SYNC` with the times of the file. An fsync that follows finds
//! nothing to do. With a write-back cache the kernel still sends its own times of such a write
//! later, so a file may have a change of its times that is not durable at any moment.
//!
//! After a direct write the kernel may have to drop [pages](super::pages) before the answer.
//!
//! Tests: `tests/mount/synchronous.rs`.

use sapwood_vfs::SyncKind;

use super::later::{Job, Outcome};
use super::server::Call;
use crate::node::NodeId;
use crate::request::{Reply, Seek, WriteRequest};
use crate::wire::abi::{CopyFileRangeIn, CopyFileRangeOut, LseekIn, ReadIn, WriteIn, WriteOut};
use crate::wire::flags::{READ_LOCKOWNER, WRITE_KILL_SUIDGID, WRITE_LOCKOWNER};
use crate::wire::{Body, Opcode, reply};

/// Whether a request waits for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// It does not wait for the device. A few threads that never sleep serve such requests faster
    /// than many that must be woken, so no thread is added for them.
    No,
    /// It may wait for the device to read.
    Reads,
    /// It waits for the device to make something durable, or runs for long.
    Long,
}

impl Wait {
    /// The wait of a request with this opcode.
    pub(super) fn of(opcode: u32, mut body: Body<'_>) -> Self {
        let Ok(opcode) = Opcode::try_from(opcode) else {
            return Self::No;
        };
        match opcode {
            Opcode::Write => {
                let args = body.header("write");
                if args.is_ok_and(|args| durable(&args).is_some()) {
                    Self::Long
                } else {
                    Self::No
                }
            }
            Opcode::Read | Opcode::ReadDir | Opcode::ReadDirPlus | Opcode::Lseek => Self::Reads,
            Opcode::Fsync
            | Opcode::FsyncDir
            | Opcode::SyncFs
            | Opcode::Ioctl
            | Opcode::Fallocate
            | Opcode::CopyFileRange
            | Opcode::CopyFileRange64 => Self::Long,
            _ => Self::No,
        }
    }
}

/// The part of the inode that a write must make durable before its answer.
fn durable(args: &WriteIn) -> Option<SyncKind> {
    let flags = args.flags.cast_signed();
    if !is_direct(args) || flags & libc::O_DSYNC == 0 {
        return None;
    }
    // `O_SYNC` includes the bit of `O_DSYNC` and one of its own.
    if flags & libc::O_SYNC == libc::O_SYNC {
        Some(SyncKind::All)
    } else {
        Some(SyncKind::Data)
    }
}

/// Whether a write bypassed the page cache: only for those does the kernel set the lock owner.
fn is_direct(args: &WriteIn) -> bool {
    args.write_flags & WRITE_LOCKOWNER != 0
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
            kill_setid: args.write_flags & WRITE_KILL_SUIDGID != 0,
            direct: is_direct(args),
            sync: durable(args),
        });
        if let Err(errno) = written {
            return Err(errno).into();
        }
        if !is_direct(args) {
            readers.writes(self.node());
        } else if readers.wrote_directly(self.node()) {
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
            Ok(Seek::Found(at)) => reply::offset(out, at).into(),
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
