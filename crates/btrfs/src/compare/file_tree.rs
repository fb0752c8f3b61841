//! A subvolume, read item by item.

use std::sync::Arc;

use sapwood_btrfs_format::{
    FileExtent, InodeItem, ItemError, Key, RegularExtent, RootFlags, dir_items, inode_extrefs,
    inode_refs, kind, name_hash,
};
use sapwood_vfs::{FileKind, Ino, LinkName, NamedInode, StoredInode, SubvolumeId};

use crate::Result;
use crate::data;
use crate::error::bad_item;
use crate::inode::{timestamp, to_dev};
use crate::mount::{Engine, Mount};
use crate::subvolume::choose;
use crate::tree::{BlockCache, Cursor, Root, TreeBlock, TreeRead as _};

/// Most directories above a file. More of them are a cycle.
const DEEPEST: usize = 4096;

/// The identity of a subvolume for send and receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubvolumeIdentity {
    /// Its own UUID.
    pub uuid: [u8; 16],
    /// UUID of the subvolume that it was received from; zeros if none.
    pub received_uuid: [u8; 16],
    /// Transaction of its last change.
    pub ctransid: u64,
    /// [`ctransid`](Self::ctransid) of the subvolume that it was received from.
    pub stransid: u64,
    /// It is read-only.
    pub read_only: bool,
}

/// A range of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file.
    pub start: u64,
    /// Offset after it.
    pub end: u64,
    /// Its content.
    pub content: ExtentContent,
}

/// The content of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtentContent {
    /// Zeros without space.
    Hole,
    /// Zeros with space.
    Prealloc(RegularExtent),
    /// Data in an extent.
    Data(RegularExtent),
    /// Data in the item.
    Inline {
        /// Algorithm, as on disk.
        compression: u8,
        /// Bytes once expanded.
        len: u64,
        /// The bytes as stored.
        stored: Vec<u8>,
    },
}

impl ExtentContent {
    /// The content after the first `by` bytes.
    #[must_use]
    pub fn skip(&self, by: u64) -> Self {
        let shift = |extent: &RegularExtent| RegularExtent {
            offset: extent.offset.saturating_add(by),
            num_bytes: extent.num_bytes.saturating_sub(by),
            ..*extent
        };
        match self {
            Self::Prealloc(extent) => Self::Prealloc(shift(extent)),
            Self::Data(extent) => Self::Data(shift(extent)),
            other => other.clone(),
        }
    }

    /// Whether two ranges of equal length, in trees of one file system, share their content.
    #[must_use]
    pub fn is_shared(&self, other: &Self) -> bool {
        let same = |a: &RegularExtent, b: &RegularExtent| {
            a.disk_bytenr == b.disk_bytenr && a.offset == b.offset && a.compression == b.compression
        };
        match (self, other) {
            (Self::Hole, Self::Hole) => true,
            (Self::Prealloc(a), Self::Prealloc(b)) | (Self::Data(a), Self::Data(b)) => same(a, b),
            (Self::Inline { .. }, Self::Inline { .. }) => self == other,
            _ => false,
        }
    }
}

/// A subvolume of an open file system.
pub struct FileTree {
    engine: Arc<Engine>,
    root: Arc<Root>,
}

impl Mount {
    /// The tree of a subvolume. Deleting or changing the subvolume meanwhile gives errors or a
    /// mixture of states.
    ///
    /// # Errors
    /// [`NoSuchSubvolume`](crate::Error::NoSuchSubvolume); unreadable blocks.
    pub fn file_tree(&self, id: SubvolumeId) -> Result<FileTree> {
        let root = choose::by_id(&self.engine.roots, id.0)?;
        Ok(FileTree {
            engine: Arc::clone(&self.engine),
            root,
        })
    }
}

impl FileTree {
    pub(super) fn blocks(&self) -> &BlockCache {
        self.engine.blocks()
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    pub(super) fn extent_tree(&self) -> &Root {
        &self.engine.roots.extent_tree
    }

    pub(super) fn top_block(&self) -> Arc<TreeBlock> {
        self.root.node()
    }

    /// Id of the subvolume.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.root.id()
    }

