//! A report of what this machine offers to mounts and to the command, and what it lacks.
//!
//! # How it works
//! [`Facts`] are read from files below a root directory: `/proc`, `/sys`, `/dev`, `/etc`, and the
//! directories of programs. Each check turns facts into a [`HostFinding`]. A check that mounts
//! depend on *fails*; any other one *lacks* something.

mod facts;

use std::path::PathBuf;

use facts::{Facts, Privileged, Release};

/// The machine to examine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorOptions {
    /// Root directory, with `/proc` and `/sys`.
    pub root: PathBuf,
    /// Directories of programs below the root, in their order.
    pub search: Vec<PathBuf>,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            root: "/".into(),
            search: std::env::split_paths(&path).collect(),
        }
    }
}

/// The result of an examination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorReport {
    /// This user can mount images here.
    pub mounts: bool,
    /// All checks, in a fixed order.
    pub findings: Vec<HostFinding>,
}

/// The state of a part of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostState {
    /// It works.
    Works,
    /// It does not work, and mounts work without it.
    Lacks,
    /// It does not work, and mounts need it.
    Fails,
}

impl HostState {
    /// The state as a word that stays the same from version to version.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Lacks => "lacks",
            Self::Fails => "fails",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFinding {
    /// The examined part of the machine, as a name that stays the same from version to version.
    pub subject: &'static str,
    /// Whether it works.
    pub state: HostState,
    /// The observed state, as text.
    pub found: String,
    /// The operations that do not work without it. Empty if nothing is missing.
    pub effect: String,
    /// The package to install or the setting to change. Empty if nothing is missing.
    pub remedy: String,
}

impl HostFinding {
    fn works(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            subject,
            state: HostState::Works,
            found: found.into(),
            effect: String::new(),
            remedy: String::new(),
        }
    }

    fn lacks(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            state: HostState::Lacks,
            ..Self::works(subject, found)
        }
    }

    fn fails(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            state: HostState::Fails,
            ..Self::works(subject, found)
        }
    }

    fn effect(self, effect: impl Into<String>) -> Self {
        Self {
            effect: effect.into(),
            ..self
        }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: remedy.into(),
            ..self
        }
    }
}

/// Examines a machine. Nothing is changed, and nothing is mounted.
///
/// ```
/// let report = sapwood::doctor(&sapwood::DoctorOptions::default());
/// for finding in &report.findings {
///     println!("{} {}: {}", finding.state.as_str(), finding.subject, finding.found);
/// }
/// ```
#[must_use]
pub fn doctor(options: &DoctorOptions) -> DoctorReport {
    let facts = Facts::read(options);
    let findings = vec![
        kernel(&facts),
        device(&facts),
        fusermount(&facts),
        user_namespaces(&facts),
        allow_other(&facts),
        sync(&facts),
        io_uring(&facts),
        fuse_over_io_uring(&facts),
        landlock(&facts),
        seccomp(&facts),
        loop_devices(&facts),
        helpers(&facts),
        completions(&facts),
        man_pages(&facts),
        open_files(&facts),
    ];
    DoctorReport {
        mounts: findings
            .iter()
            .all(|finding| finding.state != HostState::Fails),
        findings,
    }
}

/// The first kernel whose FUSE protocol (7.31) is new enough.
const FIRST_KERNEL: Release = Release(5, 4);
/// The first kernel that passes `sync` on to mounts of type `fuseblk`.
const SYNC_KERNEL: Release = Release(6, 18);
/// The first kernel with FUSE over io_uring.
const URING_KERNEL: Release = Release(6, 14);

fn kernel(facts: &Facts) -> HostFinding {
    let found = format!("Linux {}", facts.release_text);
    if facts.release >= FIRST_KERNEL {
        return HostFinding::works("kernel", found);
    }
    HostFinding::fails("kernel", found)
        .effect("the kernel's FUSE protocol is too old for mounts")
        .remedy("run Linux 5.4 or newer")
}

fn device(facts: &Facts) -> HostFinding {
    let subject = "/dev/fuse";
    let Err(error) = &facts.device else {
        return HostFinding::works(subject, "opens for reading and writing");
    };
    let none = "no image can be mounted";
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => HostFinding::fails(subject, "permission denied")
            .effect("this user cannot mount images")
            .remedy("give it the mode 666 (`chmod 666 /dev/fuse`), as distributions do"),
        std::io::ErrorKind::NotFound if facts.has_fuse => {
            HostFinding::fails(subject, "missing, though the kernel has FUSE")
                .effect(none)
                .remedy(
                    "in a container: start it with --device /dev/fuse; else load the module fuse",
                )
        }
        std::io::ErrorKind::NotFound => HostFinding::fails(subject, "missing").effect(none).remedy(
            "load the kernel module (`modprobe fuse`); in a container, add --device /dev/fuse",
        ),
        _ => HostFinding::fails(subject, format!("cannot be opened: {error}"))
            .effect(none)
            .remedy("load the kernel module (`modprobe fuse`)"),
    }
}

