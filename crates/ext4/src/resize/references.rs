//! Finds references to inodes.
//!
//! An inode number is stored in names of directories (with `.` and `..`), in inodes or in blocks,
//! and in attributes whose value is an inode of its own. All of these are four bytes at some place,
//! so a reference is that place. One walk over all inodes in use finds the references to all inodes
//! that move.

use sapwood_ext4_format::{
    DirError, DirFormat, INLINE_XATTR, Incompat, Inode, InodeFlags, inline_dir_parent,
    inline_dir_region, xattr_block_inodes, xattr_block_seal, xattr_block_verify,
    xattr_ibody_inodes, xattr_ibody_value, xattr_index,
};

use super::Result;
use super::image::Image;
use super::map::content;
use crate::Error;
use crate::dir::format_of;

/// Bytes of an inode before its 60 bytes of map or inline data.
const MAP_AT: usize = 0x28;
/// Bytes of an inline directory before its first entry: the number of the parent.
const PARENT: usize = 4;

/// Place of an inode number: at `offset` of a block or inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReferencePlace {
    /// A block of a directory, whose checksum begins with `seed`.
    Names { block: u64, offset: u32, seed: u32 },
    /// A block of attributes.
    Attributes { block: u64, offset: u32 },
    /// An inode with names or attributes in it.
    Inode { ino: u32, offset: u32 },
}

/// A place that has the number of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    pub(super) target: u32,
    pub(super) place: ReferencePlace,
}

/// Finds all references to `targets`, which are sorted and are all inodes in use from the first of
/// them on. The result is sorted.
///
/// # Errors
/// A directory is wrong, or names an inode that is not in use; errors of the device.
pub(super) fn find(image: &Image, targets: &[u32]) -> Result<Vec<Reference>> {
    let mut walk = Walk {
        image,
        targets,
        found: Vec::new(),
    };
    let values = image.geometry.features().has_incompat(Incompat::EA_INODE);
    for group in 0..image.geometry.group_count() {
        for ino in image.inodes(group..group + 1)? {
            let inode = image.inode(ino)?;
            if inode.is_dir() {
                walk.directory(ino, &inode)?;
            }
            if values {
                walk.attributes(ino, &inode)?;
            }
        }
    }
    let mut found = walk.found;
    found.sort_unstable();
    // Inodes that share a block of attributes found it several times.
    found.dedup();
    Ok(found)
}

struct Walk<'i> {
    image: &'i Image,
    targets: &'i [u32],
    found: Vec<Reference>,
}

impl Walk<'_> {
    /// Keeps a reference if its inode moves.
    fn add(&mut self, from: u32, target: u32, place: ReferencePlace) -> Result<()> {
        if self.targets.first().is_none_or(|first| target < *first) {
            return Ok(());
        }
        if self.targets.binary_search(&target).is_err() {
            return Err(bad(from, format!("names inode {target}, which is free")).into());
        }
        self.found.push(Reference { target, place });
        Ok(())
    }

    fn directory(&mut self, ino: u32, inode: &Inode) -> Result<()> {
        let format = format_of(&self.image.geometry, inode.flags());
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return self.inline(ino, inode, &format);
        }
        let seed = self.image.geometry.inode_seed(ino, inode.generation());
        for (start, len) in content(self.image, ino, inode)? {
            for block in start..start + len {
                self.names(ino, block, &format, seed)?;
            }
        }
        Ok(())
    }

    /// The names in a block. A node of an index has free entries only; its root has `.` and `..`,
    /// which reaches to the end of the block.
    fn names(&mut self, ino: u32, block: u64, format: &DirFormat, seed: u32) -> Result<()> {
        let bytes = self.image.block(block)?;
        let bad = |reason: String| Error::BadBlock { ino, block, reason };
        verify(&bytes, format, seed).map_err(bad)?;
        for entry in format.region_entries(&bytes) {
            let entry = entry.map_err(|reason| bad(reason.to_string()))?;
            if entry.inode != 0 {
                let offset = entry.offset as u32;
                let place = ReferencePlace::Names {
                    block,
                    offset,
                    seed,
                };
                self.add(ino, entry.inode, place)?;
            }
        }
        Ok(())
    }

    /// The names in an inode.
    fn inline(&mut self, ino: u32, inode: &Inode, format: &DirFormat) -> Result<()> {
        let map = inode.block();
        let parent = inline_dir_parent(map).unwrap_or(0);
        self.add(ino, parent, within(ino, MAP_AT))?;
        let area = inode.attr_area();
        let value = xattr_ibody_value(area, xattr_index::SYSTEM, INLINE_XATTR);
        let value = value.map_err(|reason| bad(ino, reason))?.unwrap_or(0..0);
        let begin = area_at(inode) + value.start;
        let regions = [
            (inline_dir_region(map), MAP_AT + PARENT),
            (area.get(value), begin),
        ];
        for (region, begin) in regions {
            for entry in format.region_entries(region.unwrap_or_default()) {
                let entry = entry.map_err(|reason: DirError| bad(ino, reason))?;
                if entry.inode != 0 {
                    self.add(ino, entry.inode, within(ino, begin + entry.offset))?;
                }
            }
        }
        Ok(())
    }

    /// The inodes of values that attributes have.
    fn attributes(&mut self, ino: u32, inode: &Inode) -> Result<()> {
        let numbers = xattr_ibody_inodes(inode.attr_area());
        for (offset, number) in numbers.map_err(|reason| bad(ino, reason))? {
            self.add(ino, number, within(ino, area_at(inode) + offset))?;
        }
        let block = inode.file_acl();
        if block == 0 {
            return Ok(());
        }
        self.image.geometry.check_blocks(block, 1)?;
        let bytes = self.image.block(block)?;
        let geometry = &self.image.geometry;
        let checked = if geometry.metadata_csum() {
            xattr_block_verify(&bytes, geometry.csum_seed(), block)
        } else {
            Ok(())
        };
        let numbers = checked.and_then(|()| xattr_block_inodes(&bytes));
        let numbers = numbers.map_err(|reason| Error::BadBlock {
            ino,
            block,
            reason: reason.to_string(),
        })?;
        for (offset, number) in numbers {
            let offset = offset as u32;
            self.add(ino, number, ReferencePlace::Attributes { block, offset })?;
        }
        Ok(())
    }
}

