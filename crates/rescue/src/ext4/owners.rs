//! Blocks that several deleted files had, one after the other.
//!
//! # How it works
//! At any time a block has one owner. So of two deleted inodes that name a block, the one whose
//! copy in the journal is newer had it later, and the block has its content. The inodes are added
//! newest first; a block belongs to the first one that names it.

use std::collections::HashMap;

use crate::claims::Claims;

/// Number and generation of an inode.
pub(super) type Identity = (u32, u32);

/// The last owners of blocks.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Position of each inode, newest first.
    ranks: HashMap<Identity, u32>,
    blocks: Claims<u32>,
}

impl Owners {
    /// Adds an inode that is older than all before. Returns its rank.
    pub(super) fn add(&mut self, inode: Identity) -> u32 {
        let next = self.ranks.len() as u32;
        *self.ranks.entry(inode).or_insert(next)
    }

    /// Records blocks of an inode, as far as no newer one has them.
    pub(super) fn claim(&mut self, rank: u32, start: u64, len: u64) {
        self.blocks.claim(rank, start, len);
    }

    /// The number of blocks from `start` on, at most `len`, that no inode after this one had; or,
    /// as an error, the number of those that one had.
    pub(super) fn run(&self, inode: Identity, start: u64, len: u64) -> Result<u64, u64> {
        let rank = self.ranks.get(&inode).copied().unwrap_or(u32::MAX);
        let mut parts = self.blocks.parts(start, len);
        match parts.find(|(.., owner)| *owner < rank) {
            Some((at, end, _)) if at == start => Err(end - start),
            Some((at, ..)) => Ok(at - start),
            None => Ok(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_belongs_to_the_newest_inode_that_names_it() {
        let mut owners = Owners::default();
        let (new, old, other) = ((12, 1), (13, 2), (14, 3));
        let rank = owners.add(new);
        owners.claim(rank, 100, 10);
        owners.claim(rank, 120, 5);
        let rank = owners.add(old);
        owners.claim(rank, 95, 30);
        assert_eq!(owners.run(new, 100, 10), Ok(10));
        assert_eq!(owners.run(old, 95, 30), Ok(5));
        assert_eq!(owners.run(old, 100, 30), Err(10));
        assert_eq!(owners.run(old, 104, 2), Err(2));
        assert_eq!(owners.run(old, 110, 30), Ok(10));
        assert_eq!(owners.run(old, 120, 30), Err(5));
        assert_eq!(owners.run(old, 125, 30), Ok(30));
        // An inode that was not added is the oldest.
        assert_eq!(owners.run(other, 95, 1), Err(1));
        assert_eq!(owners.run(other, 90, 9), Ok(5));
    }
}
