//! `sapwood sync`.

use std::path::PathBuf;

use super::failure::{Failure, Result};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Mount points, or files below them
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
}

/// Returns when all earlier changes are durable.
pub(super) fn run(args: &Args) -> Result<()> {
    for dir in &args.dirs {
        crate::host::mount::control::sync(dir).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTTY) => Failure::local(dir, "not in a Sapwood mount"),
            _ => Failure::local(dir, error),
        })?;
    }
    Ok(())
}
