//! All inodes, in the order of the tables: fields, attributes, maps.

use std::sync::Arc;

use sapwood_ext4_format::{
    CREATOR_HURD, Compat, GroupFlags, INLINE_IN_BLOCKS, INLINE_XATTR, Incompat, Inode, InodeFlags,
    RoCompat, XattrValue, bitmap, dir_type, file_mode, special_ino, validate_inode, xattr_index,
};

use super::claims::Taken;
use super::finding::Finding;
use super::report::{CheckError, Phase};
use super::state::{Check, View};
use super::walk;
use super::xattrs::Attributes;

/// Bytes of a table that are read at once.
const CHUNK: u32 = 64 << 10;

impl Check<'_> {
    /// Checks all inode tables.
    pub(super) fn all_inodes(&mut self) -> Result<(), CheckError> {
        let view = Arc::clone(&self.view);
        for group in 0..view.geometry.group_count() {
            self.tell(Phase::Inodes, group)?;
            self.table(&view, group)?;
        }
        Ok(())
    }

    /// Inodes of a group's table that were ever used, from the descriptor.
    fn ever_used(&self, view: &View, group: u32) -> u32 {
        let all = view.geometry.inodes_per_group();
        let Some(known) = self.groups.get(group as usize) else {
            return 0;
        };
        if !view.geometry.features().group_csum() || !known.sealed {
            return all;
        }
        if known.desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return 0;
        }
        all.saturating_sub(known.desc.itable_unused())
    }

    /// Inodes of a group's table that are examined, including those that the bitmap has in use.
    fn looked_at(&self, view: &View, group: u32, ever_used: u32) -> u32 {
        let Some(known) = self.groups.get(group as usize) else {
            return 0;
        };
        let all = view.geometry.inodes_per_group();
        if ever_used == all || known.desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return ever_used;
        }
        let Ok(bits) = view.block(known.desc.inode_bitmap()) else {
            return ever_used;
        };
        let last = (ever_used..all)
            .rev()
            .find(|bit| bitmap::test_bit(&bits, *bit));
        last.map_or(ever_used, |last| last + 1)
    }

    fn table(&mut self, view: &View, group: u32) -> Result<(), CheckError> {
        let geometry = &view.geometry;
        let Some(known) = self.groups.get(group as usize) else {
            return Ok(());
        };
        if !known.located {
            return Ok(());
        }
        let table = known.desc.inode_table();
        let ever_used = self.ever_used(view, group);
        let count = self.looked_at(view, group, ever_used);
        let per_block = geometry.inodes_per_block().max(1);
        let blocks = count.div_ceil(per_block);
        let step = (CHUNK / geometry.block_size()).max(1);
        let size = usize::from(geometry.inode_size());
        for first in (0..blocks).step_by(step as usize) {
            let many = step.min(blocks - first);
            let bytes = match view.blocks(table.saturating_add(first.into()), many) {
                Ok(bytes) => bytes,
                Err(finding) => {
                    self.found(finding);
                    self.incomplete = true;
                    self.names_incomplete = true;
                    self.tables_incomplete = true;
                    continue;
                }
            };
            for (index, raw) in (first * per_block..count).zip(bytes.chunks_exact(size)) {
                let Some(ino) = geometry.ino(group, index) else {
                    break;
                };
                self.one(view, ino, raw, index >= ever_used);
            }
            self.tell(Phase::Inodes, group)?;
        }
        Ok(())
    }

    fn one(&mut self, view: &View, ino: u32, raw: &[u8], unused_part: bool) {
        let reserved = ino < view.geometry.first_ino();
        let empty = raw.iter().all(|byte| *byte == 0);
        if reserved {
            self.note_in_use(ino);
        }
        if empty && ino != special_ino::ROOT && !self.orphans.contains(&ino) {
            return self.empty_inode(view, ino);
        }
        let inode = match Inode::read(raw, &view.geometry) {
            Ok(inode) => inode,
            Err(error) => return self.found(Finding::InodeBad { ino, error }),
        };
        if reserved && ino != special_ino::ROOT {
            return self.reserved(view, ino, &inode);
        }
        if inode.links() == 0 && !self.orphans.contains(&ino) && ino != special_ino::ROOT {
            let deleted = inode.dtime() != 0 && !names_an_inode(view, inode.dtime());
            if !deleted && (inode.mode() != 0 || inode.dtime() != 0) {
                self.found(Finding::NotDeleted { ino });
            }
            if !unused_part && let Err(error) = inode.verify_checksum(ino, &view.geometry) {
                self.found(Finding::InodeChecksum { ino, error });
            }
            return;
        }
        if unused_part {
            let group = view
                .geometry
                .inode_location(ino)
                .map_or(0, |(group, _)| group);
            self.found(Finding::InodeInUnused { group, ino });
        }
        self.in_use(view, ino, &inode);
    }

    fn note_in_use(&mut self, ino: u32) {
        if let Some(note) = self.inodes.get_mut(ino) {
            note.in_use = true;
        }
    }

    /// Checks an inode in use, also a reserved one.
    pub(super) fn in_use(&mut self, view: &View, ino: u32, inode: &Inode) {
        self.report.stats.inodes += 1;
        let orphan = self.orphans.contains(&ino);
        if let Err(error) = inode.verify_checksum(ino, &view.geometry) {
            self.found(Finding::InodeChecksum { ino, error });
        }
        let valid = validate_inode(ino, inode, &view.geometry);
        if let Some(note) = self.inodes.get_mut(ino) {
            note.in_use = true;
            note.bad = valid.is_err();
            note.orphan = orphan;
            note.links = inode.links();
            note.kind = dir_type::from_mode(inode.mode());
            note.is_value = inode.flags().contains(InodeFlags::EA_INODE);
            note.encrypted = inode.flags().contains(InodeFlags::ENCRYPT);
        }
        if let Err(error) = valid {
            self.incomplete = true;
            self.usage.incomplete = true;
            self.names_incomplete |= inode.is_dir();
            return self.found(Finding::InodeBad { ino, error });
        }
        if inode.dtime() != 0 && !orphan {
            self.found(Finding::DeletedInUse { ino });
        }
        match inode.file_type() {
            file_mode::DIR => self.report.stats.directories += 1,
            file_mode::REGULAR => self.report.stats.files += 1,
            file_mode::SYMLINK => self.report.stats.symlinks += 1,
            _ => {}
        }
        for why in field_faults(view, ino, inode) {
            self.found(Finding::InodeField { ino, why });
        }
        let attributes = self.attributes(view, ino, inode);
        self.encryption(view, ino, inode, &attributes);
        let mut taken = Taken::default();
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            self.inline(view, ino, inode, &attributes);
        } else if walk::has_map(view, inode) {
            taken = self.claim_map(ino, inode);
            if !orphan && !taken.incomplete {
                self.size_against_map(view, ino, inode, &taken);
            }
        }
        if inode.is_symlink() && !inode.flags().contains(InodeFlags::ENCRYPT) {
            self.symlink(view, ino, inode, &attributes);
        }
        if taken.incomplete || attributes.incomplete {
            self.usage.incomplete = true;
        } else {
            self.sectors(view, ino, inode, &taken, &attributes);
        }
    }

    fn sectors(
        &mut self,
        view: &View,
        ino: u32,
        inode: &Inode,
        taken: &Taken,
        attributes: &Attributes,
    ) {
        let found = inode.sectors(&view.geometry);
        let cluster = u64::from(view.geometry.cluster_size() / 512);
        let clusters = taken.clusters.saturating_add(attributes.clusters);
        let expected = clusters.saturating_mul(cluster);
        self.charge(view, ino, inode, expected.saturating_mul(512));
        if found != expected {
            self.found(Finding::InodeSectors {
                ino,
                found,
                expected,
            });
        }
    }

    fn size_against_map(&mut self, view: &View, ino: u32, inode: &Inode, taken: &Taken) {
        let size = inode.size(&view.geometry);
        let block = u64::from(view.geometry.block_size());
        let good = match inode.file_type() {
            file_mode::DIR => size == taken.end.saturating_mul(block),
            file_mode::SYMLINK => taken.end == 1,
            _ if inode.flags().contains(InodeFlags::VERITY) => true,
            _ => {
                let last = taken.written_end.saturating_sub(1);
                // The size of a file whose blocks have all numbers of 32 bits.
                let most = 1 << (32 + view.geometry.block_bits());
                (last.saturating_mul(block)..most).contains(&size)
            }
        };
        if !good {
            self.found(Finding::InodeSize {
                ino,
                size,
                blocks: taken.end,
            });
        }
    }

    /// Checks data in the inode.
    fn inline(&mut self, view: &View, ino: u32, inode: &Inode, attributes: &Attributes) {
        if attributes.incomplete {
            return;
        }
        let size = inode.size(&view.geometry);
        let rest = attributes.set.get(xattr_index::SYSTEM, INLINE_XATTR);
        let found = match rest.map(|attribute| &attribute.value) {
            Some(XattrValue::Bytes(rest)) => INLINE_IN_BLOCKS as u64 + rest.len() as u64,
            _ => {
                let why = "data in the inode without its attribute";
                return self.found(Finding::InodeField { ino, why });
            }
        };
        let good = if inode.is_dir() {
            size == found
        } else {
            size <= found
        };
        if !good {
            self.found(Finding::InlineSize { ino, found, size });
        }
    }

    /// Checks the target of a symbolic link.
    fn symlink(&mut self, view: &View, ino: u32, inode: &Inode, attributes: &Attributes) {
        let mut target = Vec::new();
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            target.extend(inode.block());
            let rest = attributes.set.get(xattr_index::SYSTEM, INLINE_XATTR);
            if let Some(XattrValue::Bytes(rest)) = rest.map(|attribute| &attribute.value) {
                target.extend(rest);
            }
        } else if walk::is_fast(view, inode) {
            target.extend(inode.block());
        } else {
            let mut first = None;
            let mut visit = |piece| {
                if let walk::Piece::Data { physical, .. } = piece {
                    first = first.or(Some(physical));
                }
                true
            };
            walk::walk(view, ino, inode, &mut visit);
            let Some(Ok(bytes)) = first.map(|block| view.block(block)) else {
                return;
            };
            target = bytes;
        }
        let size = usize::try_from(inode.size(&view.geometry)).unwrap_or(usize::MAX);
        let Some(name) = target.get(..size) else {
            let why = "shorter than its size";
            return self.found(Finding::SymlinkBad { ino, why });
        };
        let ends = target.get(size).is_none_or(|byte| *byte == 0);
        if name.contains(&0) {
            let why = "its target has a NUL";
            self.found(Finding::SymlinkBad { ino, why });
        } else if !ends {
            let why = "its target does not end where the size says";
            self.found(Finding::SymlinkBad { ino, why });
        }
    }
}

