//! Writes merged ref changes of one extent into its extent item and keyed ref items.
//!
//! # How it works
//! The item (EXTENT_ITEM, or METADATA_ITEM of a tree block) has the sum of refs, followed by inline
//! refs, ordered by kind ascending and key offset descending. A new backref is stored inline,
//! unless the item would outgrow its limit (a sixteenth of a leaf) or the extent has keyed refs
//! already. Then it is a separate item that follows. EXTENT_DATA_REF keys are hashes: colliding
//! refs take the next free offsets. With simple quotas, the first inline ref of a data extent is its
//! owner, which counts nothing and stays as long as the item.
//!
//! Facts: btrfs documentation, "On-disk format" and "Btrees". The limits were compared with images
//! that the kernel wrote.

use sapwood_btrfs_format::{
    ExtentFlags, ExtentItemRef, InlineRef, Item, Key, kind, leaf_data_size,
};

use super::delayed::{Extent, Head, RefKey};
use super::store::{ItemRead, ItemStore};
use crate::error::{Error, Result};

/// Properties of extent items, from the file system's features.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ItemRules {
    /// Tree blocks have a METADATA_ITEM.
    pub(crate) skinny: bool,
    /// Bytes of a tree block.
    pub(crate) nodesize: u32,
    /// New data extents get an owner, for simple quotas.
    pub(crate) owners: bool,
}

impl ItemRules {
    /// An item with inline refs stays smaller than this.
    fn item_limit(&self) -> usize {
        leaf_data_size(self.nodesize as usize) / 16 - Item::SIZE
    }

    /// The key of a new extent's item.
    fn key(&self, extent: &Extent) -> Key {
        match extent.level {
            Some(level) if self.skinny => {
                Key::new(extent.bytenr, kind::METADATA_ITEM, level.into())
            }
            _ => Key::new(extent.bytenr, kind::EXTENT_ITEM, extent.len),
        }
    }
}

/// A parsed extent item.
#[derive(Clone, Debug)]
struct Parsed {
    key: Key,
    refs: u64,
    generation: u64,
    flags: ExtentFlags,
    tree_block: Option<(Key, u8)>,
    inline: Vec<InlineRef>,
}

impl Parsed {
    fn encode(&self) -> Vec<u8> {
        let head = ExtentItemRef {
            refs: self.refs,
            generation: self.generation,
            flags: self.flags,
            tree_block: self.tree_block,
            inline: &[],
        };
        head.encode(&self.inline)
    }

    fn size(&self) -> usize {
        let head = if self.tree_block.is_some() { 42 } else { 24 };
        let refs = self.inline.iter().map(inline_size);
        head + refs.sum::<usize>()
    }

    /// Inserts a ref at its place in the order.
    fn insert_inline(&mut self, new: InlineRef) {
        let order = new.inline_order();
        let at = self.inline.partition_point(|r| r.inline_order() <= order);
        self.inline.insert(at, new);
    }

    fn position(&self, wanted: RefKey) -> Option<usize> {
        let same = |r: &InlineRef| RefKey::of(r) == Some(wanted);
        self.inline.iter().position(same)
    }
}

fn inline_size(found: &InlineRef) -> usize {
    InlineRef::inline_size(found.kind()).unwrap_or_default()
}

/// Refs and flags of an extent in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentState {
    /// Sum of all refs.
    pub(crate) refs: u64,
    /// Flags of its item.
    pub(crate) flags: ExtentFlags,
    /// Transid in which it was allocated.
    pub(crate) generation: u64,
}

/// Result of [`apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// The extent got an item.
    Inserted,
    /// It is still in use.
    Changed,
    /// The last ref and the item were removed.
    Removed {
        /// Transaction that had allocated the extent.
        generation: u64,
        /// Tree that a data extent was allocated for, if that is recorded.
        owner: Option<u64>,
    },
}

fn find(store: &mut impl ItemRead, rules: &ItemRules, extent: &Extent) -> Result<Option<Parsed>> {
    let key = rules.key(extent);
    let mut found = store.get(&key)?.map(|item| (key, item));
    if found.is_none() && key.kind == kind::METADATA_ITEM {
        // A file system that was converted to skinny items keeps its old ones.
        let key = Key::new(extent.bytenr, kind::EXTENT_ITEM, extent.len);
        found = store.get(&key)?.map(|item| (key, item));
    }
    let Some((key, item)) = found else {
        return Ok(None);
    };
    let bad = |source| Error::ExtentItem {
        bytenr: extent.bytenr,
        source,
    };
    let head = ExtentItemRef::parse(key.kind, &item).map_err(bad)?;
    Ok(Some(Parsed {
        key,
        refs: head.refs,
        generation: head.generation,
        flags: head.flags,
        tree_block: head.tree_block,
        inline: head.inline_refs().collect::<Result<_, _>>().map_err(bad)?,
    }))
}

