//! The set-id bits that remain after a process changed a file's content or owner.
//!
//! `FUSE_WRITE` and a truncating `FUSE_SETATTR` tell whether the caller has `CAP_FSETID`.
//! `FUSE_FALLOCATE` and `FUSE_COPY_FILE_RANGE` do not, and no request carries the caller's
//! supplementary groups. The server reads both from `/proc/PID/status`, only for a file that has
//! set-id bits. If it cannot read a caller's status, it assumes neither the capability nor a
//! supplementary group.
//!
//! The kernel must not cache a mode with set-id bits, because it does not clear them in its copy
//! when the engine clears them ([`cacheable`]).
//!
//! Tests: `set_id_bits_are_cleared_by_every_change`, `a_cleared_set_id_bit_is_not_remembered`.

use std::fmt::Display;
use std::os::unix::fs::MetadataExt;

use sapwood_vfs::{Attr, FileKind, permission};

use crate::request::Caller;

const SETUID: u32 = libc::S_ISUID;
const SETGID: u32 = libc::S_ISGID;
const GROUP_EXEC: u32 = libc::S_IXGRP;
/// Number of `CAP_FSETID`.
const FSETID: u32 = 4;

/// Whether the kernel may cache these attributes.
pub(crate) fn cacheable(attr: &Attr) -> bool {
    !has_setid(attr)
}

fn has_setid(attr: &Attr) -> bool {
    attr.kind == FileKind::Regular && attr.perm & (SETUID | SETGID) != 0
}

/// Permission bits of an inode with `attr` after `who` changed its content.
pub(crate) fn after_write(attr: &Attr, who: Caller) -> u32 {
    if !has_setid(attr) {
        return attr.perm;
    }
    let process = Process::read(who.pid);
    if who.uid == 0 && process.may_keep_setid {
        return attr.perm;
    }
    clear(attr, who, &process)
}

/// Permission bits of an inode with `attr` after `who` changed its owner, or truncated it
/// without `CAP_FSETID`. With that capability a change of owner spares only the set-group-id
/// bit of a file that its group may not execute.
pub(crate) fn after_chown(attr: &Attr, who: Caller) -> u32 {
    if attr.kind == FileKind::Directory || attr.perm & (SETUID | SETGID) == 0 {
        return attr.perm;
    }
    let locks = attr.perm & (SETGID | GROUP_EXEC) == SETGID;
    let process = if locks {
        Process::read(who.pid)
    } else {
        Process::default()
    };
    if locks && who.uid == 0 && process.may_keep_setid {
        return attr.perm & !SETUID;
    }
    clear(attr, who, &process)
}

fn clear(attr: &Attr, who: Caller, process: &Process) -> u32 {
    let member = who.gid == attr.gid || process.groups.contains(&attr.gid);
    match attr.perm & GROUP_EXEC {
        0 if member => attr.perm & !SETUID,
        _ => attr.perm & !(SETUID | SETGID),
    }
}

/// The user namespace of a process, relative to this process's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserNamespace {
    Same,
    Other,
    /// The kernel does not show it to this process.
    Unknown,
}

impl UserNamespace {
    /// The namespace of a process or thread. For another user's process this needs
    /// `CAP_SYS_PTRACE`.
    pub(crate) fn of(pid: u32) -> Self {
        let namespace = |pid: &dyn Display| {
            let found = std::fs::metadata(format!("/proc/{pid}/ns/user"));
            found.ok().map(|found| (found.dev(), found.ino()))
        };
        match (namespace(&pid), namespace(&"self")) {
            (Some(other), Some(own)) if other == own => Self::Same,
            (Some(_), Some(_)) => Self::Other,
            _ => Self::Unknown,
        }
    }
}

/// The process of a caller, for permission checks, and its id. `None` for a process in another PID
/// namespace, in another user namespace, or with capabilities that may belong to another namespace.
pub(crate) fn process(who: Caller, namespace: UserNamespace) -> Option<(permission::Process, i32)> {
    let file = |pid: &dyn Display, name| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let status = file(&who.pid, "status").ok().filter(|_| who.pid != 0)?;
    let capabilities = effective(&status);
    let known = match namespace {
        UserNamespace::Same => true,
        UserNamespace::Other => false,
        // The map has ids of the reader's namespace, so two namespaces seldom have the same.
        UserNamespace::Unknown => {
            let map = file(&who.pid, "uid_map").ok();
            capabilities == 0 && map.is_some() && map == file(&"self", "uid_map").ok()
        }
    };
    let process = permission::Process {
        uid: who.uid,
        gid: who.gid,
        groups: Process::parse(&status).groups,
        capabilities: permission::Capabilities::from_bits_truncate(capabilities),
    };
    let leader = field(&status, "Tgid").trim().parse().ok()?;
    known.then_some((process, leader))
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or("")
}