fn fusermount(facts: &Facts) -> HostFinding {
    let subject = "fusermount3";
    let needed = !facts.process.mounts_itself();
    let missing = |found: &str| {
        if needed {
            HostFinding::fails(subject, found).effect(if facts.process.uid == 0 {
                "this process lacks the capability CAP_SYS_ADMIN, so it cannot mount"
            } else {
                "an ordinary user cannot mount"
            })
        } else {
            HostFinding::lacks(subject, found)
                .effect("ordinary users, and root with -o auto_unmount, cannot mount; root can")
        }
    };
    let path = match &facts.fusermount {
        None => {
            return missing("not found in PATH").remedy("install the package fuse3");
        }
        Some((path, Privileged::No)) => {
            let path = path.display();
            return missing(&format!("{path} is not set-user-id root"))
                .remedy(format!("`chown root {path} && chmod 4755 {path}`, as root"));
        }
        Some((path, Privileged::Yes)) => path.display().to_string(),
    };
    if needed && facts.process.no_new_privileges {
        return missing(&format!("{path}, but no_new_privs is set"))
            .remedy("run the command without no_new_privs (containers: allowPrivilegeEscalation)");
    }
    if needed && !facts.process.may_gain_admin {
        return missing(&format!("{path}, but the container drops CAP_SYS_ADMIN"))
            .remedy("start the container with --cap-add SYS_ADMIN, or work without a mount");
    }
    HostFinding::works(subject, format!("{path}, set-user-id root"))
}

fn user_namespaces(facts: &Facts) -> HostFinding {
    let subject = "user namespaces";
    let setting = |found: &str, remedy: &str| {
        HostFinding::lacks(subject, found)
            .effect("`unshare --map-root-user` and rootless containers do not work; mounts do")
            .remedy(remedy)
    };
    match facts.max_user_namespaces {
        None => setting(
            "the kernel has none",
            "use a kernel with CONFIG_USER_NS, if they are wanted",
        ),
        Some(0) => setting(
            "disabled (user.max_user_namespaces=0)",
            "`sysctl user.max_user_namespaces=15000`",
        ),
        Some(_) if facts.process.uid == 0 => HostFinding::works(subject, "available"),
        Some(_) if facts.userns_clone == Some(0) => setting(
            "for root only (kernel.unprivileged_userns_clone=0)",
            "`sysctl kernel.unprivileged_userns_clone=1`",
        ),
        Some(_) if facts.apparmor_userns == Some(1) => setting(
            "restricted by AppArmor",
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or a profile that allows it",
        ),
        Some(_) => HostFinding::works(subject, "available to ordinary users"),
    }
}

fn allow_other(facts: &Facts) -> HostFinding {
    let subject = "allow_other";
    if facts.process.mounts_itself() {
        return HostFinding::works(subject, "root may always give a mount to other users");
    }
    if facts.user_allow_other {
        return HostFinding::works(subject, "user_allow_other is set in /etc/fuse.conf");
    }
    HostFinding::lacks(subject, "user_allow_other is not set in /etc/fuse.conf")
        .effect("`mount -o allow_other` is refused: only the user who mounts sees the files")
        .remedy("add the line user_allow_other to /etc/fuse.conf")
}

fn sync(facts: &Facts) -> HostFinding {
    let subject = "sync, umount";
    let lacks = |found: &str| {
        HostFinding::lacks(subject, found)
            .effect(
                "sync(1) and umount(2) do not wait for a mount, which commits every 5 seconds; \
                 `sapwood sync`, `sapwood umount` and fsync do wait",
            )
            .remedy("mount as root on Linux 6.18 or newer, or use the two commands")
    };
    if facts.release < SYNC_KERNEL {
        return lacks("the kernel does not pass them to FUSE mounts");
    }
    if !facts.process.mounts_itself() || !facts.process.first_namespace {
        return lacks("the kernel passes them to mounts of root only");
    }
    if !facts.loop_control {
        return lacks("mounts of type fuseblk need /dev/loop-control");
    }
    HostFinding::works(subject, "wait until a mount is durable (type fuseblk)")
}

fn io_uring(facts: &Facts) -> HostFinding {
    let subject = "io_uring";
    let lacks = |found: &str| {
        HostFinding::lacks(subject, found)
            .effect("`mount -o io_uring=on` does not work; mounts use /dev/fuse")
            .remedy("`sysctl kernel.io_uring_disabled=0`")
    };
    match facts.io_uring_disabled {
        Some(2) => lacks("disabled (kernel.io_uring_disabled=2)"),
        Some(1) if facts.process.uid != 0 => {
            lacks("for root and one group only (kernel.io_uring_disabled=1)")
        }
        _ => HostFinding::works(subject, "not disabled"),
    }
}

