//! Shows one inode: its fields, its map, its names, its attributes.

use std::collections::{BTreeSet, HashSet};

use sapwood_ext4_format::{
    DirFormat, DumpInode, ExtentBounds, ExtentNode, INDIRECT_DIRECT, INLINE_XATTR, Inode,
    InodeFlags, XattrSet, XattrValue, extent_block_verify, indirect_pointers, inline_dir_parent,
    inline_dir_region, xattr_block_verify, xattr_full_name, xattr_index,
};

use super::{Image, InspectError, Lines, Result};
use crate::map::{self, Mapped};

/// Most bytes of a value that are shown.
const VALUE_SHOWN: usize = 64;

/// A part of a directory that has entries.
pub(super) enum Region<'a> {
    /// A block of it.
    Block {
        logical: u64,
        physical: u64,
        bytes: &'a [u8],
    },
    /// The entries in the inode.
    Inline(&'a [u8]),
}

/// Calls `each` with all parts of a directory, in order.
pub(super) fn each_region(
    image: &Image,
    ino: u32,
    inode: &Inode,
    each: &mut dyn FnMut(Region<'_>),
) -> Result<()> {
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        each(Region::Inline(
            inline_dir_region(inode.block()).unwrap_or_default(),
        ));
        let rest = XattrSet::parse_ibody(inode.attr_area(), image.geometry.inodes_count());
        let rest = rest.unwrap_or_default();
        if let Some(attr) = rest.get(xattr_index::SYSTEM, INLINE_XATTR)
            && let XattrValue::Bytes(bytes) = &attr.value
        {
            each(Region::Inline(bytes));
        }
        return Ok(());
    }
    let blocks = inode.size(&image.geometry) / u64::from(image.geometry.block_size());
    let runs = map::standalone::runs(&*image.device, &image.geometry, ino, inode, blocks)?;
    for run in runs {
        let Mapped::Written(first) = run.what else {
            continue;
        };
        for n in 0..run.len {
            let bytes = image.block(first + n)?;
            each(Region::Block {
                logical: run.logical + n,
                physical: first + n,
                bytes: &bytes,
            });
        }
    }
    Ok(())
}

pub(super) fn inode(image: &Image, ino: u32, lines: &mut Lines<'_>) -> Result<()> {
    let inode = image.inode(ino)?;
    let dump = DumpInode {
        ino,
        inode: &inode,
        geometry: &image.geometry,
    };
    lines(dump.to_string());
    if let Err(error) = inode.verify_checksum(ino, &image.geometry) {
        lines(format!("  {error}"));
    }
    if inode.is_fast_symlink(&image.geometry) {
        let len = inode.size(&image.geometry) as usize;
        let target = inode.block().get(..len).unwrap_or_default();
        lines(format!("Target: {}", text(target)));
    }
    attributes(image, ino, lines)
}

pub(super) fn map(image: &Image, ino: u32, lines: &mut Lines<'_>) -> Result<()> {
    let inode = image.inode(ino)?;
    let flags = inode.flags();
    if flags.contains(InodeFlags::INLINE_DATA) {
        lines(format!("Inode {ino}: data in the inode"));
        return Ok(());
    }
    if inode.is_fast_symlink(&image.geometry) {
        lines(format!("Inode {ino}: target in the inode"));
        return Ok(());
    }
    let mut walk = Walk {
        image,
        seed: image.geometry.inode_seed(ino, inode.generation()),
        seen: HashSet::new(),
        lines,
    };
    if flags.contains(InodeFlags::EXTENTS) {
        let first = u64::from(image.geometry.first_data_block());
        let bounds = ExtentBounds::root(first, image.geometry.blocks_count());
        return walk.extents(inode.block(), None, &bounds);
    }
    let words = indirect_pointers(inode.block()).unwrap_or_default();
    for (index, word) in (0_u32..).zip(words) {
        let depth = index.saturating_sub(INDIRECT_DIRECT - 1).min(3);
        walk.pointer(word.get(), depth, index)?;
    }
    Ok(())
}

/// A walk through a map. It visits no block twice, so it ends.
struct Walk<'a, 'b> {
    image: &'a Image,
    seed: u32,
    seen: HashSet<u64>,
    lines: &'a mut Lines<'b>,
}

impl Walk<'_, '_> {
    /// Records a visit. Returns false if the block was visited before.
    fn first_visit(&mut self, block: u64) -> bool {
        let first = self.seen.insert(block);
        if !first {
            (self.lines)(format!("block {block}: is in the map twice"));
        }
        first
    }