/// Reads refs and flags of an extent; `None` if it has no item.
///
/// # Errors
/// [`Error::ExtentItem`] if the item does not parse; errors of the store.
pub(crate) fn state(
    store: &mut impl ItemRead,
    rules: &ItemRules,
    extent: &Extent,
) -> Result<Option<ExtentState>> {
    let found = find(store, rules, extent)?;
    Ok(found.map(|item| ExtentState {
        refs: item.refs,
        flags: item.flags,
        generation: item.generation,
    }))
}

/// All backrefs of an extent, inline and keyed; empty if it has no item.
///
/// # Errors
/// [`Error::ExtentItem`] for a malformed item; errors of the store.
pub(crate) fn backrefs(
    store: &mut impl ItemRead,
    rules: &ItemRules,
    extent: &Extent,
) -> Result<Vec<InlineRef>> {
    let found = described(store, rules, extent)?;
    Ok(found.map(|(_, refs)| refs).unwrap_or_default())
}

/// State and all backrefs of an extent; `None` if it has no item.
///
/// # Errors
/// [`Error::ExtentItem`] for a malformed item; errors of the store.
pub(crate) fn described(
    store: &mut impl ItemRead,
    rules: &ItemRules,
    extent: &Extent,
) -> Result<Option<(ExtentState, Vec<InlineRef>)>> {
    let Some(item) = find(store, rules, extent)? else {
        return Ok(None);
    };
    let state = ExtentState {
        refs: item.refs,
        flags: item.flags,
        generation: item.generation,
    };
    let mut all = item.inline;
    let mut at = item.key.successor();
    while let Some(from) = at {
        let Some((key, bytes)) = next_keyed(store, extent.bytenr, &from)? else {
            break;
        };
        all.push(parse_keyed(extent.bytenr, &key, &bytes)?);
        at = key.successor();
    }
    Ok(Some((state, all)))
}

fn parse_keyed(bytenr: u64, key: &Key, item: &[u8]) -> Result<InlineRef> {
    InlineRef::parse_keyed(key, item).map_err(|source| Error::ExtentItem { bytenr, source })
}

/// The first keyed ref of `bytenr` at or after `from`.
fn next_keyed(
    store: &mut impl ItemRead,
    bytenr: u64,
    from: &Key,
) -> Result<Option<(Key, Vec<u8>)>> {
    let first = Key::new(bytenr, kind::EXTENT_OWNER_REF, 0);
    let found = store.next(from.max(&first))?;
    Ok(found.filter(|(key, _)| key.objectid == bytenr && key.kind <= kind::SHARED_DATA_REF))
}

/// Finds the item of a keyed backref, also among hash collisions. Returns key and count.
fn find_keyed(
    store: &mut impl ItemRead,
    bytenr: u64,
    wanted: RefKey,
) -> Result<Option<(Key, u32)>> {
    let mut at = wanted.with_count(1).key(bytenr);
    let kind = at.kind;
    let hashed = matches!(wanted, RefKey::Data { .. });
    loop {
        let Some((key, item)) = next_keyed(store, bytenr, &at)? else {
            return Ok(None);
        };
        if key.kind != kind || (!hashed && key != at) {
            return Ok(None);
        }
        let found = parse_keyed(bytenr, &key, &item)?;
        if RefKey::of(&found) == Some(wanted) {
            return Ok(Some((key, found.count() as u32)));
        }
        match key.successor() {
            Some(next) if hashed => at = next,
            _ => return Ok(None),
        }
    }
}

/// Inserts a keyed item. A data ref whose hash is taken uses the next free offset.
fn insert_keyed(store: &mut impl ItemStore, bytenr: u64, new: InlineRef) -> Result<()> {
    let mut key = new.key(bytenr);
    while key.kind == kind::EXTENT_DATA_REF && store.get(&key)?.is_some() {
        key.offset = key.offset.wrapping_add(1);
    }
    store.insert(key, &new.encode_keyed())
}

