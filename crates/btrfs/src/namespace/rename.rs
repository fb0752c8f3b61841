//! Moving names: the changes of a rename, after the front locked and checked everything.
//!
//! A subvolume moves like a directory. Its back references are root refs, and only it may cross
//! from one subvolume to another.

use std::sync::Arc;

use sapwood_vfs::{self as vfs, RenameMode, front};

use super::create::Whiteout;
use super::dir;
use super::layer::Namespace;
use super::names::{self, Target};
use super::remove::remove_name;
use crate::Result;
use crate::commit_reason::CommitReason;
use crate::inode::Inode;
use crate::transaction::{Handle, Store};

/// Items that a rename can touch: two names, two directories, two inodes, an orphan.
const ITEMS: u64 = 14;

/// A name in a directory.
pub(crate) type NameInDir<'a> = front::NameInDir<'a, Inode>;
/// A name with its target at the lookup.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// The name.
    pub(crate) place: NameInDir<'a>,
    /// The target in the directory.
    pub(crate) target: Target,
    /// The inode.
    pub(crate) inode: &'a Arc<Inode>,
}

/// Moves a name, replacing `target` if there is one, or exchanges the two. A whiteout takes the old
/// name in the same handle. Expects all `io` locks.
///
/// # Errors
/// `NotPermitted` for the stub of a subvolume, `CrossDevice`, `NotEmpty` if the target is a
/// subvolume, `TooManyLinks` and `Overflow` if the items of the name have no room, `NoSpace`.
pub(crate) fn rename(
    namespace: &Arc<Namespace>,
    source: &Found<'_>,
    target: Option<&Found<'_>>,
    to: NameInDir<'_>,
    mode: RenameMode,
) -> Result<()> {
    if source.inode.is_stub() || target.is_some_and(|target| target.inode.is_stub()) {
        return Err(vfs::Error::NotPermitted.into());
    }
    if crosses_subvolumes(source, target, to, mode) {
        return Err(vfs::Error::CrossDevice.into());
    }
    if let (Some(target), false) = (target, mode == RenameMode::Exchange)
        && target.target.as_subvolume().is_some()
    {
        return Err(vfs::Error::NotEmpty.into());
    }
    require_room(namespace, source, to)?;
    if target.is_none() {
        names::check_vacant(namespace, to.dir, to.name)?;
    }
    let to_index = dir::next_index(namespace, to.dir)?;
    if mode == RenameMode::Exchange
        && let Some(target) = target
    {
        require_room(namespace, target, source.place)?;
        let from_index = dir::next_index(namespace, source.place.dir)?;
        let mut h = namespace.start(2 * ITEMS)?;
        let done = exchange(namespace, &mut h, source, target, from_index, to_index);
        return h.finish(done);
    }
    let whiteout = mode.whiteout();
    let whiteout = whiteout
        .map(|who| Whiteout::plan(namespace, &who, source.place.dir))
        .transpose()?;
    let of_whiteout = whiteout.as_ref().map_or(0, Whiteout::items);
    let mut h = namespace.start(ITEMS + of_whiteout)?;
    let done = (|| {
        if let Some(target) = target {
            remove_name(namespace, &mut h, to.dir, to.name, target.inode)?;
        }
        if whiteout.is_some() && !is_committed(&h, source) {
            namespace.forbid_log(&h, CommitReason::Whiteout);
        }
        take(namespace, &mut h, source)?;
        put(&mut h, source, to, to_index)?;
        if let Some(whiteout) = whiteout {
            whiteout.make(namespace, &mut h, source.place)?;
        }
        Ok(())
    })();
    h.finish(done)
}

/// Whether a rename would move a name that is no subvolume's from one subvolume to another.
pub(crate) fn crosses_subvolumes(
    source: &Found<'_>,
    target: Option<&Found<'_>>,
    to: NameInDir<'_>,
    mode: RenameMode,
) -> bool {
    let stays = |found: &Found<'_>| found.target.as_subvolume().is_none();
    source.place.dir.root.id() != to.dir.root.id()
        && (stays(source) || (mode == RenameMode::Exchange && target.is_some_and(stays)))
}

fn require_room(store: &Store, found: &Found<'_>, to: NameInDir<'_>) -> Result<()> {
    if found.target.as_subvolume().is_some() {
        return Ok(());
    }
    if names::ref_fits(
        store,
        &to.dir.root,
        found.inode.objectid,
        to.dir.objectid,
        to.name,
    )? {
        Ok(())
    } else {
        Err(vfs::Error::TooManyLinks.into())
    }
}

/// Whether the last commit has the name. The log of an inode that loses a committed name also has
/// the inode that takes the name over, so the whiteout is durable together with the new name. The
/// log does not record that an inode lost a newer name.
fn is_committed(h: &Handle, found: &Found<'_>) -> bool {
    found.target.as_subvolume().is_none() && found.inode.state.lock().names_in < h.transid()
}

/// Removes the old name of an inode, for which [`put`] adds a new one.
fn take(namespace: &Namespace, h: &mut Handle, found: &Found<'_>) -> Result<()> {
    let NameInDir { dir, name } = found.place;
    let index = match found.target.as_subvolume() {
        Some(tree) => names::remove_root_refs(h, dir, tree)?,
        None => names::remove_ref(h, &dir.root, found.inode.objectid, dir.objectid, name)?,
    };
    names::remove_entry(h, dir, name, index)?;
    namespace.name_removed(h, dir, found.inode);
    Ok(())
}

/// Adds the new name of an inode.
fn put(h: &mut Handle, found: &Found<'_>, to: NameInDir<'_>, index: u64) -> Result<()> {
    names::add_entry(h, to.dir, to.name, found.target, index)?;
    match found.target.as_subvolume() {
        Some(tree) => names::add_root_refs(h, to.dir, tree, index, to.name)?,
        None => names::add_ref(
            h,
            &to.dir.root,
            found.inode.objectid,
            to.dir.objectid,
            index,
            to.name,
        )?,
    }
    let now = h.store().now();
    let transid = h.transid();
    found.inode.change(h, |state| {
        state.names_changed(transid);
        state.inode_changed(now);
    });
    Ok(())
}

fn exchange(
    namespace: &Namespace,
    h: &mut Handle,
    source: &Found<'_>,
    target: &Found<'_>,
    from_index: u64,
    to_index: u64,
) -> Result<()> {
    take(namespace, h, source)?;
    take(namespace, h, target)?;
    // Within one directory both indexes were drawn from the same counter, one after the other.
    put(h, source, target.place, to_index)?;
    put(h, target, source.place, from_index)
}
