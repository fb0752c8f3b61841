//! Counts the bytes of all subvolumes anew, without backrefs.
//!
//! # How it works
//! One descent through all subvolumes at once determines, for each extent, the set of subvolumes
//! that reach it. Blocks are taken by level, highest first, so all parents of a block are known
//! before the block. Each block is read once, however many snapshots share it. Sets are interned.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use super::account::Moves;
use super::data_extents;
use super::owners::{Owners, Trees};
use crate::Result;
use crate::tree::{Expect, view};

/// Most ids that all sets of subvolumes together may have.
const MOST_IDS: usize = 8 << 20;

/// Sets of subvolumes.
#[derive(Default)]
struct Sets {
    all: HashMap<Owners, ()>,
    unions: HashMap<(Owners, Owners), Owners>,
    ids: usize,
}

impl Sets {
    fn intern(&mut self, set: Vec<u64>) -> Owners {
        if let Some((known, ())) = self.all.get_key_value(set.as_slice()) {
            return Rc::clone(known);
        }
        self.ids += set.len();
        let set: Owners = set.into();
        self.all.insert(Rc::clone(&set), ());
        set
    }

    /// Adds the ids of `more` to a set.
    fn join(&mut self, set: &mut Owners, more: &Owners) {
        if set == more {
            return;
        }
        let pair = (Rc::clone(set), Rc::clone(more));
        if let Some(known) = self.unions.get(&pair) {
            *set = Rc::clone(known);
            return;
        }
        let both: BTreeSet<u64> = set.iter().chain(more.iter()).copied().collect();
        let both = self.intern(both.into_iter().collect());
        self.unions.insert(pair, Rc::clone(&both));
        *set = both;
    }
}

/// Bytes by owners, as if none of the extents had existed before. The trees are at rest, and no
/// subvolume is dropped in part. `None` if the sets of very many snapshots would take too much
/// memory.
///
/// # Errors
/// Unreadable blocks.
pub(super) fn count(trees: Trees<'_>, subvolumes: &[u64]) -> Result<Option<Moves>> {
    let mut sets = Sets::default();
    let mut levels: BTreeMap<u8, HashMap<u64, Owners>> = BTreeMap::new();
    let mut data: HashMap<u64, (u64, Owners)> = HashMap::new();
    let nothing = sets.intern(Vec::new());
    let mut moves = Moves::new();
    let mut add = |owners: Owners, bytes: u64| {
        let all = moves.entry((Rc::clone(&nothing), owners)).or_default();
        *all = all.saturating_add(bytes);
    };
    for id in subvolumes {
        let top = trees.roots.get(*id)?.node();
        let owners = sets.intern(vec![*id]);
        levels
            .entry(top.level())
            .or_default()
            .insert(top.bytenr(), owners);
    }
    while let Some((level, blocks)) = levels.pop_last() {
        for (bytenr, owners) in blocks {
            let expect = Expect {
                level: Some(level),
                ..Expect::default()
            };
            let bytes = trees.blocks.get(bytenr, &expect)?.snapshot();
            let block = view(&bytes)?;
            add(Rc::clone(&owners), trees.space.block(bytenr, level).len);
            for ptr in block.ptrs() {
                let below = levels.entry(level.saturating_sub(1)).or_default();
                let known = below.entry(ptr.blockptr.get());
                sets.join(known.or_insert_with(|| Rc::clone(&owners)), &owners);
            }
            for extent in data_extents(&block) {
                let extent = extent?;
                let known = data.entry(extent.bytenr);
                let known = known.or_insert_with(|| (extent.len, Rc::clone(&owners)));
                sets.join(&mut known.1, &owners);
            }
        }
        if sets.ids > MOST_IDS {
            return Ok(None);
        }
    }
    for (len, owners) in data.into_values() {
        add(owners, len);
    }
    Ok(Some(moves))
}
