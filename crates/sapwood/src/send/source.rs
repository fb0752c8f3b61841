//! The interface between the order of the commands and the format of the image.
//!
//! `names`, `places`, `full` and `content` decide which commands a stream has, in which order. They
//! see the image as one [`Tree`] for each side, and ask the [`Source`] for the differences. Btrfs
//! and ext4 implement both.

use std::io::Write;
use std::sync::Arc;

use super::error::Result;
use super::output::Output;
use crate::tree::HeldInode;
use crate::vfs::{self, ChangedInode, LinkName, NamedInode, StoredInode};

/// The kind of the content of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentKind {
    /// Zeros without space.
    Hole,
    /// Zeros with space.
    Prealloc,
    /// Data.
    Data,
}

/// The content of a range of a file, as a format describes it.
pub(super) trait Content: Clone {
    /// A hole.
    fn hole() -> Self;
    /// Its kind.
    fn kind(&self) -> ContentKind;
    /// The content after the first `by` bytes.
    fn skip(&self, by: u64) -> Self;
}

/// A range of a file.
#[derive(Debug, Clone)]
pub(super) struct Range<C> {
    /// Offset in the file, in bytes.
    pub(super) start: u64,
    /// Offset after it.
    pub(super) end: u64,
    pub(super) content: C,
}

/// The ranges of a file in ascending order, without gaps.
pub(super) type Ranges<'t, C> = Box<dyn Iterator<Item = Result<Range<C>>> + 't>;

/// Extended attributes with their values, sorted by name.
pub(super) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A tree of files that does not change.
pub(super) trait Tree {
    type Content: Content;

    /// Number of the top directory.
    fn top(&self) -> u64;
    /// Bytes of a block: the unit of holes and of preallocation.
    fn sector(&self) -> u64;
    /// An inode by its number.
    fn inode(&self, number: u64) -> Result<Option<StoredInode>>;
    /// The names of an inode, sorted. The top directory has none.
    fn names(&self, number: u64) -> Result<Vec<LinkName>>;
    /// The inode that a name leads to.
    fn find(&self, dir: u64, name: &[u8]) -> Result<Option<u64>>;
    /// The entries of a directory, in an order that depends on the tree alone.
    fn entries(&self, dir: u64) -> Result<Vec<NamedInode>>;
    /// Extended attributes.
    fn xattrs(&self, number: u64) -> Result<Xattrs>;
    /// An inode, open for reading.
    fn open(&self, number: u64) -> vfs::Result<HeldInode<'_>>;
    /// The ranges of a file of `size` bytes, up to the last whole block.
    fn ranges(&self, number: u64, size: u64) -> Result<Ranges<'_, Self::Content>>;
}

/// A range of a file to send.
pub(super) struct FileRange<'r, C> {
    /// Inode number.
    pub(super) number: u64,
    pub(super) path: &'r [u8],
    /// Offsets in bytes.
    pub(super) start: u64,
    pub(super) end: u64,
    /// Content at `start`.
    pub(super) content: &'r C,
}

/// The part of a range that was sent in another form than its bytes.
pub(super) struct Stored {
    /// Offset at which the rest begins.
    pub(super) rest: u64,
    /// Bytes that count as sent content.
    pub(super) content: u64,
}

/// The trees of a send. An inode has the same number in both trees exactly if the receiver can turn
/// the old one into the new one, and its kind, generation and device number are equal.
pub(super) trait Source {
    type Tree: Tree;

    /// The bit of [`StoredInode::flags`] of a file with a hash tree of fs-verity.
    const SEALED: u64;

    /// The tree to send.
    fn new_tree(&self) -> &Arc<Self::Tree>;
    /// The tree that the receiver has.
    fn old_tree(&self) -> Option<&Arc<Self::Tree>>;
    /// UUID and transaction by which receivers know a tree.
    fn identity(&self, tree: &Self::Tree) -> ([u8; 16], u64);
    /// The inodes that differ between the old tree and the new one, in ascending order.
    fn changes(&self) -> Result<Box<dyn Iterator<Item = Result<ChangedInode>>>>;
    /// The first part of a range whose content differs from `old`.
    fn changed_part(
        &mut self,
        old: &<Self::Tree as Tree>::Content,
        range: &FileRange<'_, <Self::Tree as Tree>::Content>,
    ) -> Result<Option<(u64, u64)>>;
    /// Checks that the trees did not change since the send began.
    fn check_unchanged(&self) -> Result<()>;
    /// Sends the front of a data range in a form that is smaller than its bytes, if there is one.
    fn send_stored<W: Write>(
        &mut self,
        out: &mut Output<W>,
        range: &FileRange<'_, <Self::Tree as Tree>::Content>,
    ) -> Result<Stored>;
}

/// The content of ranges of the trees of a source.
pub(super) type ContentOf<S> = <<S as Source>::Tree as Tree>::Content;
