//! The mapping of a run of a file.

use crate::{Error, Result};

/// The mapping of a run of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// No block.
    Hole,
    /// Blocks with content, from this one on.
    Written(u64),
    /// Blocks that read as zeros, from this one on.
    Unwritten(u64),
}

/// A run of blocks of a file that are all of one kind and side by side on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// First block of the run in the file; not before the requested one.
    pub(crate) logical: u64,
    /// Blocks.
    pub(crate) len: u64,
    /// The mapping.
    pub(crate) what: Mapped,
}

/// A run that grows at its end while a map is read.
pub(super) struct Growing {
    run: Run,
    /// End of the caller's range.
    end: u64,
}

impl Growing {
    /// An empty run at `logical`, up to `max` blocks.
    pub(super) fn new(logical: u64, max: u64) -> Self {
        let run = Run {
            logical,
            len: 0,
            what: Mapped::Hole,
        };
        let end = logical.saturating_add(max);
        Self { run, end }
    }

    /// The block after the run.
    pub(super) fn at(&self) -> u64 {
        self.run.logical.saturating_add(self.run.len)
    }

    /// Puts a piece after the run, which ends at block `to` of the file. False if it is of another
    /// kind, or if the end is reached.
    pub(super) fn push(&mut self, what: Mapped, to: u64) -> bool {
        if self.run.len == 0 {
            self.run.what = what;
        } else if !self.fits(what) {
            return false;
        }
        self.run.len = to.min(self.end).saturating_sub(self.run.logical);
        self.at() < self.end
    }

    fn fits(&self, what: Mapped) -> bool {
        match (self.run.what, what) {
            (Mapped::Hole, Mapped::Hole) => true,
            (Mapped::Written(begin), Mapped::Written(next))
            | (Mapped::Unwritten(begin), Mapped::Unwritten(next)) => {
                begin.checked_add(self.run.len) == Some(next)
            }
            _ => false,
        }
    }

    /// The run, followed only by a hole.
    pub(super) fn rest_is_hole(mut self) -> Run {
        let end = self.end;
        self.push(Mapped::Hole, end);
        self.run
    }

    /// The run.
    pub(super) fn done(self) -> Run {
        self.run
    }
}
/// End of a run that was found at `at`, at most `limit`.
///
/// # Errors
/// The run does not begin there or has no length: a caller that walks a map would never end.
pub(crate) fn run_end(ino: u32, run: &Run, at: u64, limit: u64) -> Result<u64> {
    let end = run.logical.saturating_add(run.len).min(limit);
    if run.logical != at || end <= at {
        return Err(Error::BadInode {
            ino,
            reason: format!("block {at}: its extents contradict each other"),
        });
    }
    Ok(end)
}
