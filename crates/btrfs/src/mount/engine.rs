//! The engine: all parts of a mount, assembled.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use sapwood_block::Device;
use sapwood_btrfs_format::SuperBlock;

use crate::data::Files;
use crate::lock::{Rank, RankedMutex};
use crate::namespace::Namespace;
use crate::subvolume::{self, Subvolumes};
use crate::transaction::{Participant, Store};
use crate::tree::{self, BlockCache, Opened, Root, TreeRead};
use crate::tree_log::{Fsyncs, LoggedNames};
use crate::{Error, Options, Result};

/// Shared state of a mount; always in an `Arc`.
///
/// A stack of layers, each of which has the state that its module needs and dereferences to the one
/// below: `Engine` > [`Subvolumes`] > [`Namespace`] > [`Files`] > [`Store`].
pub(crate) struct Engine {
    subvolumes: Arc<Subvolumes>,
    /// Held by the thread that moves a name from one directory to another.
    pub(crate) topology: RankedMutex<()>,
    /// fsyncs in progress.
    pub(crate) fsyncs: Fsyncs,
}

impl Engine {
    /// Opens the devices and reads the state that every mount needs. Starts no thread and changes
    /// nothing.
    ///
    /// # Errors
    /// The errors of [`tree::open`]; [`Error::LogPresent`] and [`Error::NoReplayNeedsReadOnly`] if
    /// the mount would lose, or hide, the last fsyncs.
    pub(crate) fn open(
        devices: Vec<Arc<dyn Device>>,
        options: Options,
    ) -> Result<(Arc<Self>, Arc<Root>)> {
        let read_only = options.read_only || devices.iter().any(|device| device.read_only());
        let opened = tree::open(&devices, options.access(read_only), options.cache_bytes)?;
        check_log(&opened.super_block, &options, read_only)?;
        Self::assemble(opened, options, read_only)
    }

    /// Like [`open`](Self::open), with a log or without. The next commit drops it.
    ///
    /// # Errors
    /// The errors of [`tree::open`].
    pub(super) fn open_for_replay(
        devices: Vec<Arc<dyn Device>>,
        options: Options,
    ) -> Result<(Arc<Self>, Arc<Root>)> {
        let opened = tree::open(&devices, options.access(false), options.cache_bytes)?;
        Self::assemble(opened, options, false)
    }

    fn assemble(
        opened: Opened,
        options: Options,
        read_only: bool,
    ) -> Result<(Arc<Self>, Arc<Root>)> {
        let top = subvolume::choose(&opened.blocks, &opened.roots, &options.subvolume)?;
        let store = Store::new(opened, options, read_only)?;
        let files = Files::new(store, top.id());
        let namespace = Namespace::new(Arc::clone(&files), Box::new(LoggedNames));
        let subvolumes = Subvolumes::new(namespace);
        let participants: Vec<Weak<dyn Participant>> = vec![
            Arc::downgrade(&files) as Weak<dyn Participant>,
            Arc::downgrade(&subvolumes) as Weak<dyn Participant>,
        ];
        files.set_participants(participants);
        let engine = Arc::new(Self {
            subvolumes,
            topology: RankedMutex::new(Rank::RenameTopology, ()),
            fsyncs: Fsyncs::default(),
        });
        Ok((engine, top))
    }
}

impl Deref for Engine {
    type Target = Arc<Subvolumes>;

    fn deref(&self) -> &Arc<Subvolumes> {
        &self.subvolumes
    }
}

impl TreeRead for Engine {
    fn blocks(&self) -> &BlockCache {
        &self.subvolumes.blocks
    }
}

/// Refuses a mount that would lose, or hide, the last fsyncs.
fn check_log(super_block: &SuperBlock, options: &Options, read_only: bool) -> Result<()> {
    match (super_block.log_root.get(), options.no_log_replay) {
        (_, true) if !read_only => Err(Error::NoReplayNeedsReadOnly),
        (0, _) | (_, true) => Ok(()),
        (_, false) => Err(Error::LogPresent),
    }
}