/// Contradictions between fields of an inode.
fn field_faults(view: &View, ino: u32, inode: &Inode) -> Vec<&'static str> {
    let kind = inode.file_type();
    let mapped = [file_mode::DIR, file_mode::REGULAR, file_mode::SYMLINK].contains(&kind);
    let faults = without_feature(view, inode).into_iter();
    let faults = faults.chain(of_kind(view, ino, inode, mapped));
    let faults = faults.chain([(has_old_time(inode), "a time before 1970 in a wrong form")]);
    faults.filter(|(is, _)| *is).map(|(_, why)| why).collect()
}

/// Whether a time of deletion is the number of an inode, as in a list of orphans. `e2fsck` takes it
/// for one, unless the file system was changed when the clock had such a time.
fn names_an_inode(view: &View, dtime: u32) -> bool {
    let most = view.geometry.inodes_count();
    let clock = [view.sb.wtime(), view.sb.mkfs_time()];
    (1..=most).contains(&dtime) && clock.iter().all(|time| *time > most.into())
}

/// Whether a time is from April 2310 to 2378, to which Linux before 3.14 changed times before 1970:
/// both high bits set with a negative base.
fn has_old_time(inode: &Inode) -> bool {
    let wrong = (3 << 32) - (1 << 31)..3 << 32;
    let times = [inode.atime(), inode.mtime(), inode.ctime()];
    let mut times = times.into_iter().chain(inode.crtime());
    times.any(|time| wrong.contains(&time.seconds))
}

