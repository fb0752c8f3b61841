//! Machines made of files: each test takes a part away from one where everything works.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::*;

const USER: &str = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n\
                    CapBnd:\t000001ffffffffff\nNoNewPrivs:\t0\n";
const ROOT: &str = "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n\
                    NoNewPrivs:\t0\n";

/// A root directory with everything that a mount can use.
struct Machine(tempfile::TempDir);

impl Machine {
    fn of(status: &str) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        for (name, text) in [
            ("proc/self/status", status),
            ("proc/self/uid_map", "         0          0 4294967295\n"),
            (
                "proc/self/limits",
                "Max open files            64                   524288               files\n",
            ),
            ("proc/sys/kernel/osrelease", "6.18.2-amd64\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("proc/sys/kernel/seccomp/actions_avail", "kill_process\n"),
            ("proc/sys/user/max_user_namespaces", "63000\n"),
            ("proc/filesystems", "nodev\ttmpfs\n\text4\nnodev\tfuse\n"),
            ("sys/module/fuse/parameters/enable_uring", "Y\n"),
            ("sys/kernel/security/lsm", "capability,landlock,apparmor\n"),
            ("dev/fuse", ""),
            ("dev/loop-control", ""),
            ("etc/fuse.conf", "# mounts\nuser_allow_other\n"),
            ("usr/bin/fusermount3", ""),
            ("usr/bin/sapwood", ""),
            ("usr/bin/bash", ""),
            ("usr/share/bash-completion/completions/sapwood", ""),
            ("usr/share/man/man1/sapwood.1.gz", ""),
        ] {
            machine.write(name, text);
        }
        machine.set_mode("usr/bin/fusermount3", 0o4755);
        let sbin = machine.path("usr/sbin");
        fs::create_dir(&sbin).unwrap();
        for name in facts::HELPERS {
            symlink("../bin/sapwood", sbin.join(name)).unwrap();
        }
        machine
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path(name)).unwrap();
    }

    fn set_mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn report(&self) -> DoctorReport {
        doctor(&DoctorOptions {
            root: self.0.path().to_owned(),
            search: vec!["/usr/local/bin".into(), "/usr/bin".into()],
        })
    }

    /// The findings that are not `works`: subject and state. Each names its effect and a remedy.
    fn wrong(&self) -> Vec<(&'static str, HostState)> {
        let report = self.report();
        let wrong = report.findings.iter();
        let wrong = wrong.filter(|finding| finding.state != HostState::Works);
        for finding in wrong.clone() {
            let HostFinding { effect, remedy, .. } = finding;
            assert!(!effect.is_empty() && !remedy.is_empty(), "{finding:?}");
        }
        let wrong: Vec<_> = wrong.map(|one| (one.subject, one.state)).collect();
        let fails = wrong.iter().any(|(_, state)| *state == HostState::Fails);
        assert_eq!(report.mounts, !fails, "{report:?}");
        wrong
    }
}

/// Checks the findings after `change`, for a user and for root.
#[track_caller]
fn case(change: impl Fn(&Machine), user: &[(&str, HostState)], root: &[(&str, HostState)]) {
    for (status, expected) in [(USER, user), (ROOT, root)] {
        let machine = Machine::of(status);
        change(&machine);
        let mut wrong = machine.wrong();
        // `sync` reaches only mounts that root made.
        wrong.retain(|found| status == ROOT || *found != ("sync, umount", HostState::Lacks));
        assert_eq!(wrong, expected, "{status}");
    }
}

use HostState::{Fails, Lacks};

#[test]
fn everything_works_on_a_complete_machine() {
    case(|_| {}, &[], &[]);
    let user = Machine::of(USER);
    assert_eq!(user.wrong(), [("sync, umount", Lacks)]);
    let report = user.report();
    let kernel = report.findings.first().unwrap();
    assert_eq!(
        (kernel.subject, &*kernel.found),
        ("kernel", "Linux 6.18.2-amd64")
    );
}

#[test]
fn mounts_need_the_device() {
    let fails = [("/dev/fuse", Fails)];
    case(|machine| machine.remove("dev/fuse"), &fails, &fails);
    // A device node without its driver does not open either.
    let directory = |machine: &Machine| {
        machine.remove("dev/fuse");
        fs::create_dir(machine.path("dev/fuse")).unwrap();
    };
    case(directory, &fails, &fails);
}

