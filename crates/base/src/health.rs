//! Whether the mount still allows changes.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

/// Why changes, or all requests, are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unhealthy {
    /// Mounted read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// An earlier error, with this text, ended all changes.
    #[error("read-only since an error: {0}")]
    Aborted(Arc<str>),
    /// Unmounted.
    #[error("unmounted")]
    Unmounted,
}

/// Changes from healthy to failed once, and never back. Takes no other lock.
#[derive(Debug)]
pub struct Health {
    read_only: bool,
    failed: AtomicBool,
    closed: AtomicBool,
    reason: RwLock<Option<Arc<str>>>,
    first: OnceLock<Arc<str>>,
}

impl Health {
    /// A mount that was just opened.
    pub fn new(read_only: bool) -> Self {
        Self {
            read_only,
            failed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            reason: RwLock::new(None),
            first: OnceLock::new(),
        }
    }

    /// Makes the mount read-only because of `err`. Only the first error is kept and logged.
    pub fn fail(&self, err: &dyn Display) {
        let mut reason = self.reason.write();
        if reason.is_some() {
            return;
        }
        self.record(err);
        log::error!("{err}; the mount is now read-only");
        *reason = Some(err.to_string().into());
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Records an error that lost written data but leaves the mount writable. Only the first error
    /// of a mount is kept; the caller logs it.
    pub fn record(&self, err: &dyn Display) {
        let _ = self.first.set(err.to_string().into());
    }

    /// The first error that lost written data or ended all changes. It stays after an unmount.
    pub fn first_error(&self) -> Option<&str> {
        self.first.get().map(|text| &**text)
    }

    /// Records that the file system is unmounted: changes are refused from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut reason = self.reason.write();
        if reason.is_none() {
            *reason = Some("unmounted".into());
            self.failed.store(true, Ordering::SeqCst);
        }
    }

    /// Fails if changes are refused.
    ///
    /// # Errors
    /// [`Unhealthy::ReadOnly`] by option, [`Unhealthy::Aborted`] after an error.
    pub fn check(&self) -> Result<(), Unhealthy> {
        if self.failed.load(Ordering::SeqCst) {
            return Err(self.error());
        }
        if self.read_only {
            return Err(Unhealthy::ReadOnly);
        }
        Ok(())
    }

    /// Fails after an unmount.
    ///
    /// # Errors
    /// [`Unhealthy::Unmounted`].
    pub fn check_open(&self) -> Result<(), Unhealthy> {
        if self.closed.load(Ordering::SeqCst) {
            Err(Unhealthy::Unmounted)
        } else {
            Ok(())
        }
    }

    /// Fails if an error ended all changes. A mount that is read-only by option passes.
    ///
    /// # Errors
    /// [`Unhealthy::Aborted`].
    pub fn check_unfailed(&self) -> Result<(), Unhealthy> {
        if self.failed() {
            Err(self.error())
        } else {
            Ok(())
        }
    }

    /// Whether an error ended all changes.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Whether changes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only || self.failed()
    }

    fn error(&self) -> Unhealthy {
        let reason = self.reason.read().clone();
        Unhealthy::Aborted(reason.unwrap_or_else(|| "unknown".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_error_leaves_the_mount_writable() {
        let health = Health::new(false);
        assert_eq!(health.first_error(), None);
        health.record(&"4096 bytes are lost");
        health.fail(&"no device");
        assert_eq!(health.first_error(), Some("4096 bytes are lost"));
        let err = health.check().unwrap_err();
        assert_eq!(err.to_string(), "read-only since an error: no device");
        let unmounted = Health::new(false);
        unmounted.close();
        assert_eq!(unmounted.first_error(), None);
    }

    #[test]
    fn the_first_error_is_kept() {
        let health = Health::new(false);
        assert!(health.check().is_ok() && !health.read_only());
        health.fail(&"no tree 7");
        health.fail(&"no device");
        let err = health.check().unwrap_err();
        assert_eq!(err.to_string(), "read-only since an error: no tree 7");
        assert_eq!(health.first_error(), Some("no tree 7"));
        assert!(matches!(
            Health::new(true).check(),
            Err(Unhealthy::ReadOnly)
        ));
    }
}
