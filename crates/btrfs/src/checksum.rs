//! Data checksums in the checksum tree.
//!
//! # How it works
//! An item's key names the logical address of its first sector; its data is one checksum for each
//! sector from there on. Items never overlap, and an item has at most [`max_sums`] checksums. New
//! checksums extend the preceding item if they follow it; deleting may cut an item in two.
//!
//! Readers take no lock, so every step leaves the sectors that are not deleted findable: the
//! right part of an item is inserted before the left part shrinks; where two items have a
//! checksum for one sector, they are equal. One lock serializes the writers: a change looks at
//! neighbours and then changes several items, which no lock of a leaf covers.
//!
//! Freed space is reused only when its checksums are deleted with the extent, so a checksum that is
//! found for a sector belongs to it. The model test in this file covers all of this.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{
    Checksum, ChecksumKind, Key, SuperBlock, kind, leaf_data_size, objectid,
};

use crate::lock::{Rank, RankedMutex};
use crate::tree::{Cursor, Root, TreeRead, TreeWrite};
use crate::{Error, Result};

/// Bytes of an item's head in a leaf.
const ITEM_HEAD: usize = 25;

/// Parameters for the placement of checksums.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// Bytes of a sector.
    sector: u64,
    /// Bytes of a checksum.
    size: usize,
    /// Checksums in an item at most.
    max: usize,
}

impl Rules {
    fn new(nodesize: u32, sectorsize: u32, size: usize) -> Self {
        Self {
            sector: sectorsize.into(),
            size,
            max: max_sums(nodesize, size),
        }
    }

    /// The logical range that an item covers.
    fn range(&self, start: u64, data: &[u8]) -> Range<u64> {
        let sectors = (data.len() / self.size) as u64;
        start..start.saturating_add(sectors * self.sector)
    }

    /// Bytes of an item for the sectors of `range`, which it covers.
    fn part<'a>(&self, start: u64, data: &'a [u8], range: Range<u64>) -> &'a [u8] {
        let at = |logical: u64| ((logical - start) / self.sector) as usize * self.size;
        data.get(at(range.start)..at(range.end)).unwrap_or_default()
    }
}

/// Most checksums of one item: two such items fit in a leaf, as the kernel counts it.
fn max_sums(nodesize: u32, size: usize) -> usize {
    (leaf_data_size(nodesize as usize).saturating_sub(2 * ITEM_HEAD) / size)
        .saturating_sub(1)
        .max(1)
}

fn key_of(logical: u64) -> Key {
    Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, logical)
}

fn is_sums(key: &Key) -> bool {
    key.objectid == objectid::EXTENT_CSUM && key.kind == kind::EXTENT_CSUM
}

/// A cursor at the item that covers `logical`, or else at the first one after it.
fn seek(root: &Root, env: &(impl TreeRead + ?Sized), rules: Rules, logical: u64) -> Result<Cursor> {
    let cursor = root.seek_back(env, &key_of(logical))?;
    if let Some((key, data)) = cursor.item()
        && is_sums(&key)
        && rules.range(key.offset, data).end > logical
    {
        return Ok(cursor);
    }
    root.seek(env, &key_of(logical))
}

/// The checksum tree of a file system.
#[derive(Debug)]
pub(crate) struct Checksums {
    tree: Arc<Root>,
    kind: ChecksumKind,
    rules: Rules,
    /// Held by the thread that changes the tree.
    edit: RankedMutex<()>,
}

impl Checksums {
    /// The checksums in `tree`, in a file system with this superblock.
    pub(crate) fn new(tree: &Arc<Root>, super_block: &SuperBlock, kind: ChecksumKind) -> Self {
        let (nodesize, sectorsize) = (super_block.nodesize.get(), super_block.sectorsize.get());
        Self {
            tree: Arc::clone(tree),
            kind,
            rules: Rules::new(nodesize, sectorsize, kind.size()),
            edit: RankedMutex::new(Rank::Checksums, ()),
        }
    }

