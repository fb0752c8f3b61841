//! Creates inodes (files, directories, symbolic links, device nodes, files without a name), and
//! gives inodes further names.

use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, InodeFlags, InodeRefRef, Key, kind};
use sapwood_vfs::rules::{self, Ownership};
use sapwood_vfs::{self as vfs, Credentials, FileKind, NewInode, acl};

use super::dir;
use super::layer::Namespace;
use super::names::{self, Target};
use super::rename::NameInDir;
use crate::data::Files;
use crate::inode::{Inode, InodeState, from_dev, next_objectid, orphan_item};
use crate::transaction::{Handle, Store};
use crate::{Error, Result, xattr};

/// Items that creating an inode can touch: its own (item, ref, content), the two of its name,
/// its directory, an orphan item; attributes come on top.
const ITEMS: u64 = 7;

/// A new inode, decided but not made.
struct PlannedInode {
    kind: FileKind,
    state: InodeState,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    symlink: Option<Vec<u8>>,
}

/// Makes an inode and its name. Expects the `io` lock of the directory exclusively.
pub(crate) fn create(
    files: &Arc<Files>,
    who: &Credentials,
    place: NameInDir<'_>,
    what: NewInode<'_>,
    perm: u32,
) -> Result<Arc<Inode>> {
    let dir = place.dir;
    let plan = plan(files, who, dir, what, perm)?;
    let objectid = next_objectid(files, &dir.root)?;
    let index = dir::next_index(files, dir)?;
    let items = ITEMS + plan.xattrs.len() as u64;
    files.charge_quota(dir.root.id(), items)?;
    let mut h = files.start(items)?;
    let made = name_new(files, &mut h, place, objectid, index, plan);
    h.finish(made)
}

/// Makes the planned inode and its name. The name comes last: a thread that finds it finds a whole
/// inode.
fn name_new(
    files: &Arc<Files>,
    h: &mut Handle,
    NameInDir { dir, name }: NameInDir<'_>,
    objectid: u64,
    index: u64,
    plan: PlannedInode,
) -> Result<Arc<Inode>> {
    let target = Target::inode(objectid, plan.kind);
    let reference = (
        Key::new(objectid, kind::INODE_REF, dir.objectid),
        InodeRefRef { index, name }.encode(),
    );
    let inode = insert(files, h, dir, objectid, plan, Some(reference))?;
    names::add_entry(h, dir, name, target, index)?;
    Ok(inode)
}

/// Makes a file without a name. Expects the `io` lock of the directory.
pub(crate) fn tmpfile(
    files: &Arc<Files>,
    who: &Credentials,
    dir: &Arc<Inode>,
    perm: u32,
) -> Result<Arc<Inode>> {
    let mut plan = plan(files, who, dir, NewInode::Regular, perm)?;
    plan.state.nlink = 0;
    plan.state.linkable = true;
    let objectid = next_objectid(files, &dir.root)?;
    let items = ITEMS + plan.xattrs.len() as u64;
    files.charge_quota(dir.root.id(), items)?;
    let mut h = files.start(items)?;
    orphan_item::add(&mut h, &dir.root, objectid)?;
    let made = insert(files, &mut h, dir, objectid, plan, None);
    h.finish(made)
}

/// The inode that a rename leaves at the old name, decided but not made.
pub(super) struct Whiteout {
    plan: PlannedInode,
    objectid: u64,
    index: u64,
}

impl Whiteout {
    /// Plans a whiteout. Expects the `io` lock of the directory exclusively.
    pub(super) fn plan(files: &Files, who: &Credentials, dir: &Inode) -> Result<Self> {
        Ok(Self {
            plan: plan(files, who, dir, NewInode::CharDevice(0), 0)?,
            objectid: next_objectid(files, &dir.root)?,
            index: dir::next_index(files, dir)?,
        })
    }

    /// Items that it can touch.
    pub(super) fn items(&self) -> u64 {
        ITEMS + self.plan.xattrs.len() as u64
    }

    /// Makes it, and its name, which no entry has.
    pub(super) fn make(
        self,
        files: &Arc<Files>,
        h: &mut Handle,
        place: NameInDir<'_>,
    ) -> Result<Arc<Inode>> {
        name_new(files, h, place, self.objectid, self.index, self.plan)
    }
}

/// Longest target of a symbolic link in bytes: it is one inline extent.
pub(crate) fn longest_symlink(store: &Store) -> usize {
    const HEADERS: usize = 25 + 21;
    let leaf = sapwood_btrfs_format::leaf_data_size(store.nodesize as usize);
    leaf.saturating_sub(HEADERS)
        .min(store.sectorsize as usize - 1)
}

