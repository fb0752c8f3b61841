//! The memory bound of a mount, and its division among caches.
//!
//! # How it works
//! [`Memory`] is one bound, divided among the caches of a mount: metadata blocks, dirty data,
//! inodes. The default is a quarter of the memory that is available to the process, at most `MOST`.
//! That is the machine's memory, or the smallest limit of a control group, from the process's group
//! up to the root of the hierarchy, of version 2 (`memory.max`, `memory.high`) or 1
//! (`memory.limit_in_bytes`).
//!
//! Trouble cases:
//! - a limit of a parent group (`the_smallest_limit_of_all_parents_counts`)
//! - a container that sees its own group as the root (`a_container_sees_its_group_as_the_root`)
//! - no readable file (`without_limits_the_machine_counts`)

use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

/// Largest default bound.
const MOST: u64 = 544 << 20;
/// Smallest bound.
const LEAST: u64 = 4 << 20;
/// Assumed memory if the size of the machine is unknown.
const UNKNOWN: u64 = 1 << 30;

/// Bytes that a mount may keep in memory, by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Metadata blocks.
    pub cache: usize,
    /// Data that is not on disk yet.
    pub dirty: usize,
    /// Inodes, and records of inodes that a caller refers to.
    pub inodes: usize,
}

impl Memory {
    /// Bytes of a mount whose results are reproducible: writeback and commits depend on them.
    pub const REPRODUCIBLE: u64 = 136 << 20;

    /// Divides `total` bytes. Inodes get one of `inode_parts` parts, and the other caches share the
    /// rest.
    #[must_use]
    pub fn of(total: u64, inode_parts: usize) -> Self {
        let total = usize::try_from(total.max(LEAST)).unwrap_or(usize::MAX / 2);
        let inodes = total / inode_parts.max(1);
        let dirty = (total - inodes) / 2;
        Self {
            cache: total - inodes - dirty,
            dirty,
            inodes,
        }
    }

    /// Divides a quarter of the available memory.
    #[must_use]
    pub fn usual(inode_parts: usize) -> Self {
        Self::of((available() / 4).min(MOST), inode_parts)
    }

    /// The sum in bytes.
    #[must_use]
    pub fn total(&self) -> usize {
        self.cache + self.dirty + self.inodes
    }
}

/// Bytes of memory that are available to this process. Determined once.
pub fn available() -> u64 {
    static FOUND: OnceLock<u64> = OnceLock::new();
    *FOUND.get_or_init(|| find(Path::new("/")))
}

/// Finds the memory of a system whose files are below `system`.
fn find(system: &Path) -> u64 {
    let read = |path: &str| std::fs::read_to_string(system.join(path)).unwrap_or_default();
    let machine = machine(&read("proc/meminfo")).unwrap_or(UNKNOWN);
    let groups = read("proc/self/cgroup");
    let mounts = read("proc/self/mountinfo");
    let limits = groups.lines().filter_map(Group::parse).flat_map(|group| {
        let hierarchies = mounts.lines().filter_map(Hierarchy::parse);
        hierarchies
            .filter(|hierarchy| hierarchy.legacy == group.legacy)
            .filter_map(|hierarchy| hierarchy.limit(system, group.path))
            .collect::<Vec<_>>()
    });
    limits.fold(machine, u64::min)
}

/// `MemTotal`, in bytes.
fn machine(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The process's control group in a hierarchy that may limit memory.
struct Group<'a> {
    /// Version 1.
    legacy: bool,
    path: &'a str,
}

impl<'a> Group<'a> {
    /// A line of `/proc/self/cgroup`: `number:controllers:path`.
    fn parse(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let legacy = controllers.split(',').any(|name| name == "memory");
        (legacy || controllers.is_empty()).then_some(Self { legacy, path })
    }
}

/// A mounted hierarchy of control groups.
struct Hierarchy {
    legacy: bool,
    /// The group that the mount point shows.
    root: PathBuf,
    at: PathBuf,
}

