//! A stand-in for space and transactions: addresses and refs in memory, and nothing else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs_format::{
    Block, BlockGroupFlags, ChunkItem, ExtentFlags, Incompat, Key, MAGIC, StripeItem, SuperBlock,
};

use crate::Result;
use crate::devices::{Access, Volume};
use crate::tree::read::child;
use crate::tree::verify::{TreeStats, verify_tree};
use crate::tree::{
    BlockCache, BlockRef, DataRef, Root, TreeBlock, TreeRead, TreeWrite, create_root, write_blocks,
};

const BASE: u64 = 16 << 20;

/// The kind of reference to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum By {
    Root(u64),
    Parent(u64),
}

#[derive(Default)]
struct Space {
    next: u64,
    /// Reused at once, the last one first.
    free: Vec<u64>,
    pinned: Vec<u64>,
    refs: HashMap<u64, (BTreeMap<By, u64>, u64)>,
    data: BTreeMap<(u64, By, u64, u64), i64>,
    dirty: BTreeMap<u64, Arc<TreeBlock>>,
    recorded: HashSet<u64>,
}

/// A file system that has only trees.
pub(crate) struct Env {
    pub(super) blocks: BlockCache,
    transid: AtomicU64,
    space: Mutex<Space>,
}

impl TreeRead for Env {
    fn blocks(&self) -> &BlockCache {
        &self.blocks
    }
}

fn super_block(nodesize: u32, size: u64) -> SuperBlock {
    let mut sb = SuperBlock {
        magic: MAGIC,
        fsid: [7; 16],
        generation: 9.into(),
        root: BASE.into(),
        chunk_root: BASE.into(),
        chunk_root_generation: 1.into(),
        total_bytes: size.into(),
        num_devices: 1.into(),
        sectorsize: 4096.into(),
        nodesize: nodesize.into(),
        leafsize: nodesize.into(),
        stripesize: 4096.into(),
        incompat_flags: (Incompat::MIXED_BACKREF | Incompat::NO_HOLES).bits().into(),
        ..SuperBlock::default()
    };
    sb.dev_item.devid = 1.into();
    sb.dev_item.total_bytes = size.into();
    sb.dev_item.fsid = [7; 16];
    let chunk = ChunkItem {
        length: 64 << 30,
        owner: 2,
        stripe_len: 64 << 10,
        flags: BlockGroupFlags::SYSTEM,
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: 1,
        stripes: vec![StripeItem {
            devid: 1,
            offset: BASE,
            dev_uuid: [0; 16],
        }],
    };
    sb.set_sys_chunks([(BASE, &chunk)]).unwrap();
    sb
}

impl Env {
    pub(crate) fn new(nodesize: u32, cache_bytes: usize) -> Arc<Self> {
        let size = 128 << 30;
        let device = Arc::new(MemoryDevice::new(size));
        let sb = super_block(nodesize, size);
        crate::devices::write_supers_to(&*device, &sb).unwrap();
        let devices: Vec<Arc<dyn Device>> = vec![device.clone()];
        let (volume, _) = Volume::open(&devices, Access::default()).unwrap();
        Arc::new(Self {
            blocks: BlockCache::new(Arc::new(volume), cache_bytes),
            transid: AtomicU64::new(10),
            space: Mutex::new(Space {
                next: BASE,
                ..Space::default()
            }),
        })
    }

    pub(crate) fn handle(self: &Arc<Self>) -> TestHandle {
        TestHandle { env: self.clone() }
    }

    pub(crate) fn root(self: &Arc<Self>, id: u64) -> Arc<Root> {
        create_root(&mut self.handle(), id).unwrap()
    }

    /// Writes all dirty blocks and begins the next transaction. No thread may hold a handle.
    pub(super) fn commit(&self, roots: &[&Arc<Root>]) {
        let dirty: Vec<_> = self.space.lock().dirty.values().cloned().collect();
        write_blocks(self, &dirty).unwrap();
        for root in roots {
            root.switch_commit_root();
        }
        let mut space = self.space.lock();
        space.dirty.clear();
        space.recorded.clear();
        let pinned = std::mem::take(&mut space.pinned);
        space.free.extend(pinned);
        self.transid.fetch_add(1, Ordering::SeqCst);
    }

