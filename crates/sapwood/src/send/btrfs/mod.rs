//! Snapshots of a btrfs as the trees of a send.
//!
//! The [difference](sapwood_btrfs::compare) of the two trees names the changed inodes. Data that
//! the receiver has already is shared (`clones`), and compressed extents can be sent as they are
//! stored.

mod clones;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_btrfs::Btrfs;
use sapwood_btrfs::compare::{Difference, ExtentContent, FileTree};
use sapwood_btrfs_format::compression as algorithm;
use sapwood_btrfs_format::stream::encoding;

use super::SendOptions;
use super::error::{Result, SendError, at};
use super::output::{EncodedRange, Output};
use super::source::{Content, ContentKind, FileRange, Range, Ranges, Source, Stored, Tree, Xattrs};
use crate::tree::{self, HeldInode};
use crate::vfs::{
    self, ChangedInode, Ino, LinkName, NamedInode, StoredInode, SubvolumeId, Subvolumes as _,
};
use clones::Clones;

/// The stream's number for the compression of an extent.
fn encoding_of(compression: u8, sector: u64) -> Option<u32> {
    match compression {
        algorithm::ZLIB => Some(encoding::ZLIB),
        algorithm::ZSTD => Some(encoding::ZSTD),
        algorithm::LZO if (4096..=65536).contains(&sector) => {
            Some(encoding::LZO_4K + (sector / 4096).ilog2())
        }
        _ => None,
    }
}

impl Content for ExtentContent {
    fn hole() -> Self {
        Self::Hole
    }

    fn kind(&self) -> ContentKind {
        match self {
            Self::Hole => ContentKind::Hole,
            Self::Prealloc(_) => ContentKind::Prealloc,
            Self::Data(_) | Self::Inline { .. } => ContentKind::Data,
        }
    }

    fn skip(&self, by: u64) -> Self {
        Self::skip(self, by)
    }
}

/// A read-only snapshot.
pub(super) struct Snapshot<'a> {
    fs: &'a Btrfs,
    tree: FileTree,
    /// For errors.
    path: PathBuf,
}

impl<'a> Snapshot<'a> {
    /// The read-only subvolume at a path.
    pub(super) fn find(fs: &'a Btrfs, path: &Path) -> Result<Self> {
        let path = Path::new("/").join(path);
        let name = path.as_os_str().as_bytes();
        let node = tree::resolve(fs, name, true).map_err(at(name))?;
        Self::at(fs, node.ino(), &path)
    }

    /// The read-only subvolume with this top, which errors call `path`.
    pub(super) fn at(fs: &'a Btrfs, top: Ino, path: &Path) -> Result<Self> {
        let id = fs.subvolume_at(top).map_err(|error| match error {
            vfs::Error::Invalid => SendError::NotSubvolume(path.to_owned()),
            error => at(path.as_os_str().as_bytes())(error),
        })?;
        let tree = fs.file_tree(id)?;
        if tree.identity().read_only {
            let path = path.to_owned();
            Ok(Self { fs, tree, path })
        } else {
            Err(SendError::Writable(path.to_owned()))
        }
    }

    /// Checks that the snapshot is still read-only, and was meanwhile.
    fn check_unchanged(&self) -> Result<()> {
        let now = self.fs.file_tree(SubvolumeId(self.tree.id()))?;
        let (now, before) = (now.identity(), self.tree.identity());
        if now.read_only && now.ctransid == before.ctransid {
            Ok(())
        } else {
            Err(SendError::Changed(self.path.clone()))
        }
    }

    /// The UUID that receivers record for the snapshot, and its transaction.
    fn known_as(&self) -> ([u8; 16], u64) {
        let identity = self.tree.identity();
        let uuid = if identity.received_uuid == [0; 16] {
            identity.uuid
        } else {
            identity.received_uuid
        };
        (uuid, identity.ctransid)
    }
}

impl Tree for Snapshot<'_> {
    type Content = ExtentContent;

    fn top(&self) -> u64 {
        self.tree.top()
    }

    fn sector(&self) -> u64 {
        self.tree.sector()
    }

    fn inode(&self, number: u64) -> Result<Option<StoredInode>> {
        Ok(self.tree.inode(number)?)
    }

    fn names(&self, number: u64) -> Result<Vec<LinkName>> {
        Ok(self.tree.names(number)?)
    }

    fn find(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        Ok(self.tree.find(dir, name)?)
    }

    fn entries(&self, dir: u64) -> Result<Vec<NamedInode>> {
        let mut entries = self.tree.entries(dir)?;
        let mut all = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            all.push(entry);
        }
        Ok(all)
    }

    fn xattrs(&self, number: u64) -> Result<Xattrs> {
        Ok(self.tree.xattrs(number)?)
    }

    fn open(&self, number: u64) -> vfs::Result<HeldInode<'_>> {
        let fs: &dyn vfs::FileSystem = self.fs;
        Ok(HeldInode::new(fs, fs.reference(self.tree.ino(number))?))
    }

    fn ranges(&self, number: u64, size: u64) -> Result<Ranges<'_, ExtentContent>> {
        let mut extents = self.tree.extents(number, size)?;
        Ok(Box::new(std::iter::from_fn(move || {
            let next = extents.next_extent().transpose()?;
            Some(next.map_err(SendError::from).map(|extent| Range {
                start: extent.start,
                end: extent.end,
                content: extent.content,
            }))
        })))
    }
}

