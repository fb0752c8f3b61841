//! Creates inodes (files, directories, symbolic links, device nodes, files without a name), and
//! gives inodes further names.

use std::sync::Arc;

use sapwood_ext4_format::{Compat, Inode as RawInode, InodeFlags as DiskFlags, LINK_MAX, RoCompat};
use sapwood_jbd2::Handle;
use sapwood_vfs::rules::{self, Ownership};
use sapwood_vfs::{self as vfs, Content, Credentials, FileKind, NewInode, acl, device_number};

use super::filled::{self, Written};
use crate::engine::Engine;
use crate::inode::{Inode, disk_time};
use crate::quota_table::Owners;
use crate::{Error, Result, data, dir, inode_alloc, map, orphan, quota, xattr};

/// A name in a directory.
pub(crate) type NameInDir<'a> = vfs::front::NameInDir<'a, Inode>;

/// A new inode, decided but not made.
struct PlannedInode<'a> {
    kind: FileKind,
    uid: u32,
    gid: u32,
    perm: u32,
    flags: DiskFlags,
    project: u32,
    xattrs: Option<xattr::XattrLayout>,
    what: NewInode<'a>,
}

impl PlannedInode<'_> {
    /// Blocks that the inode may need: the content of a directory or link, attributes.
    fn own_blocks(&self, engine: &Engine) -> u64 {
        let content = match self.what {
            NewInode::Directory | NewInode::Symlink(_) => 1,
            _ => 0,
        };
        let attributes = self.xattrs.as_ref();
        content + attributes.map_or(0, |layout| layout.blocks(engine))
    }
}

/// Makes an inode and its name. Expects the `io` lock of the directory exclusively.
///
/// # Errors
/// `TooManyLinks` for a directory; `NoSpace`; the parent cannot take the name; it is damaged.
pub(crate) fn create(
    engine: &Arc<Engine>,
    who: &Credentials,
    place: NameInDir<'_>,
    vacancy: &dir::Absent,
    what: NewInode<'_>,
    perm: u32,
) -> Result<Arc<Inode>> {
    if what.kind() == FileKind::Directory {
        links_of_dir(engine, place.dir, 1)?;
    }
    let plan = plan(engine, who, place.dir, what, perm)?;
    named(engine, place, vacancy, plan, None)
}

/// Makes a regular file with its content, and its name. `None`: it must be written after its
/// creation. Expects the `io` lock of the directory exclusively. Hold no handle.
///
/// # Errors
/// `NoSpace`; the directory cannot take the name; the image is damaged.
pub(crate) fn create_filled(
    engine: &Arc<Engine>,
    who: &Credentials,
    place: NameInDir<'_>,
    vacancy: &dir::Absent,
    perm: u32,
    content: &Content<'_>,
) -> Result<Option<Arc<Inode>>> {
    let plan = plan(engine, who, place.dir, NewInode::Regular, perm)?;
    let own = DiskFlags::JOURNAL_DATA | DiskFlags::SYNC;
    if plan.flags.intersects(own) {
        return Ok(None);
    }
    match filled::write(engine, place.dir, content)? {
        Some(written) => named(engine, place, vacancy, plan, Some(written)).map(Some),
        None => Ok(None),
    }
}

/// Makes the planned inode, with its content if that was written before, and its name. Expects the
/// `io` lock of the directory exclusively.
///
/// # Errors
/// `NoSpace`; the directory cannot take the name.
fn named(
    engine: &Arc<Engine>,
    place: NameInDir<'_>,
    vacancy: &dir::Absent,
    plan: PlannedInode<'_>,
    mut content: Option<Written<'_>>,
) -> Result<Arc<Inode>> {
    let NameInDir { dir, name } = place;
    let room = dir::room_absent(engine, dir, name, vacancy)?;
    let _blocks = reserve(engine, &plan, room.blocks)?;
    let of_content = content.as_ref().map_or(0, |_| filled::CREDITS);
    let h = engine.start_tracked(credits(engine, &plan) + room.credits + of_content)?;
    // A full file system is found here, before anything else changes.
    let ino = inode_alloc::allocate(engine, &h, dir, plan.kind)?;
    engine.abort((|| {
        let inode = make(engine, &h, dir, ino, plan, 1, content.as_mut())?;
        dir::insert_absent(engine, &h, dir, name, vacancy, (ino, inode.kind))?;
        if let Some(content) = content {
            content.named(&h, ino);
        }
        let now = engine.now();
        {
            let mut state = dir.state.lock();
            state.content_changed(now);
        }
        if inode.kind == FileKind::Directory {
            let links = links_of_dir(engine, dir, 1)?;
            dir.state.lock().raw.set_links(links);
        }
        dir.store(engine, &h)?;
        Ok(inode)
    })())
}

