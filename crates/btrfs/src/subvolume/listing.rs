//! Listing subvolumes with their paths.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_btrfs_format::{Key, RootFlags, Timespec, inode_refs, kind, objectid, root_ref};
use sapwood_vfs::{SubvolumeId, SubvolumeInfo, Timestamp};

use super::layer::Subvolumes;
use crate::transaction::Store;
use crate::tree::Root;
use crate::{Error, Result};

/// Longest chain of directories that a path is followed through: more is a cycle.
const DEEPEST: usize = 4096;

/// All subvolumes below the top level, by id.
///
/// # Errors
/// Unreadable blocks or items; [`Error::SubvolumePath`] for a name that leads nowhere.
pub(crate) fn list(subvolumes: &Arc<Subvolumes>) -> Result<Vec<SubvolumeInfo>> {
    let mut paths = HashMap::from([(objectid::FS_TREE, Vec::new())]);
    let mut all = Vec::new();
    for id in subvolumes.roots.ids()? {
        if id == objectid::FS_TREE || !objectid::is_fs_tree(id) {
            continue;
        }
        let root = match subvolumes.roots.get(id) {
            // Deleted since the ids were read.
            Err(Error::NoSuchRoot(_)) => continue,
            other => other?,
        };
        if !root.is_dead() {
            all.push(info(subvolumes, &root, &mut paths)?);
        }
    }
    Ok(all)
}

fn info(
    subvolumes: &Arc<Subvolumes>,
    root: &Root,
    paths: &mut HashMap<u64, Vec<u8>>,
) -> Result<SubvolumeInfo> {
    let path = path_of(subvolumes, root.id(), paths, 0)?;
    let parent = backref(subvolumes, root.id())?.map(|found| SubvolumeId(found.parent));
    let item = *root.item();
    Ok(SubvolumeInfo {
        id: SubvolumeId(root.id()),
        path,
        parent,
        generation: root.last_trans().max(item.generation.get()),
        created_generation: item.otransid.get(),
        created: timestamp(&item.otime),
        read_only: item.root_flags().contains(RootFlags::RDONLY),
        uuid: item.uuid,
        parent_uuid: item.parent_uuid,
        received_uuid: item.received_uuid,
    })
}

fn timestamp(time: &Timespec) -> Timestamp {
    Timestamp {
        sec: time.seconds(),
        nsec: time.nanos().min(999_999_999),
    }
}

/// Place of a subvolume's name.
struct Backref {
    parent: u64,
    dir: u64,
    name: Vec<u8>,
}

fn backref(store: &Store, id: u64) -> Result<Option<Backref>> {
    let cursor = store
        .roots
        .root_tree
        .seek(store, &Key::new(id, kind::ROOT_BACKREF, 0))?;
    let Some((key, item)) = cursor.item() else {
        return Ok(None);
    };
    if key.objectid != id || key.kind != kind::ROOT_BACKREF {
        return Ok(None);
    }
    let found = root_ref(item).map_err(|source| Error::BadItem {
        root: objectid::ROOT_TREE,
        key,
        source,
    })?;
    Ok(Some(Backref {
        parent: key.offset,
        dir: found.dirid,
        name: found.name.to_vec(),
    }))
}

/// Path of a subvolume from the top level; empty for one without a name.
fn path_of(
    subvolumes: &Arc<Subvolumes>,
    id: u64,
    known: &mut HashMap<u64, Vec<u8>>,
    depth: usize,
) -> Result<Vec<u8>> {
    if let Some(path) = known.get(&id) {
        return Ok(path.clone());
    }
    if depth > DEEPEST {
        return Err(Error::SubvolumePath(id));
    }
    let Some(found) = backref(subvolumes, id)? else {
        return Ok(Vec::new());
    };
    let mut parts = vec![path_of(subvolumes, found.parent, known, depth + 1)?];
    let parent = subvolumes.roots.get(found.parent)?;
    parts.push(dir_path(subvolumes, &parent, found.dir)?.ok_or(Error::SubvolumePath(id))?);
    parts.push(found.name);
    parts.retain(|part| !part.is_empty());
    let path = parts.join(&b'/');
    known.insert(id, path.clone());
    Ok(path)
}

/// Path of an inode from the top level; empty if no name leads to it. `known`: paths of subvolumes.
///
/// # Errors
/// Unreadable blocks or items.
pub(crate) fn file_path(
    subvolumes: &Arc<Subvolumes>,
    root: &Root,
    inode: u64,
    known: &mut HashMap<u64, Vec<u8>>,
) -> Result<Vec<u8>> {
    let Some(path) = dir_path(subvolumes, root, inode)? else {
        return Ok(Vec::new());
    };
    let mut parts = vec![path_of(subvolumes, root.id(), known, 0)?, path];
    parts.retain(|part| !part.is_empty());
    Ok(parts.join(&b'/'))
}

/// Path of a directory or file within its tree; `None` if it does not lead to the top.
fn dir_path(store: &Store, root: &Root, dir: u64) -> Result<Option<Vec<u8>>> {
    let mut names = Vec::new();
    let mut at = dir;
    while at != root.top_dir() {
        let cursor = root.seek(store, &Key::new(at, kind::INODE_REF, 0))?;
        let Some((key, item)) = cursor.item() else {
            return Ok(None);
        };
        let first = inode_refs(item).next().and_then(|found| found.ok());
        let (true, Some(first)) = (key.objectid == at && key.kind == kind::INODE_REF, first) else {
            return Ok(None);
        };
        names.push(first.name.to_vec());
        at = key.offset;
        if names.len() > DEEPEST {
            return Ok(None);
        }
    }
    names.reverse();
    Ok(Some(names.join(&b'/')))
}
