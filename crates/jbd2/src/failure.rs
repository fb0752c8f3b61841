//! [`Failure`]: the first error, after which the journal writes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rank::{Mutex, Rank};
use crate::{Error, Result};

/// Is set once, and never cleared.
#[derive(Debug)]
pub(crate) struct Failure {
    failed: AtomicBool,
    first: Mutex<Option<Arc<Error>>>,
}

impl Failure {
    pub(crate) fn new() -> Self {
        Self {
            failed: AtomicBool::new(false),
            first: Mutex::new(Rank::Leaf, None),
        }
    }

    /// Records the error. True if it is the first.
    pub(crate) fn fail(&self, err: &Error) -> bool {
        let mut first = self.first.lock();
        if first.is_some() {
            return false;
        }
        log::error!("journal aborted: {err}");
        *first = Some(Arc::new(err.clone()));
        self.failed.store(true, Ordering::SeqCst);
        true
    }

    /// Fails if an error was recorded.
    ///
    /// # Errors
    /// [`Error::Aborted`] with the first error.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.failed.load(Ordering::SeqCst) {
            return Ok(());
        }
        match &*self.first.lock() {
            Some(err) => Err(Error::Aborted(err.clone())),
            None => Ok(()),
        }
    }
}
