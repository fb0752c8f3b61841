//! Metadata blocks whose checksum is computed when a transaction commits.

use sapwood_jbd2::Seal;

/// Kinds of metadata blocks with a checksum of their own, as [`Seal::kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SealKind {
    /// Node of an extent tree; owner: inode number, extra: its generation.
    Extent = 1,
    /// Block of names; likewise.
    DirLeaf = 2,
    /// Root or node of a hash tree; likewise.
    HashNode = 3,
    /// Block of attributes; no owner.
    Xattr = 4,
    /// Block of the orphan file; owner and extra as in a tree.
    Orphan = 5,
}

impl SealKind {
    /// The seal of a block of this kind that belongs to an inode.
    pub(crate) fn of(self, ino: u32, generation: u32) -> Seal {
        Seal {
            kind: self as u8,
            owner: ino.into(),
            extra: generation,
        }
    }
}
