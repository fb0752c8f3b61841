//! One group, as `dumpe2fs` prints it (without the lists of free blocks and inodes).

use std::fmt::{Display, Formatter, Result};

use crate::{Geometry, GroupDesc, GroupFlags, Incompat, RoCompat};

/// Prints a group's descriptor, and the places of its superblock and descriptor copies.
#[derive(Clone, Copy, Debug)]
pub struct DumpGroup<'a> {
    /// Group.
    pub group: u32,
    /// Descriptor of the group.
    pub desc: &'a GroupDesc,
    /// Geometry of the file system.
    pub geometry: &'a Geometry,
}

impl Display for DumpGroup<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (group, desc, geometry) = (self.group, self.desc, self.geometry);
        let Ok(first) = geometry.group_first_block(group) else {
            return writeln!(
                f,
                "Group {group}: none, there are {}",
                geometry.group_count()
            );
        };
        let blocks = u64::from(geometry.group_blocks(group));
        write!(f, "Group {group}: (Blocks {first}-{})", first + blocks - 1)?;
        if geometry.features().group_csum() {
            write!(f, " csum {:#06x}", desc.checksum())?;
        }
        self.flags(f)?;
        self.fixed(first, f)?;
        self.part("Block bitmap", desc.block_bitmap(), 1, f)?;
        self.bitmap_sum(desc.block_bitmap_csum(), f)?;
        self.part("Inode bitmap", desc.inode_bitmap(), 1, f)?;
        self.bitmap_sum(desc.inode_bitmap_csum(), f)?;
        let table = u64::from(geometry.inode_table_blocks());
        self.part("Inode table", desc.inode_table(), table, f)?;
        writeln!(f)?;
        let unit = if geometry.features().has_ro_compat(RoCompat::BIGALLOC) {
            "clusters"
        } else {
            "blocks"
        };
        write!(
            f,
            "  {} free {unit}, {} free inodes, {} directories",
            desc.free_clusters(),
            desc.free_inodes(),
            desc.used_dirs()
        )?;
        if desc.itable_unused() > 0 {
            write!(f, ", {} unused inodes", desc.itable_unused())?;
        }
        writeln!(f)
    }
}

impl DumpGroup<'_> {
    fn flags(&self, f: &mut Formatter<'_>) -> Result {
        let names: Vec<_> = [
            (GroupFlags::INODE_UNINIT, "INODE_UNINIT"),
            (GroupFlags::BLOCK_UNINIT, "BLOCK_UNINIT"),
            (GroupFlags::INODE_ZEROED, "ITABLE_ZEROED"),
        ]
        .into_iter()
        .filter(|(flag, _)| self.desc.flags().contains(*flag))
        .map(|(_, name)| name)
        .collect();
        if names.is_empty() {
            return writeln!(f);
        }
        writeln!(f, " [{}]", names.join(", "))
    }

    /// Superblock, descriptors and blocks reserved for them.
    fn fixed(&self, first: u64, f: &mut Formatter<'_>) -> Result {
        let (group, geometry) = (self.group, self.geometry);
        let mut at = first;
        let copy = geometry.backup_super_block(group);
        if let Some(block) = copy {
            let kind = if group == 0 { "Primary" } else { "Backup" };
            write!(f, "  {kind} superblock at {block}")?;
            at = block + 1;
        }
        let end = first + u64::from(geometry.fixed_blocks(group));
        let index = group / geometry.descs_per_block();
        let meta = geometry.features().has_incompat(Incompat::META_BG);
        if meta && index >= geometry.first_meta_bg() {
            match (end > at, copy.is_some()) {
                (true, true) => writeln!(f, ", Group descriptor at {at}"),
                (true, false) => writeln!(f, "  Group descriptor at {at}"),
                (false, true) => writeln!(f),
                (false, false) => Ok(()),
            }
        } else if copy.is_some() && end > at {
            let reserved = u64::from(geometry.reserved_blocks(group));
            let table = end.saturating_sub(reserved);
            write!(f, ", Group descriptors at {at}-{}", table.saturating_sub(1))?;
            if reserved > 0 {
                write!(f, "\n  Reserved GDT blocks at {table}-{}", end - 1)?;
            }
            writeln!(f)
        } else {
            Ok(())
        }
    }

    /// Start of a part, relative to its own group, or to this one.
    fn part(&self, name: &str, block: u64, count: u64, f: &mut Formatter<'_>) -> Result {
        write!(f, "  {name} at {block}")?;
        if count > 1 {
            write!(f, "-{}", block.saturating_add(count - 1))?;
        }
        match self.geometry.group_of_block(block) {
            Ok((group, offset)) if group == self.group => write!(f, " (+{offset})"),
            Ok((group, offset)) => write!(f, " (bg #{group} + {offset})"),
            Err(_) => write!(f, " (outside)"),
        }
    }

    fn bitmap_sum(&self, sum: u32, f: &mut Formatter<'_>) -> Result {
        if self.geometry.metadata_csum() {
            write!(f, ", csum {sum:#010x}")?;
        }
        writeln!(f)
    }
}
