//! [`Failure`]: the first error, after which nothing is written any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rank::{Mutex, Rank};
use crate::{Error, Result};

/// Goes from good to failed once, and never back.
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

    /// Notes the error. True if it is the first.
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

    /// Fails after an error.
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
