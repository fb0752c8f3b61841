//! Moves all blocks of files past a limit to places below it.
//!
//! The content of a block is copied to a free block first, on the device. Then the map of its inode
//! changes, in a transaction that also frees the old block.

use std::collections::BTreeMap;

use sapwood_ext4_format::{
    Compat, EXTENT_MAX_LEN, EXTENT_ROOT_MAX, Extent, ExtentIndex, ExtentNodeMut, INDIRECT_DIRECT,
    Inode, InodeFlags, extent_block_max, extent_block_seal, orphan_seal, special_ino,
    xattr_block_seal,
};

use super::image::Image;
use super::map::{has_map, read_tree};
use super::{OnMoved, Result, quotas};
use crate::Error;

/// Most blocks that one extent covers, written or not.
const MOST_BLOCKS: u64 = EXTENT_MAX_LEN as u64 - 1;

/// Moves the blocks of all inodes below `limit`. Everything is durable on return.
///
/// # Errors
/// No room; the image is wrong; errors of the device.
pub(super) fn evacuate(image: &mut Image, limit: u64, moved: &mut OnMoved<'_>) -> Result<()> {
    let fresh = !image.has_log();
    let mut evacuation = Evacuation {
        image,
        limit,
        fresh,
        moved,
        blocks: 0,
    };
    let mut attributes: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for group in 0..evacuation.image.geometry.group_count() {
        for piece in evacuation.image.pieces(group)? {
            // A move changes only its own inode.
            for (ino, inode) in evacuation.image.inodes_of(&piece)? {
                if inode.file_acl() >= limit {
                    attributes.entry(inode.file_acl()).or_default().push(ino);
                }
                evacuation.move_inode(ino, inode)?;
            }
        }
    }
    for (block, inodes) in attributes {
        evacuation.move_attributes(block, &inodes)?;
        if evacuation.image.is_full() {
            evacuation.image.commit(None)?;
        }
    }
    evacuation.move_reserved()?;
    evacuation.image.commit(None)?;
    evacuation.move_journal()
}

/// The move of all blocks past a limit.
struct Evacuation<'i, 'p> {
    image: &'i mut Image,
    limit: u64,
    moved: &'i mut OnMoved<'p>,
    /// Changed blocks of maps get a new place: without a log, neither a change in place nor a
    /// change of several blocks is atomic.
    fresh: bool,
    /// Blocks moved so far.
    blocks: u64,
}

impl Evacuation<'_, '_> {
    /// Moves the blocks of an inode, unless it has a step of its own.
    fn move_inode(&mut self, ino: u32, inode: Inode) -> Result<()> {
        let special = [special_ino::RESIZE, special_ino::JOURNAL].contains(&ino);
        if special || !has_map(self.image, &inode) {
            return Ok(());
        }
        if quotas::is_file(&self.image.sb, ino) {
            // Its content is copied on the device, where changed usage has to be.
            self.image.commit(None)?;
        }
        self.move_map(ino, inode)?;
        if self.image.is_full() {
            self.image.commit(None)
        } else {
            Ok(())
        }
    }

    fn bad(ino: u32, reason: impl ToString) -> Error {
        Error::BadInode {
            ino,
            reason: reason.to_string(),
        }
    }

    /// Copies blocks to free ones below the limit. Returns the runs.
    fn copy(&mut self, ino: u32, from: u64, len: u64, written: bool) -> Result<Vec<(u64, u64)>> {
        let mut runs = Vec::new();
        let mut done = 0;
        while done < len {
            let (to, count) = self.image.take(self.limit, (len - done).min(MOST_BLOCKS))?;
            if written {
                self.image.copy(from + done, to, count)?;
                self.seal_orphans(ino, to, count)?;
            }
            runs.push((to, count));
            done += count;
        }
        self.image.free(from, len);
        self.blocks += len;
        (self.moved)(self.blocks << self.image.geometry.block_bits());
        Ok(runs)
    }

    /// The blocks of the orphan file have their own numbers in their checksums.
    fn seal_orphans(&self, ino: u32, first: u64, count: u64) -> Result<()> {
        if ino != self.image.sb.orphan_file_inum.get() || !self.image.geometry.metadata_csum() {
            return Ok(());
        }
        let seed = self
            .image
            .geometry
            .inode_seed(ino, self.image.inode(ino)?.generation());
        for block in first..first + count {
            let mut bytes = self.image.block(block)?;
            orphan_seal(&mut bytes, seed, block).map_err(|reason| Self::bad(ino, reason))?;
            let at = block << self.image.geometry.block_bits();
            self.image.device.write_at(at, &bytes)?;
        }
        Ok(())
    }

