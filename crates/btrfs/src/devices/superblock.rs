//! Superblocks: finding the newest one of a device, features, and writing the superblocks of every
//! device.
//!
//! Each device has up to three copies at fixed offsets. A commit writes all of them, the log only
//! the first.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use sapwood_block::Device;
use sapwood_btrfs_format::{
    CompatRo, DevItem, Incompat, MAGIC, SUPER_OFFSETS, SUPER_SIZE, SuperBlock, SuperError,
    SuperFlags, validate_super,
};

use crate::{Error, Result};

/// Superblock flags for an interrupted conversion by a tool, or for a dump without data.
const REFUSED: SuperFlags = SuperFlags::METADUMP
    .union(SuperFlags::METADUMP_V2)
    .union(SuperFlags::CHANGING_FSID)
    .union(SuperFlags::CHANGING_FSID_V2)
    .union(SuperFlags::CHANGING_BG_TREE)
    .union(SuperFlags::CHANGING_DATA_CSUM)
    .union(SuperFlags::CHANGING_META_CSUM);

/// The superblocks of one commit: fields that all devices share, and the item of each device.
///
/// It dereferences to the shared superblock, whose `dev_item` means nothing.
#[derive(Clone, Debug)]
pub(crate) struct SuperSet {
    shared: SuperBlock,
    items: BTreeMap<u64, DevItem>,
}

impl SuperSet {
    /// `items` are the items in the devices' own superblocks, by device id.
    pub(crate) fn new(shared: SuperBlock, items: BTreeMap<u64, DevItem>) -> Self {
        Self { shared, items }
    }

    /// The superblock of a device; `None` if there is no such device.
    pub(crate) fn of(&self, devid: u64) -> Option<SuperBlock> {
        let dev_item = *self.items.get(&devid)?;
        Some(SuperBlock {
            dev_item,
            ..self.shared
        })
    }

    /// Removes all devices but these from the file system.
    pub(crate) fn keep_devices(&mut self, ids: &[u64]) {
        self.items.retain(|devid, _| ids.contains(devid));
        self.shared.num_devices = (ids.len() as u64).into();
    }

    /// Adds a device to the file system.
    pub(crate) fn add_device(&mut self, item: DevItem) {
        self.items.insert(item.devid.get(), item);
    }

    /// Sets size and bytes in use of a device.
    pub(crate) fn set_device(&mut self, devid: u64, total_bytes: u64, bytes_used: u64) {
        if let Some(item) = self.items.get_mut(&devid) {
            item.total_bytes = total_bytes.into();
            item.bytes_used = bytes_used.into();
        }
    }
}

impl Deref for SuperSet {
    type Target = SuperBlock;

    fn deref(&self) -> &SuperBlock {
        &self.shared
    }
}

impl DerefMut for SuperSet {
    fn deref_mut(&mut self) -> &mut SuperBlock {
        &mut self.shared
    }
}

/// Names of features as the usual tools print them: `mixed-backref`.
fn feature_names<'n>(names: impl Iterator<Item = &'n str>, unknown: u64) -> String {
    let mut all: Vec<String> = names.map(|n| n.to_lowercase().replace('_', "-")).collect();
    if unknown != 0 {
        all.push(format!("unknown ({unknown:#x})"));
    }
    all.join(", ")
}

/// The newest valid superblock of a device, the first copy if several are as new.
///
/// # Errors
/// [`Error::NotBtrfs`] if no copy has the magic number, [`Error::Superblock`] with the reason of
/// the first that has it if none is valid, [`Error::Device`].
pub(crate) fn read_newest(device: &dyn Device) -> Result<SuperBlock> {
    let mut newest: Option<SuperBlock> = None;
    let mut reason: Option<SuperError> = None;
    for offset in copies(device.size()) {
        let mut bytes = [0; SUPER_SIZE];
        device.read_at(offset, &mut bytes)?;
        match validate_super(&bytes, offset) {
            Ok(sb) => {
                let older = |n: &SuperBlock| n.generation.get() < sb.generation.get();
                // A copy with another fsid is left over from an older, larger file system.
                let stranger = newest.as_ref().is_some_and(|n| n.fsid != sb.fsid);
                if newest.as_ref().is_none_or(older) && !stranger {
                    newest = Some(sb);
                }
            }
            Err(SuperError::Magic { .. }) => {}
            Err(err) => {
                log::warn!("{}: {err}", device.name());
                reason.get_or_insert(err);
            }
        }
    }
    let device = device.name().to_owned();
    match (newest, reason) {
        (Some(sb), _) => Ok(sb),
        (None, Some(reason)) => Err(Error::Superblock {
            device,
            reason: reason.to_string(),
        }),
        (None, None) => Err(Error::NotBtrfs { device }),
    }
}

