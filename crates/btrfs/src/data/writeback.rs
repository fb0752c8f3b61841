//! Writeback of all files, as [`sapwood_base::writeback`] schedules it.

use std::sync::Arc;
use std::time::Duration;

use sapwood_base::Batching;
use sapwood_base::writeback::{Queue, Settings, Writeback, WritebackEngine};

use super::files::{Batch, Dispatch, ExpandedExtents, Files, Overwrites, Work};
use super::{complete, decide, flush, submit};
use crate::Options;
use crate::inode::{Inode, InodeTable};
use crate::lock::Rank;
use crate::transaction::{Participant, Store};

/// An fsync does not wait for the completion of what it wrote, so it should not pay for waking a
/// thread that completes it either.
const BATCHING: Batching = Batching {
    time: Duration::from_millis(1),
    jobs: 16,
};

impl Files {
    /// The files of a mount of the subvolume `mounted`; without threads yet.
    pub(crate) fn new(store: Arc<Store>, mounted: u64) -> Arc<Self> {
        let settings = settings(&store.options);
        Arc::new(Self {
            inodes: InodeTable::new(mounted, store.options.inode_bytes),
            writeback: Writeback::new(settings, Rank::ActiveFiles, Rank::Leaf),
            overwrites: Overwrites::new(),
            expanded: ExpandedExtents::new(),
            store,
        })
    }
}

fn settings(options: &Options) -> Settings {
    Settings {
        name: "btrfs",
        threads: options.threads,
        inline: options.fixed_time.is_some(),
        background: options.background,
        interval: options.commit_interval,
        dirty_bytes: options.dirty_bytes as u64,
        batching: Some(BATCHING),
    }
}

impl WritebackEngine for Files {
    type Rank = Rank;
    type File = Inode;
    type Work = Work;

    fn writeback(&self) -> &Writeback<Self> {
        &self.writeback
    }

    fn queue(work: &Work) -> Queue {
        match work {
            Work::Complete(..) => Queue::Completion,
            Work::Decide(..) | Work::Compress(..) | Work::Write(..) => Queue::Io,
        }
    }

    fn run(self: &Arc<Self>, work: Work) {
        match work {
            Work::Decide(taken) => decide::decide_all(self, &taken),
            Work::Compress(inode, id) => {
                let batch = Batch::default();
                decide::compress(self, &inode, id, Dispatch::Queue(&batch));
                decide::end_batch(self, batch);
            }
            Work::Write(write) => submit::submit(self, vec![write], true),
            Work::Complete(batch) => complete::complete(self, &batch),
        }
    }

    fn begin(self: &Arc<Self>, inodes: &[Arc<Inode>]) {
        flush::begin_all(self, inodes);
    }
}

impl Participant for Files {
    fn write_back(self: Arc<Self>) {
        // What fails is reported to the threads that wait for their own file.
        let _ = flush::write_back_all(&self);
    }

    fn hurry(&self) {
        self.writeback.hurry();
    }
}
