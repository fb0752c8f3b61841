//! What a mount counts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::commit_reason::FastCommitCounters;
use crate::engine::Engine;
use crate::inode_alloc::AllocCounters;

/// Counters of the engine; those of the journal are its own.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// fsyncs that found nothing to do but a flush, or not even that.
    pub(crate) fsyncs_clean: AtomicU64,
    /// fsyncs that waited for a commit of a transaction.
    pub(crate) fsyncs_committed: AtomicU64,
    /// Fast commits.
    pub(crate) fast_commits: FastCommitCounters,
    /// Inode allocation.
    pub(crate) inode_alloc: AllocCounters,
}

impl Counters {
    /// All by name.
    pub(crate) fn all(&self, engine: &Engine) -> Vec<(String, u64)> {
        let own = [
            ("fsyncs_clean", &self.fsyncs_clean),
            ("fsyncs_committed", &self.fsyncs_committed),
        ];
        let mut all: Vec<(String, u64)> = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.load(Ordering::Relaxed)))
            .collect();
        let area = engine
            .journal
            .log()
            .map_or(0, sapwood_jbd2::Log::fast_commit_blocks);
        all.push(("fast_commit_area_blocks".to_owned(), area));
        for (name, value) in self.fast_commits.all() {
            all.push((format!("fast_commit_{name}"), value));
        }
        for (name, value) in self.inode_alloc.all() {
            all.push((format!("inode_alloc_{name}"), value));
        }
        for (name, value) in engine.journal.counters().list() {
            all.push((format!("journal_{name}"), value));
        }
        all
    }

    /// All as a JSON object.
    pub(crate) fn to_json(&self, engine: &Engine) -> String {
        let mut map: serde_json::Map<String, serde_json::Value> = self
            .all(engine)
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect();
        if let Some(error) = engine.health.first_error() {
            map.insert("first_error".to_owned(), error.into());
        }
        serde_json::Value::Object(map).to_string()
    }
}