    fn extents(&mut self, bytes: &[u8], block: Option<u64>, bounds: &ExtentBounds) -> Result<()> {
        let place = block.map_or_else(|| "in the inode".to_owned(), |block| format!("at {block}"));
        let node = match ExtentNode::parse(bytes, bounds) {
            Ok(node) => node,
            Err(error) => {
                (self.lines)(format!("node {place}: {error}"));
                return Ok(());
            }
        };
        let (depth, count, max) = (node.depth(), node.len(), node.max());
        (self.lines)(format!(
            "node {place}: depth {depth}, {count} of {max} entries"
        ));
        if block.is_some() && self.image.geometry.metadata_csum() {
            // Contents are shown even if the checksum is wrong.
            if let Err(error) = extent_block_verify(bytes, self.seed) {
                (self.lines)(format!("  {error}"));
            }
        }
        for extent in node.extents() {
            let (first, last) = (extent.logical, extent.end().saturating_sub(1));
            let end = extent.physical + u64::from(extent.len) - 1;
            let kind = if extent.unwritten { " unwritten" } else { "" };
            let physical = extent.physical;
            (self.lines)(format!("  {first}-{last}: {physical}-{end}{kind}"));
        }
        for (n, index) in node.indexes().enumerate() {
            (self.lines)(format!("  from {}: node at {}", index.logical, index.child));
            if let Some(bounds) = node.child_bounds(n, bounds)
                && self.first_visit(index.child)
            {
                let bytes = self.image.block(index.child)?;
                self.extents(&bytes, Some(index.child), &bounds)?;
            }
        }
        Ok(())
    }

    /// A pointer with `depth` blocks of pointers below it.
    fn pointer(&mut self, block: u32, depth: u32, slot: u32) -> Result<()> {
        if block == 0 {
            return Ok(());
        }
        let indent = "  ".repeat(3_usize.saturating_sub(depth as usize));
        (self.lines)(match depth {
            0 => format!("{indent}{slot}: {block}"),
            _ => format!("{indent}{slot}: {block}, pointers of depth {depth}"),
        });
        if depth == 0 || !self.first_visit(block.into()) {
            return Ok(());
        }
        if let Err(error) = self.image.geometry.check_blocks(block.into(), 1) {
            (self.lines)(format!("{indent}{error}"));
            return Ok(());
        }
        let bytes = self.image.block(block.into())?;
        let words = indirect_pointers(&bytes).unwrap_or_default();
        for (index, word) in (0..).zip(words) {
            self.pointer(word.get(), depth - 1, index)?;
        }
        Ok(())
    }
}

pub(super) fn directory(image: &Image, ino: u32, lines: &mut Lines<'_>) -> Result<()> {
    let inode = image.inode(ino)?;
    if !inode.is_dir() {
        return Err(InspectError::NotADirectory(ino));
    }
    let format = image.dir_format(&inode);
    let seed = image.geometry.inode_seed(ino, inode.generation());
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        let parent = inline_dir_parent(inode.block()).unwrap_or(0);
        lines(format!("names in the inode, parent {parent}"));
    }
    let count = inode.size(&image.geometry) / u64::from(image.geometry.block_size());
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let nodes = index_blocks(image, ino, &inode, &format, count)?;
    each_region(image, ino, &inode, &mut |region| {
        match region {
            Region::Inline(bytes) => entries(&format, format.region_entries(bytes), lines),
            Region::Block {
                logical,
                physical,
                bytes,
            } => {
                lines(format!("block {logical} at {physical}"));
                let index = nodes.contains(&logical);
                let sound = match index {
                    _ if !format.checksums => Ok(()),
                    true => format
                        .dx_verify(bytes, seed)
                        .map_err(|error| error.to_string()),
                    false => format
                        .verify(bytes, seed)
                        .map_err(|error| error.to_string()),
                };
                if let Err(error) = sound {
                    lines(format!("  {error}"));
                }
                if index {
                    index_node(&format, logical == 0, bytes, count, lines);
                }
                if !index || logical == 0 {
                    entries(&format, format.entries(bytes), lines);
                }
            }
        };
    })
}