/// Offsets of the copies that fit on a device of `size` bytes.
pub(crate) fn copies(size: u64) -> impl Iterator<Item = u64> {
    let fits = move |offset: &u64| offset + SUPER_SIZE as u64 <= size;
    SUPER_OFFSETS.into_iter().filter(fits)
}

/// Refuses features that this engine does not support.
///
/// # Errors
/// [`Error::UnsupportedFeature`], [`Error::ReadOnlyFeature`] unless `read_only`.
pub(crate) fn check_features(sb: &SuperBlock, read_only: bool) -> Result<()> {
    let odd = sb.incompat().difference(Incompat::SUPPORTED);
    if !odd.is_empty() {
        let names = feature_names(odd.iter_names().map(|(n, _)| n), odd.unknown().bits());
        return Err(Error::UnsupportedFeature(names));
    }
    let odd = sb.super_flags().intersection(REFUSED);
    if !odd.is_empty() {
        let names = feature_names(odd.iter_names().map(|(n, _)| n), 0);
        return Err(Error::UnsupportedFeature(names));
    }
    let odd = sb.compat_ro().difference(CompatRo::SUPPORTED);
    if !odd.is_empty() && !read_only {
        let names = feature_names(odd.iter_names().map(|(n, _)| n), odd.unknown().bits());
        return Err(Error::ReadOnlyFeature(names));
    }
    if sb.super_flags().contains(SuperFlags::SEEDING) && !read_only {
        return Err(Error::ReadOnlyFeature("seeding".to_owned()));
    }
    Ok(())
}

/// The bytes of the copy of a superblock at `offset`.
///
/// # Errors
/// [`Error::UnsupportedFeature`]: its checksum algorithm.
pub(crate) fn copy_at(sb: &SuperBlock, offset: u64) -> Result<Vec<u8>> {
    let Some(kind) = sb.checksum_kind() else {
        return Err(Error::UnsupportedFeature("checksum algorithm".to_owned()));
    };
    let mut copy = *sb;
    copy.bytenr = offset.into();
    let mut bytes = copy.bytes().to_vec();
    kind.seal_block(&mut bytes);
    Ok(bytes)
}

/// Has a device watch the first copy of its superblock, which every commit and log writes.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn watch(device: &dyn Device) -> Result<()> {
    let Some(offset) = copies(device.size()).next() else {
        return Ok(());
    };
    Ok(device.watch(offset, size_of::<SuperBlock>() as u64)?)
}

/// Writes only the first copy of a superblock, with forced unit access: the blocks that it refers
/// to are durable already. The other copies stay as the last transaction left them, without a log.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn write_first(device: &dyn Device, sb: &SuperBlock) -> Result<()> {
    let Some(offset) = copies(device.size()).next() else {
        return Ok(());
    };
    Ok(device.write_fua(offset, &copy_at(sb, offset)?)?)
}

/// Writes all copies of a superblock. The blocks that it refers to are durable already; when this
/// returns, the first copy is durable too.
///
/// # Errors
/// [`Error::Device`].
pub(crate) fn write_all(device: &dyn Device, sb: &SuperBlock) -> Result<()> {
    debug_assert_eq!(sb.magic, MAGIC);
    // A block device may be larger than the file system on it.
    let end = device.size().min(sb.dev_item.total_bytes.get());
    for (nth, offset) in copies(end).enumerate() {
        let bytes = copy_at(sb, offset)?;
        if nth == 0 {
            device.write_fua(offset, &bytes)?;
        } else {
            device.write_at(offset, &bytes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sb() -> SuperBlock {
        SuperBlock {
            magic: MAGIC,
            ..SuperBlock::default()
        }
    }

    #[test]
    fn features_are_refused_by_name() {
        let mut raid = sb();
        let refused = [
            (Incompat::RAID_STRIPE_TREE, "raid-stripe-tree"),
            (Incompat::ZONED, "zoned"),
            (Incompat::REMAP_TREE, "remap-tree"),
        ];
        for (feature, name) in refused {
            raid.incompat_flags = (feature | Incompat::NO_HOLES).bits().into();
            let err = check_features(&raid, true).unwrap_err();
            assert!(matches!(err, Error::UnsupportedFeature(n) if n == name));
        }
        let mut odd = sb();
        odd.incompat_flags = (1u64 << 60).into();
        let err = check_features(&odd, true).unwrap_err();
        assert!(err.to_string().contains("0x1000000000000000"));
        let mut verity = sb();
        verity.compat_ro_flags = CompatRo::VERITY.bits().into();
        assert!(check_features(&verity, false).is_ok());
        odd = sb();
        odd.compat_ro_flags = (1u64 << 60).into();
        assert!(check_features(&odd, true).is_ok());
        let err = check_features(&odd, false).unwrap_err();
        assert!(matches!(err, Error::ReadOnlyFeature(n) if n.contains("0x1000000000000000")));
    }
}
