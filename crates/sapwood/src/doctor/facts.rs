//! The facts that the checks use, from files below a root directory.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::DoctorOptions;

/// Names that mount(8) and umount(8) look for.
pub(super) const HELPERS: [&str; 6] = [
    "mount.sapwood",
    "mount.fuse.sapwood",
    "mount.fuseblk.sapwood",
    "umount.sapwood",
    "umount.fuse.sapwood",
    "umount.fuseblk.sapwood",
];

/// Shells with completions, and where these are installed below `usr/share` or `usr/local/share`.
const SHELLS: [(&str, &[&str]); 3] = [
    ("bash", &["bash-completion/completions/sapwood"]),
    (
        "zsh",
        &[
            "zsh/vendor-completions/_sapwood",
            "zsh/site-functions/_sapwood",
        ],
    ),
    (
        "fish",
        &[
            "fish/vendor_completions.d/sapwood.fish",
            "fish/completions/sapwood.fish",
        ],
    ),
];

/// Number of the capability to mount, `CAP_SYS_ADMIN`.
const SYS_ADMIN: u32 = 21;
/// Set-user-id bit of a mode.
const SET_USER_ID: u32 = 0o4000;

/// Version of a kernel: the first two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release(pub(super) u32, pub(super) u32);

impl Release {
    fn parse(text: &str) -> Self {
        let mut numbers = text
            .split(|char: char| !char.is_ascii_digit())
            .map(|number| number.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self(next(), next())
    }
}

/// Whether a program has the rights of root for every user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Privileged {
    Yes,
    No,
}

/// The process that would mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    /// Effective user id.
    pub(super) uid: u32,
    /// It has the capability `CAP_SYS_ADMIN`.
    pub(super) admin: bool,
    /// A set-user-id program that it starts can have that capability.
    pub(super) may_gain_admin: bool,
    /// Set-user-id bits have no effect for it.
    pub(super) no_new_privileges: bool,
    /// It is in the first user namespace.
    pub(super) first_namespace: bool,
}

impl Process {
    fn read(root: &Path) -> Self {
        let status = text(root, "proc/self/status").unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim()
        };
        let has_admin = |name: &str| {
            u64::from_str_radix(field(name), 16).is_ok_and(|set| set >> SYS_ADMIN & 1 == 1)
        };
        let effective = field("Uid:").split_whitespace().nth(1);
        let map = text(root, "proc/self/uid_map").unwrap_or_default();
        let map: Vec<&str> = map.split_whitespace().collect();
        Self {
            uid: effective
                .and_then(|uid| uid.parse().ok())
                .unwrap_or(u32::MAX),
            admin: has_admin("CapEff:"),
            may_gain_admin: has_admin("CapBnd:"),
            no_new_privileges: field("NoNewPrivs:") == "1",
            first_namespace: map == ["0", "0", "4294967295"],
        }
    }

    /// Whether it mounts by the system call, without `fusermount3`.
    pub(super) fn mounts_itself(&self) -> bool {
        self.uid == 0 && self.admin
    }
}

/// All facts.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) release: Release,
    pub(super) release_text: String,
    pub(super) process: Process,
    /// `/dev/fuse` was opened for reading and writing.
    pub(super) device: io::Result<()>,
    /// The kernel has the file system `fuse` loaded.
    pub(super) has_fuse: bool,
    pub(super) fusermount: Option<(PathBuf, Privileged)>,
    pub(super) max_user_namespaces: Option<u64>,
    pub(super) userns_clone: Option<u64>,
    pub(super) apparmor_userns: Option<u64>,
    pub(super) user_allow_other: bool,
    pub(super) io_uring_disabled: Option<u64>,
    pub(super) enable_uring: Option<bool>,
    pub(super) landlock: bool,
    pub(super) seccomp: bool,
    pub(super) loop_control: bool,
    /// The members of [`HELPERS`] that are installed.
    pub(super) helpers: Vec<&'static str>,
    /// The installed shells, and whether each has its completions.
    pub(super) shells: Vec<(&'static str, bool)>,
    pub(super) man_pages: bool,
    /// The hard limit, to which commands raise the soft one; none if there is no limit.
    pub(super) open_files: Option<u64>,
}

