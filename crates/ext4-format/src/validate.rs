//! Validators of superblock, descriptors and inodes, which an engine relies on.

use crate::inode::file_mode;
use crate::{
    BitmapKind, Features, FormatError, Geometry, GroupDesc, GroupFlags, Incompat, Inode,
    InodeFlags, LINK_MAX, RoCompat, SuperBlock, bitmap,
};

/// Validates a superblock for reading: numbers, features, the inodes that it names, and that the
/// file system fits the device of `device_bytes`.
pub fn validate_super(sb: &SuperBlock, device_bytes: u64) -> Result<Geometry, FormatError> {
    let geometry = Geometry::new(sb)?;
    let blockers = geometry.features().read_blockers();
    if !blockers.is_empty() {
        return Err(FormatError::Features {
            names: blockers.names(),
        });
    }
    geometry.check_device(device_bytes)?;
    for (field, ino) in named_inodes(sb, geometry.features()) {
        if ino > geometry.inodes_count() {
            return Err(FormatError::Super {
                field,
                value: u64::from(ino),
                why: "no such inode",
            });
        }
    }
    if geometry.features().has_incompat(Incompat::MMP) {
        let block = sb.mmp_block.get();
        if geometry.check_blocks(block, 1).is_err() {
            return Err(FormatError::Super {
                field: "mmp_block",
                value: block,
                why: "no such block",
            });
        }
    }
    if sb.reserved_blocks_count() > geometry.blocks_count() {
        return Err(FormatError::Super {
            field: "reserved_blocks_count",
            value: sb.reserved_blocks_count(),
            why: "more than there are blocks",
        });
    }
    Ok(geometry)
}

/// Inodes that the superblock names, as far as its features use them.
fn named_inodes(sb: &SuperBlock, features: Features) -> Vec<(&'static str, u32)> {
    use crate::Compat;
    let mut named = vec![("last_orphan", sb.last_orphan.get())];
    if features.has_compat(Compat::HAS_JOURNAL) {
        named.push(("journal_inum", sb.journal_inum.get()));
    }
    if features.has_compat(Compat::ORPHAN_FILE) {
        named.push(("orphan_file_inum", sb.orphan_file_inum.get()));
    }
    if features.has_ro_compat(RoCompat::QUOTA) {
        named.push(("usr_quota_inum", sb.usr_quota_inum.get()));
        named.push(("grp_quota_inum", sb.grp_quota_inum.get()));
        named.push(("prj_quota_inum", sb.prj_quota_inum.get()));
    }
    named
}

/// Blocks of superblock and descriptors in `group`: first, and one past the last. Excludes the
/// blocks that are only reserved for descriptors, as only a resize writes them.
fn fixed_range(geometry: &Geometry, group: u32) -> Option<(u64, u64)> {
    let first = geometry.group_first_block(group).ok()?;
    let blocks = geometry.fixed_blocks(group) - geometry.reserved_blocks(group);
    Some((first, first + u64::from(blocks)))
}

/// Checks one part of a group: its blocks must exist, must not overlap superblock or descriptors of
/// any group, and without flex_bg must be in the group itself.
fn check_part(
    geometry: &Geometry,
    group: u32,
    what: &'static str,
    block: u64,
    count: u32,
) -> Result<(), FormatError> {
    let bad = |why| FormatError::GroupLocation {
        group,
        what,
        block,
        why,
    };
    let end = block.saturating_add(u64::from(count));
    geometry
        .check_blocks(block, u64::from(count))
        .map_err(|_| bad("outside the file system"))?;
    let (first, _) = geometry.group_of_block(block)?;
    let (last, _) = geometry.group_of_block(end - 1)?;
    let flex = geometry.features().has_incompat(Incompat::FLEX_BG);
    if !flex && (first != group || last != group) {
        return Err(bad("outside its group, without flex_bg"));
    }
    // An inode table has at most 8 × inode size blocks; it can touch few groups.
    for near in first..=last {
        if let Some((start, stop)) = fixed_range(geometry, near)
            && start < stop
            && block < stop
            && end > start
        {
            return Err(bad("overlaps superblock or descriptors"));
        }
    }
    Ok(())
}

/// Validates one group's descriptor, including its checksum. A valid one names bitmaps and a table
/// inside the file system that overlap neither each other nor a superblock or descriptors, and has
/// counts that are possible.
///
/// An error makes this group unusable, not the file system.
pub fn validate_group(
    group: u32,
    desc: &GroupDesc,
    geometry: &Geometry,
) -> Result<(), FormatError> {
    geometry.check_group(group)?;
    desc.verify_checksum(group, geometry)?;
    let table = geometry.inode_table_blocks();
    let parts = [
        ("block bitmap", desc.block_bitmap(), 1),
        ("inode bitmap", desc.inode_bitmap(), 1),
        ("inode table", desc.inode_table(), table),
    ];
    for (index, (what, block, count)) in parts.iter().enumerate() {
        check_part(geometry, group, what, *block, *count)?;
        for (_, other, length) in &parts[..index] {
            if *block < other + u64::from(*length) && *other < block + u64::from(*count) {
                return Err(FormatError::GroupLocation {
                    group,
                    what,
                    block: *block,
                    why: "overlaps another part of the group",
                });
            }
        }
    }
    let inodes = geometry.inodes_per_group();
    for (field, value, max) in [
        (
            "free_clusters",
            desc.free_clusters(),
            geometry.group_clusters(group),
        ),
        ("free_inodes", desc.free_inodes(), inodes),
        ("used_dirs", desc.used_dirs(), inodes),
        ("itable_unused", desc.itable_unused(), inodes),
    ] {
        // Without checksums itable_unused means nothing.
        if value > max && (field != "itable_unused" || geometry.features().group_csum()) {
            return Err(FormatError::GroupCount {
                group,
                field,
                value,
                max,
            });
        }
    }
    let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    if desc.flags().intersects(uninit) && !geometry.features().group_csum() {
        return Err(FormatError::GroupFlags {
            group,
            flags: desc.flags().bits(),
        });
    }
    Ok(())
}

