//! The `sapwood` command.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

mod cli;

fn main() -> ExitCode {
    cli::run()
}
