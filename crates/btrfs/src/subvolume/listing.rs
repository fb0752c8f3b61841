//! Subvolumes with their paths.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_btrfs_format::{Key, RootFlags, inode_refs, kind, objectid, root_ref};
use sapwood_vfs::{SubvolumeId, SubvolumeInfo};

use super::layer::Subvolumes;
use crate::inode::timestamp;
use crate::transaction::Store;
use crate::tree::Root;
use crate::{Error, Result};

/// Most directories in a subvolume, or subvolumes, above a name. More of them are a cycle.
const DEEPEST: usize = 4096;

/// Paths of subvolumes from the top level, by id.
type Paths = HashMap<u64, Vec<u8>>;

/// All subvolumes below the top level, by id.
///
/// # Errors
/// Unreadable blocks or items; [`Error::SubvolumePath`] for a name that does not lead to the top.
pub(crate) fn list(subvolumes: &Arc<Subvolumes>) -> Result<Vec<SubvolumeInfo>> {
    let mut paths = Paths::new();
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

fn info(subvolumes: &Arc<Subvolumes>, root: &Root, paths: &mut Paths) -> Result<SubvolumeInfo> {
    let path = path_of(subvolumes, root.id(), paths)?;
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

/// Place of a subvolume's name.
struct Backref {
    /// Subvolume that has the name.
    parent: u64,
    /// Directory in it.
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

/// Path of a subvolume from the top level; empty for one without a name. `known` gets it, and the
/// paths of the subvolumes above it.
fn path_of(subvolumes: &Arc<Subvolumes>, id: u64, known: &mut Paths) -> Result<Vec<u8>> {
    // The subvolumes from `id` up, each with its path in the one above it.
    let mut chain: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut at = id;
    let mut path = loop {
        if let Some(path) = known.get(&at) {
            break path.clone();
        }
        let found = match at {
            objectid::FS_TREE => None,
            at => backref(subvolumes, at)?,
        };
        let Some(found) = found else {
            break Vec::new();
        };
        if chain.len() >= DEEPEST {
            return Err(Error::SubvolumePath(id));
        }
        let parent = subvolumes.roots.get(found.parent)?;
        let dir = dir_path(subvolumes, &parent, found.dir)?.ok_or(Error::SubvolumePath(at))?;
        chain.push((at, join(dir, &found.name)));
        at = found.parent;
    };
    for (subvolume, name) in chain.into_iter().rev() {
        path = join(path, &name);
        known.insert(subvolume, path.clone());
    }
    Ok(path)
}

/// A path below another one. Either may be empty.
fn join(mut path: Vec<u8>, below: &[u8]) -> Vec<u8> {
    if !path.is_empty() && !below.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(below);
    path
}

/// Path of an inode from the top level; empty if no name leads to it. `known` has paths of
/// subvolumes, and gets more.
///
/// # Errors
/// Unreadable blocks or items; [`Error::SubvolumePath`] for a subvolume whose name does not lead to
/// the top.
pub(crate) fn file_path(
    subvolumes: &Arc<Subvolumes>,
    root: &Root,
    inode: u64,
    known: &mut Paths,
) -> Result<Vec<u8>> {
    let Some(path) = dir_path(subvolumes, root, inode)? else {
        return Ok(Vec::new());
    };
    Ok(join(path_of(subvolumes, root.id(), known)?, &path))
}

/// Path of a directory or file within its tree, by its first name; `None` if it does not lead to
/// the top.
fn dir_path(store: &Store, root: &Root, inode: u64) -> Result<Option<Vec<u8>>> {
    let mut names = Vec::new();
    let mut at = inode;
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