impl Facts {
    pub(super) fn read(options: &DoctorOptions) -> Self {
        let root = options.root.as_path();
        let release_text = text(root, "proc/sys/kernel/osrelease").unwrap_or_default();
        let systems = text(root, "proc/filesystems").unwrap_or_default();
        let lsm = text(root, "sys/kernel/security/lsm");
        let switch = text(root, "sys/module/fuse/parameters/enable_uring");
        Self {
            release: Release::parse(&release_text),
            release_text,
            process: Process::read(root),
            device: open(&root.join("dev/fuse")),
            has_fuse: systems.split_whitespace().any(|name| name == "fuse"),
            fusermount: fusermount(options),
            max_user_namespaces: number(root, "proc/sys/user/max_user_namespaces"),
            userns_clone: number(root, "proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_userns: number(
                root,
                "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            ),
            user_allow_other: text(root, "etc/fuse.conf")
                .is_some_and(|text| text.lines().any(|line| line.trim() == "user_allow_other")),
            io_uring_disabled: number(root, "proc/sys/kernel/io_uring_disabled"),
            enable_uring: switch.map(|value| value == "Y"),
            landlock: lsm.map_or_else(sapwood_fuse::sandbox::has_landlock, |names| {
                names.split(',').any(|name| name == "landlock")
            }),
            seccomp: root.join("proc/sys/kernel/seccomp/actions_avail").exists(),
            loop_control: root.join("dev/loop-control").exists(),
            helpers: HELPERS
                .into_iter()
                .filter(|name| {
                    ["usr/sbin", "sbin"]
                        .iter()
                        .any(|dir| root.join(dir).join(name).exists())
                })
                .collect(),
            shells: shells(options),
            man_pages: shared(root, "man/man1/sapwood.1") || shared(root, "man/man1/sapwood.1.gz"),
            open_files: open_files(root),
        }
    }
}

/// The text of a file below the root, without white space at its ends.
fn text(root: &Path, name: &str) -> Option<String> {
    let bytes = fs::read(root.join(name)).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn number(root: &Path, name: &str) -> Option<u64> {
    text(root, name)?.parse().ok()
}

fn open(path: &Path) -> io::Result<()> {
    File::options().read(true).write(true).open(path).map(drop)
}

/// A program in the search path of a machine.
fn program(options: &DoctorOptions, name: &str) -> Option<PathBuf> {
    let places = options.search.iter().map(|dir| dir.join(name));
    let mut found = places.filter(|path| below(&options.root, path).is_file());
    found.next()
}

/// A path of a machine, below the root directory that has its files.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn fusermount(options: &DoctorOptions) -> Option<(PathBuf, Privileged)> {
    let path = program(options, "fusermount3")?;
    let file = below(&options.root, &path);
    // The root directory belongs to root, whatever number root has here.
    let owner = fs::metadata(&options.root).map(|found| found.uid()).ok();
    let set_id = fs::metadata(&file)
        .is_ok_and(|found| found.mode() & SET_USER_ID != 0 && Some(found.uid()) == owner);
    let capabilities = rustix::fs::getxattr(&file, "security.capability", &mut [0; 64]).is_ok();
    let privileged = if set_id || capabilities {
        Privileged::Yes
    } else {
        Privileged::No
    };
    Some((path, privileged))
}

/// Whether a file is in one of the directories of files that all machines share.
fn shared(root: &Path, name: &str) -> bool {
    let dirs = ["usr/share", "usr/local/share"];
    dirs.iter().any(|dir| root.join(dir).join(name).exists())
}

fn shells(options: &DoctorOptions) -> Vec<(&'static str, bool)> {
    let installed = SHELLS
        .iter()
        .filter(|(shell, _)| program(options, shell).is_some());
    installed
        .map(|(shell, places)| {
            let completed = places.iter().any(|place| shared(&options.root, place));
            (*shell, completed)
        })
        .collect()
}

/// The hard limit of open files of this process.
fn open_files(root: &Path) -> Option<u64> {
    let limits = text(root, "proc/self/limits")?;
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
