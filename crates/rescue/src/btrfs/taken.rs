//! Space of data that other files had later.
//!
//! # How it works
//! Data without checksums cannot be told from the data of a file that had its space later. But the
//! leaves of newer generations name the extents of such files, whether they still exist or not. A
//! leaf of generation N shows the owners of its extents at N. So the extent of an older state lost
//! its space if the newest leaf that names the space is newer than the state and has another extent
//! there.

use std::collections::HashMap;

use sapwood_btrfs_format::{Block, FileExtent, kind, objectid};

use super::nodes::Nodes;
use crate::claims::Claims;

/// Most extents that are remembered, at about 150 bytes each.
const MOST: usize = 400_000;

/// Identity of an extent: address, and the generation that made it.
pub(super) type Extent = (u64, u64);

/// The newest owners of data.
#[derive(Debug)]
pub(super) struct Taken(Claims<(u64, Extent)>);

impl Taken {
    /// Reads all leaves with file extents.
    pub(super) fn find(nodes: &Nodes) -> Self {
        // Length, and the generation of the newest leaf that has the extent.
        let mut extents: HashMap<Extent, (u64, u64)> = HashMap::new();
        for (owner, logical, generation) in nodes.index.leaves() {
            let with_files = objectid::is_fs_tree(owner)
                || matches!(owner, objectid::TREE_LOG | objectid::DATA_RELOC_TREE);
            let bytes = with_files.then(|| nodes.bytes(logical, generation));
            let Some(bytes) = bytes.flatten() else {
                continue;
            };
            let Ok(block) = Block::new(&bytes) else {
                continue;
            };
            for (key, data) in (0..block.nritems()).filter_map(|slot| block.entry(slot).ok()) {
                // An extent that is only allocated did not change its space.
                let extent = match FileExtent::parse(data) {
                    Ok(FileExtent::Regular(extent)) if !extent.is_hole() => extent,
                    _ => continue,
                };
                if key.kind != kind::EXTENT_DATA || extents.len() >= MOST {
                    continue;
                }
                let identity = (extent.disk_bytenr, extent.generation);
                let known = extents.entry(identity).or_default();
                known.0 = known.0.max(extent.disk_num_bytes);
                known.1 = known.1.max(generation);
            }
        }
        let mut all: Vec<(Extent, (u64, u64))> = extents.into_iter().collect();
        all.sort_unstable_by_key(|(extent, (_, leaf))| (u64::MAX - leaf, *extent));
        let mut claims = Claims::default();
        for (extent, (len, leaf)) in all {
            claims.claim((leaf, extent), extent.0, len);
        }
        Self(claims)
    }

    /// Whether a part of an extent, as a state of this generation has it, was taken later.
    pub(super) fn is_taken(&self, own: Extent, state: u64, logical: u64, len: u64) -> bool {
        let mut parts = self.0.parts(logical, len);
        parts.any(|(_, _, (leaf, extent))| leaf > state && extent != own)
    }
}