fn fuse_over_io_uring(facts: &Facts) -> HostFinding {
    let subject = "FUSE over io_uring";
    let lacks = |found: &str| {
        HostFinding::lacks(subject, found)
            .effect("`mount -o io_uring=on` does not work; mounts use /dev/fuse, as by default")
    };
    match facts.enable_uring {
        Some(true) => HostFinding::works(subject, "offered, used with `mount -o io_uring=on`"),
        Some(false) => lacks("switched off")
            .remedy("`echo Y > /sys/module/fuse/parameters/enable_uring`, as root"),
        None if facts.release < URING_KERNEL => {
            lacks("not in this kernel").remedy("run Linux 6.14 or newer, if it is wanted")
        }
        None => lacks("the kernel has no switch for it, or the module fuse is not loaded")
            .remedy("`modprobe fuse`, if it is wanted"),
    }
}

fn landlock(facts: &Facts) -> HostFinding {
    let subject = "Landlock";
    if facts.landlock {
        return HostFinding::works(subject, "confines the files that a mount's daemon can open");
    }
    HostFinding::lacks(subject, "not enabled in this kernel")
        .effect("the sandbox of a mount has seccomp alone; `-o sandbox=on` is refused")
        .remedy("boot with lsm=landlock,... (Linux 5.13 or newer)")
}

fn seccomp(facts: &Facts) -> HostFinding {
    let subject = "seccomp";
    if facts.seccomp {
        return HostFinding::works(subject, "confines the system calls of a mount's daemon");
    }
    HostFinding::lacks(subject, "not in this kernel")
        .effect("the sandbox of a mount has no filter; `-o sandbox=on` is refused")
        .remedy("use a kernel with CONFIG_SECCOMP_FILTER")
}

fn loop_devices(facts: &Facts) -> HostFinding {
    let subject = "loop devices";
    if facts.loop_control {
        return HostFinding::works(
            subject,
            "not needed; a mount of root takes one for type fuseblk",
        );
    }
    HostFinding::works(subject, "none, and not needed")
}

fn helpers(facts: &Facts) -> HostFinding {
    let subject = "mount helpers";
    let missing: Vec<&str> = facts::HELPERS
        .into_iter()
        .filter(|name| !facts.helpers.contains(name))
        .collect();
    if missing.is_empty() {
        return HostFinding::works(subject, "mount(8), umount(8) and fstab know fuse.sapwood");
    }
    let found = format!("not in /usr/sbin or /sbin: {}", missing.join(", "));
    HostFinding::lacks(subject, found)
        .effect(
            "mount(8) and fstab do not know fuse.sapwood, and umount(8) does not wait; \
             `sapwood mount` and `sapwood umount` work",
        )
        .remedy("install the package, or link each name in /usr/sbin to the program sapwood")
}

fn completions(facts: &Facts) -> HostFinding {
    let subject = "completions";
    let missing: Vec<&str> = facts
        .shells
        .iter()
        .filter(|(_, completed)| !completed)
        .map(|(shell, _)| *shell)
        .collect();
    let all: Vec<&str> = facts.shells.iter().map(|(shell, _)| *shell).collect();
    if missing.is_empty() {
        let found = match all.as_slice() {
            [] => "no shell found that has them".to_owned(),
            all => format!("installed for {}", all.join(", ")),
        };
        return HostFinding::works(subject, found);
    }
    let shell = missing.first().copied().unwrap_or("bash");
    HostFinding::lacks(subject, format!("not installed for {}", missing.join(", ")))
        .effect("the tab key completes no options and no paths in images")
        .remedy(format!(
            "install the package, or `sapwood generate completions {shell}`"
        ))
}

fn man_pages(facts: &Facts) -> HostFinding {
    if facts.man_pages {
        return HostFinding::works("man pages", "installed");
    }
    HostFinding::lacks("man pages", "not installed")
        .effect("`man sapwood-COMMAND` finds nothing; `sapwood help COMMAND` has the same text")
        .remedy("install the package, or `sapwood generate man DIR`")
}

/// Open files that suffice for a copy with all its threads.
const FILES: u64 = 512;

fn open_files(facts: &Facts) -> HostFinding {
    let subject = "open files";
    let Some(most) = facts.open_files else {
        return HostFinding::works(subject, "no limit");
    };
    let found = format!("at most {most} in a process");
    if most >= FILES {
        return HostFinding::works(subject, found);
    }
    HostFinding::lacks(subject, found)
        .effect("a copy or an image of a directory may end with \"Too many open files\"")
        .remedy("raise the hard limit (`ulimit -Hn 1024`, as root; LimitNOFILE= of a service)")
}

#[cfg(test)]
mod tests;
