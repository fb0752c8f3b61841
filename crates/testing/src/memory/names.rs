//! Names: lookup, create, link, remove, rename, list.

use std::ops::ControlFlow;

use super::content::Content;
use super::state::{Body, Directory, MemoryInode, ROOT, State};
use sapwood_vfs::rules::{self, RenameSide};
use sapwood_vfs::{
    Credentials, DirEntry, Entry, Error, FileKind, Ino, NewInode, RenameMode, Result, Timestamp,
    acl,
};

const MAX_LINKS: u32 = 65535;
/// Number of low bits of a listing position that hold an index; the bits above hold the end of the
/// listing.
const INDEX_BITS: u32 = 31;

impl State {
    pub(super) fn find(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        rules::check_name(name)?;
        self.dir(dir)?.find(name).ok_or(Error::NotFound)
    }

    pub(super) fn parent(&mut self, dir: Ino) -> Result<Entry> {
        let parent = self.dir(dir)?.parent;
        self.entry(parent)
    }

    /// Checks that `dir` accepts the new name.
    pub(super) fn check_new_name(&self, dir: Ino, name: &[u8]) -> Result<()> {
        rules::check_name(name)?;
        let exists = self.dir(dir)?.find(name).is_some();
        self.writable(dir)?;
        let node = self.node(dir)?;
        match exists {
            true => Err(Error::Exists),
            false if node.nlink == 0 => Err(Error::NotFound),
            false => rules::check_add_name(node.flags),
        }
    }

    pub(super) fn add_name(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
        self.dir_mut(dir)?.insert(name, ino);
        self.node_mut(dir)?.touch();
        if let Body::Dir(child) = &mut self.node_mut(ino)?.body {
            child.parent = dir;
        }
        Ok(())
    }

    fn remove_name(&mut self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let ino = self.dir_mut(dir)?.remove(name).ok_or(Error::NotFound)?;
        self.node_mut(dir)?.touch();
        Ok(ino)
    }