/// Blocks of a directory that are nodes of its index. A damaged node has none below it.
fn index_blocks(
    image: &Image,
    ino: u32,
    inode: &Inode,
    format: &DirFormat,
    count: u32,
) -> Result<BTreeSet<u64>> {
    let mut all = BTreeSet::new();
    if !inode.flags().contains(InodeFlags::INDEX) {
        return Ok(all);
    }
    let mut row = BTreeSet::from([0]);
    let mut levels = u8::MAX;
    for depth in 0..=format.dx_max_levels() {
        all.extend(&row);
        if depth >= levels {
            break;
        }
        let mut below = BTreeSet::new();
        each_region(image, ino, inode, &mut |region| {
            let Region::Block { logical, bytes, .. } = region else {
                return;
            };
            if !row.contains(&logical) {
                return;
            }
            let node = if logical == 0 {
                format.dx_root(bytes, count).ok().map(|root| {
                    levels = root.info.indirect_levels;
                    root.node
                })
            } else {
                format.dx_node(bytes, count).ok()
            };
            if let Some(node) = node {
                below.extend(node.entries().map(|entry| u64::from(entry.block)));
            }
        })?;
        if levels == 0 || levels == u8::MAX {
            break;
        }
        row = below;
    }
    Ok(all)
}

/// A node of a directory's index.
fn index_node(format: &DirFormat, root: bool, bytes: &[u8], count: u32, lines: &mut Lines<'_>) {
    let node = if root {
        format.dx_root(bytes, count).map(|root| {
            let info = root.info;
            lines(format!(
                "  index: hash version {}, {} levels of nodes",
                info.hash_version, info.indirect_levels
            ));
            root.node
        })
    } else {
        format.dx_node(bytes, count)
    };
    let node = match node {
        Ok(node) => node,
        Err(error) => return lines(format!("  index: {error}")),
    };
    lines(format!(
        "  {} of {} entries of the index",
        node.count(),
        node.limit()
    ));
    for entry in node.entries() {
        lines(format!(
            "  hash {:#010x}: block {}",
            entry.hash, entry.block
        ));
    }
}

fn entries<'a, E: std::fmt::Display>(
    format: &DirFormat,
    all: impl Iterator<Item = std::result::Result<sapwood_ext4_format::DirEntry<'a>, E>>,
    lines: &mut Lines<'_>,
) {
    for entry in all {
        match entry {
            Ok(entry) => {
                let kind = if format.file_type { entry.file_type } else { 0 };
                let hash = entry.hash.map_or_else(String::new, |(major, minor)| {
                    format!(" {major:#x}:{minor:#x}")
                });
                lines(format!(
                    "  {:>5} +{:<4} inode {:>8} type {kind} {}{hash}",
                    entry.offset,
                    entry.rec_len,
                    entry.inode,
                    text(entry.name)
                ));
            }
            Err(error) => lines(format!("  {error}")),
        }
    }
}

pub(super) fn attributes(image: &Image, ino: u32, lines: &mut Lines<'_>) -> Result<()> {
    let inode = image.inode(ino)?;
    let inodes = image.geometry.inodes_count();
    match XattrSet::parse_ibody(inode.attr_area(), inodes) {
        Ok(set) if set.entries.is_empty() => {}
        Ok(set) => {
            lines("attributes in the inode".to_owned());
            set_lines(&set, lines);
        }
        Err(error) => lines(format!("attributes in the inode: {error}")),
    }
    let number = inode.file_acl();
    if number == 0 {
        return Ok(());
    }
    let bytes = image.block(number)?;
    if image.geometry.metadata_csum()
        && let Err(error) = xattr_block_verify(&bytes, image.geometry.csum_seed(), number)
    {
        lines(format!("block {number}: {error}"));
    }
    match XattrSet::parse_block(&bytes, inodes) {
        Ok((header, set)) => {
            lines(format!(
                "attributes in block {number}, {} references, hash {:#010x}",
                header.refcount.get(),
                header.hash.get()
            ));
            set_lines(&set, lines);
        }
        Err(error) => lines(format!("attributes in block {number}: {error}")),
    }
    Ok(())
}

fn set_lines(set: &XattrSet, lines: &mut Lines<'_>) {
    for attr in &set.entries {
        let name = xattr_full_name(attr.index, &attr.name).unwrap_or_else(|| attr.name.clone());
        let name = text(&name);
        lines(match &attr.value {
            XattrValue::Bytes(bytes) => {
                let shown = bytes.get(..VALUE_SHOWN).unwrap_or(bytes);
                let more = if shown.len() < bytes.len() { "..." } else { "" };
                format!("  {name} ({} bytes) = {}{more}", bytes.len(), text(shown))
            }
            XattrValue::Inode { inode, size, hash } => {
                format!("  {name} ({size} bytes) in inode {inode}, hash {hash:#010x}")
            }
        });
    }
}

/// Bytes as text, with escapes for unprintable ones.
fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