#[test]
fn the_remedy_of_a_missing_device_depends_on_the_kernel() {
    let machine = Machine::of(USER);
    machine.remove("dev/fuse");
    let remedy = |machine: &Machine| {
        let report = machine.report();
        let mut findings = report.findings.into_iter();
        findings
            .find(|one| one.subject == "/dev/fuse")
            .unwrap()
            .remedy
    };
    assert!(remedy(&machine).starts_with("in a container"));
    machine.write("proc/filesystems", "nodev\ttmpfs\n");
    assert!(remedy(&machine).starts_with("load the kernel module"));
}

#[test]
fn an_ordinary_user_needs_fusermount3_and_root_does_not() {
    for change in [
        &(|machine: &Machine| machine.remove("usr/bin/fusermount3")) as &dyn Fn(&Machine),
        &|machine| machine.set_mode("usr/bin/fusermount3", 0o755),
    ] {
        case(change, &[("fusermount3", Fails)], &[("fusermount3", Lacks)]);
    }
}

#[test]
fn a_container_that_drops_rights_fails() {
    for (status, wrong) in [
        // Root without the capability mounts as a user, whose fusermount3 has none either.
        (
            "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\n",
            "fusermount3",
        ),
        (
            "Uid:\t9\t9\t9\t9\nCapEff:\t0\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t1\n",
            "fusermount3",
        ),
    ] {
        let found = Machine::of(status).wrong();
        assert_eq!(found, [(wrong, Fails), ("sync, umount", Lacks)], "{status}");
    }
}

#[test]
fn old_kernels_lack_what_came_later() {
    let kernel = |release: &'static str| {
        move |machine: &Machine| {
            machine.write("proc/sys/kernel/osrelease", release);
            if release < "6" {
                machine.remove("sys/module/fuse/parameters/enable_uring");
            }
        }
    };
    let lacks = [("sync, umount", Lacks)];
    case(kernel("6.17.0"), &[], &lacks);
    let uring = ("FUSE over io_uring", Lacks);
    case(kernel("5.15.0"), &[uring], &[lacks[0], uring]);
    let fails = ("kernel", Fails);
    case(kernel("5.3.9"), &[fails, uring], &[fails, lacks[0], uring]);
}

#[test]
fn settings_of_the_kernel_are_named() {
    for (file, value, user, root) in [
        (
            "proc/sys/user/max_user_namespaces",
            "0",
            "user namespaces",
            true,
        ),
        (
            "proc/sys/kernel/unprivileged_userns_clone",
            "0",
            "user namespaces",
            false,
        ),
        (
            "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "user namespaces",
            false,
        ),
        ("proc/sys/kernel/io_uring_disabled", "1", "io_uring", false),
        ("proc/sys/kernel/io_uring_disabled", "2", "io_uring", true),
        (
            "sys/module/fuse/parameters/enable_uring",
            "N",
            "FUSE over io_uring",
            true,
        ),
        (
            "sys/kernel/security/lsm",
            "capability,yama",
            "Landlock",
            true,
        ),
        ("etc/fuse.conf", "#user_allow_other", "allow_other", false),
        (
            "proc/self/limits",
            "Max open files            64                   64                   files\n",
            "open files",
            true,
        ),
    ] {
        let found = [(user, Lacks)];
        let of_root = if root { &found[..] } else { &[] };
        case(|machine| machine.write(file, value), &found, of_root);
    }
}

#[test]
fn missing_files_of_the_package_are_named() {
    for (file, subject) in [
        ("proc/sys/kernel/seccomp/actions_avail", "seccomp"),
        ("usr/sbin/umount.fuse.sapwood", "mount helpers"),
        (
            "usr/share/bash-completion/completions/sapwood",
            "completions",
        ),
        ("usr/share/man/man1/sapwood.1.gz", "man pages"),
    ] {
        let found = [(subject, Lacks)];
        case(|machine| machine.remove(file), &found, &found);
    }
    // A shell that is not installed needs no completions, and one that is needs them.
    let zsh = |machine: &Machine| machine.write("usr/bin/zsh", "");
    case(zsh, &[("completions", Lacks)], &[("completions", Lacks)]);
}

#[test]
fn loop_devices_are_needed_by_the_mounts_of_root_that_hear_of_sync() {
    let without = |machine: &Machine| machine.remove("dev/loop-control");
    case(without, &[], &[("sync, umount", Lacks)]);
}
