//! A test case, its target, and the capabilities that decide whether it applies.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::support::{Fixture, Outcome};
use sapwood_vfs::{FileSystem, InodeFlags};

/// How long a case may take before it counts as deadlocked. The slowest case takes seconds even in
/// a debug build; the rest is a reserve for a loaded machine.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// Size of the file system for ordinary cases, in bytes. No ordinary case fills a quarter of it.
const ORDINARY: u64 = 1 << 30;
/// Size for cases that fill the file system, in bytes.
const SMALL: u64 = 128 << 20;

/// One fresh file system, which a case can mount again and again.
pub trait Target: Send {
    /// Mounts the file system. The result of an earlier mount was unmounted and dropped.
    ///
    /// # Errors
    /// Text for the test's report.
    fn mount(&mut self, read_only: bool) -> Result<Arc<dyn FileSystem>, String>;

    /// Checks the file system that the case left, after the last unmount.
    ///
    /// # Errors
    /// A description of the damage.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// The capabilities in which engines may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Synced changes, and all changes after a clean unmount, are there after the next mount.
    pub persistent: bool,
    /// [`FileSystem::subvolumes`] returns the operations.
    pub subvolumes: bool,
    /// [`FileSystem::tmpfile`] works.
    pub tmpfile: bool,
    /// Ranges can be shared between files (`CopyMode::ShareOnly`).
    pub reflink: bool,
    /// A shared range takes space once.
    pub shared_space: bool,
    /// `AllocMode::Allocate` works: a range can be allocated without a write.
    pub preallocate: bool,
    /// `AllocMode::PunchHole` works.
    pub punch_hole: bool,
    /// `AllocMode::ZeroRange` works.
    pub zero_range: bool,
    /// `AllocMode::CollapseRange` and `AllocMode::InsertRange` work.
    pub shift_range: bool,
    /// Files record holes: `seek` finds them to the block.
    pub holes: bool,
    /// A directory has a link for itself and one for every directory in it; without this
    /// capability, it always has one link.
    pub directory_links: bool,
    /// Directories and files take a compression property (`btrfs.compression`).
    pub compression: bool,
    /// Inode flags that can be set and read back.
    pub flags: InodeFlags,
    /// Flags that a new inode inherits from its directory.
    pub inherited_flags: InodeFlags,
    /// Granularity of holes, in bytes.
    pub block_size: u64,
    /// The greatest number of names of an inode. `None` skips the case that makes as many.
    pub link_max: Option<u32>,
    /// Length of the longest value of an extended attribute that certainly fits, in bytes.
    pub xattr_value: usize,
    /// Number of attributes with a value of 100 bytes that certainly fit on one inode.
    pub xattr_count: usize,
    /// Length of the longest file in bytes, if it is less than the trait allows.
    pub max_file_size: u64,
}

impl Capabilities {
    /// The capabilities of btrfs with sectors of 4 KiB and nodes of 16 KiB.
    pub const BTRFS: Self = Self {
        persistent: true,
        subvolumes: true,
        tmpfile: true,
        reflink: true,
        shared_space: true,
        preallocate: true,
        punch_hole: true,
        zero_range: true,
        shift_range: false,
        holes: true,
        directory_links: false,
        compression: true,
        flags: InodeFlags::all(),
        inherited_flags: sapwood_vfs::rules::inherited_flags(InodeFlags::all()),
        block_size: 4096,
        link_max: None,
        xattr_value: 15_000,
        xattr_count: 300,
        max_file_size: sapwood_vfs::rules::MAX_FILE_SIZE,
    };

    /// The capabilities of ext4 with blocks of 4 KiB and inodes of 256 bytes.
    pub const EXT4: Self = Self {
        subvolumes: false,
        reflink: false,
        shared_space: false,
        shift_range: true,
        directory_links: true,
        compression: false,
        flags: InodeFlags::SYNC
            .union(InodeFlags::IMMUTABLE)
            .union(InodeFlags::APPEND)
            .union(InodeFlags::NODUMP)
            .union(InodeFlags::NOATIME)
            .union(InodeFlags::DIRSYNC),
        inherited_flags: InodeFlags::NODUMP.union(InodeFlags::NOATIME),
        xattr_value: 3500,
        xattr_count: 25,
        max_file_size: (1 << 44) - 4096,
        ..Self::BTRFS
    };

    /// The capabilities of [`MemoryFs`](crate::MemoryFs).
    pub const MEMORY: Self = Self {
        shared_space: false,
        shift_range: true,
        link_max: Some(65535),
        ..Self::BTRFS
    };
}

pub(super) type Body = fn(&mut Fixture) -> Outcome;
pub(super) type Condition = fn(&Capabilities) -> bool;

/// One guarantee of the trait, and the test of it.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    topic: &'static str,
    promise: &'static str,
    body: Body,
    condition: Condition,
    capacity: u64,
}

impl Case {
    pub(super) fn new(
        topic: &'static str,
        promise: &'static str,
        body: Body,
        condition: Condition,
    ) -> Self {
        Self {
            topic,
            promise,
            body,
            condition,
            capacity: ORDINARY,
        }
    }

    /// The same case on a small file system.
    pub(super) fn small(self) -> Self {
        Self {
            capacity: SMALL,
            ..self
        }
    }

    /// `topic::promise`
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}::{}", self.topic, self.promise)
    }

    /// False if the case tests something that an engine without these capabilities does not have.
    #[must_use]
    pub fn applies(&self, capabilities: &Capabilities) -> bool {
        (self.condition)(capabilities)
    }

    /// Size of the file system that the case needs, in bytes.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Runs the case on a fresh file system of (about) [`capacity`](Self::capacity) bytes.
    ///
    /// # Errors
    /// The guarantee that does not hold, or that the case panicked or timed out. After a timeout
    /// the threads of the case still run, so the process should end soon.
    pub fn run(&self, capabilities: Capabilities, target: Box<dyn Target>) -> Result<(), String> {
        let (sender, receiver) = channel();
        let body = self.body;
        let worker = std::thread::Builder::new().name(self.name());
        let worker = worker
            .spawn(move || {
                // The receiver is gone only after a timeout.
                let _ = sender.send(run_body(body, capabilities, target));
            })
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        match receiver.recv_timeout(TIME_LIMIT) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("no end after {TIME_LIMIT:?}: a deadlock?"))
            }
            Err(RecvTimeoutError::Disconnected) => Err(match worker.join() {
                Ok(()) => "ended without a result".to_owned(),
                Err(payload) => format!("panicked: {}", panic_text(payload.as_ref())),
            }),
        }
    }
}

/// The text of a panic.
pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("without a text")
}

fn run_body(body: Body, capabilities: Capabilities, target: Box<dyn Target>) -> Result<(), String> {
    let mut fixture = Fixture::new(capabilities, target)?;
    body(&mut fixture).map_err(|fault| fault.to_string())?;
    fixture.finish()
}

/// Cases of a topic, each a function of the same name; `if` names the capability (a `bool` of
/// [`Capabilities`]) that a case needs.
macro_rules! group {
    ($topic:literal: $($promise:ident $(if $capability:ident $(& $more:ident)*)?),* $(,)?) => {
        vec![$(
            $crate::conformance::case::Case::new(
                $topic,
                stringify!($promise),
                $promise,
                |_capabilities| true $(&& _capabilities.$capability $(&& _capabilities.$more)*)?,
            )
        ),*]
    };
}
pub(in crate::conformance) use group;
