//! A real mount of `MemoryFs`, used with ordinary system calls: over `/dev/fuse`, and over io_uring
//! where the kernel has it.

mod cases;
mod support;

use sapwood_testing::{aio, machine};

fn main() -> std::process::ExitCode {
    let switched = machine::SwitchedOn::new();
    let trials = support::over_all(cases::all);
    let conclusion = libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials);
    drop(switched);
    conclusion.exit_code()
}
