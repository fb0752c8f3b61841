//! The superblock of a commit.

use sapwood_btrfs_format::{CompatRo, ItemError, RootBackup, SuperBlock, objectid};

use super::store::Store;
use crate::tree::Root;
use crate::volume::SuperSet;
use crate::{Error, Result};

/// What the superblock of transaction `transid` says: `old` with the tops of all trees as they
/// are now, the system chunks, and one more backup. The log of before is gone with it.
///
/// # Errors
/// [`Error::SystemChunks`] if the system chunks do not fit; [`Error::NoSuchRoot`].
pub(super) fn next(store: &Store, old: &SuperSet, transid: u64) -> Result<SuperSet> {
    let roots = &store.roots;
    let mut sb = old.clone();
    sb.generation = transid.into();
    let top = roots.root_tree.node();
    sb.root = top.bytenr().into();
    sb.root_level = top.level();
    let top = roots.chunk_tree.node();
    sb.chunk_root = top.bytenr().into();
    sb.chunk_root_level = top.level();
    if !sapwood_fault::planted(47) {
        sb.chunk_root_generation = top.generation().into();
    }
    if !sapwood_fault::planted(46) {
        sb.log_root = 0.into();
    }
    sb.log_root_level = 0;
    sb.incompat_flags = (sb.incompat() | store.new_incompat()).bits().into();
    sb.bytes_used = store.space.bytes_used().into();
    for (devid, total, used) in store.space.device_bytes() {
        sb.set_device(devid, total, used);
    }
    if !sb.compat_ro().contains(CompatRo::FREE_SPACE_TREE) {
        // No space cache of the first version is kept, and whatever there was is stale now.
        sb.cache_generation = 0.into();
    }
    // It was right as of the last commit, and every change of a subvolume keeps it so.
    if old.uuid_tree_generation == old.generation {
        sb.uuid_tree_generation = transid.into();
    }
    let chunks = store.space.system_chunks();
    let system = chunks.iter().map(|(logical, chunk)| (*logical, &**chunk));
    sb.set_sys_chunks(system).map_err(system_chunks)?;
    let slot = next_backup(old);
    let backup = backup_of(store, &sb)?;
    if let Some(place) = sb.super_roots.get_mut(slot) {
        *place = backup;
    }
    Ok(sb)
}

fn system_chunks(_: ItemError) -> Error {
    Error::SystemChunks
}

/// Slot of the ring after that of the newest backup.
fn next_backup(old: &SuperBlock) -> usize {
    let newest = old
        .super_roots
        .iter()
        .position(|backup| backup.tree_root_gen == old.generation);
    newest.map_or(0, |slot| (slot + 1) % old.super_roots.len())
}

fn backup_of(store: &Store, sb: &SuperBlock) -> Result<RootBackup> {
    let roots = &store.roots;
    let fs_tree = roots.get(objectid::FS_TREE)?;
    let top = |root: &Root| {
        let node = root.node();
        (node.bytenr().into(), node.generation().into(), node.level())
    };
    let (tree_root, tree_root_gen, tree_root_level) = top(&roots.root_tree);
    let (chunk_root, chunk_root_gen, chunk_root_level) = top(&roots.chunk_tree);
    let (extent_root, extent_root_gen, extent_root_level) = top(&roots.extent_tree);
    let (fs_root, fs_root_gen, fs_root_level) = top(&fs_tree);
    let (dev_root, dev_root_gen, dev_root_level) = top(&roots.dev_tree);
    let (csum_root, csum_root_gen, csum_root_level) = top(&roots.csum_tree);
    Ok(RootBackup {
        tree_root,
        tree_root_gen,
        chunk_root,
        chunk_root_gen,
        extent_root,
        extent_root_gen,
        fs_root,
        fs_root_gen,
        dev_root,
        dev_root_gen,
        csum_root,
        csum_root_gen,
        total_bytes: sb.total_bytes,
        bytes_used: sb.bytes_used,
        num_devices: sb.num_devices,
        tree_root_level,
        chunk_root_level,
        extent_root_level,
        fs_root_level,
        dev_root_level,
        csum_root_level,
        ..RootBackup::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_go_round() {
        let sb = SuperBlock {
            generation: 7.into(),
            ..SuperBlock::default()
        };
        assert_eq!(next_backup(&sb), 0);
        for (slot, next) in [(0, 1), (2, 3), (3, 0)] {
            let mut sb = sb;
            sb.super_roots[slot].tree_root_gen = 7.into();
            assert_eq!(next_backup(&sb), next);
        }
    }
}
