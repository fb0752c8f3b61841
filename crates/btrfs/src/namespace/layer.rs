//! The layer of names, and the trait through which the log receives added and removed names.

use std::ops::Deref;
use std::sync::Arc;

use crate::commit_reason::CommitReason;
use crate::data::Files;
use crate::inode::Inode;
use crate::transaction::Handle;
use crate::tree::{BlockCache, TreeRead};

/// Receives added and removed names. Implemented by the tree log, which may have the inode.
pub(crate) trait NameLog: Send + Sync {
    /// `inode` got another name in the handle's transaction, which has a log. Its `io` lock is held
    /// exclusively.
    fn name_added(&self, h: &mut Handle, inode: &Arc<Inode>);

    /// A name of `inode` in `dir` was removed in the handle's transaction, which has a log. Both
    /// `io` locks are held exclusively.
    fn name_removed(&self, h: &mut Handle, dir: &Arc<Inode>, inode: &Arc<Inode>);

    /// The handle's transaction has a change that a log could lose: every fsync must commit it.
    fn forbid(&self, h: &Handle, reason: CommitReason);
}

/// Names, on top of files; always in an `Arc`.
pub(crate) struct Namespace {
    files: Arc<Files>,
    log: Box<dyn NameLog>,
}

impl Namespace {
    /// The names of these files, with the log that receives their changes.
    pub(crate) fn new(files: Arc<Files>, log: Box<dyn NameLog>) -> Arc<Self> {
        Arc::new(Self { files, log })
    }

    /// Reports an added name to the log. Expects the inode's `io` lock exclusively.
    pub(super) fn name_added(&self, h: &mut Handle, inode: &Arc<Inode>) {
        if h.trans().log.is_filled() {
            self.log.name_added(h, inode);
        }
    }

    /// Reports a removed name to the log. Expects both `io` locks exclusively.
    pub(super) fn name_removed(&self, h: &mut Handle, dir: &Arc<Inode>, inode: &Arc<Inode>) {
        if h.trans().log.is_filled() {
            self.log.name_removed(h, dir, inode);
        }
    }

    /// Makes every fsync of the handle's transaction commit it, for a change that a log could lose.
    pub(super) fn forbid_log(&self, h: &Handle, reason: CommitReason) {
        self.log.forbid(h, reason);
    }
}

impl Deref for Namespace {
    type Target = Arc<Files>;

    fn deref(&self) -> &Arc<Files> {
        &self.files
    }
}

impl TreeRead for Namespace {
    fn blocks(&self) -> &BlockCache {
        &self.files.blocks
    }
}