/// The effective capabilities.
fn effective(status: &str) -> u64 {
    u64::from_str_radix(field(status, "CapEff").trim(), 16).unwrap_or(0)
}

/// Facts from `/proc/PID/status` (`proc_pid_status(5)`).
#[derive(Debug, Default, PartialEq, Eq)]
struct Process {
    /// Has `CAP_FSETID`.
    may_keep_setid: bool,
    groups: Vec<u32>,
}

impl Process {
    fn read(pid: u32) -> Self {
        match std::fs::read_to_string(format!("/proc/{pid}/status")) {
            Ok(status) if pid != 0 => Self::parse(&status),
            _ => Self::default(),
        }
    }

    fn parse(status: &str) -> Self {
        let groups = field(status, "Groups").split_ascii_whitespace();
        Self {
            may_keep_setid: effective(status) >> FSETID & 1 != 0,
            groups: groups.filter_map(|group| group.parse().ok()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use sapwood_testing::MemoryFs;
    use sapwood_vfs::FileSystem;

    use super::*;

    fn attr(kind: FileKind, perm: u32) -> Attr {
        let fs = MemoryFs::new();
        let root = fs.getattr(fs.root()).unwrap_or_else(|e| panic!("{e}"));
        Attr {
            kind,
            perm,
            gid: 7,
            ..root
        }
    }

    #[test]
    fn a_status_is_parsed_and_a_malformed_one_grants_nothing() {
        let status = "Name:\tsh\nGroups:\t4 24 \nCapInh:\t0\nCapEff:\t000001ffffffffff\n";
        let process = Process::parse(status);
        assert!(process.may_keep_setid);
        assert_eq!(process.groups, [4, 24]);
        let without = Process::parse("Groups:\nCapEff:\t00000000ffffffef\n");
        assert_eq!(without, Process::default());
        assert_eq!(Process::parse("CapEff:\tyes\n"), Process::default());
        assert_eq!(Process::read(0), Process::default());
    }

    #[test]
    fn only_a_process_of_the_own_namespaces_has_rights() {
        let mut who = Caller {
            uid: 7,
            gid: 8,
            umask: 0,
            pid: std::process::id(),
        };
        let namespace = UserNamespace::of(who.pid);
        assert_eq!(namespace, UserNamespace::Same);
        let (own, leader) = process(who, namespace).unwrap();
        assert_eq!(leader.unsigned_abs(), std::process::id());
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let all = effective(&status);
        let expected = permission::Capabilities::from_bits_truncate(all);
        assert_eq!((own.uid, own.gid, own.capabilities), (7, 8, expected));
        assert_eq!(process(who, UserNamespace::Other), None);
        let known = process(who, UserNamespace::Unknown).is_some();
        assert_eq!(
            known,
            all == 0,
            "capabilities of an unknown namespace count"
        );
        who.pid = 0;
        assert_eq!(process(who, namespace), None);
        assert_eq!(UserNamespace::of(0), UserNamespace::Unknown);
    }

    #[test]
    fn mandatory_lock_bits_stay_for_group_members() {
        let nobody = Process::default();
        let caller = |gid| Caller {
            uid: 1001,
            gid,
            umask: 0,
            pid: 0,
        };
        let member = Process {
            groups: vec![7],
            ..Process::default()
        };
        for (perm, gid, process, left) in [
            (0o6755, 7, &nobody, 0o755),
            (0o6755, 1, &member, 0o755),
            (0o6744, 7, &nobody, 0o2744),
            (0o6744, 1, &member, 0o2744),
            (0o6744, 1, &nobody, 0o744),
        ] {
            let kept = clear(&attr(FileKind::Regular, perm), caller(gid), process);
            assert_eq!(kept, left, "{perm:o} {gid}");
        }
        let dir = attr(FileKind::Directory, 0o2755);
        assert_eq!(after_write(&dir, caller(1)), 0o2755);
        assert!(cacheable(&dir));
        assert!(!cacheable(&attr(FileKind::Regular, 0o2755)));
    }
}
