//! Reserved inodes.

use sapwood_ext4_format::{
    Compat, Geometry, INDIRECT_DIRECT, Inode, InodeFlags, QuotaKind, RoCompat, indirect_pointers,
    special_ino,
};

use super::finding::Finding;
use super::state::{Check, View};

/// Index of the pointer with two levels below.
const DOUBLE: usize = INDIRECT_DIRECT as usize + 1;

impl Check<'_> {
    /// Checks an inode that is all zeros.
    pub(super) fn empty_inode(&mut self, view: &View, ino: u32) {
        let features = view.geometry.features();
        let missing = match ino {
            special_ino::RESIZE => features.has_compat(Compat::RESIZE_INODE),
            special_ino::JOURNAL => view.sb.journal_inum.get() == ino,
            _ => false,
        };
        if missing {
            let why = "is empty";
            self.found(Finding::ReservedInode { ino, why });
        }
    }

    /// Checks an inode below the first non-reserved one, except the root.
    pub(super) fn reserved(&mut self, view: &View, ino: u32, inode: &Inode) {
        let features = view.geometry.features();
        match ino {
            special_ino::BAD_BLOCKS => {
                self.checksum_of_reserved(view, ino, inode);
                // e2fsck takes such a time for the next inode of a list of orphans.
                if (1..=view.geometry.inodes_count()).contains(&inode.dtime()) {
                    self.found(Finding::DeletedInUse { ino });
                }
                self.claim_map(ino, inode);
            }
            special_ino::RESIZE if features.has_compat(Compat::RESIZE_INODE) => {
                self.resize_inode(view, inode);
            }
            _ if self.is_named(view, ino) => self.in_use(view, ino, inode),
            // The kernel frees its block when it removes the feature, and keeps the inode.
            special_ino::RESIZE if inode.block().iter().all(|byte| *byte == 0) => {
                self.checksum_of_reserved(view, ino, inode);
            }
            _ if inode.links() == 0 && inode.mode() == 0 && !holds_blocks(ino, inode) => {
                self.checksum_of_reserved(view, ino, inode);
                let (found, expected) = (inode.sectors(&view.geometry), 0);
                if found != expected {
                    self.found(Finding::InodeSectors {
                        ino,
                        found,
                        expected,
                    });
                }
            }
            special_ino::RESIZE | special_ino::JOURNAL => {
                let why = "is not in use, and yet not empty";
                self.found(Finding::ReservedInode { ino, why });
                self.in_use(view, ino, inode);
            }
            special_ino::BOOT_LOADER => {
                if inode.is_dir() {
                    let why = "has another type than a file";
                    self.found(Finding::ReservedInode { ino, why });
                }
                self.in_use(view, ino, inode);
            }
            _ => {
                let why = "is not in use, and yet not empty";
                self.found(Finding::ReservedInode { ino, why });
                self.in_use(view, ino, inode);
            }
        }
    }

    fn checksum_of_reserved(&mut self, view: &View, ino: u32, inode: &Inode) {
        if let Err(error) = inode.verify_checksum(ino, &view.geometry) {
            self.found(Finding::InodeChecksum { ino, error });
        }
    }

    /// Whether the superblock names this inode, so that it needs no name in a directory.
    pub(super) fn is_named(&self, view: &View, ino: u32) -> bool {
        named(view).iter().any(|(named, _)| *named == ino)
    }

    /// Checks the inodes that the superblock names.
    pub(super) fn named_inodes(&mut self, view: &View) {
        for (ino, quota) in named(view) {
            let note = self.inodes.get(ino);
            let reserved = |why| Finding::ReservedInode { ino, why };
            if !note.in_use || note.bad {
                self.found(reserved("the superblock names it, but it is not in use"));
                continue;
            }
            if note.kind != sapwood_ext4_format::dir_type::REGULAR {
                self.found(reserved("the superblock names it, but it is no file"));
                continue;
            }
            if let Some(kind) = quota {
                self.quota_file(view, ino, kind);
            }
        }
    }

    /// Checks the inode of the blocks reserved for descriptors: its two-level block names the
    /// reserved blocks of group 0, each of which names its copies in the other groups.
    fn resize_inode(&mut self, view: &View, inode: &Inode) {
        let ino = special_ino::RESIZE;
        self.checksum_of_reserved(view, ino, inode);
        let geometry = &view.geometry;
        let why = "is no file with one link and one block of two levels";
        let words = indirect_pointers(inode.block()).unwrap_or_default();
        let double = words.get(DOUBLE).map_or(0, |word| u64::from(word.get()));
        let others = words.iter().enumerate();
        let others = others
            .filter(|(at, word)| *at != DOUBLE && word.get() != 0)
            .count();
        let other_map = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
        let shape = inode.is_regular()
            && inode.links() == 1
            && others == 0
            && !inode.flags().intersects(other_map);
        if !shape || geometry.check_blocks(double, 1).is_err() || double == 0 {
            self.incomplete = true;
            return self.found(Finding::ReservedInode { ino, why });
        }
        if self.used.insert(double) || self.system.contains(double) {
            self.found(Finding::BlocksShared {
                ino,
                block: double,
                count: 1,
            });
        }
        let bytes = match view.block(double) {
            Ok(bytes) => bytes,
            Err(finding) => return self.found(finding),
        };
        let attributes = self.attributes(view, ino, inode);
        let count = self.reserved_blocks(view, &bytes, double);
        let size = inode.size(geometry);
        if size >= 1 << 31 && !geometry.features().has_ro_compat(RoCompat::LARGE_FILE) {
            let why = "is a large file, without the feature";
            self.found(Finding::ReservedInode { ino, why });
        }
        if size < last_reserved(geometry, &bytes) || size > geometry.max_indirect_file_size() {
            let blocks = last_reserved(geometry, &bytes) / u64::from(geometry.block_size());
            self.found(Finding::InodeSize { ino, size, blocks });
        }
        let block = u64::from(geometry.cluster_size() / 512);
        let expected = (count + 1 + attributes.clusters).saturating_mul(block);
        let found = inode.sectors(geometry);
        if found != expected {
            self.found(Finding::InodeSectors {
                ino,
                found,
                expected,
            });
        }
    }

    /// Checks the entries of the two-level block. Returns the number of blocks named.
    fn reserved_blocks(&mut self, view: &View, double: &[u8], at: u64) -> u64 {
        let geometry = &view.geometry;
        let reserved = u64::from(geometry.reserved_blocks(0));
        let fixed = u64::from(geometry.fixed_blocks(0));
        let start = geometry.group_first_block(0).unwrap_or_default();
        let first = start + fixed.saturating_sub(reserved);
        let pointers = indirect_pointers(double).unwrap_or_default();
        let mut wanted = vec![0_u64; pointers.len()];
        for block in first..first + reserved {
            // Slot n names block n of the descriptor table.
            let slot = block.saturating_sub(geometry.super_block() + 1);
            let slots = (pointers.len() as u64).max(1);
            if let Some(place) = wanted.get_mut((slot % slots) as usize) {
                *place = block;
            }
        }
        let mut count = 0;
        for (pointer, wanted) in pointers.iter().zip(wanted) {
            if u64::from(pointer.get()) != wanted {
                let why = "a reserved block of group 0 is not named where it should be";
                self.found(Finding::ResizeBad { block: at, why });
            } else if wanted != 0 {
                count += 1 + self.reserved_copies(view, wanted, wanted - start);
            }
        }
        count
    }

    /// Checks that a reserved block of group 0 names the corresponding blocks of the groups with
    /// copies.
    fn reserved_copies(&mut self, view: &View, block: u64, place: u64) -> u64 {
        let geometry = &view.geometry;
        let bytes = match view.block(block) {
            Ok(bytes) => bytes,
            Err(finding) => {
                self.found(finding);
                return 0;
            }
        };
        let mut groups = (1..geometry.group_count()).filter(|group| geometry.has_super(*group));
        let mut count = 0;
        for pointer in indirect_pointers(&bytes).unwrap_or_default() {
            let group = groups.next();
            let wanted = group.and_then(|group| geometry.group_first_block(group).ok());
            let wanted = wanted.map_or(0, |first| first + place);
            if u64::from(pointer.get()) != wanted {
                let why = "a reserved block names another than its copy";
                self.found(Finding::ResizeBad { block, why });
                return count;
            }
            count += u64::from(wanted != 0);
        }
        count
    }
}

