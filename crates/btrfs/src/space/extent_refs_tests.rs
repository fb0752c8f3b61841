//! Random backrefs against a model, on a map as storage.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sapwood_btrfs_format::extent_data_ref_hash;

use super::super::store::tests::MapStore;
use super::*;

const RULES: ItemRules = ItemRules {
    skinny: true,
    nodesize: 16384,
    owners: false,
};
const DATA: Extent = Extent {
    bytenr: 1 << 30,
    len: 65536,
    level: None,
};
const BLOCK: Extent = Extent {
    bytenr: 1 << 31,
    len: 16384,
    level: Some(1),
};

fn head(extent: Extent, insert: bool, refs: &[(RefKey, i64)]) -> Head {
    let flags = match extent.level {
        Some(_) => ExtentFlags::TREE_BLOCK,
        None => ExtentFlags::DATA,
    };
    Head {
        extent,
        insert,
        refs: refs.iter().copied().collect(),
        set_flags: if insert { flags } else { ExtentFlags::empty() },
        owner: None,
    }
}

fn run(store: &mut MapStore, rules: &ItemRules, head: &Head) -> Result<Applied> {
    apply(store, rules, head, 7, || Key::new(1, 2, 3))
}

fn stored(store: &mut MapStore, rules: &ItemRules, extent: &Extent) -> BTreeMap<RefKey, i64> {
    let all = backrefs(store, rules, extent).unwrap();
    let found: BTreeMap<_, _> = all
        .iter()
        .map(|r| (RefKey::of(r).unwrap(), r.count() as i64))
        .collect();
    assert_eq!(found.len(), all.len(), "one backref stands twice");
    found
}

/// Checks sizes, order and sums against the format.
fn check_form(store: &MapStore, rules: &ItemRules) {
    for (key, item) in &store.0 {
        if !matches!(key.kind, kind::EXTENT_ITEM | kind::METADATA_ITEM) {
            continue;
        }
        let parsed = ExtentItemRef::parse(key.kind, item).unwrap();
        let inline: Vec<_> = parsed.inline_refs().map(Result::unwrap).collect();
        assert!(item.len() < rules.item_limit());
        assert!(inline.is_sorted_by_key(|r| r.inline_order()));
        let keyed = store
            .0
            .range(Key::new(key.objectid, kind::TREE_BLOCK_REF, 0)..)
            .take_while(|(k, _)| k.objectid == key.objectid && k.kind <= kind::SHARED_DATA_REF)
            .map(|(k, v)| InlineRef::parse_keyed(k, v).unwrap().count());
        let sum: u64 = inline.iter().map(InlineRef::count).sum::<u64>() + keyed.sum::<u64>();
        assert_eq!(sum, parsed.refs);
    }
}

fn data_key(n: u64) -> RefKey {
    if n.is_multiple_of(3) {
        RefKey::SharedData {
            parent: (n + 1) << 14,
        }
    } else {
        RefKey::Data {
            root: 5 + n % 2,
            objectid: 256 + n,
            offset: n << 12,
        }
    }
}

fn block_key(n: u64) -> RefKey {
    if n.is_multiple_of(2) {
        RefKey::SharedTree {
            parent: (n + 1) << 14,
        }
    } else {
        RefKey::Tree { root: 256 + n }
    }
}

proptest! {
    #[test]
    fn equals_a_model(block in any::<bool>(), skinny in any::<bool>(), small in any::<bool>(),
                    first in 0..90u64,
                    steps in prop::collection::vec((0..90u64, 1..4i64, any::<bool>()), 1..160)) {
        let rules = ItemRules { skinny, nodesize: if small { 4096 } else { 16384 }, owners: false };
        let extent = if block { BLOCK } else { DATA };
        let key = |n| if block { block_key(n) } else { data_key(n) };
        let mut store = MapStore::default();
        // The block group's item has the same objectid and must not be taken for a ref.
        store.insert(Key::new(extent.bytenr, kind::BLOCK_GROUP_ITEM, 1 << 30), &[0; 24]).unwrap();
        let mut model = BTreeMap::from([(key(first), 1)]);
        let inserted = run(&mut store, &rules, &head(extent, true, &[(key(first), 1)])).unwrap();
        prop_assert_eq!(inserted, Applied::Inserted);
        for (n, count, add) in steps {
            let now = model.get(&key(n)).copied().unwrap_or(0);
            let change = match (add, block) {
                (true, true) if now == 0 => 1,
                (true, false) => count,
                (false, _) if now > 0 => -count.min(now),
                _ => continue,
            };
            let applied = run(&mut store, &rules, &head(extent, false, &[(key(n), change)])).unwrap();
            model.insert(key(n), now + change);
            model.retain(|_, count| *count > 0);
            check_form(&store, &rules);
            prop_assert_eq!(stored(&mut store, &rules, &extent), model.clone());
            if model.is_empty() {
                let removed = matches!(applied, Applied::Removed { .. });
                prop_assert!(removed);
                prop_assert_eq!(store.0.len(), 1);
                return Ok(());
            }
            prop_assert_eq!(applied, Applied::Changed);
        }
    }
}