    /// Looks up the checksums of the sectors of a logical range, in order; `None` for a sector
    /// that has none.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn lookup(
        &self,
        env: &impl TreeRead,
        logical: u64,
        len: u64,
    ) -> Result<Vec<Option<Checksum>>> {
        let rules = self.rules;
        let mut found = vec![None; (len / rules.sector) as usize];
        each(&self.tree, env, rules, logical..logical + len, |at, sum| {
            if let Some(slot) = found.get_mut(((at - logical) / rules.sector) as usize) {
                *slot = self.kind.read(sum);
            }
        })?;
        Ok(found)
    }

    /// The checksums of a logical range, as runs without a gap: first sector, checksums.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn runs(
        &self,
        env: &impl TreeRead,
        logical: u64,
        len: u64,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let rules = self.rules;
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        each(&self.tree, env, rules, logical..logical + len, |at, sum| {
            let end =
                |run: &(u64, Vec<u8>)| run.0 + (run.1.len() / rules.size) as u64 * rules.sector;
            match runs.last_mut() {
                Some(run) if end(run) == at => run.1.extend_from_slice(sum),
                _ => runs.push((at, sum.to_vec())),
            }
        })?;
        Ok(runs)
    }

    /// Whether any sector of a logical range has a checksum.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn has_any(&self, env: &impl TreeRead, logical: u64, len: u64) -> Result<bool> {
        let cursor = seek(&self.tree, env, self.rules, logical)?;
        Ok(cursor
            .key()
            .is_some_and(|key| is_sums(&key) && key.offset < logical + len))
    }

    /// Adds the checksums of an extent that was written at `logical`; `sums` is one after another.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn insert(&self, h: &mut impl TreeWrite, logical: u64, sums: &[u8]) -> Result<()> {
        let _edit = self.edit.lock();
        add(&self.tree, h, self.rules, logical, sums)
    }

    /// Like [`insert`](Self::insert), into a log tree, whose checksums no other thread changes at
    /// the same time.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn insert_in_log(
        &self,
        h: &mut impl TreeWrite,
        log: &Arc<Root>,
        logical: u64,
        sums: &[u8],
    ) -> Result<()> {
        add(log, h, self.rules, logical, sums)
    }

    /// Deletes the checksums of an extent that is freed.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn delete(&self, h: &mut impl TreeWrite, logical: u64, len: u64) -> Result<()> {
        let _edit = self.edit.lock();
        remove(&self.tree, h, self.rules, logical..logical + len)
    }
}

fn each(
    root: &Root,
    env: &(impl TreeRead + ?Sized),
    rules: Rules,
    range: Range<u64>,
    mut show: impl FnMut(u64, &[u8]),
) -> Result<()> {
    let mut cursor = seek(root, env, rules, range.start)?;
    while let Some((key, data)) = cursor.item() {
        if !is_sums(&key) || key.offset >= range.end {
            break;
        }
        for (i, sum) in data.chunks_exact(rules.size).enumerate() {
            let at = key.offset + i as u64 * rules.sector;
            if range.contains(&at) {
                show(at, sum);
            }
        }
        cursor.next()?;
    }
    Ok(())
}

/// An item, copied from its leaf.
struct Item {
    start: u64,
    data: Vec<u8>,
}

fn item_at(cursor: &Cursor) -> Option<Item> {
    let (key, data) = cursor.item()?;
    is_sums(&key).then(|| Item {
        start: key.offset,
        data: data.to_vec(),
    })
}

/// An item that new checksums follow or overlap.
struct Before {
    start: u64,
    /// Number of its checksums.
    sums: usize,
    /// Its data, if they overlap it.
    overlapped: Option<Vec<u8>>,
}

fn add<H: TreeWrite>(
    root: &Arc<Root>,
    h: &mut H,
    rules: Rules,
    logical: u64,
    sums: &[u8],
) -> Result<()> {
    let mut at = logical;
    let mut rest = sums;
    while !rest.is_empty() {
        let mut cursor = root.seek_back(&*h, &key_of(at))?;
        let before = cursor.item().filter(|(key, _)| is_sums(key));
        let before = before.map(|(key, data)| (rules.range(key.offset, data), key, data));
        let before = before.filter(|(range, ..)| range.end >= at);
        // An item may be long: it is copied only if the new checksums overlap it.
        let before = before.map(|(range, key, data)| Before {
            start: key.offset,
            sums: data.len() / rules.size,
            overlapped: (range.end > at).then(|| data.to_vec()),
        });
        match cursor.item() {
            Some(_) => cursor.next()?,
            None => cursor = root.seek(&*h, &key_of(at.saturating_add(1)))?,
        }
        let next = cursor.key().filter(is_sums);
        // With the cursor's snapshot of the leaf alive, every change would copy the leaf.
        drop(cursor);
        let room = next.map_or(u64::MAX, |next| (next.offset - at).div_ceil(rules.sector));
        let limit = usize::try_from(room).unwrap_or(usize::MAX).min(rules.max);
        let count =
            |have: usize| (limit.min(rules.max - have.min(rules.max)) * rules.size).min(rest.len());
        let taken = match before {
            // Left over in a damaged tree: the new checksum counts.
            Some(Before {
                start,
                overlapped: Some(mut data),
                ..
            }) => {
                let from = ((at - start) / rules.sector) as usize * rules.size;
                let taken = rest.len().min(data.len().saturating_sub(from));
                let (front, _) = rest.split_at(taken);
                if let Some(place) = data.get_mut(from..from + taken) {
                    place.copy_from_slice(front);
                }
                root.put(h, &key_of(start), &data)?;
                taken
            }
            Some(Before { start, sums, .. }) if count(sums) > 0 => {
                let taken = count(sums);
                root.append(h, &key_of(start), rest.get(..taken).unwrap_or_default())?;
                taken
            }
            _ => {
                let taken = count(0);
                root.insert(h, &key_of(at), rest.get(..taken).unwrap_or_default())?;
                taken
            }
        };
        if taken == 0 {
            return Err(Error::Checksums { logical: at });
        }
        rest = rest.get(taken..).unwrap_or_default();
        at += (taken / rules.size) as u64 * rules.sector;
    }
    Ok(())
}

