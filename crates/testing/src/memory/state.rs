//! The state of the file system, and how its parts are found.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::content::{Content, SECTOR};
use sapwood_vfs::{
    Attr, Entry, Error, FileKind, Ino, InodeFlags, Result, SubvolumeId, Timestamp, rules,
};

/// The root directory's number.
pub(super) const ROOT: Ino = Ino(256);
/// The subvolume of the root directory.
pub(super) const TOP: SubvolumeId = SubvolumeId(5);

/// One name in a directory.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) name: Vec<u8>,
    pub(super) ino: Ino,
}

/// A directory's names, by name and in order of creation.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    pub(super) parent: Ino,
    index_of: BTreeMap<Vec<u8>, u64>,
    pub(super) slots: BTreeMap<u64, Slot>,
    /// Ends of the listings that were begun.
    pub(super) listed: BTreeSet<u64>,
    next_index: u64,
    name_bytes: u64,
}

impl Directory {
    pub(super) fn new(parent: Ino) -> Self {
        Self {
            parent,
            index_of: BTreeMap::new(),
            slots: BTreeMap::new(),
            listed: BTreeSet::new(),
            // Position 0 is the start of a listing, so every name has a greater index.
            next_index: 2,
            name_bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<Ino> {
        let index = self.index_of.get(name)?;
        self.slots.get(index).map(|slot| slot.ino)
    }

    pub(super) fn insert(&mut self, name: &[u8], ino: Ino) {
        let index = self.next_index;
        self.next_index += 1;
        self.name_bytes += name.len() as u64;
        self.index_of.insert(name.to_vec(), index);
        let name = name.to_vec();
        self.slots.insert(index, Slot { name, ino });
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Option<Ino> {
        let index = self.index_of.remove(name)?;
        self.name_bytes -= name.len() as u64;
        self.slots.remove(&index).map(|slot| slot.ino)
    }

    pub(super) fn clear(&mut self) {
        self.index_of.clear();
        self.slots.clear();
        self.name_bytes = 0;
    }
}

/// The content of an inode.
#[derive(Debug, Clone)]
pub(super) enum Body {
    File(Content),
    Dir(Directory),
    Symlink(Vec<u8>),
    Special,
}

/// An inode.
#[derive(Debug, Clone)]
pub(super) struct MemoryInode {
    pub(super) kind: FileKind,
    pub(super) perm: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    pub(super) btime: Timestamp,
    pub(super) generation: u64,
    pub(super) flags: InodeFlags,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) body: Body,
    pub(super) subvolume: SubvolumeId,
    /// References that callers hold.
    pub(super) refs: u64,
    /// It never had a name but can get one.
    pub(super) linkable: bool,
    /// It is the empty directory that stands for a subvolume in a snapshot, and cannot be changed.
    pub(super) stub: bool,
}

impl MemoryInode {
    pub(super) fn attr(&self, ino: Ino) -> Attr {
        let (size, allocated) = match &self.body {
            Body::File(content) => (content.size, content.allocated() * SECTOR),
            // The same name counts in both of btrfs's indexes of a directory.
            Body::Dir(dir) => (dir.name_bytes * 2, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Special => (0, 0),
        };
        Attr {
            ino,
            kind: self.kind,
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            allocated,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            generation: self.generation,
            blksize: SECTOR as u32,
            flags: self.flags,
            layout: 0,
        }
    }

    /// Updates the times after a change of content or names.
    pub(super) fn touch(&mut self) {
        self.mtime = Timestamp::now();
        self.ctime = self.mtime;
    }
}

/// A subvolume.
#[derive(Debug, Clone)]
pub(super) struct Subvolume {
    pub(super) root: Ino,
    pub(super) read_only: bool,
    pub(super) uuid: [u8; 16],
    pub(super) parent_uuid: [u8; 16],
    pub(super) received_uuid: [u8; 16],
    pub(super) created: Timestamp,
    pub(super) created_generation: u64,
}

/// Everything.
#[derive(Debug)]
pub(super) struct State {
    pub(super) nodes: HashMap<Ino, MemoryInode>,
    pub(super) subvolumes: BTreeMap<SubvolumeId, Subvolume>,
    pub(super) default_subvolume: SubvolumeId,
    pub(super) next_ino: u64,
    pub(super) next_subvolume: u64,
    pub(super) generation: u64,
    /// Number of sectors that all files together may have.
    pub(super) capacity: u64,
    /// Number of sectors that they have.
    pub(super) used: u64,
    /// Moving a range within a file needs multiples of this many bytes.
    pub(super) block_size: u64,
    /// Flags that a new inode inherits from its directory.
    pub(super) inherited_flags: InodeFlags,
    pub(super) read_only: bool,
    pub(super) mounted: bool,
    pub(super) operations: u64,
    /// How often attributes were read.
    pub(super) attributes_read: u64,
}

impl State {
    pub(super) fn new(capacity: u64) -> Self {
        let mut state = Self {
            nodes: HashMap::new(),
            subvolumes: BTreeMap::new(),
            default_subvolume: TOP,
            next_ino: ROOT.0,
            next_subvolume: 256,
            generation: 1,
            capacity,
            used: 0,
            block_size: SECTOR,
            inherited_flags: rules::inherited_flags(InodeFlags::all()),
            read_only: false,
            mounted: true,
            operations: 0,
            attributes_read: 0,
        };
        let root = state.add_subvolume(TOP, [0; 16]);
        debug_assert_eq!(root, ROOT);
        state
    }

    /// A new subvolume of this id with an empty root directory, which is its own parent.
    pub(super) fn add_subvolume(&mut self, id: SubvolumeId, parent_uuid: [u8; 16]) -> Ino {
        let root = Ino(self.next_ino);
        let node = self.new_node(FileKind::Directory, Body::Dir(Directory::new(root)), id);
        let root = self.add(MemoryInode {
            perm: 0o755,
            nlink: 1,
            ..node
        });
        let subvolume = Subvolume {
            root,
            read_only: false,
            uuid: (u128::from(id.0) << 64 | 0x5a70).to_be_bytes(),
            parent_uuid,
            received_uuid: [0; 16],
            created: Timestamp::now(),
            created_generation: self.generation,
        };
        self.subvolumes.insert(id, subvolume);
        root
    }

    /// An inode of root without permissions or a name.
    pub(super) fn new_node(
        &self,
        kind: FileKind,
        body: Body,
        subvolume: SubvolumeId,
    ) -> MemoryInode {
        let now = Timestamp::now();
        MemoryInode {
            kind,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            generation: self.generation,
            flags: InodeFlags::empty(),
            xattrs: BTreeMap::new(),
            body,
            subvolume,
            refs: 0,
            linkable: false,
            stub: false,
        }
    }

    pub(super) fn add(&mut self, node: MemoryInode) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.nodes.insert(ino, node);
        ino
    }

    pub(super) fn node(&self, ino: Ino) -> Result<&MemoryInode> {
        self.nodes.get(&ino).ok_or(Error::Stale)
    }

    pub(super) fn node_mut(&mut self, ino: Ino) -> Result<&mut MemoryInode> {
        self.nodes.get_mut(&ino).ok_or(Error::Stale)
    }

    pub(super) fn dir(&self, ino: Ino) -> Result<&Directory> {
        match &self.node(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(super) fn dir_mut(&mut self, ino: Ino) -> Result<&mut Directory> {
        match &mut self.node_mut(ino)?.body {
            Body::Dir(dir) => Ok(dir),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(super) fn content(&self, ino: Ino) -> Result<&Content> {
        match &self.node(ino)?.body {
            Body::File(content) => Ok(content),
            Body::Dir(_) => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    /// Runs `change` on a file's content and updates the used space.
    pub(super) fn change_content<T>(
        &mut self,
        ino: Ino,
        change: impl FnOnce(&mut Content) -> T,
    ) -> Result<T> {
        let node = self.nodes.get_mut(&ino).ok_or(Error::Stale)?;
        let Body::File(content) = &mut node.body else {
            return Err(Error::Invalid);
        };
        let before = content.allocated();
        let result = change(content);
        self.used = self.used + content.allocated() - before;
        Ok(result)
    }

    /// Checks that there is space for `sectors` more.
    pub(super) fn reserve(&self, sectors: u64) -> Result<()> {
        if sectors <= self.capacity.saturating_sub(self.used) {
            Ok(())
        } else {
            Err(Error::NoSpace)
        }
    }

    /// Checks that `ino` may be changed: it is no stub, and neither the file system nor its
    /// subvolume is read-only.
    pub(super) fn writable(&self, ino: Ino) -> Result<()> {
        let node = self.node(ino)?;
        if node.stub {
            return Err(Error::NotPermitted);
        }
        let subvolume = self.subvolumes.get(&node.subvolume);
        if self.read_only || subvolume.is_some_and(|subvolume| subvolume.read_only) {
            Err(Error::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// An entry for `ino`, with a reference.
    pub(super) fn entry(&mut self, ino: Ino) -> Result<Entry> {
        let node = self.node_mut(ino)?;
        node.refs += 1;
        let attr = node.attr(ino);
        Ok(Entry { attr })
    }

    pub(super) fn forget(&mut self, ino: Ino, count: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.refs = node.refs.saturating_sub(count);
            self.reap(ino);
        }
    }

    /// Removes one name of an inode, and the inode if that was its last name and no caller holds
    /// it.
    pub(super) fn drop_link(&mut self, ino: Ino) -> Result<()> {
        let node = self.node_mut(ino)?;
        node.nlink = node.nlink.saturating_sub(1);
        node.ctime = Timestamp::now();
        self.reap(ino);
        Ok(())
    }

    pub(super) fn reap(&mut self, ino: Ino) {
        let Some(node) = self.nodes.get(&ino) else {
            return;
        };
        if node.nlink == 0 && node.refs == 0 {
            if let Body::File(content) = &node.body {
                self.used -= content.allocated();
            }
            self.nodes.remove(&ino);
        }
    }

    /// True if `ino` is the root directory of a subvolume.
    pub(super) fn is_subvolume_root(&self, ino: Ino) -> bool {
        let id = self.nodes.get(&ino).map(|node| node.subvolume);
        let subvolume = id.and_then(|id| self.subvolumes.get(&id));
        subvolume.is_some_and(|subvolume| subvolume.root == ino)
    }
}