    /// The same trees through an empty cache, so that everything comes from the device.
    pub(super) fn reread(&self, root: &Root) -> (BlockCache, Root) {
        let cache = BlockCache::new(self.blocks.volume().clone(), 1 << 20);
        let item = root.update_item(root.node().generation());
        let root = Root::load(&cache, root.id(), 0, item).unwrap();
        (cache, root)
    }

    /// Checks each tree, that each block has exactly the refs that the trees imply, and that
    /// nothing else is allocated.
    pub(super) fn check(&self, roots: &[&Arc<Root>]) -> Vec<TreeStats> {
        let stats = roots
            .iter()
            .map(|root| verify_tree(self, root).unwrap())
            .collect();
        let mut seen = HashMap::<u64, BTreeMap<By, u64>>::new();
        let mut visited = HashSet::new();
        for root in roots {
            let top = root.node();
            *seen
                .entry(top.bytenr())
                .or_default()
                .entry(By::Root(root.id()))
                .or_default() += 1;
            self.count_refs(&top, root, &mut seen, &mut visited);
        }
        let space = self.space.lock();
        for (bytenr, (refs, _)) in &space.refs {
            assert_eq!(seen.get(bytenr), Some(refs), "refs of block {bytenr}");
        }
        for bytenr in seen.keys() {
            assert!(
                space.refs.contains_key(bytenr),
                "block {bytenr} in use but free"
            );
        }
        stats
    }

    fn count_refs(
        &self,
        block: &Arc<TreeBlock>,
        root: &Root,
        seen: &mut HashMap<u64, BTreeMap<By, u64>>,
        visited: &mut HashSet<u64>,
    ) {
        if !visited.insert(block.bytenr()) {
            return;
        }
        let flags = self.space.lock().refs[&block.bytenr()].1;
        let by = if flags & ExtentFlags::FULL_BACKREF.bits() != 0 {
            By::Parent(block.bytenr())
        } else {
            By::Root(block.owner())
        };
        let bytes = block.snapshot();
        let view = Block::new(&bytes).unwrap();
        for slot in 0..view.ptrs().len() {
            let next = child(&self.blocks, root.id(), &view, slot).unwrap();
            *seen
                .entry(next.bytenr())
                .or_default()
                .entry(by)
                .or_default() += 1;
            self.count_refs(&next, root, seen, visited);
        }
    }

    /// All data refs, with their counts.
    pub(super) fn data_refs(&self) -> BTreeMap<(u64, By, u64, u64), i64> {
        self.space.lock().data.clone()
    }

    /// Adds the refs of extents that a test inserts itself.
    pub(super) fn note_data(self: &Arc<Self>, data: &DataRef) {
        self.handle().data_ref(data, true).unwrap();
    }

    pub(super) fn allocated(&self) -> usize {
        self.space.lock().refs.len()
    }

    pub(super) fn transid(&self) -> u64 {
        self.transid.load(Ordering::SeqCst)
    }
}

pub(crate) struct TestHandle {
    pub(super) env: Arc<Env>,
}

impl TreeRead for TestHandle {
    fn blocks(&self) -> &BlockCache {
        &self.env.blocks
    }
}

impl TreeWrite for TestHandle {
    fn transid(&self) -> u64 {
        self.env.transid()
    }

    fn record_root(&mut self, root: &Arc<Root>) -> Result<()> {
        root.set_last_trans(self.transid());
        self.env.space.lock().recorded.insert(root.id());
        Ok(())
    }

    fn alloc_block(&mut self, _root_id: u64, _hint: u64) -> Result<u64> {
        let nodesize = u64::from(self.blocks().volume().geometry().nodesize);
        let mut space = self.env.space.lock();
        if let Some(bytenr) = space.free.pop() {
            return Ok(bytenr);
        }
        let bytenr = space.next;
        space.next += nodesize;
        Ok(bytenr)
    }