/// Validates a group's block bitmap: its checksum, and that the group's own bitmaps and table, as
/// far as they are in it, are in use. Not for a group with BLOCK_UNINIT, whose bitmap was never
/// written.
pub fn validate_block_bitmap(
    group: u32,
    bytes: &[u8],
    desc: &GroupDesc,
    geometry: &Geometry,
) -> Result<(), FormatError> {
    bitmap::verify_bitmap(BitmapKind::Block, bytes, group, desc, geometry)?;
    let parts = [
        (desc.block_bitmap(), 1),
        (desc.inode_bitmap(), 1),
        (desc.inode_table(), geometry.inode_table_blocks()),
    ];
    for (block, count) in parts {
        for block in block..block.saturating_add(u64::from(count)) {
            let (at, offset) = geometry.group_of_block(block)?;
            let bit = offset >> geometry.cluster_ratio_bits();
            if at == group && !bitmap::test_bit(bytes, bit) {
                return Err(FormatError::Bitmap {
                    group,
                    kind: BitmapKind::Block,
                    why: "the group's own metadata are free",
                });
            }
        }
    }
    Ok(())
}

/// Verifies the checksum of a group's inode bitmap. Not for a group with INODE_UNINIT.
pub fn validate_inode_bitmap(
    group: u32,
    bytes: &[u8],
    desc: &GroupDesc,
    geometry: &Geometry,
) -> Result<(), FormatError> {
    bitmap::verify_bitmap(BitmapKind::Inode, bytes, group, desc, geometry)
}

impl Inode {
    /// Parses an inode, verifies its checksum and validates it.
    pub fn parse(ino: u32, bytes: &[u8], geometry: &Geometry) -> Result<Self, FormatError> {
        let inode = Self::read(bytes, geometry)?;
        inode.verify_checksum(ino, geometry)?;
        validate_inode(ino, &inode, geometry)?;
        Ok(inode)
    }
}

/// Validates an inode in use or an orphan (not a free one). A valid one has a known type, a size
/// whose last block number fits 32 bits, fields inside the inode, and an attribute block inside the
/// file system. Its map, extents or inline data are validated where they are read.
pub fn validate_inode(ino: u32, inode: &Inode, geometry: &Geometry) -> Result<(), FormatError> {
    let bad = |field, value, why| {
        Err(FormatError::Inode {
            ino,
            field,
            value,
            why,
        })
    };
    geometry.inode_location(ino)?;
    let extra = inode.stored_extra_isize();
    if usize::from(extra) != inode.extra_isize() || !extra.is_multiple_of(4) {
        return bad("extra_isize", u64::from(extra), "not inside the inode");
    }
    let flags = inode.flags();
    let features = geometry.features();
    let inline = flags.contains(InodeFlags::INLINE_DATA);
    if inline && !features.has_incompat(Incompat::INLINE_DATA) {
        return bad(
            "flags",
            u64::from(flags.bits()),
            "inline data without the feature",
        );
    }
    if inline && flags.contains(InodeFlags::EXTENTS) {
        return bad("flags", u64::from(flags.bits()), "inline data and extents");
    }
    if flags.contains(InodeFlags::CASEFOLD) && !features.has_incompat(Incompat::CASEFOLD) {
        return bad(
            "flags",
            u64::from(flags.bits()),
            "casefold without the feature",
        );
    }
    if inode.links() > LINK_MAX {
        return bad("links", u64::from(inode.links()), "more than possible");
    }
    let acl = inode.file_acl();
    if acl != 0 && geometry.check_blocks(acl, 1).is_err() {
        return bad("file_acl", acl, "no such block");
    }
    check_size(ino, inode, geometry)
}

/// Checks type and size.
fn check_size(ino: u32, inode: &Inode, geometry: &Geometry) -> Result<(), FormatError> {
    let size = inode.size(geometry);
    let block_size = u64::from(geometry.block_size());
    let bad = |why| {
        Err(FormatError::Inode {
            ino,
            field: "size",
            value: size,
            why,
        })
    };
    let inline = inode.flags().contains(InodeFlags::INLINE_DATA);
    // An inode that is being deleted has size 0.
    let dying = inode.links() == 0 && size == 0;
    if inline && size > u64::from(geometry.inode_size()) {
        return bad("more than an inode holds");
    }
    match inode.file_type() {
        file_mode::DIR if !inline && !dying && (size == 0 || !size.is_multiple_of(block_size)) => {
            bad("a directory has whole blocks")
        }
        file_mode::SYMLINK if !dying && (size == 0 || size > block_size) => {
            bad("a symbolic link has 1 byte to a block")
        }
        file_mode::DIR | file_mode::REGULAR if size > 1 << (32 + geometry.block_bits()) => {
            bad("more than block numbers reach")
        }
        file_mode::DIR
        | file_mode::REGULAR
        | file_mode::SYMLINK
        | file_mode::FIFO
        | file_mode::SOCKET
        | file_mode::CHAR
        | file_mode::BLOCK => Ok(()),
        _ => Err(FormatError::Inode {
            ino,
            field: "mode",
            value: u64::from(inode.mode()),
            why: "no known type",
        }),
    }
}
