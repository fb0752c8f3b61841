//! [`Base`]: the synced file system that a workload starts from.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sapwood_block::MemoryDevice;
use sapwood_testing::MemoryFs;
use sapwood_testing::op::{Op, Session, from_text};
use sapwood_vfs::FileSystem;

use crate::engine::Format;
use crate::policy::Policy;

/// The kinds of bases of all engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BaseKind {
    /// Small tree blocks, one copy of everything, and the files of [`STANDARD`].
    Standard,
    /// The format of [`Standard`](Self::Standard), without files.
    Empty,
    /// Tree blocks of 16 KiB in two copies, as `mkfs` makes them; the files of [`STANDARD`].
    Usual,
    /// Like [`Standard`](Self::Standard), with items for holes.
    Holes,
    /// ext4 with blocks of 1 KiB and a small journal; the files of [`STANDARD`].
    Ext4,
    /// The format of [`Ext4`](Self::Ext4), without files.
    Ext4Empty,
    /// Blocks of 4 KiB, as `mkfs` makes them; the files of [`STANDARD`].
    Ext4Usual,
    /// Like [`Ext4`](Self::Ext4), with block pointers instead of extents, and without room for
    /// descriptors of further groups.
    Ext4Indirect,
    /// Like [`Ext4`](Self::Ext4), with fast commits.
    Ext4Fast,
}

/// Two levels of directories; files with extents, inline, shared, with and without attributes.
pub const STANDARD: &str = "mkdir A; mkdir B; mkdir A/C; \
    creat A/foo; write A/foo 0 20000 1; setxattr A/foo base 50 1; \
    creat A/bar; write A/bar 0 300 2; \
    creat B/foo; write B/foo 0 8192 3; \
    creat B/two; write B/two 0 4096 4; link B/two A/two; \
    mkdir B/D";

/// Size of the device in bytes.
const SIZE: u64 = 60 << 20;

impl BaseKind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Standard,
        Self::Empty,
        Self::Usual,
        Self::Holes,
        Self::Ext4,
        Self::Ext4Empty,
        Self::Ext4Usual,
        Self::Ext4Indirect,
        Self::Ext4Fast,
    ];

    /// The engine of the format.
    #[must_use]
    pub fn engine(self) -> Format {
        match self {
            Self::Standard | Self::Empty | Self::Usual | Self::Holes => Format::Btrfs,
            Self::Ext4
            | Self::Ext4Empty
            | Self::Ext4Usual
            | Self::Ext4Indirect
            | Self::Ext4Fast => Format::Ext4,
        }
    }

    /// True if the format supports an operation: files with block pointers have no unwritten
    /// blocks, and are written after their creation.
    #[must_use]
    pub fn can(self, op: &Op) -> bool {
        let unwritten = matches!(
            op,
            Op::Allocate { .. } | Op::AllocateKeep { .. } | Op::Zero { .. } | Op::ZeroKeep { .. }
        );
        let extents = unwritten || matches!(op, Op::Filled { .. });
        self.engine().can(op) && !(self == Self::Ext4Indirect && extents)
    }

    /// The most similar base of another engine.
    #[must_use]
    pub fn counterpart(self, engine: Format) -> Self {
        match self {
            kind if kind.engine() == engine => kind,
            Self::Empty | Self::Ext4Empty => engine.empty(),
            _ => engine.standard(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Standard => "std",
            Self::Empty => "empty",
            Self::Usual => "usual",
            Self::Holes => "holes",
            Self::Ext4 => "ext4",
            Self::Ext4Empty => "ext4-empty",
            Self::Ext4Usual => "ext4-usual",
            Self::Ext4Indirect => "ext4-indirect",
            Self::Ext4Fast => "ext4-fast",
        }
    }

    fn setup(self) -> &'static str {
        match self {
            Self::Empty | Self::Ext4Empty => "",
            _ => STANDARD,
        }
    }
}

impl fmt::Display for BaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for BaseKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("no base is named {text:?}"))
    }
}

/// A synced file system and the operations that made it.
#[derive(Debug)]
pub struct Base {
    /// Its device; a workload runs on a snapshot of it.
    pub device: MemoryDevice,
    /// The operations that made it.
    pub setup: Vec<Op>,
}

impl Base {
    /// The base of this kind, made once per process.
    ///
    /// # Errors
    /// The reason why it cannot be made.
    pub fn get(kind: BaseKind) -> Result<Arc<Self>, String> {
        static BASES: OnceLock<Mutex<BTreeMap<BaseKind, Arc<Base>>>> = OnceLock::new();
        let mut bases = BASES.get_or_init(Mutex::default).lock();
        if let Some(base) = bases.get(&kind) {
            return Ok(base.clone());
        }
        let base = Arc::new(Self::make(kind)?);
        bases.insert(kind, base.clone());
        Ok(base)
    }

    fn make(kind: BaseKind) -> Result<Self, String> {
        let setup = from_text(kind.setup()).map_err(|error| error.to_string())?;
        let engine = kind.engine();
        let device = Arc::new(engine.format(kind, SIZE)?);
        let fs = engine.open(device.clone(), Policy::Now, 1)?;
        perform(&*fs, &setup)?;
        fs.unmount().map_err(|error| error.to_string())?;
        Ok(Self {
            device: device.snapshot(),
            setup,
        })
    }

    /// The reference model in the state of this base.
    ///
    /// # Errors
    /// The operation that failed.
    pub fn model(&self) -> Result<MemoryFs, String> {
        let model = MemoryFs::new();
        perform(&model, &self.setup)?;
        Ok(model)
    }
}

fn perform(fs: &dyn FileSystem, ops: &[Op]) -> Result<(), String> {
    let mut actor = Session::new(fs, fs.root());
    for op in ops {
        actor
            .perform(op)
            .map_err(|error| format!("setup: {op}: {error}"))?;
    }
    Ok(())
}
