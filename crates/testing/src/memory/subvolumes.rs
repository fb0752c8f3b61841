//! Subvolumes: a snapshot is a deep copy.

use std::collections::HashMap;

use super::MemoryFs;
use super::state::{Body, Directory, MemoryInode, ROOT, State, TOP};
use sapwood_vfs::{
    Entry, Error, FileKind, Ino, Result, SubvolumeId, SubvolumeInfo, Subvolumes, rules,
};

impl State {
    fn new_subvolume_id(&mut self) -> SubvolumeId {
        self.next_subvolume += 1;
        self.generation += 1;
        SubvolumeId(self.next_subvolume)
    }

    fn create_subvolume(&mut self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.check_new_name(dir, name)?;
        let id = self.new_subvolume_id();
        let root = self.add_subvolume(id, [0; 16]);
        self.add_name(dir, name, root)?;
        self.entry(root)
    }

    fn root_of(&self, ino: Ino) -> Result<SubvolumeId> {
        let id = self.node(ino)?.subvolume;
        if self.is_subvolume_root(ino) {
            Ok(id)
        } else {
            Err(Error::Invalid)
        }
    }

    fn snapshot(&mut self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Entry> {
        let origin = self.root_of(source)?;
        self.check_new_name(dir, name)?;
        let uuid = self.subvolumes.get(&origin).map(|found| found.uuid);
        let id = self.new_subvolume_id();
        let root = self.add_subvolume(id, uuid.unwrap_or_default());
        self.copy_tree(source, root, origin, id)?;
        if let Some(subvolume) = self.subvolumes.get_mut(&id) {
            subvolume.read_only = read_only;
        }
        self.add_name(dir, name, root)?;
        self.entry(root)
    }

    /// Copies the tree of subvolume `origin` below `source` to the empty root `target` of subvolume
    /// `id`. Hard links stay; a nested subvolume becomes an empty directory.
    fn copy_tree(
        &mut self,
        source: Ino,
        target: Ino,
        origin: SubvolumeId,
        id: SubvolumeId,
    ) -> Result<()> {
        let mut copies = HashMap::from([(source, target)]);
        let mut pending = vec![(source, target)];
        let mut node = self.copied(source, id)?;
        node.body = Body::Dir(Directory::new(target));
        self.nodes.insert(target, node);
        while let Some((from, to)) = pending.pop() {
            let slots: Vec<_> = self.dir(from)?.slots.values().cloned().collect();
            for slot in slots {
                let known = copies.get(&slot.ino).copied();
                let copy = match known {
                    Some(copy) => copy,
                    None => self.copy_node(slot.ino, to, origin, id)?,
                };
                copies.insert(slot.ino, copy);
                self.dir_mut(to)?.insert(&slot.name, copy);
                let node = self.node(slot.ino)?;
                if node.kind == FileKind::Directory && node.subvolume == origin {
                    pending.push((slot.ino, copy));
                }
            }
        }
        Ok(())
    }

    fn copy_node(
        &mut self,
        ino: Ino,
        parent: Ino,
        origin: SubvolumeId,
        id: SubvolumeId,
    ) -> Result<Ino> {
        let mut node = self.copied(ino, id)?;
        if self.node(ino)?.subvolume != origin {
            let body = Body::Dir(Directory::new(parent));
            node = self.new_node(FileKind::Directory, body, id);
            node.perm = 0o755;
            node.nlink = 1;
            node.stub = true;
        }
        match &mut node.body {
            Body::Dir(dir) => *dir = Directory::new(parent),
            // Shared extents: a snapshot takes no space of its own, but this model counts
            // sectors per file.
            Body::File(content) => {
                let sectors = content.allocated();
                self.used += sectors;
            }
            _ => {}
        }
        Ok(self.add(node))
    }

    fn copied(&self, ino: Ino, id: SubvolumeId) -> Result<MemoryInode> {
        let mut node = self.node(ino)?.clone();
        node.subvolume = id;
        node.refs = 0;
        Ok(node)
    }

    pub(super) fn delete_subvolume(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        let root = self.find(dir, name)?;
        let id = self.root_of(root)?;
        self.writable(dir)?;
        rules::check_remove_name(self.node(dir)?.flags, self.node(root)?.flags)?;
        if id == self.default_subvolume {
            return Err(Error::NotPermitted);
        }
        let others = self.subvolumes.values().filter(|other| other.root != root);
        for other in others {
            let holder = self.dir(other.root)?.parent;
            if self.node(holder)?.subvolume == id {
                return Err(Error::NotEmpty);
            }
        }
        self.unname(dir, name)?;
        self.subvolumes.remove(&id);
        let inside = self.nodes.iter().filter(|(_, node)| node.subvolume == id);
        let inside: Vec<Ino> = inside.map(|(&ino, _)| ino).collect();
        for ino in inside {
            let node = self.node_mut(ino)?;
            node.nlink = 0;
            if let Body::Dir(dir) = &mut node.body {
                dir.clear();
            }
            self.reap(ino);
        }
        Ok(())
    }

    fn path(&self, root: Ino) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let mut at = root;
        while at != ROOT {
            let parent = self.dir(at)?.parent;
            let mut slots = self.dir(parent)?.slots.values();
            let slot = slots.find(|slot| slot.ino == at).ok_or(Error::Stale)?;
            names.push(slot.name.clone());
            at = parent;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    fn list_subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let mut list = Vec::new();
        for (&id, subvolume) in self.subvolumes.iter().filter(|(id, _)| **id != TOP) {
            let holder = self.dir(subvolume.root)?.parent;
            list.push(SubvolumeInfo {
                id,
                path: self.path(subvolume.root)?,
                parent: Some(self.node(holder)?.subvolume),
                generation: self.generation,
                created_generation: subvolume.created_generation,
                created: subvolume.created,
                read_only: subvolume.read_only,
                uuid: subvolume.uuid,
                parent_uuid: subvolume.parent_uuid,
                received_uuid: subvolume.received_uuid,
            });
        }
        Ok(list)
    }
}

impl Subvolumes for MemoryFs {
    fn list(&self) -> Result<Vec<SubvolumeInfo>> {
        self.live()?.list_subvolumes()
    }