fn plan(
    store: &Store,
    who: &Credentials,
    dir: &Inode,
    what: NewInode<'_>,
    perm: u32,
) -> Result<PlannedInode> {
    let kind = what.kind();
    let (dir_perm, dir_gid, dir_flags) = {
        let state = dir.state.lock();
        (state.perm(), state.gid, state.vfs_flags())
    };
    let Ownership { uid, gid, perm } = rules::new_ownership(who, dir_perm, dir_gid, kind, perm);
    let default = xattr::default_acl(store, dir)?;
    let inherited =
        acl::inherit(default.as_deref(), kind, perm, who.umask).map_err(|reason| Error::Acl {
            tree: dir.root.id(),
            objectid: dir.objectid,
            reason,
        })?;
    let mut xattrs = Vec::new();
    xattrs.extend(inherited.access.map(|value| (acl::ACCESS.to_vec(), value)));
    xattrs.extend(
        inherited
            .default
            .map(|value| (acl::DEFAULT.to_vec(), value)),
    );
    let now = store.now();
    let mut state = InodeState::new(kind.mode_bits() | inherited.perm, now);
    state.uid = uid;
    state.gid = gid;
    state.set_vfs_flags(rules::inherited_flags(dir_flags));
    let compression = vfs::InodeFlags::COMPRESS | vfs::InodeFlags::NOCOMPRESS;
    if matches!(kind, FileKind::Regular | FileKind::Directory) && dir_flags.intersects(compression)
    {
        let property = xattr::get(store, dir, xattr::COMPRESSION)?;
        xattrs.extend(property.map(|value| (xattr::COMPRESSION.to_vec(), value)));
    }
    if kind == FileKind::Regular {
        let options = &store.options;
        state.flags.set(
            InodeFlags::NODATACOW,
            options.nodatacow || state.flags.contains(InodeFlags::NODATACOW),
        );
        let plain = options.nodatasum || state.flags.contains(InodeFlags::NODATACOW);
        state.flags.set(InodeFlags::NODATASUM, plain);
    }
    let symlink = match what {
        NewInode::Symlink(target) => Some(target.to_vec()),
        NewInode::CharDevice(dev) | NewInode::BlockDevice(dev) => {
            state.rdev = from_dev(dev);
            None
        }
        _ => None,
    };
    if let Some(target) = &symlink {
        state.set_plain_size(target.len() as u64);
        state.nbytes = target.len() as u64;
    }
    Ok(PlannedInode {
        kind,
        state,
        xattrs,
        symlink,
    })
}

/// Makes the object of a new inode, and then its items, in key order and so as one batch. If the
/// items came first, a thread that finds them would load a second object.
fn insert(
    files: &Arc<Files>,
    h: &mut Handle,
    dir: &Inode,
    objectid: u64,
    mut plan: PlannedInode,
    reference: Option<(Key, Vec<u8>)>,
) -> Result<Arc<Inode>> {
    plan.state.generation = h.transid();
    plan.state.transid = h.transid();
    plan.state.names_in = h.transid();
    let item = plan.state.to_item().bytes().to_vec();
    let mut items = vec![(Key::new(objectid, kind::INODE_ITEM, 0), item)];
    items.extend(reference);
    let mut xattrs: Vec<(Key, Vec<u8>)> = plan
        .xattrs
        .iter()
        .map(|(name, value)| xattr::new_item(objectid, name, value))
        .collect();
    xattrs.sort();
    items.extend(xattrs);
    if let Some(target) = &plan.symlink {
        let extent = FileExtent::Inline {
            generation: h.transid(),
            ram_bytes: target.len() as u64,
            compression: 0,
            data: target,
        };
        items.push((Key::new(objectid, kind::EXTENT_DATA, 0), extent.encode()));
    }
    let default_acl = (plan.kind == FileKind::Directory).then(|| {
        let mut xattrs = plan.xattrs.iter();
        let default = xattrs.find(|(name, _)| name == acl::DEFAULT);
        default.map(|(_, value)| value.clone().into())
    });
    let (kind, state) = (plan.kind, plan.state);
    let inodes = &files.inodes;
    let inode = inodes.insert_new(&dir.root, objectid, kind, state, default_acl)?;
    dir.root.insert_batch(h, &items)?;
    Ok(inode)
}

/// Most names of one inode.
const LINK_MAX: u32 = 65535;

/// Items that a further name can touch.
const LINK_ITEMS: u64 = 6;

/// Gives `inode` the name `name` in `dir`. Expects both `io` locks.
///
/// # Errors
/// `TooManyLinks`, also if the items of the inode's names have no room; `Overflow` if too many
/// names share the hash; `NoSpace`; unreadable blocks.
pub(crate) fn link(
    namespace: &Arc<Namespace>,
    inode: &Arc<Inode>,
    dir: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    let store: &Arc<Store> = namespace;
    let fits = names::ref_fits(store, &dir.root, inode.objectid, dir.objectid, name)?;
    if inode.state.lock().nlink >= LINK_MAX || !fits {
        return Err(vfs::Error::TooManyLinks.into());
    }
    let index = dir::next_index(store, dir)?;
    store.charge_quota(dir.root.id(), LINK_ITEMS)?;
    let mut h = store.start(LINK_ITEMS)?;
    names::add_entry(
        &mut h,
        dir,
        name,
        Target::inode(inode.objectid, inode.kind),
        index,
    )?;
    let was_orphan = inode.state.lock().nlink == 0;
    let linked = names::add_ref(&mut h, &dir.root, inode.objectid, dir.objectid, index, name)
        .and_then(|()| {
            let now = store.now();
            let transid = h.transid();
            inode.change(&h, |state| {
                state.names_changed(transid);
                state.nlink = state.nlink.saturating_add(1);
                state.linkable = false;
                state.inode_changed(now);
            });
            if was_orphan {
                orphan_item::settle(&mut h, inode)
            } else {
                Ok(())
            }
        });
    namespace.name_added(&mut h, inode);
    h.finish(linked)
}