/// A place in an inode, whose size has 16 bits.
fn within(ino: u32, offset: usize) -> ReferencePlace {
    ReferencePlace::Inode {
        ino,
        offset: offset as u32,
    }
}

/// Bytes of an inode before its attributes.
fn area_at(inode: &Inode) -> usize {
    inode.size_on_disk() - inode.attr_area().len()
}

fn bad(ino: u32, reason: impl ToString) -> Error {
    Error::BadInode {
        ino,
        reason: reason.to_string(),
    }
}

/// Verifies the checksum of a block of a directory.
fn verify(bytes: &[u8], format: &DirFormat, seed: u32) -> std::result::Result<(), String> {
    if is_index(bytes, format) {
        format.dx_verify(bytes, seed).map_err(|e| e.to_string())
    } else {
        format.verify(bytes, seed).map_err(|e| e.to_string())
    }
}

fn seal(bytes: &mut [u8], format: &DirFormat, seed: u32) -> std::result::Result<(), String> {
    if is_index(bytes, format) {
        format.dx_seal(bytes, seed).map_err(|e| e.to_string())
    } else {
        format.seal(bytes, seed).map_err(|e| e.to_string())
    }
}

/// Whether a block belongs to an index: the only entry of a node and the `..` of a root reach to
/// its end. A block of names with a checksum has a tail there. An index may have the bytes of a
/// tail there, too, because it took the place of names.
pub(crate) fn is_index(bytes: &[u8], format: &DirFormat) -> bool {
    let mut first = format.region_entries(bytes).take(2).flatten();
    first.any(|entry| entry.end() == format.block_size && (entry.offset == 0 || entry.is_dots()))
}

/// Writes another number to a place. An inode at the place is the one with number `owner`.
///
/// # Errors
/// Errors of the device; the place is wrong.
pub(super) fn write(
    image: &mut Image,
    place: ReferencePlace,
    owner: u32,
    number: u32,
) -> Result<()> {
    let put = |bytes: &mut [u8], offset: u32| {
        let place = bytes.get_mut(offset as usize..);
        if let Some(place) = place.and_then(<[u8]>::first_chunk_mut) {
            *place = number.to_le_bytes();
        }
    };
    let bad = |block, reason| Error::BadBlock {
        ino: number,
        block,
        reason,
    };
    match place {
        ReferencePlace::Names {
            block,
            offset,
            seed,
        } => {
            let mut bytes = image.block(block)?;
            put(&mut bytes, offset);
            let format = format_of(&image.geometry, InodeFlags::empty());
            seal(&mut bytes, &format, seed).map_err(|reason| bad(block, reason))?;
            image.put(block, bytes)
        }
        ReferencePlace::Attributes { block, offset } => {
            let mut bytes = image.block(block)?;
            put(&mut bytes, offset);
            if image.geometry.metadata_csum() {
                let sealed = xattr_block_seal(&mut bytes, image.geometry.csum_seed(), block);
                sealed.map_err(|reason| bad(block, reason.to_string()))?;
            }
            image.put(block, bytes)
        }
        ReferencePlace::Inode { offset, .. } => {
            let inode = image.inode(owner)?;
            let mut bytes = vec![0; inode.size_on_disk()];
            inode.write(&mut bytes)?;
            put(&mut bytes, offset);
            image.put_inode(owner, Inode::read(&bytes, &image.geometry)?)
        }
    }
}