/// Writes a head's changes. `transid` becomes the generation of a new item; `first_key` is stored
/// in the tree-block info of an old-style one.
///
/// # Errors
/// [`Error::RefMissing`] if the extent lacks a ref that is dropped, or has it with a smaller count,
/// [`Error::ExtentMissing`] if it has no item, [`Error::ExtentItem`]; errors of the store.
pub(crate) fn apply(
    store: &mut impl ItemStore,
    rules: &ItemRules,
    head: &Head,
    transid: u64,
    first_key: impl FnOnce() -> Key,
) -> Result<Applied> {
    let extent = &head.extent;
    if head.insert {
        return insert(store, rules, head, transid, first_key);
    }
    let Some(mut item) = find(store, rules, extent)? else {
        return Err(Error::ExtentMissing {
            bytenr: extent.bytenr,
        });
    };
    item.flags |= head.set_flags;
    // Adds come first, so that the count never reaches zero in between.
    let adds = head.refs.iter().filter(|(_, count)| **count > 0);
    let drops = head.refs.iter().filter(|(_, count)| **count < 0);
    for (&key, &count) in adds.chain(drops) {
        change_one(store, rules, &mut item, extent.bytenr, key, count)?;
        item.refs = item
            .refs
            .checked_add_signed(count)
            .ok_or_else(|| missing(extent.bytenr, key))?;
    }
    if item.refs == 0 {
        if let Some(left) = item.inline.iter().find_map(RefKey::of) {
            return Err(missing(extent.bytenr, left));
        }
        store.delete(item.key)?;
        let owner = item.inline.iter().find_map(|found| match found {
            InlineRef::Owner { root } => Some(*root),
            _ => None,
        });
        let generation = item.generation;
        return Ok(Applied::Removed { generation, owner });
    }
    store.replace(item.key, &item.encode())?;
    Ok(Applied::Changed)
}

fn insert(
    store: &mut impl ItemStore,
    rules: &ItemRules,
    head: &Head,
    transid: u64,
    first_key: impl FnOnce() -> Key,
) -> Result<Applied> {
    let extent = &head.extent;
    let key = rules.key(extent);
    let info = extent.level.filter(|_| key.kind == kind::EXTENT_ITEM);
    let mut item = Parsed {
        key,
        refs: 0,
        generation: transid,
        flags: head.set_flags,
        tree_block: info.map(|level| (first_key(), level)),
        inline: Vec::new(),
    };
    if let Some(root) = head.owner.filter(|_| rules.owners) {
        item.insert_inline(InlineRef::Owner { root });
    }
    let mut keyed = Vec::new();
    for (&key, &count) in &head.refs {
        let new = key.with_count(count_u32(extent.bytenr, key, count)?);
        item.refs += new.count();
        if keyed.is_empty() && item.size() + inline_size(&new) < rules.item_limit() {
            item.insert_inline(new);
        } else {
            keyed.push(new);
        }
    }
    store.insert(item.key, &item.encode())?;
    for new in keyed {
        insert_keyed(store, extent.bytenr, new)?;
    }
    Ok(Applied::Inserted)
}

fn missing(bytenr: u64, key: RefKey) -> Error {
    Error::RefMissing {
        bytenr,
        backref: format!("{key:?}"),
    }
}

fn count_u32(bytenr: u64, key: RefKey, count: i64) -> Result<u32> {
    u32::try_from(count).map_err(|_| missing(bytenr, key))
}

/// Changes the count of one backref, inline or keyed, or adds it.
fn change_one(
    store: &mut impl ItemStore,
    rules: &ItemRules,
    item: &mut Parsed,
    bytenr: u64,
    wanted: RefKey,
    change: i64,
) -> Result<()> {
    if let Some(at) = item.position(wanted) {
        let now = item.inline[at].count() as i64 + change;
        match count_u32(bytenr, wanted, now)? {
            0 => drop(item.inline.remove(at)),
            count => item.inline[at] = wanted.with_count(count),
        }
        return Ok(());
    }
    let behind = item.key.successor().unwrap_or(Key::MAX);
    let has_keyed = next_keyed(store, bytenr, &behind)?.is_some();
    if has_keyed && let Some((key, found)) = find_keyed(store, bytenr, wanted)? {
        return match count_u32(bytenr, wanted, i64::from(found) + change)? {
            0 => store.delete(key),
            count => store.replace(key, &wanted.with_count(count).encode_keyed()),
        };
    }
    let new = wanted.with_count(count_u32(bytenr, wanted, change)?);
    if !has_keyed && item.size() + inline_size(&new) < rules.item_limit() {
        item.insert_inline(new);
        return Ok(());
    }
    insert_keyed(store, bytenr, new)
}

#[cfg(test)]
#[path = "extent_refs_tests.rs"]
mod tests;