    fn make(
        &mut self,
        who: &Credentials,
        dir: Ino,
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<MemoryInode> {
        let parent = self.node(dir)?;
        let kind = what.kind();
        let owned = rules::new_ownership(who, parent.perm, parent.gid, kind, perm);
        let default = parent.xattrs.get(acl::DEFAULT).map(Vec::as_slice);
        let inherited = acl::inherit(default, kind, owned.perm, who.umask)?;
        let (body, rdev) = match what {
            NewInode::Regular => (Body::File(Content::default()), 0),
            NewInode::Directory => (Body::Dir(Directory::new(dir)), 0),
            NewInode::Symlink(target) => {
                rules::check_target(target)?;
                (Body::Symlink(target.to_vec()), 0)
            }
            NewInode::CharDevice(rdev) | NewInode::BlockDevice(rdev) => (Body::Special, rdev),
            NewInode::Fifo | NewInode::Socket => (Body::Special, 0),
        };
        let mut node = self.new_node(kind, body, parent.subvolume);
        node.perm = inherited.perm;
        node.uid = owned.uid;
        node.gid = owned.gid;
        node.rdev = rdev;
        node.flags = parent.flags & self.inherited_flags;
        let acls = [
            (acl::ACCESS, inherited.access),
            (acl::DEFAULT, inherited.default),
        ];
        for (name, value) in acls {
            if let Some(value) = value {
                node.xattrs.insert(name.to_vec(), value);
            }
        }
        if matches!(kind, FileKind::Regular | FileKind::Directory)
            && let Some(value) = parent.xattrs.get(rules::COMPRESSION)
        {
            node.xattrs
                .insert(rules::COMPRESSION.to_vec(), value.clone());
        }
        self.generation += 1;
        Ok(node)
    }

    pub(super) fn create(
        &mut self,
        who: &Credentials,
        dir: Ino,
        name: &[u8],
        what: NewInode<'_>,
        perm: u32,
    ) -> Result<Entry> {
        self.check_new_name(dir, name)?;
        let node = self.make(who, dir, what, perm)?;
        let ino = self.add(MemoryInode { nlink: 1, ..node });
        self.add_name(dir, name, ino)?;
        self.entry(ino)
    }

    pub(super) fn tmpfile(&mut self, who: &Credentials, dir: Ino, perm: u32) -> Result<Entry> {
        self.dir(dir)?;
        self.writable(dir)?;
        if self.node(dir)?.nlink == 0 {
            return Err(Error::NotFound);
        }
        rules::check_add_name(self.node(dir)?.flags)?;
        let node = self.make(who, dir, NewInode::Regular, perm)?;
        let ino = self.add(MemoryInode {
            linkable: true,
            ..node
        });
        self.entry(ino)
    }

    pub(super) fn link(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let node = self.node(ino)?;
        self.check_new_name(dir, name)?;
        if node.subvolume != self.node(dir)?.subvolume {
            return Err(Error::CrossDevice);
        }
        rules::check_remove_name(sapwood_vfs::InodeFlags::empty(), node.flags)?;
        if node.kind == FileKind::Directory {
            return Err(Error::NotPermitted);
        }
        if node.nlink == 0 && !node.linkable {
            return Err(Error::NotFound);
        }
        if node.nlink >= MAX_LINKS {
            return Err(Error::TooManyLinks);
        }
        let node = self.node_mut(ino)?;
        node.nlink += 1;
        node.linkable = false;
        node.ctime = Timestamp::now();
        self.add_name(dir, name, ino)?;
        self.entry(ino)
    }

    /// The inode that `name` leads to, if the name may be removed.
    fn victim(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let ino = self.find(dir, name)?;
        self.writable(dir)?;
        rules::check_remove_name(self.node(dir)?.flags, self.node(ino)?.flags)?;
        Ok(ino)
    }

    pub(super) fn unlink(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        let ino = self.victim(dir, name)?;
        if self.node(ino)?.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        self.remove_name(dir, name)?;
        self.drop_link(ino)
    }

    pub(super) fn rmdir(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        let ino = self.victim(dir, name)?;
        if !self.dir(ino)?.is_empty() {
            return Err(Error::NotEmpty);
        }
        if self.is_subvolume_root(ino) {
            return self.delete_subvolume(dir, name);
        }
        self.unname(dir, name)
    }

    /// Removes a directory's name and the directory itself.
    pub(super) fn unname(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        let ino = self.remove_name(dir, name)?;
        self.drop_link(ino)
    }

    /// True if `dir` is `ancestor` or below it.
    fn is_within(&self, dir: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = dir;
        loop {
            if at == ancestor {
                return Ok(true);
            }
            let parent = self.dir(at)?.parent;
            if at == ROOT || parent == at {
                return Ok(false);
            }
            at = parent;
        }
    }

    fn side(&self, dir: Ino, ino: Ino, other_dir: Ino) -> Result<RenameSide> {
        let node = self.node(ino)?;
        let is_dir = node.kind == FileKind::Directory;
        Ok(RenameSide {
            dir_flags: self.node(dir)?.flags,
            flags: node.flags,
            kind: node.kind,
            holds_other_dir: is_dir && self.is_within(other_dir, ino)?,
            has_entries: is_dir && !self.dir(ino)?.is_empty(),
        })
    }

    /// True if the rename moves an inode that is not a subvolume root to another subvolume.
    fn crosses_subvolumes(
        &self,
        (from_dir, source): (Ino, Ino),
        (to_dir, target): (Ino, Option<Ino>),
        mode: RenameMode,
    ) -> Result<bool> {
        let crosses = self.node(from_dir)?.subvolume != self.node(to_dir)?.subvolume;
        let target_is_root = target.is_some_and(|target| self.is_subvolume_root(target));
        let free = match mode {
            RenameMode::Exchange => self.is_subvolume_root(source) && target_is_root,
            _ => self.is_subvolume_root(source),
        };
        Ok(crosses && !free)
    }

    fn check_subvolumes(
        &self,
        (from_dir, source): (Ino, Ino),
        (to_dir, target): (Ino, Option<Ino>),
        mode: RenameMode,
    ) -> Result<()> {
        let is_stub = |ino: Ino| self.node(ino).is_ok_and(|node| node.stub);
        let target_is_root = target.is_some_and(|target| self.is_subvolume_root(target));
        if is_stub(source) || target.is_some_and(is_stub) {
            return Err(Error::NotPermitted);
        }
        if self.crosses_subvolumes((from_dir, source), (to_dir, target), mode)? {
            return Err(Error::CrossDevice);
        }
        if target_is_root && mode != RenameMode::Exchange {
            return Err(Error::NotEmpty);
        }
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        (from_dir, from_name): (Ino, &[u8]),
        (to_dir, to_name): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        rules::check_name(from_name)?;
        rules::check_name(to_name)?;
        self.dir(to_dir)?;
        let source = self.find(from_dir, from_name)?;
        let target = self.dir(to_dir)?.find(to_name);
        self.writable(from_dir)?;
        self.writable(to_dir)?;
        if self.node(to_dir)?.nlink == 0 {
            return Err(Error::NotFound);
        }
        let source_side = self.side(from_dir, source, to_dir)?;
        let target_side = match target {
            Some(target) => {
                let side = self.side(to_dir, target, from_dir)?;
                let places = ((from_dir, source), (to_dir, Some(target)));
                Some(RenameSide {
                    // `crosses_subvolumes` reports a rename between subvolumes before this check.
                    has_entries: side.has_entries
                        && !self.crosses_subvolumes(places.0, places.1, mode)?,
                    ..side
                })
            }
            None => None,
        };
        let to_flags = self.node(to_dir)?.flags;
        let same = target == Some(source);
        if !rules::check_rename(&source_side, target_side.as_ref(), to_flags, mode, same)? {
            return Ok(());
        }
        self.check_subvolumes((from_dir, source), (to_dir, target), mode)?;
        let whiteout = mode.whiteout();
        let whiteout = whiteout
            .map(|who| self.make(&who, from_dir, NewInode::CharDevice(0), 0))
            .transpose()?;
        self.remove_name(from_dir, from_name)?;
        if let Some(target) = target {
            self.remove_name(to_dir, to_name)?;
            if mode == RenameMode::Exchange {
                self.add_name(from_dir, from_name, target)?;
                self.node_mut(target)?.ctime = Timestamp::now();
            } else {
                self.drop_link(target)?;
            }
        }
        self.add_name(to_dir, to_name, source)?;
        self.node_mut(source)?.ctime = Timestamp::now();
        if let Some(node) = whiteout {
            let ino = self.add(MemoryInode { nlink: 1, ..node });
            self.add_name(from_dir, from_name, ino)?;
        }
        Ok(())
    }

    /// A position has the end of the listing that it belongs to and an index. One that no listing
    /// returned, below the end of the directory, comes before all names.
    pub(super) fn readdir(
        &mut self,
        dir: Ino,
        from: u64,
        sink: &mut dyn FnMut(DirEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let directory = self.dir_mut(dir)?;
        let last = directory.slots.last_key_value();
        let now = last.map_or(0, |(&index, _)| index + 1);
        let (end, first) = match (from >> INDEX_BITS, from & ((1 << INDEX_BITS) - 1)) {
            (0, _) => {
                directory.listed.insert(now);
                (now, 0)
            }
            (end, _) if end < now && !directory.listed.contains(&end) => (now, 0),
            listing => listing,
        };
        let slots = &self.dir(dir)?.slots;
        for (&index, slot) in slots.range(first..end.max(first)) {
            let entry = DirEntry {
                ino: slot.ino,
                next: end << INDEX_BITS | (index + 1),
                kind: self.node(slot.ino)?.kind,
                name: slot.name.clone(),
            };
            if sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }
}