    /// Whether both are in one open file system.
    #[must_use]
    pub fn is_in_file_system_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }

    /// Number of the top directory.
    #[must_use]
    pub fn top(&self) -> u64 {
        self.root.top_dir()
    }

    /// Bytes of a sector.
    #[must_use]
    pub fn sector(&self) -> u64 {
        self.engine.sectorsize.into()
    }

    /// Number of an inode in the open file system.
    #[must_use]
    pub fn ino(&self, number: u64) -> Ino {
        self.engine.inodes.numbers().ino(self.root.id(), number)
    }

    /// UUIDs and transactions.
    #[must_use]
    pub fn identity(&self) -> SubvolumeIdentity {
        let item = self.root.item();
        SubvolumeIdentity {
            uuid: item.uuid,
            received_uuid: item.received_uuid,
            ctransid: item.ctransid.get(),
            stransid: item.stransid.get(),
            read_only: item.root_flags().contains(RootFlags::RDONLY),
        }
    }

    /// An inode by its number.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn inode(&self, number: u64) -> Result<Option<StoredInode>> {
        let key = Key::new(number, kind::INODE_ITEM, 0);
        let Some(data) = self.root.get(&self.engine, &key)? else {
            return Ok(None);
        };
        let item = InodeItem::read(&data).map_err(|error| bad_item(self.id(), key, error))?;
        let mode = item.mode.get();
        let kind = FileKind::from_mode(mode).ok_or_else(|| {
            let value = ItemError::Value {
                what: "inode",
                field: "mode",
                value: mode.into(),
            };
            bad_item(self.id(), key, value)
        })?;
        Ok(Some(StoredInode {
            kind,
            perm: mode & 0o7777,
            uid: item.uid.get(),
            gid: item.gid.get(),
            nlink: item.nlink.get(),
            rdev: to_dev(item.rdev.get()),
            size: item.size.get(),
            generation: item.generation.get(),
            flags: item.flags.get(),
            atime: timestamp(&item.atime),
            mtime: timestamp(&item.mtime),
            ctime: timestamp(&item.ctime),
            otime: timestamp(&item.otime),
        }))
    }

    /// Calls `each` for the items of one kind of an inode.
    fn items(
        &self,
        number: u64,
        item_kind: u8,
        each: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut cursor = self
            .root
            .seek(&self.engine, &Key::new(number, item_kind, 0))?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != number || key.kind != item_kind {
                break;
            }
            each(key, data)?;
            cursor.next()?;
        }
        Ok(())
    }

    /// The names of an inode, sorted. The top directory has none.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn names(&self, number: u64) -> Result<Vec<LinkName>> {
        let mut names = Vec::new();
        if number == self.top() {
            return Ok(names);
        }
        self.items(number, kind::INODE_REF, &mut |key, data| {
            for found in inode_refs(data) {
                let found = found.map_err(|error| bad_item(self.id(), key, error))?;
                names.push(LinkName {
                    dir: key.offset,
                    name: found.name.to_vec(),
                });
            }
            Ok(())
        })?;
        self.items(number, kind::INODE_EXTREF, &mut |key, data| {
            for found in inode_extrefs(data) {
                let found = found.map_err(|error| bad_item(self.id(), key, error))?;
                names.push(LinkName {
                    dir: found.parent,
                    name: found.name.to_vec(),
                });
            }
            Ok(())
        })?;
        names.sort();
        Ok(names)
    }

    /// The path of an inode from the top directory, by the first of its names. `None`: its names do
    /// not lead to the top.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn path(&self, number: u64) -> Result<Option<Vec<u8>>> {
        let (mut names, mut at) = (Vec::new(), number);
        while at != self.top() {
            let first = self.names(at)?.into_iter().next();
            let Some(first) = first.filter(|_| names.len() < DEEPEST) else {
                return Ok(None);
            };
            names.push(first.name);
            at = first.dir;
        }
        names.reverse();
        Ok(Some(names.join(&b'/')))
    }

    /// The inode that a name leads to; `None` for a subvolume, too.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn find(&self, dir: u64, name: &[u8]) -> Result<Option<u64>> {
        let key = Key::new(dir, kind::DIR_ITEM, name_hash(name).into());
        let Some(data) = self.root.get(&self.engine, &key)? else {
            return Ok(None);
        };
        let entry = self.root.packed_entry(key, &data, name)?;
        let inode = entry.filter(|entry| entry.location.kind == kind::INODE_ITEM);
        Ok(inode.map(|entry| entry.location.objectid))
    }

    /// The entries of a directory in the order of their creation, without subvolumes.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub fn entries(&self, dir: u64) -> Result<Entries<'_>> {
        let key = Key::new(dir, kind::DIR_INDEX, 0);
        let cursor = self.root.seek(&self.engine, &key)?;
        Ok(Entries {
            tree: self,
            dir,
            cursor,
        })
    }

    /// Extended attributes, sorted by name.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn xattrs(&self, number: u64) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = Vec::new();
        self.items(number, kind::XATTR_ITEM, &mut |key, data| {
            for entry in dir_items(data) {
                let entry = entry.map_err(|error| bad_item(self.id(), key, error))?;
                all.push((entry.name.to_vec(), entry.data.to_vec()));
            }
            Ok(())
        })?;
        all.sort();
        Ok(all)
    }

    /// The ranges of a file of `size` bytes, without gaps, up to the last whole sector.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub fn extents(&self, number: u64, size: u64) -> Result<Extents<'_>> {
        let key = Key::new(number, kind::EXTENT_DATA, 0);
        let cursor = self.root.seek(&self.engine, &key)?;
        let sector = self.sector();
        let end = size.checked_next_multiple_of(sector).unwrap_or(size);
        Ok(Extents {
            tree: self,
            number,
            cursor,
            at: 0,
            end,
        })
    }

    /// The stored bytes of the compressed extent that the range at `start` of a file shows.
    ///
    /// # Errors
    /// Unreadable or damaged data.
    pub fn stored(&self, number: u64, start: u64, extent: &RegularExtent) -> Result<Vec<u8>> {
        let engine = &self.engine;
        let inode = engine.inodes.load(engine, &self.root, number)?;
        data::read_stored(engine, &inode, start, extent)
    }

    pub(super) fn parse_extent(&self, key: Key, data: &[u8]) -> Result<Extent> {
        let bad = |error| bad_item(self.id(), key, error);
        let start = key.offset;
        let (len, content) = match FileExtent::parse(data).map_err(bad)? {
            FileExtent::Inline {
                ram_bytes,
                compression,
                data,
                ..
            } => {
                let sector = self.sector();
                let len = ram_bytes.checked_next_multiple_of(sector);
                let content = ExtentContent::Inline {
                    compression,
                    len: ram_bytes,
                    stored: data.to_vec(),
                };
                (len.unwrap_or(ram_bytes), content)
            }
            FileExtent::Regular(extent) if extent.is_hole() => {
                (extent.num_bytes, ExtentContent::Hole)
            }
            FileExtent::Regular(extent) => (extent.num_bytes, ExtentContent::Data(extent)),
            FileExtent::Prealloc(extent) => (extent.num_bytes, ExtentContent::Prealloc(extent)),
        };
        let end = start.checked_add(len).ok_or_else(|| {
            bad(ItemError::Value {
                what: "file extent",
                field: "length",
                value: len,
            })
        })?;
        Ok(Extent {
            start,
            end,
            content,
        })
    }
}

