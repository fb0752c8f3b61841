//! What a long operation reports to its caller.

use std::error::Error;

/// A step of a long operation.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Progress<'p> {
    /// A phase is this far.
    Done {
        /// What the operation does, as a word for people.
        phase: &'static str,
        /// Number of things that are done in this phase.
        done: u64,
    },
    /// One thing could not be done, and the operation continues without it. The type of the error
    /// is the one that the operation itself returns.
    Failed(&'p (dyn Error + 'static)),
}

/// The callback of a long operation. It is called by one thread at a time, not always by the
/// caller's.
pub type OnProgress<'p> = dyn FnMut(Progress<'_>) + Send + 'p;

/// A callback that ignores every step.
pub fn ignore(_: Progress<'_>) {}
