//! The engine that a dispatcher calls.

use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sapwood_vfs::{Attr, FileKind, FileSystem};

use super::Dispatcher;
use crate::node::NodeId;
use crate::request::Reply;

/// The engine of a mount. One that was opened read-only can be replaced, once, by an engine that
/// writes to the same image.
pub(super) struct ServedEngine {
    first: Arc<dyn FileSystem>,
    writing: OnceLock<Arc<dyn FileSystem>>,
}

impl ServedEngine {
    pub(super) fn new(first: Arc<dyn FileSystem>) -> Self {
        Self {
            first,
            writing: OnceLock::new(),
        }
    }

    /// Replaces the engine; the kernel's references pass to the new one. No call of the engine may
    /// be in progress.
    ///
    /// The kernel releases all lookups of a node at once. Releasing more references than exist
    /// releases all, so one reference of the new engine stands for all lookups of a node.
    pub(super) fn replace(&self, by: Arc<dyn FileSystem>) {
        for ino in self.first.referenced() {
            // Names that the log deletes, in a mount without recovery, are stale for the kernel
            // too.
            if let Err(error) = by.reference(ino) {
                log::debug!("inode {}: {error}", ino.0);
            }
        }
        let _ = self.writing.set(by);
    }
}

impl Deref for ServedEngine {
    type Target = dyn FileSystem;

    fn deref(&self) -> &Self::Target {
        &**self.writing.get().unwrap_or(&self.first)
    }
}

impl Dispatcher {
    /// Sets the options that commands get.
    #[must_use]
    pub(crate) fn telling(self, options: String) -> Self {
        Self {
            options: Mutex::new(options),
            ..self
        }
    }

    /// Sets whether the kernel can drop all names at once.
    pub(crate) fn set_drops_names(&self, on: bool) {
        self.drops_names.store(on, Ordering::Relaxed);
    }

    /// Whether the kernel can drop all names at once.
    pub(crate) fn drops_names(&self) -> bool {
        self.drops_names.load(Ordering::Relaxed)
    }

    /// Sets whether the kernel passes `syncfs` on, after it has written back all dirty pages.
    pub(crate) fn set_receives_sync(&self, on: bool) {
        self.receives_sync.store(on, Ordering::Relaxed);
    }

    /// Whether the kernel passes `syncfs` on.
    pub(crate) fn receives_sync(&self) -> bool {
        self.receives_sync.load(Ordering::Relaxed)
    }

    /// The nodes of files whose pages in the kernel may be dirty after a `syncfs` of the caller.
    ///
    /// # Errors
    /// `EIO` after the end.
    pub(crate) fn perhaps_dirty(&self) -> Reply<Vec<NodeId>> {
        let _open = self.enter()?;
        if self.receives_sync() {
            return Ok(Vec::new());
        }
        // A node that fails here is on the list, because the kernel may hold pages of it.
        let clean = |attr: &Attr| attr.kind != FileKind::Regular;
        let mut nodes = Vec::new();
        for ino in self.fs.referenced() {
            if !self.fs.getattr(ino).as_ref().is_ok_and(clean) {
                nodes.push(self.map.node(ino));
            }
        }
        Ok(nodes)
    }

    /// Replaces a read-only engine by the one that `open` gives, between two requests; commands
    /// then learn `options`. Returns the nodes that the kernel may have cached.
    ///
    /// # Errors
    /// The errors of `open`; the engine stays.
    pub(crate) fn replace_engine<E>(
        &self,
        options: String,
        open: impl FnOnce() -> Result<Arc<dyn FileSystem>, E>,
    ) -> Result<Vec<NodeId>, E> {
        // Waits for the calls in progress. None of them waits for a later one.
        let _alone = self.closed.write();
        // The root needs no reference.
        let cached = self.fs.referenced().into_iter().chain([self.fs.root()]);
        let cached = cached.map(|ino| self.map.node(ino)).collect();
        self.fs.replace(open()?);
        *self.options.lock() = options;
        Ok(cached)
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// Errors of the engine.
    pub(crate) fn sync_engine(&self) -> sapwood_vfs::Result<()> {
        self.fs.sync()
    }
}
