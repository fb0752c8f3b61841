//! The seccomp filter.
//!
//! A call that is not in [`ALLOWED`] fails with `EPERM`, so an unlisted call that a newer C library
//! tries does no harm. A call of [`FATAL`] ends the process: only an attacker makes it, and a
//! second attempt is worth more to the attacker than the mount to its users. Acknowledged data is
//! durable in any case.
//!
//! `clone3` fails with `ENOSYS`, because its flags are in memory, which a filter cannot read. The C
//! library then uses `clone`, which is allowed for threads only.
//!
//! The kernel remembers calls that are allowed whatever their arguments, so a read, a write or an
//! fsync costs a lookup in a bitmap.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::{Needs, SandboxError};

/// Allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // Files that are open.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    // Datagrams and descriptors over sockets that are connected.
    libc::SYS_socketpair,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads and their signals.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getcpu,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    // Time, random numbers, facts about the system.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_getrusage,
    libc::SYS_chdir,
];

/// Like [`ALLOWED`]; calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[libc::SYS_poll, libc::SYS_dup2, libc::SYS_arch_prctl];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

const IO_URING: &[c_long] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// End the process.
const FATAL: &[c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
];

/// Requests of `ioctl`: the connection (`FUSE_DEV_IOC_CLONE`), block devices (`BLKDISCARD`,
/// `BLKROGET`, `BLKSSZGET`, `BLKGETSIZE64`), flags of descriptors (`FIONBIO`, `FIOCLEX`).
const IOCTLS: &[u32] = &[
    0x8004_e500,
    0x1277,
    0x125e,
    0x1268,
    0x8008_1272,
    0x5421,
    0x5451,
];

const FCNTLS: &[u32] = &[
    libc::F_DUPFD_CLOEXEC.cast_unsigned(),
    libc::F_GETFD.cast_unsigned(),
    libc::F_SETFD.cast_unsigned(),
    libc::F_GETFL.cast_unsigned(),
    libc::F_SETFL.cast_unsigned(),
    // Locks on bytes of an image.
    libc::F_OFD_SETLK.cast_unsigned(),
    libc::F_OFD_GETLK.cast_unsigned(),
];

/// `PR_GET_AUXV`: facts that the kernel gave the process at its start.
const GET_AUXV: u32 = 0x4155_5856;
/// `PR_SET_VMA`: the C library names its memory.
const SET_VMA: u32 = 0x5356_4d41;
const PRCTLS: &[u32] = &[libc::PR_SET_NAME.cast_unsigned(), GET_AUXV, SET_VMA];

/// Installs the filter. Opens are allowed if Landlock decides about them.
pub(super) fn install(needs: Needs, landlock: bool) -> Result<(), SandboxError> {
    let failed = |error| SandboxError::Filter(Box::new(error));
    for filter in filters(needs, landlock).map_err(|error| failed(error.into()))? {
        seccompiler::apply_filter(&filter).map_err(failed)?;
    }
    Ok(())
}

/// In the order of their installation. Of two filters that disagree, the stricter action counts, so
/// the last one, which allows `clone3`, does not change the answer of the second.
fn filters(needs: Needs, landlock: bool) -> Result<[BpfProgram; 3], BackendError> {
    let fatal = FATAL.iter().map(|&call| (call, Vec::new())).collect();
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let no_call = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let allowed = allowed(needs, landlock)?;
    Ok([
        program(fatal, SeccompAction::Allow, SeccompAction::KillProcess)?,
        program(clone3, SeccompAction::Allow, no_call)?,
        program(allowed, refused, SeccompAction::Allow)?,
    ])
}

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()
}

fn allowed(needs: Needs, landlock: bool) -> Result<Rules, BackendError> {
    let any = ALLOWED.iter().chain(ALLOWED_HERE);
    let any = any.chain(needs.io_uring.then_some(IO_URING).into_iter().flatten());
    let any = any.chain(landlock.then_some(&libc::SYS_openat));
    let mut rules: Rules = any.map(|&call| (call, Vec::new())).collect();
    let own = u64::from(std::process::id());
    let threads = libc::CLONE_THREAD as u64;
    let executable = libc::PROT_EXEC as u64;
    let has = |argument, bits: u64, value| is(argument, SeccompCmpOp::MaskedEq(bits), value);
    let equal = |argument, value| is(argument, SeccompCmpOp::Eq, value);
    rules.insert(libc::SYS_clone, vec![has(0, threads, threads)?]);
    rules.insert(libc::SYS_tgkill, vec![equal(0, own)?]);
    // No address: only to the other end of a socket that is connected.
    rules.insert(libc::SYS_sendto, vec![equal(4, 0)?]);
    rules.insert(libc::SYS_mmap, vec![has(2, executable, 0)?]);
    rules.insert(libc::SYS_mprotect, vec![has(2, executable, 0)?]);
    // No new limit.
    rules.insert(libc::SYS_prlimit64, vec![equal(2, 0)?]);
    for (call, argument, values) in [
        (libc::SYS_ioctl, 1, IOCTLS),
        (libc::SYS_fcntl, 1, FCNTLS),
        (libc::SYS_prctl, 0, PRCTLS),
    ] {
        let words = values.iter().map(|&value| word(argument, value));
        rules.insert(call, words.collect::<Result<_, _>>()?);
    }
    Ok(rules)
}

/// A rule on all 64 bits of an argument.
fn is(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    let length = SeccompCmpArgLen::Qword;
    SeccompRule::new(vec![SeccompCondition::new(
        argument, length, operator, value,
    )?])
}

/// A rule on the 32 bits of an argument that the kernel reads.
fn word(argument: u8, value: u32) -> Result<SeccompRule, BackendError> {
    let length = SeccompCmpArgLen::Dword;
    SeccompRule::new(vec![SeccompCondition::new(
        argument,
        length,
        SeccompCmpOp::Eq,
        u64::from(value),
    )?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_and_no_call_is_both_needed_and_fatal() {
        for landlock in [false, true] {
            for io_uring in [false, true] {
                let needs = Needs { io_uring };
                assert!(filters(needs, landlock).is_ok());
                let rules = allowed(needs, landlock).unwrap_or_default();
                assert!(FATAL.iter().all(|call| !rules.contains_key(call)));
                assert_eq!(rules.contains_key(&libc::SYS_openat), landlock);
                assert_eq!(rules.contains_key(&libc::SYS_io_uring_setup), io_uring);
                assert!(!rules.contains_key(&libc::SYS_socket));
                assert!(!rules.contains_key(&libc::SYS_sendmsg));
            }
        }
    }
}
