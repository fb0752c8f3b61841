//! Reads and writes the structures that a repair changes, each with its checksum.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{
    DirFormat, GroupDesc, Inode, InodeFlags, SUPER_OFFSET, SUPER_SIZE, SuperBlock, validate_inode,
};

use crate::check::report::CheckError;
use crate::check::state::View;
use crate::check::walk::{Piece, has_map, walk};
use crate::check::{dirs, superblock};

/// Most blocks of a directory that are searched.
const DIR_BLOCKS: u64 = 1 << 20;

/// An image that is being repaired.
pub(super) struct Editor {
    pub(super) view: View,
}

/// A block of a directory that has linear entries.
pub(super) struct DirBlock {
    pub(super) block: u64,
    pub(super) format: DirFormat,
    pub(super) seed: u32,
    pub(super) bytes: Vec<u8>,
}

/// A directory that has blocks.
pub(super) struct DirLayout {
    pub(super) inode: Inode,
    pub(super) format: DirFormat,
    pub(super) seed: u32,
    pub(super) indexed: bool,
    pub(super) encrypted: bool,
    /// Block of the directory, block of the device; ascending.
    pub(super) blocks: Vec<(u64, u64)>,
}

impl DirLayout {
    /// Location of a block of the directory.
    pub(super) fn physical(&self, logical: u32) -> Option<u64> {
        let logical = u64::from(logical);
        let at = self.blocks.binary_search_by_key(&logical, |block| block.0);
        self.blocks.get(at.ok()?).map(|block| block.1)
    }
}

impl Editor {
    /// `None`: the journal must be replayed first.
    pub(super) fn open(device: &Arc<dyn Device>) -> Result<Option<Self>, CheckError> {
        let opened = superblock::open(device, None, &mut Vec::new())?;
        if opened.recovered {
            return Ok(None);
        }
        Ok(Some(Self { view: opened.view }))
    }

    fn put_block(&self, block: u64, within: u64, bytes: &[u8]) -> Result<(), CheckError> {
        let start = block.saturating_mul(self.view.geometry.block_size().into());
        let offset = start.saturating_add(within);
        Ok(self.view.device.write_at(offset, bytes)?)
    }

    /// Writes a whole block.
    pub(super) fn write_block(&self, block: u64, bytes: &[u8]) -> Result<(), CheckError> {
        self.put_block(block, 0, bytes)
    }

    /// Changes the superblock.
    pub(super) fn change_super(
        &mut self,
        change: impl FnOnce(&mut SuperBlock),
    ) -> Result<(), CheckError> {
        change(&mut self.view.sb);
        self.view.sb.set_checksum();
        Ok(write_super(
            &*self.view.device,
            SUPER_OFFSET,
            &self.view.sb,
        )?)
    }

    /// A descriptor whose checksum matches.
    pub(super) fn descriptor(&self, group: u32) -> Option<GroupDesc> {
        let desc = self.view.descriptor(group).ok()?;
        let sealed = desc.verify_checksum(group, &self.view.geometry);
        sealed.is_ok().then_some(desc)
    }

    /// Writes a descriptor with a new checksum.
    pub(super) fn put_descriptor(&self, group: u32, mut desc: GroupDesc) -> Result<(), CheckError> {
        let geometry = &self.view.geometry;
        desc.set_checksum(group, geometry);
        let Ok((block, offset)) = geometry.descriptor_block(group) else {
            return Ok(());
        };
        let mut bytes = vec![0; usize::from(geometry.desc_size())];
        if desc.write(&mut bytes).is_err() {
            return Ok(());
        }
        self.put_block(block, offset.into(), &bytes)
    }

    /// The inode table of an inode, from a descriptor whose checksum matches, with block and offset
    /// of the inode.
    fn place(&self, ino: u32) -> Option<(u64, u64, u32)> {
        let geometry = &self.view.geometry;
        let (group, index) = geometry.inode_location(ino).ok()?;
        let table = self.descriptor(group)?.inode_table();
        let (block, offset) = geometry.inode_in_table(table, index);
        geometry.check_blocks(block, 1).ok()?;
        Some((table, block, offset))
    }