#[test]
fn new_extent_with_many_refs_overflows_to_items() {
    let refs: Vec<_> = (0..100).map(|n| (data_key(n), 1)).collect();
    let mut store = MapStore::default();
    run(&mut store, &RULES, &head(DATA, true, &refs)).unwrap();
    check_form(&store, &RULES);
    assert!(store.0.len() > 10);
    assert_eq!(
        stored(&mut store, &RULES, &DATA),
        refs.into_iter().collect()
    );
}

#[test]
fn colliding_hashes_take_the_next_offset() {
    let a = RefKey::Data {
        root: 5,
        objectid: 300,
        offset: 0,
    };
    let hash = extent_data_ref_hash(5, 300, 0);
    let mut store = MapStore::default();
    run(&mut store, &RULES, &head(DATA, true, &[(data_key(1), 1)])).unwrap();
    let squatter = RefKey::Data {
        root: 9,
        objectid: 9,
        offset: 9,
    };
    // Inserted directly under the hash of `a`, because real collisions are hard to find.
    store
        .insert(
            Key::new(DATA.bytenr, kind::EXTENT_DATA_REF, hash),
            &squatter.with_count(1).encode_keyed(),
        )
        .unwrap();
    run(&mut store, &RULES, &head(DATA, false, &[(a, 2)])).unwrap();
    let next = Key::new(DATA.bytenr, kind::EXTENT_DATA_REF, hash + 1);
    assert!(store.0.contains_key(&next));
    run(&mut store, &RULES, &head(DATA, false, &[(a, -1)])).unwrap();
    assert_eq!(stored(&mut store, &RULES, &DATA)[&a], 1);
    run(&mut store, &RULES, &head(DATA, false, &[(a, -1)])).unwrap();
    assert!(!store.0.contains_key(&next));
}

#[test]
fn the_owner_of_an_extent_stays_first_and_is_returned_with_the_item() {
    let rules = ItemRules {
        owners: true,
        ..RULES
    };
    let data = |root| RefKey::Data {
        root,
        objectid: 300,
        offset: 0,
    };
    let mut store = MapStore::default();
    let mut new = head(DATA, true, &[(data(256), 1)]);
    new.owner = Some(256);
    run(&mut store, &rules, &new).unwrap();
    run(
        &mut store,
        &rules,
        &head(DATA, false, &[(data(257), 1), (data(256), -1)]),
    )
    .unwrap();
    let refs = backrefs(&mut store, &rules, &DATA).unwrap();
    assert_eq!(refs[0], InlineRef::Owner { root: 256 });
    assert_eq!(refs.len(), 2);
    let state = state(&mut store, &rules, &DATA).unwrap().unwrap();
    assert_eq!(state.refs, 1, "the owner counts nothing");
    let gone = run(&mut store, &rules, &head(DATA, false, &[(data(257), -1)])).unwrap();
    let owner = Some(256);
    assert_eq!(
        gone,
        Applied::Removed {
            generation: 7,
            owner
        }
    );
    assert!(store.0.is_empty());
}

#[test]
fn old_item_in_a_skinny_file_system_is_found() {
    let old = ItemRules {
        skinny: false,
        ..RULES
    };
    let key = RefKey::Tree { root: 5 };
    let mut store = MapStore::default();
    run(&mut store, &old, &head(BLOCK, true, &[(key, 1)])).unwrap();
    let mut flag = head(BLOCK, false, &[]);
    flag.set_flags = ExtentFlags::FULL_BACKREF;
    run(&mut store, &RULES, &flag).unwrap();
    let state = state(&mut store, &RULES, &BLOCK).unwrap().unwrap();
    assert!(
        state
            .flags
            .contains(ExtentFlags::FULL_BACKREF | ExtentFlags::TREE_BLOCK)
    );
    assert_eq!((state.refs, state.generation), (1, 7));
    let (_, item) = store.0.first_key_value().unwrap();
    let parsed = ExtentItemRef::parse(kind::EXTENT_ITEM, item).unwrap();
    assert_eq!(parsed.tree_block, Some((Key::new(1, 2, 3), 1)));
}

#[test]
fn dropping_what_is_not_there_names_the_extent() {
    let mut store = MapStore::default();
    let key = RefKey::Tree { root: 5 };
    let missing = run(&mut store, &RULES, &head(BLOCK, false, &[(key, -1)]));
    assert!(matches!(missing, Err(Error::ExtentMissing { bytenr }) if bytenr == BLOCK.bytenr));
    run(&mut store, &RULES, &head(BLOCK, true, &[(key, 1)])).unwrap();
    let other = RefKey::Tree { root: 6 };
    let missing = run(&mut store, &RULES, &head(BLOCK, false, &[(other, -1)]));
    assert!(matches!(missing, Err(Error::RefMissing { bytenr, .. }) if bytenr == BLOCK.bytenr));
}
