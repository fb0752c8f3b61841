//! The locks on bytes of an image by which QEMU's programs exclude each other, taken for our opens
//! too.
//!
//! # How it works
//!
//! A program that opens an image has permissions, each with a number. A lock on byte
//! [`USES`]` + number` means that it uses the permission, one on byte [`SHUTS_OUT`]` + number` that
//! it lets no other program use it. All are shared locks of the open file description
//! (`F_OFD_SETLK`): they only signal. An opener takes its locks first and then searches for
//! opposite ones, so at least one of two simultaneous openers finds the other.
//!
//! | | uses | shuts out | conflicts with |
//! |---|---|---|---|
//! | read-write | all | all | every open by QEMU |
//! | read-only | consistent read | write, resize | opens by QEMU that write |
//!
//! Opens of our own are excluded by `flock` (`open.rs`), before these locks are taken.
//!
//! Limits: `-U` of QEMU's programs and `file.locking=off` take no locks and look for none. A host
//! without such locks counts as one without QEMU.

use std::fs::File;
use std::ops::Range;

use rustix::io::{Errno, Result};

use super::calls;

/// First byte of the locks on permissions in use.
const USES: u64 = 100;
/// First byte of the locks on permissions that others may not use.
const SHUTS_OUT: u64 = 200;
/// All bytes on which there may be such locks: 64 of each sort.
const BYTES: Range<u64> = USES..SHUTS_OUT + 64;

/// Reading content that no other program is changing.
const CONSISTENT_READ: u64 = 0;
const WRITE: u64 = 1;
/// Writing that leaves the visible content as it is.
const WRITE_UNCHANGED: u64 = 2;
const RESIZE: u64 = 3;

/// Permissions of an open.
struct Permissions {
    uses: &'static [u64],
    shuts_out: &'static [u64],
}

const ALL: &[u64] = &[CONSISTENT_READ, WRITE, WRITE_UNCHANGED, RESIZE];
const READ_WRITE: Permissions = Permissions {
    uses: ALL,
    shuts_out: ALL,
};
const READ_ONLY: Permissions = Permissions {
    uses: &[CONSISTENT_READ],
    shuts_out: &[WRITE, RESIZE],
};

/// A file on whose bytes locks are taken.
trait Bytes {
    /// Takes a shared lock on a byte. `EAGAIN` or `EACCES` if another program has it exclusively.
    fn take(&self, byte: u64) -> Result<()>;

    /// The bytes of a lock of another open file description on this byte.
    fn found(&self, byte: u64) -> Result<Option<Range<u64>>>;

    /// Releases all locks.
    fn give_up(&self);
}

impl Bytes for File {
    fn take(&self, byte: u64) -> Result<()> {
        calls::lock_byte(self, byte)
    }

    fn found(&self, byte: u64) -> Result<Option<Range<u64>>> {
        calls::lock_on(self, byte)
    }

    fn give_up(&self) {
        unlock(self);
    }
}

/// Locks an open image against QEMU's programs. Returns false, without locks, if one has it open in
/// a way that conflicts. On a host without such locks nothing is locked, and the answer is true.
pub(super) fn lock(file: &File, read_only: bool) -> bool {
    let permissions = if read_only { &READ_ONLY } else { &READ_WRITE };
    lock_bytes(file, permissions)
}

/// Whether one of QEMU's programs has an open file or block device open.
pub(super) fn is_locked(file: &File) -> bool {
    bytes(USES, ALL).any(|byte| matches!(conflict(file, byte), Ok(true)))
}

/// Releases the locks, also for copies of the descriptor. Without locks nothing happens.
pub(super) fn unlock(file: &File) {
    // Closing the last descriptor unlocks in any case.
    let _ = calls::unlock_bytes(file);
}

fn lock_bytes(file: &impl Bytes, permissions: &Permissions) -> bool {
    let free = try_lock(file, permissions);
    if !matches!(free, Ok(true)) {
        file.give_up();
    }
    // An error means that the host has no such locks.
    free.unwrap_or(true)
}

