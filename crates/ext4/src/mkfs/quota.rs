//! Quota files of a new file system: the usage of the directories that it begins with.

use std::collections::BTreeMap;

use sapwood_ext4_format::{Geometry, Inode, QuotaEntry, QuotaKind, special_ino};

use crate::quota_file::{GRACE, build};
use crate::quota_table::Charge;

/// The bytes of a quota file, in blocks of 1 KiB.
pub(super) fn content(kind: QuotaKind, inodes: &[(u32, Inode)], geometry: &Geometry) -> Vec<u8> {
    let mut usage: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let counted = [special_ino::ROOT, special_ino::LOST_FOUND];
    for (_, inode) in inodes.iter().filter(|(ino, _)| counted.contains(ino)) {
        let charge = Charge::of(inode, geometry);
        let sum = usage.entry(charge.owners.id(kind)).or_default();
        sum.0 += charge.space;
        sum.1 += 1;
    }
    let entry = |(id, (space, inodes)): (&u32, &(u64, u64))| QuotaEntry {
        id: (*id).into(),
        space: (*space).into(),
        inodes: (*inodes).into(),
        ..QuotaEntry::default()
    };
    let entries: Vec<QuotaEntry> = usage.iter().map(entry).collect();
    build(kind, (GRACE, GRACE), &entries)
}
