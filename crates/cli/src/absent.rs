//! A command that needs mounts, in a build without them: `mount`, `umount`, `doctor`, `demo`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use super::failure::{FAILED, Failure, Result};
use super::output;

/// Examples of `doctor`, which has its own in other builds.
pub(super) const EXAMPLES: &[(&str, &str)] =
    &[("sapwood doctor", "says that this build has no mounts")];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
    #[arg(skip)]
    image: PathBuf,
}

impl Args {
    /// Stands for the image of a mount.
    pub(super) fn image(&mut self) -> &mut PathBuf {
        &mut self.image
    }
}

fn refuse() -> Result<()> {
    let text = "this build has no mounts: they are for Linux";
    Err(Failure::new(FAILED, text).advise("the other commands work on images without a mount"))
}

/// Refuses.
pub(super) fn run(_: &Args) -> Result<()> {
    refuse()
}

/// Refuses.
pub(super) fn start(args: Args) -> ExitCode {
    output::finish(match run(&args) {
        Ok(()) => 0,
        Err(failure) => output::report(&failure),
    })
}

/// The process is not a helper of mount(8).
pub(super) fn helper_arguments(_: &[OsString]) -> Option<Result<Vec<OsString>>> {
    None
}