impl Hierarchy {
    /// A line of `/proc/self/mountinfo`.
    fn parse(line: &str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, at) = (mount.next()?, mount.next()?);
        let mut kind = kind.split(' ');
        let legacy = match kind.next()? {
            "cgroup2" => false,
            "cgroup" if kind.nth(1)?.split(',').any(|name| name == "memory") => true,
            _ => return None,
        };
        Some(Self {
            legacy,
            root: root.into(),
            at: at.into(),
        })
    }

    /// The smallest limit from the group `path` up to the root.
    fn limit(&self, system: &Path, path: &str) -> Option<u64> {
        let path = Path::new(path);
        let below = path
            .strip_prefix(&self.root)
            .or_else(|_| path.strip_prefix("/"))
            .unwrap_or(Path::new(""));
        // A group outside the mounted hierarchy is shown as `/..`.
        let below = if below.components().any(|part| part == Component::ParentDir) {
            Path::new("")
        } else {
            below
        };
        let top = system.join(self.at.strip_prefix("/").unwrap_or(&self.at));
        let names: &[&str] = if self.legacy {
            &["memory.limit_in_bytes"]
        } else {
            &["memory.max", "memory.high"]
        };
        let groups = below.ancestors().map(|group| top.join(group));
        groups
            .flat_map(|group| names.iter().map(move |name| group.join(name)))
            .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The memory that `find` returns for a system with these files.
    fn found(name: &str, files: &[(&str, &str)]) -> u64 {
        let number = std::process::id();
        let system = std::env::temp_dir().join(format!("sapwood-memory-{name}-{number}"));
        for (path, content) in files {
            let path = system.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let found = find(&system);
        let _ = std::fs::remove_dir_all(&system);
        found
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  1048576 kB\nMemFree: 5 kB\n");

    #[test]
    fn without_limits_the_machine_counts() {
        assert_eq!(found("none", &[]), UNKNOWN);
        assert_eq!(found("machine", &[MEMINFO]), 1024 * MIB);
        let unlimited = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a\n"),
            (
                "proc/self/mountinfo",
                "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
        ];
        assert_eq!(found("unlimited", &unlimited), 1024 * MIB);
    }

    #[test]
    fn the_smallest_limit_of_all_parents_counts() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b/c\n"),
            (
                "proc/self/mountinfo",
                "29 1 0:25 / /proc rw - proc proc rw\n\
                 30 1 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/a/memory.max", "134217728\n"),
            ("sys/fs/cgroup/a/memory.high", "max\n"),
            ("sys/fs/cgroup/a/b/memory.high", "100663296\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "201326592\n"),
        ];
        assert_eq!(found("second", &files), 96 * MIB);
    }

    #[test]
    fn version_1_has_a_separate_memory_hierarchy() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "7:memory:/x/y\n3:cpu:/z\n0::/z\n"),
            (
                "proc/self/mountinfo",
                "31 1 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                 32 1 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 33 1 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/cpu/z/memory.limit_in_bytes", "1\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            (
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes",
                "134217728\n",
            ),
            (
                "sys/fs/cgroup/memory/x/y/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ];
        assert_eq!(found("first", &files), 128 * MIB);
    }

    #[test]
    fn a_container_sees_its_group_as_the_root() {
        let mounted = "30 1 0:26 /pod/one /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        for (name, group) in [("full", "0::/pod/one\n"), ("outside", "0::/../other\n")] {
            let files = [
                MEMINFO,
                ("proc/self/cgroup", group),
                ("proc/self/mountinfo", mounted),
                ("sys/fs/cgroup/memory.max", "67108864\n"),
            ];
            assert_eq!(found(name, &files), 64 * MIB);
        }
    }

    #[test]
    fn the_parts_sum_up_to_the_bound() {
        let memory = Memory::of(MOST, 17);
        assert_eq!((memory.cache, memory.dirty), (256 << 20, 256 << 20));
        assert_eq!(memory.total() as u64, MOST);
        assert_eq!(Memory::of(0, 5).total() as u64, LEAST);
        assert_eq!(Memory::of(LEAST, 1).inodes as u64, LEAST);
        assert!(Memory::usual(5).total() as u64 <= MOST);
    }
}
