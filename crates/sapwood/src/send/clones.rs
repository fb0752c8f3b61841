//! Content that the receiver already has: in the parent, in a clone source, or in a file that was
//! sent earlier.
//!
//! The extent tree names candidates. A candidate counts only if a tree of the sender shows the same
//! extent there, so the result does not depend on the receiver.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use sapwood_btrfs::compare::{FileTree, RegularExtent};

use super::error::Result;
use super::{Sender, contradiction, known_as};

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
pub(super) struct Clones {
    sources: Vec<Arc<FileTree>>,
    sent: HashMap<u64, Sent>,
    /// Path of the last file.
    path: Arc<[u8]>,
}

/// A range of a file of a source.
pub(super) struct CloneSource {
    pub(super) uuid: [u8; 16],
    pub(super) transid: u64,
    pub(super) path: Vec<u8>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Clones {
    pub(super) fn new(sources: Vec<Arc<FileTree>>) -> Self {
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

impl<W: Write> Sender<'_, '_, '_, W> {
    /// Shares the largest possible part from the start of a range. Returns the start of the rest.
    pub(super) fn clone_range(
        &mut self,
        number: u64,
        path: &[u8],
        extent: &RegularExtent,
        (start, end): (u64, u64),
    ) -> Result<u64> {
        let sector = self.new.sector();
        let mut at = start;
        while at < end {
            let rest = RegularExtent {
                offset: extent.offset.saturating_add(at - start),
                num_bytes: end - at,
                ..*extent
            };
            let Some(source) = self.clone_source(number, at, &rest)? else {
                break;
            };
            // A receiver shares whole sectors only.
            let len = source.len.min(end - at) / sector * sector;
            if len == 0 || !source.offset.is_multiple_of(sector) {
                break;
            }
            self.out.clone_range(path, at, len, &source)?;
            at += len;
        }
        self.clones.remember(number, path, start, extent);
        Ok(at)
    }

    fn clone_source(
        &self,
        number: u64,
        at: u64,
        extent: &RegularExtent,
    ) -> Result<Option<CloneSource>> {
        for tree in &self.clones.sources {
            if let Some((found, offset, len)) = tree.find_shared(extent)? {
                let (uuid, transid) = known_as(tree);
                let path = tree.path(found)?;
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
        let Some(len) = self.new.shared_at(sent.number, sent.begin, extent)? else {
            return Ok(None);
        };
        let offset = sent.begin.wrapping_add(extent.offset);
        // Within the same file, only the content before this range was sent.
        if sent.number == number && offset.saturating_add(len) > at {
            return Ok(None);
        }
        let (uuid, transid) = known_as(&self.new);
        Ok(Some(CloneSource {
            uuid,
            transid,
            path: sent.path.to_vec(),
            offset,
            len,
        }))
    }
}