    /// An inode whose checksum matches; it may be unused.
    pub(super) fn inode(&self, ino: u32) -> Option<Inode> {
        let (table, ..) = self.place(ino)?;
        let inode = self.view.inode(table, ino).ok()?;
        let sealed = inode.verify_checksum(ino, &self.view.geometry);
        sealed.is_ok().then_some(inode)
    }

    /// Block of an inode, its offset there, and the bytes of the block.
    pub(super) fn raw_inode(&self, ino: u32) -> Option<(u64, usize, Vec<u8>)> {
        let (_, block, offset) = self.place(ino)?;
        let bytes = self.view.block(block).ok()?;
        Some((block, offset as usize, bytes))
    }

    /// An inode, whether or not its checksum matches.
    pub(super) fn any_inode(&self, ino: u32) -> Option<Inode> {
        let (table, ..) = self.place(ino)?;
        self.view.inode(table, ino).ok()
    }

    /// Whether the inode was never used, or was deleted.
    pub(super) fn is_unused(&self, ino: u32) -> bool {
        let Some((table, ..)) = self.place(ino) else {
            return false;
        };
        let Ok(inode) = self.view.inode(table, ino) else {
            return false;
        };
        inode.links() == 0 && (inode.mode() == 0 || inode.dtime() != 0)
    }

    /// Writes an inode with a new checksum.
    pub(super) fn put_inode(&self, ino: u32, mut inode: Inode) -> Result<(), CheckError> {
        let Some((_, block, offset)) = self.place(ino) else {
            return Ok(());
        };
        inode.set_checksum(ino, &self.view.geometry);
        let mut bytes = vec![0; inode.size_on_disk()];
        if inode.write(&mut bytes).is_err() {
            return Ok(());
        }
        self.put_block(block, offset.into(), &bytes)
    }

    /// A directory whose inode is intact and that has blocks, in their order.
    pub(super) fn layout(&self, dir: u32) -> Option<DirLayout> {
        let view = &self.view;
        let inode = self.inode(dir)?;
        let valid = validate_inode(dir, &inode, &view.geometry).is_ok();
        if !valid || !inode.is_dir() || !has_map(view, &inode) {
            return None;
        }
        let mut nodes = std::collections::HashSet::new();
        let mut blocks = Vec::new();
        walk(view, dir, &inode, &mut |piece| match piece {
            Piece::Node { block } => nodes.insert(block),
            Piece::Data {
                logical,
                physical,
                len,
                ..
            } => {
                let room = DIR_BLOCKS.saturating_sub(blocks.len() as u64);
                let places = (logical..).zip(physical..physical.saturating_add(len.min(room)));
                blocks.extend(places);
                true
            }
        });
        blocks.sort_unstable();
        Some(DirLayout {
            format: dirs::format(view, &inode),
            seed: view.geometry.inode_seed(dir, inode.generation()),
            indexed: inode.flags().contains(InodeFlags::INDEX),
            encrypted: inode.flags().contains(InodeFlags::ENCRYPT),
            inode,
            blocks,
        })
    }

    /// The blocks of a directory that hold entries and whose checksums match. Empty for a directory
    /// in its inode.
    pub(super) fn dir_blocks(&self, dir: u32) -> Vec<DirBlock> {
        let Some(layout) = self.layout(dir) else {
            return Vec::new();
        };
        let (format, seed) = (layout.format, layout.seed);
        let count = u32::try_from(layout.blocks.len()).unwrap_or(u32::MAX);
        let mut found = Vec::new();
        for (logical, block) in layout.blocks {
            let Ok(bytes) = self.view.block(block) else {
                continue;
            };
            let index = layout.indexed && (logical == 0 || format.dx_node(&bytes, count).is_ok());
            if index || format.check(&bytes).is_err() || format.verify(&bytes, seed).is_err() {
                continue;
            }
            found.push(DirBlock {
                block,
                format,
                seed,
                bytes,
            });
        }
        found
    }
}

/// Writes a superblock at a byte offset.
pub(super) fn write_super(
    device: &dyn Device,
    offset: u64,
    sb: &SuperBlock,
) -> sapwood_block::Result<()> {
    let bytes: &[u8] = sb.bytes();
    device.write_at(offset, bytes.get(..SUPER_SIZE).unwrap_or(bytes))
}
