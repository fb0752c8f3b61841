//! Opening and closing a file system, and the threads of a mount.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use sapwood_block::Device;

use super::engine::Engine;
use super::sync;
use crate::devices::{DeviceSet, superblock};
use crate::options::SubvolumeChoice;
use crate::subvolume::cleaner;
use crate::tree::Root;
use crate::{Error, Options, Result, namespace, recovery, subvolume};

/// The engine of a mount, below its [front](sapwood_vfs::front).
pub struct Mount {
    pub(crate) engine: Arc<Engine>,
    /// The subvolume that is mounted.
    pub(crate) top: Arc<Root>,
    background: Background,
}

impl Mount {
    /// Mounts the file system on these devices.
    ///
    /// # Errors
    /// Errors of the devices or the image, see [`Error`](crate::Error).
    pub(crate) fn open(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Self> {
        if !options.read_only {
            for device in &devices {
                superblock::watch(&**device)?;
            }
        }
        replay_if_needed(&devices, &options)?;
        let (engine, top) = Engine::open(devices, options)?;
        engine.drop_stale_caches()?;
        if !engine.read_only() {
            subvolume::cleaner::find_dead(&engine)?;
            clean_orphans(&engine, &top);
        }
        engine.volume.begin_repairs();
        let background = Background::start(&engine);
        Ok(Self {
            engine,
            top,
            background,
        })
    }

    /// Drops the blocks of all deleted subvolumes and removes empty block groups now, rather than
    /// in the background. False if something deleted is still in use, or an error stopped it.
    pub fn finish_cleaning(&self) -> bool {
        subvolume::cleaner::clean_now(&self.engine)
    }

    /// Counts one more fsync as in progress until the unmount, so that each fsync behaves as if
    /// another one ran concurrently. For tests.
    #[doc(hidden)]
    pub fn count_endless_fsync(&self) {
        std::mem::forget(self.engine.fsyncs.begin());
    }

    /// The counters of the mount by name.
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.engine.counters.all()
    }

    /// Makes everything durable and ends the background threads. Later changes fail.
    ///
    /// # Errors
    /// The error that kept changes from becoming durable.
    pub fn close(&self) -> Result<()> {
        if self.engine.ambient.is_fixed() && !self.engine.read_only() {
            // There is no cleaner thread, and the result must not depend on time.
            self.finish_cleaning();
        }
        self.background.stop(&self.engine);
        let result = sync::sync(&self.engine);
        self.engine.writeback.stop();
        self.engine.health.close();
        result
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.background.stop(&self.engine);
    }
}

/// Replays the log of the file system on `devices` if it has one and a mount with `options` may.
/// The replay has an engine of its own, and the mount opens anew afterwards. So the mount has no
/// stale state of the trees in memory.
///
/// # Errors
/// [`Error::LogReplay`] for a log that is damaged or contradicts the trees, or when something
/// else fails. Nothing was changed then.
fn replay_if_needed(devices: &[Arc<dyn Device>], options: &Options) -> Result<()> {
    if options.read_only || options.no_log_replay {
        return Ok(());
    }
    let (set, supers) = DeviceSet::assemble(devices, options.access(false))?;
    if set.read_only() || supers.log_root.get() == 0 {
        return Ok(());
    }
    let for_replay = Options {
        subvolume: SubvolumeChoice::Id(0),
        background: false,
        ..options.clone()
    };
    let (engine, _) = Engine::open_for_replay(devices.to_vec(), for_replay)?;
    check_rest(&engine, options)?;
    let result = recovery::replay(&engine);
    engine.health.close();
    result.map_err(|source| Error::LogReplay {
        source: Box::new(source),
    })
}

/// Tries the steps after the replay, so that an image that fails there is refused before anything
/// is written. A path may lead to a subvolume only after the replay.
fn check_rest(engine: &Arc<Engine>, options: &Options) -> Result<()> {
    if !matches!(options.subvolume, SubvolumeChoice::Path(_)) {
        subvolume::choose(&engine.blocks, &engine.roots, &options.subvolume)?;
    }
    subvolume::cleaner::dead_ids(engine).map(drop)
}

/// Deletes inodes that were open and unlinked when the last mount ended. An inode that cannot be
/// deleted keeps its orphan item for a later mount, and does not fail this one.
fn clean_orphans(engine: &Arc<Engine>, top: &Arc<Root>) {
    if let Err(error) = namespace::orphan::clean_once(engine, top) {
        log::warn!("unlinked files of tree {} stay on disk: {error}", top.id());
    }
}

/// The threads of a mount, until they are stopped.
pub(crate) struct Background {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Starts them, unless the mount is read-only or its options do without.
    pub(crate) fn start(engine: &Arc<Engine>) -> Self {
        let mut threads = Vec::new();
        let options = &engine.options;
        let own = options.background && options.fixed_time.is_none();
        if own && !engine.health.read_only() {
            engine.writeback.start(engine);
            threads.extend(spawn(engine, "btrfs-commit", committer));
            threads.extend(spawn(engine, "btrfs-cleaner", |engine| {
                cleaner::run(engine);
            }));
        }
        Self {
            threads: Mutex::new(threads),
        }
    }

    /// Ends them and waits for that.
    pub(crate) fn stop(&self, engine: &Engine) {
        engine.transactions.stop();
        engine.cleaner.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                log::error!("a background thread panicked");
            }
        }
    }
}

fn spawn(engine: &Arc<Engine>, name: &str, work: fn(&Arc<Engine>)) -> Option<JoinHandle<()>> {
    let engine = engine.clone();
    let builder = thread::Builder::new().name(name.to_owned());
    match builder.spawn(move || work(&engine)) {
        Ok(thread) => Some(thread),
        Err(err) => {
            log::error!("no thread {name}: {err}");
            None
        }
    }
}

/// Commits changes that are older than the interval, or on request. Sleeps while nothing changed.
fn committer(engine: &Arc<Engine>) {
    while engine.transactions.wait_due(engine.options.commit_interval) {
        // An error made the mount read-only and was logged; there is nothing left to commit then.
        if engine.commit(None).is_err() {
            return;
        }
        // Inodes of the transaction may be evicted now.
        engine.inodes.trim();
    }
}