    /// Moves the blocks of an inode, and its map.
    fn move_map(&mut self, ino: u32, mut inode: Inode) -> Result<bool> {
        let before = inode.clone();
        if inode.flags().contains(InodeFlags::EXTENTS) {
            self.move_extents(ino, &mut inode)?;
        } else {
            let mut words = [0; 15];
            for (index, word) in words.iter_mut().enumerate() {
                let depth = (index + 1).saturating_sub(INDIRECT_DIRECT as usize) as u8;
                *word = self.move_pointer(ino, inode.block_word(index), depth)?;
            }
            for (place, word) in inode.block_mut().chunks_exact_mut(4).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
        let changed = inode != before;
        if changed {
            self.image.put_inode(ino, inode)?;
        }
        Ok(changed)
    }

    /// Moves the target of a pointer, `depth` blocks of pointers above data. Returns the new one.
    fn move_pointer(&mut self, ino: u32, block: u32, depth: u8) -> Result<u32> {
        let number = u64::from(block);
        if block == 0 {
            return Ok(0);
        }
        self.image.geometry.check_blocks(number, 1)?;
        let low = number < self.limit;
        if depth == 0 {
            if low {
                return Ok(block);
            }
            let runs = self.copy(ino, number, 1, true)?;
            // Without extents there are no more than 2^32 blocks.
            return Ok(runs.first().map_or(0, |(to, _)| *to as u32));
        }
        let before = self.image.block(number)?;
        let mut after = before.clone();
        for word in after.chunks_exact_mut(4) {
            let old = word.first_chunk().copied().unwrap_or_default();
            let new = self.move_pointer(ino, u32::from_le_bytes(old), depth - 1)?;
            word.copy_from_slice(&new.to_le_bytes());
        }
        if low && (after == before || !self.fresh) {
            self.image.put(number, after)?;
            return Ok(block);
        }
        let (to, _) = self.image.take(self.limit, 1)?;
        self.image.put(to, after)?;
        self.image.free(number, 1);
        Ok(to as u32)
    }

    /// Moves the blocks of extents, and rebuilds the tree if it changed.
    fn move_extents(&mut self, ino: u32, inode: &mut Inode) -> Result<()> {
        let tree = read_tree(self.image, ino, inode)?;
        let high = |extent: &Extent| extent.physical + u64::from(extent.len) > self.limit;
        if !tree.extents.iter().any(high) && tree.nodes.iter().all(|node| *node < self.limit) {
            return Ok(());
        }
        let mut list: Vec<Extent> = Vec::new();
        for extent in &tree.extents {
            let len = u64::from(extent.len);
            let stays = self.limit.saturating_sub(extent.physical).min(len);
            let mut runs = Vec::new();
            if stays > 0 {
                runs.push((extent.physical, stays));
            }
            if stays < len {
                let from = extent.physical + stays;
                runs.extend(self.copy(ino, from, len - stays, !extent.unwritten)?);
            }
            let mut logical = extent.logical;
            for (physical, len) in runs {
                let piece = Extent {
                    logical,
                    len: len as u32,
                    physical,
                    unwritten: extent.unwritten,
                };
                logical = logical.saturating_add(piece.len);
                push(&mut list, piece);
            }
        }
        self.rebuild(ino, inode, &list, tree.nodes)
    }

    /// Writes an extent tree, in the old nodes as far as they stay.
    fn rebuild(
        &mut self,
        ino: u32,
        inode: &mut Inode,
        list: &[Extent],
        nodes: Vec<u64>,
    ) -> Result<()> {
        let before = nodes.len() as u64;
        let (mut kept, gone): (Vec<u64>, Vec<u64>) =
            (nodes.into_iter()).partition(|node| *node < self.limit && !self.fresh);
        for node in gone {
            self.image.free(node, 1);
        }
        let seed = self.image.geometry.inode_seed(ino, inode.generation());
        let size = self.image.block_size() as usize;
        let most = usize::from(extent_block_max(size));
        let bad = |reason: sapwood_ext4_format::ExtentError| Self::bad(ino, reason);
        let mut count = 0;
        let mut depth = 0;
        let mut entries = Entries::Leaf(list.to_vec());
        while entries.len() > usize::from(EXTENT_ROOT_MAX) {
            let mut above = Vec::new();
            for part in entries.parts(most) {
                let node = match kept.pop() {
                    Some(node) => node,
                    None => self.image.take(self.limit, 1)?.0,
                };
                let mut bytes = vec![0; size];
                part.write(depth, &mut bytes).map_err(bad)?;
                if self.image.geometry.metadata_csum() {
                    extent_block_seal(&mut bytes, seed).map_err(bad)?;
                }
                self.image.put(node, bytes)?;
                count += 1;
                let logical = part.first();
                let child = node;
                above.push(ExtentIndex { logical, child });
            }
            entries = Entries::Index(above);
            depth += 1;
        }
        for node in kept {
            self.image.free(node, 1);
        }
        let mut root = [0; sapwood_ext4_format::I_BLOCK_SIZE];
        entries.write(depth, &mut root).map_err(bad)?;
        *inode.block_mut() = root;
        let unit = self.image.block_size() / 512;
        let old = inode.sectors(&self.image.geometry);
        let sectors = (old + count * unit).saturating_sub(before * unit);
        inode.set_sectors(sectors, &self.image.geometry)?;
        quotas::charge(self.image, ino, inode, (old, sectors))
    }

    /// Moves a block of attributes, which several inodes may share.
    fn move_attributes(&mut self, block: u64, inodes: &[u32]) -> Result<()> {
        let (to, _) = self.image.take(self.limit, 1)?;
        let mut bytes = self.image.block(block)?;
        if self.image.geometry.metadata_csum() {
            let seed = self.image.geometry.csum_seed();
            let owner = inodes.first().copied().unwrap_or(0);
            xattr_block_seal(&mut bytes, seed, to).map_err(|reason| Self::bad(owner, reason))?;
        }
        self.image.put(to, bytes)?;
        for ino in inodes {
            let mut inode = self.image.inode(*ino)?;
            inode.set_file_acl(to)?;
            self.image.put_inode(*ino, inode)?;
        }
        self.image.free(block, 1);
        Ok(())
    }

    /// Moves the block of pointers in the inode of reserved descriptors. The blocks to which it
    /// points belong to groups.
    fn move_reserved(&mut self) -> Result<()> {
        if !self
            .image
            .geometry
            .features()
            .has_compat(Compat::RESIZE_INODE)
        {
            return Ok(());
        }
        let ino = special_ino::RESIZE;
        let mut inode = self.image.inode(ino)?;
        let place = INDIRECT_DIRECT as usize + 1;
        let block = u64::from(inode.block_word(place));
        if block < self.limit {
            return Ok(());
        }
        self.image.geometry.check_blocks(block, 1)?;
        let runs = self.copy(ino, block, 1, true)?;
        // The pointers of this inode have 32 bits.
        let to = runs.first().map_or(0, |(to, _)| *to as u32);
        if let Some(word) = inode.block_mut().chunks_exact_mut(4).nth(place) {
            word.copy_from_slice(&to.to_le_bytes());
        }
        self.image.put_inode(ino, inode)
    }

    /// Moves the journal. The transaction that changes its map is in the old journal, and the inode
    /// is written back last. Until then a recovery reads the old map, so the new map is in other
    /// blocks.
    fn move_journal(&mut self) -> Result<()> {
        let ino = self.image.sb.journal_inum.get();
        if ino == 0 {
            return Ok(());
        }
        let inode = self.image.inode(ino)?;
        self.fresh = true;
        if !self.move_map(ino, inode)? {
            return Ok(());
        }
        let inode = self.image.inode(ino)?;
        if self.image.sb.jnl_backup_type == 1 {
            let words = (0..15).map(|index| inode.block_word(index));
            for (place, word) in self.image.sb.jnl_blocks.iter_mut().zip(words) {
                *place = word.into();
            }
        }
        let (last, _) = self.image.inode_place(ino)?;
        self.image.commit(Some(last))?;
        self.image.reopen_log()
    }
}

/// Appends an extent to a list, or extends the last one if it continues that.
fn push(list: &mut Vec<Extent>, piece: Extent) {
    if let Some(last) = list.last_mut() {
        let follows = last.end() == u64::from(piece.logical)
            && last.physical + u64::from(last.len) == piece.physical
            && last.unwritten == piece.unwritten;
        if follows && u64::from(last.len) + u64::from(piece.len) <= MOST_BLOCKS {
            last.len += piece.len;
            return;
        }
    }
    list.push(piece);
}

/// The entries of a level of a tree.
enum Entries {
    Leaf(Vec<Extent>),
    Index(Vec<ExtentIndex>),
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(list) => list.len(),
            Self::Index(list) => list.len(),
        }
    }

    fn first(&self) -> u32 {
        match self {
            Self::Leaf(list) => list.first().map_or(0, |extent| extent.logical),
            Self::Index(list) => list.first().map_or(0, |index| index.logical),
        }
    }

    fn parts(&self, most: usize) -> Vec<Self> {
        match self {
            Self::Leaf(list) => list
                .chunks(most)
                .map(|part| Self::Leaf(part.to_vec()))
                .collect(),
            Self::Index(list) => list
                .chunks(most)
                .map(|part| Self::Index(part.to_vec()))
                .collect(),
        }
    }

    fn write(
        &self,
        depth: u16,
        bytes: &mut [u8],
    ) -> std::result::Result<(), sapwood_ext4_format::ExtentError> {
        let mut node = ExtentNodeMut::init(bytes, depth)?;
        match self {
            Self::Leaf(list) => node.push_extents(list),
            Self::Index(list) => node.push_indexes(list),
        }
    }
}
