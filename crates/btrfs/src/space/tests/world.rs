//! Files that are created item by item, so that every ref of every extent is known.

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_btrfs_format::{
    DirItemRef, FileExtent, InodeFlags, InodeItem, InodeRefRef, Key, RegularExtent, file_type,
    kind, name_hash, objectid,
};

use crate::mount::Engine;
use crate::space::DataReservation;
use crate::space::delayed::{Extent, RefKey};
use crate::space::extent_refs::backrefs;
use crate::space::refs::data_key;
use crate::transaction::Handle;
use crate::tree::{DataRef, Root};

/// Size of the slots of a file, in bytes. A file extent item covers half an extent or a whole one.
pub(super) const SLOT: u64 = 64 << 10;

/// Random numbers that a seed reproduces.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// One used slot: the extent, and whether two items share it.
#[derive(Clone, Copy)]
struct Use {
    extent: (u64, u64),
    halves: bool,
}

/// Files in the top directory whose data is not read.
pub(super) struct World {
    pub(super) engine: Arc<Engine>,
    root: Arc<Root>,
    first: u64,
    files: u64,
    slots: BTreeMap<(u64, u64), Use>,
}

impl World {
    /// Creates `files` empty files with inode numbers from 5000 on.
    pub(super) fn new(engine: Arc<Engine>, files: u64) -> Self {
        Self::with_first(engine, 5000, files)
    }

    /// Creates `files` empty files with inode numbers from `first` on.
    pub(super) fn with_first(engine: Arc<Engine>, first: u64, files: u64) -> Self {
        let root = engine.roots.get(objectid::FS_TREE).unwrap();
        let this = Self {
            engine,
            root,
            first,
            files,
            slots: BTreeMap::new(),
        };
        let mut h = this.engine.start(10).unwrap();
        for file in first..first + files {
            this.create(&mut h, file);
        }
        let top = Key::new(256, kind::INODE_ITEM, 0);
        let names: u64 = (first..first + files)
            .map(|f| name(f).len() as u64 * 2)
            .sum();
        this.edit_inode(&mut h, &top, |item| {
            item.size = (item.size.get() + names).into();
        });
        h.end().unwrap();
        this
    }

    fn create(&self, h: &mut Handle, file: u64) {
        let inode = file;
        let item = InodeItem {
            generation: h.transid().into(),
            transid: h.transid().into(),
            nlink: 1.into(),
            mode: 0o100_644.into(),
            flags: InodeFlags::NODATASUM.bits().into(),
            ..InodeItem::default()
        };
        let name = name(file);
        let entry = DirItemRef {
            location: Key::new(inode, kind::INODE_ITEM, 0),
            transid: h.transid(),
            kind: file_type::REG_FILE,
            name: name.as_bytes(),
            data: &[],
        };
        let index = 1_000_000 + file;
        let back = InodeRefRef {
            index,
            name: name.as_bytes(),
        };
        let hash = u64::from(name_hash(name.as_bytes()));
        let mut insert = |key: Key, data: &[u8]| self.root.insert(h, &key, data).unwrap();
        insert(Key::new(inode, kind::INODE_ITEM, 0), item.bytes());
        insert(Key::new(inode, kind::INODE_REF, 256), &back.encode());
        insert(Key::new(256, kind::DIR_ITEM, hash), &entry.encode());
        insert(Key::new(256, kind::DIR_INDEX, index), &entry.encode());
    }

    fn edit_inode(&self, h: &mut Handle, key: &Key, edit: impl Fn(&mut InodeItem)) {
        let change = |item: Option<&[u8]>| {
            let mut item = InodeItem::read(item.unwrap()).unwrap();
            edit(&mut item);
            Ok(crate::tree::Change::Put(item.bytes().to_vec()))
        };
        self.root.modify(h, key, change).unwrap();
    }

    fn account(&self, h: &mut Handle, inode: u64, change: i64, end: u64) {
        let key = Key::new(inode, kind::INODE_ITEM, 0);
        self.edit_inode(h, &key, |item| {
            item.nbytes = item.nbytes.get().checked_add_signed(change).unwrap().into();
            item.size = item.size.get().max(end).into();
        });
    }