/// A snapshot, its parent, and the clone sources.
pub(super) struct Snapshots<'a, 'p> {
    new: Arc<Snapshot<'a>>,
    old: Option<Arc<Snapshot<'a>>>,
    clones: Clones<'a>,
    /// The parent and the clone sources.
    sources: Vec<Arc<Snapshot<'a>>>,
    options: &'p SendOptions,
}

impl<'a, 'p> Snapshots<'a, 'p> {
    pub(super) fn find(fs: &'a Btrfs, path: &Path, options: &'p SendOptions) -> Result<Self> {
        if options.parent_image.is_some() {
            return Err(SendError::ParentImage);
        }
        let find = |path| Snapshot::find(fs, path).map(Arc::new);
        let new = find(path)?;
        let old = options.parent.as_deref().map(find).transpose()?;
        let clones = options.clone_sources.iter().map(|path| find(path));
        Ok(Self::new(new, old, clones.collect::<Result<_>>()?, options))
    }

    pub(super) fn new(
        new: Arc<Snapshot<'a>>,
        old: Option<Arc<Snapshot<'a>>>,
        clones: Vec<Arc<Snapshot<'a>>>,
        options: &'p SendOptions,
    ) -> Self {
        let sources: Vec<_> = old.iter().cloned().chain(clones).collect();
        Self {
            new,
            old,
            clones: Clones::new(sources.clone()),
            sources,
            options,
        }
    }
}

/// Nothing of the range was sent.
fn nothing(range: &FileRange<'_, ExtentContent>) -> Stored {
    Stored {
        rest: range.start,
        content: 0,
    }
}

impl Snapshots<'_, '_> {
    /// The stream's number for a compression, if data is sent as it is stored.
    fn encoding(&self, compression: u8) -> Option<u32> {
        let encoding = encoding_of(compression, self.new.sector());
        encoding.filter(|_| self.options.compressed)
    }

    /// Sends an inline extent, which has the whole content of its file, as it is stored, if the
    /// options and its compression allow that.
    fn send_inline<W: Write>(
        &self,
        out: &mut Output<W>,
        range: &FileRange<'_, ExtentContent>,
        compression: u8,
        stored: &[u8],
    ) -> Result<Stored> {
        let Some(encoding) = self.encoding(compression) else {
            return Ok(nothing(range));
        };
        let len = range.end - range.start;
        let part = EncodedRange {
            start: range.start,
            len,
            extent_len: len,
            extent_offset: 0,
            encoding,
        };
        out.encoded_write(range.path, &part, stored)?;
        Ok(Stored {
            rest: range.end,
            content: len,
        })
    }
}

impl<'a> Source for Snapshots<'a, '_> {
    type Tree = Snapshot<'a>;

    const SEALED: u64 = 1 << 32;

    fn new_tree(&self) -> &Arc<Snapshot<'a>> {
        &self.new
    }

    fn old_tree(&self) -> Option<&Arc<Snapshot<'a>>> {
        self.old.as_ref()
    }

    fn identity(&self, tree: &Snapshot<'a>) -> ([u8; 16], u64) {
        tree.known_as()
    }

    fn changes(&self) -> Result<Box<dyn Iterator<Item = Result<ChangedInode>>>> {
        let Some(old) = &self.old else {
            return Ok(Box::new(std::iter::empty()));
        };
        let mut difference = Difference::new(&old.tree, &self.new.tree);
        Ok(Box::new(std::iter::from_fn(move || {
            let next = difference.next_inode().map_err(SendError::from);
            next.transpose()
        })))
    }

    fn check_unchanged(&self) -> Result<()> {
        let trees = [&self.new].into_iter().chain(&self.old);
        trees
            .chain(&self.sources)
            .try_for_each(|tree| tree.check_unchanged())
    }

    fn changed_part(
        &mut self,
        old: &ExtentContent,
        range: &FileRange<'_, ExtentContent>,
    ) -> Result<Option<(u64, u64)>> {
        let changed = range.start < range.end && !old.is_shared(range.content);
        Ok(changed.then_some((range.start, range.end)))
    }

    fn send_stored<W: Write>(
        &mut self,
        out: &mut Output<W>,
        range: &FileRange<'_, ExtentContent>,
    ) -> Result<Stored> {
        if !self.options.data {
            return Ok(nothing(range));
        }
        let extent = match range.content {
            ExtentContent::Data(extent) => extent,
            ExtentContent::Inline {
                compression,
                len,
                stored,
            } if (range.start, range.end) == (0, *len) => {
                return self.send_inline(out, range, *compression, stored);
            }
            _ => return Ok(nothing(range)),
        };
        let rest = self.clone_range(out, range, extent)?;
        if rest > range.start {
            return Ok(Stored { rest, content: 0 });
        }
        // A receiver stores the whole extent. So a small part is sent expanded.
        let smaller = extent.disk_num_bytes <= extent.num_bytes;
        let encoding = self.encoding(extent.compression).filter(|_| smaller);
        let Some(encoding) = encoding else {
            return Ok(nothing(range));
        };
        let stored = self.new.tree.stored(range.number, range.start, extent)?;
        let part = EncodedRange {
            start: range.start,
            len: range.end - range.start,
            extent_len: extent.ram_bytes,
            extent_offset: extent.offset,
            encoding,
        };
        out.encoded_write(range.path, &part, &stored)?;
        Ok(Stored {
            rest: range.end,
            content: range.end - range.start,
        })
    }
}
