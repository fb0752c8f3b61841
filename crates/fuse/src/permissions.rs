//! Who checks permissions.
//!
//! With the mount option `default_permissions` the kernel does, from modes and ACLs. Before
//! it looks at a directory's mode it asks us for the attributes again whenever something
//! changed in there: one request for each file that is created, renamed or removed.
//!
//! Root in full possession of its rights is stopped by no mode. A mount that root made for
//! itself (no `allow_other`: the kernel lets nobody in whose ids are not all root's) is
//! therefore made without the option. What is left to us is `access`, which the kernel
//! then asks of us ([`may`]); that a file without any execute bit is not executed it sees
//! to itself. Processes of root's that gave rights up are not told apart in such a mount;
//! who has them can ask for `default_permissions`.
//!
//! Tests: `root_alone_is_asked_nothing`, `others_are_checked_by_the_kernel`.

use rustix::thread::CapabilitySet;
use sapwood_vfs::{Attr, FileKind};

use crate::options::{Access, MountOptions};

/// Bits of a request for `access`, as in the call of that name.
const EXECUTE: u32 = 1;

/// Whether the kernel is to check permissions in a mount that this process makes.
pub(crate) fn kernel_checks(options: &MountOptions) -> bool {
    options
        .default_permissions
        .unwrap_or_else(|| options.access != Access::Owner || !is_almighty())
}

/// Whether this process is root, real and effective, outside any user namespace, with all
/// capabilities that the kernel's checks of files know.
fn is_almighty() -> bool {
    let needed = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID;
    rustix::process::geteuid().is_root()
        && rustix::process::getuid().is_root()
        && rustix::thread::capabilities(None).is_ok_and(|has| has.effective.contains(needed))
        && std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all(&map))
}

/// Whether `map`, in the form of `/proc/PID/uid_map` (`user_namespaces(7)`), is that of the
/// first user namespace: every id is itself.
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether root may do what `mask` names (bits as for `access`): all, but execute a file
/// that nobody may execute.
pub(crate) fn may(attr: &Attr, mask: u32) -> bool {
    mask & EXECUTE == 0 || attr.kind != FileKind::Regular || attr.perm & 0o111 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_user_namespace_maps_all() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("         0       1000          1\n"));
        assert!(!maps_all("0 0 65536\n65536 65536 4294901759\n"));
        assert!(!maps_all(""));
    }

    #[test]
    fn what_is_said_holds_and_others_are_checked() {
        for checks in [false, true] {
            for access in [Access::Owner, Access::All] {
                let options = MountOptions {
                    default_permissions: Some(checks),
                    access,
                    ..MountOptions::default()
                };
                assert_eq!(kernel_checks(&options), checks);
            }
        }
        for access in [Access::OwnerAndRoot, Access::All] {
            let options = MountOptions {
                access,
                ..MountOptions::default()
            };
            assert!(kernel_checks(&options));
        }
    }
}
