//! Uses of a block, and the second examination of extents whose refs do not balance.

use std::collections::{BTreeMap, HashMap, HashSet};

use sapwood_btrfs_format::{Block, ExtentItemRef, InlineRef, Key, kind, objectid};

use super::finding::Finding;
use super::state::{Check, Pointer, children};
use super::walk::disk_extents;

/// A target of a block's pointers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use {
    Block(Pointer),
    Data { bytenr: u64, len: u64 },
}

impl Use {
    fn bytenr(&self) -> u64 {
        match self {
            Self::Block(at) => at.logical,
            Self::Data { bytenr, .. } => *bytenr,
        }
    }
}

/// Calls `f` for every use of a block, from slot `from` on, with the ref that must exist: by the
/// block itself if its own extent requires it (`full`), otherwise by its owner.
pub(super) fn uses(block: &Block<'_>, full: bool, from: usize, f: &mut dyn FnMut(Use, &InlineRef)) {
    let parent = block.bytenr();
    let root = block.owner();
    let by = if full {
        InlineRef::SharedBlock { parent }
    } else {
        InlineRef::TreeBlock { root }
    };
    for child in children(block).into_iter().skip(from) {
        f(Use::Block(child), &by);
    }
    for (key, extent) in disk_extents(block) {
        let by = if full {
            InlineRef::SharedData { parent, count: 1 }
        } else {
            let objectid = key.objectid;
            // A part of an extent may be at a lower file offset than its start had.
            let offset = key.offset.wrapping_sub(extent.offset);
            InlineRef::ExtentData {
                root,
                objectid,
                offset,
                count: 1,
            }
        };
        f(
            Use::Data {
                bytenr: extent.disk_bytenr,
                len: extent.disk_num_bytes,
            },
            &by,
        );
    }
}

/// The ref without its count.
pub(super) fn identity(reference: &InlineRef) -> InlineRef {
    match *reference {
        InlineRef::ExtentData {
            root,
            objectid,
            offset,
            ..
        } => InlineRef::ExtentData {
            root,
            objectid,
            offset,
            count: 0,
        },
        InlineRef::SharedData { parent, .. } => InlineRef::SharedData { parent, count: 0 },
        other => other,
    }
}

/// Listed and expected count of each ref of the examined extents.
type Watched = HashMap<u64, BTreeMap<String, Counts>>;

struct Counts {
    reference: InlineRef,
    listed: u64,
    wanted: u64,
}

fn note<'w>(
    watched: &'w mut Watched,
    bytenr: u64,
    reference: &InlineRef,
) -> Option<&'w mut Counts> {
    let reference = identity(reference);
    let refs = watched.get_mut(&bytenr)?;
    let counts = Counts {
        reference,
        listed: 0,
        wanted: 0,
    };
    Some(refs.entry(format!("{reference:?}")).or_insert(counts))
}

impl Check<'_> {
    /// Reads everything again to collect the refs of these extents, and reports the wrong ones.
    pub(super) fn examine_refs(&mut self, bytenrs: &[u64]) {
        if bytenrs.is_empty() {
            return;
        }
        let mut watched: Watched = bytenrs.iter().map(|at| (*at, BTreeMap::new())).collect();
        self.wanted_refs(&mut watched);
        self.listed_refs(&mut watched);
        for bytenr in bytenrs {
            let refs = watched.remove(bytenr).unwrap_or_default();
            self.report_refs(*bytenr, refs.into_values());
        }
    }

    fn report_refs(&mut self, bytenr: u64, refs: impl Iterator<Item = Counts>) {
        let missing = !self.extents.is_listed(bytenr);
        for Counts {
            reference,
            listed: found,
            wanted: expected,
        } in refs
        {
            if missing {
                let len = self.extents.used_len(bytenr);
                return self.found(Finding::ExtentMissing {
                    bytenr,
                    len,
                    by: reference,
                });
            }
            if found < expected && !self.has_hole(objectid::EXTENT_TREE) {
                self.found(Finding::RefMissing {
                    bytenr,
                    reference,
                    found,
                    expected,
                });
            }
            if found > expected && !self.uses_incomplete {
                self.found(Finding::RefStray {
                    bytenr,
                    reference,
                    found,
                    expected,
                });
            }
        }
    }

    fn wanted_refs(&self, watched: &mut Watched) {
        let mut seen = HashSet::new();
        for (tree, root, dropped) in self.all_roots() {
            let reference = if tree == objectid::TREE_RELOC {
                InlineRef::SharedBlock {
                    parent: root.logical,
                }
            } else {
                InlineRef::TreeBlock { root: tree }
            };
            if let Some(counts) = note(watched, root.logical, &reference) {
                counts.wanted += 1;
            }
            let mut stack = vec![(root, dropped)];
            while let Some((at, dropped)) = stack.pop() {
                if !seen.insert(at.logical) {
                    continue;
                }
                let Some(bytes) = self.quiet_block(tree, &at) else {
                    continue;
                };
                let Ok(block) = Block::new(&bytes) else {
                    continue;
                };
                let dropped = dropped.filter(|(_, level)| block.level() >= (*level).max(1));
                let from = dropped.map_or(0, |(key, _)| block.child_slot(&key).unwrap_or(0));
                let full = self.extents.is_full_backref(at.logical);
                uses(&block, full, from, &mut |what, reference| {
                    if let Some(counts) = note(watched, what.bytenr(), reference) {
                        counts.wanted += 1;
                    }
                });
                for (slot, child) in children(&block).into_iter().enumerate().skip(from) {
                    let below = dropped.filter(|(_, lv)| slot == from && block.level() > *lv);
                    stack.push((child, below));
                }
            }
        }
    }

    fn listed_refs(&self, watched: &mut Watched) {
        let Some(root) = self.roots.pointer(objectid::EXTENT_TREE) else {
            return;
        };
        self.range(
            objectid::EXTENT_TREE,
            &root,
            &Key::MIN,
            &Key::MAX,
            &mut |key, data| {
                if !watched.contains_key(&key.objectid) {
                    return;
                }
                for reference in listed(&key, data) {
                    if let Some(counts) = note(watched, key.objectid, &reference) {
                        counts.listed = counts.listed.saturating_add(reference.count());
                    }
                }
            },
        );
    }
}

/// The refs that an item of the extent tree lists.
pub(super) fn listed(key: &Key, data: &[u8]) -> Vec<InlineRef> {
    match key.kind {
        kind::EXTENT_ITEM | kind::METADATA_ITEM => {
            let Ok(item) = ExtentItemRef::parse(key.kind, data) else {
                return Vec::new();
            };
            let counted = |r: &InlineRef| !matches!(r, InlineRef::Owner { .. });
            item.inline_refs()
                .filter_map(Result::ok)
                .filter(counted)
                .collect()
        }
        _ => InlineRef::parse_keyed(key, data).into_iter().collect(),
    }
}