/// Iterates over the entries of a directory.
pub struct Entries<'t> {
    tree: &'t FileTree,
    dir: u64,
    cursor: Cursor,
}

impl Entries<'_> {
    /// The next entry.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn next_entry(&mut self) -> Result<Option<NamedInode>> {
        while let Some((key, data)) = self.cursor.item() {
            if key.objectid != self.dir || key.kind != kind::DIR_INDEX {
                return Ok(None);
            }
            let first = dir_items(data).next().transpose();
            let first = first.map_err(|error| bad_item(self.tree.id(), key, error))?;
            let found = first.filter(|entry| entry.location.kind == kind::INODE_ITEM);
            let found = found.map(|entry| NamedInode {
                number: entry.location.objectid,
                kind: FileKind::from_entry_type(entry.kind),
                name: entry.name.to_vec(),
            });
            self.cursor.next()?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// Iterates over the ranges of a file.
pub struct Extents<'t> {
    tree: &'t FileTree,
    number: u64,
    cursor: Cursor,
    at: u64,
    end: u64,
}

impl Extents<'_> {
    /// The next range; ranges follow each other without gaps.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn next_extent(&mut self) -> Result<Option<Extent>> {
        while self.at < self.end {
            let item = match self.cursor.item() {
                Some((key, data))
                    if key.objectid == self.number && key.kind == kind::EXTENT_DATA =>
                {
                    Some(self.tree.parse_extent(key, data)?)
                }
                _ => None,
            };
            let start = self.at;
            let Some(mut item) = item.filter(|item| item.start < self.end) else {
                self.at = self.end;
                return Ok(Some(hole(start, self.end)));
            };
            if item.start > start {
                self.at = item.start;
                return Ok(Some(hole(start, item.start)));
            }
            self.cursor.next()?;
            if item.end <= start {
                continue;
            }
            if item.start < start {
                item.content = item.content.skip(start - item.start);
                item.start = start;
            }
            item.end = item.end.min(self.end);
            self.at = item.end;
            return Ok(Some(item));
        }
        Ok(None)
    }
}

fn hole(start: u64, end: u64) -> Extent {
    Extent {
        start,
        end,
        content: ExtentContent::Hole,
    }
}
