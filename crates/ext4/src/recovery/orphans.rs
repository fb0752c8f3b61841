//! Finishes the orphans of a former mount.

use std::sync::Arc;

use sapwood_ext4_format::{Compat, OrphanError, RoCompat, SuperState, orphan_verify};
use sapwood_vfs::FileKind;

use crate::engine::Engine;
use crate::inode::Inode;
use crate::orphan_set::{OrphanFile, OrphanPlace, Slot};
use crate::seal::SealKind;
use crate::{Error, Result, data, inode_alloc, map, namespace};

/// The orphans on disk.
pub(crate) struct Found {
    /// In the order in which they are finished: the first one of the list first, because then no
    /// other inode changes.
    inodes: Vec<Arc<Inode>>,
    /// A reference to an inode that cannot be an orphan. The rest of the list is unknown.
    damaged: bool,
}

/// Finds the orphans on disk, then deletes those without a name and cuts the others to their size.
///
/// # Errors
/// The orphan file is damaged, or an orphan is; errors of the device.
pub(crate) fn recover(engine: &Arc<Engine>) -> Result<()> {
    let found = find(engine)?;
    for inode in &found.inodes {
        finish(engine, inode)?;
    }
    if found.damaged {
        forget_damaged(engine)
    } else {
        Ok(())
    }
}

/// Finishes the orphans that [`find`] found. A damaged orphan stays one, with a warning: its blocks
/// are out of reach until a check, and the rest of the file system is usable.
pub(crate) fn finish_all(engine: &Arc<Engine>, found: &Found) {
    for inode in &found.inodes {
        if let Err(error) = finish(engine, inode) {
            log::warn!("inode {}: an orphan that stays: {error}", inode.ino);
        }
    }
    if found.damaged
        && let Err(error) = forget_damaged(engine)
    {
        log::warn!("the list of orphans stays damaged: {error}");
    }
}

/// Ends a damaged list after its last orphan that is in order, and records in the superblock that
/// there was damage, so that a check is due: as the kernel does.
fn forget_damaged(engine: &Arc<Engine>) -> Result<()> {
    let h = engine.start(1)?;
    let first = engine.orphans.state.lock().list.last().copied();
    engine.change_super(&h, |sb| {
        sb.last_orphan = first.unwrap_or(0).into();
        sb.set_state(sb.state() | SuperState::ERROR);
        sb.error_count = sb.error_count.get().saturating_add(1).into();
    })
}

/// Finds the orphans on disk. Reads only. An inode that cannot be an orphan is left out, with a
/// warning.
///
/// # Errors
/// The orphan file is damaged; errors of the device.
pub(crate) fn find(engine: &Arc<Engine>) -> Result<Found> {
    let mut found = Found {
        inodes: Vec::new(),
        damaged: false,
    };
    let features = engine.super_block.lock().features();
    if features.has_compat(Compat::ORPHAN_FILE) {
        let ino = engine.super_block.lock().orphan_file_inum.get();
        let inode = engine.inodes.get(engine, ino)?;
        let (file, slots) = open_file(engine, &inode)?;
        engine.orphans.state.lock().file = Some(file);
        for (ino, slot) in slots {
            if let Some(inode) = found.add(engine, ino, OrphanPlace::File(slot))? {
                found.inodes.push(inode);
            }
        }
    }
    read_list(engine, &mut found)?;
    for inode in &found.inodes {
        inode.state.lock().orphan = true;
    }
    Ok(found)
}

/// Reads and validates all blocks of the orphan file. Returns the orphans in them too.
///
/// # Errors
/// The file is damaged; errors of the device.
fn open_file(engine: &Engine, inode: &Inode) -> Result<(OrphanFile, Vec<(u32, Slot)>)> {
    let mut file = OrphanFile::new();
    let mut found = Vec::new();
    for number in 0..inode.size() / engine.block_size() {
        let buffer = map::block_of(engine, inode, number)?;
        let block = buffer.block();
        let bad = |reason: OrphanError| Error::BadBlock {
            ino: inode.ino,
            block,
            reason: reason.to_string(),
        };
        if engine.geometry.metadata_csum() {
            orphan_verify(&buffer.read(), inode.seed(engine), block).map_err(bad)?;
        }
        let seal = SealKind::Orphan.of(inode.ino, inode.generation);
        found.extend(file.add_block(buffer, seal).map_err(bad)?);
    }
    Ok((file, found))
}