fn try_lock(file: &impl Bytes, permissions: &Permissions) -> Result<bool> {
    let Permissions { uses, shuts_out } = permissions;
    for byte in bytes(USES, uses).chain(bytes(SHUTS_OUT, shuts_out)) {
        match file.take(byte) {
            Err(Errno::AGAIN | Errno::ACCESS) => return Ok(false),
            taken => taken?,
        }
    }
    for byte in bytes(SHUTS_OUT, uses).chain(bytes(USES, shuts_out)) {
        if conflict(file, byte)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a program signals a permission by a lock on a byte. A lock that also covers other bytes
/// is no such signal: on NFS, the `flock` of another reader is a lock on all bytes.
fn conflict(file: &impl Bytes, byte: u64) -> Result<bool> {
    let found = file.found(byte)?;
    Ok(found.is_some_and(|lock| BYTES.start <= lock.start && lock.end <= BYTES.end))
}

fn bytes(first: u64, permissions: &[u64]) -> impl Iterator<Item = u64> {
    permissions.iter().map(move |number| first + number)
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "a list of locks may have one"
)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A file of a host with given answers.
    #[derive(Default)]
    struct Host {
        /// Error of taking a lock, if not success.
        refuses: Option<Errno>,
        /// Locks of other programs.
        others: Vec<Range<u64>>,
        /// Error of searching, if it gives no answer.
        blind: Option<Errno>,
        taken: RefCell<Vec<u64>>,
    }

    impl Bytes for Host {
        fn take(&self, byte: u64) -> Result<()> {
            self.taken.borrow_mut().push(byte);
            self.refuses.map_or(Ok(()), Err)
        }

        fn found(&self, byte: u64) -> Result<Option<Range<u64>>> {
            let lock = self.others.iter().find(|lock| lock.contains(&byte));
            self.blind.map_or(Ok(lock.cloned()), Err)
        }

        fn give_up(&self) {
            self.taken.borrow_mut().clear();
        }
    }

    /// Whether an open succeeds, and the bytes that are locked then.
    fn outcome(host: Host, read_only: bool) -> (bool, Vec<u64>) {
        let permissions = if read_only { &READ_ONLY } else { &READ_WRITE };
        let free = lock_bytes(&host, permissions);
        (free, host.taken.into_inner())
    }

    fn among(others: &[Range<u64>], read_only: bool) -> bool {
        let others = others.to_vec();
        let (free, taken) = outcome(
            Host {
                others,
                ..Host::default()
            },
            read_only,
        );
        assert_eq!(free, !taken.is_empty());
        free
    }

    #[test]
    fn an_open_locks_the_bytes_of_its_permissions() {
        let writer = vec![100, 101, 102, 103, 200, 201, 202, 203];
        assert_eq!(outcome(Host::default(), false), (true, writer));
        assert_eq!(outcome(Host::default(), true), (true, vec![100, 201, 203]));
    }

    #[test]
    fn an_open_conflicts_with_opposite_locks() {
        // QEMU's readers of raw and qcow2 images, with and without `writethrough` exports.
        for reader in [
            &[100..101][..],
            &[100..101, 203..204],
            &[100..101, 201..202, 203..204],
        ] {
            assert!(!among(reader, false) && among(reader, true));
        }
        // Its writers of both.
        for writer in [
            &[100..102][..],
            &[100..102, 203..204],
            &[100..102, 103..104, 201..202],
        ] {
            assert!(!among(writer, false) && !among(writer, true));
        }
        // One that lets no other program read.
        assert!(!among(&[200..201], true));
        assert!(among(&[99..100, 264..300], false));
    }

    #[test]
    fn a_lock_on_all_bytes_is_not_one_of_qemu() {
        assert!(among(&[0..u64::MAX], true));
    }

    #[test]
    fn a_host_without_such_locks_refuses_no_open() {
        for errno in [Errno::INVAL, Errno::NOLCK, Errno::OPNOTSUPP, Errno::PERM] {
            let refuses = Host {
                refuses: Some(errno),
                ..Host::default()
            };
            assert_eq!(outcome(refuses, false), (true, vec![]));
            let blind = Host {
                blind: Some(errno),
                ..Host::default()
            };
            assert_eq!(outcome(blind, true), (true, vec![]));
        }
        for errno in [Errno::AGAIN, Errno::ACCESS] {
            let refuses = Host {
                refuses: Some(errno),
                ..Host::default()
            };
            assert_eq!(outcome(refuses, false), (false, vec![]));
        }
    }
}
