//! Whether the kernel or the daemon checks permissions.
//!
//! With the mount option `default_permissions`, the default, the kernel checks modes and ACLs.
//! Before it looks at a directory's mode it asks for the attributes again whenever a name in the
//! directory changed: one request for each file that is created, renamed or removed.
//!
//! `no_default_permissions` saves that request. The kernel then admits processes: without
//! `allow_other` every id of the process must be the mounter's, except its file-system user id
//! (`setfsuid(2)`). In a mount that root made for itself, the server refuses requests of another
//! file-system user ([`Admission`]), but the kernel answers such a process from its caches without
//! a request. The server answers `access` ([`may`]); the kernel itself refuses to execute a file
//! without an execute bit.
//!
//! Tests: `another_file_system_user_is_refused_in_a_mount_of_root`,
//! `root_without_checks_is_asked_nothing`, `others_are_checked_by_the_kernel`.

use sapwood_vfs::{Attr, FileKind};

use crate::options::MountOptions;
use crate::wire::Operation;
use crate::wire::flags::WRITE_CACHE;
use sapwood_vfs::Access;

/// Bit of an `access` request, as in the system call.
const EXECUTE: u32 = 1;

/// Whether the kernel should check permissions.
pub(crate) fn kernel_checks(options: &MountOptions) -> bool {
    options.default_permissions
}

/// Whether this process is outside any user namespace.
pub(crate) fn is_first_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all(&map))
}

/// Whether `map`, in the form of `/proc/PID/uid_map` (`user_namespaces(7)`), is that of the first
/// user namespace, which maps every id to itself.
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Users whose requests are served. The kernel refuses most others before it sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// All users.
    Anyone,
    /// This user and root. Requests on open files are admitted from all.
    OwnerAndRoot(u32),
    /// Root, and requests that the kernel sends on its own.
    RootAlone,
}

impl Admission {
    /// The admission that a mount with these options by this process needs.
    pub(crate) fn of(options: &MountOptions) -> Self {
        let owner = rustix::process::geteuid();
        match options.access {
            Access::OwnerAndRoot => Self::OwnerAndRoot(owner.as_raw()),
            Access::Owner if owner.is_root() && !kernel_checks(options) => Self::RootAlone,
            // With `Owner` the kernel refuses other users itself, but not its own write-back
            // threads.
            Access::Owner | Access::All => Self::Anyone,
        }
    }

    /// Whether a user may send this request.
    pub(crate) fn admits(self, uid: u32, operation: &Operation<'_>) -> bool {
        let kernel = matches!(
            operation,
            Operation::Forget { .. }
                | Operation::BatchForget(_)
                | Operation::Release
                | Operation::Interrupt
                | Operation::SyncFs
                | Operation::Destroy
                | Operation::Init(_)
        );
        match self {
            Self::Anyone => true,
            Self::OwnerAndRoot(owner) => {
                kernel || uid == 0 || uid == owner || on_open_file(operation)
            }
            Self::RootAlone => kernel || uid == 0 || written_back(operation),
        }
    }
}

/// Whether the operation is on an open file, whose permission was checked by the open.
fn on_open_file(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Read(_)
            | Operation::Write { .. }
            | Operation::Fsync { .. }
            | Operation::ReadDir(_)
            | Operation::ReadDirPlus(_)
    )
}

/// Whether the request is a write-back of the kernel's page cache.
fn written_back(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Write { args, .. } if args.write_flags & WRITE_CACHE != 0)
}

/// Whether root may do what `mask` names (bits as for `access`): everything, except execute a file
/// without an execute bit.
pub(crate) fn may(attr: &Attr, mask: u32) -> bool {
    mask & EXECUTE == 0 || attr.kind != FileKind::Regular || attr.perm & 0o111 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::abi::WriteIn;

    #[test]
    fn only_the_first_user_namespace_maps_all() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("         0       1000          1\n"));
        assert!(!maps_all("0 0 65536\n65536 65536 4294901759\n"));
        assert!(!maps_all(""));
    }

    #[test]
    fn a_mount_of_root_without_checks_serves_root_and_write_back() {
        let write = |write_flags| Operation::Write {
            args: WriteIn {
                write_flags,
                ..WriteIn::default()
            },
            data: &[],
        };
        let only = Admission::RootAlone;
        assert!(only.admits(0, &Operation::GetAttr));
        assert!(only.admits(1001, &Operation::Forget { count: 1 }));
        assert!(only.admits(1001, &write(WRITE_CACHE)));
        for refused in [
            Operation::GetAttr,
            Operation::Lookup { name: b"f" },
            Operation::Fsync { flags: 0 },
            write(0),
        ] {
            assert!(!only.admits(1001, &refused), "{refused:?}");
            assert!(Admission::Anyone.admits(1001, &refused));
        }
    }
}
