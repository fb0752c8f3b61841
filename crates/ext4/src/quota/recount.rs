//! Counts the usage of all owners again.

use std::collections::HashMap;

use sapwood_ext4_format::{BitmapKind, Inode as RawInode, QuotaKind, bitmap};

use super::{add, put};
use crate::inode::table_place;
use crate::quota_table::{Charge, KindTable};
use crate::volume::Volume;
use crate::{Error, Result};

/// Space and inodes by kind and owner.
type Usage = HashMap<(u32, u32), (u64, u64)>;

/// Sets the usage in the quota files to the sum over all inodes in use. For a file system whose
/// inodes were changed by records of fast commits, which do not change quota files. No operation
/// runs meanwhile. True if any usage was another one.
///
/// # Errors
/// A bitmap or an inode is damaged; errors of the journal. Without space for the entry of an owner,
/// only that owner is not counted.
pub(crate) fn recount(volume: &Volume) -> Result<bool> {
    let usage = count(volume)?;
    let mut changed = false;
    for table in volume.quota.kinds() {
        let number = table.kind.magic();
        let owners = usage.keys().filter(|(kind, _)| *kind == number);
        for (_, id) in owners {
            if table.has(*id) {
                continue;
            }
            match add(volume, table, *id) {
                Err(Error::NoSpace) => log::warn!(
                    "{:?} quota: no space for the entry of {id}; run e2fsck",
                    table.kind
                ),
                added => added?,
            }
        }
        let known: Vec<u32> = table.entries.lock().keys().copied().collect();
        for id in known {
            let found = usage.get(&(number, id)).copied().unwrap_or_default();
            changed |= set(volume, table, id, found)?;
        }
    }
    Ok(changed)
}

pub(super) fn count(volume: &Volume) -> Result<Usage> {
    let geometry = &volume.geometry;
    let mut usage = Usage::new();
    for number in 0..volume.groups.count() {
        let group = volume.groups.group(number)?;
        if group.is_unwritten(BitmapKind::Inode) {
            continue;
        }
        let used = volume
            .groups
            .bitmap(group, BitmapKind::Inode)?
            .read()
            .to_vec();
        for index in 0..geometry.inodes_per_group() {
            let ino = number * geometry.inodes_per_group() + index + 1;
            if !bitmap::test_bit(&used, index) || volume.is_special(ino) {
                continue;
            }
            let (buffer, offset) = table_place(volume, ino)?;
            let raw = {
                let content = buffer.read();
                RawInode::read(content.get(offset..).unwrap_or_default(), geometry)?
            };
            if raw.mode() == 0 {
                continue;
            }
            let charge = Charge::of(&raw, geometry);
            for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
                let sum = usage
                    .entry((kind.magic(), charge.owners.id(kind)))
                    .or_default();
                sum.0 = sum.0.saturating_add(charge.space);
                sum.1 += 1;
            }
        }
    }
    Ok(usage)
}

/// True if the entry had another usage.
fn set(volume: &Volume, table: &KindTable, id: u32, (space, inodes): (u64, u64)) -> Result<bool> {
    let (block, offset, values) = {
        let mut entries = table.entries.lock();
        let Some(entry) = entries.get_mut(&id) else {
            return Ok(false);
        };
        let values = &mut entry.values;
        if (values.space.get(), values.inodes.get()) == (space, inodes) {
            return Ok(false);
        }
        (values.space, values.inodes) = (space.into(), inodes.into());
        (entry.block, entry.offset, values.stored())
    };
    let h = volume.start(1)?;
    let buffer = volume.block(block)?;
    put(&mut h.modify(&buffer)?, offset, values.bytes());
    Ok(true)
}