/// Whether an inode for a quota has blocks although quotas are off.
fn holds_blocks(ino: u32, inode: &Inode) -> bool {
    let quota = ino == special_ino::USER_QUOTA || ino == special_ino::GROUP_QUOTA;
    quota && (inode.base().blocks_lo.get() != 0 || inode.block().iter().take(4).any(|b| *b != 0))
}

/// Bytes up to the block of the resize inode that names the last reserved block.
fn last_reserved(geometry: &Geometry, double: &[u8]) -> u64 {
    let pointers = indirect_pointers(double).unwrap_or_default();
    let Some(last) = pointers.iter().rposition(|pointer| pointer.get() != 0) else {
        return 0;
    };
    let per_block = u64::from(geometry.block_size() / 4);
    let before = u64::from(INDIRECT_DIRECT) + per_block + last as u64 * per_block;
    before.saturating_mul(geometry.block_size().into())
}

/// Inodes that the superblock names, with the kind of a quota file.
pub(super) fn named(view: &View) -> Vec<(u32, Option<QuotaKind>)> {
    let (features, sb) = (view.geometry.features(), &view.sb);
    let mut named = Vec::new();
    if features.has_compat(Compat::HAS_JOURNAL) {
        named.push((sb.journal_inum.get(), None));
    }
    if features.has_compat(Compat::ORPHAN_FILE) {
        named.push((sb.orphan_file_inum.get(), None));
    }
    if features.has_ro_compat(RoCompat::QUOTA) {
        named.push((sb.usr_quota_inum.get(), Some(QuotaKind::User)));
        named.push((sb.grp_quota_inum.get(), Some(QuotaKind::Group)));
        named.push((sb.prj_quota_inum.get(), Some(QuotaKind::Project)));
    }
    named.retain(|(ino, _)| *ino != 0 && *ino <= view.geometry.inodes_count());
    named
}