/// The inode that a rename leaves at the old name, decided but not made.
pub(super) struct Whiteout(PlannedInode<'static>);

impl Whiteout {
    /// Plans a whiteout. Expects the `io` lock of the directory.
    pub(super) fn plan(engine: &Arc<Engine>, who: &Credentials, dir: &Inode) -> Result<Self> {
        plan(engine, who, dir, NewInode::CharDevice(0), 0).map(Self)
    }

    /// Blocks that it may need.
    pub(super) fn blocks(&self, engine: &Engine) -> u64 {
        self.0.own_blocks(engine)
    }

    /// Credits without its name's.
    pub(super) fn credits(&self, engine: &Engine) -> u32 {
        credits(engine, &self.0)
    }

    /// Makes it, to be named in `dir` by the same handle.
    pub(super) fn make(
        self,
        engine: &Arc<Engine>,
        h: &Handle,
        dir: &Inode,
        ino: u32,
    ) -> Result<Arc<Inode>> {
        make(engine, h, dir, ino, self.0, 1, None)
    }
}

/// Makes a file without a name. Expects the `io` lock of the directory.
///
/// # Errors
/// `NoSpace`.
pub(crate) fn tmpfile(
    engine: &Arc<Engine>,
    who: &Credentials,
    dir: &Arc<Inode>,
    perm: u32,
) -> Result<Arc<Inode>> {
    let plan = plan(engine, who, dir, NewInode::Regular, perm)?;
    let _blocks = reserve(engine, &plan, 0)?;
    let h = engine.start(credits(engine, &plan) + orphan::CREDITS)?;
    let ino = inode_alloc::allocate(engine, &h, dir, plan.kind)?;
    engine.abort((|| {
        let inode = make(engine, &h, dir, ino, plan, 0, None)?;
        inode.state.lock().linkable = true;
        orphan::add(engine, &h, &inode)?;
        inode.store(engine, &h)?;
        Ok(inode)
    })())
}

/// Blocks that the new name and inode may need: `of_name` for the directory.
fn reserve(
    engine: &Engine,
    plan: &PlannedInode<'_>,
    of_name: u64,
) -> Result<crate::block_alloc::Reservation> {
    engine
        .space
        .reserve(plan.own_blocks(engine) + of_name, true)
}

/// Credits without the name's.
fn credits(engine: &Engine, plan: &PlannedInode<'_>) -> u32 {
    let attributes = plan.xattrs.as_ref();
    let attributes = attributes.map_or(0, |layout| layout.credits(engine));
    // Its own block, for a directory or a long link: bitmap, descriptor and the block; both inodes.
    inode_alloc::CREDITS + attributes + 3 + 2
}

fn plan<'a>(
    engine: &Arc<Engine>,
    who: &Credentials,
    dir: &Inode,
    what: NewInode<'a>,
    perm: u32,
) -> Result<PlannedInode<'a>> {
    let kind = what.kind();
    let (dir_perm, dir_gid, dir_flags, dir_project) = {
        let state = dir.state.lock();
        let raw = &state.raw;
        let project = raw.projid().unwrap_or(0);
        (state.mode() & 0o7777, raw.gid(), raw.flags(), project)
    };
    let Ownership { uid, gid, perm } = rules::new_ownership(who, dir_perm, dir_gid, kind, perm);
    let default = if xattr::may_have(dir) {
        xattr::get(engine, dir, acl::DEFAULT)?
    } else {
        None
    };
    let inherited = acl::inherit(default.as_deref(), kind, perm, who.umask).map_err(|reason| {
        Error::BadInode {
            ino: dir.ino,
            reason: format!("default ACL: {reason}"),
        }
    })?;
    let access = inherited.access.map(|value| (acl::ACCESS, value));
    let default = inherited.default.map(|value| (acl::DEFAULT, value));
    let lists: Vec<_> = access.into_iter().chain(default).collect();
    let xattrs = if lists.is_empty() {
        None
    } else {
        let names = dir::first_attributes(engine, kind);
        Some(xattr::plan_new(engine, names, &lists)?)
    };
    let project = if dir_flags.contains(DiskFlags::PROJINHERIT) {
        dir_project
    } else {
        0
    };
    let owners = Owners { uid, gid, project };
    quota::admit(engine, &owners, who.uid == 0)?;
    Ok(PlannedInode {
        kind,
        uid,
        gid,
        perm: inherited.perm,
        flags: inherited_flags(kind, dir_flags),
        project,
        xattrs,
        what,
    })
}

/// Flags that a new inode inherits from its directory.
fn inherited_flags(kind: FileKind, dir: DiskFlags) -> DiskFlags {
    let all = DiskFlags::SECRM
        | DiskFlags::UNRM
        | DiskFlags::COMPR
        | DiskFlags::SYNC
        | DiskFlags::NODUMP
        | DiskFlags::NOATIME
        | DiskFlags::NOCOMPR
        | DiskFlags::JOURNAL_DATA
        | DiskFlags::NOTAIL
        | DiskFlags::DIRSYNC
        | DiskFlags::PROJINHERIT
        | DiskFlags::CASEFOLD;
    let kept = match kind {
        FileKind::Directory => all,
        FileKind::Regular => {
            all - DiskFlags::DIRSYNC - DiskFlags::CASEFOLD - DiskFlags::PROJINHERIT
        }
        _ => DiskFlags::NODUMP | DiskFlags::NOATIME,
    };
    dir & kept
}