    fn free_block(&mut self, root: &Root, block: &TreeBlock, last: bool) -> Result<()> {
        let bytenr = block.bytenr();
        let fresh = block.generation() == self.transid() && !block.is_written();
        self.block_ref(bytenr, block.level(), root.id(), None, BlockRef::Drop)?;
        let mut space = self.env.space.lock();
        let gone = space.refs[&bytenr].0.is_empty();
        assert_eq!(
            gone, last,
            "last ref of block {bytenr} {:?}",
            space.refs[&bytenr]
        );
        if gone {
            space.refs.remove(&bytenr);
            if fresh {
                assert!(!space.dirty.contains_key(&bytenr));
                space.free.push(bytenr);
            } else {
                space.pinned.push(bytenr);
            }
        }
        Ok(())
    }

    fn extent_info(&mut self, bytenr: u64, _level: u8) -> Result<(u64, u64)> {
        let (refs, flags) = {
            let space = self.env.space.lock();
            let (refs, flags) = &space.refs[&bytenr];
            (refs.values().sum(), *flags)
        };
        // Lets other threads change the found item.
        (0..20).for_each(|_| std::thread::yield_now());
        Ok((refs, flags))
    }

    fn set_full_backref(&mut self, bytenr: u64, _level: u8) -> Result<()> {
        let mut space = self.env.space.lock();
        let entry = space.refs.get_mut(&bytenr).unwrap();
        entry.1 |= ExtentFlags::FULL_BACKREF.bits();
        Ok(())
    }

    fn block_ref(
        &mut self,
        bytenr: u64,
        _level: u8,
        root_id: u64,
        parent: Option<u64>,
        change: BlockRef,
    ) -> Result<()> {
        let by = parent.map_or(By::Root(root_id), By::Parent);
        let mut space = self.env.space.lock();
        if change == BlockRef::New {
            assert!(!space.refs.contains_key(&bytenr), "{bytenr} is in use");
            space.refs.insert(bytenr, (BTreeMap::new(), 0));
        }
        let entry = space.refs.get_mut(&bytenr).expect("a block that has refs");
        let count = entry.0.entry(by).or_default();
        if change == BlockRef::Drop {
            assert!(*count > 0, "block {bytenr} has no ref by {by:?}");
            *count -= 1;
            if *count == 0 {
                entry.0.remove(&by);
            }
        } else {
            *count += 1;
        }
        Ok(())
    }

    fn data_ref(&mut self, data: &DataRef, add: bool) -> Result<()> {
        let by = data.parent.map_or(By::Root(data.root_id), By::Parent);
        let mut space = self.env.space.lock();
        let key = (data.bytenr, by, data.objectid, data.offset);
        let count = space.data.entry(key).or_default();
        *count += if add { 1 } else { -1 };
        assert!(*count >= 0, "{key:?}");
        if *count == 0 {
            space.data.remove(&key);
        }
        Ok(())
    }

    fn add_dirty(&mut self, block: &Arc<TreeBlock>) {
        let old = self
            .env
            .space
            .lock()
            .dirty
            .insert(block.bytenr(), block.clone());
        assert!(old.is_none());
    }

    fn remove_dirty(&mut self, block: &TreeBlock) {
        self.env.space.lock().dirty.remove(&block.bytenr()).unwrap();
    }

    fn abort(&self, err: &crate::Error) {
        panic!("aborted: {err}");
    }
}

/// All items of a tree.
pub(super) fn items(env: &(impl TreeRead + ?Sized), root: &Root) -> Vec<(Key, Vec<u8>)> {
    let mut cursor = root.seek(env, &Key::MIN).unwrap();
    let mut all = Vec::new();
    while let Some((key, data)) = cursor.item() {
        all.push((key, data.to_vec()));
        cursor.next().unwrap();
    }
    all
}

/// A key of a kind that the validator does not know.
pub(super) fn key(n: u64) -> Key {
    Key::new(n / 8 + 1, 253 + (n % 8 / 4) as u8, n)
}

/// Random numbers, the same for the same seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit.max(1)
    }

    pub(super) fn bytes(&mut self, limit: usize) -> Vec<u8> {
        let len = self.below(limit as u64) as usize;
        let byte = self.below(256) as u8;
        vec![byte; len]
    }
}

#[test]
fn shareable_trees_are_those_with_files() {
    use super::super::root::is_shareable;
    assert!(is_shareable(5) && is_shareable(256) && !is_shareable(2));
}