fn remove<H: TreeWrite>(
    root: &Arc<Root>,
    h: &mut H,
    rules: Rules,
    range: Range<u64>,
) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let Some(item) = item_at(&seek(root, &*h, rules, at)?) else {
            break;
        };
        let covers = rules.range(item.start, &item.data);
        if covers.start >= range.end {
            break;
        }
        if covers.end > range.end {
            let right = rules.part(item.start, &item.data, range.end..covers.end);
            root.put(h, &key_of(range.end), right)?;
        }
        if covers.start < range.start {
            let left = rules.part(item.start, &item.data, covers.start..range.start);
            root.put(h, &key_of(item.start), left)?;
        } else {
            root.delete(h, &key_of(item.start))?;
        }
        at = covers.end.max(at + rules.sector);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tree::tests::env::Env;
    use proptest::prelude::*;

    const RULES: Rules = Rules {
        sector: 4096,
        size: 4,
        max: 20,
    };
    const SECTORS: u64 = 200;

    #[derive(Debug, Clone)]
    enum Op {
        Add(u64, u64, u32),
        Remove(u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..SECTORS, 1..60u64, any::<u32>()).prop_map(|(at, n, v)| Op::Add(at, n, v)),
            2 => (0..SECTORS, 1..60u64).prop_map(|(at, n)| Op::Remove(at, n)),
        ]
    }

    /// All checksums by sector, and defects of the items.
    fn content(root: &Root, env: &Arc<Env>) -> BTreeMap<u64, u32> {
        let mut found = BTreeMap::new();
        let mut end = 0;
        let mut cursor = root.seek(env, &Key::MIN).unwrap();
        while let Some((key, data)) = cursor.item() {
            assert!(is_sums(&key) && key.offset >= end, "items overlap at {key}");
            assert!(!data.is_empty() && data.len() <= RULES.max * RULES.size);
            end = RULES.range(key.offset, data).end;
            for (i, sum) in data.chunks(4).enumerate() {
                let value = u32::from_le_bytes(sum.try_into().unwrap());
                found.insert(key.offset / 4096 + i as u64, value);
            }
            cursor.next().unwrap();
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]
        #[test]
        fn like_a_map(ops in prop::collection::vec(op(), 1..60)) {
            let env = Env::new(4096, 16 << 20);
            let root = env.root(objectid::CSUM_TREE);
            let mut h = env.handle();
            let mut model = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Add(at, n, value) => {
                        let values: Vec<u32> = (0..n as u32).map(|i| value.wrapping_add(i)).collect();
                        let sums: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                        add(&root, &mut h, RULES, at * 4096, &sums).unwrap();
                        model.extend((at..).zip(values));
                    }
                    Op::Remove(at, n) => {
                        remove(&root, &mut h, RULES, at * 4096..(at + n) * 4096).unwrap();
                        model.retain(|sector, _| !(at..at + n).contains(sector));
                    }
                }
                prop_assert_eq!(&content(&root, &env), &model);
            }
            let mut looked_up = BTreeMap::new();
            each(&root, &env, RULES, 30 * 4096..170 * 4096, |at, sum| {
                looked_up.insert(at / 4096, u32::from_le_bytes(sum.try_into().unwrap()));
            })
            .unwrap();
            let expected: BTreeMap<u64, u32> = model.range(30..170).map(|(k, v)| (*k, *v)).collect();
            prop_assert_eq!(looked_up, expected);
        }
    }

    #[test]
    fn sums_that_follow_share_an_item() {
        let env = Env::new(16384, 16 << 20);
        let root = env.root(objectid::CSUM_TREE);
        let mut h = env.handle();
        for i in 0..RULES.max as u64 {
            add(&root, &mut h, RULES, i * 4096, &[i as u8; 4]).unwrap();
        }
        let first = root.get(&env, &key_of(0)).unwrap().unwrap();
        assert_eq!(first.len(), RULES.max * RULES.size);
        add(&root, &mut h, RULES, RULES.max as u64 * 4096, &[9; 4]).unwrap();
        assert!(
            root.get(&env, &key_of(RULES.max as u64 * 4096))
                .unwrap()
                .is_some()
        );
    }
}
