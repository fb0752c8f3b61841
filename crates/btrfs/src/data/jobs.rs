//! What the threads of writeback do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::decide::{compress, decide};
use super::flush::{relieve, write_back_old};
use super::writeback::{Dispatch, Duties, Files, Work, Writeback};
use super::{complete, submit};
use crate::inode::InodeTable;
use crate::transaction::Store;

impl Files {
    /// The files of a mount of the subvolume `mounted`.
    pub(crate) fn new(store: Arc<Store>, mounted: u64) -> Arc<Self> {
        let duties = Duties {
            run,
            write_back_old,
        };
        Arc::new(Self {
            inodes: InodeTable::new(mounted, store.options.inode_bytes),
            writeback: Writeback::new(&store.options, duties),
            store,
        })
    }
}

/// Does a piece of work in this thread.
fn run(files: &Arc<Files>, work: Work) {
    match work {
        Work::Decide(inode, id) => decide(files, &inode, id, Dispatch::Queue),
        Work::Compress(inode, id) => compress(files, &inode, id, Dispatch::Queue),
        Work::Write(write) => submit::submit_one(files, &write),
        Work::Complete(inode, ordered) => complete::complete(files, &[(inode, ordered)]),
        Work::Relieve => {
            files.writeback.relieving.store(false, Ordering::SeqCst);
            relieve(files);
        }
    }
}
