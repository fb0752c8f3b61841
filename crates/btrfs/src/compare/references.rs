//! The files that show an extent.

use sapwood_btrfs_format::{Block, ExtentItemRef, FileExtent, InlineRef, Key, RegularExtent, kind};

use super::file_tree::{Extent, ExtentContent, FileTree};
use crate::error::bad_item;
use crate::tree::Expect;
use crate::{Error, Result};

/// Most refs of an extent that are looked at.
const REFS: usize = 64;

/// A place in a file: inode number, and the offset at which the whole extent would begin. The
/// offset wraps below zero.
type Place = (u64, u64);

impl FileTree {
    /// A range of this subvolume that shows the same bytes as the range `extent` of any subvolume:
    /// its inode number, its offset, and its length, which may be shorter.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn find_shared(&self, extent: &RegularExtent) -> Result<Option<(u64, u64, u64)>> {
        let mut places = self.references(extent)?;
        places.sort_unstable();
        places.dedup();
        for (number, begin) in places {
            if let Some(len) = self.shared_at(number, begin, extent)? {
                let offset = begin.wrapping_add(extent.offset);
                return Ok(Some((number, offset, len)));
            }
        }
        Ok(None)
    }

    /// The length of the range of a file that shows the same bytes as `extent`, if the whole extent
    /// would begin at `begin` there.
    ///
    /// # Errors
    /// Unreadable or damaged blocks and items.
    pub fn shared_at(
        &self,
        number: u64,
        begin: u64,
        extent: &RegularExtent,
    ) -> Result<Option<u64>> {
        let offset = begin.wrapping_add(extent.offset);
        let Some(inode) = self.inode(number)? else {
            return Ok(None);
        };
        let Some(found) = self.extent_at(number, offset)? else {
            return Ok(None);
        };
        let content = found.content.skip(offset.saturating_sub(found.start));
        if !content.is_shared(&ExtentContent::Data(*extent)) {
            return Ok(None);
        }
        let end = found.end.min(inode.size);
        let len = end.saturating_sub(offset).min(extent.num_bytes);
        Ok((len > 0).then_some(len))
    }

    /// The extent item of a file that covers an offset.
    fn extent_at(&self, number: u64, offset: u64) -> Result<Option<Extent>> {
        let key = Key::new(number, kind::EXTENT_DATA, offset);
        let cursor = self.root().seek_back(self.blocks(), &key)?;
        let Some((key, data)) = cursor.item() else {
            return Ok(None);
        };
        if key.objectid != number || key.kind != kind::EXTENT_DATA {
            return Ok(None);
        }
        let found = self.parse_extent(key, data)?;
        Ok((found.start <= offset && offset < found.end).then_some(found))
    }

    /// The places that the extent tree has for an extent.
    fn references(&self, extent: &RegularExtent) -> Result<Vec<Place>> {
        let tree = self.extent_tree();
        let bytenr = extent.disk_bytenr;
        let key = Key::new(bytenr, kind::EXTENT_ITEM, extent.disk_num_bytes);
        let mut refs = Vec::new();
        let mut cursor = tree.seek(self.blocks(), &key)?;
        while let Some((key, item)) = cursor.item() {
            if key.objectid != bytenr || refs.len() >= REFS {
                break;
            }
            let bad = |source| bad_item(tree.id(), key, source);
            match key.kind {
                kind::EXTENT_ITEM => {
                    let item = ExtentItemRef::parse(key.kind, item).map_err(bad)?;
                    for found in item.inline_refs().take(REFS) {
                        refs.push(found.map_err(bad)?);
                    }
                }
                kind::EXTENT_DATA_REF | kind::SHARED_DATA_REF => {
                    refs.push(InlineRef::parse_keyed(&key, item).map_err(bad)?);
                }
                _ => {}
            }
            cursor.next()?;
        }
        let mut places = Vec::new();
        for one in refs {
            match one {
                InlineRef::ExtentData {
                    objectid, offset, ..
                } => places.push((objectid, offset)),
                InlineRef::SharedData { parent, .. } => {
                    self.places_in_leaf(parent, bytenr, &mut places)?;
                }
                _ => {}
            }
        }
        Ok(places)
    }

    /// The places in a leaf that several trees share.
    fn places_in_leaf(&self, leaf: u64, bytenr: u64, places: &mut Vec<Place>) -> Result<()> {
        let expect = Expect {
            level: Some(0),
            ..Expect::default()
        };
        let bytes = self.blocks().get(leaf, &expect)?.snapshot();
        let bad = |source| Error::Block {
            root: self.id(),
            source,
        };
        let block = Block::new(&bytes).map_err(bad)?;
        for slot in 0..block.nritems() {
            let (key, data) = block.entry(slot).map_err(bad)?;
            if key.kind != kind::EXTENT_DATA || places.len() >= REFS {
                continue;
            }
            let item = FileExtent::parse(data).map_err(|e| bad_item(self.id(), key, e))?;
            if let FileExtent::Regular(found) = item
                && found.disk_bytenr == bytenr
            {
                places.push((key.objectid, key.offset.wrapping_sub(found.offset)));
            }
        }
        Ok(())
    }
}
