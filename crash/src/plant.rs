//! Faults that are planted on purpose: the explorer must find them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sapwood_block::{Device, Result};

use crate::delay::Recorder;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// The device reports a flush that it did not do.
    LyingFlush,
    /// The engine gets no fsync, and the caller gets success.
    SkipFsync,
    /// A flush does nothing; only the superblock is written through.
    NoBarrier,
}

impl Plant {
    /// All faults.
    pub const ALL: [Self; 3] = [Self::LyingFlush, Self::SkipFsync, Self::NoBarrier];

    fn name(self) -> &'static str {
        match self {
            Self::LyingFlush => "lying-flush",
            Self::SkipFsync => "skip-fsync",
            Self::NoBarrier => "no-barrier",
        }
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|plant| plant.name() == text);
        found.ok_or_else(|| format!("no fault is named {text:?}"))
    }
}

/// A recorder below a device that may be faulty.
#[derive(Debug)]
pub struct Planted {
    inner: Arc<Recorder>,
    plant: Plant,
}

impl Planted {
    /// Wraps the recorder.
    #[must_use]
    pub fn new(inner: Arc<Recorder>, plant: Plant) -> Self {
        Self { inner, plant }
    }
}

impl sapwood_block::Layer for Planted {
    type Below = Arc<Recorder>;

    fn below(&self) -> &Arc<Recorder> {
        &self.inner
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        match self.plant {
            Plant::LyingFlush => Device::write_at(&self.inner, offset, buf),
            Plant::SkipFsync | Plant::NoBarrier => Device::write_fua(&self.inner, offset, buf),
        }
    }

    fn flush(&self) -> Result<()> {
        match self.plant {
            Plant::LyingFlush | Plant::NoBarrier => Ok(()),
            Plant::SkipFsync => Device::flush(&self.inner),
        }
    }
}
