//! Content that the receiver already has: in the parent, in a clone source, or in a file that was
//! sent earlier.
//!
//! The extent tree names candidates. A candidate counts only if a tree of the sender shows the same
//! extent there, so the result does not depend on the receiver.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use sapwood_btrfs::compare::{ExtentContent, RegularExtent};

use super::super::contradiction;
use super::super::error::Result;
use super::super::output::{CloneSource, Output};
use super::super::source::{FileRange, Tree as _};
use super::{Snapshot, Snapshots};

/// Most extents of files that were sent that are remembered.
const REMEMBERED: usize = 1 << 18;

/// An extent of a file that was sent.
struct Sent {
    number: u64,
    /// Offset in the file at which the whole extent would begin; wraps below zero.
    begin: u64,
    path: Arc<[u8]>,
}

/// Content that can be shared.
pub(super) struct Clones<'a> {
    sources: Vec<Arc<Snapshot<'a>>>,
    sent: HashMap<u64, Sent>,
    /// Path of the last file.
    path: Arc<[u8]>,
}

impl<'a> Clones<'a> {
    pub(super) fn new(sources: Vec<Arc<Snapshot<'a>>>) -> Self {
        Self {
            sources,
            sent: HashMap::new(),
            path: Arc::from(&b""[..]),
        }
    }

    /// Records that a range of a file was sent.
    fn remember(&mut self, number: u64, path: &[u8], start: u64, extent: &RegularExtent) {
        if self.sent.len() >= REMEMBERED {
            return;
        }
        if *self.path != *path {
            self.path = Arc::from(path);
        }
        let (begin, path) = (start.wrapping_sub(extent.offset), Arc::clone(&self.path));
        self.sent.entry(extent.disk_bytenr).or_insert(Sent {
            number,
            begin,
            path,
        });
    }
}

impl Snapshots<'_, '_> {
    /// Shares the largest possible part from the start of a range. Returns the start of the rest.
    pub(super) fn clone_range<W: Write>(
        &mut self,
        out: &mut Output<W>,
        range: &FileRange<'_, ExtentContent>,
        extent: &RegularExtent,
    ) -> Result<u64> {
        let sector = self.new.sector();
        let (start, end) = (range.start, range.end);
        let mut at = start;
        while at < end {
            let rest = RegularExtent {
                offset: extent.offset.saturating_add(at - start),
                num_bytes: end - at,
                ..*extent
            };
            let Some(source) = self.clone_source(range.number, at, &rest)? else {
                break;
            };
            // A receiver shares whole sectors only.
            let len = source.len.min(end - at) / sector * sector;
            if len == 0 || !source.offset.is_multiple_of(sector) {
                break;
            }
            out.clone_range(range.path, at, len, &source)?;
            at += len;
        }
        self.clones
            .remember(range.number, range.path, start, extent);
        Ok(at)
    }

    fn clone_source(
        &self,
        number: u64,
        at: u64,
        extent: &RegularExtent,
    ) -> Result<Option<CloneSource>> {
        for tree in &self.clones.sources {
            if let Some((found, offset, len)) = tree.tree.find_shared(extent)? {
                let (uuid, transid) = tree.known_as();
                let path = tree.tree.path(found)?;
                let path = path.ok_or(contradiction(found, "its names do not lead to the top"))?;
                return Ok(Some(CloneSource {
                    uuid,
                    transid,
                    path,
                    offset,
                    len,
                }));
            }
        }
        let Some(sent) = self.clones.sent.get(&extent.disk_bytenr) else {
            return Ok(None);
        };
        let Some(len) = self.new.tree.shared_at(sent.number, sent.begin, extent)? else {
            return Ok(None);
        };
        let offset = sent.begin.wrapping_add(extent.offset);
        // Within the same file, only the content before this range was sent.
        if sent.number == number && offset.saturating_add(len) > at {
            return Ok(None);
        }
        let (uuid, transid) = self.new.known_as();
        Ok(Some(CloneSource {
            uuid,
            transid,
            path: sent.path.to_vec(),
            offset,
            len,
        }))
    }
}
