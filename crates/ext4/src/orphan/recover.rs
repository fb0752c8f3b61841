//! Finishing at mount what a former mount left.

use std::collections::HashSet;
use std::sync::Arc;

use sapwood_ext4_format::{Compat, RoCompat};

use super::file::OrphanFile;
use super::{Place, remove};
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Error, Result, data, ops};

/// Finds the orphans on disk, then deletes those without a name and cuts the others to their size.
///
/// # Errors
/// The list or the file is damaged, or an orphan is; the device.
pub(crate) fn recover(engine: &Arc<Engine>) -> Result<()> {
    for inode in find(engine)? {
        finish(engine, &inode)?;
    }
    Ok(())
}

/// Finishes what [`find`] found. An orphan that is damaged stays one, and is told: what it holds is out of
/// reach until a check, and all else of the file system is not.
pub(crate) fn finish_all(engine: &Arc<Engine>, orphans: Vec<Arc<Inode>>) {
    for inode in orphans {
        if let Err(error) = finish(engine, &inode) {
            log::warn!("inode {}: an orphan that stays: {error}", inode.ino);
        }
    }
}

/// The orphans on disk, in the order in which they are to be finished: the first one of the list goes first, as then no
/// other inode has to be changed for it. Reads only.
///
/// # Errors
/// The list or the file is damaged; the device.
pub(crate) fn find(engine: &Arc<Engine>) -> Result<Vec<Arc<Inode>>> {
    let features = engine.super_block.lock().features();
    let mut all = Vec::new();
    if features.has_compat(Compat::ORPHAN_FILE) {
        let ino = engine.super_block.lock().orphan_file_inum.get();
        let inode = engine.inodes.get(engine, ino)?;
        let (file, found) = OrphanFile::open(engine, &inode)?;
        let mut state = engine.orphans.state.lock();
        state.file = Some(file);
        for (ino, slot) in found {
            state.places.insert(ino, Place::File(slot));
            all.push(ino);
        }
    }
    all.extend(read_list(engine)?);
    let mut inodes = Vec::new();
    for ino in &all {
        inodes.push(engine.inodes.get(engine, *ino)?);
    }
    for inode in &inodes {
        inode.state.lock().orphan = true;
    }
    Ok(inodes)
}

/// The inodes of the list in their order; notes them.
fn read_list(engine: &Arc<Engine>) -> Result<Vec<u32>> {
    let mut seen = HashSet::new();
    let mut order = Vec::new();
    let mut next = engine.super_block.lock().last_orphan.get();
    while next != 0 {
        let bad = |reason: &str| Error::BadInode {
            ino: next,
            reason: format!("list of orphans: {reason}"),
        };
        if next > engine.geometry.inodes_count() || next < engine.geometry.first_ino() {
            return Err(bad("no such inode"));
        }
        if !seen.insert(next) {
            return Err(bad("it is there twice"));
        }
        order.push(next);
        engine.orphans.state.lock().places.insert(next, Place::List);
        let inode = engine.inodes.get(engine, next)?;
        next = inode.state.lock().raw.dtime();
    }
    let mut state = engine.orphans.state.lock();
    state.list = order.iter().rev().copied().collect();
    Ok(order)
}

fn finish(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let _io = inode.io.write();
    if !inode.is_linked() {
        log::info!("inode {}: deleted, as it has no name", inode.ino);
        inode.state.lock().dying = true;
        return ops::delete(engine, inode);
    }
    log::info!("inode {}: cut to {} bytes", inode.ino, inode.size());
    data::truncate(engine, inode, inode.size())?;
    if engine.orphans.knows(inode.ino) {
        let h = engine.start(super::CREDITS + 1)?;
        remove(engine, &h, inode)?;
        inode.store(engine, &h)?;
    }
    Ok(())
}

/// Whether the superblock says that there may be orphans.
pub(crate) fn may_have_orphans(sb: &sapwood_ext4_format::SuperBlock) -> bool {
    let features = sb.features();
    sb.last_orphan.get() != 0 || features.has_ro_compat(RoCompat::ORPHAN_PRESENT)
}
