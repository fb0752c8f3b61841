//! [`sapwood_testing::machine`], and further requirements of the tests here.

use std::path::PathBuf;

use sapwood_testing::oracle::Kind;

pub use sapwood_testing::machine::*;

use crate::mount;

/// The kernel's btrfs.
pub const KERNEL: Need = Need::Kernel(Kind::Btrfs);
/// The kernel's ext4.
pub const KERNEL_EXT4: Need = Need::Kernel(Kind::Ext4);
/// Root, loop devices, and a kernel that passes `sync` to a mount of type `fuseblk`.
pub const FUSE_BLK: Need =
    Need::Other(|| missing(&[MOUNTS]).or_else(|| no(sapwood_fuse::offers_fuseblk(), "fuseblk")));
/// Control groups that limit memory, and the right to make one.
pub const MEMORY_GROUP: Need =
    Need::Other(|| no(memory_groups().is_some(), "control groups for memory"));
/// The kernel's overlayfs.
pub const OVERLAY: Need = Need::Other(|| no(has_overlay(), "overlayfs"));
/// PostgreSQL's server, as Debian installs it.
pub const POSTGRES: Need = Need::Other(|| no(postgres_programs().is_some(), "PostgreSQL"));
/// A virtual machine with a kernel of Debian, which `scripts/debian-vm` makes.
pub const DEBIAN_VM: Need = Need::Other(|| {
    no(
        std::env::var_os("SAPWOOD_DEBIAN_VM").is_some(),
        "SAPWOOD_DEBIAN_VM",
    )
});
/// This source tree's history.
pub const HISTORY: Need = Need::Other(|| no(mount::workspace().join(".git").exists(), "history"));

/// The reason for a missing requirement, unless it is `there`.
#[must_use]
pub fn no(there: bool, what: &str) -> Option<String> {
    (!there).then(|| format!("no {what}"))
}

/// The reason, if a program that `scripts/test-programs` installs is missing.
#[must_use]
pub fn no_cached(program: &str) -> Option<String> {
    no(cached(program).is_file(), program)
}

/// The path of a program that `scripts/test-programs` installs.
#[must_use]
pub fn cached(program: &str) -> PathBuf {
    mount::cache().join("bin").join(program)
}

fn has_overlay() -> bool {
    // It may be a module.
    let mut load = std::process::Command::new("modprobe");
    drop(load.args(["-q", "overlay"]).status());
    let known = std::fs::read_to_string("/proc/filesystems");
    known.is_ok_and(|known| known.contains("overlay"))
}

/// The directory of the programs of PostgreSQL's server.
#[must_use]
pub fn postgres_programs() -> Option<PathBuf> {
    postgres(&["initdb", "postgres", "psql", "pg_isready", "pg_amcheck"])
}