/// Properties of an inode that lack their feature.
fn without_feature(view: &View, inode: &Inode) -> [(bool, &'static str); 11] {
    let base = inode.base();
    let hurd = view.sb.creator_os.get() == CREATOR_HURD;
    let (features, flags) = (view.geometry.features(), inode.flags());
    let has = |flag| flags.contains(flag);
    let large = inode.is_regular() && inode.size(&view.geometry) >= 1 << 31;
    let large_dir = inode.is_dir() && inode.base().size_hi.get() != 0;
    [
        (
            has(InodeFlags::EXTENTS) && !features.has_incompat(Incompat::EXTENTS),
            "extents without the feature",
        ),
        (
            has(InodeFlags::HUGE_FILE) && !features.has_ro_compat(RoCompat::HUGE_FILE),
            "counts blocks without the feature",
        ),
        (
            has(InodeFlags::IMAGIC) && !features.has_compat(Compat::IMAGIC_INODES),
            "imagic flag without the feature",
        ),
        (
            has(InodeFlags::ENCRYPT) && !features.has_incompat(Incompat::ENCRYPT),
            "encrypted without the feature",
        ),
        (
            has(InodeFlags::VERITY) && !features.has_ro_compat(RoCompat::VERITY),
            "verity without the feature",
        ),
        (
            has(InodeFlags::EA_INODE) && !features.has_incompat(Incompat::EA_INODE),
            "an attribute's value without the feature",
        ),
        (
            large && !features.has_ro_compat(RoCompat::LARGE_FILE),
            "a large file without the feature",
        ),
        (
            large_dir && !features.has_incompat(Incompat::LARGEDIR),
            "a large directory without the feature",
        ),
        (
            inode.file_acl() != 0 && !features.has_compat(Compat::EXT_ATTR),
            "an attribute block without the feature",
        ),
        (
            base.file_acl_hi.get() != 0 && !hurd && !features.has_incompat(Incompat::BIT64),
            "an attribute block of more than 32 bits without the feature",
        ),
        (
            base.blocks_hi.get() != 0 && !hurd && !features.has_ro_compat(RoCompat::HUGE_FILE),
            "blocks of more than 32 bits without the feature",
        ),
    ]
}

/// Properties that an inode of its type cannot have. `mapped`: its type has data.
fn of_kind(view: &View, ino: u32, inode: &Inode, mapped: bool) -> [(bool, &'static str); 12] {
    let flags = inode.flags();
    let has = |flag| flags.contains(flag);
    let size = inode.size(&view.geometry);
    let index = inode.is_dir() && view.geometry.features().has_compat(Compat::DIR_INDEX);
    let pointers =
        walk::has_map(view, inode) && !has(InodeFlags::EXTENTS) && ino != special_ino::RESIZE;
    let tail = inode.block().iter().skip(8);
    let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    [
        (
            has(InodeFlags::EXTENTS) && !mapped,
            "extents in what has no data",
        ),
        (
            has(InodeFlags::INDEX) && !index,
            "a hash tree in what can have none",
        ),
        (
            has(InodeFlags::CASEFOLD) && !inode.is_dir(),
            "casefold flag on what is no directory",
        ),
        (
            has(InodeFlags::INLINE_DATA) && !mapped,
            "inline data in what has no data",
        ),
        (
            flags.intersects(fixed) && !inode.is_regular() && !inode.is_dir(),
            "immutable or append-only flag on what is no file and no directory",
        ),
        (!mapped && size != 0, "a special file with a size"),
        (
            !mapped && tail.copied().any(|byte| byte != 0),
            "a special file with a map",
        ),
        (
            pointers && size > view.geometry.max_indirect_file_size(),
            "larger than a block map reaches",
        ),
        (
            ino == special_ino::ROOT && !inode.is_dir(),
            "the root is no directory",
        ),
        (
            inode.base().obso_faddr.get() != 0,
            "the address of a fragment",
        ),
        (
            has(InodeFlags::EA_INODE) && !inode.is_regular(),
            "an attribute's value that is no file",
        ),
        (
            !inode.is_regular() && !inode.is_dir() && inode.base().size_hi.get() != 0,
            "a size of more than 32 bits in what is no file",
        ),
    ]
}
