//! Reports of a long operation to its caller.

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A step of a long operation.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Progress<'p> {
    /// A phase is this far.
    Done {
        /// The activity, as a word for people.
        phase: &'static str,
        /// Units that are done in this phase.
        done: u64,
    },
    /// A phase begins; this is how much it has to do, in the unit of [`Done`](Self::Done). 0: it is
    /// not known.
    Total(u64),
    /// Number of copied bytes of content.
    Bytes(u64),
    /// The item in work. Its text is made only if it is displayed.
    Item(&'p dyn Display),
    /// An item failed, and the operation continues without it. The error has the type that the
    /// operation itself returns.
    Failed(&'p (dyn Error + 'static)),
}

impl std::fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done { phase, done } => write!(f, "Done({phase}, {done})"),
            Self::Total(total) => write!(f, "Total({total})"),
            Self::Bytes(done) => write!(f, "Bytes({done})"),
            Self::Item(item) => write!(f, "Item({item})"),
            Self::Failed(error) => write!(f, "Failed({error})"),
        }
    }
}

/// The callback of a long operation. One thread calls it at a time, which need not be the caller's.
pub type OnProgress<'p> = dyn FnMut(Progress<'_>) + Send + 'p;

/// A callback that ignores every step.
pub(crate) fn ignore(_: Progress<'_>) {}

/// A request to end a long operation early. Clones are the same request.
///
/// The operation completes its current step, and returns with
/// [`Interrupted`](crate::ErrorKind::Interrupted). Its changes until then stay.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// A request that is not made yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks every operation that has this request to end.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`stop`](Self::stop) was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
