//! The sandbox of a daemon: it gives up its rights before it reads the first byte of a possibly
//! hostile image.
//!
//! # How it works
//!
//! [`confine`] is called by the only thread of a process that has opened the image and has started
//! a [`broker`](crate::broker). All later threads inherit the sandbox, and no call ends it. In
//! order:
//!
//! 1. Capabilities: all sets become empty. The daemon of root keeps the user id 0.
//! 2. `no_new_privs`: no program that the process could start gains a privilege.
//! 3. Landlock: only files in [`READ`] and [`READ_WRITE`] can be opened; no TCP port can be bound
//!    or connected to; no abstract socket and no process outside can be reached.
//! 4. A seccomp filter (`filter.rs`): system calls that the daemon needs.
//!
//! A part that the kernel lacks is left out, unless the caller is strict. Without Landlock, the
//! filter refuses every open.
//!
//! Tests: `tests/daemon.rs` (`a_confined_process_*`), `tests/suites/mounting/service.rs`.

mod filter;

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use sapwood_vfs::Choice;

use crate::options::MountOptions;

/// Read: facts about processes that call, threads of this process, control groups and CPUs.
pub const READ: &[&str] = &["/proc", "/sys/fs/cgroup", "/sys/devices/system/cpu"];
/// Read and written: further descriptors of the connection.
pub const READ_WRITE: &[&str] = &["/dev/fuse"];

/// The newest version of Landlock that is used as far as the kernel has it.
const LANDLOCK: ABI = ABI::V6;

/// Needs of a process in addition to the needs of every daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// io_uring, whose requests no seccomp filter sees. A daemon should use it only if its user
    /// asked for it.
    pub io_uring: bool,
}

impl Needs {
    /// The needs of a daemon that serves a mount with these options.
    #[must_use]
    pub fn of(options: &MountOptions) -> Self {
        let offered = || std::fs::read_to_string(RINGS).is_ok_and(|text| text.trim() == "Y");
        Self {
            io_uring: options.io_uring != Choice::Off && offered(),
        }
    }
}

/// Whether the kernel offers FUSE over io_uring: `Y` or `N`.
const RINGS: &str = "/sys/module/fuse/parameters/enable_uring";

/// The parts in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    /// Landlock, as far as the kernel has it.
    pub landlock: bool,
    /// The seccomp filter.
    pub seccomp: bool,
}

/// Why a process could not be confined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Threads that exist would stay outside.
    #[error("the process has threads already")]
    Threads,
    /// Capabilities could not be dropped.
    #[error("cannot drop capabilities: {0}")]
    Capabilities(#[source] io::Error),
    /// `no_new_privs` could not be set.
    #[error("cannot set no_new_privs: {0}")]
    NewPrivileges(#[source] io::Error),
    /// The kernel refused a Landlock ruleset.
    #[error("cannot use Landlock: {0}")]
    Ruleset(#[source] Box<RulesetError>),
    /// The kernel has no Landlock.
    #[error("the kernel has no Landlock, or it is not enabled")]
    NoLandlock,
    /// The process must be able to connect to a server again.
    #[error("a lost connection to a server must be made again")]
    Connections,
    /// The kernel refused the seccomp filter.
    #[error("cannot install a seccomp filter: {0}")]
    Filter(#[source] Box<seccompiler::Error>),
}

impl From<RulesetError> for SandboxError {
    fn from(error: RulesetError) -> Self {
        Self::Ruleset(Box::new(error))
    }
}

/// Confines this process for the rest of its life. If `strict`, a part that the kernel lacks is an
/// error, otherwise it is left out and logged.
///
/// # Errors
/// See the variants of [`SandboxError`]. The process may be confined in part.
pub fn confine(needs: Needs, strict: bool) -> Result<Confinement, SandboxError> {
    if !crate::daemon::has_one_thread() {
        return Err(SandboxError::Threads);
    }
    // Reads facts about the process that it could not read later.
    let _ = rustix::param::page_size();
    drop_capabilities().map_err(SandboxError::Capabilities)?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| SandboxError::NewPrivileges(errno.into()))?;
    let landlock = part(strict, restrict_files())?;
    let seccomp = part(strict, filter::install(needs, landlock))?;
    Ok(Confinement { landlock, seccomp })
}

/// Whether the kernel has Landlock, and it is enabled. Confines nothing.
#[must_use]
pub fn has_landlock() -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let rules = rules.handle_access(AccessFs::from_all(ABI::V1));
    rules.and_then(Ruleset::create).is_ok()
}

/// Whether a part of the sandbox is in force.
fn part(strict: bool, result: Result<(), SandboxError>) -> Result<bool, SandboxError> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if strict => Err(error),
        Err(error) => {
            log::info!("the sandbox lacks a part: {error}");
            Ok(false)
        }
    }
}

fn drop_capabilities() -> io::Result<()> {
    // Fails without `CAP_SETPCAP`. Then the set bounds nothing: no program can be started.
    for capability in CapabilitySet::all().iter() {
        let _ = rustix::thread::remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

fn restrict_files() -> Result<(), SandboxError> {
    let read = AccessFs::ReadFile;
    let read_write = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules(READ_WRITE, read_write))?
        .restrict_self()?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(SandboxError::NoLandlock),
        RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
    }
}