    fn create_subvolume(&self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.live()?.create_subvolume(dir, name)
    }

    fn snapshot(&self, source: Ino, dir: Ino, name: &[u8], read_only: bool) -> Result<Entry> {
        let made = self.live()?.snapshot(source, dir, name, read_only);
        self.gate.open();
        made
    }

    fn delete_subvolume(&self, dir: Ino, name: &[u8]) -> Result<()> {
        self.live()?.delete_subvolume(dir, name)
    }

    fn set_read_only(&self, root: Ino, read_only: bool) -> Result<()> {
        let mut state = self.live()?;
        if state.read_only {
            return Err(Error::ReadOnly);
        }
        let id = state.root_of(root)?;
        if let Some(subvolume) = state.subvolumes.get_mut(&id) {
            subvolume.read_only = read_only;
        }
        Ok(())
    }

    fn set_received(&self, root: Ino, uuid: [u8; 16], _transid: u64) -> Result<()> {
        Subvolumes::set_read_only(self, root, true)?;
        let mut state = self.live()?;
        let id = state.root_of(root)?;
        if let Some(subvolume) = state.subvolumes.get_mut(&id) {
            subvolume.received_uuid = uuid;
        }
        Ok(())
    }

    fn default_subvolume(&self) -> Result<SubvolumeId> {
        Ok(self.live()?.default_subvolume)
    }

    fn set_default_subvolume(&self, id: SubvolumeId) -> Result<()> {
        let mut state = self.live()?;
        if !state.subvolumes.contains_key(&id) {
            return Err(Error::NotFound);
        }
        state.default_subvolume = id;
        Ok(())
    }

    fn subvolume_at(&self, root: Ino) -> Result<SubvolumeId> {
        self.live()?.root_of(root)
    }

    fn subvolume_of(&self, ino: Ino) -> Result<SubvolumeId> {
        Ok(self.live()?.node(ino)?.subvolume)
    }
}
