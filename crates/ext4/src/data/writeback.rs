//! Writeback of all files, as [`sapwood_base::writeback`] schedules it.

use std::sync::Arc;

use sapwood_base::writeback::{Queue, Settings, Writeback, WritebackEngine};

use super::work::{Dispatch, Work};
use super::{complete, flush, submit};
use crate::Options;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::lock::Rank;

/// Writeback of a mount with these options; without threads yet.
pub(crate) fn new_writeback(options: &Options) -> Writeback<Engine> {
    let settings = Settings {
        name: "ext4",
        threads: options.threads,
        inline: options.fixed_time.is_some(),
        background: options.background,
        interval: options.commit_interval,
        dirty_bytes: options.dirty_bytes as u64,
        batching: None,
    };
    Writeback::new(settings, Rank::ActiveFiles, Rank::Leaf)
}

impl WritebackEngine for Engine {
    type Rank = Rank;
    type File = Inode;
    type Work = Work;

    fn writeback(&self) -> &Writeback<Self> {
        &self.writeback
    }

    fn queue(work: &Work) -> Queue {
        match work {
            Work::Complete(..) => Queue::Completion,
            Work::Prepare(..) | Work::Write(..) => Queue::Io,
        }
    }

    fn run(self: &Arc<Self>, work: Work) {
        match work {
            Work::Prepare(taken) => submit::prepare(self, &taken, Dispatch::Queue),
            Work::Write(part) => submit::write(self, vec![part], Dispatch::Queue),
            Work::Complete(inodes) => complete::complete(self, inodes),
        }
    }

    fn begin(self: &Arc<Self>, inodes: &[Arc<Inode>]) {
        flush::begin_all(self, inodes);
    }
}
