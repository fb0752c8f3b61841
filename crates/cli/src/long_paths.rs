//! Paths that are longer than a system call takes, which lists leave out.

use std::path::Path;

use super::failure::{Failure, Result};
use super::files::shown_path;

/// Most bytes of a path in a system call.
const PATH_MAX: usize = 4095;

/// Which paths are printed.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct LongPaths {
    /// Also print paths of more than 4095 bytes, which no system call accepts
    #[arg(long, help_heading = "Depth and output")]
    long_paths: bool,
}

/// The paths that were left out below a place.
#[derive(Debug, Default)]
pub(super) struct LeftOut(u64);

impl LongPaths {
    /// Whether a path of this length, in bytes, is printed. Counts a path that is not.
    pub(super) fn has(self, bytes: usize, left_out: &mut LeftOut) -> bool {
        let has = self.long_paths || bytes <= PATH_MAX;
        left_out.0 += u64::from(!has);
        has
    }
}

impl LeftOut {
    /// Fails if paths below `place` were left out.
    pub(super) fn end(self, place: &Path) -> Result<()> {
        let paths = match self.0 {
            0 => return Ok(()),
            1 => "1 path".to_owned(),
            count => format!("{count} paths"),
        };
        let why = format!("{paths} of more than {PATH_MAX} bytes not printed");
        Err(Failure::on(shown_path(place), why).advise("--long-paths prints them"))
    }
}