/// Puts a new inode into memory and into its table. A directory gets its first block, a link its
/// target, a file the content that was written for it.
fn make(
    engine: &Arc<Engine>,
    h: &Handle,
    dir: &Inode,
    ino: u32,
    plan: PlannedInode<'_>,
    links: u16,
    content: Option<&mut Written<'_>>,
) -> Result<Arc<Inode>> {
    let geometry = &engine.geometry;
    let mut raw = RawInode::new(geometry);
    raw.set_mode((plan.kind.mode_bits() | plan.perm) as u16);
    raw.set_uid(plan.uid);
    raw.set_gid(plan.gid);
    raw.set_links(links);
    raw.set_generation(engine.ambient.random());
    raw.set_flags(plan.flags | map::new_flags(engine, plan.kind));
    if plan.project != 0 {
        raw.set_projid(plan.project)?;
    }
    let now = disk_time(engine.now());
    raw.set_atime(now);
    raw.set_mtime(now);
    raw.set_ctime(now);
    raw.set_crtime(now);
    if let NewInode::CharDevice(device) | NewInode::BlockDevice(device) = plan.what {
        raw.set_device(device_number::major(device), device_number::minor(device))?;
    }
    map::init(&mut raw, plan.kind);
    let inode = Inode::new(ino, plan.kind, raw, geometry);
    let inode = Arc::new(inode);
    match plan.what {
        NewInode::Directory => {
            dir::init(engine, h, &inode, dir.ino)?;
            inode.state.lock().raw.set_links(2);
        }
        NewInode::Symlink(target) => data::write_symlink(engine, h, &inode, target)?,
        _ => {}
    }
    if let Some(layout) = plan.xattrs {
        xattr::apply(engine, h, &inode, layout)?;
    }
    if let Some(content) = content {
        content.put(h, &inode)?;
    }
    // After this, other threads find it, so it must be complete. It must be in memory before its
    // table has it: otherwise they could load a second object.
    engine.inodes.insert_new(&inode)?;
    inode.store(engine, h)?;
    Ok(inode)
}

/// Gives `inode` the name `name` in `dir`. Expects both `io` locks.
///
/// # Errors
/// `TooManyLinks`, `NoSpace`; the directory cannot take the name; the image is damaged.
pub(crate) fn link(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    dir: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    if inode.state.lock().raw.links() >= LINK_MAX {
        return Err(vfs::Error::TooManyLinks.into());
    }
    let room = dir::room(engine, dir, name)?;
    let _blocks = engine.space.reserve(room.blocks, true)?;
    let h = engine.start_tracked(room.credits + orphan::CREDITS + 2)?;
    engine.abort((|| {
        dir::insert(engine, &h, dir, name, inode.ino, inode.kind)?;
        let now = engine.now();
        let was_orphan = {
            let mut state = inode.state.lock();
            let links = state.raw.links();
            state.raw.set_links(links.saturating_add(1));
            state.linkable = false;
            state.changed(now);
            links == 0
        };
        if was_orphan {
            orphan::remove(engine, &h, inode)?;
        }
        inode.store(engine, &h)?;
        dir.state.lock().content_changed(now);
        dir.store(engine, &h)
    })())
}

/// Gives an inode that no directory names, and that is not loaded, a name. Its link count and its
/// `..` stay as they are.
///
/// # Errors
/// `NoSpace`; the directory cannot take the name.
pub(crate) fn name_lost(
    engine: &Arc<Engine>,
    dir: &Inode,
    name: &[u8],
    (ino, kind): (u32, FileKind),
) -> Result<()> {
    let room = dir::room(engine, dir, name)?;
    let _blocks = engine.space.reserve(room.blocks, true)?;
    let h = engine.start_tracked(room.credits + 1)?;
    engine.abort((|| {
        dir::insert(engine, &h, dir, name, ino, kind)?;
        dir.state.lock().content_changed(engine.now());
        dir.store(engine, &h)
    })())
}

/// Link count of a directory after a subdirectory was added (`change` is 1) or removed (-1). A
/// count of 1 stands for "more than the field can count", where the image has that feature
/// (`dir_nlink`) and the directory a hash tree.
///
/// # Errors
/// `TooManyLinks`.
pub(crate) fn links_of_dir(engine: &Engine, dir: &Inode, change: i32) -> Result<u16> {
    let (links, tree) = {
        let state = dir.state.lock();
        let tree = state.raw.flags().contains(DiskFlags::INDEX);
        (state.raw.links(), tree)
    };
    if links == 1 {
        return Ok(1);
    }
    let counted = i64::from(links) + i64::from(change);
    if counted <= i64::from(LINK_MAX) {
        return Ok(u16::try_from(counted).unwrap_or(2).max(2));
    }
    let features = engine.geometry.features();
    let uncounted = features.has_ro_compat(RoCompat::DIR_NLINK)
        && features.has_compat(Compat::DIR_INDEX)
        && tree;
    if uncounted {
        Ok(1)
    } else {
        Err(vfs::Error::TooManyLinks.into())
    }
}
