//! Who checks permissions.
//!
//! With the mount option `default_permissions` the kernel does, from modes and ACLs. That is the
//! default for every mount. Before the kernel looks at a directory's mode it asks for the
//! attributes again whenever a name in it changed: one request for each file that is created,
//! renamed or removed.
//!
//! `no_default_permissions` saves that request. The kernel then admits by process: without
//! `allow_other` every id of the process must be the mounter's, its file-system user id excepted
//! (`setfsuid(2)`). The server refuses requests of another file-system user in a mount that root
//! made for itself ([`Asking`]), but what the kernel has in its caches it gives to such a
//! process without a request. `access` is answered by the server ([`may`]); the kernel itself
//! refuses to execute a file without any execute bit.
//!
//! Tests: `another_file_system_user_is_refused_in_a_mount_of_root`,
//! `root_without_checks_is_asked_nothing`, `others_are_checked_by_the_kernel`.

use sapwood_vfs::{Attr, FileKind};

use crate::options::MountOptions;
use crate::wire::Operation;
use crate::wire::flags::WRITE_CACHE;
use sapwood_vfs::Access;

/// Bits of a request for `access`, as in the call of that name.
const EXECUTE: u32 = 1;

/// Whether the kernel is to check permissions.
pub(crate) fn kernel_checks(options: &MountOptions) -> bool {
    options.default_permissions && !sapwood_fault::planted(269)
}

/// Whether this process is outside any user namespace.
pub(crate) fn is_first_namespace() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all(&map))
}

/// Whether `map`, in the form of `/proc/PID/uid_map` (`user_namespaces(7)`), is that of the
/// first user namespace: every id is itself.
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Whose requests are served. The kernel refuses most others before they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    /// All requests.
    Anyone,
    /// Those of this user and of root, and what concerns open files.
    OwnerAndRoot(u32),
    /// Those of root, and what the kernel sends for itself.
    RootAlone,
}

impl Asking {
    /// As the options of a mount by this process want it.
    pub(crate) fn of(options: &MountOptions) -> Self {
        let owner = rustix::process::geteuid();
        match options.access {
            Access::OwnerAndRoot => Self::OwnerAndRoot(owner.as_raw()),
            Access::Owner if owner.is_root() && !kernel_checks(options) => Self::RootAlone,
            // With `Owner` the kernel itself refuses others, but not its own write-back threads.
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
                sapwood_fault::planted(276)
                    || kernel
                    || uid == 0
                    || uid == owner
                    || on_open_file(operation)
            }
            Self::RootAlone if sapwood_fault::planted(268) => true,
            Self::RootAlone => kernel || uid == 0 || written_back(operation),
        }
    }
}

/// What is asked about open files was checked when they were opened.
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

/// Whether the kernel writes its page cache back.
fn written_back(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Write { args, .. } if args.write_flags & WRITE_CACHE != 0)
}

/// Whether root may do what `mask` names (bits as for `access`): all, but execute a file that no
/// thread may execute.
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
        let only = Asking::RootAlone;
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
            assert!(Asking::Anyone.admits(1001, &refused));
        }
    }
}
