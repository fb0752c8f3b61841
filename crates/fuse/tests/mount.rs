//! A real mount of `MemoryFs`, used with ordinary system calls: over `/dev/fuse`, and over io_uring
//! where the kernel has it.

use sapwood_testing::aio;
mod support;

#[path = "mount/contents.rs"]
mod contents;
#[path = "mount/control.rs"]
mod control;
#[path = "mount/inodes.rs"]
mod inodes;
#[path = "mount/names.rs"]
mod names;
#[path = "mount/permissions.rs"]
mod permissions;
#[path = "mount/sessions.rs"]
mod sessions;
#[path = "mount/setid.rs"]
mod setid;
#[path = "mount/synchronous.rs"]
mod synchronous;

fn main() -> std::process::ExitCode {
    let switched = support::SwitchedOn::new();
    let trials = support::over_all(all);
    let conclusion = libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials);
    drop(switched);
    conclusion.exit_code()
}

fn all() -> Vec<libtest_mimic::Trial> {
    let mut trials = Vec::new();
    trials.extend(names::trials());
    trials.extend(inodes::trials());
    trials.extend(contents::trials());
    trials.extend(control::trials());
    trials.extend(permissions::trials());
    trials.extend(sessions::trials());
    trials.extend(setid::trials());
    trials.extend(synchronous::trials());
    trials
}