    fn data_ref(&self, extent: (u64, u64), inode: u64, at: u64) -> DataRef {
        DataRef {
            bytenr: extent.0,
            len: extent.1,
            parent: None,
            root_id: objectid::FS_TREE,
            objectid: inode,
            offset: at,
        }
    }

    /// Puts an extent of [`SLOT`] bytes into a slot: a new one, or (`shared`) one in use.
    pub(super) fn fill(
        &mut self,
        h: &mut Handle,
        numbers: &mut Numbers,
        promise: Option<&DataReservation>,
    ) {
        let inode = self.first + numbers.below(self.files);
        let at = numbers.below(200) * SLOT;
        if self.slots.contains_key(&(inode, at)) {
            return;
        }
        let engine = self.engine.clone();
        let space = &engine.space;
        let halves = numbers.below(2) == 0;
        let items = 1 + u32::from(halves);
        let extent = match promise {
            Some(promise) => {
                let found = space.reserve_data_extent(promise, SLOT, SLOT, 0).unwrap();
                let first = self.data_ref(found, inode, at);
                space.insert_data_extent(h, &first).unwrap();
                if halves {
                    space.add_data_ref(h, &first, 1).unwrap();
                }
                found
            }
            None => {
                // A few extents get most refs, so that some overflow into separate items.
                let known = self.slots.values().nth(numbers.below(5) as usize);
                let Some(extent) = known.map(|used| used.extent) else {
                    return;
                };
                let new = self.data_ref(extent, inode, at);
                space.add_data_ref(h, &new, items).unwrap();
                extent
            }
        };
        let part = SLOT / u64::from(items);
        for n in 0..u64::from(items) {
            let item = FileExtent::Regular(RegularExtent {
                generation: h.transid(),
                ram_bytes: SLOT,
                compression: 0,
                disk_bytenr: extent.0,
                disk_num_bytes: SLOT,
                offset: n * part,
                num_bytes: part,
            });
            let key = Key::new(inode, kind::EXTENT_DATA, at + n * part);
            self.root.insert(h, &key, &item.encode()).unwrap();
        }
        self.account(h, inode, SLOT as i64, at + SLOT);
        self.slots.insert((inode, at), Use { extent, halves });
    }

    /// Empties some slot.
    pub(super) fn clear(&mut self, h: &mut Handle, numbers: &mut Numbers) {
        if self.slots.is_empty() {
            return;
        }
        let n = numbers.below(self.slots.len() as u64) as usize;
        let (&(inode, at), &used) = self.slots.iter().nth(n).unwrap();
        self.slots.remove(&(inode, at));
        let first = Key::new(inode, kind::EXTENT_DATA, at);
        let last = Key::new(inode, kind::EXTENT_DATA, at + SLOT - 1);
        let items = 1 + usize::from(used.halves);
        let count = self.root.delete_range(h, &first, &last).unwrap();
        assert_eq!(count, items);
        let gone = self.data_ref(used.extent, inode, at);
        let space = &self.engine.space;
        space.drop_data_ref(h, &gone, items as u32).unwrap();
        self.account(h, inode, -(SLOT as i64), 0);
    }

    /// Compares the extent tree with the operations. Nothing may be pending.
    pub(super) fn verify(&self) {
        let mut expected: BTreeMap<(u64, u64), BTreeMap<RefKey, u64>> = BTreeMap::new();
        for (&(inode, at), used) in &self.slots {
            let key = data_key(&self.data_ref(used.extent, inode, at));
            let refs = expected.entry(used.extent).or_default();
            *refs.entry(key).or_insert(0) += 1 + u64::from(used.halves);
        }
        let space = &self.engine.space;
        for ((bytenr, len), refs) in expected {
            let extent = Extent {
                bytenr,
                len,
                level: None,
            };
            let found = backrefs(&mut space.extent_reader(), &space.rules, &extent).unwrap();
            let all = found.iter().map(|r| (RefKey::of(r).unwrap(), r.count()));
            assert_eq!(all.collect::<BTreeMap<_, _>>(), refs, "extent {bytenr}");
            assert_eq!(found.len(), refs.len(), "extent {bytenr}");
        }
    }

    /// Number of slots in use.
    pub(super) fn used(&self) -> usize {
        self.slots.len()
    }
}

fn name(file: u64) -> String {
    format!("made-{file}")
}