/// Adds the inodes of the list in their order, up to its end or to one that cannot be an orphan.
fn read_list(engine: &Arc<Engine>, found: &mut Found) -> Result<()> {
    let mut order = Vec::new();
    let mut next = engine.super_block.lock().last_orphan.get();
    while next != 0 {
        let Some(inode) = found.add(engine, next, OrphanPlace::List)? else {
            break;
        };
        order.push(next);
        next = inode.state.lock().raw.dtime();
        found.inodes.push(inode);
    }
    let mut state = engine.orphans.state.lock();
    state.list = order.iter().rev().copied().collect();
    Ok(())
}

impl Found {
    /// The inode, if it can be an orphan; its place is recorded.
    fn add(
        &mut self,
        engine: &Arc<Engine>,
        ino: u32,
        place: OrphanPlace,
    ) -> Result<Option<Arc<Inode>>> {
        let places = || engine.orphans.state.lock();
        {
            let mut state = places();
            if state.places.contains_key(&ino) {
                log::warn!("orphans: inode {ino} is there twice");
                self.damaged = true;
                return Ok(None);
            }
            // Before it is loaded, as without it an inode that has no name cannot be.
            state.places.insert(ino, place);
        }
        match candidate(engine, ino) {
            Ok(inode) => Ok(Some(inode)),
            Err(error @ (Error::Device(_) | Error::Journal(_))) => Err(error),
            Err(error) => {
                log::warn!("orphans: {error}");
                places().places.remove(&ino);
                self.damaged = true;
                Ok(None)
            }
        }
    }
}

/// The inode, if it can be an orphan: not a reserved one, in use, and either without a name or of a
/// kind that can be cut.
fn candidate(engine: &Arc<Engine>, ino: u32) -> Result<Arc<Inode>> {
    let bad = |reason: &str| Error::BadInode {
        ino,
        reason: reason.into(),
    };
    let known = (engine.geometry.first_ino()..=engine.geometry.inodes_count()).contains(&ino);
    if !known || engine.is_special(ino) {
        return Err(bad("no inode that can be an orphan"));
    }
    if !inode_alloc::is_used(engine, ino)? {
        return Err(bad("an orphan that is free"));
    }
    let inode = engine.inodes.get(engine, ino)?;
    let cut = match inode.kind {
        FileKind::Regular | FileKind::Directory => true,
        FileKind::Symlink => !inode.state.lock().raw.is_fast_symlink(&engine.geometry),
        _ => false,
    };
    if cut || !inode.is_linked() {
        Ok(inode)
    } else {
        Err(bad("an orphan with a name that cannot be cut"))
    }
}

fn finish(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let _io = inode.io.write();
    if !inode.is_linked() {
        log::info!("inode {}: deleted, as it has no name", inode.ino);
        inode.state.lock().dying = true;
        return namespace::delete(engine, inode);
    }
    if data::verity::is_sealed(inode) {
        // Its hash tree is after its end. Only a commit in place can leave such an orphan.
        return data::release_orphan(engine, inode);
    }
    log::info!("inode {}: cut to {} bytes", inode.ino, inode.size());
    data::cut_orphan(engine, inode)
}

/// Whether the superblock allows for orphans.
pub(crate) fn may_have_orphans(sb: &sapwood_ext4_format::SuperBlock) -> bool {
    let features = sb.features();
    sb.last_orphan.get() != 0 || features.has_ro_compat(RoCompat::ORPHAN_PRESENT)
}
